"""How commands reach stored conversations: they open the store of an owner and find a conversation, a branch or an id in it.

A command that only reads changes nothing: a missing store is an error instead of being created, and unfinished work of a program
that crashed is ended only by commands that write.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

from msgspec import Struct, structs

from refold.cli.options import DIGEST, SizeOptions, StoreOptions, SummariserOptions
from refold.cli.output import align, note, plain, plural, short, when
from refold.cli.settings import embedder_here
from refold.cli.transcript import STORED_SOURCES
from refold.core.policy import Policy
from refold.core.stage import handle_of
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine, as_last_used
from refold.engine.history import Difference
from refold.engine.retention import MAX_SHARE, HeldBack, Retention, checked_days, checked_share
from refold.engine.settings import ConversationSettings
from refold.engine.state import FillLevel
from refold.model.errors import ConfigError, NotFound, StoreError
from refold.ports.models import Summariser
from refold.ports.records import Compaction, Head, Listed, Session, StoredMessage
from refold.ports.store import Store
from refold.stores.sql.queries import UPGRADE_HINT, Tables
from refold.stores.url import kind_of, open_store, sqlite_file

EVERYTHING = 10**9
PAGE = 500
"""Messages that are read at once: a long conversation is shown without being held in memory."""
ESTIMATED = "~ estimated in part: the provider did not report the usage of every call"
MOST_BRANCHES = 3
"""Branches that are named in one line; more are counted. `refold sessions` lists them all."""
KEEP_DAYS = "REFOLD_STORE_KEEP_DAYS"
"""Days for which an idle conversation is kept; the variable of the gateway's setting."""
MAX_EXPIRED = "REFOLD_STORE_MAX_EXPIRED_SHARE"
"""The share of all conversations that is deleted at once without a question or a second run; likewise."""


class WithId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=WithId)
EngineAction = Callable[[Engine], Awaitable[int]]


def look(place: StoreOptions, act: EngineAction) -> int:
    """Run an action that changes nothing, on a store that exists."""
    check_there(place.url)
    return asyncio.run(_with_engine(place, act, writes=False))


def change(place: StoreOptions, act: EngineAction, *, begins: bool = False) -> int:
    """Run an action that writes; with `begins`, a store that does not exist is created."""
    if not begins:
        check_there(place.url)
    check_kept(place.url)
    return asyncio.run(_with_engine(place, act, writes=True))


async def _with_engine(place: StoreOptions, act: EngineAction, *, writes: bool) -> int:
    store = await _open(place.url, "upgraded" if writes else "checked")
    async with Engine(store, owner=place.owner, embedder=embedder_here()) as engine:
        if not writes:
            return await act(engine)
        days = _keep_days(os.environ)
        share, retention = max_expired_share(os.environ), None
        if days is not None:
            retention = Retention(store, place.owner, days, time.time, share, warn=_warn_held)
            await retention.begin()  # before the action: its writes count as use of the store
        await engine.sweep()
        code = await act(engine)
        # After the action: the conversation it used is not idle.
        if retention is not None and (gone := await retention.apply(())):
            what = plural(gone, "conversation")
            note(f"deleted {what} that nothing happened in for {days:g} days ({KEEP_DAYS})")
        return code


async def _open(url: str, tables: Tables) -> Store:
    """Open a store. If it is an old one, the error tells the command that upgrades this store, and not the default one."""
    try:
        return await open_store(url, tables=tables)
    except StoreError as error:
        if error.hint == UPGRADE_HINT and url:
            shown = shlex.quote(plain(url)) if sqlite_file(url) else "URL, with the URL of this store"
            error.hint = f"{UPGRADE_HINT} --store {shown}"
        raise


