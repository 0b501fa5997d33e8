"""The table of all settings for docs/configuration.md.

One idea: what is written down by hand gets old. `python -m refold.config.reference FILE` writes the table into a page, between
two marks, and a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from refold.config.keys import SECTIONS, UPSTREAMS, Key, all_keys
from refold.config.spans import expected
from refold.config.tree import Upstream
from refold.config.writing import plain_default, toml

BEGIN, END = "<!-- settings: written by `python -m refold.config.reference` -->", "<!-- /settings -->"
_HEAD = (
    "| key | variable | flag | default | takes | what it does | over HTTP |\n|---|---|---|---|---|---|---|\n"
)


def reference() -> str:
    """One table for each section, as Markdown."""
    kinds = {**SECTIONS, UPSTREAMS: Upstream}
    return "\n".join(
        f"### {section}\n\n{kind.__doc__}\n\n{_HEAD}{''.join(_row(key) for key in all_keys() if key.section == section)}"
        for section, kind in kinds.items()
    )


def with_reference(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _row(key: Key) -> str:
    default = key.unset or f"`{toml(plain_default(key))}`"
    flags = " ".join(f"`{flag}`" for flag in key.flags)
    cells = (f"`{key.name}`", f"`{key.variable}`", flags, default, expected(key), _escaped(key.what))
    return f"| {' | '.join(cells)} | {'yes' if key.is_tunable else ''} |\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_reference(target.read_text(encoding="utf-8")), encoding="utf-8")
