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
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, Self, TypeAlias
from weakref import WeakSet

import msgspec
from msgspec import Struct, structs

from refold.chat.commands import Command, CommandTable, ReadCommand, command_table, keep, keep_run
from refold.chat.holder import has_ended, is_held, name_holder
from refold.chat.tools import (
    ABORTED,
    DECLINED,
    INTERRUPTED,
    NOT_TRUSTED,
    ChatTool,
    ToolServer,
    definitions,
    failed,
    run_guarded,
    run_tool,
    tool,
)
from refold.engine.conversation import Conversation
from refold.engine.events import Event, UsageRecorded, text_of
from refold.engine.recall import answer_recall, recall_tool
from refold.engine.state import State
from refold.engine.summary_jobs import settled
from refold.model.errors import ConfigError, Conflict, NotFound, RefoldError, StoreError, UpstreamError
from refold.model.message import Message, Text, ToolCall, ToolResult, replace_lone_surrogates
from refold.model.tokens import Usage
from refold.ports.models import StreamingUpstream
from refold.ports.records import CommandEntry, QueuedEntry
from refold.text_work import run_text_work
from refold.upstreams import Provider, open_upstream
from refold.upstreams.provider import KNOWN, check_model, provider_of
from refold.wire.reply import Reply
from refold.wire.request import encode_item
from refold.wire.sdk import read_message, text_in
from refold.wire.sse import ReasoningDelta, TextDelta

_log = logging.getLogger("refold")

LEASE_S = 10.0
"""Seconds after which the lease of a crashed program is free. It is extended three times as often. On the same machine a lease
is free as soon as its process has ended."""
PARALLEL_TOOLS = 4
"""Calls of one reply that run at the same time: more would compete for the same disk and the same servers."""
MAX_ROUNDS = 100
"""Rounds of tool calls in one reply: a model that never ends is stopped."""
MAX_UNREAD = 10_000
"""Events that a stream keeps for a reader that is behind: several long replies."""
CLOSE_S = 5.0
"""Seconds that a command has to end when the chat is closed."""
BROKEN_OFF = "not run: the reply broke off"
MAX_SHOWN = 200
"""Characters of a message that was not typed here, in its notice."""
STOPPED = "⛔ Stopped."
"""The reply of a command that was stopped."""
STOPPED_LATE = "⛔ Stopped too late: it was done."
NOTHING_TO_SEND = "there is nothing to send"
NOTHING_HINT = "give a text that is not blank, or an image or a file"
CUT_REPLY = '✂️ The reply is cut: the limit of its length was reached. Send a message such as "go on".'
FULL_WINDOW = '✂️ The reply is cut: the model\'s window is full. Send a message such as "go on".'
FILTERED_REPLY = "🚫 The provider's filter has stopped the reply."
EMPTY_REPLY = "∅ The reply is empty: the model wrote nothing."
_ENDS = {
    "length": CUT_REPLY,
    "max_tokens": CUT_REPLY,
    "max_output_tokens": CUT_REPLY,
    "model_context_window_exceeded": FULL_WINDOW,
    "content_filter": FILTERED_REPLY,
}
"""Notices for finish reasons of the three formats that mean that a reply is not whole."""
_OLLAMA_TAG = re.compile(r"latest|[\d.x]+[bm](?:-.*)?")

