"""`refold compact`: applies a preset to a transcript, or compacts a stored conversation.

A transcript is added to the engine message by message, so the result is the request that the preset would have sent by then, for
the same reasons; it leaves in the shape it came in, and the file stays as it is. A stored conversation is compacted at once, and the
compaction can be rehearsed, shown and undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct

from refold.cli import output
from refold.cli.options import (
    NO_MODEL,
    BranchId,
    JsonOption,
    Preset,
    ShowsDiff,
    SizeOptions,
    StoreOptions,
    SummariserOptions,
    TranscriptOptions,
    expanded,
    token_count,
)
from refold.cli.output import plural
from refold.model.errors import BudgetError, ConfigError, InvalidWindow, NotFound
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import TokenCount
from refold.model.window import Window

if TYPE_CHECKING:
    from rich.text import Text

    from refold.cli.transcript import ModelSource
    from refold.core.policy import Policy
    from refold.engine.engine import Engine
    from refold.engine.history import MessageChange
    from refold.engine.state import Receipt, State
    from refold.ports.records import Compaction, Head
    from refold.tokens.catalog import WindowSize
    from refold.wire import Request

SIZES_HINT = "give a larger --window, or a smaller --max-output"
EXAMPLES = """\b
Examples:
  refold compact examples/coding-agent.json --window 12000 --dry-run --diff
  refold compact support-42 --dry-run
  refold compact support-42 --keep 2000
  refold compact support-42 --focus refunds --summariser openai:gpt-4o-mini"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(compact))


class CompactOptions(Struct, frozen=True, kw_only=True):
    """The options that transcripts and stored conversations have in common, and those of a transcript."""

    policy: Policy
    sizes: SizeOptions = SizeOptions()
    dry_run: bool = False
    diff: bool = False
    as_json: bool = False
    now: bool = False
    """Compact whatever the thresholds say."""
    keep: int | None = None
    """Tokens of recent messages that stay; None takes the preset's figure."""
    target: str = ""
    """The file to write the transcript to; empty for stdout."""