def with_store(
    url: str, act: Callable[[Store], Awaitable[int]], *, begins: bool = False, tables: Tables = "upgraded"
) -> int:
    """Run an action on the store itself, without an engine; with `begins`, a store that does not exist is created."""
    check_kept(url) if begins else check_there(url)

    async def run() -> int:
        store = await _open(url, tables)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def has_model(summariser: SummariserOptions) -> bool:
    """Whether a model writes the summary of a command: the one that was named, or that of the settings."""
    from refold.cli.settings import summarisers_here

    return summariser.spec != DIGEST if summariser.spec else bool(summarisers_here())


async def _open_writer(
    summariser: SummariserOptions, settings: ConversationSettings, engine: Engine, stack: AsyncExitStack
) -> Summariser | None:
    """Open the summariser that was named, else that of the settings; None if that cannot write for this conversation.

    Raises:
        ConfigError: it names no model, or its key is missing.
    """
    from refold.cli.settings import summarisers_here
    from refold.engine.settings import COMPACTING, NATIVE, native_provider, open_summariser
    from refold.upstreams.provider import Provider, provider_of

    try:
        if summariser.spec:
            own = native_provider(summariser.spec, settings, key_env=summariser.key_env)
            named: tuple[Provider, ...] = (Provider(NATIVE),) if own else ()
            own = own or provider_of(summariser.spec, key_env=summariser.key_env)
        else:
            named = summarisers_here()
            if settings.format not in COMPACTING:
                named = tuple(one for one in named if one.name != NATIVE)
            if not named:
                return None
            own = native_provider(NATIVE, settings) if named[0].name == NATIVE else named[0]
        settings = structs.replace(settings, summarisers=named)
        assert own is not None
        return await stack.enter_async_context(open_summariser(settings, own, cache=engine.cache))
    except ConfigError as error:
        if summariser.spec:
            raise
        hint = f"{error.hint}; --summariser {DIGEST} does without the model of the settings"
        raise ConfigError(error.message, hint=hint) from None


@asynccontextmanager
async def opened(
    engine: Engine,
    head: Head,
    sizes: SizeOptions,
    summariser: SummariserOptions,
    *,
    policy: Policy | None = None,
) -> AsyncIterator[Conversation]:
    """A stored conversation with the given sizes and policy, and with the summariser that was named, else that of the settings. Without a size it
    has the window that it was last used with: a command must not measure it in another one than the program that goes on with it.
    """
    model = sizes.model or head.model or engine.settings.model
    given = engine.settings
    if sizes.max_output is not None:
        given = structs.replace(given, max_output=sizes.max_output)
    own = structs.replace(as_last_used(given, head, model), window=sizes.window, policy=policy)
    async with AsyncExitStack() as stack:
        writer = None
        if has_model(summariser):
            settings = ConversationSettings(
                model=model,
                window=sizes.window,
                used_window=own.used_window,
                policy=policy,
                format=head.format,
            )
            writer = await _open_writer(summariser, settings, engine, stack)
        conversation = await engine.open_branch(head, structs.replace(own, summariser=writer))
        await conversation.load()
        yield await stack.enter_async_context(conversation)


async def pages_of(engine: Engine, head: Head, first: int, last: int) -> AsyncIterator[list[StoredMessage]]:
    """The messages from `first` up to, not including, `last`, page by page."""
    while page := await engine.store.messages(head, first, last, PAGE):
        yield page
        first = page[-1].seq + 1


async def compactions_in_effect(engine: Engine, head: Head) -> list[Compaction]:
    changes = await engine.store.compactions(engine.owner, head.branch, EVERYTHING)
    return sorted((one for one in changes if one.state == "installed"), key=lambda one: one.number)


async def difference_made_by(
    act: Callable[[], Awaitable[object]], engine: Engine, head: Head, conversation: Conversation
) -> tuple[Difference, list[Compaction]]:
    """Run an action on a stored conversation; the result is the difference that it made, and the compactions that it added."""
    known = {(one.id, one.number) for one in await compactions_in_effect(engine, head)}
    unchanged = (await conversation.preview()).difference.before
    await act()
    made = [one for one in await compactions_in_effect(engine, head) if (one.id, one.number) not in known]
    found = [await conversation.diff(one) for one in made if one.kind != "arrival"]
    if not found:
        return Difference(unchanged, unchanged), []
    receipts = tuple(receipt for one in found for receipt in one.receipts)
    return Difference(found[0].before, found[-1].after, receipts), made


