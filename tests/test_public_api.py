"""What `import refold` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import refold

PUBLIC = ["Conversation", "Engine", "RefoldError", "__version__", "sync"]
"""Every name that `refold` exports. A change here is a change for users: it belongs in CHANGELOG.md."""

HEAVY = {"asyncio", "click", "numpy", "pydantic", "rich", "splintr", "tiktoken", "typer"}
"""Packages that `import refold` must not pull in: they are imported where they are used."""


def test_the_exported_names_are_pinned():
    assert sorted(getattr(refold, "__all__", [])) == PUBLIC


def test_every_exported_name_exists():
    for name in PUBLIC:
        assert getattr(refold, name) is not None


def test_importing_refold_stays_light():
    code = "import sys, refold; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert HEAVY.isdisjoint(result.stdout.split())
