"""Events as people read them, letter for letter."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.engine.events import (
    CompactionEnd,
    CompactionStart,
    ContextSize,
    Pruned,
    Recovered,
    Reduction,
    Regions,
    SummaryFailed,
    SummaryWritten,
    Undone,
    compaction,
    pruning,
    short,
    text_of,
)


def size(tokens: int, limit: int = 150_000, **regions: int) -> ContextSize:
    return ContextSize(tokens, "counted", limit, tokens * 100 // limit, Regions(**regions))


AFTER = size(
    9_100, system=1_800, summary=3_200, history=1_500, tail=700, input=500, tools=1_100, tool_results=300
)
PRUNED = Pruned(
    path="automatic",
    reason="12,400 tokens of tool results > 8,000",
    before=size(28_800),
    after=size(18_500),
    reductions=(Reduction("prune", 9, 9, 12_400, 2_100),),
)
COMPACTED = CompactionEnd(
    path="automatic", reason="full", outcome="installed", before=size(157_000), after=AFTER
)


@pytest.mark.feature("L15")
def test_pruning_is_told_in_two_lines():
    assert pruning(PRUNED) == "🔧 Tool outputs pruned (12.4k → 2.1k, -83%)\n  📊 Context: 18.5k/150k (12%)"


@pytest.mark.feature("L15")
def test_a_compaction_is_told_with_what_the_window_is_made_of():
    assert compaction(COMPACTED) == (
        "⚙️ Compacted (157k → 9.1k)\n"
        "  🔧 System: 1.8k tokens\n"
        "  📝 Summary: 3.2k tokens\n"
        "  💬 Kept context: 2.7k tokens\n"
        "  🛠️ Tools: 1.4k tokens (1.1k defs + 300 calls)\n"
        "  📊 Total: 9.1k/150k (6%)"
    )


def test_what_is_no_tool_output_is_not_called_so():
    shortened = structs.replace(PRUNED, reductions=(Reduction("fit", 1, 0, 900, 300),))

    assert pruning(shortened).startswith("🔧 Messages shortened (900 → 300, -66%)\n")


def test_several_stages_are_told_as_one():
    both = structs.replace(
        PRUNED, reductions=(Reduction("mask", 1, 1, 1_000, 500), Reduction("fade", 2, 2, 1_000, 250))
    )

    assert pruning(both).startswith("🔧 Tool outputs pruned (2k → 750, -62%)\n")


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("manual", "⚙️ Compacted (157k → 9.1k)"),
        ("rerun", "⚙️ Compacted again (157k → 9.1k)"),
        ("new", "⚙️ New session (157k → 9.1k)"),
        ("resume", "⚙️ Session resumed (157k → 9.1k)"),
    ],
)
def test_it_is_called_by_how_it_came_about(path, first):
    assert compaction(structs.replace(COMPACTED, path=path)).splitlines()[0] == first


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("skipped", "⚙️ Compaction skipped: no summary could be written"),
        ("failed", "⚙️ Compaction failed: no summary could be written"),
        ("superseded", "⚙️ Compaction not needed any more: no summary could be written"),
    ],
)
def test_one_that_came_to_nothing_is_one_line(outcome, text):
    told = structs.replace(COMPACTED, outcome=outcome, problem="no summary could be written")

    assert compaction(told) == text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            CompactionStart(path="manual", reason="asked for", before=size(120_000)),
            "⚙️ Compacting (120k/150k (80%)): asked for",
        ),
        (
            SummaryWritten(first=0, last=12, is_awaited=False, tokens=1_850),
            "📝 Summary of messages 0 to 11 written, 1.9k tokens",
        ),
        (
            SummaryFailed(first=0, last=12, is_awaited=True, problem="TimeoutError"),
            "📝 No summary of messages 0 to 11: TimeoutError",
        ),
        (
            Recovered(attempts=1, stated=None, size=size(70_000)),
            "🩹 The provider took it in the end, at 70k/150k (46%)",
        ),
        (
            Undone(decision="summarise", reason="full", before=size(9_100), after=size(157_000)),
            "↩️ Taken back (9.1k → 157k)",
        ),
        (PRUNED, pruning(PRUNED)),
        (COMPACTED, compaction(COMPACTED)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_every_event_has_a_text(event, text):
    assert text_of(event) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (0, "0"),
        (300, "300"),
        (999, "999"),
        (1_000, "1k"),
        (2_149, "2.1k"),
        (12_400, "12.4k"),
        (99_970, "100k"),
        (157_234, "157k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_048_576, "1M"),
        (1_250_000, "1.2M"),
    ],
)
def test_numbers_are_short(tokens, text):
    assert short(tokens) == text
