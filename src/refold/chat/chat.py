"""The chat: sends what a person types to a model, runs the tools that it calls, and gives a stream of events.

Everything that is typed is stored in the queue of the branch first. The program that holds the branch's lease
takes the entries out in their order: a message becomes a message of the conversation, a command is run. When
the queue is empty, and its last entry was a message, the model is asked, and asked again after each round of
tool calls. So what arrives during a reply waits, a crash loses nothing, and of two programs one answers.

A reply and the results of its calls are added only if nothing was added meanwhile: a program that lost its
lease without noticing cannot store a second reply.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.chat.commands import Command, CommandTable, ReadCommand, command_table, keep, keep_run
from refold.chat.tools import (
    ABORTED,
    DECLINED,
    INTERRUPTED,
    ChatTool,
    ToolServer,
    definitions,
    failed,
    run_tool,
    tool,
)
from refold.engine.conversation import Conversation
from refold.engine.events import Event, UsageRecorded, text_of
from refold.engine.state import State
from refold.model.errors import ConfigError, Conflict, NotFound, RefoldError, StoreError, UpstreamError
from refold.model.message import Message, ToolCall, ToolResult
from refold.model.tokens import Usage
from refold.ports.models import StreamingUpstream
from refold.ports.records import CommandEntry, QueuedEntry
from refold.recall import answer_recall, recall_tool
from refold.text_work import run_text_work
from refold.upstreams import Provider, open_upstream
from refold.upstreams.provider import provider_of
from refold.wire.message import encode_item
from refold.wire.reply import Reply
from refold.wire.sdk import read_message, text_in
from refold.wire.sse import ReasoningDelta, TextDelta

_log = logging.getLogger("refold")

LEASE_S = 10.0
"""Seconds after which the lease of a crashed program is free. It is extended three times as often."""
PARALLEL_TOOLS = 4
"""Calls of one reply that run at the same time: more would compete for the same disk and the same servers."""
MAX_ROUNDS = 100
"""Rounds of tool calls in one reply: a model that never ends is stopped."""
BROKEN_OFF = "not run: the reply broke off"

DoneStatus: TypeAlias = Literal["answered", "unanswered", "aborted", "failed", "elsewhere"]
"""Answered; stored, and a command followed it, so that no model was asked; aborted; failed, with the problem;
answered by another program."""


class ToolStarted(Struct, frozen=True, tag="tool_started"):
    """The model has called a tool, which runs now."""

    call_id: str
    name: str
    arguments: str


class ToolEnded(Struct, frozen=True, tag="tool_ended"):
    """A tool call has a result."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


class CallUsage(Struct, frozen=True, tag="usage"):
    """The usage that the provider reported for one call to the model; None if it reported none."""

    usage: Usage | None


class Notice(Struct, frozen=True, tag="notice"):
    """A line for the person: a pruning, a compaction, a summary."""

    text: str
    event: Event | None = None


class CommandReply(Struct, frozen=True, tag="command_reply"):
    """The reply to a command. `command` is its name, and empty if there is no such command."""

    entry: str
    command: str
    text: str


class Queued(Struct, frozen=True, tag="queued"):
    """An entry waits for the end of the reply that is being produced, as number `place` of the queue."""

    entry: str
    place: int


class Done(Struct, frozen=True, tag="done"):
    """The last event about one or several messages."""

    entries: tuple[str, ...]
    status: DoneStatus
    problem: str = ""


ChatEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ToolStarted | ToolEnded | CallUsage | Notice | CommandReply | Queued | Done
)
Confirm: TypeAlias = Callable[[ToolCall], bool | Awaitable[bool]]
"""Is asked before a dangerous call runs; False declines it."""

_Letter: TypeAlias = tuple[ChatEvent, tuple[str, ...]]


class ChatEvents(AsyncIterator[ChatEvent]):
    """The events of a chat, from the creation of the stream until the chat is closed; with `entry`, only those
    about one entry, until its end.
    """

    def __init__(self, close: Callable[[ChatEvents], None]) -> None:
        self._letters: asyncio.Queue[_Letter | None] = asyncio.Queue()
        self._close = close
        self.entry = ""

    def put(self, letter: _Letter | None) -> None:
        self._letters.put_nowait(letter)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent:
        while (letter := await self._letters.get()) is not None:
            event, entries = letter
            if not self.entry or self.entry in entries:
                return event
        self.put(None)  # a second reader ends as well
        raise StopAsyncIteration

    def close(self) -> None:
        self._close(self)
        self.put(None)


