"""Commands: what a person types in front of a conversation, such as /status or /compact.

One table serves the chat, the library (`run_command`) and the gateway. A command runs without a model's
reply, costs no tokens of the conversation, and is kept in its history with its reply; no model is sent
either. `CommandTable.read` tells a command from a message: the first word decides, in lower or upper case.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Protocol

from msgspec import Struct

from refold.chat.holder import is_held
from refold.chat.tools import problem_of
from refold.core.search.query import parse_query, tell_mistakes
from refold.core.stage import handle_of
from refold.engine.conversation import Conversation
from refold.engine.damage import readable_summaries
from refold.engine.events import CompactionEnd, compaction, damage_text, pruning, short
from refold.engine.history import last_change
from refold.engine.search import find_sessions
from refold.engine.sessions import can_be_resumed, line_of
from refold.model.errors import ConfigError, InvalidWindow, NotFound, RefoldError, WireError
from refold.plugins.registry import active
from refold.ports.records import CommandEntry, Session
from refold.upstreams.provider import check_model
from refold.wire.sdk import read_message

_log = logging.getLogger("refold")

MAX_SESSIONS = 5
"""Sessions in a list: as many as one looks through."""
ID_LENGTH = 8
"""Characters of a session's id that are shown; they tell the sessions of one conversation apart."""
PREVIEW, LONG_PREVIEW = 60, 120
"""Characters of a summary in a list, and after a resume."""
ANSWERED_ELSEWHERE = "Another program answers this conversation: abort the reply there."
FOUND_TOKENS = 600
"""The size of an answer of /recall and /search: about a screen."""


class ChatControls(Protocol):
    """What commands do to a chat that is open."""

    @property
    def model(self) -> str: ...

    @property
    def waiting(self) -> int:
        """Entries in the queue."""
        ...

    @property
    def table(self) -> CommandTable: ...

    def abort(self) -> bool: ...

    async def is_held_elsewhere(self) -> bool:
        """Whether another program answers the conversation."""
        ...

    async def use_model(self, model: str) -> None: ...


class CommandCall(Struct, frozen=True):
    """A command as it was typed, and the conversation that it is about."""

    conversation: Conversation
    arguments: str = ""
    chat: ChatControls | None = None
    """The chat, if the command was typed in one."""


class Command(Struct, frozen=True, kw_only=True):
    """A command of the table."""

    name: str
    """With its slash, in lower case: /status."""
    summary: str
    """What it does, for /help."""
    run: Callable[[CommandCall], Awaitable[str]]
    """Runs it, and returns the reply."""
    aliases: tuple[str, ...] = ()
    usage: str = ""
    """Its arguments, for /help."""
    is_immediate: bool = False
    """Whether it runs at once, also while a reply is produced: it only reads, or it stops the reply. Others wait in
    the queue, among the messages."""
    is_idempotent: bool = True
    """Whether it may run again if its program crashed while it ran."""
    waits_for_model: bool = False
    """Whether it may wait long for a model. Such a command is stopped by an abort, and when the chat is closed; it does
    not run again then."""


class ReadCommand(Struct, frozen=True):
    """A text that is a command: the command, or the reply if there is none of this name."""

    command: Command | None
    arguments: str = ""
    problem: str = ""


