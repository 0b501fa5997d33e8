"""The report of a compaction: in total, step by step, and message by message.

Every message of the transcript is kept, cut or gone. A message that is not shown whole has the handle of its original and the step
that took it, so that every missing message can be found again. `refold compact`, `rerun` and `diff` share this report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs
from rich.text import Text

from refold.cli import output
from refold.cli.output import INDENT, one_line, percent, plain, plural, short
from refold.core.assemble import covered_handles
from refold.core.fold import FoldedBranch
from refold.core.stage import Edit
from refold.engine.history import ChangeState, MessageChange, changes_between
from refold.engine.state import Receipt, SummaryAuthor
from refold.model.errors import Damaged
from refold.model.summary import Summary
from refold.model.tokens import TokenCount
from refold.ports.records import Compaction

if TYPE_CHECKING:
    from refold.engine.history import Difference

MAX_HANDLES = 6
"""In one line; more are counted. The listing of messages has them all."""
LEAST_EXCERPT = 32
"""Characters of a message in the listing where the screen is narrow; elsewhere as many as fit on its line."""
_MARGIN = 8
_STYLES: dict[ChangeState, str] = {"kept": "dim", "cut": "color(179)", "gone": "color(203)"}
_SIGNS: dict[ChangeState, str] = {"kept": " ", "cut": "~", "gone": "-"}


def in_total(before: TokenCount, after: TokenCount, limit: int, arithmetic: str) -> Text:
    saved = 1 - after.tokens / before.tokens if before.tokens else 0.0
    line = Text.assemble((f"{before.tokens:,} -> {after.tokens:,} tokens", "bold"), f" {after.source}")
    return line.append(f" (-{percent(saved)}); there is room for {limit:,}\n{INDENT}{arithmetic}")


def steps(receipts: Sequence[Receipt]) -> Iterator[Text]:
    """Every step with its reason, in the order of the steps."""
    width = max(len(_sizes(receipt)) for receipt in receipts)
    for receipt in receipts:
        sizes = f"{_sizes(receipt):>{width}}"
        yield Text.assemble((f"{receipt.decision:<9}", "bold"), f"  {sizes}  {plain(receipt.reason)}")
        indent = 2 * INDENT
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
    about = covered_handles(summary)
    return f"summary of {about}: {summary.tokens:,} tokens, {SummaryAuthor.of(summary).text}"


def closing(changes: Sequence[MessageChange]) -> Text:
    """How many messages were kept, cut, summarised and left out."""
    counts = {state: sum(change.state == state for change in changes) for state in _SIGNS}
    summarised = sum(change.is_summarised for change in changes)
    kept, left_out = counts["kept"], counts["gone"] - summarised
    words = [f"{plural(kept, 'message')} as {'it' if kept == 1 else 'they'} came"]
    rest = {"cut": counts["cut"], "in the summary": summarised, "left out": left_out}
    words += [f"{count:,} {what}" for what, count in rest.items() if count]
    return Text(", ".join(words))


def listing(changes: Sequence[MessageChange], summary: str, tokens: int, width: int) -> Iterator[Text]:
    """Every message before and after, and the summary where it stands, on a screen of so many columns."""
    if summary and not any(change.is_summarised for change in changes):
        yield from _summary_lines(summary, tokens)
    for index, change in enumerate(changes):
        yield from _entry(change, width)
        is_end = index + 1 == len(changes) or not changes[index + 1].is_summarised
        if summary and change.is_summarised and is_end:
            yield from _summary_lines(summary, tokens)
            summary = ""


def _entry(change: MessageChange, width: int) -> Iterator[Text]:
    style = _STYLES[change.state]
    head = f"{_SIGNS[change.state]} {change.handle:<6} {change.role:<9} {_tokens(change):>16}  {_why(change)}"
    if change.state != "cut":
        yield Text(f"{head}{_short(one_line(change.original), width - len(head))}", style=style)
        return
    yield Text(head, style=style)
    yield Text(f"    - {_short(one_line(change.original), width - _MARGIN)}", style=_STYLES["gone"])
    for message in change.shown:
        yield Text(f"    + {_around(one_line(message), change.handle, width - _MARGIN)}", style="green")


def _tokens(change: MessageChange) -> str:
    if change.state == "kept":
        return f"{change.before:,}"
    return f"{change.before:,} -> {'summary' if change.is_summarised else format(change.after, ',')}"


def _why(change: MessageChange) -> str:
    if change.state == "kept" or change.is_summarised or change.edit is None:
        return ""
    return f"{change.edit.stage}: {plain(change.edit.reason)}  "


def _summary_lines(summary: str, tokens: int) -> Iterator[Text]:
    yield Text(f"+ summary          {tokens:>16,}", style="bold green")
    for line in summary.splitlines():
        yield Text(f"    + {plain(line, len(line))}", style="green")


def _short(text: str, room: int) -> str:
    return plain(text, max(LEAST_EXCERPT, room - len("...")))


def _around(text: str, handle: str, room: int) -> str:
    """The position of a cut, with some words before and after it."""
    at = text.find(handle)
    start = max(0, at - room // 2)
    return f"...{_short(text[start:], room - 3)}" if start else _short(text, room)


class ChangeReport(Struct, frozen=True):
    """One or several compactions of a stored conversation."""

    conversation: str
    difference: Difference
    limit: int = 0
    """Tokens that there are for messages; 0 where the report leaves them out."""
    with_listing: bool = False
    compactions: tuple[str, ...] = ()
    is_rehearsal: bool = False
    arithmetic: str = ""
    """How the limit follows from the window."""

    @property
    def changes(self) -> tuple[MessageChange, ...]:
        found = self.difference
        return changes_between(found.before, found.after, found.receipts)

    @property
    def summary(self) -> str:
        """The text that stands for the messages that are gone, as it is sent."""
        return lead_text(self.difference.after)


def lead_text(folded: FoldedBranch) -> str:
    shown = [folded.lead.block, *(message.text for message in folded.lead.messages)]
    return "\n".join(text for text in shown if text)


def show_report(report: ChangeReport, *, as_json: bool) -> None:
    if as_json:
        output.write_json(_document(report))
        return
    output.show(*_page(report))
    if report.is_rehearsal and report.difference.receipts:
        output.note("nothing was changed: this was a rehearsal, and no model was asked")
    elif report.compactions:
        output.note("hint: `refold undo` takes it back; `refold recall` gives any original")


def _page(report: ChangeReport) -> Iterator[Text]:
    found, changes = report.difference, report.changes
    count = plural(found.after.size, "message")
    yield Text.assemble((plain(report.conversation), "bold"), f"  {count}")
    for which in report.compactions:
        yield Text(f"compaction {short(which)}")
    yield Text()
    if not found.receipts:
        yield Text("nothing to do: nothing could be gained")
        return
    if report.with_listing:
        yield from listing(changes, report.summary, found.after.lead.tokens, output.screen_width())
        yield Text()
    yield from steps(found.receipts)
    yield Text()
    yield closing(changes)
    yield _total(report)


def _total(report: ChangeReport) -> Text:
    source = report.difference.after.shown.counter.source
    before, after = (
        TokenCount.of(one.tokens, source) for one in (report.difference.before, report.difference.after)
    )
    if report.limit:
        return in_total(before, after, report.limit, report.arithmetic)
    return Text(f"{before.tokens:,} -> {after.tokens:,} tokens {source}", style="bold")


def _document(report: ChangeReport) -> dict[str, object]:
    found = report.difference
    return {
        "conversation": report.conversation,
        "dry_run": report.is_rehearsal,
        "compactions": list(report.compactions),
        "before": found.before.tokens,
        "after": found.after.tokens,
        "receipts": [_receipt(one) for one in msgspec.to_builtins(found.receipts)],
        "changes": [_changed_document(one) for one in report.changes],
        "summary": report.summary,
    }


def _receipt(fields: dict[str, object]) -> dict[str, object]:
    summary = fields["summary"]
    named = ("first", "last", "tokens", "kind")
    kept = {key: summary[key] for key in named} if isinstance(summary, dict) else None
    return {**fields, "summary": kept}


def _changed_document(change: MessageChange) -> dict[str, object]:
    names = ("number", "handle", "role", "state", "before", "after")
    return {**{name: getattr(change, name) for name in names}, "summarised": change.is_summarised}


def compaction_document(one: Compaction) -> dict[str, object]:
    """A stored compaction for programs. Damaged edits are null: they must not hide the other compactions of a
    list, nor that one was undone.
    """
    from refold.engine.journal import read_edits

    hidden = ("shown", "edits", "holder", "until", "attempts")
    fields = {key: value for key, value in structs.asdict(one).items() if key not in hidden}
    edits: object = None
    with suppress(Damaged):
        edits = msgspec.to_builtins(read_edits(one))
    return {**fields, "edits": edits}