class Chat:
    """A conversation with a model that streams, calls tools, takes commands, and queues what arrives meanwhile.

        async with refold.Engine("sqlite:///chats.db") as engine:
            talk = await engine.conversation("demo", model="gpt-4o-mini")
            async with refold.Chat(talk, "openai:gpt-4o-mini", tools=[read_file]) as chat:
                async for event in chat.send("What is in notes.txt?"):
                    print(event)

    Messages that a crashed program left in the queue are answered when the chat is opened, once.

    Args:
        conversation: where everything is kept. It stays open when the chat is closed.
        upstream: the model that answers: its name (`openai:gpt-4o-mini`, `my-model@http://localhost:8000/v1`), a
            `Provider`, or an upstream that is open.
        tools: functions that the model may call, see `refold.tool`.
        mcp: MCP servers whose tools it may call: URLs, or command lines that start them. `name=` in front of
            one gives its tools a prefix. One that does not start is named in `problems`.
        recall: whether the model may bring back what left its context.
        commands: commands of your own, beside or in place of those of Refold and of installed packages.
        confirm: is asked before a dangerous tool runs. Without it, such calls are declined.
        debounce_s: seconds without another message or typing before messages are sent; 0 sends at once.
        parallel_tools: calls of one reply that run at the same time.
        lease_s: seconds after which another program may answer in place of one that crashed.

    Raises:
        ConfigError: a setting cannot work.
    """

    def __init__(
        self,
        conversation: Conversation,
        upstream: StreamingUpstream | Provider | str,
        *,
        tools: Sequence[ChatTool | Callable[..., Any]] = (),
        mcp: Sequence[str] = (),
        recall: bool = True,
        commands: Sequence[Command] = (),
        confirm: Confirm | None = None,
        debounce_s: float = 0.0,
        parallel_tools: int = PARALLEL_TOOLS,
        lease_s: float = LEASE_S,
    ) -> None:
        if parallel_tools < 1 or debounce_s < 0 or lease_s <= 0:
            raise ConfigError(
                "parallel_tools and lease_s must be above zero, and debounce_s not below it",
                hint="leave them out for the defaults",
            )
        self.conversation = conversation
        self.table = CommandTable([*command_table(), *commands])
        self.problems: list[str] = []
        """Why an MCP server is missing."""
        self._given, self._provider = upstream, provider_of(upstream) if isinstance(upstream, str) else None
        if isinstance(upstream, Provider):
            self._provider = upstream
        self._upstream: StreamingUpstream | None = None
        own = [one if isinstance(one, ChatTool) else tool(one) for one in tools]
        self._tools = {one.name: one for one in ((_recall_tool(conversation),) if recall else ())}
        self._tools |= {one.name: one for one in own}
        self._servers = [ToolServer(one) for one in mcp]
        self._confirm, self._confirming = confirm, asyncio.Lock()
        self._debounce_s, self._lease_s = debounce_s, lease_s
        self._slots = asyncio.Semaphore(parallel_tools)
        self._holder = f"{os.getpid()}-{conversation.journal.new_id()[:8]}"
        self._streams: list[ChatEvents] = []
        self._connection = AsyncExitStack()
        self._worker: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[None] | None = None
        self._notices: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        """Somebody typed, a message or a command came, the reply is aborted, or the chat is closed."""
        self._is_hurried = self._is_dropped = self._is_debouncing = False
        self._is_unchecked = True
        """Whether a crashed program may have left a message without its reply."""
        self._is_closed = self._is_woken = False
        self._about: tuple[str, ...] = ()
        """The entries that the events are about now."""
        self._finished: dict[str, ToolResult] = {}
        """Results of the running round of calls."""
        self._waiting = 0
        self._mine: set[str] = set()
        """Entries of this program that have not ended."""

    # Lifecycle

    async def start(self) -> Self:
        """Connect to the model and the MCP servers, and answer what a crashed program left; `async with` calls it.

        Raises:
            ConfigError: the upstream's settings cannot work, or the conversation stores no content.
        """
        self.conversation.journal.check_content()
        await self._connect(self._provider)
        for server in self._servers:
            try:
                found = await server.open()
            except (UpstreamError, ConfigError) as error:
                self.problems.append(str(error))
            else:
                self._tools |= {one.name: one for one in found}
        chosen = [*self._tools.values()]
        rules = {one.name: one.prune for one in chosen if one.prune != "prune"}
        dialect = self.conversation.state.frame.fixed.dialect
        await self.conversation.set_tools(definitions(chosen, dialect), rules=rules)
        self._reader = self.conversation.events()
        self._notices = asyncio.create_task(self._pass_on_events())
        self._wake()
        return self

    async def _connect(self, provider: Provider | None) -> None:
        if provider is None:
            assert not isinstance(self._given, str | Provider)
            self._upstream = self._given
            return
        connection = AsyncExitStack()
        self._upstream = await connection.enter_async_context(open_upstream(provider))
        before, self._connection = self._connection, connection
        await before.aclose()

    async def close(self) -> None:
        """Stop the reply in progress, keep what was received of it, and disconnect. What is queued stays queued, and is
        answered when the chat is opened again.
        """
        self._is_closed = True
        self.abort()
        self._stirred.set()
        if self._worker is not None:
            await asyncio.wait({self._worker})
        if self._notices is not None:
            self._notices.cancel()
        for stream in [*self._streams]:
            stream.close()
        for server in self._servers:
            await server.close()
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Input

    async def send(self, content: object) -> AsyncGenerator[ChatEvent, None]:
        """Send a message or run a command, and yield the events about it until its end.

            async for event in chat.send("Hello!"):
                match event:
                    case refold.TextDelta():
                        print(event.text, end="")

        The reply goes on if the caller stops reading; `abort` stops it.

        Args:
            content: a text, a list of content parts, or a whole message, in the format of the conversation.
        """
        stream = self.events()
        try:
            stream.entry = await self.put(content)
            async for event in stream:
                yield event
                if isinstance(event, Done | CommandReply):
                    return
        finally:
            stream.close()

    async def put(self, content: object) -> str:
        """Store a message in the queue, or run a command, and return the id of the entry. `events` has the rest.

        Raises:
            ConfigError: the chat is closed, or the text is blank.
            WireError: the value is no message of the user in the format of the conversation.
            StoreError: nothing was stored, or the outcome is not known.
        """
        if self._is_closed or self._upstream is None:
            raise ConfigError("the chat is not open", hint="use it in `async with`, or await its `start()`")
        if isinstance(content, str) and not content.strip():
            raise ConfigError("there is nothing to send", hint="give a text")
        found = self.table.read(content) if isinstance(content, str) else None
        journal = self.conversation.journal
        entry = journal.new_id()
        if found is not None and (found.command is None or found.command.is_immediate):
            await self._run_at_once(str(content), found, entry)
            return entry
        is_command = found is not None
        body = str(content).strip().encode() if is_command else await self._encoded(content)
        kind: Literal["message", "command"] = "command" if is_command else "message"
        queued = QueuedEntry(id=entry, branch=journal.head.branch, kind=kind, body=body, at=journal.clock())
        self._mine.add(entry)
        await journal.store.enqueue(journal.head, queued)
        self._waiting += 1
        if self._turn is not None:
            self._emit(Queued(entry, self._waiting), (entry,))
        self._is_hurried |= is_command
        self._stirred.set()
        self._wake()
        return entry

    async def _encoded(self, content: object) -> bytes:
        dialect = self.conversation.state.frame.fixed.dialect
        if isinstance(content, Sequence) and not isinstance(content, str | bytes):
            kind = {"type": "message"} if dialect.name == "responses" else {}
            content = {**kind, "role": "user", "content": [*content]}

        def write() -> bytes:
            message = read_message(content, dialect)
            if message.role != "user":
                raise ConfigError("only messages of the user can be sent", hint="give a text, or parts")
            return bytes(encode_item(message, dialect))

        return await run_text_work(text_in(content), write)

    def typing(self) -> None:
        """Say that the person types: messages that wait for the end of the debounce wait on."""
        self._stirred.set()

    def abort(self) -> bool:
        """Stop the reply that is being produced. What was received is kept, and open calls get the result "aborted".
        Messages that wait for the end of the debounce are stored without a reply. Returns False if there is neither.
        """
        if self._turn is not None and not self._turn.done():
            self._turn.cancel()
            return True
        if self._is_debouncing:
            self._is_dropped = True
            self._stirred.set()
            return True
        return False

    # Output

    def events(self) -> ChatEvents:
        """Return all events of the chat, from now until it is closed."""
        stream = ChatEvents(lambda one: self._streams.remove(one) if one in self._streams else None)
        self._streams.append(stream)
        return stream

    async def history(self) -> list[Mapping[str, Any] | CommandEntry]:
        """Return the messages of the branch in the format of the conversation, and the commands where they were run."""
        journal = self.conversation.journal
        commands = await journal.store.commands(journal.head.owner, journal.head.branch)
        await self.conversation.load()
        found: list[Mapping[str, Any] | CommandEntry] = []
        for stored in await journal.store.messages(journal.head):
            while commands and commands[0].size <= stored.seq:
                found.append(commands.pop(0))
            found.append(msgspec.json.decode(stored.body))
        return [*found, *commands]

    @property
    def model(self) -> str:
        """The model that answers."""
        return self._upstream.model if self._upstream is not None else ""

    @property
    def waiting(self) -> int:
        """Entries in the queue, as far as this program knows."""
        return self._waiting

    @property
    def is_busy(self) -> bool:
        """Whether a reply is being produced."""
        return self._turn is not None

    async def use_model(self, model: str) -> None:
        """Go on with another model of the same provider, or with `provider:model`.

        Raises:
            ConfigError: there is no such provider, or the chat was given an upstream that is open.
        """
        if self._provider is None:
            raise ConfigError(
                "this chat was given an open upstream, so its model is fixed",
                hint="open the chat with the name of a model, such as openai:gpt-4o-mini",
            )
        is_whole = "@http" in model or model.partition(":")[0] != model
        provider = provider_of(model) if is_whole else structs.replace(self._provider, model=model)
        await self._connect(provider)
        self._provider = provider
        await self.conversation.reconfigure(model=provider.model)

    def _emit(self, event: ChatEvent, about: tuple[str, ...] | None = None) -> None:
        letter = event, self._about if about is None else about
        for stream in self._streams:
            stream.put(letter)

    async def _pass_on_events(self) -> None:
        async for event in self._reader:
            self._notice(event)

    def _notice(self, event: Event) -> None:
        if not isinstance(event, UsageRecorded):
            self._emit(Notice(text_of(event), event))

    def _finish(self, entries: Sequence[str], status: DoneStatus, problem: str = "") -> None:
        """Emit the end of messages, after the notices about them."""
        for event in self._reader.read_all():
            self._notice(event)
        self._mine -= {*entries}
        self._emit(Done(tuple(entries), status, problem), tuple(entries))

    # Commands

    async def _run_at_once(self, text: str, found: ReadCommand, entry: str) -> None:
        reply = await keep_run(self.conversation, text, found, chat=self, entry=entry)
        self._emit(CommandReply(entry, found.command.name if found.command else "", reply), (entry,))

    async def _run_queued(self, entry: QueuedEntry) -> None:
        """Run a command of the queue. One that a crashed program had begun runs again only if that is harmless."""
        store, owner = self.conversation.journal.store, self.conversation.journal.head.owner
        text = entry.body.decode()
        found = self.table.read(text) or ReadCommand(None, problem="There is no such command any more.")
        name = found.command.name if found.command else ""
        self._about = (entry.id,)
        await self.conversation.load()
        if entry.is_begun and found.command is not None and not found.command.is_idempotent:
            head = self.conversation.journal.head
            reply = INTERRUPTED
            await keep(
                self.conversation, text, reply, session=head.session, size=head.next_seq, entry=entry.id
            )
        else:
            if not await store.begin_command(owner, entry.id):
                return  # another program has run it
            reply = await keep_run(self.conversation, text, found, chat=self, entry=entry.id)
        for event in self._reader.read_all():
            self._notice(event)
        self._mine.discard(entry.id)
        self._emit(CommandReply(entry.id, name, reply), (entry.id,))

    # The worker: one task that takes the queue's entries in their order

    def _wake(self) -> None:
        self._is_woken = True
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _has_work(self) -> bool:
        """Whether the worker has to go on. An entry may be stored while the queue is read, and be missing in the answer:
        then the queue is read again, since `_wake` leaves a worker that runs alone.
        """
        while not self._is_closed:
            self._is_woken = False
            if self._is_unchecked or await self._queued():
                return True
            if not self._is_woken:
                return False
        return False

    async def _work(self) -> None:
        journal = self.conversation.journal
        store, owner, branch = journal.store, journal.head.owner, journal.head.branch
        waiting: list[str] = []
        """Entries of this program for which another one has the lease."""
        try:
            while waiting or await self._has_work():
                if self._is_closed:
                    return
                now = journal.clock()
                before = await store.lease(owner, branch, self._holder, now=now, until=now + self._lease_s)
                waiting = await self._note_waiting(waiting, is_elsewhere=before is None)
                if before is None:
                    await self._wait(self._lease_s / 3)
                    continue
                beating = asyncio.create_task(self._extend_lease())
                try:
                    is_owed = await self._heal() if before not in ("", self._holder) else False
                    self._is_unchecked = False
                    await self._take_entries(is_owed=is_owed)
                finally:
                    beating.cancel()
                    await store.release(owner, branch, self._holder)
        except Exception as error:  # noqa: BLE001 - whoever waits for the end of a message hears of it
            problem = str(error) if isinstance(error, RefoldError) else type(error).__name__
            _log.warning("the chat could not go on: %s", problem)
            self._finish([*self._mine], "failed", problem)
        finally:
            self._about = ()

    async def _note_waiting(self, before: Sequence[str], *, is_elsewhere: bool) -> list[str]:
        """Emit what has become of entries while another program had the lease: they wait, or it has taken them."""
        entries = [one.id for one in await self._queued()]
        if gone := [one for one in before if one not in entries]:
            self._finish(gone, "elsewhere")
        if not is_elsewhere:
            return []
        for place, one in enumerate(entries, 1):
            if one not in before and one in self._mine:
                self._emit(Queued(one, place), (one,))
        return [one for one in entries if one in self._mine]

    async def _queued(self) -> list[QueuedEntry]:
        journal = self.conversation.journal
        found = await journal.store.queued(journal.head.owner, journal.head.branch)
        self._waiting = len(found)
        return found

    async def _wait(self, seconds: float) -> bool:
        """Wait until something stirs, or so long. Returns whether something did."""
        self._stirred.clear()
        if self._is_closed:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
                return True
        return False

    async def _extend_lease(self) -> None:
        journal = self.conversation.journal
        while True:
            await asyncio.sleep(self._lease_s / 3)
            until = journal.clock() + self._lease_s
            with suppress(StoreError):  # the next one may succeed; if not, the commits decide
                await journal.store.lease(
                    journal.head.owner, journal.head.branch, self._holder, now=journal.clock(), until=until
                )

    async def _take_entries(self, *, is_owed: bool) -> None:
        """Take entries out of the queue until it is empty, and ask the model whenever it is and a message came last."""
        taken: list[str] = []
        while not self._is_closed:
            entries = await self._queued()
            if entries and entries[0].kind == "command":
                if taken:
                    self._finish(taken, "unanswered")
                taken, is_owed = [], False
                await self._run_queued(entries[0])
            elif entries:
                if await self._debounced(entries):
                    continue
                messages = entries[
                    : next((n for n, one in enumerate(entries) if one.kind == "command"), None)
                ]
                self._about = (*taken, *(one.id for one in messages))
                try:
                    await self.conversation.add_queued(messages)
                except NotFound:  # another program has taken one of them
                    await self._note_elsewhere(messages)
                    continue
                taken += [one.id for one in messages]
                is_owed = True
            elif is_owed and self._is_dropped:
                self._is_dropped, is_owed = False, False
                self._finish(taken, "aborted")
                taken = []
            elif is_owed:
                self._about = tuple(taken)
                status, problem = await self._reply()
                self._finish(taken, status, problem)
                taken, is_owed = [], False
            else:
                return
        if taken:
            self._finish(taken, "unanswered")

    async def _debounced(self, entries: Sequence[QueuedEntry]) -> bool:
        """Wait for the end of the debounce. Returns True if something stirred, so that the queue is to be read again."""
        is_rushed = self._is_hurried or self._is_dropped or any(one.kind == "command" for one in entries)
        self._is_hurried = False
        if is_rushed or self._debounce_s <= 0:
            return False
        self._is_debouncing = True
        try:
            return await self._wait(self._debounce_s)
        finally:
            self._is_debouncing = False

    async def _note_elsewhere(self, messages: Sequence[QueuedEntry]) -> None:
        left = {one.id for one in await self._queued()}
        self._finish([one.id for one in messages if one.id not in left], "elsewhere")

    # A reply

    async def _reply(self) -> tuple[DoneStatus, str]:
        """Ask the model until it calls no tool any more. Whatever happens, the conversation is valid afterwards."""
        self._finished = {}
        self._turn = asyncio.create_task(self._answer())
        closing, status, problem = ABORTED, "aborted", ""
        try:
            await asyncio.wait({self._turn})
            if self._turn.cancelled():
                pass
            elif (error := self._turn.exception()) is None:
                return "answered", ""
            elif isinstance(error, Conflict):
                return "elsewhere", str(error)
            else:
                closing, status = BROKEN_OFF, "failed"
                problem = str(error) if isinstance(error, RefoldError) else type(error).__name__
        finally:
            self._turn.cancel()
            self._turn = None
        with suppress(Conflict):
            await self._close_calls(lambda call: self._finished.get(call.id) or failed(call, closing))
        return ("aborted" if status == "aborted" else "failed"), problem

    async def _answer(self) -> None:
        assert self._upstream is not None
        for _ in range(MAX_ROUNDS):
            reply: Reply | None = None
            async with aclosing(self.conversation.stream(self._upstream)) as items:
                async for item in items:
                    if isinstance(item, Reply):
                        reply = item
                    elif isinstance(item, TextDelta | ReasoningDelta):
                        self._emit(item)
            assert reply is not None
            self._emit(CallUsage(reply.usage))
            calls = [call for message in reply.messages for call in message.calls]
            if not calls:
                return
            size = self.conversation.size
            self._finished = {}
            results = await asyncio.gather(*(self._run_call(call) for call in calls))
            await self.conversation.add_results(results, at=size)
        raise UpstreamError(
            f"the model called tools {MAX_ROUNDS} times in a row", hint="send a message to go on"
        )

    async def _run_call(self, call: ToolCall) -> ToolResult:
        async with self._slots:
            self._emit(ToolStarted(call.id, call.name, call.arguments))
            result = await self._confirmed(call) or await run_tool(self._tools, call)
            result = structs.replace(result, call_id=call.id)
            self._finished[call.id] = result
            self._emit(ToolEnded(call.id, call.name, result.text, result.is_error))
            return result

    async def _confirmed(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a dangerous call that the person declines; None if it may run."""
        found = self._tools.get(call.name)
        if found is None or not found.is_dangerous:
            return None
        is_allowed: object = False
        if self._confirm is not None:
            async with self._confirming:  # one question at a time
                asked = self._confirm(call)
                is_allowed = await asked if inspect.isawaitable(asked) else asked
        return None if is_allowed is True else failed(call, DECLINED)

    async def _close_calls(self, result: Callable[[ToolCall], ToolResult]) -> None:
        """Give every open call of the last reply a result."""
        await self.conversation.load()
        if calls := open_calls(self.conversation.state):
            await self.conversation.add_results([result(call) for call in calls], at=self.conversation.size)

    async def _heal(self) -> bool:
        """Complete what a crashed program left: open calls get a result. Returns whether a message has no reply yet."""
        await self.conversation.load()
        calls = open_calls(self.conversation.state)
        harmless = {one.name for one in self._tools.values() if one.is_idempotent}
        again = [call for call in calls if call.name in harmless]
        runs = await asyncio.gather(*map(self._run_call, again))
        done = dict(zip((call.id for call in again), runs, strict=True))
        await self._close_calls(lambda call: done.get(call.id) or failed(call, INTERRUPTED))
        state, session = self.conversation.state, self.conversation.journal.session
        last = state.folded.originals(max(session.first, state.size - 1), state.size)
        return bool(last) and last[-1].role in ("user", "tool")


def open_calls(state: State) -> list[ToolCall]:
    """Return the calls of the last reply that have no result, in their order."""
    folded, tail, found = state.folded, list[Message](), list[ToolCall]()
    for number in range(folded.size - 1, folded.origin - 1, -1):
        (message,) = folded.originals(number, number + 1)
        if message.role not in ("assistant", "tool"):
            break
        tail.append(message)
    for message in reversed(tail):
        found += message.calls
        for (
            result
        ) in message.results:  # an id may come again in a later round: the first that is open is answered
            answered = next((call for call in found if call.id == result.call_id), None)
            if answered is not None:
                found.remove(answered)
    return found


def _recall_tool(conversation: Conversation) -> ChatTool:
    function = recall_tool()["function"]
    schema = msgspec.json.encode(function["parameters"]).decode()
    run = partial(answer_recall, conversation)
    return ChatTool(
        name=function["name"], description=function["description"], schema=schema, run=run, is_idempotent=True
    )
