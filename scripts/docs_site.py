"""Hooks of mkdocs for the documentation site (`make docs`): pages from the root of the project, and links out of `docs/`.

The pages are written to be read in the repository as well. There, links to files that are not pages lead to the file; the site does
not have it, and shows the words alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from the root."""
    from mkdocs.structure.files import File

    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=LINK.sub(_from_root, text)))
    return files


def _from_root(link: re.Match[str]) -> str:
    words, (path, mark, anchor) = link[1], link[2].partition("#")
    path = PAGES.get(path, path.removeprefix("docs/"))
    return f"[{words}]({path}{mark}{anchor})"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep the words of a link to a file that the site does not have."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    if page.file.src_uri in PAGES.values():
        folder = ROOT / "docs"
    return LINK.sub(lambda link: _within(link, folder), markdown)


def _within(link: re.Match[str], folder: Path) -> str:
    path = link[2].partition("#")[0]
    if "://" in path or path.startswith(("mailto:", "/")) or not path:
        return link[0]
    target = (folder / path).resolve()
    is_page = path in PAGES.values() or target.is_relative_to(ROOT / "docs")
    name = PAGES.get(target.name) if target.parent == ROOT else None
    if name:
        return f"[{link[1]}]({name}{link[2][len(path) :]})"
    # A page that is not there stays a link, which the strict build reports.
    return link[0] if is_page and not (ROOT / path).exists() else link[1]
