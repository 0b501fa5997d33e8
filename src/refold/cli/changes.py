"""What a compaction did, for people: in total, step by step, and message by message.

One idea: whoever reads this wants to know what is missing and where it went. So every message of the transcript has a state,
kept, cut or gone, and everything that is not there any more has the handle of its original and the step that took it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from rich.text import Text

from refold.cli.context import percent
from refold.cli.output import plain, plural
from refold.core.fold import Folded
from refold.core.shown import Edit, handle_of
from refold.core.view import ViewEntry
from refold.engine.state import Receipt
from refold.model.message import Message, Opaque, Part, Reasoning, ToolCall, ToolResult, readable_text
from refold.model.message import Text as Words
from refold.model.summary import Summary
from refold.model.tokens import TokenCount

State: TypeAlias = Literal["kept", "cut", "gone"]

MAX_HANDLES = 6
"""In one line; more are counted. The listing of messages has them all."""
LEAST_EXCERPT = 32
"""Characters of a message in the listing where the screen is narrow; elsewhere as many as fit on its line."""
_MARGIN = 8
_STYLES: dict[State, str] = {"kept": "dim", "cut": "color(179)", "gone": "color(203)"}
_SIGNS: dict[State, str] = {"kept": " ", "cut": "~", "gone": "-"}


class Change(Struct, frozen=True):
    """What became of one message of the transcript."""

    number: int
    state: State
    role: str
    before: int
    """Tokens before and after."""
    after: int
    original: Message
    shown: tuple[Message, ...] = ()
    edit: Edit | None = None
    """The last that was done to it, unless a summary took its place."""
    is_summarised: bool = False

    @property
    def handle(self) -> str:
        return handle_of(self.number)


def changes_of(folded: Folded, receipts: Iterable[Receipt]) -> tuple[Change, ...]:
    """Every message of the transcript, with what is shown of it now."""
    edits = {edit.seq: edit for receipt in receipts for edit in receipt.edits}
    shown: dict[int, list[int]] = {}
    for index in range(len(folded.shown)):
        shown.setdefault(folded.number(index), []).append(index)
    covered = folded.summaries[-1].last if folded.summaries else 0
    return tuple(
        _change(folded, number, shown.get(number, []), edits.get(number), covered)
        for number in range(len(folded.branch))
    )


def changes_between(before: Folded, after: Folded, receipts: Iterable[Receipt]) -> tuple[Change, ...]:
    """Every message that was shown before, with what is shown of it after."""
    edits = {edit.seq: edit for receipt in receipts for edit in receipt.edits}
    was, now = _by_number(before), _by_number(after)
    covered = after.summaries[-1].last if after.summaries else 0
    return tuple(
        _changed(number, was[number], now.get(number, []), edits.get(number), covered) for number in was
    )


def _by_number(folded: Folded) -> dict[int, list[ViewEntry]]:
    """What is shown, by the number of its original."""
    shown: dict[int, list[ViewEntry]] = {}
    for index, entry in enumerate(folded.shown):
        shown.setdefault(folded.number(index), []).append(entry)
    return shown


def _changed(
    number: int, was: list[ViewEntry], now: list[ViewEntry], edit: Edit | None, covered: int
) -> Change:
    first, messages = was[0].message, tuple(entry.message for entry in now)
    is_same = [message.parts for message in messages] == [entry.message.parts for entry in was]
    return Change(
        number,
        "gone" if not now else "kept" if is_same else "cut",
        first.role,
        sum(entry.tokens for entry in was),
        sum(entry.tokens for entry in now),
        first,
        messages,
        edit,
        not now and number < covered,
    )


def _change(folded: Folded, number: int, at: list[int], edit: Edit | None, covered: int) -> Change:
    original = folded.branch[number]
    messages = tuple(folded.shown[index].message for index in at)
    state: State = "gone" if not at else "kept" if messages == (original.message,) else "cut"
    return Change(
        number,
        state,
        original.message.role,
        original.tokens,
        sum(folded.shown[index].tokens for index in at),
        original.message,
        messages,
        edit,
        not at and number < covered,
    )


def in_total(before: TokenCount, after: TokenCount, limit: int) -> Text:
    saved = 1 - after.tokens / before.tokens if before.tokens else 0.0
    line = Text.assemble((f"{before.tokens:,} -> {after.tokens:,} tokens", "bold"), f" {after.source}")
    return line.append(f" (-{percent(saved)}); there is room for {limit:,}")


def steps(receipts: Sequence[Receipt]) -> Iterator[Text]:
    """What was done, and why, in the order in which it was."""
    width = max(len(_sizes(receipt)) for receipt in receipts)
    for receipt in receipts:
        sizes = f"{_sizes(receipt):>{width}}"
        yield Text.assemble((f"{receipt.decision:<9}", "bold"), f"  {sizes}  {plain(receipt.reason)}")
        indent = " " * (13 + width)
        for stage, edits in _by_stage(receipt.edits).items():
            yield Text(f"{indent}{stage}: {_named(edits)}", style="dim")
        if receipt.summary:
            yield Text(f"{indent}{stands_for(receipt.summary)}", style="dim")


def _sizes(receipt: Receipt) -> str:
    return f"{receipt.before:,} -> {receipt.after:,}"


def _by_stage(edits: Iterable[Edit]) -> dict[str, list[Edit]]:
    stages: dict[str, list[Edit]] = {}
    for edit in edits:
        stages.setdefault(edit.stage, []).append(edit)
    return stages


def _named(edits: Sequence[Edit]) -> str:
    handles = [edit.handle for edit in edits[:MAX_HANDLES]]
    more = f" and {len(edits) - MAX_HANDLES:,} more" if len(edits) > MAX_HANDLES else ""
    return f"{plural(len(edits), 'edit')}, {', '.join(handles)}{more}"


def stands_for(summary: Summary) -> str:
    first, last = handle_of(summary.first), handle_of(summary.last - 1)
    return f"summary of {first} to {last}: {summary.tokens:,} tokens, {summary.kind}"


def closing(changes: Sequence[Change]) -> Text:
    """How many messages are as they were, and what became of the others."""
    counts = {state: sum(change.state == state for change in changes) for state in _SIGNS}
    summarised = sum(change.is_summarised for change in changes)
    kept, left_out = counts["kept"], counts["gone"] - summarised
    words = [f"{plural(kept, 'message')} as {'it' if kept == 1 else 'they'} came"]
    rest = {"cut": counts["cut"], "in the summary": summarised, "left out": left_out}
    words += [f"{count:,} {what}" for what, count in rest.items() if count]
    return Text(", ".join(words))


def listing(changes: Sequence[Change], summary: str, tokens: int, width: int) -> Iterator[Text]:
    """Every message before and after, and the summary where it stands, on a screen of so many columns."""
    if summary and not any(change.is_summarised for change in changes):
        yield from _summary_lines(summary, tokens)
    for index, change in enumerate(changes):
        yield from _entry(change, width)
        is_end = index + 1 == len(changes) or not changes[index + 1].is_summarised
        if summary and change.is_summarised and is_end:
            yield from _summary_lines(summary, tokens)
            summary = ""


def _entry(change: Change, width: int) -> Iterator[Text]:
    style = _STYLES[change.state]
    head = f"{_SIGNS[change.state]} {change.handle:<6} {change.role:<9} {_tokens(change):>16}  {_why(change)}"
    if change.state != "cut":
        yield Text(f"{head}{_short(said(change.original), width - len(head))}", style=style)
        return
    yield Text(head, style=style)
    yield Text(f"    - {_short(said(change.original), width - _MARGIN)}", style=_STYLES["gone"])
    for message in change.shown:
        yield Text(f"    + {_around(said(message), change.handle, width - _MARGIN)}", style="green")


def _tokens(change: Change) -> str:
    if change.state == "kept":
        return f"{change.before:,}"
    return f"{change.before:,} -> {'summary' if change.is_summarised else format(change.after, ',')}"


def _why(change: Change) -> str:
    if change.state == "kept" or change.is_summarised or change.edit is None:
        return ""
    return f"{change.edit.stage}: {plain(change.edit.reason)}  "


def _summary_lines(summary: str, tokens: int) -> Iterator[Text]:
    yield Text(f"+ summary          {tokens:>16,}", style="bold green")
    for line in summary.splitlines():
        yield Text(f"    + {plain(line, len(line))}", style="green")


def said(message: Message) -> str:
    """What a message says, on one line."""
    return " ".join(" ".join(_spoken(part) for part in message.parts).split())


def _spoken(part: Part) -> str:
    match part:
        case Words() | Reasoning():
            return part.text
        case ToolCall():
            return f"{part.name} {part.arguments}"
        case ToolResult():
            return " ".join(_spoken(inner) for inner in part.parts)
        case Opaque():
            return f"[{part.kind}] {readable_text(part)}".rstrip()
    return f"[{type(part).__name__.lower()}]"


def _short(text: str, room: int) -> str:
    return plain(text, max(LEAST_EXCERPT, room - len("...")))


def _around(text: str, handle: str, room: int) -> str:
    """The place at which something was cut out, with some words before and after it."""
    at = text.find(handle)
    start = max(0, at - room // 2)
    return f"...{_short(text[start:], room - 3)}" if start else _short(text, room)