def compact(
    what: Annotated[
        str,
        typer.Argument(metavar="FILE|CONV", help="A transcript (- for stdin), or a stored conversation."),
    ],
    *,
    preset: Preset = "",
    sizes: SizeOptions,
    now: Annotated[bool, typer.Option("--now", help="FILE: compact whatever the thresholds say.")] = False,
    target: Annotated[
        str,
        typer.Option(
            "--output", metavar="PATH", help="FILE: write the transcript there.", show_default=False
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    diff: ShowsDiff = False,
    reads: TranscriptOptions,
    focus: Annotated[
        str,
        typer.Option(
            "--focus", metavar="TEXT", help="CONV: what the summary gives its room to.", show_default=False
        ),
    ] = "",
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="TOKENS",
            parser=token_count(),
            help="CONV: recent messages that stay, such as 4000 or 4k. Default: what the preset keeps.",
            show_default=False,
        ),
    ] = None,
    summariser: SummariserOptions,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="How a summary is made: abstractive, hierarchical, selective, extractive or truncate. Default: as the preset does.",
            show_default=False,
        ),
    ] = "",
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Make a transcript or a stored conversation smaller, and say what was done and why.

    The name of a file means that FILE. Its messages are given to the engine one by one, as they once arrived. The request that the
    preset would send next is written to stdout in the shape of the file, and the report of what was done to stderr. No model is
    called, and FILE stays as it is.

    Any other name means the stored conversation CONV. It is compacted at once, whatever the thresholds say, and a new session
    begins. `refold undo` takes that back, and no message is changed. Only CONV can be summarised by a model, with --summariser.
    """
    from refold.cli import transcript
    from refold.cli.settings import policy_here

    options = CompactOptions(
        policy=policy_here(preset, strategy),
        sizes=sizes,
        dry_run=dry_run,
        diff=diff,
        as_json=as_json,
        now=now,
        target=target,
        keep=keep,
    )
    if transcript.is_file(what):
        for_conversations = {"focus": focus, "summariser": summariser.spec, "key-env": summariser.key_env}
        _check_unused("a stored conversation", {**for_conversations, "branch": branch})
        _check_unused("a stored conversation", {"keep": keep is not None})
        return _compact_file(what, options, reads)
    _check_unused("a file", {"output": target, "format": reads.format_name, "now": now})
    return _compact_conversation(place, what, branch, focus, summariser, options)


def _check_unused(what: str, given: dict[str, object]) -> None:
    """Refuse options that mean nothing here, instead of ignoring them silently."""
    for option, value in given.items():
        if value:
            raise ConfigError(f"--{option} is for {what}", hint="see refold compact --help")


def _compact_file(path: str, options: CompactOptions, reads: TranscriptOptions) -> int:
    from refold.cli import transcript

    data = transcript.read_bytes(path, limit=reads.max_body_bytes)
    _check_target(path, options.target)
    with output.busy("compacting", len(data)):
        request = transcript.decode(data, path, reads)
        outcome = compact_transcript(request, transcript.shown_name(path), options)
    output.warn(outcome.size.warning)
    deliver(outcome)
    return 0


def _compact_conversation(
    place: StoreOptions,
    name: str,
    branch: str,
    focus: str,
    summariser: SummariserOptions,
    options: CompactOptions,
) -> int:
    from refold.cli import store_access
    from refold.cli.changes import ChangeReport, show_report
    from refold.engine.arguments import check_focus

    if focus and not store_access.has_model(summariser):
        raise ConfigError(
            "--focus is for a model", hint="name one with --summariser, such as openai:gpt-4o-mini"
        )
    check_focus(focus)
    # A rehearsal asks no model.
    writer = NO_MODEL if options.dry_run else summariser

    async def act(engine: Engine) -> int:
        head = await _head(engine, name, branch)
        async with store_access.opened(
            engine, head, options.sizes, writer, policy=options.policy
        ) as conversation:

            async def compact_it() -> None:
                with suppress(InvalidWindow):  # it is compacted, also where no call can follow yet
                    await conversation.compact(focus=focus, keep=options.keep)

            made: list[Compaction] = []
            if options.dry_run:
                found = (await conversation.preview(keep=options.keep)).difference
            else:
                found, made = await store_access.difference_made_by(compact_it, engine, head, conversation)
            status = await conversation.status()
        ids = tuple(one.id for one in made)
        report = ChangeReport(
            name,
            found,
            status.limit,
            options.diff,
            ids,
            is_rehearsal=options.dry_run,
            arithmetic=status.arithmetic,
        )
        show_report(report, as_json=options.as_json)
        return 0

    return store_access.look(place, act) if options.dry_run else store_access.change(place, act)


async def _head(engine: Engine, name: str, branch: str) -> Head:
    from refold.cli.store_access import head_of

    try:
        newest = await head_of(engine, name)
    except NotFound as error:
        raise NotFound(
            f"there is no file and no conversation {output.plain(name)!r}", hint=error.hint
        ) from None
    return await head_of(engine, name, branch) if branch else newest


class CompactedTranscript(Struct, frozen=True):
    """A compacted transcript, with the state that it was compacted in."""

    file: str
    request: Request
    options: CompactOptions
    model: str
    model_source: ModelSource
    size: WindowSize
    state: State
    window: Window

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts whose edits still show: some edits are for one request only."""
        kept = {change.number for change in self.changes if change.state == "kept"}
        receipts = self.state.receipts
        return [one for one in receipts if one.summary or any(edit.seq not in kept for edit in one.edits)]

    @property
    def body(self) -> bytes:
        """The transcript as it leaves: where nothing was done, the bytes that came."""
        from refold.wire import encode_transcript
        from refold.wire.request import with_output

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
    def changes(self) -> tuple[MessageChange, ...]:
        from refold.engine.history import changes_of

        return changes_of(self.state.folded, self.state.receipts)

    @property
    def summary(self) -> str:
        """The text that stands for the messages that are gone, as it is sent."""
        from refold.cli.changes import lead_text

        return lead_text(self.state.folded) if self.state.folded.summaries else ""


def compact_transcript(request: Request, file: str, options: CompactOptions) -> CompactedTranscript:
    """Add the transcript to an engine's state message by message, and take the window that it would send next.

    Raises:
        DoesNotFit: nothing more can be taken away, and it is still too much.
        InvalidWindow: the rest breaks a rule of the format.
    """
    from refold.cli.transcript import choose_max_output, choose_model
    from refold.engine.settings import ConversationSettings, state_for

    if request.continues:
        raise ConfigError(
            "the request goes on from messages that the provider keeps, so its size is not known",
            hint="give the whole conversation",
        )
    model, source = choose_model(request, options.sizes)
    wanted = options.sizes.max_output is not None or request.max_output is not None
    settings = ConversationSettings(
        model=model,
        window=options.sizes.window,
        max_output=choose_max_output(request, options.sizes) if wanted else None,
        policy=options.policy,
    )
    try:
        state, size = state_for(settings, request.fixed)
    except BudgetError as error:
        raise BudgetError(error.message, hint=SIZES_HINT) from None
    state = replay_messages(state, request.messages)
    state, window = last_window(state, now=options.now)
    return CompactedTranscript(file, request, options, model, source, size, state, window)