def _warn_held(text: str) -> None:
    note(f"warning: {text} ({KEEP_DAYS})\nhint: `refold expire` deletes them now, and asks before it does")


def held_back_note(held: HeldBack) -> str:
    """The conversations that retention has not deleted yet, and why."""
    why = {
        "clock": "the clock was too far ahead of the last use of the store to be believed",
        "share": "they are more than one run may delete",
    }
    return f"not deleted yet, past their time: {plural(held.conversations, 'conversation')}; {why[held.reason]} ({when(held.since)})"


def _keep_days(environ: Mapping[str, str]) -> float | None:
    """Days for which idle conversations are kept; None where none are set, and nothing is deleted."""
    days = _number(environ, KEEP_DAYS, "a number of days", "such as 90")
    return None if days is None else checked_days(days)


def max_expired_share(environ: Mapping[str, str]) -> float:
    """The share of all conversations that is deleted at once without a question or a second run."""
    share = _number(environ, MAX_EXPIRED, "a fraction", "0 to 1, such as 0.1 for 10 %")
    return MAX_SHARE if share is None else checked_share(share)


def _number(environ: Mapping[str, str], variable: str, what: str, hint: str) -> float | None:
    if not (text := environ.get(variable, "").strip()):
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{variable} is not {what}: {plain(text)!r}", hint=hint) from None


def check_there(url: str) -> None:
    """
    Raises:
        StoreError: there is no such file.
        ConfigError: the URL names no store that outlives a command.
    """
    check_kept(url)
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise StoreError(
            "there is no store yet",
            hint="`refold import` begins one; --store or REFOLD_STORE name another",
            location=plain(str(path)),
        )


def check_kept(url: str) -> None:
    if kind_of(url) == "memory":
        raise ConfigError(
            "a store in memory is forgotten when the command ends", hint="use sqlite:///path or postgresql://"
        )


async def head_of(engine: Engine, name: str, branch: str = "") -> Head:
    """A branch of a conversation that is there.

    Raises:
        NotFound: there is none, or no such branch.
    """
    head = await engine.store.head(engine.owner, name) if name else None
    if head is None:
        raise NotFound(
            f"there is no conversation {plain(name)!r}",
            hint="`refold conversations` lists those that are there",
        )
    if not branch:
        return head
    known = dict.fromkeys(one.branch for one in await engine.sessions(name, limit=EVERYTHING))
    which = by_prefix([*known], branch, "branch")
    return await engine.store.head(engine.owner, name, which) or head


def by_prefix(ids: Sequence[str], start: str, noun: str) -> str:
    """The one id that begins with `start`.

    Raises:
        NotFound: none does, or several do.
    """
    found = [which for which in ids if which.startswith(start)]
    if start in ids or len(found) == 1:
        return start if start in ids else found[0]
    if found:
        raise NotFound(
            f"{len(found)} ids of a {noun} begin with {plain(start)!r}", hint="give more letters of it"
        )
    raise NotFound(
        f"there is no {noun} {plain(start)!r}", hint=f"give the id of a {noun}, or its first letters"
    )


def row_by_prefix(rows: Sequence[T], start: str, noun: str) -> T:
    """The one row whose id begins with `start`.

    Raises:
        NotFound: none does, or several do.
    """
    which = by_prefix([one.id for one in rows], start, noun)
    return next(one for one in rows if one.id == which)


def fill_document(level: FillLevel | Listed, *, is_off: bool = False) -> dict[str, object]:
    """How full a context is, for programs. Nothing is due in a conversation that is off."""
    reason = "" if is_off else level.reason
    return {
        "tokens": level.tokens,
        "limit": level.limit,
        "arithmetic": level.arithmetic,
        "window": level.window,
        "window_source": level.window_source,
        "ratio": level.ratio if level.limit else None,
        "needs_compaction": bool(reason),
        "reason": reason,
        "summary": level.summary,
    }


