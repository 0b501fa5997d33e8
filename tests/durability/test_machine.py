"""The same random conversations on every store, compared with each other and with a plain list of what was said.

Two programs take turns; sessions are begun, resumed and undone, branches forked and gone on with; every now and then a program
begins anew. After each step all that was said is there, in order, once; the doctor finds nothing; a program that has just begun
is shown what the one that did it is shown; and no store tells another story.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.model.errors import RefoldError
from refold.ports.store import Store
from refold.wire.sdk import plain_message
from tests.contract.stores import StoreSet
from tests.contract.talks import summaries_of
from tests.durability.checks import name_of
from tests.durability.conversations import Author, compacted, names
from tests.durability.notes import OWNER

NAME = "talk"
SIZES = st.sampled_from([10, 10, 60, 300, 4_000])
PROGRAMS = st.integers(0, 1)
THOROUGH = os.environ.get("REFOLD_HYPOTHESIS") == "thorough"
EXAMPLES, STEPS = (60, 40) if THOROUGH else (5, 25)
"""Every step is done six times, by two programs on three stores."""

Act = Callable[[Conversation], Awaitable[Any]]


class World:
    """One store with two programs."""

    def __init__(self, store: Store, preset: str) -> None:
        self.store, self.preset, self._ids, self._times = store, preset, count(), count(1_000)
        self.talks: dict[tuple[str, int], Conversation] = {}

    def engine(self) -> Engine:
        return Engine(
            self.store,
            owner=OWNER,
            summariser=Author(),
            clock=lambda: float(next(self._times)),
            new_id=lambda: f"{next(self._ids):032x}",
            window=1_600,
            max_output=100,
            preset=self.preset,
        )

    async def talk(self, branch: str, program: int) -> Conversation:
        if (branch, program) not in self.talks:
            self.talks[branch, program] = await self.engine().conversation(NAME, branch=branch)
        return self.talks[branch, program]

    async def do(self, branch: str, program: int, act: Act) -> Any:
        """What came of an act: a result, or the kind of error."""
        talk = await self.talk(branch, program)
        try:
            result = await act(talk)
        except RefoldError as error:
            result = type(error).__name__
        await talk.ready()
        return result


class Conversations(RuleBasedStateMachine):
    stores: StoreSet

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opened = self.runner.run(self.stores.open())
        self.said: dict[str, list[str]] = {"": []}
        self.waiting: dict[str, str] = {}
        self.numbers = count()
        self.worlds: list[World] = []

    def teardown(self) -> None:
        self.runner.run(self.stores.close(self.opened))
        self.runner.close()

    @precondition(lambda self: not self.worlds)
    @rule(preset=st.sampled_from(["refold", "refold", "librechat", "lis", "opal", "llms", "picoclaw"]))
    def begin(self, preset: str) -> None:
        self.worlds = [World(store, preset) for store in self.opened]

    def ask(self, question: Callable[[World], Awaitable[Any]]) -> Any:
        """The one answer of all stores."""
        first, *others = [self.runner.run(question(world)) for world in self.worlds]
        assert all(other == first for other in others), (first, others)
        return first

    def do(self, branch: str, program: int, act: Act) -> Any:
        return self.ask(lambda world: world.do(branch, program, act))

    def branch(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.said)))

    def add(self, branch: str, program: int, *messages: dict[str, Any]) -> None:
        assert self.do(branch, program, lambda talk: talk.add(*messages)) is None
        self.said[branch] += names(list(messages))

    def message(self, role: str, size: int, **more: Any) -> dict[str, Any]:
        words = "a line of words that says something\n" * (size // 36 + 1)
        return {"role": role, "content": f"<{next(self.numbers)}> {words}", **more}

    def calling(self, size: int) -> tuple[dict[str, Any], str]:
        which = f"c{next(self.numbers)}"
        call = {"id": which, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return self.message("assistant", size, tool_calls=[call]), which

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS, size=SIZES)
    def take_a_turn(self, data: st.DataObject, program: int, size: int) -> None:
        branch = self.branch(data)
        call, which = self.calling(10)
        result = self.message("tool", size, tool_call_id=which)
        self.waiting.pop(branch, None)
        self.add(branch, program, self.message("user", 10), call, result, self.message("assistant", 60))

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS, size=SIZES, role=st.sampled_from(["user", "assistant"]))
    def say(self, data: st.DataObject, program: int, size: int, role: str) -> None:
        branch = self.branch(data)
        self.waiting.pop(branch, None)
        self.add(branch, program, self.message(role, size))

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS, size=SIZES)
    def call_or_answer(self, data: st.DataObject, program: int, size: int) -> None:
        """A call that waits for its result while other things happen, or its result."""
        branch = self.branch(data)
        if which := self.waiting.pop(branch, None):
            self.add(branch, program, self.message("tool", size, tool_call_id=which))
            return
        call, self.waiting[branch] = self.calling(size)
        self.add(branch, program, self.message("user", 10), call)

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS)
    def context(self, data: st.DataObject, program: int) -> None:
        self.do(self.branch(data), program, Conversation.context)

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS)
    def compact(self, data: st.DataObject, program: int) -> None:
        self.do(self.branch(data), program, compacted)

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS)
    def undo(self, data: st.DataObject, program: int) -> None:
        branch = self.branch(data)
        self.do(branch, program, Conversation.undo)
        # A fork shows what it shares as its base does: programs that have one open see an undo in the base when they open it anew.
        for world in self.worlds:
            world.talks = {key: talk for key, talk in world.talks.items() if key[0] == branch}

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS, tokens=st.integers(1, 2_000))
    def record(self, data: st.DataObject, program: int, tokens: int) -> None:
        usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
        self.do(self.branch(data), program, lambda talk: talk.record(usage))

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS)
    def new(self, data: st.DataObject, program: int) -> None:
        self.do(self.branch(data), program, Conversation.start_session)

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS, which=st.integers(0, 9))
    def resume(self, data: st.DataObject, program: int, which: int) -> None:
        branch = self.branch(data)

        async def resumed(talk: Conversation) -> Any:
            sessions = await talk._journal.store.sessions(OWNER, NAME)
            own = [one for one in sessions if one.branch == talk._journal.head.branch]
            return await talk.resume(own[which % len(own)])

        self.do(branch, program, resumed)

    @precondition(lambda self: self.worlds and len(self.said) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        base = self.branch(data)
        at = data.draw(st.integers(0, len(self.said[base])))

        async def forked(world: World) -> str:
            branch = (await world.talk(base, 0))._journal.head.branch
            return await world.engine().fork(NAME, at, branch=branch)

        new = self.ask(forked)
        self.said[new] = self.said[base][:at]
        if not base:  # the first branch is no longer the one that the name alone means
            self._keep_first()

    def _keep_first(self) -> None:
        """From now on the first branch is asked for by its own name."""

        async def renamed(world: World) -> str:
            name = (await world.talk("", 0))._journal.head.branch
            for program in (0, 1):
                if talk := world.talks.pop(("", program), None):
                    world.talks[name, program] = talk
            return name

        name = self.ask(renamed)
        self.said[name] = self.said.pop("")
        if which := self.waiting.pop("", None):
            self.waiting[name] = which

    @precondition(lambda self: self.worlds)
    @rule(data=st.data(), program=PROGRAMS)
    def begin_again(self, data: st.DataObject, program: int) -> None:
        """The program ends, and another one begins when it is needed."""
        branch = self.branch(data)

        async def ended(world: World) -> int:
            world.talks.pop((branch, program), None)
            return await world.engine().sweep()

        self.ask(ended)

    @precondition(lambda self: self.worlds and any(self.said.values()))
    @rule(data=st.data(), program=PROGRAMS, seq=st.integers(0, 200))
    def recall(self, data: st.DataObject, program: int, seq: int) -> None:
        branch = self.branch(data)
        if said := self.said[branch]:
            seq %= len(said)
            found = self.do(branch, program, lambda talk: talk.recall(f"#m{seq}"))
            assert names([found]) == [said[seq]]

    @invariant()
    def everything_is_there(self) -> None:
        if not self.worlds:
            return
        for branch, said in self.said.items():
            assert self.ask(lambda world, branch=branch: _kept(world, branch)) == said
            self.ask(lambda world, branch=branch: _story(world, branch))
        assert self.ask(lambda world: world.engine().examine(NAME)) == []

    @invariant()
    def a_program_that_has_just_begun_is_shown_the_same(self) -> None:
        for branch in self.said if self.worlds else ():
            first, *others = self.ask(lambda world, branch=branch: _shown(world, branch))
            assert all(other == first for other in others)


async def _kept(world: World, branch: str) -> list[str]:
    head = (await world.talk(branch, 0))._journal.head
    return [name_of(one.body) for one in await world.store.messages(head)]


async def _story(world: World, branch: str) -> Any:
    """All that a store knows about a branch."""
    head, store = (await world.talk(branch, 0))._journal.head, world.store
    return [
        await store.head(OWNER, NAME, head.branch),
        await store.messages(head),
        await store.sessions(OWNER, NAME),
        await store.compactions(OWNER, head.branch),
        await store.latest(head),
        await summaries_of(store, head),
        await store.calls(OWNER, NAME),
    ]


async def _shown(world: World, branch: str) -> list[Any]:
    """What is shown by those who have the branch open, and by one who opens it now."""
    talks = [await world.talk(branch, program) for program in (0, 1)]
    fresh = await world.engine().conversation(NAME, branch=branch)
    for talk in talks:
        await talk.status()
    return [_window(talk) for talk in (*talks, fresh)]


def _window(talk: Conversation) -> Any:
    folded, dialect = talk.state.folded, talk.state.frame.fixed.dialect
    shown = [plain_message(one, dialect) for one in (*folded.lead.messages, *folded.shown.messages())]
    return [one | {"content": str(one["content"])} for one in shown], folded.lead.block


def test_every_store_tells_the_story_as_it_was(store_set):
    machine = type("Told", (Conversations,), {"stores": store_set})
    run_state_machine_as_test(
        machine, settings=settings(settings(), max_examples=EXAMPLES, stateful_step_count=STEPS)
    )
