"""What `import refold` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import refold
from refold.model import errors

PUBLIC = sorted(
    [
        "Budget",
        *("CallUsage", "Chat", "ChatEvent", "ChatTool", "Command", "CommandCall", "CommandReply", "Done"),
        *(
            "Notice",
            "Provider",
            "Queued",
            "ReasoningDelta",
            "TextDelta",
            "ToolCall",
            "ToolEnded",
            "ToolStarted",
        ),
        *("run_command", "tool"),
        "Conversation",
        "Engine",
        "Policy",
        "Receipt",
        "Store",
        "Summariser",
        "Upstream",
        "CompactionEnd",
        "CompactionStart",
        "Event",
        "Pruned",
        "Recovered",
        "SummaryDiscarded",
        "SummaryFailed",
        "SummarySwitched",
        "SummaryWritten",
        "UsageRecorded",
        "Undone",
        "AccessError",
        "BodyEncoded",
        "BodyTooLarge",
        "BodyTooSlow",
        "BudgetError",
        "Busy",
        "ConfigError",
        "Conflict",
        "ContextOverflow",
        "Damaged",
        "DoesNotFit",
        "HeldElsewhere",
        "InvalidWindow",
        "KeyRefused",
        "MalformedHistory",
        "MissingExtra",
        "NotFound",
        "OutputCapExceeded",
        "Plugin",
        "PluginError",
        "PluginRefused",
        "RateLimited",
        "NotAnOverflow",
        "RecoverySpent",
        "RefoldError",
        "SettingError",
        "SettingFixed",
        "SettingLocked",
        "StoreError",
        "Stopping",
        "SummaryError",
        "TooManyRequests",
        "UpstreamError",
        "UpstreamUnavailable",
        "WindowError",
        "WebSocketRefused",
        "WireError",
        "__version__",
        "answer_recall",
        "load_plugins",
        "plugins",
        "presets",
        "recall_tool",
        "sync",
        "wrap",
    ]
)
"""Every name that `refold` exports. A change here is a change for users: it belongs in CHANGELOG.md."""

HEAVY = {"asyncio", "click", "numpy", "pydantic", "rich", "splintr", "tiktoken", "typer"}
"""Packages that `import refold` must not pull in: they are imported where they are used."""


def test_the_exported_names_are_pinned():
    assert sorted(getattr(refold, "__all__", [])) == PUBLIC


def test_every_exported_name_exists():
    for name in PUBLIC:
        assert getattr(refold, name) is not None


def test_every_error_is_exported():
    """Whatever a program may have to catch."""
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RefoldError)
    }
    assert found <= set(PUBLIC)


def test_a_function_is_exported_whatever_was_imported_before():
    """A module of the same name would take its place."""
    modules = {path.stem for path in Path(refold.__file__).parent.iterdir()}
    assert modules & set(PUBLIC) == {"plugins", "sync"}


def test_importing_refold_stays_light():
    code = "import sys, refold; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert HEAVY.isdisjoint(result.stdout.split())
