"""`refold compact CONV`, `refold undo` and `refold diff`: what is shown of a stored conversation, and taking that back.

One idea: a compaction never touches what was said, so it can be rehearsed, looked at afterwards and undone. All three tell it the
same way: every message that was shown before, and what is shown of it after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct, structs
from rich.text import Text

from refold.cli import output, stored
from refold.cli.changes import Change, changes_between, closing, in_total, listing, steps
from refold.cli.columns import align, short, when
from refold.cli.output import plain, plural
from refold.cli.sizing import Wish
from refold.cli.stored import EVERYTHING, Place
from refold.core.fold import Folded
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.history import Difference
from refold.engine.settings import ConversationSettings, preset_named
from refold.model.errors import ConfigError, InvalidWindow, NotFound
from refold.model.tokens import TokenCount
from refold.ports.store import Compaction, Head

_NUMBERS = frozenset({"before", "after", "messages"})


class Order(Struct, frozen=True, kw_only=True):
    """How to open a stored conversation, and how to compact it."""

    focus: str = ""
    summarizer: str = ""
    key_env: str = ""
    preset: str = "refold"
    wish: Wish = Wish()
    branch: str = ""
    dry_run: bool = False
    diff: bool = False
    as_json: bool = False


class Story(Struct, frozen=True):
    """What is told of one or several changes."""

    conversation: str
    difference: Difference
    limit: int
    """Tokens that there are for messages; 0 where nobody asks."""
    with_listing: bool
    compactions: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        found = self.difference
        return changes_between(found.before, found.after, found.receipts)


def compact(place: Place, name: str, order: Order) -> int:
    preset_named(order.preset)
    if order.focus and not order.summarizer:
        raise ConfigError(
            "--focus is for a model", hint="name one with --summarizer, such as openai:gpt-4o-mini"
        )

    async def act(engine: Engine) -> int:
        head = await _found(engine, name, order.branch)
        async with opened(engine, head, order) as talk:
            if order.dry_run:
                found, made = await _rehearsed(talk)
            else:
                found, made = await _done(engine, head, talk, lambda: _compact(talk, order.focus))
            limit = (await talk.status()).limit
        story = Story(name, found, limit, order.diff, tuple(one.id for one in made))
        _tell(story, as_json=order.as_json, is_rehearsal=order.dry_run)
        return 0

    return stored.look(place, act) if order.dry_run else stored.change(place, act)


async def _found(engine: Engine, name: str, branch: str) -> Head:
    try:
        newest = await stored.head_of(engine, name)
    except NotFound as error:
        raise NotFound(f"there is no file and no conversation {plain(name)!r}", hint=error.hint) from None
    return await stored.head_of(engine, name, branch) if branch else newest


@asynccontextmanager
async def opened(engine: Engine, head: Head, order: Order) -> AsyncIterator[Conversation]:
    """The conversation with the settings that were asked for, and the model that writes its summaries, if any."""
    model = order.wish.model or head.model
    sizes: dict[str, Any] = {
        "window": order.wish.window,
        "max_output": order.wish.max_output,
        "preset": order.preset,
    }
    async with AsyncExitStack() as stack:
        summariser = None
        if order.summarizer and not order.dry_run:
            from refold.engine.settings import open_summariser
            from refold.upstreams.provider import provider_of

            settings = ConversationSettings(model=model, window=order.wish.window, preset=order.preset)
            writer = open_summariser(settings, provider_of(order.summarizer, key_env=order.key_env))
            summariser = await stack.enter_async_context(writer)
        sizes |= {"branch": head.branch, "summariser": summariser}
        talk = await engine.conversation(head.conversation, model=model, **sizes)
        yield await stack.enter_async_context(talk)


async def _compact(talk: Conversation, focus: str) -> None:
    with suppress(InvalidWindow):  # it is compacted, also where no call can follow yet
        await talk.compact(focus=focus)


async def _rehearsed(talk: Conversation) -> tuple[Difference, list[Compaction]]:
    return (await talk.preview()).difference, []


async def _done(
    engine: Engine, head: Head, talk: Conversation, act: Callable[[], Awaitable[object]]
) -> tuple[Difference, list[Compaction]]:
    known = {(one.id, one.number) for one in await _in_effect(engine, head)}
    unchanged = (await talk.preview()).difference.before
    await act()
    made = [one for one in await _in_effect(engine, head) if (one.id, one.number) not in known]
    told = [await talk.diff(one) for one in made if one.kind != "arrival"]
    if not told:
        return Difference(unchanged, unchanged), []
    receipts = tuple(receipt for one in told for receipt in one.receipts)
    return Difference(told[0].before, told[-1].after, receipts), made


async def _in_effect(engine: Engine, head: Head) -> list[Compaction]:
    changes = await engine.store.compactions(engine.owner, head.branch, EVERYTHING)
    return sorted((one for one in changes if one.state == "installed"), key=lambda one: one.number)


def rerun(place: Place, name: str, order: Order) -> int:
    preset_named(order.preset)

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        async with opened(engine, head, order) as talk:
            found, made = await _done(engine, head, talk, talk.rerun)
            limit = (await talk.status()).limit
        story = Story(name, found, limit, order.diff, tuple(one.id for one in made))
        if made or order.as_json:
            _tell(story, as_json=order.as_json)
        if not made:
            output.note(
                "no compaction of the open session can be done again\nhint: `refold compact` makes one; see `refold sessions`"
            )
        return 0 if made else 1

    return stored.change(place, act)


def undo(place: Place, name: str, *, branch: str, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        before = await _in_effect(engine, head)
        talk = await engine.conversation(name, branch=head.branch)
        await talk.undo()
        left = {one.id for one in await _in_effect(engine, head)}
        undone = [one for one in before if one.id not in left]
        if as_json:
            output.write_json({"conversation": name, "undone": [_change_document(one) for one in undone]})
        else:
            output.write("".join(f"undone: {_line(one)}\n" for one in undone))
        if not undone:
            output.note(
                "nothing to undo in the open session\nhint: an earlier session stays as it is; see `refold sessions`"
            )
        return 0 if undone else 1

    return stored.change(place, act)


def diff(place: Place, name: str, which: str, *, branch: str, lists: bool, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        changes = await engine.store.compactions(engine.owner, head.branch, EVERYTHING)
        made = sorted((one for one in changes if one.number), key=lambda one: one.number)
        if lists:
            return _list(name, made, as_json=as_json)
        wanted = _wanted(made, which)
        talk = await engine.conversation(name, branch=head.branch)
        if wanted is None:
            return await _tell_nothing(talk, name, as_json=as_json)
        found = await talk.diff(wanted)
        _tell(Story(name, found, 0, with_listing=True, compactions=(wanted.id,)), as_json=as_json)
        return 0

    return stored.look(place, act)


async def _tell_nothing(talk: Conversation, name: str, *, as_json: bool) -> int:
    if as_json:
        unchanged = (await talk.preview()).difference.before
        _tell(Story(name, Difference(unchanged, unchanged), 0, with_listing=True), as_json=True)
    output.note(
        "nothing was done to this conversation yet\nhint: `refold compact CONV --dry-run --diff` shows what would be"
    )
    return 1


def _wanted(made: Sequence[Compaction], which: str) -> Compaction | None:
    if which:
        return stored.the_one(made, which, "compaction")
    shown = [one for one in made if one.kind != "arrival"]
    installed = [one for one in shown if one.state == "installed"]
    return next(reversed(installed or shown), None)


def _list(name: str, made: Sequence[Compaction], *, as_json: bool) -> int:
    if as_json:
        output.write_json({"conversation": name, "compactions": [_change_document(one) for one in made]})
    elif made:
        head = ("compaction", "kind", "state", "messages", "before", "after", "at", "reason")
        output.write(align(head, [_cells(one) for one in made], _NUMBERS))
    else:
        output.note("nothing was done to this conversation yet")
    return 0


def _cells(one: Compaction) -> tuple[str, ...]:
    return (
        short(one.id), one.kind, one.state, f"{one.size:,}", f"{one.before:,}", f"{one.after:,}", when(one.at),
        plain(one.reason),
    )  # fmt: skip


def _change_document(one: Compaction) -> dict[str, object]:
    hidden = ("shown", "edits", "holder", "until", "attempts")
    fields = {key: value for key, value in structs.asdict(one).items() if key not in hidden}
    return {**fields, "edits": msgspec.json.decode(one.edits) if one.edits else []}


def _line(one: Compaction) -> str:
    return f"{short(one.id)}  {one.kind}  {one.after:,} -> {one.before:,} tokens  {plain(one.reason)}"


def _tell(story: Story, *, as_json: bool, is_rehearsal: bool = False) -> None:
    if as_json:
        output.write_json(_document(story, is_rehearsal=is_rehearsal))
        return
    output.show(*_page(story))
    if is_rehearsal and story.difference.receipts:
        output.note("nothing was changed: this was a rehearsal, and no model was asked")
    elif story.compactions:
        output.note("hint: `refold undo` takes it back; `refold recall` gives any original")


def _page(story: Story) -> Iterator[Text]:
    found, changes = story.difference, story.changes
    count = plural(found.after.size, "message")
    yield Text.assemble((plain(story.conversation), "bold"), f"  {count}")
    for which in story.compactions:
        yield Text(f"compaction {short(which)}")
    yield Text()
    if not found.receipts:
        yield Text("nothing to do: nothing could be gained")
        return
    if story.with_listing:
        yield from listing(changes, _summary(found.after), found.after.lead.tokens, output.screen_width())
        yield Text()
    yield from steps(found.receipts)
    yield Text()
    yield closing(changes)
    yield _total(story)


def _total(story: Story) -> Text:
    source = story.difference.after.shown.counter.source
    before, after = (
        TokenCount.of(one.tokens, source) for one in (story.difference.before, story.difference.after)
    )
    if story.limit:
        return in_total(before, after, story.limit)
    return Text(f"{before.tokens:,} -> {after.tokens:,} tokens {source}", style="bold")


def _summary(after: Folded) -> str:
    shown = [after.lead.block, *(message.text for message in after.lead.messages)]
    return "\n".join(text for text in shown if text)


def _document(story: Story, *, is_rehearsal: bool) -> dict[str, object]:
    found = story.difference
    return {
        "conversation": story.conversation,
        "dry_run": is_rehearsal,
        "compactions": list(story.compactions),
        "before": found.before.tokens,
        "after": found.after.tokens,
        "receipts": [_receipt(one) for one in msgspec.to_builtins(found.receipts)],
        "changes": [_changed(one) for one in story.changes],
        "summary": _summary(found.after),
    }


def _receipt(fields: dict[str, object]) -> dict[str, object]:
    summary = fields["summary"]
    named = ("first", "last", "tokens", "kind")
    kept = {key: summary[key] for key in named} if isinstance(summary, dict) else None
    return {**fields, "summary": kept}


def _changed(change: Change) -> dict[str, object]:
    names = ("number", "handle", "role", "state", "before", "after")
    return {**{name: getattr(change, name) for name in names}, "summarised": change.is_summarised}
