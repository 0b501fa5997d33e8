"""`refold compact`: what a preset makes of a transcript.

One idea: the transcript is told to the engine message by message, as it once arrived, so what comes out is what the preset
would have sent by then, with the same reasons. It leaves in the shape it came in, and the originals stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.text import Text

from refold.cli import output, reading
from refold.cli.changes import Change, changes_of, closing, in_total, listing, steps
from refold.cli.context import MODEL_SOURCES, WINDOW_SOURCES
from refold.cli.output import plural
from refold.cli.sizing import ModelSource, Wish, choose_max_output, choose_model
from refold.core.assemble import assemble
from refold.core.verify import verify_window
from refold.engine import actions
from refold.engine.settings import ConversationSettings, state_for
from refold.engine.state import Receipt, State
from refold.model.errors import BudgetError, ConfigError, InvalidWindow
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import TokenCount
from refold.model.window import Window
from refold.tokens.catalog import WindowSize
from refold.wire import Request, encode_transcript
from refold.wire.request import with_output

SIZES_HINT = "give a larger --window, or a smaller --max-output"


class Order(Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    preset: str
    wish: Wish = Wish()
    now: bool = False
    """Compact whatever the thresholds say."""
    target: str = ""
    """Where to write the transcript; empty for stdout."""
    dry_run: bool = False
    diff: bool = False
    as_json: bool = False


class Compacted(Struct, frozen=True):
    """A compacted transcript, and how it came about."""

    file: str
    request: Request
    order: Order
    model: str
    model_source: ModelSource
    size: WindowSize
    state: State
    window: Window

    @property
    def receipts(self) -> Sequence[Receipt]:
        """What was done, without what was done for one request only and does not show any more."""
        kept = {change.number for change in self.changes if change.state == "kept"}
        receipts = self.state.receipts
        return [one for one in receipts if one.summary or any(edit.seq not in kept for edit in one.edits)]

    @property
    def body(self) -> bytes:
        """The transcript as it leaves: where nothing was done, the bytes that came."""
        request = self.request
        if not self.receipts and self.window.output is None:
            return request.body
        return encode_transcript(with_output(request, self.window.output), self.window)

    @property
    def max_output(self) -> int:
        """The output that the window leaves room for: less than was asked for where it had to be lowered."""
        asked = self.state.frame.budget.max_output
        return asked if self.window.output is None else self.window.output

    @property
    def before(self) -> TokenCount:
        return self.state.frame.cost.total + self.state.folded.branch.tokens

    @property
    def after(self) -> TokenCount:
        return self.state.measurement.content

    @property
    def limit(self) -> int:
        return self.state.limit

    @property
    def changes(self) -> tuple[Change, ...]:
        return changes_of(self.state.folded, self.state.receipts)

    @property
    def summary(self) -> str:
        """What stands for the messages that are gone, as it is sent."""
        folded = self.state.folded
        shown = [folded.lead.block, *(message.text for message in folded.lead.messages)]
        return "\n".join(text for text in shown if text) if folded.summaries else ""


def run(path: str, order: Order, *, format_name: str, max_body_bytes: int) -> int:
    data = reading.read_bytes(path, limit=max_body_bytes)
    _check_target(path, order.target)
    with output.busy("compacting", len(data)):
        request = reading.decode(data, path, format_name=format_name, limit=max_body_bytes)
        outcome = compact(request, reading.shown_name(path), order)
    output.warn(outcome.size.warning)
    deliver(outcome)
    return 0


def compact(request: Request, file: str, order: Order) -> Compacted:
    """Tell the transcript to the engine, and see what it would send.

    Raises:
        DoesNotFit: nothing more can be taken away, and it is still too much.
        InvalidWindow: what is left breaks a rule of the format.
    """
    if request.continues:
        raise ConfigError(
            "the request goes on from messages that the provider keeps, so its size is not known",
            hint="give the whole conversation",
        )
    model, source = choose_model(request, order.wish)
    wanted = order.wish.max_output is not None or request.max_output is not None
    settings = ConversationSettings(
        model=model,
        window=order.wish.window,
        max_output=choose_max_output(request, order.wish) if wanted else None,
        preset=order.preset,
    )
    try:
        state, size = state_for(settings, request.fixed)
    except BudgetError as error:
        raise BudgetError(error.message, hint=SIZES_HINT) from None
    state = retell(state, request.messages)
    state, window = last_window(state, now=order.now)
    return Compacted(file, request, order, model, source, size, state, window)


def retell(state: State, messages: Sequence[Message]) -> State:
    """Add the messages as they came, with a call before every reply. What was too large then may be small enough at the end."""
    for message in messages:
        last = state.folded.branch.last
        if message.role == "assistant" and last is not None and last.message.role != "assistant":
            state = actions.context(state).state
        state = actions.add(state, [message]).state
    return state


def last_window(state: State, *, now: bool) -> tuple[State, Window]:
    """What the next call would send; where no call can follow yet, what is shown until then."""
    done = actions.compact(state) if now else actions.context(state)
    if _is_request(state):
        return done.state, done.sendable
    if done.problem is not None and not isinstance(done.problem, InvalidWindow):
        raise done.problem
    state = done.state
    window = assemble(state.frame.fixed, state.folded.shown.messages(), state.folded.lead)
    broken = verify_window(window, as_request=False)
    if broken:
        raise InvalidWindow(broken[0].message, hint=broken[0].hint)
    return state, window


def _is_request(state: State) -> bool:
    """Is it the assistant's turn? Otherwise this is a record of what was said, and must stay one."""
    last, shown = state.folded.branch.last, state.folded.shown
    return last is not None and last.message.role != "assistant" and not shown.progress.open_calls