def fill_text(level: FillLevel, off: str = "") -> str:
    """How full a context is, with the window and the source of that figure, on a few short lines. `off` is the name of a
    conversation that is switched off.
    """
    switched = [off_text(off)] if off else []
    if not level.limit:
        return "\n".join(["how full its context is was not noted", *switched])
    source = STORED_SOURCES.get(level.window_source, level.window_source)
    lines = [f"its context is {level.ratio * 100:.0f} % full: {level.tokens:,} of {level.limit:,} tokens"]
    lines += [f"{level.arithmetic} (window: {source})"] if level.arithmetic else []
    lines += [f"its summary: {plain(level.summary)}"] if level.summary else []
    lines += [f"it has to be compacted: {level.reason}"] if level.reason and not off else []
    return "\n".join([*lines, *switched])


def off_text(name: str) -> str:
    """What it means that a conversation is off, and how to switch it on."""
    return (
        "it is off: its next requests are passed on unchanged, neither compacted nor stored\n"
        f"hint: `refold on {plain(name)}` switches it on again"
    )


async def off_name(engine: Engine, name: str) -> str:
    """The name of a conversation that is switched off; empty if it is on."""
    return name if name in await engine.switched_off() else ""


async def branch_text(engine: Engine, head: Head) -> str:
    """The other branches of a conversation, the longest first; empty if there are none."""
    heads = (await engine.store.outline(engine.owner, head.conversation)).heads
    others = sorted((one for one in heads if one.branch != head.branch), key=lambda one: -one.next_seq)
    if not others:
        return ""
    shown = [f"{short(one.branch)} ({plural(one.next_seq, 'message')})" for one in others[:MOST_BRANCHES]]
    more = f" and {len(others) - MOST_BRANCHES:,} more" if len(others) > MOST_BRANCHES else ""
    return (
        f"this is the branch {short(head.branch)}; there {'is' if len(others) == 1 else 'are'} also {', '.join(shown)}{more}"
        "\nhint: --branch ID shows another one"
    )


def way_back(name: str, closed: str) -> str:
    """The hint after a command that closed a session: how to go back to it."""
    return f"hint: `refold resume {plain(name)} {short(closed)}` goes back to what was open before"


# Sessions with the beginnings of their summaries, as `refold search --sessions` and `refold resume` list them

SUMMARY_CHARACTERS = 60
"""Of a summary in a list: enough to tell the subject, on one line."""


class SessionEntry(Struct, frozen=True):
    """A session with its summary. The fields are keys of the JSON documents, and stay."""

    conversation: str
    id: str
    branch: str
    state: str
    first: int
    last: int | None
    at: float
    closed_at: float | None
    summary: str


async def session_entries(engine: Engine, pairs: Sequence[tuple[str, Session]]) -> list[SessionEntry]:
    """Sessions, each given with the name of its conversation, together with their summaries."""
    ids = [one.summary for _, one in pairs if one.summary]
    texts = {one.id: one.summary.text for one in await engine.summaries(ids)}
    return [
        SessionEntry(
            conversation=name,
            id=one.id,
            branch=one.branch,
            state="open" if one.last is None else "closed",
            first=one.first,
            last=one.last,
            at=one.at,
            closed_at=one.closed_at,
            summary=texts.get(one.summary, ""),
        )
        for name, one in pairs
    ]


def session_table(entries: Sequence[SessionEntry]) -> str:
    head = ("session", "conversation", "state", "from", "begun", "about")
    rows = [
        (short(one.id), plain(one.conversation), one.state, handle_of(one.first), when(one.at), _subject(one))
        for one in entries
    ]
    return align(head, rows, cuts=("about", "conversation"))


def _subject(one: SessionEntry) -> str:
    return plain(next(iter(one.summary.splitlines()), ""), SUMMARY_CHARACTERS)
