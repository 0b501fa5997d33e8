"""A small life of two conversations, with two programs at them and one that dies; everything that is wrong in the end.

This is what a defect has to get past: the doctor's rules, what was acknowledged against what is there, what a program that has
just begun is shown, and what was paid for twice.
"""

from __future__ import annotations

import asyncio

from refold.engine import actions
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.summary_jobs import LEASE_S
from refold.model.errors import RefoldError
from refold.ports.records import Head, StoredSummary
from refold.ports.store import Store
from refold.wire.sdk import plain_message
from tests.contract.talks import summaries_of
from tests.durability.checks import Line, Log, faults_of
from tests.durability.conversations import Author, compacted, engine, names, summarised, turn

NAMES = ("talk", "other")


class PowerFailure(Exception):
    """The program is gone at this point."""


class Life:
    def __init__(self, store: Store) -> None:
        self.store, self.now, self.lines = store, 1_800_000_000.0, list[Line]()
        self.faults: list[str] = []
        self._turns = 0

    def engine(self, author: Author | None = None, **settings) -> Engine:
        return engine(self.store, clock=lambda: self.now, summariser=author, window=100_000, **settings)

    async def say(self, talk: Conversation, turns: int = 1) -> None:
        for _ in range(turns):
            self._turns += 1
            messages = turn(self._turns, 6_000 if talk.id == "other" else 300)
            self.lines.append(Line("intent", talk.id, tuple(names(messages))))
            await talk.add(*messages)
            self.lines.append(Line("said", talk.id, tuple(names(messages))))

    async def live(self) -> list[str]:
        """All of it; what is wrong in the end."""
        try:
            await self._live()
        except (RefoldError, PowerFailure) as error:
            self.faults.append(f"raised: {error!r}")
        try:
            await self._look()
        except RefoldError as error:
            self.faults.append(f"cannot be read: {error!r}")
        return self.faults

    async def _live(self) -> None:
        one, two = await self._begin_at_once()
        other = await self.engine(preset="llms").conversation("other")
        for _ in range(5):
            await self.say(one)
            await self.say(other)
            await self.say(two)
        await asyncio.gather(compacted(one), compacted(two))
        await compacted(other)
        await self.say(two, 3)
        await self._undo_and_redo(one)
        await self._pay_once()
        await self._die()
        await self.say(one, 3)
        await self._begin_anew(two)

    async def _begin_at_once(self) -> list[Conversation]:
        """Two programs find that there is no such conversation, both before either begins it."""
        engines, both_looked = [self.engine(Author()) for _ in range(2)], asyncio.Barrier(2)

        def wait_after_looking(program: Engine) -> None:
            look = program._head

            async def looked(name: str, branch: str = "") -> Head | None:
                program._head = look  # type: ignore[method-assign]
                found = await look(name, branch)
                await both_looked.wait()
                return found

            program._head = looked  # type: ignore[method-assign]

        for program in engines:
            wait_after_looking(program)
        return await asyncio.gather(*(program.conversation("talk") for program in engines))

    async def _undo_and_redo(self, talk: Conversation) -> None:
        await compacted(talk)
        await talk.undo()
        self.faults += [f"after an undo: {one}" for one in await self.engine().examine(talk.id)]
        await self.say(talk)
        await compacted(talk)

    async def _pay_once(self) -> None:
        """A program ends when its summary is written; the next one finds it."""
        author = Author()
        first = await self.engine(author).conversation("talk")
        await self.say(first, 2)
        await summarised(first, author)
        self.now += 3 * LEASE_S
        await compacted(await self.engine(author).conversation("talk"))
        if author.asked > 1:
            self.faults.append("paid twice for the same work")

    async def _die(self) -> None:
        """A program is gone while its summary is written, and the next one sees to it."""
        dead = Author(waits=True)
        talk = await self.engine(dead).conversation("other", preset="refold")
        await self.say(talk, 4)
        lost = asyncio.create_task(compacted(talk))
        await asyncio.wait(
            [lost, asyncio.create_task(dead.is_asked.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        if not dead.asked:
            self.faults.append("nobody was asked for the summary of a program that dies")
        lost.cancel()
        self.store.give_up, given = _no, self.store.give_up  # type: ignore[method-assign]
        await asyncio.gather(lost, return_exceptions=True)
        self.store.give_up = given  # type: ignore[method-assign]
        self.now += 3 * LEASE_S

    async def _begin_anew(self, talk: Conversation) -> None:
        """A new session, with a summary of the one before it left over; then that one again."""
        if actions.wanted_now(talk.state):
            await summarised(talk, Author())
        await talk.start_session()
        await self.say(talk, 2)
        await compacted(talk)
        sessions = await self.engine().sessions("talk")
        closed = [
            one for one in sessions if one.state == "live" and one.last is not None and one.last > one.first
        ]
        await talk.resume(closed[-1])
        await self.say(talk, 2)

    async def _look(self) -> None:
        watcher, log = self.engine(), Log(self.lines)
        await watcher.sweep()
        self.faults += [f"doctor: {one}" for name in NAMES for one in await watcher.examine(name)]
        self.faults += await faults_of(watcher, [log], NAMES, recalled=None)
        for name in NAMES:
            talk = await watcher.conversation(name)
            state = talk.state
            shown = names(
                [plain_message(one, state.frame.fixed.dialect) for one in state.folded.shown.messages()]
            )
            if shown[-4:] != log.said(name)[-4:]:
                self.faults.append(f"{name}: the newest messages are not what is shown last: {shown[-4:]}")
            written = await summaries_of(self.store, talk._journal.head)
            self.faults += [
                f"{name}: the summary {one.id} is of something else" for one in written if _is_wrong(one)
            ]


def _is_wrong(written: StoredSummary) -> bool:
    """Does a summary by our author say that it is about other messages than it stands for? What the user asked for stands before it."""
    if written.summary.kind != "model":
        return False
    said = [line for line in written.summary.text.splitlines() if line.startswith("What was said from")]
    return [int(line.removesuffix(".").rpartition(" ")[2]) for line in said] != [written.summary.last]


async def _no(*_: object, **__: object) -> bool:
    return False
