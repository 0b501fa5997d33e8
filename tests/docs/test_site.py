"""The documentation site names every page, and no other. `make docs` builds it, and checks its links."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.docs_site import PAGES, on_page_markdown

ROOT = Path(__file__).parents[2]


class File:
    def __init__(self, src_uri: str) -> None:
        self.src_uri = src_uri


class Page:
    def __init__(self, src_uri: str) -> None:
        self.file = File(src_uri)


def test_every_page_is_in_the_navigation_and_no_other():
    named = re.findall(
        r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}

    assert sorted(named) == sorted(pages | {*PAGES.values()})
    assert all((ROOT / name).exists() for name in PAGES)


def test_a_link_to_a_file_that_is_no_page_becomes_words_and_a_broken_one_stays():
    text = "[a](gateway.md#upstreams) [b](../examples/chat_agent.py) [c](../CHANGELOG.md) [d](nowhere.md) [e](https://x.y)"

    told = on_page_markdown(text, Page("chat.md"))

    assert told == "[a](gateway.md#upstreams) b [c](changelog.md) [d](nowhere.md) [e](https://x.y)"