DoneStatus: TypeAlias = Literal["answered", "unanswered", "aborted", "failed", "elsewhere"]
"""Answered; stored, and a command followed it, so that no model was asked; aborted; failed, with the problem (if the store
failed, the message may still be in the queue, and goes first next time); taken by another program."""


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
    """A line for the person: a pruning, a compaction, a summary, a reply that is cut or empty."""

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
    about one entry. A reader that is more than `MAX_UNREAD` events behind loses the oldest ones.
    """

    def __init__(self) -> None:
        self._unread: deque[_Letter] = deque(maxlen=MAX_UNREAD)
        self._arrived, self._is_closed = asyncio.Event(), False
        self.entry = ""

    def put(self, letter: _Letter) -> None:
        if not (self._is_closed or (self.entry and self.entry not in letter[1])):
            self._unread.append(letter)
            self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent:
        while True:
            while self._unread:
                event, entries = self._unread.popleft()
                if not self.entry or self.entry in entries:
                    return event
            if self._is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """End the stream after the events that are not read yet."""
        self._is_closed = True
        self._arrived.set()


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
            one gives its tools a prefix. One that does not start, and a tool that cannot be used, is named in
            `problems`.
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
        """Why an MCP server, or a tool of one, is missing."""
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
        self._holder = name_holder(conversation.journal.new_id()[:8])
        self._streams: WeakSet[ChatEvents] = WeakSet()
        self._connection = AsyncExitStack()
        self._worker: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[None] | None = None
        """The reply that is being produced, or the calls of a crashed program that run again."""
        self._command: asyncio.Task[str | BaseException | None] | None = None
        """The command of the queue that runs."""
        self._waiting_command = ""  # its name, if it waits for a model
        self._notices: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        """Somebody typed, a message or a command came, the reply is aborted, or the chat is closed."""
        self._typed_at = 0.0
        self._is_unchecked = True
        """Whether a crashed program may have left a message without its reply."""
        self._may_be_open = True
        """Whether calls without a result may have been left."""
        self._is_closed = self._is_woken = self._is_elsewhere = self._is_stopped = False
        self._is_aborted = False
        """Whether the person has stopped a reply since the lease was taken."""
        self._about: tuple[str, ...] = ()
        """The entries that the events are about now."""
        self._finished: dict[str, ToolResult] = {}
        """Results of the last round of calls. If they could not be stored, they are stored later."""
        self._waiting = 0
        self._mine: dict[str, QueuedEntry] = {}
        """Entries of this program that have not ended."""
        self._stored: set[str] = set()
        """Those of them that are stored."""
        self._taken: list[str] = []
        """Messages that this program took out of the queue, and that have not ended."""
        self._dropped: set[str] = set()
        """Messages that were aborted before their reply began."""

    # Lifecycle

    async def start(self) -> Self:
        """Connect to the model and the MCP servers, and answer what a crashed program left; `async with` calls it.

        Raises:
            ConfigError: the upstream's settings cannot work, or the conversation stores no content.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        self._wake()
        return self

    async def _open(self) -> None:
        self.conversation.journal.check_content()
        if self._provider is None:
            assert not isinstance(self._given, str | Provider)
            self._upstream = self._given
        else:
            self._upstream = await self._connection.enter_async_context(open_upstream(self._provider))
        opened = await asyncio.gather(*map(_open_server, self._servers))
        for server, found in zip(self._servers, opened, strict=True):
            self.problems += server.problems
            for one in found:
                if one.name in self._tools:
                    self.problems.append(
                        f"a tool of the MCP server {server.name!r} is left out: there is another {one.name!r}"
                    )
                self._tools.setdefault(one.name, one)
        chosen = [*self._tools.values()]
        rules = {one.name: one.prune for one in chosen if one.prune != "prune"}
        dialect = self.conversation.state.frame.fixed.dialect
        await self.conversation.set_tools(definitions(chosen, dialect), rules=rules)
        self._reader = self.conversation.events()
        self._notices = asyncio.create_task(self._pass_on_events())

    async def close(self) -> None:
        """Stop the reply in progress, keep what was received of it, and disconnect. What is queued stays queued, and is
        answered when the chat is opened again. A command that waits for a model, such as /compact, is stopped. Any other
        one that runs has a few seconds to end; after them it stays in the queue as after a crash.
        """
        self._is_closed = True
        self._stirred.set()
        while self._worker is not None and not self._worker.done():
            if self._turn is not None:
                self._turn.cancel()
            self._stop_command()
            await asyncio.wait({self._worker}, timeout=CLOSE_S)
            if self._command is not None:
                self._command.cancel()
        if self._notices is not None:
            self._notices.cancel()
            await asyncio.wait({self._notices})
        for stream in [*self._streams]:
            stream.close()
        await asyncio.gather(*(server.close() for server in self._servers))
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

        The reply goes on if the caller stops reading; `abort` stops it. If the chat is closed meanwhile, the events end
        without a `Done`, and a message that waits stays in the queue.

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
            ConfigError: the chat is closed, or there is nothing to send: no part, or only blank texts.
            WireError: the value is no message of the user in the format of the conversation.
            StoreError: nothing was stored, or the outcome is not known.
        """
        if self._is_closed or self._upstream is None:
            raise ConfigError("the chat is not open", hint="use it in `async with`, or await its `start()`")
        if isinstance(content, str) and is_blank(content):
            raise ConfigError(NOTHING_TO_SEND, hint=NOTHING_HINT)
        # A command is stored as text, and no store takes half of a surrogate pair.
        text = replace_lone_surrogates(content) if isinstance(content, str) else ""
        found = self.table.read(text) if text else None
        journal = self.conversation.journal
        entry = journal.new_id()
        if found is not None and (found.command is None or found.command.is_immediate):
            await self._run_at_once(text, found, entry)
            return entry
        is_command = found is not None
        body = text.strip().encode() if is_command else await self._encoded(content)
        kind: Literal["message", "command"] = "command" if is_command else "message"
        queued = QueuedEntry(id=entry, branch=journal.head.branch, kind=kind, body=body, at=journal.clock())
        self._mine[entry] = queued
        try:
            await settled(journal.store.enqueue(journal.head, queued))
        except BaseException:
            self._mine.pop(entry, None)  # nobody waits for its end; it is answered if it was stored
            raise
        else:
            if entry in self._mine:  # else it is answered already
                self._stored.add(entry)
            self._waiting += 1
            if self._turn is not None:
                self._emit(Queued(entry, self._waiting), (entry,))
        finally:
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
            if all(isinstance(one, Text) and is_blank(one.text) for one in message.parts):
                raise ConfigError(NOTHING_TO_SEND, hint=NOTHING_HINT)
            return bytes(encode_item(message, dialect))

        return await run_text_work(text_in(content), write)

    def typing(self) -> None:
        """Restart the debounce because the person is typing: messages in the queue wait longer."""
        self._typed_at = self.conversation.journal.clock()
        self._stirred.set()

    def abort(self) -> bool:
        """Stop the reply that is being produced. What was received is kept, and open calls get the result "aborted". A
        command that waits for a model, such as /compact, is stopped too, and does not run again. Messages whose reply has not begun, such as those that wait for the end of the debounce, are stored without
        one. During a reply, messages that wait in the queue are answered. Returns False if there is nothing to stop.
        """
        if self._turn is not None:
            self._is_aborted = True
            return self._turn.cancel()
        if self._stop_command():
            self._is_aborted = True
            return True
        waiting = {which for which, one in self._mine.items() if one.kind == "message"} - self._dropped
        if not waiting or self._is_elsewhere:
            return False
        self._dropped |= waiting
        self._stirred.set()
        return True

    def _stop_command(self) -> bool:
        """Stop the command that runs, if it waits for a model. Returns whether there is one."""
        if self._command is None or not self._waiting_command or not self._command.cancel():
            return False
        self._is_stopped = True
        return True

    # Output

    def events(self) -> ChatEvents:
        """Return all events of the chat, from now until it is closed. A reader that is more than 10,000 events behind
        loses the oldest ones.
        """
        stream = ChatEvents()
        self._streams.add(stream)
        if self._is_closed:
            stream.close()
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
    def servers(self) -> list[str]:
        """The names of the MCP servers that were given."""
        return [one.name for one in self._servers]

    @property
    def waiting(self) -> int:
        """Entries in the queue, as far as this program knows."""
        return self._waiting

    @property
    def is_busy(self) -> bool:
        """Whether a reply is being produced."""
        return self._turn is not None

    @property
    def activity(self) -> str:
        """What the person waits for: "answering", "compacting", "running /name" for another command that waits for a model,
        or nothing.
        """
        if self._turn is not None or not self._waiting_command:
            return "answering" if self._turn is not None else ""
        return "compacting" if self._waiting_command == "/compact" else f"running {self._waiting_command}"

    async def is_held_elsewhere(self) -> bool:
        """Whether another program has the lease of the conversation, and answers."""
        return await is_held(self.conversation.journal, by_others_than=self._holder)

    @property
    def provider(self) -> Provider | None:
        """The provider that answers, as it was given or chosen since; None if the chat was given an open upstream."""
        return self._provider

    async def use_model(self, model: str) -> None:
        """Go on with another model of the same provider, with `provider:model`, or with `model@url`. A colon may be part
        of a model's name, as in `qwen2:7b`: only the name of a well-known provider in front of it is one.

        Raises:
            ConfigError: this cannot be the name of a model, there is no such provider, or the chat was given an upstream
                that is open.
        """
        check_model(model)
        if self._provider is None:
            raise ConfigError(
                "this chat was given an open upstream, so its model is fixed",
                hint="open the chat with the name of a model, such as openai:gpt-4o-mini",
            )
        is_whole = "@http" in model or _names_provider(model)
        provider = provider_of(model) if is_whole else structs.replace(self._provider, model=model)
        async with AsyncExitStack() as connection:
            upstream = await connection.enter_async_context(open_upstream(provider))
            await self.conversation.reconfigure(model=provider.model)
            before, self._connection = self._connection, connection.pop_all()
        self._provider, self._upstream = provider, upstream
        await before.aclose()

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

    def _finish(self, entries: Iterable[str], status: DoneStatus, problem: str = "") -> None:
        """Emit the end of messages, after the notices about them."""
        ended = tuple(entries)
        for event in self._reader.read_all():
            self._notice(event)
        self._forget(ended)
        self._emit(Done(ended, status, problem), ended)

    def _forget(self, entries: Iterable[str]) -> None:
        for one in entries:
            self._mine.pop(one, None)
            self._stored.discard(one)
            self._dropped.discard(one)

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
        head = self.conversation.journal.head
        keep_reply = partial(
            keep, self.conversation, text, session=head.session, size=head.next_seq, entry=entry.id
        )
        if entry.is_begun and found.command is not None and not found.command.is_idempotent:
            reply = INTERRUPTED
            await keep_reply(reply)
        else:
            if not await store.begin_command(owner, entry.id):
                return  # another program has run it
            run = keep_run(self.conversation, text, found, chat=self, entry=entry.id)
            self._command, self._is_stopped = asyncio.create_task(run_guarded(run)), False
            self._waiting_command = name if found.command and found.command.waits_for_model else ""
            try:
                await asyncio.wait({self._command})
                if not self._command.cancelled():
                    ended = self._command.result()
                elif self._is_stopped:
                    is_late = self.conversation.journal.head.session != head.session
                    ended = STOPPED_LATE if is_late else STOPPED
                    await keep_reply(ended)
                else:
                    return  # the chat is closed: it stays in the queue
            finally:
                self._command, self._waiting_command = None, ""
            if not isinstance(ended, str):
                raise ended or StoreError("the command did not end")
            reply = ended
        for event in self._reader.read_all():
            self._notice(event)
        self._forget((entry.id,))
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
                return not self._is_closed
            if not self._is_woken:
                return False
        return False

    async def _work(self) -> None:
        told: set[str] = set()
        """Entries that wait for another program."""
        try:
            while await self._has_work():
                before = await self._take_lease()
                self._is_elsewhere = before is None
                if before is None:
                    await self._note_waiting(told)
                    await self._wait(self._lease_s / 3)
                else:
                    await self._work_with_lease(is_crashed=before not in ("", self._holder))
        except Exception as error:  # noqa: BLE001 - whoever waits for the end of a message hears of it
            problem = str(error) if isinstance(error, RefoldError) else type(error).__name__
            _log.warning("the chat could not go on: %s", problem)
            self._may_be_open = True
            self._finish(
                [one for one in self._mine if one in {*self._stored, *self._taken}], "failed", problem
            )
        finally:
            self._about, self._is_elsewhere = (), False

    async def _take_lease(self) -> str | None:
        """Take the lease, or extend it. Returns the holder before; None if another program has it, and still runs."""
        journal = self.conversation.journal
        store, owner, branch, now = journal.store, journal.head.owner, journal.head.branch, journal.clock()
        until = now + self._lease_s
        before = await store.lease(owner, branch, self._holder, now=now, until=until)
        if before is None and has_ended(holder := await store.lease_holder(owner, branch)):
            return await store.lease(owner, branch, self._holder, now=now, until=until, ended=holder)
        return before

    async def _work_with_lease(self, *, is_crashed: bool) -> None:
        beating, is_owed = asyncio.create_task(self._extend_lease()), is_crashed
        self._is_aborted = False
        try:
            is_lost = is_crashed and await self._heal()
            self._is_unchecked = False
            size = self.conversation.size
            await self._take_entries(is_lost=is_lost)
            is_ended = not self._is_closed or self._is_aborted or self.conversation.size > size
            is_owed = is_crashed and not is_ended
        finally:
            beating.cancel()
            await asyncio.wait({beating})  # else it might take the lease again
            await self._give_lease_back(is_owed=is_owed)

    async def _give_lease_back(self, *, is_owed: bool) -> None:
        """Free the lease. `is_owed`: the chat is closed before anything came of what a crashed program left, so the next one
        must complete it. It finds a lease that has expired, as after the crash.
        """
        journal = self.conversation.journal
        store, owner, branch, now = journal.store, journal.head.owner, journal.head.branch, journal.clock()
        if is_owed:
            await store.lease(owner, branch, self._holder, now=now, until=now)
        else:
            await store.release(owner, branch, self._holder)

    async def _note_waiting(self, told: set[str]) -> None:
        for place, one in enumerate(await self._queued(), 1):
            if one.id in self._mine and one.id not in told:
                told.add(one.id)
                self._emit(Queued(one.id, place), (one.id,))

    async def _queued(self) -> list[QueuedEntry]:
        """Return the queue. Entries of this program that left it without this program were taken by another one. What
        stirs from now on may be missing in the answer, so `_wait` does not wait then.
        """
        journal, stored = self.conversation.journal, self._stored.copy()
        self._stirred.clear()
        found = await journal.store.queued(journal.head.owner, journal.head.branch)
        self._waiting = len(found)
        if gone := stored.difference((one.id for one in found), self._taken):
            self._finish([one for one in self._mine if one in gone], "elsewhere")
        return found

    async def _wait(self, seconds: float) -> bool:
        """Wait until something has stirred since the queue was read, or so long. Returns whether something did."""
        if self._is_closed:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
                return True
        return False

    async def _extend_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            with suppress(StoreError):  # the next one may succeed; if not, the commits decide
                await self._take_lease()

    async def _take_entries(self, *, is_lost: bool) -> None:
        """Take entries out of the queue until it is empty, and ask the model whenever it is and a message came last.

        `is_lost`: a reply was lost in a crash. It is asked for before the queue is taken, as it was before the crash.
        """
        self._taken = []
        while True:
            entries = [] if is_lost else await self._queued()
            if self._is_closed:
                break
            if entries and entries[0].kind == "command":
                self._finish_turn("unanswered")
                if await self._take_lease() is None:
                    return  # another program runs it
                await self._run_queued(entries[0])
            elif entries:
                if await self._debounced(entries):
                    continue
                await self._add_messages(entries)
            elif is_lost or not self._dropped.issuperset(self._taken):
                self._about, is_lost = tuple(self._taken), False
                status, problem = await self._reply()
                self._finish(self._pop_taken(), status, problem)
                if status == "elsewhere":
                    return
            elif self._taken:
                self._finish_turn("aborted")
            else:
                return
        self._finish_turn("aborted")

    def _finish_turn(self, status: DoneStatus) -> None:
        """Emit the end of messages that were taken and for which the model was not asked, if there are any."""
        if taken := self._pop_taken():
            self._finish(taken, status)

    def _pop_taken(self) -> list[str]:
        taken, self._taken = self._taken, []
        return taken

    async def _add_messages(self, entries: Sequence[QueuedEntry]) -> None:
        """Add the messages at the beginning of the queue to the conversation."""
        commands = (number for number, one in enumerate(entries) if one.kind == "command")
        messages = entries[: next(commands, None)]
        ids = [one.id for one in messages]
        if self._may_be_open and not await self._complete_calls():
            self._dropped |= {*ids}
        self._about = (*self._taken, *ids)
        try:
            await self.conversation.add_queued(messages)
            self._show_others(messages)
        except NotFound:  # another program has taken one of them
            left = {one.id for one in await self._queued()}
            if left.issuperset(ids):
                raise
        else:
            self._taken += ids

    def _show_others(self, messages: Sequence[QueuedEntry]) -> None:
        """Show what another program, or one that crashed, has queued and is answered here."""
        dialect = self.conversation.state.frame.fixed.dialect
        for one in messages:
            if one.id not in self._mine:
                text = " ".join(read_message(msgspec.json.decode(one.body), dialect).text.split())
                cut = f"{text[:MAX_SHOWN]}…" if len(text) > MAX_SHOWN else text
                self._emit(Notice(f"📨 Not typed here: {cut or '(no text)'}"))

    async def _debounced(self, entries: Sequence[QueuedEntry]) -> bool:
        """Wait for the end of the debounce. Returns True if something stirred, so that the queue is to be read again."""
        is_rushed = any(one.kind == "command" or one.id in self._dropped for one in entries)
        if is_rushed or self._debounce_s <= 0:
            return False
        quiet_s = self.conversation.journal.clock() - max(self._typed_at, *(one.at for one in entries))
        left_s = self._debounce_s - max(0.0, quiet_s)
        return left_s > 0 and await self._wait(left_s)

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
                if end := _unusual_end(reply):
                    self._emit(Notice(end))
                return
            size, self._finished = self.conversation.size, {}
            results = await self._run_calls(calls)
            await self.conversation.add_results(results, at=size)
        raise UpstreamError(
            f"the model called tools {MAX_ROUNDS} times in a row", hint="send a message to go on"
        )

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return await asyncio.gather(*map(self._run_call, calls))

    async def _run_call(self, call: ToolCall) -> ToolResult:
        async with self._slots:
            self._emit(ToolStarted(call.id, call.name, call.arguments))
            try:
                result = await self._confirmed(call) or await run_tool(self._tools, call)
            except asyncio.CancelledError:
                self._emit(ToolEnded(call.id, call.name, ABORTED, is_error=True))
                raise
            self._finished[call.id] = result
            self._emit(ToolEnded(call.id, call.name, result.text, result.is_error))
            return result

    async def _confirmed(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a dangerous call that the person declines; None if it may run."""
        found, confirm = self._tools.get(call.name), self._confirm
        if found is None or not found.is_dangerous:
            return None
        if confirm is None:
            is_unstated = any(call.name in server.unstated for server in self._servers)
            return failed(call, NOT_TRUSTED if is_unstated else DECLINED)

        async def ask() -> object:
            asked = confirm(call)
            return await asked if inspect.isawaitable(asked) else asked

        async with self._confirming:  # one question at a time
            answer = await run_guarded(ask())
        if isinstance(answer, BaseException):
            _log.warning("a call was declined, because it could not be confirmed: %s", type(answer).__name__)
        return None if answer is True else failed(call, DECLINED)

    async def _close_calls(self, result: Callable[[ToolCall], ToolResult]) -> None:
        """Give every open call of the last reply a result."""
        await self.conversation.load()
        if calls := open_calls(self.conversation.state):
            await self.conversation.add_results([result(call) for call in calls], at=self.conversation.size)

    async def _complete_calls(self) -> bool:
        """Give calls that were left without a result one: those of idempotent tools run again. Returns False if that was
        aborted, or if another program has gone on meanwhile.
        """
        await self.conversation.load()
        harmless = {one.name for one in self._tools.values() if one.is_idempotent}
        left = [call for call in open_calls(self.conversation.state) if call.id not in self._finished]
        again = [call for call in left if call.name in harmless]
        is_aborted = False
        if again and not self._is_closed:
            turn = self._turn = asyncio.create_task(self._run_again(again))
            try:
                await asyncio.wait({turn})
                is_aborted = turn.cancelled()
            finally:
                turn.cancel()
                self._turn = None
        try:
            await self._close_calls(lambda call: self._finished.get(call.id) or failed(call, INTERRUPTED))
        except Conflict:
            return False
        self._may_be_open = False
        return not is_aborted

    async def _run_again(self, calls: Sequence[ToolCall]) -> None:
        await self._run_calls(calls)

    async def _heal(self) -> bool:
        """Complete what a crashed program left. Returns whether it was producing a reply."""
        is_wanted = await self._complete_calls()
        state, journal = self.conversation.state, self.conversation.journal
        last = state.folded.originals(max(journal.session.first, state.size - 1), state.size)
        if not last or last[-1].role not in ("user", "tool"):
            return False
        # A command that changes the conversation comes after messages that are not to be answered.
        waiting = await self._queued()
        if waiting and waiting[0].is_begun:
            return False
        later = [
            one
            for one in await journal.store.commands(journal.head.owner, journal.head.branch)
            if one.size == state.size
        ]
        found = [self.table.read(one.text) for one in later]
        return is_wanted and all(
            one is None or one.command is None or one.command.is_immediate for one in found
        )


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: it has only spaces and characters that are invisible."""
    return not any(one.isprintable() and not one.isspace() for one in text)


def _unusual_end(reply: Reply) -> str:
    """Say why a reply without calls is not what the person waited for; empty if it is."""
    if reply.finish in _ENDS:
        return _ENDS[reply.finish]
    is_empty = all(is_blank(message.text) for message in reply.messages)
    return EMPTY_REPLY if is_empty else ""


def _names_provider(model: str) -> bool:
    """Whether a model's name begins with that of a provider, or with one that is misspelt. Ollama has a model
    `mistral:7b`, and Mistral none whose name is a size.
    """
    name, _, rest = model.partition(":")
    return bool(rest and get_close_matches(name, KNOWN, n=1, cutoff=0.75)) and not _OLLAMA_TAG.fullmatch(rest)


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


async def _open_server(server: ToolServer) -> list[ChatTool]:
    """Return the tools of a server; none if it does not start, which is said in its `problems`."""
    try:
        return await server.open()
    except (UpstreamError, ConfigError) as error:
        server.problems.append(str(error))
        return []


def _recall_tool(conversation: Conversation) -> ChatTool:
    function = recall_tool()["function"]
    schema = msgspec.json.encode(function["parameters"]).decode()
    run = partial(answer_recall, conversation)
    return ChatTool(
        name=function["name"], description=function["description"], schema=schema, run=run, is_idempotent=True
    )