def replay_messages(state: State, messages: Sequence[Message]) -> State:
    """Add the messages as they came, with a call before every reply: every stage acts when it would have acted."""
    from refold.engine import actions

    for message in messages:
        last = state.folded.branch.last
        if message.role == "assistant" and last is not None and last.message.role != "assistant":
            state = actions.context(state).state
        state = actions.add(state, [message]).state
    return state


def last_window(state: State, *, now: bool) -> tuple[State, Window]:
    """The window of the next call; where no call can follow yet, the messages that are shown until then."""
    from refold.core.assemble import assemble
    from refold.core.verify import verify_window
    from refold.engine import actions

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
    """Is it the assistant's turn? Otherwise the transcript is a record, and must stay one."""
    last, shown = state.folded.branch.last, state.folded.shown
    return last is not None and last.message.role != "assistant" and not shown.progress.open_calls


def deliver(outcome: CompactedTranscript) -> None:
    """Write the transcript to its target; the report goes to stdout, or to stderr where the transcript is on stdout."""
    options = outcome.options
    body = b"" if options.dry_run else outcome.body
    if options.target and not options.dry_run:
        _save(body, options.target)
    if options.as_json:
        output.write_json(as_document(outcome, body))
    elif options.target or options.dry_run:
        output.show(*page(outcome))
    else:
        output.write_bytes(body)
        output.tell(*page(outcome))


def page(outcome: CompactedTranscript) -> Iterator[Text]:
    """Every step with its reason, on a screen."""
    from rich.text import Text

    from refold.cli.changes import closing, in_total, listing, steps

    yield from headline(outcome)
    yield Text()
    if outcome.options.diff:
        tokens = outcome.state.folded.lead.tokens
        yield from listing(outcome.changes, outcome.summary, tokens, output.screen_width())
        yield Text()
    if not outcome.receipts:
        yield nothing_done(outcome)
        return
    yield from steps(outcome.receipts)
    yield Text()
    yield closing(outcome.changes)
    yield in_total(outcome.before, outcome.after, outcome.limit, outcome.state.arithmetic)


def headline(outcome: CompactedTranscript) -> Iterator[Text]:
    from rich.text import Text

    from refold.cli.transcript import MODEL_SOURCES, WINDOW_SOURCES

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
    yield Text(f"preset {outcome.options.policy.name}")


def nothing_done(outcome: CompactedTranscript) -> Text:
    from rich.text import Text

    content = outcome.before
    size = f"{content.tokens:,} tokens {content.source}, and there is room for {outcome.limit:,}"
    size += f" ({outcome.state.arithmetic})"
    hint = "--now compacts all the same"
    if outcome.options.now:
        hint = "nothing could be gained, or all messages are within what stays: --keep sets another size"
    what = "nothing to do" if outcome.window.output is None else "no message was changed"
    return Text(f"{what}: {size}; {hint}")


def as_document(outcome: CompactedTranscript, body: bytes) -> dict[str, object]:
    """Everything for programs; its keys are documented and stay."""
    options, request, folded = outcome.options, outcome.request, outcome.state.folded
    is_here = bool(body) and not options.target
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
        "preset": options.policy.name,
        "limit": outcome.limit,
        "arithmetic": outcome.state.arithmetic,
        "before": {"tokens": outcome.before.tokens, "source": outcome.before.source},
        "after": {"tokens": outcome.after.tokens, "source": outcome.after.source},
        "receipts": [_receipt(receipt) for receipt in outcome.receipts],
        "changes": [_changed(change, request.offset) for change in outcome.changes],
        "summary": outcome.summary,
        "covers": _covers(folded.summaries[-1]) if folded.summaries else None,
        "output": None if options.dry_run or not options.target else options.target,
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
    """The range of messages that a summary stands for: from `first` up to, not including, `last`."""
    return {name: getattr(summary, name) for name in ("first", "last", "tokens", "kind")}


def _changed(change: MessageChange, offset: int) -> dict[str, object]:
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
    """A compacted transcript in the place of its source would lose the originals."""
    from refold.cli.transcript import STDIN

    with suppress(OSError, ValueError):
        if target and path != STDIN and Path(target).samefile(path):
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
