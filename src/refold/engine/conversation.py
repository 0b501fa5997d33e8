"""A conversation: holds the state, and is the only place that commits.

Every act goes through `apply`: it takes the lock, brings the state up to date with the store, runs a pure
action on it, commits the outcome, and replaces the state. If another program committed first, the action runs
again on the new state. Nothing is rolled back, because nothing is changed before the commit. Events are
queued in commit order and delivered after the lock is released. A conversation in memory is the same class
over an in-memory store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import cached_property, lru_cache, partial
from typing import Any, Self, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from refold.core.fold import FoldedBranch
from refold.core.plan import Decision, SummaryRequest
from refold.core.policy import Policy
from refold.core.search.query import limit_query
from refold.core.stage import handle_of
from refold.core.stages.tool_results import Prune, ToolRule
from refold.core.triggers import is_for_room
from refold.core.verify import split_items
from refold.engine import actions, recall, sessions
from refold.engine.actions import Outcome
from refold.engine.arguments import (
    check_count,
    check_focus,
    check_kind,
    check_members,
    check_summariser,
    check_text,
    check_unicode,
)
from refold.engine.events import (
    ASKED,
    NOTHING,
    OVERTAKEN,
    STOPPED,
    CompactionEnd,
    CompactionStart,
    Event,
    EventQueue,
    EventReader,
    Listener,
    MessagesDamaged,
    Path,
    Pruned,
    SummarySwitched,
    Undone,
    as_part_of,
    damage_text,
    end_of,
    problem_of,
    pruned,
    sized,
    with_summary,
)
from refold.engine.history import (
    Difference,
    MessageTokens,
    change_to_undo,
    difference,
    last_change,
    message_tokens,
    sent_with,
    shown_with,
)
from refold.engine.journal import Journal, ReplacedCompaction
from refold.engine.provider_compactions import Compactions, Maker, compactions_since
from refold.engine.recall import RECENT_CALLS, is_handle
from refold.engine.sessions import OpenedSession, SessionSummaries
from refold.engine.settings import (
    SUMMARISER_TIMEOUT_S,
    USUAL_OUTPUT,
    ConversationSettings,
    NamedSummariser,
    SystemPrompt,
    check_policy,
    dollars_for,
    read_prompt,
    state_for,
    summariser_named,
    with_tool_rules,
)
from refold.engine.state import Bill, Receipt, SentWindow, State, SummaryAuthor, author_of
from refold.engine.status import Preview, Status, preview_of, status_of
from refold.engine.summary_jobs import (
    CLOSED,
    REPLACED,
    UNUSED,
    JobResult,
    SummaryJobs,
    settled,
    summariser_of,
)
from refold.model.dialect import Dialect
from refold.model.errors import (
    ConfigError,
    Conflict,
    ContextOverflow,
    Damaged,
    DoesNotFit,
    NotAnOverflow,
    NotFound,
    StoreError,
    SummaryError,
    UpstreamError,
)
from refold.model.message import Message, Text, ToolCall, ToolResult, holds_compaction
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCounter, Usage
from refold.model.window import FixedFields, Window
from refold.ports.models import (
    Ask,
    CountingUpstream,
    StreamingUpstream,
    Summariser,
    SummaryFunction,
    Upstream,
)
from refold.ports.records import (
    NOT_KNOWN,
    Call,
    Compaction,
    Delivery,
    Head,
    QueuedEntry,
    Session,
    SessionOrder,
    SummaryOrder,
    read_body,
)
from refold.ports.store import SummaryQueue
from refold.text_work import run_text_act, run_text_work
from refold.tokens.catalog import WindowSize
from refold.wire.json_codec import FIELDS, read
from refold.wire.reply import Reply
from refold.wire.request import fixed_of
from refold.wire.sdk import (
    RequestFields,
    plain_message,
    read_message,
    read_refusal,
    read_tools,
    read_usage,
    text_in,
)
from refold.wire.sse import CallDelta, Delta, ReasoningDelta, TextDelta
from refold.wire.translate import is_json_object, translate_messages

T = TypeVar("T")
Action = Callable[[State], Outcome]

_log = logging.getLogger("refold")

MAX_CONFLICTS = 200
"""How many times an action runs again after a conflict. A program that writes without a pause wins for a
second or two, because it need not reload; so many conflicts in a row mean that something is wrong."""
WINDOW_READ_S = 10.0
"""Seconds after which an open conversation reads the learnt window again: another one may have learnt it, or
`refold limits` may have forgotten it."""
EVERYTHING = 10**9
OF_SURFACES = frozenset(
    {
        *(
            "apply",
            "record_call",
            "stored",
            "prepare",
            "state_at",
            "wait_for_summary",
            "author_of",
            "open_again",
        ),
        *("add_queued", "add_results", "journal", "fulfil", "queue"),
    }
)
"""The members of a conversation that the gateway, the chat and the page use. They take and return states, actions
and journals, which other programs have no use for, and `refold.sync` does not have them."""
COUNT_S = 5.0
"""Seconds that a request waits for the provider's count of its tokens."""
_WHOLE_REPLY = "its `stream` has to yield the whole `Reply` as its last item"
_UPSTREAM = "open one with `refold.open_upstream`"


class UnsettledCommit(Struct, frozen=True):
    """A commit of unknown outcome: the position of the branch before it, and the state after it in case it
    was stored.
    """

    place: tuple[object, ...]
    state: State


class _ConversationLock:
    """The lock of a conversation. The events of the act that held it are delivered after it is released."""

    def __init__(self, events: EventQueue) -> None:
        self._lock, self._events = asyncio.Lock(), events
        self.locked = self._lock.locked

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._events.deliver()


class _Received:
    """The part of a streamed reply that was received so far."""

    def __init__(self) -> None:
        self._texts, self._thoughts = list[str](), list[str]()
        self._calls: dict[int, tuple[list[str], list[str], list[str]]] = {}

    def __bool__(self) -> bool:
        return bool(self._texts or self._thoughts or self._calls)

    def take(self, delta: Delta) -> None:
        match delta:
            case TextDelta():
                self._texts.append(delta.text)
            case ReasoningDelta():
                self._thoughts.append(delta.text)
            case CallDelta():
                pieces = self._calls.setdefault(delta.index, ([], [], []))
                for held, piece in zip(pieces, (delta.id, delta.name, delta.arguments), strict=True):
                    held.append(piece)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thoughts(self) -> str:
        return "".join(self._thoughts)

    def messages(self, dialect: Dialect) -> list[Message]:
        """The text, and the calls with complete arguments, as messages of a format."""
        calls = [ToolCall(*map("".join, pieces)) for pieces in self._calls.values()]
        whole = [call for call in calls if call.id and call.name and is_json_object(call.arguments)]
        parts: list[Text | ToolCall] = [Text(self.text)] if self.text.strip() else []
        if dialect.spreads_calls:
            return [Message("assistant", (part,)) for part in (*parts, *whole)]
        return [Message("assistant", (*parts, *whole))] if parts or whole else []


def _reply_in(messages: Sequence[Message], dialect: Dialect) -> tuple[Message, ...]:
    """The messages of a reply in the format of the conversation, which may be another one than the provider's."""
    translated = translate_messages(messages, dialect)
    if not dialect.spreads_calls:
        return translated
    found = list[Message]()
    for message in translated:
        items = split_items(message.parts)
        found += [message] if len(items) < 2 else [Message(message.role, parts) for parts in items]
    return tuple(found)


