"""A conversation: its state, and the one place that commits what actions did to it.

Every act goes through `apply`: it takes the lock, brings the state up to date with the store, runs a pure action on it, commits the
outcome, and replaces the state. Where another program was first, the action runs again on what is there now. Events are queued in the
order of the commits and delivered outside of the lock. A conversation in memory is the same class over an in-memory store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from refold.core.plan import Decision, SummaryRequest
from refold.core.policy import Policy
from refold.core.shown import handle_of
from refold.engine import actions, recall, sessions
from refold.engine.actions import Outcome
from refold.engine.events import (
    ASKED,
    NOTHING,
    OVERTAKEN,
    CompactionEnd,
    CompactionStart,
    EventQueue,
    Listener,
    Path,
    Undone,
    as_part_of,
    end_of,
    problem_of,
    sized,
    with_summary,
)
from refold.engine.history import (
    Difference,
    MessageTokens,
    Taken,
    difference,
    last_change,
    message_tokens,
    put_back,
    reported_call,
    sent_now,
    sent_with,
)
from refold.engine.journal import Journal
from refold.engine.provider_compactions import Compactions, Maker, compactions_since
from refold.engine.recall import is_handle
from refold.engine.sdk import RequestFields, read_refusal
from refold.engine.session_summaries import SessionSummaries
from refold.engine.sessions import OpenedSession
from refold.engine.settings import USUAL_OUTPUT, ConversationSettings, Prompt, dollars_for, state_for
from refold.engine.state import Bill, Receipt, Sent, State
from refold.engine.status import Preview, Status, preview_of, status_of
from refold.engine.summary_jobs import SummaryFunction, SummaryJobs, settled, summariser_of
from refold.model.errors import (
    ConfigError,
    Conflict,
    ContextOverflow,
    DoesNotFit,
    NotFound,
    RefoldError,
    StoreError,
    SummaryError,
)
from refold.model.message import Message, holds_compaction
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCounter, Usage
from refold.model.window import Fixed, Window
from refold.ports.records import Call, Compaction, Head, Session
from refold.ports.summariser import Summariser
from refold.ports.upstream import Ask, CountingUpstream, Upstream
from refold.text_work import run_text_act, run_text_work
from refold.wire.json_codec import FIELDS, read
from refold.wire.reply import Reply
from refold.wire.request import fixed_of
from refold.wire.sdk import plain_message, read_message, read_usage, text_in
from refold.wire.translate import translate_messages

if TYPE_CHECKING:
    from refold.engine.settings import NamedSummariser

T = TypeVar("T")
Action = Callable[[State], Outcome]

_log = logging.getLogger("refold")

MAX_CONFLICTS = 200
"""How often an action runs again because another program was first: one that writes without a pause keeps others out for a second or
two, since it need not reload; so many in a row means that something else is wrong."""
EVERYTHING = 10**9


class Unsettled(Struct, frozen=True):
    """A commit of unknown outcome: where the branch was before it, and the state after it, should it have been stored."""

    place: tuple[object, ...]
    state: State


class Conversation:
    """One chat and its context window.

    `model` names the model that is asked, and so the tokenizer, the window and the prices; `window` and `max_output`, in tokens,
    override what is known of it. `system` and `tools` go out with every request. `format` is the shape of your messages: "chat",
    "responses" or "anthropic". `preset` or `policy` says how the context is kept small. `limit` is how much of the window may be used,
    `thinking_budget` how much of the output goes to thinking. `summariser` writes summaries ahead of time: a model by its name
    (`"openai:gpt-4o-mini"`), a `refold.Summariser`, or a function of your own; without one, a digest is made of the messages' own
    words; `max_spend` is what summaries may cost in dollars. Messages that one of the regular expressions in `sensitive` matches stay
    out of every summary. `on_event` is called with everything that is done to the context. `counter` counts tokens in the place of
    the model's tokenizer.
    """

    def __init__(
        self,
        model: str = "",
        *,
        system: Prompt = None,
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
            max_spend=max_spend,
            on_event=on_event,
        )
        self._begin(settings, _in_memory(settings), holder="memory", is_empty=True, finds_twins=True)

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
        """The conversation that a journal has; `refold.Engine` makes it. `holder` names the process in the leases of summary jobs.
        Where the branch is known to be empty, nothing is loaded. A conversation that `finds_twins` shows compactions of other models
        in words; where each request may go to another upstream, whoever makes the request finds them.

        Raises:
            ConfigError: a setting names nothing that exists, or leaves no room.
        """
        made = cls.__new__(cls)
        # A second constructor: it alone calls privates of its own class from outside.
        made._begin(settings, journal, holder=holder, is_empty=is_empty, finds_twins=finds_twins)  # noqa: SLF001
        made._events.conversation, made._events.branch = journal.head.conversation, journal.head.branch  # noqa: SLF001
        return made

    def _begin(
        self,
        settings: ConversationSettings,
        journal: Journal,
        *,
        holder: str,
        is_empty: bool,
        finds_twins: bool,
    ) -> None:
        self._journal, self._is_empty, self._finds_twins = journal, is_empty, finds_twins
        self._state, self.window = state_for(settings)
        """The window's size, and where it is known from."""
        self._is_open = self._is_stale = False
        self._unsettled: Unsettled | None = None
        self._sent: Sent | None = None
        """What the last window was made of, for the call that answers it."""
        self._lock, self._compacting = asyncio.Lock(), asyncio.Lock()
        self._rerunning: asyncio.Task[bool] | None = None
        self._events = EventQueue(settings.on_event, dollars_for)
        self._tools, self._spelling = [*settings.tools], RequestFields()
        self._compactions = Compactions(journal.store, journal.head.owner)
        state = self._state
        author = self._author_of(settings)
        self._jobs = SummaryJobs(
            journal,
            lambda: self._state,
            self._events,
            holder=holder,
            summariser=None if state.frame.policy.recipe.strategy == "extractive" else author,
            price=dollars_for,
            max_spend=settings.max_spend,
        )
        self._jobs.is_awaited = self._compacting.locked
        self._session_summaries = SessionSummaries(journal, self._jobs, lambda: self._state)

    def _author_of(self, settings: ConversationSettings) -> Summariser | None:
        """Who writes summaries by the settings. A model that is given by its name is closed with the conversation."""
        given, state = settings.summariser, self._state
        self._own_author: NamedSummariser | None = None
        if isinstance(given, str):
            from refold.engine.settings import NamedSummariser

            self._own_author = NamedSummariser(given, settings)
            return self._own_author
        return summariser_of(given, state.frame.fixed.dialect, state.counter.text)

    # The commit loop

    async def apply(
        self,
        action: Action,
        *,
        key: str = "",
        chains: Sequence[bytes] = (),
        claims: bytes = b"",
        text_size: int = 0,
        is_blind: bool = False,
        is_brief: bool = False,
    ) -> Outcome:
        """Run an action on the state, and commit what it did.

        `key` is the client's name for the first message that is added; `chains` and `claims` are the hashes of a stateless client's
        history (see `Journal.draft`); `text_size` is how much new text the action reads. An action that writes in any case may be
        `is_blind`: the store is not asked first where the branch is, and refuses the commit if it has moved. One that `is_brief`
        reads no text, however much is held.

        Raises:
            Conflict: other programs were first again and again.
            StoreError: nothing was stored, or the outcome is not known.
        """
        async with self._locked():
            return await self._apply(
                action,
                key=key,
                chains=chains,
                claims=claims,
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
        text_size: int = 0,
        is_blind: bool = False,
        is_brief: bool = False,
    ) -> Outcome:
        for _ in range(MAX_CONFLICTS):
            state = await self._current(asks=not is_blind)
            if state.size != self._journal.head.next_seq:
                self._is_stale = (
                    True  # a defect of ours: the next message would get a number that is not its own
                )
                raise StoreError(
                    "the conversation is not where the store is", hint="try it again: it is loaded anew"
                )

            def act(state: State = state) -> tuple[Outcome, Any]:
                done = action(state)
                draft = self._journal.draft(done, key=key, calls=done.calls, chains=chains, claims=claims)
                return done, draft

            # In a thread where it is much text. An act whose caller is cancelled comes to its end, and is dropped.
            size = 0 if is_brief else text_size + state.text_size
            done, draft = await run_text_act(size, act)
            if draft is not None:
                done = structs.replace(done, state=draft.state)
                place, self._is_stale = self._journal.head.place, True
                try:
                    commit = self._journal.commit_draft(draft)
                    # Without content the state is all there is: a caller that is cancelled waits for the outcome.
                    await (commit if self._journal.keeps_content else settled(commit))
                except Conflict:
                    if key and await self._journal.has_key(key):
                        return done  # the same messages were added at the same time
                    continue
                except BaseException:
                    self._unsettled = Unsettled(place, done.state)
                    raise
                self._is_stale = False
            return await self._take(done)
        raise Conflict("other writers were first again and again", hint="is something writing in a loop?")

    async def _take(self, done: Outcome) -> Outcome:
        """Go on from an outcome that was stored."""
        self._state = state = done.state
        self._events.put(done.events)
        if done.has_skipped:
            self._jobs.note_skipped()
        self._jobs.begin_ahead(done.wanted)
        if done.window is not None:
            # Before anything else happens: what was shown for one call only is known now and never again.
            self._sent = await self._sent_now(state)
            done = structs.replace(done, sent=self._sent)
        return done

    async def _sent_now(self, state: State) -> Sent:
        size = 0 if state.is_sent_as_shown else state.text_size
        return await run_text_act(size, sent_now, self._journal, state)

    async def _current(self, *, asks: bool = True) -> State:
        """The state as the store has it: loaded again where another program has written, or a commit had an unknown outcome."""
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
        return self._jobs.with_prepared(self._state)

    async def _settle(self) -> None:
        """Find out whether a commit of unknown outcome was stored. Where content is stored, a reload tells; where it is not, the state
        is all there is: if the branch has moved by as much as the commit would have moved it, the commit was stored.
        """
        unsettled = self._unsettled
        if unsettled is not None and not self._journal.keeps_content:
            head = await self._journal.current_head()
            if head is not None and head.place != unsettled.place and head.next_seq == unsettled.state.size:
                self._state = unsettled.state
        self._unsettled = None

    async def _load(self) -> None:
        self._is_stale = True
        self._state = await self._journal.load(self._state, is_first=not self._is_open)
        self._take_instructions()
        self._sent, self._is_stale, self._is_open = None, False, True
        await self._find_twins()
        await self._jobs.load()

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the lock, and deliver events once it is released."""
        try:
            async with self._lock:
                yield
        finally:
            self._events.deliver()

    async def _step(self, act: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        """Do what takes several commits, and load what came of it. Called with the lock held."""
        for _ in range(MAX_CONFLICTS):
            state = await self._current()
            self._is_stale = True
            try:
                # Without content the state is all there is: a caller that is cancelled waits for the outcome.
                result = await (act(state) if self._journal.keeps_content else settled(act(state)))
            except Conflict:
                self._unsettled = None  # nothing was stored
                continue
            await self._settle()
            await self._load()
            with suppress(StoreError):  # the act is done: the fill level is stored with the next commit
                await self._journal.store_fill_level(self._state)
            return result
        raise Conflict("other writers were first again and again", hint="is something writing in a loop?")

    async def _read(self, function: Callable[[State], T]) -> T:
        """What a function reads of the state as the store has it."""
        async with self._locked():
            state = await self._current()
        return await run_text_act(state.text_size, function, state)

    def _take_instructions(self) -> None:
        """Go on with the system prompt and the tools that the conversation came in with, where no others were given."""
        fields, fixed = self._journal.instructions.fields, self._state.frame.fixed
        if not fields or (fixed.system and fixed.tools):
            return
        known = fixed_of(read(FIELDS, fields), fixed.dialect)
        told = structs.replace(known, system=fixed.system or known.system, tools=fixed.tools or known.tools)
        if told != fixed:
            self._state = self._state.with_frame(told)
            self._tools = [msgspec.json.decode(tool.raw) for tool in told.tools if tool.raw is not None]

    # Messages

    async def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        """Add what was said: dictionaries, messages of an SDK, or a string for what the user says.

        System messages at the very beginning are taken for the system prompt. What is `sensitive` is sent to your model as ever and
        can be recalled by its handle, and stays out of every summary. What comes with the `key` of messages that were added already
        is not added again: after an error that leaves the outcome open, add it again with the same key.

        Raises:
            WireError: a value is no message of this format.
        """
        if key and await self._journal.has_key(key):
            return

        def act(state: State) -> Outcome:
            said = [read_message(value, state.frame.fixed.dialect) for value in messages]
            return self._added(state, said, sensitive=sensitive)

        await self._add(act, key=key, text_size=text_in(messages))

    def _added(self, state: State, said: list[Message], *, sensitive: bool = False) -> Outcome:
        while said and said[0].role in ("system", "developer") and not state.size:
            state = state.with_frame(_with_prompt(state.frame.fixed, said.pop(0)))
            if sensitive:
                state = structs.replace(state, secrecy=structs.replace(state.secrecy, is_prompt_marked=True))
        return actions.add(state, said, sensitive=sensitive)

    async def _add(self, act: Action, *, key: str = "", text_size: int = 0) -> None:
        first = 0

        def note_first(state: State) -> Outcome:
            nonlocal first
            first = state.size
            return act(state)

        done = await self.apply(note_first, key=key, text_size=text_size)
        for number, names in compactions_since(done.state.folded, first).items():
            self._compactions.note(names, Maker(self._journal.model, "", self.id, self.branch, number))
        await self._compactions.keep(self._journal.clock())

    async def _find_twins(self) -> None:
        """Find what to show instead of compactions that another provider or model made."""
        state, journal = self._state, self._journal
        if self._finds_twins and state.folded.shown.progress.compaction >= 0:
            items = state.folded.items.items
            held = {item.seq: item.message for item in items if holds_compaction(item.message)}
            here = Maker(journal.model, "", self.id, self.branch)
            before = Maker(journal.head.model or journal.model)
            twins = await self._compactions.twins(held, here, state, first_sent_to=before)
            self._state = structs.replace(state, twins=twins)

    async def set_instructions(self, fields: bytes) -> None:
        """Store the request that the conversation came in with, as JSON without its messages: its system prompt and tools serve
        wherever no others are given.
        """

        def act(state: State) -> Outcome:
            return Outcome(state=state)

        async with self._locked():
            await self._current()
            self._journal.instructions = self._journal.instructions.imported(fields)
            self._take_instructions()
            await self._apply(act, text_size=len(fields))

    # Requests

    async def context(self) -> dict[str, Any]:
        """The fields of the next request: its messages, system prompt and tools.

        The dictionaries of messages are given out again with the next context: do not change them. Ask for `max_output` tokens with
        it: where instructions and output leave messages little room, that is less than the conversation was made with.

        Raises:
            DoesNotFit: nothing more can be taken away, and it is still too much.
            InvalidWindow: the messages cannot be sent, such as a call that waits for its result.
        """
        self._warn_of_little_room()
        done, fields = await self._apply_for_fields(actions.context)
        if done.problem is not None:
            raise done.problem
        return fields

    async def record(self, usage: object) -> None:
        """Take in what the provider reported: a reply's `usage`, or the whole reply. None is fine too."""
        reported = read_usage(usage, self._state.frame.fixed.dialect)
        await self.record_call(lambda state: actions.record(state, reported), reported)

    async def record_call(
        self,
        action: Action,
        usage: Usage | None,
        sent: Sent | None = None,
        *,
        call_id: str = "",
        reply: bytes = b"",
        is_blind: bool = False,
    ) -> None:
        """Apply what a call has taught, and store the call with its usage and, unless it is given, what was sent last."""
        async with self._locked():
            before = self._state if self._is_open else await self._current()
            calls: tuple[Call, ...] = ()
            if usage is not None:
                noted = sent or self._sent or await self._sent_now(before)
                calls = (reported_call(self._journal, before, usage, noted, call_id=call_id, reply=reply),)

            def act(state: State) -> Outcome:
                return structs.replace(action(state), calls=calls)

            done = await self._apply(act, is_brief=True, is_blind=is_blind)
        await self._journal.store_learnt(before, done.state)

    async def count(self, upstream: CountingUpstream) -> int | None:
        """How many tokens the provider says that the next request has, before it is sent; None where it cannot say.

        Worth a round trip for a very large request: where it would not fit, the context that is asked for next is smaller.

        Raises:
            UpstreamError: the provider did not answer.
        """
        window = (await self.apply(actions.context)).sendable
        found = await upstream.count(Ask(window.sent, system=window.system, tools=window.fixed.tools))
        if found is not None:
            await self.apply(lambda state: actions.take_count(state, found))
        return found

    async def ask(self, upstream: Upstream, *, max_output: int | None = None) -> Reply:
        """Ask a model what comes next, and add its reply, in the format of the conversation. A refusal as too long is answered with
        a smaller request at once.

        Raises:
            UpstreamError: there is no reply; what was said before stays.
            RecoverySpent: the provider refused every smaller request that could be made too.
        """
        self._warn_of_little_room()
        window, reply = (await self.apply(actions.context)).sendable, None
        while reply is None:
            most = self._state.output if max_output is None else max_output
            if window.output is not None:
                most = min(most, window.output)
            try:
                reply = await upstream.ask(
                    Ask(
                        window.sent, window.system, window.fixed.tools, most or USUAL_OUTPUT, temperature=None
                    )
                )
            except ContextOverflow as error:
                window = (await self._recover(error)).sendable
        await self.record(reply.usage)
        new = sum(one.characters for one in reply.messages)
        dialect = self._state.frame.fixed.dialect
        said = await run_text_work(new, translate_messages, reply.messages, dialect)
        await self._add(lambda state: self._added(state, [*said]), text_size=new)
        return reply

    async def recover(self, error: object) -> dict[str, Any]:
        """The fields of a smaller request, after a provider has refused the last one as too long. No model is asked for it.

        `error` is what an SDK raised, or the body of the answer.

        Raises:
            RecoverySpent: the error is no overflow, or nothing smaller can be sent.
        """
        done = await self._recover(error)
        return await run_text_work(done.state.text_size, self._fields, done.sendable)

    async def _recover(self, error: object) -> Outcome:
        self._jobs.forgive()
        status, body = read_refusal(error)
        return await self.apply(lambda state: actions.recover(state, status, body))

    async def _apply_for_fields(self, action: Action) -> tuple[Outcome, dict[str, Any]]:
        """Apply an action that makes a window, and write the window as the fields of a request."""
        fields: dict[str, Any] = {}

        def act(state: State) -> Outcome:
            nonlocal fields
            done = action(state)
            fields = self._fields(done.window) if done.window else {}
            return done

        return await self.apply(act), fields

    def _fields(self, window: Window) -> dict[str, Any]:
        tools = {"tools": self._tools} if self._tools else {}
        return {**self._spelling.fields(window), **tools}

    def _warn_of_little_room(self) -> None:
        """Log a warning before the first request of a conversation whose messages will have less than a quarter of the window."""
        state = self._state
        if state.window is None and not state.folded.replies and (room := state.tight_room):
            _log.warning("%s", room.warning)

    # Compactions

    async def compact(self, *, keep: int | None = None, focus: str = "") -> dict[str, Any]:
        """Compact now, whatever the thresholds say, and give the fields of the next request. `keep` is how many tokens are to stay,
        `focus` what the summary should give its room to.

        Raises:
            InvalidWindow: it was compacted, and no call can follow yet, such as where the assistant had the last word.
        """
        async with self._locked():
            await self._current()
            asked_at = self._jobs.place
        async with self._compacting:
            place = self._jobs.place if focus else asked_at
            start = self._tell_start("manual", ASKED)
            try:
                if self._jobs.place == place:  # else another task compacted at the same time
                    await self._jobs.have_written(self._wanted_now, focus)
                done, fields = await self._apply_for_fields(
                    partial(self._compacted, place=place, start=start, keep=keep)
                )
            except BaseException as error:
                self._tell_failure(start, error)
                raise
        if done.problem is not None:
            raise done.problem
        return fields

    def _compacted(
        self, state: State, *, place: tuple[object, ...], start: CompactionStart, keep: int | None
    ) -> Outcome:
        if self._jobs.place_of(state) != place:
            done = actions.context(state)
            end = structs.replace(end_of(start, "superseded", OVERTAKEN), after=sized(done.state))
            return structs.replace(done, events=(*done.events, end))
        return _as_part_of(start, actions.compact(state, keep=keep))

    async def _wanted_now(self) -> SummaryRequest | None:
        return await self._read(actions.wanted_now)

    def _tell_start(self, path: Path, reason: str) -> CompactionStart:
        """Tell at once that a compaction begins that may take its time."""
        start = CompactionStart(path=path, reason=reason, before=sized(self._state))
        self._events.put([start])
        self._events.deliver()
        return start

    def _tell_failure(self, start: CompactionStart, error: BaseException) -> None:
        end = end_of(start, "failed", problem_of(error))
        self._events.put([structs.replace(end, after=sized(self._state))])
        self._events.deliver()

    async def undo(self) -> bool:
        """Take back the last change to what is shown in this session; False where there is none."""
        self._jobs.forget()

        async def act(state: State) -> tuple[Compaction, State] | None:
            last = await last_change(self._journal)
            if last is None:
                return None
            await self._journal.undo(state, last)
            return last, state

        async with self._locked():
            undone = await self._step(act)
            if undone is None:
                return False
            change, before = undone
            was, now = sized(self._state, before.folded), sized(self._state)
            decision: Decision = "summarise" if change.kind == "summarise" else "reduce"
            self._events.put([Undone(decision=decision, reason=change.reason, before=was, after=now)])
        return True

    async def rerun(
        self, *, policy: Policy | None = None, summariser: Summariser | SummaryFunction | None = None
    ) -> bool:
        """Do the last compaction of this session again, on the same messages, by another policy or another summariser; False
        where there is none. Until it is done everything else waits; where it is cancelled or fails, the old one is put back.

        Raises:
            SummaryError: no better one could be made.
            StoreError: the conversation was closed meanwhile.
        """
        async with self._compacting:
            task = self._rerunning = asyncio.create_task(self._rerun(policy, summariser))
            try:
                return await task
            except asyncio.CancelledError:
                asking = asyncio.current_task()
                if asking is not None and asking.cancelling():
                    raise
                raise StoreError(
                    "the conversation was closed meanwhile, and its compaction is as it was",
                    hint="open it again to do it once more",
                ) from None

    async def _rerun(self, policy: Policy | None, summariser: Summariser | SummaryFunction | None) -> bool:
        async with self._locked():
            await self._jobs.stop()
            state = await self._current()
            taken, start = Taken(state.folded), self._tell_start("rerun", ASKED)
            try:
                return await self._redo(start, taken, policy, summariser)
            except BaseException as error:
                await self._put_back(taken)
                self._tell_failure(start, error)
                raise

    async def _redo(
        self,
        start: CompactionStart,
        taken: Taken,
        policy: Policy | None,
        summariser: Summariser | SummaryFunction | None,
    ) -> bool:
        cut = await self._take_back(taken)
        if cut is None:
            self._events.put([end_of(start, "skipped", NOTHING)])
            return False
        frame = self._state.frame
        other = structs.replace(frame, policy=policy) if policy else frame
        await self._write_up_to(cut, structs.replace(self._state, frame=other), summariser)

        def act(state: State) -> Outcome:
            done = actions.compact(structs.replace(state, frame=other), cut=cut)
            return _as_part_of(start, structs.replace(done, state=structs.replace(done.state, frame=frame)))

        # Where no call can follow yet, what is shown changes all the same.
        await self._apply(act)
        if self._journal.session.id == taken.base:
            raise SummaryError("nothing is gained by doing it this way; the compaction is as it was")
        return True

    async def _take_back(self, taken: Taken) -> int | None:
        """Undo the last compaction of this session and all that was done since; where it cut, None where there is none.

        What was shortened as it arrived stays short: it was never shown otherwise.
        """
        wanted, is_undone = await last_change(self._journal, "summarise"), False
        while wanted is not None and not is_undone:
            change = await last_change(self._journal, "summarise", "reduce") or wanted
            await self._step(partial(self._journal.undo, change=change))
            taken.changes.append(change)
            is_undone = change.id == wanted.id
        return wanted.cut if wanted else None

    async def _put_back(self, taken: Taken) -> None:
        if not taken.changes:
            return
        try:
            await settled(self._step(lambda state: put_back(self._journal, state, taken)))
        except RefoldError as error:
            _log.warning("a compaction that was taken back could not be put back: %s", error.message)

    async def _write_up_to(
        self, cut: int, state: State, summariser: Summariser | SummaryFunction | None
    ) -> None:
        """Have a summary written of the messages before `cut`, where there is a model for it."""
        given = summariser_of(summariser, state.frame.fixed.dialect, state.counter.text)
        author = given or self._jobs.summariser
        if author is None or state.frame.policy.recipe.strategy == "extractive":
            return
        request = await run_text_act(state.text_size, partial(actions.wanted_now, state, cut))
        if request is None:
            return
        await self._jobs.write(request, author, state=state)
        if not self._jobs.is_ready:
            raise SummaryError(
                "no summary could be had, and the compaction is as it was",
                hint="the model failed, rests after failing, or the money for it is spent; the log says why",
            )

    async def preview(self, *, policy: Policy | None = None) -> Preview:
        """What a compaction would do now, without doing it and without asking any model."""

        def look(state: State) -> Preview:
            frame = structs.replace(state.frame, policy=policy) if policy else state.frame
            return preview_of(state, frame)

        return await self._read(look)

    # Sessions

    async def start_session(self) -> Session:
        """Begin a session that knows nothing of what was said. Nothing is lost: it can be resumed, and recalled. What the one
        before was about is written in the background, where there is a summariser.
        """

        async def act(state: State) -> OpenedSession:
            new = await sessions.cleared(state)
            # Where no content is stored, loading does not tell what is shown: the state has to be at hand once it is stored.
            self._unsettled = Unsettled(self._journal.head.place, new)
            return await sessions.begin_new(self._journal, state, new)

        return (await self._open_session("new", sessions.NEW, act)).session

    async def resume(self, session: Session) -> OpenedSession:
        """Go on with an earlier session: all of it where it fits, else its summary, which is written now where there is only a
        digest, and a summariser.

        Raises:
            NotFound: the session is the open one, was undone, or ends on another branch.
        """
        act = partial(sessions.resume, self._journal, target=session)
        return await self._open_session("resume", sessions.RESUMED, act, session)

    async def _open_session(
        self,
        path: Path,
        reason: str,
        act: Callable[[State], Coroutine[Any, Any, OpenedSession]],
        resumed: Session | None = None,
    ) -> OpenedSession:
        """Close the session and open another, under one lock: a message that is added meanwhile belongs to the new one."""
        async with self._locked():
            await self._current()
            start = self._tell_start(path, reason)
            try:
                if resumed is not None:
                    await self._session_summaries.have_written(resumed)
                job = await self._session_summaries.leave()
                opened = await self._step(act)
            except BaseException as error:
                self._tell_failure(start, error)
                raise
            end = structs.replace(end_of(start, "installed"), after=sized(self._state))
            if opened.carries == "summary":
                end = with_summary(end, self._state.folded.summaries[-1])
            self._events.put([end])
            self._session_summaries.begin(opened.closed, job)
        return opened

    # What can be asked of it

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """The original behind a handle such as `#m12`, or else passages of everything ever said that fit the words.

        Raises:
            NotFound: nothing has this handle.
        """
        async with self._locked():
            state = await self._current()
            try:
                found = await recall.recall(self._journal, state, what)
            except NotFound:
                if is_handle(what):
                    raise
                return await recall.search(self._journal, state, what, max_tokens=max_tokens)
        if isinstance(found, Summary):
            return found.text
        return await run_text_work(found.characters, plain_message, found, state.frame.fixed.dialect)

    async def search(self, words: str, *, max_tokens: int = 1_000) -> str:
        """Passages of everything ever said in the conversation that fit the words, each with its handle."""
        async with self._locked():
            return await recall.search(self._journal, await self._current(), words, max_tokens=max_tokens)

    async def pin(self, handle: str) -> None:
        """Keep a message that is shown, such as `#m12`, as it is: no stage and no summary takes it out until it is unpinned.

        Raises:
            NotFound: there is no such message.
            ConfigError: it is not shown any more.
        """
        await self._set_pin(handle, on=True)

    async def unpin(self, handle: str) -> None:
        """Let a pinned message be shortened and folded again.

        Raises:
            NotFound: there is no such message.
        """
        await self._set_pin(handle, on=False)

    async def pins(self) -> list[str]:
        """The handles of the messages that are pinned."""
        async with self._locked():
            state = await self._current()
            return [handle_of(number) for number in sorted(state.folded.pinned)]

    async def _set_pin(self, handle: str, *, on: bool) -> None:
        found = recall.read_handle(handle)
        if found.kind != "m" or found.part is not None:
            raise NotFound(f"{handle[:40]!r} is no message", hint="pins hold whole messages, such as #m12")

        async def act(state: State) -> None:
            if found.number >= state.size:
                raise NotFound(
                    f"there is no message {found.number}: the conversation has {state.size}",
                    hint="handles look like #m12",
                )
            is_shown = any(item.seq == found.number for item in state.folded.items.items)
            if on and not is_shown:
                raise ConfigError(
                    f"message {found.number} is not shown any more, and a pin would hold nothing",
                    hint="undo the compaction that took it out, or recall it",
                )
            await self._journal.store_pin(state, found.number, on=on)

        async with self._locked():
            await self._step(act)

    async def status(self) -> Status:
        """How full the context is, whether it has to be made smaller, and what was done and spent so far."""
        async with self._locked():
            return await status_of(self._journal, await self._current(), self._jobs.breaker)

    async def diff(self, change: Compaction) -> Difference:
        """What was shown before a change and after it."""
        async with self._locked():
            return await difference(self._journal, await self._current(), change)

    async def window_of(self, call: Call) -> dict[str, Any]:
        """The fields of the request that left with a call.

        Raises:
            NotFound: the call is one that no window was made for.
        """
        async with self._locked():
            window = await sent_with(self._journal, await self._current(), call)
        size = sum(one.characters for one in (*window.system, *window.sent))
        return await run_text_work(size, self._fields, window)

    async def message_usage(self) -> list[MessageTokens]:
        """What is known about the size of each message: reported by the provider, derived from its reports, or counted."""
        async with self._locked():
            await self._current()
            head, store = self._journal.head, self._journal.store
            calls = await store.calls(head.owner, head.conversation, limit=EVERYTHING)
            own = [call for call in calls if call.branch == head.branch]
            return message_tokens(own, await store.messages(head))

    @property
    def id(self) -> str:
        return self._journal.head.conversation

    @property
    def branch(self) -> str:
        return self._journal.head.branch

    @property
    def model(self) -> str:
        return self._journal.model

    @property
    def format(self) -> str:
        return self._state.frame.fixed.dialect.name

    @property
    def size(self) -> int:
        """How many messages the branch has in the store, as far as is known here."""
        return self._journal.head.next_seq

    @property
    def summariser(self) -> Summariser | None:
        """Who writes summaries. Another one takes over with the next; a summary that is being written is not cancelled."""
        return self._jobs.summariser

    @summariser.setter
    def summariser(self, summariser: Summariser | None) -> None:
        self._jobs.summariser = summariser

    @property
    def state(self) -> State:
        """The state after the last act."""
        return self._state

    @property
    def max_output(self) -> int:
        """How many tokens of output to ask for with the last context: as many as the conversation was made with, or fewer where
        the request would not have fitted otherwise.
        """
        return self._state.output

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Everything that was done automatically, with the reason."""
        return self._state.receipts

    @property
    def measurement(self) -> Measurement:
        """The size of the window, region by region."""
        return self._state.measurement

    @property
    def bill(self) -> Bill:
        """What was spent, and what was saved, by the reports so far."""
        return self._state.bill

    # Its life

    def prepare(self, summary: Summary) -> None:
        """Use a summary of the first messages that was written elsewhere, once there is need for one."""
        self._jobs.prepare(summary)

    async def state_at(self, size: int) -> State:
        """The state as it was shown when the branch had `size` messages. It is for reading: nothing is committed from it."""
        async with self._locked():
            state = await self._current()
            return state.showing(await self._journal.shown_at(state, size))

    async def load(self) -> None:
        """Bring the state up to date with the store."""
        async with self._locked():
            await self._settle()
            await self._load()

    async def ready(self) -> None:
        """Wait until no summary is being written. A waiter that is cancelled does not stop the job: it is paid for; `close` does."""
        await self._jobs.wait()
        await self._session_summaries.wait()

    async def close(self) -> None:
        """Stop what goes on in the background; a compaction that is being done again is put back first. No message is lost."""
        await self._session_summaries.stop()
        again = self._rerunning
        if again is not None and not again.done():
            again.cancel()
            await asyncio.wait({again})
        await self._jobs.stop()
        if self._own_author is not None:
            await self._own_author.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _as_part_of(start: CompactionStart, done: Outcome) -> Outcome:
    """The outcome of the switch that ends a compaction which began earlier."""
    *others, end = as_part_of(start, done.events)
    if isinstance(done.problem, DoesNotFit) and isinstance(end, CompactionEnd):
        end = structs.replace(end, outcome="failed", problem=done.problem.message)
    return structs.replace(done, events=(*others, end))


def _with_prompt(fixed: Fixed, message: Message) -> Fixed:
    """One more system message; where a format has a single system prompt, one more part of it."""
    if fixed.dialect.name != "anthropic":
        return structs.replace(fixed, system=(*fixed.system, message))
    before = fixed.system[0] if fixed.system else Message("system", ())
    return structs.replace(fixed, system=(before.with_parts((*before.parts, *message.bare().parts)),))


def _in_memory(settings: ConversationSettings) -> Journal:
    """The journal of a conversation that is gone with its program."""
    from refold.stores.memory.store import MemoryStore

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
