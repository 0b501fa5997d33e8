"""Would a provider take this context? A second opinion, made without the code that built it.

One idea: what judges must not share the engine's mistakes. These are the rules on which OpenAI and Anthropic answer 400,
in the strictest reading of the two, written down again from scratch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from refold.model.dialect import Dialect
from refold.replay.facts import Context, Facts

Problem: TypeAlias = Literal[
    "bad_arguments",
    "duplicate_call_id",
    "empty_message",
    "ends_with_assistant",
    "no_messages",
    "orphan_result",
    "refused",
    "split_results",
    "starts_without_user",
    "system_in_middle",
    "unanswered_call",
]


def problems(context: Context, dialect: Dialect) -> frozenset[Problem]:
    """Everything that is wrong with a context that is about to be sent."""
    body = context.facts[context.system_size :]
    if not body:
        return frozenset({"no_messages"})
    found = set(_of_pairs(body, dialect))
    found.update(_of_order(body))
    for known in context.facts:
        if known.is_empty or (known.is_only_thought and not dialect.spreads_calls):
            found.add("empty_message")
        if known.has_bad_arguments:
            found.add("bad_arguments")
    return frozenset(found)


def _of_order(body: Sequence[Facts]) -> Iterator[Problem]:
    if body[0].role != "user":
        yield "starts_without_user"
    if body[-1].role == "assistant":
        yield "ends_with_assistant"
    if any(known.role in ("system", "developer") for known in body):
        yield "system_in_middle"


def _of_pairs(body: Sequence[Facts], dialect: Dialect) -> Iterator[Problem]:
    waiting: list[str] = []
    seen: set[str] = set()
    last = ""
    for known in body:
        if known.role == "tool":
            if dialect.joint_results and last == "tool":
                yield "split_results"
            yield from _answered(known, waiting)
        elif waiting and dialect.results_at_once:
            yield "unanswered_call"
            waiting.clear()
        yield from _called(known, waiting, seen)
        last = known.role
    if waiting:
        yield "unanswered_call"


def _answered(known: Facts, waiting: list[str]) -> Iterator[Problem]:
    for call_id in known.result_ids:
        if call_id in waiting:
            waiting.remove(call_id)
        else:
            yield "orphan_result"


def _called(known: Facts, waiting: list[str], seen: set[str]) -> Iterator[Problem]:
    for call_id in known.call_ids:
        if call_id in seen:
            yield "duplicate_call_id"
        seen.add(call_id)
        waiting.append(call_id)
