"""Conversations that outlive the program: the same face as in memory, and a store behind it.

One idea: whoever has a conversation need not know where it is kept. What can be asked of one in memory can be asked here, and
besides it what only a store can answer: what was sent with a call, what a change did, and to go on with an earlier session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from refold.concluding import Concluding
from refold.core.fold import Folded
from refold.core.plan import Decision, SummaryRequest
from refold.core.policy import Policy
from refold.engine import recalling, sessions
from refold.engine.accounts import MessageTokens, message_tokens
from refold.engine.compactions import Compactions, Maker, compactions_since
from refold.engine.hindsight import Difference, difference, is_usual, noted_call, sent_with
from refold.engine.learning import keep_learnt
from refold.engine.lookup import is_handle
from refold.engine.redo import last_change
from refold.engine.sessions import Resumed
from refold.engine.status import Preview, Status, preview_of, status_of
from refold.model.compaction import holds_compaction
from refold.model.errors import InvalidWindow, NotFound
from refold.model.summary import Summary
from refold.ports.store import Call, Compaction, Session
from refold.text_work import run_text_act, run_text_work
from refold.wire.plain import plain_message, read_usage, text_in

__all__ = ["DurableConversation", "Preview", "Status"]

EVERYTHING = 10**9


class DurableConversation(Concluding):
    """One chat in a store. Made by `refold.Engine`."""

    async def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        """Add what was said. What comes with the `key` of something that is there already is not added again, so that an act
        of which nobody knows whether it was kept can be done again.
        """
        if key and await self._has_key(key):
            return
        add = partial(self._talk.add, *messages, sensitive=sensitive)
        await self._take_in(add, text_in(messages), key)

    async def _take_in(self, add: Callable[[], None], new: int, key: str = "") -> None:
        compactions = dict[int, tuple[str, ...]]()

        def act() -> SummaryRequest | None:
            nonlocal compactions
            first = self._talk.memory.folded.size
            ahead = self._then_ahead(add)
            compactions = compactions_since(self._talk.memory.folded, first)
            return ahead

        self._write_ahead(await self._kept(act, key=key, new=new))
        for number, names in compactions.items():
            self._compactions.note(names, Maker(self._journal.model, "", self.id, self.branch, number))
        await self._compactions.keep(self._journal.clock())

    async def _find_twins(self) -> None:
        memory, journal = self._talk.memory, self._journal
        folded = memory.folded
        if folded.shown.progress.compaction >= 0:
            held = {item.seq: item.message for item in folded.items.items if holds_compaction(item.message)}
            here = Maker(journal.model, "", self.id, self.branch)
            before = Maker(journal.seen.model or journal.model)
            memory.twins = await self._compactions.twins(held, here, memory, first_sent_to=before)

    @cached_property
    def _compactions(self) -> Compactions:
        return Compactions(self._journal.store, self._journal.seen.owner)

    async def record(self, usage: object) -> None:
        """Take in what the provider reported, and keep it."""
        memory, journal = self._talk.memory, self._journal
        reported = read_usage(usage, memory.frame.fixed.dialect)
        async with self._one_at_a_time:
            calls = []
            if reported is not None:
                size = 0 if self._sent or is_usual(memory) else memory.text_size
                calls = [await run_text_act(size, noted_call, journal, memory, reported, self._sent)]
            before = memory.calibration.ratio, memory.limits.stated
            await self._keep(lambda: memory.record(reported), calls, is_brief=True)
        await keep_learnt(journal, memory, before)

    async def undo(self) -> bool:
        """Take back the last thing that was done to the context in this session."""
        memory = self._talk.memory
        undone = await self._stepped(self._undo_last)
        if undone is not None:
            change, before = undone
            decision: Decision = "summarise" if change.kind == "summarise" else "reduce"
            memory.telling.undone(memory, before, decision, change.reason)
        return undone is not None

    async def _undo_last(self) -> tuple[Compaction, Folded] | None:
        last, before = await last_change(self._journal), self._talk.memory.folded
        if last is None:
            return None
        await self._journal.undo(self._talk.memory, last)
        return last, before

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """An original by its handle, or passages of everything ever said that fit the words."""
        async with self._reading() as memory:
            try:
                found = await recalling.recall(self._journal, memory, what)
            except NotFound:
                if is_handle(what):
                    raise
                return await recalling.search(self._journal, memory, what, max_tokens=max_tokens)
        if isinstance(found, Summary):
            return found.text
        return await run_text_work(found.characters, plain_message, found, memory.frame.fixed.dialect)

    async def preview(self, *, preset: Policy | None = None) -> Preview:
        """What a compaction would do now, without doing it and without asking any model."""
        return await self._look(lambda: preview_of(self._talk.memory, self._framed(preset)))

    async def compact(self, *, focus: str = "") -> dict[str, Any]:
        """Compact now, on what is there now; see `refold.Conversation.compact`."""
        await self._look_up()
        return await super().compact(focus=focus)

    async def fold(self, *, focus: str = "") -> None:
        """Compact now, also where no call can follow yet because the assistant had the last word."""
        try:
            await self.compact(focus=focus)
        except InvalidWindow:
            await self._kept(lambda: None)

    async def difference(self, change: Compaction) -> Difference:
        """What was shown before a change and after it; see `hindsight.difference`."""
        async with self._reading() as memory:
            return await difference(self._journal, memory, change)

    async def as_sent(self, call: Call) -> dict[str, Any]:
        """The fields of the request that left with a call; see `hindsight.sent_with`."""
        async with self._reading() as memory:
            window = await sent_with(self._journal, memory, call)
            size = sum(one.characters for one in (*window.system, *window.sent))
            return await run_text_act(size, self._talk.fields, window)

    async def came_with(self, fields: bytes) -> None:
        """Keep the request that the conversation came in with, without its messages: its system prompt and tools serve
        wherever no others are given.
        """

        def take() -> None:
            self._journal.instructions.bring(fields)
            self._instruct()

        await self._kept(take, new=len(fields))

    async def accounts(self) -> list[MessageTokens]:
        """What is known about the size of each message: reported by the provider, derived from its reports, or counted."""
        seen, store = self._journal.seen, self._journal.store
        calls = await store.calls(seen.owner, self.id, limit=EVERYTHING)
        own = [call for call in calls if call.branch == seen.branch]
        return message_tokens(own, await store.messages(seen))

    async def new(self) -> Session:
        """Begin a session that knows nothing of what was said. Nothing is lost: it can be resumed, and recalled. What the one
        before was about is written in the background, where there is a summariser.
        """
        await self._look_up()
        memory = self._talk.memory
        with memory.telling.act(memory, "new", sessions.NEW) as act:
            writing = await self._leave()
            opened = await self._stepped(lambda: sessions.begin_new(self._journal, memory))
            act.end("installed")
        self._conclude_later(opened.closed, writing)
        return opened.session

    async def resume(self, session: Session) -> Resumed:
        """Go on with an earlier session: all of it where it fits, else its summary, which is written now where there is only a
        digest, and a summariser.

        Raises:
            NotFound: the session is the open one, was undone, or ends on another branch.
        """
        await self._look_up()
        memory = self._talk.memory
        with memory.telling.act(memory, "resume", sessions.RESUMED) as act:
            await self._have_concluded(session)
            writing = await self._leave()
            opened = await self._stepped(lambda: sessions.resume(self._journal, memory, session))
            act.end("installed")
            if opened.carries == "summary":
                act.written(memory.folded.summaries[-1])
        self._conclude_later(opened.closed, writing)
        return opened

    async def status(self) -> Status:
        """How full the context is, whether it has to be made smaller, and what was done and spent so far."""
        async with self._reading() as memory:
            return await status_of(self._journal, memory, self._breaker)