class Conversation:
    """One chat and its context window.

        chat = refold.Conversation("gpt-4o-mini", system="You fix bugs.", tools=tools)
        await chat.add("Why does the build fail?")
        reply = await client.chat.completions.create(model="gpt-4o-mini", **await chat.context())
        await chat.record(reply.usage)
        await chat.add(reply.choices[0].message)

    No message that was added is ever changed or forgotten; only the request that `context` returns is made to
    fit. This constructor keeps the conversation in memory; `refold.Engine` opens stored ones.

    Args:
        model: the model that is asked. It decides the tokenizer, the window and the prices.
        system: the system prompt of every request: a text, or blocks of text in the format "anthropic".
        tools: the tool definitions of every request.
        format: the shape of your messages: "chat", "responses" or "anthropic".
        preset: the name of a policy, which says how the context is kept small.
        policy: a policy of your own instead of a preset.
        window: the size of the context window in tokens, if the catalogue of models is to be overridden.
        max_output: the most tokens of a reply, if the model's figure is to be overridden.
        thinking_budget: tokens of the output that requests let the model think with.
        limit: tokens of the window that may be used; 0 for all of it.
        counter: counts tokens instead of the model's tokenizer.
        sensitive: regular expressions. A message that one of them matches stays out of every summary.
        summariser: writes summaries ahead of time: a model by its name (`"openai:gpt-4o-mini"`), a
            `refold.Summariser`, or a function of your own, `def` or `async def`
            `f(messages, *, previous, max_tokens)`. Without one, a digest is made of the messages' own words.
        summariser_timeout_s: seconds that a request waits for a summary, in presets that wait for one.
        max_spend: dollars that summaries may cost; None for no limit.
        on_event: is called with every event of this conversation, see `refold.Event`.

    Raises:
        ConfigError: a setting names nothing that exists, or leaves no room for messages.
    """

    def __init__(
        self,
        model: str = "",
        *,
        system: SystemPrompt = None,
        tools: Sequence[object] = (),
        format: str = "chat",  # noqa: A002  # the word users know
        preset: str = "refold",
        policy: Policy | None = None,
        window: int | None = None,
        max_output: int | None = None,
        thinking_budget: int = 0,
        limit: int = 0,
        counter: TokenCounter | None = None,
        sensitive: Sequence[str] = (),
        summariser: Summariser | SummaryFunction | str | None = None,
        summariser_timeout_s: float = SUMMARISER_TIMEOUT_S,
        max_spend: float | None = None,
        on_event: Listener | None = None,
    ) -> None:
        settings = ConversationSettings(
            model=model,
            system=system,
            tools=tools,
            format=format,
            preset=preset,
            policy=policy,
            window=window,
            max_output=max_output,
            thinking_budget=thinking_budget,
            limit=limit,
            counter=counter,
            sensitive=sensitive,
            summariser=summariser,
            summariser_timeout_s=summariser_timeout_s,
            max_spend=max_spend,
            on_event=on_event,
        )
        self._set_up(settings, _in_memory(settings), holder="memory", is_empty=True, finds_twins=True)

    @classmethod
    def stored(
        cls,
        journal: Journal,
        settings: ConversationSettings,
        *,
        holder: str,
        is_empty: bool = False,
        finds_twins: bool = True,
    ) -> Conversation:
        """Return the conversation of a journal; `refold.Engine` calls this.

        `holder` names the process in the leases of summary jobs. With `is_empty` the branch is known to be
        empty, and nothing is loaded. With `finds_twins`, compactions of other models are shown as text; the
        gateway sets it to False, because each request may go to another upstream, and finds the texts itself.

        Raises:
            ConfigError: a setting names nothing that exists, or leaves no room.
        """
        made = cls.__new__(cls)
        # A second constructor: it alone calls privates of its own class from outside.
        made._set_up(settings, journal, holder=holder, is_empty=is_empty, finds_twins=finds_twins)  # noqa: SLF001
        made._events.conversation, made._events.branch = journal.head.conversation, journal.head.branch  # noqa: SLF001
        return made

    def _set_up(
        self,
        settings: ConversationSettings,
        journal: Journal,
        *,
        holder: str,
        is_empty: bool,
        finds_twins: bool,
    ) -> None:
        self._journal, self._is_empty, self._finds_twins = journal, is_empty, finds_twins
        self._settings = settings
        self._window_read_at = journal.clock()
        self._summariser_timeout_s = settings.summariser_timeout_s
        self._state, self._size = state_for(settings)
        self._is_open = self._is_stale = False
        self._unsettled: UnsettledCommit | None = None
        self._told_damage = frozenset[int]()
        """The damaged messages that an event has named."""
        self._has_told_prompt = False
        """Whether the log has said that the stored system prompt is damaged."""
        self._held: Head | None = None
        """The head of the branch when the state was loaded or committed."""
        self._sent: SentWindow | None = None
        """The data of the last window, to be stored with the call that answers it."""
        self._rerunning: asyncio.Task[bool] | None = None
        self._closed = 0
        """How often `close` was called: a compaction that waits for its summary ends with it."""
        self._events = EventQueue(settings.on_event, dollars_for)
        self._lock, self._compacting = _ConversationLock(self._events), asyncio.Lock()
        self._tools, self._spelling = [*settings.tools], RequestFields()
        self._tool_rules: dict[str, ToolRule] = {}
        self._compactions = Compactions(journal.store, journal.head.owner)
        state = self._state
        author = self._summariser_from(settings)
        self._jobs = SummaryJobs(
            journal,
            self,
            self._events,
            holder=holder,
            summariser=None if state.frame.policy.recipe.strategy == "extractive" else author,
            price=dollars_for,
            max_spend=settings.max_spend,
            lease_s=settings.lease_s,
        )

    @cached_property
    def _session_summaries(self) -> SessionSummaries:
        """The summaries of closed sessions; most conversations close none."""
        return SessionSummaries(self._journal, self._jobs)

    def _summariser_from(self, settings: ConversationSettings) -> Summariser | None:
        """Return the summariser of the settings. One that is given by name is closed with the conversation."""
        given, state = settings.summariser, self._state
        self._named_summariser: NamedSummariser | None = None
        if isinstance(given, str):
            given = summariser_named(given, settings, cache=lambda: settings.cache)
        if isinstance(given, NamedSummariser) and given is not settings.summariser:
            self._named_summariser = given
            return given
        return summariser_of(given, state.frame.fixed.dialect, state.counter.text)

    # The commit loop

    async def apply(
        self,
        action: Action,
        *,
        key: str = "",
        chains: Sequence[bytes] = (),
        claims: bytes = b"",
        takes: Sequence[str] = (),
        text_size: int = 0,
        is_blind: bool = False,
        is_brief: bool = False,
    ) -> Outcome:
        """Run a pure action on the state, and commit its outcome.

        The action may run several times: after a conflict it runs again on the state that the store has now.

        Args:
            action: returns the outcome for a state, see `refold.engine.actions`.
            key: the client's idempotency key for the first message that is added.
            chains: the hashes of a stateless client's history up to each new message, see `Journal.draft`.
            claims: the hash that no other branch may hold, see `Journal.draft`.
            takes: the ids of queued messages that the action adds: they leave the queue with the commit.
            text_size: characters of new text that the action reads. Much text is read in a thread.
            is_blind: skip the check for commits of other programs first. For an action that writes in any
                case: the store refuses the commit if the branch has moved.
            is_brief: the action reads no text, so it never needs a thread.

        Raises:
            Conflict: other programs committed first, again and again.
            NotFound: a queued message has left the queue.
            StoreError: nothing was stored, or the outcome of the commit is not known.
        """
        async with self._lock:
            return await self._apply(
                action,
                key=key,
                chains=chains,
                claims=claims,
                takes=takes,
                text_size=text_size,
                is_blind=is_blind,
                is_brief=is_brief,
            )

    async def _apply(
        self,
        action: Action,
        *,
        key: str = "",
        chains: Sequence[bytes] = (),
        claims: bytes = b"",
        takes: Sequence[str] = (),
        text_size: int = 0,
        is_blind: bool = False,
        is_brief: bool = False,
        replaces: Compaction | None = None,
        before: State | None = None,
    ) -> Outcome:
        for _ in range(MAX_CONFLICTS):
            state = await self._current(asks=not is_blind)
            if state.size != self._journal.head.next_seq:
                # A defect of ours: the next message would get the number of another one.
                self._is_stale = True
                raise StoreError(
                    "the conversation and the store differ in their number of messages",
                    hint="try it again: the conversation is loaded anew",
                )

            replaced: ReplacedCompaction | None = None
            if replaces is not None:
                state, replaced = await self._without(state, replaces)

            def act(
                state: State = state, replaced: ReplacedCompaction | None = replaced
            ) -> tuple[Outcome, Any]:
                done = action(state)
                draft = self._journal.draft(
                    done,
                    key=key,
                    calls=done.calls,
                    chains=chains,
                    claims=claims,
                    takes=takes,
                    replaces=replaced,
                    before=before,
                )
                return done, draft

            # Much text is read in a thread. If the caller is cancelled, the thread finishes and its result is
            # dropped.
            size = 0 if is_brief else state.text_read(text_size)
            is_apart = state.runs_plugins and not is_brief
            done, draft = await run_text_act(size, act, is_apart=is_apart)
            session = replaced.session if replaced else self._journal.session
            if draft is not None:
                if draft.state is not done.state:
                    done = structs.replace(done, state=draft.state)
                place, self._is_stale = self._journal.head.place, True
                try:
                    commit = self._journal.commit_draft(draft)
                    # Without stored content the state is the only copy: a cancelled caller waits for the
                    # outcome.
                    await (commit if self._journal.keeps_content else settled(commit))
                except Conflict:
                    if key and await self._journal.has_key(key):
                        return done  # the same messages were added at the same time
                    continue
                except BaseException:
                    self._unsettled = UnsettledCommit(place, done.state)
                    raise
                self._is_stale = False
            return await self._adopt(done, session)
        raise _too_many_conflicts()

    async def _adopt(self, done: Outcome, session: Session) -> Outcome:
        """Adopt an outcome that was stored: replace the state, queue the events, start a summary that is due.
        `session` was open before the commit.
        """
        self._state, self._held = done.state, self._journal.head
        state = done.state
        self._events.put(done.events)
        self._warn_of_unused_model(done.events)
        if (stated := state.limits.ignored) is not None:
            warn_once(f"a refusal stated a window of {stated:,} tokens, which no model has; it is ignored")
        warn_once(_larger_setting(state, self._journal.model))
        if done.has_skipped:
            self._jobs.note_skipped()
        is_switched = any(isinstance(event, SummarySwitched) for event in done.events)
        self._jobs.note_compaction(session, is_switched=is_switched)
        self._jobs.begin_ahead(done.wanted, done.wanted_from, session if done.wanted_from else None)
        if done.window is not None:
            # At once: a view for one call only is known now, and lost with the next act.
            self._sent = await self._sent_now(state)
            done = structs.replace(done, sent=self._sent)
        return done

    def _warn_of_unused_model(self, events: Sequence[Event]) -> None:
        """Log a warning for each compaction for which the configured summariser was not used."""
        for event in events if self._jobs.summariser is not None else ():
            if not isinstance(event, CompactionEnd) or event.outcome != "installed" or not event.why:
                continue
            # If a model wrote because the provider had not compacted, the summariser has logged that.
            if event.author not in ("model", "native"):
                _log.warning("a compaction was made without the summariser: %s", event.why)

    async def _sent_now(self, state: State) -> SentWindow:
        size = 0 if state.is_sent_as_shown else state.text_size
        return await run_text_act(size, self._journal.sent_now, state)

    async def _current(self, *, asks: bool = True) -> State:
        """Return the state as the store has it: reloaded if another program has committed, or if a commit had
        an unknown outcome.
        """
        if not self._is_open and self._is_empty:
            self._state, self._is_open = await self._journal.with_learnt(self._state), True
        elif not self._is_open:
            await self._load()
        elif self._is_stale:
            await self._settle()
            await self._load()
        elif asks:
            head = await self._journal.current_head()
            if head is None or head.place != self._journal.head.place:
                await self._load()
            await self._follow_learned_window()
        state = self._jobs.with_prepared(self._state)
        return structs.replace(state, at=self._journal.clock())

    async def _past(self) -> State:
        """Return a state to rebuild windows of the past from. The present messages, which may be thousands, are
        not loaded for it.
        """
        if self._is_open or self._is_empty:
            return await self._current()
        return await self._journal.load_without_messages(self._state)

    async def _follow_learned_window(self) -> None:
        """Use the window that another conversation has learnt since, or none if it was forgotten."""
        now, known_at = self._journal.clock(), self._window_read_at
        if 0 <= now - known_at < WINDOW_READ_S or self._state.limits.attempts:
            return  # a clock that was set back reads it again; a call that recovers keeps its limits
        self._window_read_at = now
        self._state = await self._journal.with_learned_window(self._state)

    async def _settle(self) -> None:
        """Decide whether a commit of unknown outcome was stored. With stored content a reload shows it.
        Without, the state in memory is the only copy: if the branch has advanced to the size that the commit
        would have given it, the commit was stored.
        """
        unsettled = self._unsettled
        if unsettled is not None and not self._journal.keeps_content:
            head = await self._journal.current_head()
            if head is not None and head.place != unsettled.place and head.next_seq == unsettled.state.size:
                self._state = unsettled.state
        self._unsettled = None

    async def _load(self) -> None:
        self._is_stale = True
        is_first, held = not self._is_open, self._held if self._is_open else None
        self._state = await self._journal.load(self._state, is_first=is_first, held=held)
        self._held = self._journal.head
        self._take_instructions()
        self._sent, self._is_stale, self._is_open = None, False, True
        self._state = await self._with_twins(self._state)
        self._tell_damage()
        await self._jobs.load()

    def _tell_damage(self) -> None:
        """Say which shown messages cannot be read, once for each, and whether the stored system prompt can."""
        found = self._journal.shown_damage
        if new := tuple(number for number in found if number not in self._told_damage):
            self._events.put([MessagesDamaged(messages=new)])
            _log.warning("%s: %s", self.id, damage_text(new))
            self._told_damage |= {*new}
        damage = self._journal.instructions.damage
        if damage is not None and not self._has_told_prompt:
            _log.warning("%s", damage.message)
            self._has_told_prompt = True

    async def _apply_steps(self, act: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        """Run an act that takes several commits, and load the result. The caller holds the lock."""
        for _ in range(MAX_CONFLICTS):
            state = await self._current()
            self._is_stale = True
            try:
                # Without stored content the state is the only copy: a cancelled caller waits for the outcome.
                result = await (act(state) if self._journal.keeps_content else settled(act(state)))
            except Conflict:
                self._unsettled = None  # nothing was stored
                continue
            await self._settle()
            await self._load()
            with suppress(StoreError):  # the act is committed; the fill level comes with the next commit
                await self._journal.store_fill_level(self._state)
            return result
        raise _too_many_conflicts()

    async def _read(self, function: Callable[[State], T]) -> T:
        """Return the result of a function on the state as the store has it.

        An arrival waits until the function has ended, so that it reads the conversation at one moment.
        """
        async with self._lock:
            state = await self._current()
            return await run_text_act(state.text_size, function, state, is_apart=state.runs_plugins)

    def _take_instructions(self) -> None:
        """Use the stored system prompt and tools if the program gave none."""
        state = _with_instructions(self._state, self._journal.instructions.fields)
        if state is not self._state:
            self._state, self._tools = state, _tools_in(state)

    # Messages

    async def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        """Add messages to the conversation.

            await chat.add("Where is my order?")
            await chat.add({"role": "assistant", "content": "Which number does it have?"})

        System messages at the very beginning become the system prompt.

        Args:
            messages: dictionaries, message objects of an SDK, or a string for a message of the user.
            sensitive: keep these messages out of every summary. They are sent to your model, and can be
                recalled by their handles.
            key: an idempotency key. Messages whose key was stored before are not added again: after an error
                with an unknown outcome, add them again with the same key.

        Raises:
            WireError: a value is not a message of this format.
            StoreError: nothing was stored, or the outcome is not known.
        """
        check_unicode(key, "key")
        if key and await self._journal.has_key(key):
            return

        def act(state: State) -> Outcome:
            added = [read_message(value, state.frame.fixed.dialect) for value in messages]
            return self._add_with_prompt(state, added, sensitive=sensitive)

        await self._add(act, key=key, text_size=text_in(messages))

    def _add_with_prompt(self, state: State, added: list[Message], *, sensitive: bool = False) -> Outcome:
        """Add messages; system messages at the beginning of the branch go into the system prompt."""
        state, rest = take_prompt(state, added)
        if sensitive and len(rest) < len(added):
            state = structs.replace(state, secrecy=structs.replace(state.secrecy, is_prompt_marked=True))
        return actions.add(state, rest, sensitive=sensitive)

    async def add_queued(self, entries: Sequence[QueuedEntry]) -> None:
        """Add messages that waited in the queue of the branch, in this order. They leave the queue with the same commit.

        Raises:
            NotFound: another program has added one of them; nothing was added.
        """
        size = sum(len(one.body) for one in entries)

        def act(state: State) -> Outcome:
            added = [read_body(one.body, state.frame.fixed.dialect.name) for one in entries]
            return self._add_with_prompt(state, added)

        await self._add(act, text_size=size, takes=[one.id for one in entries])

    async def _add(
        self, act: Action, *, key: str = "", text_size: int = 0, takes: Sequence[str] = ()
    ) -> None:
        before = self._state

        def note_before(state: State) -> Outcome:
            nonlocal before
            before = state
            return act(state)

        done = await self.apply(note_before, key=key, text_size=text_size, takes=takes)
        first = before.size
        await self._journal.store_learnt(before, done.state)
        for number, names in compactions_since(done.state.folded, first).items():
            self._compactions.note(names, Maker(self._journal.model, "", self.id, self.branch, number))
        if self._compactions.unstored:
            await self._compactions.keep(self._journal.clock())

    async def _with_twins(self, state: State) -> State:
        """Return the state with readable replacements for compactions that another provider or model made."""
        journal = self._journal
        if not self._finds_twins or state.folded.shown.progress.compaction < 0:
            return state
        items = state.folded.items.items
        held = {item.seq: item.message for item in items if holds_compaction(item.message)}
        here = Maker(journal.model, "", self.id, self.branch)
        before = Maker(journal.head.model or journal.model)
        twins = await self._compactions.twins(held, here, state, first_sent_to=before)
        return structs.replace(state, twins=twins)

    async def set_instructions(self, fields: bytes) -> None:
        """Store the request that the conversation was imported with, as JSON without its messages. Its system
        prompt and tools are used if the program gives none.
        """
        check_kind(fields, bytes, "the instructions", hint="give the fields of a request as JSON")

        def act(state: State) -> Outcome:
            return Outcome(state=_with_instructions(state, fields), imported=fields)

        async with self._lock:
            done = await self._apply(act, text_size=len(fields))
            if not self._tools:
                self._tools = _tools_in(done.state)

    async def set_tools(
        self, tools: Sequence[object], *, rules: Mapping[str, ToolRule] | None = None
    ) -> None:
        """Send these tool definitions with every request from now on. `rules` say by name what becomes of a
        tool's old results where the policy prunes them: "prune", or "summarise" for those that stay until they
        are summarised.

        Raises:
            BudgetError: they leave no room for messages.
        """
        read_in = read_tools(tools)

        def act(state: State) -> Outcome:
            policy = with_tool_rules(state.frame.policy, rules or {})
            fixed = structs.replace(state.frame.fixed, tools=read_in)
            return Outcome(state=state.with_frame(fixed, policy=policy))

        async with self._lock:
            await self._apply(act)
            self._tools, self._tool_rules = [*tools], {**(rules or {})}

    async def set_system(self, system: SystemPrompt) -> None:
        """Send this system prompt with every request from now on: a text, blocks of text in the format "anthropic",
        or system messages in the other formats.

        Raises:
            ConfigError: it is none of these.
            BudgetError: it leaves no room for messages.
        """
        prompt = read_prompt(system, self._state.frame.fixed.dialect)

        def act(state: State) -> Outcome:
            return Outcome(state=state.with_frame(structs.replace(state.frame.fixed, system=prompt)))

        await self.apply(act)

    async def reconfigure(self, *, model: str = "", preset: str = "") -> None:
        """Go on with another model or another preset from the next request on. Nothing of the messages changes. A
        window that was given to the conversation or its engine holds for the new model too.

        Raises:
            ConfigError: there is no such preset, or it leaves no room; nothing was changed.
        """
        self._journal.check_content()
        settings = structs.replace(self._settings, model=model or self._settings.model)
        if model:
            settings = structs.replace(settings, reported_window=None)
        if preset:
            settings = structs.replace(settings, preset=preset, policy=None)
        async with self._lock:
            state = await self._current()
            new, size = state_for(settings, state.frame.fixed)
            policy = with_tool_rules(new.frame.policy, self._tool_rules)
            new = new.with_frame(new.frame.fixed, policy=policy)
            journal, self._is_open, self._is_empty = self._journal, False, False
            before = self._state, journal.model, journal.learns
            self._state = structs.replace(new, secrecy=state.secrecy)
            journal.model = journal.learns = settings.model or journal.model
            try:
                await self._load()
            except BaseException:  # the next act loads the branch again, for the model as it was
                self._state, journal.model, journal.learns = before
                raise
            self._settings, self._size = settings, size

    # Requests

    async def context(self) -> dict[str, Any]:
        """Return the fields of the next request: its messages, system prompt and tools.

        This is the moment at which the conversation is compacted if its policy says so. Pass the fields on to
        an SDK, and ask for `max_output` tokens: if instructions and output leave messages little room, that
        is less than the conversation was made with. Do not change the dictionaries of messages: the next
        context reuses them.

            reply = await client.chat.completions.create(model="gpt-4o-mini", **await chat.context())

        Raises:
            DoesNotFit: nothing more can be left out, and the request is still too large.
            InvalidWindow: the messages cannot be sent, such as a tool call without a result.
            Damaged: the stored system prompt cannot be read, and the program gave none.
        """
        self._warn_of_window()
        done, fields = await self._apply_for_fields(actions.context)
        if done.awaited is not None:
            await self.wait_for_summary(done.awaited)
            done, fields = await self._apply_for_fields(actions.at_once(actions.context))
        if done.problem is not None:
            raise done.problem
        return fields

    async def wait_for_summary(self, request: SummaryRequest, waited_s: float = 0.0) -> None:
        """Wait until a model has written the summary that an outcome asks for, or until its time is up. Then
        apply the action again, with `actions.at_once`. The caller has waited for `waited_s` of that time already.
        """
        await self._jobs.write_within(request, self._summariser_timeout_s, waited_s)

    async def record(self, usage: object) -> None:
        """Record the usage that the provider reported: a reply's `usage`, or the whole reply; None is
        allowed. The figures calibrate the token counter and add to the bill.
        """
        await self._record(usage, recoveries=0)

    async def _record(self, usage: object, *, recoveries: int) -> None:
        reported = read_usage(usage, self._state.frame.fixed.dialect)
        delivery = Delivery(recoveries=recoveries)
        await self.record_call(lambda state: actions.record(state, reported), reported, delivery=delivery)

    async def record_call(
        self,
        action: Action,
        usage: Usage | None,
        sent: SentWindow | None = None,
        *,
        call_id: str = "",
        reply: bytes = b"",
        is_estimated: bool = False,
        is_blind: bool = False,
        delivery: Delivery = NOT_KNOWN,
    ) -> None:
        """Apply what a call has taught, and store the call with its usage, which `is_estimated` if the provider
        reported none. `sent` describes its window; by default the last one.
        """
        async with self._lock:
            before = self._state if self._is_open else await self._current()
            calls: tuple[Call, ...] = ()
            if usage is not None:
                noted = sent or self._sent or await self._sent_now(before)
                call = self._journal.reported_call(
                    before,
                    usage,
                    noted,
                    call_id=call_id,
                    reply=reply,
                    is_estimated=is_estimated,
                    delivery=delivery,
                )
                calls = (call,)

            def act(state: State) -> Outcome:
                return structs.replace(action(state), calls=calls)

            done = await self._apply(act, is_brief=True, is_blind=is_blind, before=before)
        await self._journal.forget_window(before, done.state)

    async def count(self, upstream: CountingUpstream) -> int | None:
        """Ask the provider how many tokens the next request has, before it is sent; None if it cannot say.

        Worth a round trip for a very large request: if it would not fit, the next `context` is smaller.

        Raises:
            UpstreamError: the provider did not answer.
        """
        check_members(upstream, "upstream", "count", hint=_UPSTREAM)
        window = await self._window()
        found = await upstream.count(Ask(window.sent, system=window.system, tools=window.fixed.tools))
        if found is not None:
            await self.apply(lambda state: actions.take_count(state, found))
        return found

    async def ask(self, upstream: Upstream, *, max_output: int | None = None) -> Reply:
        """Send the context to a model, and add its reply in the format of the conversation. If the provider
        refuses the request as too long, a smaller one is sent at once.

        Args:
            upstream: the connection to the model.
            max_output: the most tokens of the reply; by default `max_output` of the conversation.

        Raises:
            UpstreamError: there is no reply. The messages so far are kept.
            RecoverySpent: the provider refused every smaller request too.
        """
        check_members(upstream, "upstream", "ask", hint=_UPSTREAM)
        self._warn_of_window()
        window, reply = await self._counted(upstream, await self._window()), None
        recoveries = 0
        while reply is None:
            try:
                reply = await upstream.ask(self._asked(window, max_output))
            except ContextOverflow as error:
                window, recoveries = (await self._recover(error)).sendable, recoveries + 1
        await self._record(reply.usage, recoveries=recoveries)
        await self._add_reply(reply.messages)
        return reply

    async def stream(
        self, upstream: StreamingUpstream, *, max_output: int | None = None
    ) -> AsyncGenerator[Delta | Reply, None]:
        """Send the context to a model, and yield the reply while it is written. The last item is the whole reply,
        which is added by then, in the format of the conversation. If the provider refuses the request as too
        long, a smaller one is sent at once.

        If the reply breaks off, or the caller stops early (`contextlib.aclosing`) or is cancelled, the text and
        the complete tool calls that were received are added as the reply, and its usage is estimated. Reasoning
        that was cut off is not kept: no provider takes it back.

            async with aclosing(chat.stream(upstream)) as items:
                async for item in items:
                    print(item)

        Args:
            upstream: the connection to the model.
            max_output: the most tokens of the reply; by default `max_output` of the conversation.

        Raises:
            UpstreamError: there is no reply, or it broke off. The messages so far are kept.
            RecoverySpent: the provider refused every smaller request too.
            Conflict: another program added messages meanwhile, such as a reply of its own. This one was not
                added; its usage was recorded.
        """
        check_members(upstream, "upstream", "stream", hint=_UPSTREAM)
        self._warn_of_window()
        window = await self._counted(upstream, await self._window())
        received, reply, recoveries = _Received(), None, 0
        size = self._sent.size if self._sent is not None else self._state.size
        try:
            while reply is None:
                try:
                    async with aclosing(upstream.stream(self._asked(window, max_output))) as items:
                        async for item in items:
                            if isinstance(item, Reply):
                                reply = item
                            else:
                                received.take(item)
                                yield item
                    if reply is None:
                        raise UpstreamError("the upstream ended without a reply", hint=_WHOLE_REPLY)
                except ContextOverflow as error:
                    if received:
                        raise
                    window, recoveries = (await self._recover(error)).sendable, recoveries + 1
        finally:
            if reply is None and received:
                await settled(self._keep_received(received, window, size))
        dialect = self._state.frame.fixed.dialect
        messages = await run_text_work(
            sum(one.characters for one in reply.messages), _reply_in, reply.messages, dialect
        )
        # Both are done even if the caller is cancelled here: the reply is complete, and paid for.
        await settled(self._keep_reply(messages, reply.usage, size, recoveries))
        yield structs.replace(reply, messages=messages)

    def _asked(self, window: Window, max_output: int | None) -> Ask:
        most = self._state.output if max_output is None else max_output
        if window.output is not None:
            most = min(most, window.output)
        policy = self._state.frame.policy
        return Ask(
            window.sent,
            window.system,
            window.fixed.tools,
            most or USUAL_OUTPUT,
            temperature=None,
            cache_ttl=policy.cache if policy.enabled else None,
        )

    async def _add_reply(self, messages: Sequence[Message], *, at: int | None = None) -> None:
        """Add the messages of a reply; with `at`, only if the branch still has so many messages.

        Raises:
            Conflict: it has more by now.
        """
        new = sum(one.characters for one in messages)
        dialect, is_late = self._state.frame.fixed.dialect, False
        replies = await run_text_work(new, _reply_in, messages, dialect)

        def act(state: State) -> Outcome:
            nonlocal is_late
            is_late = at is not None and state.size != at
            return Outcome(state=state) if is_late else self._add_with_prompt(state, [*replies])

        await self._add(act, text_size=new)
        if is_late:
            raise Conflict(
                "another program has gone on with the conversation; this reply was not added",
                hint="its cost was recorded; the conversation has the reply of the other program",
            )

    async def _keep_reply(
        self, messages: Sequence[Message], usage: Usage | None, size: int, recoveries: int
    ) -> None:
        await self._record(usage, recoveries=recoveries)
        await self._add_reply(messages, at=size)

    async def _keep_received(self, received: _Received, window: Window, size: int) -> None:
        """Add the part of a reply that was received before it broke off, with an estimate of its usage."""
        state = self._state
        messages = received.messages(window.fixed.dialect)
        output = sum(state.counter.text(one) for one in (received.text, received.thoughts) if one)
        usage = Usage(input=sized(state).tokens, output=output)
        await self.record_call(lambda state: actions.take_answer(state, None), usage, is_estimated=True)
        if messages:
            with suppress(Conflict):
                await self._add_reply(messages, at=size)

    async def add_results(self, results: Sequence[ToolResult], *, at: int) -> None:
        """Add the results of tool calls in one commit, if the branch still has `at` messages.

        Raises:
            Conflict: it has more by now: another program has gone on with the conversation.
        """
        is_together = self._state.frame.fixed.dialect.joint_results
        messages = (
            [Message("tool", (*results,))] if is_together else [Message("tool", (one,)) for one in results]
        )
        await self._add_reply(messages, at=at)

    async def _counted(self, upstream: Upstream, window: Window) -> Window:
        """Let the provider count a very large window that was only estimated here, and return a smaller one if
        it does not fit. A provider that cannot count is sent the window as it is.
        """
        if not (isinstance(upstream, CountingUpstream) and self._state.is_worth_counting):
            return window
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(COUNT_S):
                found = await upstream.count(Ask(window.sent, system=window.system, tools=window.fixed.tools))
            if found is not None:
                await self.apply(lambda state: actions.take_count(state, found))
                return await self._window() if found > self._state.limit else window
        return window

    async def _window(self) -> Window:
        """Return the window of the next call."""
        done = await self.apply(self._as_request(actions.context))
        if done.awaited is not None:
            await self.wait_for_summary(done.awaited)
            done = await self.apply(self._as_request(actions.at_once(actions.context)))
        return done.sendable

    def _as_request(self, action: Action) -> Action:
        """Return an action that makes a window for this program to send: with a system prompt that is known."""

        def act(state: State) -> Outcome:
            self._journal.instructions.check(state.frame.fixed)
            return action(state)

        return act

    async def recover(self, error: object) -> dict[str, Any]:
        """Return the fields of a smaller request, after a provider has refused the last one as too long. No
        model is asked for it. An exception that is not about the length is raised again.

            try:
                reply = await client.chat.completions.create(model="gpt-4o-mini", **await chat.context())
            except openai.BadRequestError as error:
                reply = await client.chat.completions.create(model="gpt-4o-mini", **await chat.recover(error))

        Args:
            error: the exception of an SDK, or the body of the response.

        Raises:
            RecoverySpent: no smaller request is possible.
            NotAnOverflow: the body is not about the length of the request.
        """
        done = await self._recover(error)
        if isinstance(error, Exception) and isinstance(done.problem, NotAnOverflow):
            raise error
        return await run_text_work(done.state.text_size, self._fields, done.sendable)

    async def _recover(self, error: object) -> Outcome:
        self._jobs.allow_retry()
        status, body = read_refusal(error)
        return await self.apply(self._as_request(lambda state: actions.recover(state, status, body)))

    async def _apply_for_fields(self, action: Action) -> tuple[Outcome, dict[str, Any]]:
        """Apply an action that makes a window, and return the window as the fields of a request too."""
        fields: dict[str, Any] = {}

        def act(state: State) -> Outcome:
            nonlocal fields
            done = action(state)
            fields = self._fields(done.window) if done.window else {}
            return done

        done = await self.apply(self._as_request(act))
        return done, fields

    def _fields(self, window: Window) -> dict[str, Any]:
        tools = {"tools": self._tools} if self._tools else {}
        return {**self._spelling.fields(window), **tools}

    def _warn_of_window(self) -> None:
        """Log a warning before the first request of a conversation whose window is assumed, or whose messages
        will have less than a quarter of it.
        """
        state = self._state
        warn_once(self.window.warning)
        if state.window is None and not state.folded.replies and (room := state.tight_room):
            _log.warning("%s", room.warning)

    # Compactions

    async def compact(self, *, keep: int | None = None, focus: str = "") -> dict[str, Any]:
        """Compact now, regardless of the thresholds, and return the fields of the next request. Waits for the
        summariser if there is one. After a message of the assistant, the fields end with it, and a format that
        refuses this takes them once a message of the user was added.

        Args:
            keep: tokens of recent messages to keep; by default the policy's figure.
            focus: the subject that the summary should give most room to, in at most 4,000 characters.

        Raises:
            ConfigError: the focus is too long.
            InvalidWindow: no call can follow, such as in a conversation without messages.
            DoesNotFit: the request is still too large.
            StoreError: the conversation was closed while the summary was written; nothing was compacted.
        """
        if keep is not None:
            check_count(keep, "keep")
        check_focus(focus)
        closed = self._closed
        if (rerunning := self._rerunning) is not None and not rerunning.done():
            await asyncio.wait(
                {rerunning}
            )  # it makes the last compaction again, and this one is to follow it
        async with self._lock:
            self._journal.instructions.check((await self._current()).frame.fixed)
            asked_at = self._jobs.place
        async with self._compacting:
            place = self._jobs.place if focus else asked_at
            start = self._emit_start("manual", ASKED)
            with self._reporting(start):
                if self._jobs.place == place:  # else another task compacted at the same time
                    patience_s = self._summariser_timeout_s
                    await self._jobs.ensure_written(partial(self._wanted_now, keep), focus, patience_s)
                if self._closed != closed:
                    raise StoreError(
                        "the conversation was closed during the compaction", hint="open it again"
                    )
                done, fields = await self._apply_for_fields(
                    partial(self._compact_at, place=place, start=start, keep=keep)
                )
        if done.problem is not None:
            raise done.problem
        return fields

    def _compact_at(
        self, state: State, *, place: tuple[object, ...], start: CompactionStart, keep: int | None
    ) -> Outcome:
        if self._jobs.place_of(state) != place:
            done = actions.context(state)
            end = structs.replace(end_of(start, "superseded", OVERTAKEN), after=sized(done.state))
            return structs.replace(done, events=(*done.events, end))
        return _as_part_of(start, actions.compact(state, keep=keep))

    async def _wanted_now(self, keep: int | None) -> SummaryRequest | None:
        return await self._read(partial(actions.wanted_now, keep=keep))

    def _emit_start(self, path: Path, reason: str) -> CompactionStart:
        """Emit the start of a compaction at once, because the compaction may take a while."""
        start = CompactionStart(path=path, reason=reason, before=sized(self._state))
        self._events.put([start])
        self._events.deliver()
        return start

    @contextmanager
    def _reporting(self, start: CompactionStart) -> Iterator[None]:
        """Emit the failure of a compaction if the block raises."""
        try:
            yield
        except BaseException as error:
            end = end_of(start, "failed", problem_of(error))
            self._events.put([structs.replace(end, after=sized(self._state))])
            self._events.deliver()
            raise

    async def stop_summary(self) -> None:
        """Stop the summary that is being written for this conversation, if there is one. It is not used, and the event
        `SummaryDiscarded` says so.
        """
        await self._jobs.stop(STOPPED)

    async def undo(self) -> bool:
        """Undo the last compaction or reduction of this session. Until a message is added, no automatic one
        follows. A damaged message is shown by a placeholder again.

        Returns False if there is none.

        Raises:
            Damaged: the snapshot before the change cannot be read; nothing was undone.
        """

        async def act(state: State) -> tuple[Compaction, State] | None:
            last = await change_to_undo(self._journal)
            if last is None:
                return None
            await self._journal.undo(state, last)
            self._jobs.drop_pending()
            return last, state

        async with self._lock:
            undone = await self._apply_steps(act)
            if undone is None:
                return False
            change, before = undone
            was, now = sized(self._state, before.folded), sized(self._state)
            decision: Decision = "summarise" if change.kind == "summarise" else "reduce"
            self._events.put([Undone(decision=decision, reason=change.reason, before=was, after=now)])
        return True

    async def open_again(self) -> Receipt | None:
        """Undo folds that were made for a smaller model, if the last calls went to one in which the whole history
        takes less than half of the room: see `actions.may_open_again`. A fold that was asked for, or made after a rest or a
        change of topic, stays, and so does one that the policy would make again.

        Returns the receipt, or None if nothing was opened.
        """
        if not actions.may_open_again(self._state) or not await self._has_settled_model():
            return None

        async def act(state: State) -> Compaction | None:
            last = await last_change(self._journal, "summarise")
            if last is None or not is_for_room(last.reason) or not actions.may_open_again(state):
                return None
            journal = self._journal
            latest = await journal.store.latest(journal.head, journal.head.next_seq, before=last.number)
            opened = state.showing(await journal.shown_after(state, latest, journal.head.next_seq))
            if opened.pressure or journal.damaged_in(opened.folded):  # the summary may hold what was said
                return None
            await journal.undo(state, last)
            self._jobs.drop_pending()
            return last

        async with self._lock:
            before = self._state
            while (undone := await self._apply_steps(act)) is not None:
                was, now = sized(before, before.folded), sized(self._state)
                told = Undone(
                    decision="summarise", reason=undone.reason, why=actions.OPENED, before=was, after=now
                )
                self._events.put([told])
            if self._state.folded.tokens == before.folded.tokens:
                return None
            receipt = Receipt("undo", actions.OPENED, before.folded.tokens, self._state.folded.tokens)
            self._state = structs.replace(self._state, receipts=(*self._state.receipts, receipt))
        return receipt

    async def _has_settled_model(self) -> bool:
        """Whether the last calls of this branch all went to the model of this conversation."""
        head = self._journal.head
        calls = await self._journal.store.calls(head.owner, head.conversation, limit=RECENT_CALLS)
        own = [call.model for call in calls if (call.branch, call.kind) == (head.branch, "reply")]
        return own[-actions.OPEN_CALLS :] == [self.model] * actions.OPEN_CALLS

    async def rerun(
        self, *, policy: Policy | None = None, summariser: Summariser | SummaryFunction | str | None = None
    ) -> bool:
        """Repeat the last compaction of this session on the same messages, with another policy or another
        summariser, which is given as to the constructor. Messages can be added while the model writes. The old
        compaction stays until the new one takes its place, also if the rerun fails or is cancelled.

        Returns False if there is no compaction.

        Raises:
            SummaryError: no better compaction could be made, or the conversation was compacted meanwhile.
            StoreError: the conversation was closed during the rerun.
        """
        if policy is not None:
            check_policy(policy)
        check_summariser(summariser)
        named: NamedSummariser | None = None
        if isinstance(summariser, str):
            summariser = named = NamedSummariser(
                summariser, self._settings, cache=lambda: self._settings.cache
            )
        async with self._compacting:
            task = self._rerunning = asyncio.create_task(self._rerun(policy, summariser))
            try:
                return await task
            except asyncio.CancelledError:
                asking = asyncio.current_task()
                if asking is not None and asking.cancelling():
                    raise
                raise StoreError(
                    "the conversation was closed during the rerun, and the old compaction stays",
                    hint="open the conversation again, and repeat the rerun",
                ) from None
            finally:
                if named is not None:
                    await named.close()

    async def _rerun(self, policy: Policy | None, summariser: Summariser | SummaryFunction | None) -> bool:
        async with self._lock:
            await self._jobs.stop(REPLACED)
            await self._current()
            start = self._emit_start("rerun", ASKED)
        with self._reporting(start):
            return await self._compact_again(start, policy, summariser)

    async def _compact_again(
        self,
        start: CompactionStart,
        policy: Policy | None,
        summariser: Summariser | SummaryFunction | None,
    ) -> bool:
        """Make the last compaction again; False if there is none. The model writes without the lock. Then one commit
        undoes the old compaction and installs the new one; messages that were added meanwhile follow it.
        """
        async with self._lock:
            state, change = await self._current(), await last_change(self._journal, "summarise")
            if change is None:
                self._events.put([end_of(start, "skipped", NOTHING)])
                return False
            before, replaced = await self._without(state, change)

        def ruled(state: State) -> State:
            """The state under the policy that was asked for."""
            frame = structs.replace(state.frame, policy=policy or state.frame.policy)
            return structs.replace(state, frame=frame)

        written = await self._summarise_before(change.cut, ruled(before), replaced.session, summariser)

        def act(state: State) -> Outcome:
            done = actions.compact(structs.replace(ruled(state), prepared=written), cut=change.cut)
            if not any(_last_summarised(one.after) > replaced.session.first for one in done.changes):
                raise SummaryError(
                    "the new compaction would gain nothing, and the old one stays",
                    hint="try another policy or another summariser",
                )
            return _as_part_of(
                start, structs.replace(done, state=structs.replace(done.state, frame=state.frame))
            )

        try:
            # The problem is ignored: the shown messages change even if no call can follow yet.
            async with self._lock:
                await self._jobs.stop(REPLACED)
                await self._apply(act, replaces=change)
        except BaseException:
            if written is not None:
                await settled(self._jobs.drop_written(written, UNUSED))
            raise
        return True

    async def _without(self, state: State, change: Compaction) -> tuple[State, ReplacedCompaction]:
        """Return the state as it would be without the last compaction of the open session.

        Raises:
            SummaryError: the conversation was compacted again meanwhile, or has another session.
        """
        last = await last_change(self._journal, "summarise")
        if last is None or last.id != change.id:
            raise SummaryError(
                "the conversation has moved on during the rerun, and its present compaction stays",
                hint="repeat the rerun to replace that one",
            )
        before, replaced = await self._journal.without(state, change)
        return await self._with_twins(before), replaced

    async def _summarise_before(
        self,
        cut: int,
        state: State,
        session: Session,
        summariser: Summariser | SummaryFunction | None,
    ) -> Summary | None:
        """Have a summary of the messages before `cut` written, if there is a model for it."""
        given = summariser_of(summariser, state.frame.fixed.dialect, state.counter.text)
        author = given or self._jobs.summariser
        if author is None or state.frame.policy.recipe.strategy == "extractive":
            return None
        request = await run_text_act(
            state.text_size, actions.wanted_now, state, cut, is_apart=state.runs_plugins
        )
        if request is None:
            return None
        with self._jobs.awaiting():
            return await self._jobs.write_for(request, author, state, session, is_given=given is not None)

    async def prune(self) -> Pruned | None:
        """Replace old tool results by their names now, regardless of the threshold; the newest stay. Returns the
        event, or None if there was nothing to prune.
        """
        found: Pruned | None = None

        def act(state: State) -> Outcome:
            nonlocal found
            frame = state.frame
            stage = next((one for one in frame.policy.stages if isinstance(one, Prune)), Prune())
            only = structs.replace(
                frame.policy, stages=(structs.replace(stage, force=True),), cut=None, manual=None
            )
            done = actions.compact(structs.replace(state, frame=structs.replace(frame, policy=only)))
            found = pruned(state, done.changes[-1], "manual", "manual") if done.changes else None
            if found is None:
                return Outcome(state=state)
            state = structs.replace(done.state, frame=frame)
            return structs.replace(done, state=state, events=(found,), problem=None, window=None, wanted=None)

        await self.apply(act)
        return found

    async def preview(self, *, policy: Policy | None = None, keep: int | None = None) -> Preview:
        """Return the effect that a compaction would have now, without doing it and without asking a model.
        `keep` as in `compact`.
        """
        if policy is not None:
            check_policy(policy)
        if keep is not None:
            check_count(keep, "keep")

        def look(state: State) -> Preview:
            frame = structs.replace(state.frame, policy=policy) if policy else state.frame
            return preview_of(state, frame, keep)

        return await self._read(look)

    # Sessions

    async def start_session(self) -> Session:
        """Open a session with an empty context. Nothing is lost: the closed session can be resumed, and its
        messages recalled. If there is a summariser, it summarises the closed session in the background.
        """

        async def act(state: State) -> OpenedSession:
            new = await sessions.cleared(state)
            # Without stored content a reload cannot restore the shown messages: keep the new state for
            # `_settle`.
            self._unsettled = UnsettledCommit(self._journal.head.place, new)
            return await sessions.begin_new(self._journal, state, new)

        # One lock for all of it: a message that is added at the same time belongs to the new session.
        async with self._lock:
            await self._current()
            start = self._emit_start("new", sessions.NEW)
            with self._reporting(start):
                return (await self._switch_session(start, act)).session

    async def resume(self, session: Session) -> OpenedSession:
        """Go on with an earlier session: with all its messages if they fit, else with its summary. If there
        is only a digest, a summariser writes the summary first; messages that are added meanwhile belong to the
        new session, and requests are made with the context before it.

            session = (await engine.find_sessions("the invoice bug"))[0][1]
            opened = await chat.resume(session)

        Raises:
            NotFound: the session is the open one, was undone, or ends on another branch.
            SummaryError: the conversation was compacted or got another session while the summary was written.
        """
        check_kind(
            session, Session, "session", hint="`engine.sessions` and `engine.find_sessions` return them"
        )
        async with self._lock:
            first, left = (await self._current()).size, self._journal.session.id
            start = self._emit_start("resume", sessions.RESUMED)

        async def act(state: State) -> OpenedSession:
            now = self._journal.session
            # A compaction of older messages leaves those from `first` on where they are.
            if now.id != left and (now.kind != "compaction" or now.first > first):
                raise SummaryError(
                    "the conversation was compacted or got another session during the resume, and stays as it is",
                    hint="resume again: the summary of the session is written",
                )
            return await sessions.resume(self._journal, state, session, first)

        with self._reporting(start):
            await self._session_summaries.ensure_written(session)
            async with self._lock:
                return await self._switch_session(start, act)

    async def _switch_session(
        self, start: CompactionStart, act: Callable[[State], Coroutine[Any, Any, OpenedSession]]
    ) -> OpenedSession:
        """Close the session and open another. The caller holds the lock."""
        job = await self._session_summaries.detach_job()
        opened = await self._apply_steps(act)
        end = structs.replace(end_of(start, "installed"), after=sized(self._state))
        if opened.carries == "summary":
            end = with_summary(end, self._state.folded.summaries[-1])
        self._events.put([end])
        self._session_summaries.begin(opened.closed, job)
        return opened

    # Queries

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """Return the original behind a handle, or passages of the whole conversation that match the words.

            await chat.recall("#m12")  # the message as it came
            await chat.recall("staging database")  # passages, each with its handle

        Args:
            what: a handle such as `#m12`, or words. Of a longer text, the first 1,000 characters are words to
                look for.
            max_tokens: the size of the passages.

        Raises:
            NotFound: nothing has this handle.
            Damaged: this message cannot be read. Damage to another one does not matter.
        """
        check_count(max_tokens, "max_tokens")
        async with self._lock:
            state = await self._readable()
            try:
                found = await recall.recall(self._journal, state, what)
            except NotFound:
                if is_handle(what):
                    raise
                words = limit_query(what)
                return await recall.search(self._journal, state, words, max_tokens=max_tokens)
        if isinstance(found, Summary):
            return found.text
        return await run_text_work(found.characters, plain_message, found, state.frame.fixed.dialect)

    async def search(self, words: str, *, max_tokens: int = 1_000) -> str:
        """Return passages of the whole conversation that match the words, each with its handle. Of a longer
        text, the first 1,000 characters are words to look for.
        """
        check_text(words, "words")
        check_count(max_tokens, "max_tokens")
        words = limit_query(words)
        async with self._lock:
            return await recall.search(self._journal, await self._readable(), words, max_tokens=max_tokens)

    async def _readable(self) -> State:
        """Return the state to recall and search with. If the conversation cannot be loaded because its snapshot is
        damaged, the state has none of its messages, and each is read from the store by itself.
        """
        try:
            return await self._current()
        except Damaged:
            if not self._journal.keeps_content:  # the state in memory is the only copy
                raise
            state = self._journal.without_messages(self._state)
            if not self._is_open:
                self._state = state
            return state

    async def pin(self, handle: str) -> None:
        """Keep a shown message, such as `#m12`, as it is: no stage and no summary takes it out until it is
        unpinned. A message that was shortened before stays short.

        Raises:
            NotFound: there is no such message.
            ConfigError: the message is not shown any more.
        """
        await self._set_pin(handle, on=True)

    async def unpin(self, handle: str) -> None:
        """Allow a pinned message to be shortened and summarised again.

        Raises:
            NotFound: there is no such message.
        """
        await self._set_pin(handle, on=False)

    async def pins(self) -> list[str]:
        """Return the handles of the pinned messages."""
        async with self._lock:
            state = await self._current()
            return [handle_of(number) for number in sorted(state.folded.pinned)]

    async def _set_pin(self, handle: str, *, on: bool) -> None:
        found = recall.read_handle(handle)
        if found.kind != "m" or found.part is not None:
            raise NotFound(f"{handle[:40]!r} is no message", hint="pins hold whole messages, such as #m12")

        async def act(state: State) -> None:
            if found.number >= state.size:
                raise NotFound(
                    recall.no_message(found.number, state.size),
                    hint="handles look like #m12",
                )
            is_shown = any(item.seq == found.number for item in state.folded.items.items)
            if on and not is_shown:
                raise ConfigError(
                    f"message {found.number} is not shown any more, so it cannot be pinned",
                    hint="undo the compaction that took it out, or recall it",
                )
            await self._journal.store_pin(state, found.number, on=on)

        async with self._lock:
            await self._apply_steps(act)

    async def status(self) -> Status:
        """Return how full the context is, whether it has to be compacted, and the compactions and costs so
        far.
        """
        async with self._lock:
            return await status_of(self._journal, await self._current(), self._jobs)

    async def compactions(self, *, limit: int = 1_000) -> list[Compaction]:
        """Return the newest compactions and reductions of this branch, oldest first, those that were undone
        included (`state`).

            *_, last = await chat.compactions()
            print((await chat.diff(last)).before.tokens)
        """
        check_count(limit, "limit")
        head = self._journal.head
        return await self._journal.store.compactions(head.owner, head.branch, limit)

    async def calls(self, *, limit: int = 1_000) -> list[Call]:
        """Return the calls of this branch among the newest `limit` of the conversation, oldest first. Each has
        its usage; `window_of` returns the request that was sent with it.
        """
        check_count(limit, "limit")
        head = self._journal.head
        calls = await self._journal.store.calls(head.owner, head.conversation, limit)
        return [call for call in calls if call.branch == head.branch]

    async def diff(self, change: Compaction) -> Difference:
        """Return the messages that were shown before a change, and those after it."""
        check_kind(change, Compaction, "change", hint="`compactions()` of the conversation returns them")
        async with self._lock:
            return await difference(self._journal, await self._past(), change)

    async def window_of(self, call: Call) -> dict[str, Any]:
        """Return the fields of the request that was sent with a call. If its system prompt and tools are not stored any more
        (the 16 newest are, and those in use), they are those of the newest request.

        Raises:
            NotFound: no window was made for this call.
        """
        check_kind(call, Call, "call", hint="`calls()` of the conversation returns them")
        async with self._lock:
            window = await sent_with(self._journal, await self._current(), call)
        size = sum(one.characters for one in (*window.system, *window.sent))
        return await run_text_work(size, self._fields, window)

    async def shown_with(self, call: Call) -> FoldedBranch:
        """Return the messages that were shown with a call, with the numbers of their originals.

        Raises:
            NotFound: no window was made for this call.
        """
        check_kind(call, Call, "call", hint="`calls()` of the conversation returns them")
        async with self._lock:
            return await shown_with(self._journal, await self._past(), call)

    async def message_usage(self) -> list[MessageTokens]:
        """Return the size of each message: reported by the provider, derived from its reports, or counted."""
        async with self._lock:
            await self._current()
            head, store = self._journal.head, self._journal.store
            calls = await store.calls(head.owner, head.conversation, limit=EVERYTHING)
            own = [call for call in calls if call.branch == head.branch]
            return message_tokens(own, await store.messages(head))

    @property
    def journal(self) -> Journal:
        """The branch in its store: for a program that keeps rows of its own beside the messages, such as a chat."""
        return self._journal

    @property
    def id(self) -> str:
        """The name of the conversation."""
        return self._journal.head.conversation

    @property
    def branch(self) -> str:
        """The id of the branch."""
        return self._journal.head.branch

    @property
    def model(self) -> str:
        """The model that is asked."""
        return self._journal.model

    @property
    def format(self) -> str:
        """The format of the messages: "chat", "responses" or "anthropic"."""
        return self._state.frame.fixed.dialect.name

    @property
    def size(self) -> int:
        """Messages in the branch at the last commit or load."""
        return self._journal.head.next_seq

    @property
    def window(self) -> WindowSize:
        """The size of the window, and the source of that figure."""
        budget, known = self._state.frame.budget, self._size
        is_same = (budget.window, budget.source) == (known.tokens, known.source)
        return known if is_same else WindowSize(budget.window, budget.source, max_input=budget.max_input)

    @property
    def summariser(self) -> Summariser | None:
        """The summariser. A new one takes over with the next summary; a summary in progress is not cancelled."""
        return self._jobs.summariser

    @summariser.setter
    def summariser(self, summariser: Summariser | None) -> None:
        self._jobs.summariser = summariser

    @property
    def queue(self) -> SummaryQueue | None:
        """Has summaries written by other processes; None writes them in this one."""
        return self._jobs.queue

    @queue.setter
    def queue(self, queue: SummaryQueue | None) -> None:
        self._jobs.queue = queue

    async def fulfil(self, order: SummaryOrder | SessionOrder) -> JobResult:
        """Write the summary that another process has ordered, and store it; a worker calls this. It is used by
        the process that goes on with the conversation.

        Raises:
            ConfigError: there is no summariser.
            RefoldError: the store failed; the order can be tried again.
        """
        if self.summariser is None:
            raise ConfigError("no model writes summaries here", hint="see the settings of the summariser")
        async with self._lock:
            state = await self._current()
        if isinstance(order, SessionOrder):
            return await self._session_summaries.fulfil(order.session, self.summariser)
        return await self._jobs.fulfil(order, self.summariser, state)

    @property
    def state(self) -> State:
        """The state after the last act."""
        return self._state

    def author_of(self, shown: FoldedBranch) -> SummaryAuthor:
        """Return the author of the summary that a window shows."""
        late = self._jobs.with_prepared(self._state).late
        return author_of(shown, has_late=late is not None, is_writing=self._jobs.is_running)

    @property
    def max_output(self) -> int:
        """Tokens of output to ask for with the last context: the conversation's setting, or less if the
        request would not have fitted otherwise.
        """
        return self._state.output

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Every automatic change, with its reason."""
        return self._state.receipts

    @property
    def measurement(self) -> Measurement:
        """The size of the window, region by region."""
        return self._state.measurement

    @property
    def bill(self) -> Bill:
        """The cost and the savings so far, by the provider's reports."""
        return self._state.bill

    # Lifecycle

    def prepare(self, summary: Summary) -> None:
        """Give a summary of the first messages that was written elsewhere; it is used once one is needed."""
        self._jobs.prepare(summary)

    async def state_at(self, size: int) -> State:
        """Return the state as it was when the branch had `size` messages. It is for reading: nothing is
        committed from it.
        """
        async with self._lock:
            state = await self._current()
            return state.showing(await self._journal.shown_at(state, size))

    async def load(self) -> None:
        """Bring the state up to date with the store."""
        async with self._lock:
            await self._settle()
            await self._load()

    async def ready(self) -> None:
        """Wait until no summary is being written. Cancelling the waiter does not stop the job, which is paid
        for; `close` does.
        """
        await self._jobs.wait()
        await self._session_summaries.wait()

    def events(self) -> EventReader:
        """Return the events of this conversation, from now until it is closed.

            async for event in chat.events():
                print(event.kind)

        Read them in a task of their own. A reader that is more than 1,000 events behind loses the oldest ones;
        `on_event` is called with every event.
        """
        return self._events.stream()

    async def close(self) -> None:
        """Stop background work, a rerun in progress included; then the old compaction stays. No message is lost."""
        self._closed += 1
        await self._session_summaries.stop()
        again = self._rerunning
        if again is not None and not again.done():
            again.cancel()
            await asyncio.wait({again})
        await self._jobs.stop(CLOSED)
        if self._named_summariser is not None:
            await self._named_summariser.close()
        self._events.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@lru_cache(maxsize=256)
def warn_once(warning: str) -> None:
    """Log a warning about the window of a model, the first time that it is given; nothing if it is empty."""
    if warning:
        _log.warning("%s", warning)


def _larger_setting(state: State, model: str) -> str:
    """Return a warning that the window of the settings is larger than the one that the provider stated in a
    refusal; empty if it is not. The setting is used all the same, so requests will be refused again.
    """
    stated, given = state.limits.stated_window, state.given
    if stated is None or given.source != "override" or stated >= given.window:
        return ""
    return (
        f"the provider of {model} states a window of {stated:,} tokens, and your setting of {given.window:,} is"
        f" used: set the window to {stated:,}, or leave it out, so that no request is refused first"
    )


def _too_many_conflicts() -> Conflict:
    return Conflict(
        "other programs committed first, again and again",
        hint="another program may be writing to this conversation in a loop",
    )


def _as_part_of(start: CompactionStart, done: Outcome) -> Outcome:
    """Return the outcome with its events as the end of a compaction that began earlier."""
    *others, end = as_part_of(start, done.events)
    if isinstance(done.problem, DoesNotFit) and isinstance(end, CompactionEnd):
        end = structs.replace(end, outcome="failed", problem=done.problem.message)
    return structs.replace(done, events=(*others, end))


def _last_summarised(folded: FoldedBranch) -> int:
    """The number of the message that the newest summary ends before; 0 without a summary."""
    return folded.summaries[-1].last if folded.summaries else 0


def take_prompt(state: State, added: Sequence[Message]) -> tuple[State, list[Message]]:
    """Move system messages at the beginning of a branch into its system prompt. Return the other messages."""
    rest = [*added]
    while rest and rest[0].role in ("system", "developer") and not state.size:
        state = state.with_frame(_with_prompt(state.frame.fixed, rest.pop(0)))
    return state, rest


def _with_prompt(fixed: FixedFields, message: Message) -> FixedFields:
    """Add a system message; in a format with a single system prompt, add its parts to that."""
    if fixed.dialect.name != "anthropic":
        return structs.replace(fixed, system=(*fixed.system, message))
    before = fixed.system[0] if fixed.system else Message("system", ())
    return structs.replace(fixed, system=(before.with_parts((*before.parts, *message.bare().parts)),))


def _with_instructions(state: State, fields: bytes) -> State:
    """Return the state with the system prompt and the tools of a stored request, where the program gave none."""
    fixed = state.frame.fixed
    if not fields or (fixed.system and fixed.tools):
        return state
    known = fixed_of(read(FIELDS, fields), fixed.dialect)
    merged = structs.replace(
        fixed,
        system=fixed.system or known.system,
        tools=fixed.tools or known.tools,
        automatic=known.automatic,
    )
    return state if merged == fixed else state.with_frame(merged)


def _tools_in(state: State) -> list[object]:
    """Return the tool definitions of a state as JSON values."""
    raws = [tool.raw for tool in state.frame.fixed.tools if tool.raw is not None]
    try:
        return [msgspec.json.decode(raw) for raw in raws]
    except (
        msgspec.ValidationError
    ):  # a number out of range, such as 1e400, which a provider refuses and the store keeps
        return [json.loads(bytes(raw)) for raw in raws]


def _in_memory(settings: ConversationSettings) -> Journal:
    """Return the journal of a conversation that ends with its program."""
    from refold.stores.memory import MemoryStore

    now = time.time()
    session = Session(id=uuid4().hex, branch="main", first=0, at=now)
    head = Head(
        owner="memory",
        conversation="conversation",
        branch="main",
        session=session.id,
        format=settings.format,
        model=settings.model,
    )
    return Journal(
        MemoryStore.with_conversation(head, session), head, session, time.time, lambda: uuid4().hex
    )