def deliver(outcome: Compacted) -> None:
    """The transcript to where it belongs; what was done to stdout, or beside it where the transcript is there."""
    order = outcome.order
    body = b"" if order.dry_run else outcome.body
    if order.target and not order.dry_run:
        _save(body, order.target)
    if order.as_json:
        output.write_json(as_document(outcome, body))
    elif order.target or order.dry_run:
        output.show(*page(outcome))
    else:
        output.write_bytes(body)
        output.tell(*page(outcome))


def page(outcome: Compacted) -> Iterator[Text]:
    """What was done and why, on a screen."""
    yield from headline(outcome)
    yield Text()
    if outcome.order.diff:
        tokens = outcome.state.folded.lead.tokens
        yield from listing(outcome.changes, outcome.summary, tokens, output.screen_width())
        yield Text()
    if not outcome.receipts:
        yield nothing_done(outcome)
        return
    yield from steps(outcome.receipts)
    yield Text()
    yield closing(outcome.changes)
    yield in_total(outcome.before, outcome.after, outcome.limit)


def headline(outcome: Compacted) -> Iterator[Text]:
    request, budget = outcome.request, outcome.state.frame.budget
    count = plural(len(request.messages) + request.offset, "message")
    yield Text.assemble((outcome.file, "bold"), f"  {request.dialect.name}, {count}")
    yield Text.assemble(
        (output.plain(outcome.model), "bold"),
        f" ({MODEL_SOURCES[outcome.model_source]})",
        f"  window {budget.window:,} tokens ({WINDOW_SOURCES[outcome.size.source]})",
        f", {outcome.max_output:,} for the reply" if budget.max_output else "",
        f" (lowered from {budget.max_output:,})" if outcome.max_output < budget.max_output else "",
    )
    yield Text(f"preset {outcome.order.preset}")


def nothing_done(outcome: Compacted) -> Text:
    content = outcome.before
    size = f"{content.tokens:,} tokens {content.source}, and there is room for {outcome.limit:,}"
    hint = "nothing could be gained" if outcome.order.now else "--now compacts all the same"
    what = "nothing to do" if outcome.window.output is None else "no message was changed"
    return Text(f"{what}: {size}; {hint}")


def as_document(outcome: Compacted, body: bytes) -> dict[str, object]:
    """Everything for programs; its keys are documented and stay."""
    order, request, folded = outcome.order, outcome.request, outcome.state.folded
    is_here = bool(body) and not order.target
    return {
        "file": outcome.file,
        "format": request.dialect.name,
        "messages": len(request.messages) + request.offset,
        "model": outcome.model,
        "model_source": outcome.model_source,
        "window": {
            "tokens": outcome.size.tokens,
            "source": outcome.size.source,
            "warning": outcome.size.warning,
        },
        "max_output": outcome.max_output,
        "max_output_asked": outcome.state.frame.budget.max_output,
        "preset": order.preset,
        "limit": outcome.limit,
        "before": {"tokens": outcome.before.tokens, "source": outcome.before.source},
        "after": {"tokens": outcome.after.tokens, "source": outcome.after.source},
        "receipts": [_receipt(receipt) for receipt in outcome.receipts],
        "changes": [_changed(change, request.offset) for change in outcome.changes],
        "summary": outcome.summary,
        "covers": _covers(folded.summaries[-1]) if folded.summaries else None,
        "output": None if order.dry_run or not order.target else order.target,
        "transcript": _value(body) if is_here else None,
    }


def _receipt(receipt: Receipt) -> dict[str, object]:
    return {
        "decision": receipt.decision,
        "reason": output.plain(receipt.reason),
        "before": receipt.before,
        "after": receipt.after,
        "edits": [msgspec.structs.asdict(edit) for edit in receipt.edits],
        "summary": _covers(receipt.summary) if receipt.summary else None,
    }


def _covers(summary: Summary) -> dict[str, object]:
    """Which messages a summary stands for: from `first` up to, not including, `last`."""
    return {name: getattr(summary, name) for name in ("first", "last", "tokens", "kind")}


def _changed(change: Change, offset: int) -> dict[str, object]:
    return {
        "index": change.number + offset,
        "handle": change.handle,
        "role": change.role,
        "state": change.state,
        "before": change.before,
        "after": change.after,
        "summarised": change.is_summarised,
    }


def _value(body: bytes) -> object:
    """A transcript as one JSON value; lines become a list."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return [msgspec.json.decode(line) for line in body.splitlines() if line.strip()]


def _check_target(path: str, target: str) -> None:
    """A compacted transcript beside its source is a saving; in its place it would be a loss."""
    with suppress(OSError, ValueError):
        if target and path != reading.STDIN and Path(target).samefile(path):
            raise ConfigError("the output would replace its source", hint="name another file with --output")


def _save(body: bytes, target: str) -> None:
    try:
        Path(target).write_bytes(body)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(
            f"{output.plain(target)} cannot be written: {reason}",
            hint="see that its folder is there, can be written and has room",
        ) from error
