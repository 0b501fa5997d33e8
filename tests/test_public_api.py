"""What `import refold` gives, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest

import refold
from refold import policies, testing
from refold.engine import conversation, engine
from refold.model import errors

PUBLIC = [
    "AccessError",
    "Ask",
    "Bill",
    "BodyEncoded",
    "BodyTooLarge",
    "BodyTooSlow",
    "Budget",
    "BudgetError",
    "Busy",
    "Call",
    "CallDelta",
    "CallUsage",
    "Chat",
    "ChatEvent",
    "ChatEvents",
    "ChatTool",
    "Command",
    "CommandCall",
    "CommandEntry",
    "CommandReply",
    "Compaction",
    "CompactionEnd",
    "CompactionStart",
    "ConfigError",
    "Conflict",
    "ContextOverflow",
    "Conversation",
    "ConversationPage",
    "ConversationSettings",
    "CountingUpstream",
    "Damaged",
    "Delta",
    "Difference",
    "DoesNotFit",
    "Done",
    "Embedder",
    "Engine",
    "Event",
    "EventReader",
    "Finding",
    "FoundMessage",
    "HeldBack",
    "HeldElsewhere",
    "InstalledEmbedder",
    "InvalidWindow",
    "KeyRefused",
    "LearnedWindow",
    "Listed",
    "Listener",
    "MalformedHistory",
    "Measurement",
    "Message",
    "MessageTokens",
    "MessagesDamaged",
    "MissingExtra",
    "ModelSummariser",
    "NotAnOverflow",
    "NotFound",
    "Notice",
    "OpenedSession",
    "OutputCapExceeded",
    "Overflow",
    "Plugin",
    "PluginError",
    "PluginRefused",
    "Policy",
    "Preview",
    "Provider",
    "Pruned",
    "Queued",
    "RateLimited",
    "ReasoningDelta",
    "Receipt",
    "Recovered",
    "RecoverySpent",
    "RefoldError",
    "Reply",
    "Savings",
    "Session",
    "SettingError",
    "SettingFixed",
    "SettingLocked",
    "Stats",
    "Status",
    "Stopping",
    "Store",
    "StoreError",
    "StoredSummary",
    "StreamingUpstream",
    "Summariser",
    "Summary",
    "SummaryCache",
    "SummaryDiscarded",
    "SummaryError",
    "SummaryFailed",
    "SummaryFunction",
    "SummarySwitched",
    "SummaryWriter",
    "SummaryWritten",
    "Text",
    "TextDelta",
    "TokenCount",
    "TokenCounter",
    "TooManyRequests",
    "ToolCall",
    "ToolEnded",
    "ToolResult",
    "ToolRule",
    "ToolStarted",
    "Undone",
    "Upstream",
    "UpstreamError",
    "UpstreamUnavailable",
    "Usage",
    "UsageRecorded",
    "WebSocketRefused",
    "WindowError",
    "WindowSize",
    "WireError",
    "__version__",
    "answer_recall",
    "classify",
    "classify_finish",
    "counter_for",
    "load_plugins",
    "notice",
    "open_embedder",
    "open_summariser",
    "open_upstream",
    "plugins",
    "presets",
    "recall_tool",
    "run_command",
    "summariser_for",
    "sync",
    "tool",
    "with_block",
    "wrap",
]
"""Every name that `refold` exports. A change here is a change for users: it belongs in CHANGELOG.md."""

HEAVY = {"asyncio", "click", "numpy", "pydantic", "rich", "splintr", "tiktoken", "typer"}
"""Packages that `import refold` must not pull in: they are imported where they are used."""


def test_the_exported_names_are_pinned():
    assert sorted(getattr(refold, "__all__", [])) == PUBLIC


def test_every_exported_name_exists():
    for name in PUBLIC:
        assert getattr(refold, name) is not None


def test_every_exported_class_and_function_has_a_docstring():
    found = {name: getattr(refold, name) for name in refold.__all__}

    assert [name for name, one in found.items() if inspect.isclass(one) and not own_docstring(one)] == []
    assert [name for name, one in found.items() if inspect.isfunction(one) and not one.__doc__] == []


def own_docstring(one: type) -> str:
    """The docstring of a class itself: `inspect.getdoc` would take that of its base."""
    return vars(one).get("__doc__") or ""


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


def test_importing_refold_reads_one_file():
    """So that its time stays what it is: beside two modules of the standard library, only the file with the names."""
    code = "import sys, __future__, importlib, typing; before = {*sys.modules}; import refold; print(*({*sys.modules} - before))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert result.stdout.split() == ["refold"]


INNER = conversation.OF_SURFACES | engine.OF_SURFACES | {"state", "shown_with"}
"""Members that give the inner values of a conversation, for programs that show them."""


@pytest.mark.parametrize("face", [refold.Conversation, refold.Engine, refold.Chat])
def test_whatever_a_member_takes_or_returns_is_exported(face):
    """A program that annotates its own functions needs the names."""
    missing = set()
    for name, member in inspect.getmembers(face):
        if (name.startswith("_") and name != "__init__") or name in INNER:
            continue
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            hints = get_type_hints(function).values()
            missing |= {kind.__name__ for hint in hints for kind in classes_in(hint)} - {*PUBLIC}
    assert missing == set()


def classes_in(hint):
    """The classes of Refold in an annotation."""
    if isinstance(hint, type) and hint.__module__.startswith("refold."):
        yield hint
    for part in (*get_args(hint), get_origin(hint)):
        if part is not None and not isinstance(part, str):
            yield from classes_in(part) if part is not hint else ()


def test_the_parts_of_a_policy_have_one_public_place():
    """Each stage, trigger and cut that a policy may name."""
    found = {kind.__name__ for hint in get_type_hints(refold.Policy).values() for kind in classes_in(hint)}
    found |= {kind.__name__ for kind in classes_in(policies.Trigger)}

    assert found <= {*policies.__all__}
    assert all(hasattr(policies, name) for name in policies.__all__)


def test_the_package_for_tests_has_the_adapter_for_evaluations():
    assert {*testing.__all__} <= {*dir(testing), "EvaluationAdapter"}
    assert testing.EvaluationAdapter().name == "refold"