class CommandTable:
    """Commands by name and alias. Later ones replace earlier ones of the same name.

    Raises:
        ConfigError: nobody could type the name of a command.
    """

    def __init__(self, commands: Sequence[Command]) -> None:
        for name in [name for one in commands for name in (one.name, *one.aliases)]:
            if name[:1] != "/" or name != name.lower() or name.split() != [name] or name == "/":
                raise ConfigError(
                    f"{name[:80]!r} cannot be the name of a command",
                    hint="use a slash and a word, such as /shout",
                )
        self._commands = {one.name: one for one in commands}
        self._names = {name: one for one in commands for name in (one.name, *one.aliases)}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands.values())

    def __getitem__(self, name: str) -> Command:
        return self._commands[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and alias."""
        return tuple(self._names)

    def read(self, text: str) -> ReadCommand | None:
        """Return the command that a text is; None for a message. A text such as `/etc/hosts` is a message."""
        word, *others = text.split(maxsplit=1) or [""]
        word, rest = word.lower(), "".join(others)
        if word in self._names:
            return ReadCommand(self._names[word], rest.strip())
        if not (word.startswith("/") and word[1:].replace("-", "").isalpha() and "\n" not in text.strip()):
            return None
        near = get_close_matches(word, self._names, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
        return ReadCommand(None, rest.strip(), f"There is no command {word[:40]}: {hint}")


async def run_command(
    conversation: Conversation,
    text: str,
    *,
    table: CommandTable | None = None,
    chat: ChatControls | None = None,
) -> str:
    """Run a command on a conversation, keep both in its history, and return the reply.

        print(await refold.run_command(conversation, "/status"))

    Raises:
        NotFound: the text is no command.
    """
    found = (table or command_table()).read(text)
    if found is None:
        raise NotFound("this is no command", hint="commands begin with a slash; /help lists them")
    return await keep_run(conversation, text, found, chat=chat)


async def keep_run(
    conversation: Conversation,
    text: str,
    found: ReadCommand,
    *,
    chat: ChatControls | None = None,
    entry: str = "",
) -> str:
    """Run a command, and store it with its reply in the session that was open before. `entry` is its id in the
    queue, which it leaves then.
    """
    journal = conversation.journal
    session, size = journal.head.session, conversation.size
    reply = found.problem
    if found.command is not None:
        try:
            reply = _checked(await found.command.run(CommandCall(conversation, found.arguments, chat)))
        except RefoldError as error:
            reply = f"⚠️ {error}"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin's: it must not stay at the head of the queue
            _log.warning("the command %s failed: %s", found.command.name, type(error).__name__)
            reply = f"⚠️ {found.command.name} failed: {problem_of(error)}"
    await keep(conversation, text, reply, session=session, size=size, entry=entry)
    return reply


def _checked(reply: object) -> str:
    """Return the reply of a command; a plugin's may be anything."""
    if not isinstance(reply, str):
        raise TypeError(f"the reply is no text, but {type(reply).__name__}")
    return reply


async def keep(
    conversation: Conversation, text: str, reply: str, *, session: str, size: int, entry: str = ""
) -> None:
    """Store a command and its reply in the history, unless the store keeps no content."""
    journal = conversation.journal
    if not journal.keeps_content:
        return
    kept = CommandEntry(
        id=entry or journal.new_id(),
        branch=journal.head.branch,
        session=session,
        size=size,
        text=text,
        reply=reply,
        at=journal.clock(),
    )
    await journal.store.keep_command(journal.head.owner, kept)


# The commands


async def _status(call: CommandCall) -> str:
    talk = call.conversation
    status, journal = await talk.status(), talk.journal
    billed, head = status.billed, journal.head
    cached, fresh = billed.cache_read, billed.cache_write
    hit = 100 * cached // max(1, billed.prompt)
    low = "" if cached or fresh else " ⚠️ below min"
    percent = 100 * status.tokens // max(1, status.limit)
    compactions = await count_compactions(talk)
    count = f" · 🧹 Compactions: {compactions}" if compactions else ""
    open_since = _ago(journal.session.at, journal.clock())
    messages = head.next_seq - journal.session.first
    lines = [
        f"🤖 Agent: {talk.id}",
        f"🧠 Model: {(call.chat.model if call.chat else '') or talk.model or 'not named'}",
        f"🧮 Tokens: {_fixed(billed.prompt)} in / {_fixed(billed.output)} out",
        f"🗄️ Cache: {hit}% hit · {_fixed(cached)} cached · {_fixed(fresh)} new{low}",
        f"📚 Context: {_fixed(status.tokens)}/{_fixed(status.limit)} ({percent}%){count}",
        f"🧵 Session: #{_short_id(head.session)} · started {open_since} · {messages} messages",
    ]
    if status.damaged:
        lines.append(f"⚠️ {damage_text(status.damaged)}")
    if call.chat is not None and call.chat.waiting:
        lines.append(f"🕐 Queued: {call.chat.waiting}")
    return "\n".join(lines)


async def count_compactions(talk: Conversation) -> int:
    """Return the number of compactions that led to the window: those of the session's ancestors, back to the last /new."""
    journal = talk.journal
    found = {one.id: one for one in await journal.store.sessions(journal.head.owner, talk.id)}
    number, here = 0, found.get(journal.head.session)
    while here is not None and here.kind in ("compaction", "resume"):
        number += here.kind == "compaction"
        here = found.get(here.target or here.parent)
    return number


async def _new(call: CommandCall) -> str:
    talk = call.conversation
    before, session = talk.journal.session, talk.journal.head.session
    is_empty = talk.size == before.first
    if is_empty and before.kind == "new":  # a new one would be the same: /new may come twice after a crash
        return f"✨ New session #{_short_id(session)} started."
    opened = await talk.start_session()
    if is_empty:
        return f"✨ New session #{_short_id(opened.id)} started."
    return f"✨ New session started. Previous session #{_short_id(session)} archived."


async def _compact(call: CommandCall) -> str:
    talk = call.conversation
    await talk.load()
    if len(talk.state.folded.shown) < 2:  # the number of the seed
        return "Not enough messages to compact."
    session, events = talk.journal.head.session, talk.events()
    try:
        with suppress(InvalidWindow):  # the compaction is done even if no call can follow yet
            await talk.compact(focus=call.arguments)
    except asyncio.CancelledError:
        await talk.stop_summary()  # else the next /compact would wait for the same call
        raise
    ended = [
        compaction(one).partition("\n")[0] for one in events.read_all() if isinstance(one, CompactionEnd)
    ]
    return "\n".join((f"⚙️ Compacting session #{_short_id(session)}...", *ended[-1:]))


async def _prune(call: CommandCall) -> str:
    talk = call.conversation
    await talk.load()
    if not any(item.message.results for item in talk.state.folded.items.items):
        return "No messages to prune."
    pruned = await talk.prune()
    return pruning(pruned) if pruned is not None else "Tools already pruned up to the latest message."


async def _resume(call: CommandCall) -> str:
    talk, wanted = call.conversation, call.arguments
    if not wanted:
        return await _recent(talk)
    named = await _named(talk, wanted.removeprefix("#"))
    if named is not None:
        return await _resumed(talk, named)
    if wanted.startswith("#") or wanted.isdecimal():
        return f"Session #{wanted.removeprefix('#')[:40]} not found."
    journal = talk.journal
    found = await find_sessions(
        journal.store, journal.head.owner, journal.meaning, wanted, name=talk.id, limit=4 * MAX_SESSIONS
    )
    line = await line_of(journal.store, journal.head)
    fitting = [one for _, one in found if can_be_resumed(one, line)][:MAX_SESSIONS]
    if not fitting:
        return f'No sessions found matching "{wanted[:80]}".'
    listed = await _listed(talk, fitting)
    return "\n".join((f'🔍 Sessions matching "{wanted[:80]}":', *listed, "💡 /resume <id> to continue"))


async def _recent(talk: Conversation) -> str:
    journal = talk.journal
    line = await line_of(journal.store, journal.head)
    found = await journal.store.sessions(journal.head.owner, talk.id)
    closed = [one for one in reversed(found) if one.summary and can_be_resumed(one, line)][:MAX_SESSIONS]
    if not closed:
        return "No previous sessions to resume."
    hint = "💡 /resume <id> or /resume <search text>"
    return "\n".join(("📋 Recent sessions:", *await _listed(talk, closed), hint))


async def _named(talk: Conversation, prefix: str) -> Session | None:
    """Return the session of this conversation whose id begins so, if there is exactly one."""
    if not prefix or not prefix.isalnum():
        return None
    found = await talk.journal.store.find_sessions(talk.journal.head.owner, prefix, 2)
    own = [one for name, one in found if name == talk.id]
    return own[0] if len(own) == 1 else None


async def _resumed(talk: Conversation, session: Session) -> str:
    name = _short_id(session.id)
    if session.id == talk.journal.head.session:
        return "You're already in this session."
    try:
        opened = await talk.resume(session)
    except NotFound:
        return f"Session #{name} not found."
    status = await talk.status()
    if opened.carries == "full":
        share = (
            f"~{short(status.tokens)}/{short(status.limit)} ({100 * status.tokens // max(1, status.limit)}%)"
        )
        return f"🔄 Resumed session #{name} with full context.\n  📊 Context: {share}"
    texts = [one.text for one in talk.state.folded.summaries[-1:]]
    preview = _cut(texts[0], LONG_PREVIEW) if texts else ""
    told = f"📝 {preview}" if preview else "No summary available — context may be limited."
    return f"⚠️ Session #{name} context too large (~{short(session.tokens)}), resuming from summary.\n{told}"


async def _listed(talk: Conversation, sessions: Sequence[Session]) -> list[str]:
    journal = talk.journal
    ids = [one.summary for one in sessions if one.summary]
    texts = {
        one.id: one.summary.text for one in await readable_summaries(journal.store, journal.head.owner, ids)
    }
    return [
        f"#{_short_id(one.id)} · {_ago(one.at, journal.clock())} — {_cut(texts.get(one.summary, ''), PREVIEW)}"
        for one in sessions
    ]


async def _abort(call: CommandCall) -> str:
    if call.chat is not None:
        if call.chat.abort():
            return "⛔ Aborted."
        is_answered = await call.chat.is_held_elsewhere()
    else:
        is_answered = await is_held(call.conversation.journal)
    return ANSWERED_ELSEWHERE if is_answered else "Nothing to abort."


async def _context(call: CommandCall) -> str:
    status = await call.conversation.status()
    measured = call.conversation.measurement.in_proportion(status.tokens)
    window = max(1, status.window)
    rows = [
        (name.replace("_", " "), getattr(measured, name).tokens)
        for name in ("system", "tools", "summary", "history", "tool_results", "tail", "input")
    ]
    rows.append(("reserve", measured.reserve))
    rows.append(("free", max(0, window - sum(size for _, size in rows))))
    width = max(len(short(size)) for _, size in rows)
    lines = [
        f"{name:<12} {short(size):>{width}} {'█' * round(30 * size / window) or '·'}"
        for name, size in rows
        if size
    ]
    return "\n".join(
        (
            f"📚 Context: {short(status.tokens)}/{short(status.limit)} · {status.arithmetic}",
            *lines,
            f"The size is {status.source}; the regions are in proportion to it.",
        )
    )


async def _undo(call: CommandCall) -> str:
    before = (await call.conversation.status()).tokens
    if not await call.conversation.undo():
        return "Nothing to undo."
    return f"↩️ Taken back ({short(before)} → {short((await call.conversation.status()).tokens)})"


async def _diff(call: CommandCall) -> str:
    talk = call.conversation
    await talk.load()
    change = await last_change(talk.journal)
    if change is None:
        return "Nothing was changed in this session."
    found = await talk.diff(change)
    before = {item.seq: item.tokens for item in found.before.items.items}
    after = {item.seq: item.tokens for item in found.after.items.items}
    lines = [f"{change.reason} ({short(change.before)} → {short(change.after)})"]
    if gone := [handle_of(seq) for seq in before if seq not in after]:
        lines.append(f"- left: {gone[0]} to {gone[-1]} ({len(gone)} messages)")
    lines += [
        f"~ {handle_of(seq)}: {short(before[seq])} → {short(size)}"
        for seq, size in after.items()
        if seq in before and before[seq] != size
    ]
    return "\n".join(
        (*lines, *(f"+ summary: {short(one.tokens)} tokens" for one in found.after.summaries[-1:]))
    )


async def _model(call: CommandCall) -> str:
    if not call.arguments:
        return f"🧠 Model: {(call.chat.model if call.chat else '') or call.conversation.model or 'not named'}"
    if call.chat is None:
        check_model(call.arguments)
        await call.conversation.reconfigure(model=call.arguments)
    else:
        await call.chat.use_model(call.arguments)
    return f"🧠 Model: {call.arguments}"


async def _preset(call: CommandCall) -> str:
    if not call.arguments:
        return "Give the name of a preset, such as /preset refold."
    await call.conversation.reconfigure(preset=call.arguments)
    return f"🧭 Preset: {call.arguments}"


async def _recall(call: CommandCall) -> str:
    if not call.arguments:
        return "Give a handle such as #m12, or words."
    found = await call.conversation.recall(call.arguments, max_tokens=FOUND_TOKENS)
    if isinstance(found, str):
        return found or "Nothing that was said fits."
    try:
        message = read_message(found, call.conversation.state.frame.fixed.dialect)
    except WireError:  # it came in another format
        return str(found.get("content", found))
    calls = [f"⚙ {one.name}({one.arguments})" for one in message.calls]
    lines = [message.text, *calls, *(one.text for one in message.results)]
    return "\n".join(filter(None, lines)) or "(no text)"


async def _search(call: CommandCall) -> str:
    if not call.arguments:
        return "Give words to look for."
    found = await call.conversation.search(call.arguments, max_tokens=FOUND_TOKENS)
    named = parse_query(call.arguments).conversation
    if named not in {"", call.conversation.id}:
        return "/search looks in this conversation alone. Leave `in:` out, or use `refold search`."
    return "\n".join(filter(None, (found or "Nothing that was said fits.", tell_mistakes(call.arguments))))


async def _help(call: CommandCall) -> str:
    table = call.chat.table if call.chat is not None else command_table()
    rows = [(" ".join(filter(None, (one.name, one.usage))), one) for one in table]
    width = max(len(name) for name, _ in rows)
    also = {one.name: f" (also {', '.join(one.aliases)})" if one.aliases else "" for one in table}
    return "\n".join(f"{name:<{width}}  {one.summary}{also[one.name]}" for name, one in rows)


async def _exit(call: CommandCall) -> str:  # noqa: ARG001  # the terminal leaves when it sees the reply
    return "Bye."


COMMANDS = CommandTable(
    [
        Command(
            name="/status", summary="model, tokens, cache, context, session", run=_status, is_immediate=True
        ),
        Command(name="/new", aliases=("/clear",), summary="begin a session with an empty context", run=_new),
        Command(
            name="/compact",
            usage="[focus]",
            summary="summarise older messages now",
            run=_compact,
            waits_for_model=True,
        ),
        Command(
            name="/prune",
            aliases=("/prune-tools",),
            summary="drop old tool results, keep names",
            run=_prune,
        ),
        Command(name="/resume", usage="[id | text]", summary="go on with an earlier session", run=_resume),
        Command(
            name="/abort",
            aliases=("/stop", "/cancel"),
            summary="stop the reply or the compaction in progress",
            run=_abort,
            is_immediate=True,
        ),
        Command(
            name="/context", summary="the regions of the context window", run=_context, is_immediate=True
        ),
        Command(name="/undo", summary="take the last compaction back", run=_undo, is_idempotent=False),
        Command(name="/diff", summary="what the last compaction changed", run=_diff, is_immediate=True),
        Command(name="/model", usage="[name]", summary="show or change the model", run=_model),
        Command(name="/preset", usage="name", summary="change how the context is kept small", run=_preset),
        Command(
            name="/recall",
            usage="handle | words",
            summary="bring back an original",
            run=_recall,
            is_immediate=True,
        ),
        Command(name="/search", usage="words", summary="find what was said", run=_search, is_immediate=True),
        Command(name="/help", summary="this list", run=_help, is_immediate=True),
        Command(name="/exit", aliases=("/quit",), summary="leave the chat", run=_exit, is_immediate=True),
    ]
)
"""The commands of Refold."""


def command_table() -> CommandTable:
    """Return the commands of Refold and those of plugins. Commands of a plugin that nobody could type are left out, with a
    warning in the log.
    """
    found = [*COMMANDS]
    for name, command in active().commands:
        try:
            assert isinstance(command, Command)
            CommandTable([command])
        except (AssertionError, ConfigError):
            _log.warning("plugin %s, command: %s is left out", name, str(command.name)[:40])
        else:
            found.append(command)
    return CommandTable(found)


def _short_id(session: str) -> str:
    return session[:ID_LENGTH]


def _cut(text: str, length: int) -> str:
    line = " ".join(text.split())
    return f"{line[:length]}..." if len(line) > length else line


def _ago(then: float, now: float | None = None) -> str:
    seconds = max(0, int((time.time() if now is None else now) - then))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return "just now"


def _fixed(tokens: int) -> str:
    """Abbreviate a number with one decimal: 300, 2.0k, 1.5M."""
    if tokens < 1_000:
        return str(tokens)
    return f"{tokens / 1_000:.1f}k" if tokens < 1_000_000 else f"{tokens / 1_000_000:.1f}M"
