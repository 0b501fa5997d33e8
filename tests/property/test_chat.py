"""Whatever is typed, aborted, killed and opened again: no message is lost, answered twice, stuck, seen early or out of order.

A machine of one conversation and up to two programs that chat on it. The programs share a store in memory, through a disk that
can be cut off before or after any operation, as kill -9 does. A scripted model answers when the machine lets it.
"""

from __future__ import annotations

import asyncio
import re
import selectors
from collections import Counter
from contextlib import suppress
from itertools import count, pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import refold
from refold.chat.chat import Chat
from refold.chat.tools import ABORTED, INTERRUPTED
from refold.engine.engine import Engine
from refold.model.message import Message, Text, ToolCall
from refold.model.tokens import Usage
from refold.ports.records import CommandEntry, read_stored
from refold.stores.memory import MemoryStore
from refold.wire.reply import Reply
from refold.wire.sse import TextDelta

is_thorough = settings.default.max_examples > 100
CHANGING = ("/new", "/compact", "/prune", "/undo", "/resume", "/model")
READING = ("/status", "/context", "/help", "/nonsense")
MARK = re.compile(r"<\d+>")


class Hours(selectors.DefaultSelector):
    """Lets time pass at once, while nothing can be done before it has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop that waits for nothing, and does the same things in the same order every time."""

    def __init__(self) -> None:
        self._hours = Hours()
        super().__init__(self._hours)

    def time(self) -> float:
        return self._hours.now


class Killed(BaseException):
    """The program is dead: nothing of it reaches the store, the model or a tool any more."""


class Disk:
    """The store as one program sees it, until it is killed: at once, or after some operations."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self.is_dead, self.left = store, False, -1

    def check(self) -> None:
        if self.left > 0:
            self.left -= 1
            self.is_dead |= not self.left
        if self.is_dead:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def act(*given: Any, **named: Any) -> Any:
            self.check()
            await asyncio.sleep(0)
            found = await method(*given, **named)
            self.check()
            await asyncio.sleep(0)
            return found

        return act


class World:
    """What outlives the programs: the store, the clock, the model, and the ledger of the tool."""

    def __init__(self) -> None:
        self.store, self.numbers, self.clock = MemoryStore(), count(), asyncio.get_running_loop().time
        self.permits = asyncio.Semaphore(0)
        self.is_free = False
        """Whether the model answers at once."""
        self.fired: Counter[str] = Counter()

    async def may_answer(self) -> None:
        if not self.is_free:
            await self.permits.acquire()


class Model:
    """Calls a tool if a message says so, and echoes it otherwise."""

    model = "m-1"

    def __init__(self, world: World, disk: Disk) -> None:
        self._world, self._disk = world, disk

    async def stream(self, ask: Any) -> Any:
        self._disk.check()
        await self._world.may_answer()
        self._disk.check()
        last = ask.messages[-1]
        usage = Usage(input=10, output=5)
        if last.role == "user" and last.text.startswith("fire"):
            arguments = f'{{"number":"{MARK.findall(last.text)[-1]}"}}'
            calls = [ToolCall(f"c{next(self._world.numbers)}", name, arguments) for name in ("fire", "look")]
            yield Reply(messages=(Message("assistant", tuple(calls)),), usage=usage)
            return
        for word in (words := ("So it is ", *MARK.findall(last.text), ".")):
            self._disk.check()
            yield TextDelta(word)
            await asyncio.sleep(0)
        yield Reply(messages=(Message("assistant", (Text("".join(words)),)),), usage=usage)


class Program:
    """A program that chats, and the events that it has seen."""

    def __init__(self, world: World) -> None:
        self.disk = Disk(world.store)
        self.ended: Counter[str] = Counter()
        self.put: list[str] = []
        self._world = world

    async def open(self) -> None:
        world, disk = self._world, self.disk

        @refold.tool
        async def fire(number: str) -> str:
            """Must not run twice."""
            await world.may_answer()
            disk.check()
            world.fired[number] += 1
            await asyncio.sleep(0)
            return f"fired {number}"

        @refold.tool(idempotent=True)
        async def look(number: str) -> str:
            """May run again."""
            disk.check()
            return f"seen {number}"

        engine = Engine(disk, model="m-1", window=32_000, clock=lambda: 1_000.0 + world.clock())  # type: ignore[arg-type]
        talk = await engine.conversation("talk")
        self.chat = await Chat(talk, Model(world, disk), tools=[fire, look]).start()  # type: ignore[arg-type]
        self.stream = self.chat.events()
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        async for event in self.stream:
            if isinstance(event, refold.Done):
                self.ended.update(event.entries)
            elif isinstance(event, refold.CommandReply):
                self.ended[event.entry] += 1


class ChatMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.programs: list[Program] = []
        self.typed: list[tuple[str, bool]] = []
        """What was typed, a message by its mark and a command by its text, and whether that was acknowledged."""
        self.loop.set_exception_handler(lambda *_: None)  # what a killed program would have raised

    def run(self, act: Any) -> Any:
        async def within() -> Any:
            async with asyncio.timeout(3_600):
                return await act

        return self.loop.run_until_complete(within())

    # What people and machines do

    @initialize()
    def begin(self) -> None:
        async def make() -> World:
            return World()

        self.world = self.run(make())
        self.open()

    @precondition(lambda self: len(self.programs) < 2)
    @rule()
    def open(self) -> None:
        program = Program(self.world)
        self.run(program.open())
        self.programs.append(program)

    @precondition(lambda self: self.programs)
    @rule(which=st.integers(0, 1), is_fire=st.booleans())
    def send(self, which: int, is_fire: bool) -> None:
        mark = f"<{len(self.typed)}>"
        self.put(which, f"{'fire' if is_fire else 'tell'} {mark}", mark)

    @precondition(lambda self: self.programs)
    @rule(which=st.integers(0, 1), text=st.sampled_from(CHANGING))
    def command(self, which: int, text: str) -> None:
        self.put(which, text, text)

    @precondition(lambda self: self.programs)
    @rule(which=st.integers(0, 1), text=st.sampled_from(READING))
    def look(self, which: int, text: str) -> None:
        self.put(which, text)

    def put(self, which: int, text: str, typed: str = "") -> None:
        program = self.programs[which % len(self.programs)]
        try:
            entry = self.run(program.chat.put(text))
        except Killed:
            self.typed += [(typed, False)] if typed else []
            self.bury(program)
        else:
            self.typed += [(typed, True)] if typed else []
            program.put.append(entry)

    @rule(steps=st.integers(1, 60))
    def pass_time(self, steps: int) -> None:
        async def wait() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.run(wait())

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        """Leases are extended, and those of killed programs expire."""
        self.run(asyncio.sleep(seconds))

    @rule(answers=st.integers(1, 3))
    def answer(self, answers: int) -> None:
        for _ in range(answers):
            self.world.permits.release()
        self.pass_time(30)

    @precondition(lambda self: self.programs)
    @rule(which=st.integers(0, 1))
    def abort(self, which: int) -> None:
        async def act() -> None:
            self.programs[which % len(self.programs)].chat.abort()

        self.run(act())

    @precondition(lambda self: self.programs)
    @rule(which=st.integers(0, 1))
    def close(self, which: int) -> None:
        program = self.programs[which % len(self.programs)]
        with suppress(Killed):
            self.run(program.chat.close())
        if program.disk.is_dead:
            self.bury(program)
        else:
            self.programs.remove(program)

    @precondition(lambda self: self.programs)
    @rule(which=st.integers(0, 1), operations=st.integers(0, 40))
    def kill(self, which: int, operations: int) -> None:
        """Kill a program now, or after some operations of its disk: while it queues, takes, replies, runs tools."""
        program = self.programs[which % len(self.programs)]
        if operations and program.disk.left < 0:
            program.disk.left = operations
            self.pass_time(20)
        if program.disk.is_dead or not operations:
            self.bury(program)

    def bury(self, program: Program) -> None:
        program.disk.is_dead = True
        self.programs.remove(program)
        self.pass_time(3)

    # What must hold

    def stored(self) -> tuple[list[Message], list[str], list[CommandEntry]]:
        """The messages, the queue, and the commands, as the store has them."""

        async def read() -> Any:
            head = await self.world.store.head("local", "talk")
            found = [read_stored(one, head) for one in await self.world.store.messages(head)]
            queue = await self.world.store.queued("local", head.branch)
            waiting = [one.body.decode() for one in queue]
            return found, waiting, await self.world.store.commands("local", head.branch)

        return self.run(read())

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.check()

    def check(self) -> list[Message]:
        messages, waiting, commands = self.stored()
        told = [mark for one in messages if one.role == "user" for mark in MARK.findall(one.text)]
        changed = [one for one in commands if one.text in CHANGING]
        queued = [(MARK.findall(one) or [one])[0] for one in waiting]
        seen = [*told, *queued]
        marks = Counter(one for one in seen if one.startswith("<"))
        assert all(number == 1 for number in marks.values()), "twice"
        lost = [one for one, is_known in self.typed if is_known and one.startswith("<") and one not in marks]
        assert not lost, "lost"
        kept = Counter([one.text for one in changed] + [one for one in queued if not one.startswith("<")])
        known = Counter(one for one, is_known in self.typed if is_known and not one.startswith("<"))
        assert known <= kept, "a command was lost"
        assert kept <= Counter(one for one, _ in self.typed if not one.startswith("<")), "a command ran twice"
        order = [one for one, _ in self.typed]
        places = [order.index(one) for one in marks]
        assert places == sorted(places), "out of order"
        for one, after in pairwise(messages):
            assert not (one.role == after.role == "assistant" and not one.calls), "two replies"
        for number, times in self.world.fired.items():
            asked = sum(number in one.arguments for m in messages for one in m.calls if one.name == "fire")
            assert times <= asked, "fired twice"
        return messages

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.settle()
        finally:
            while tasks := asyncio.all_tasks(self.loop):
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=1))
            self.loop.close()

    def settle(self) -> None:
        """Everything is answered in the end, by whoever is left."""
        self.check()
        self.world.is_free = True
        for _ in range(100):
            self.world.permits.release()
        for program in [*self.programs]:
            if program.disk.left >= 0:
                self.bury(program)
        if not self.programs:
            self.open()
        program = self.programs[0]
        mark = f"<{len(self.typed)}>"

        async def send() -> None:
            async for _ in program.chat.send(f"tell {mark}"):
                pass
            head = await self.world.store.head("local", "talk")
            while await self.world.store.lease_holder("local", head.branch) or any(  # noqa: ASYNC110
                not one.ended[which] for one in self.programs for which in one.put
            ):
                await asyncio.sleep(1)

        self.run(send())
        self.typed.append((mark, True))
        messages = self.check()
        _, waiting, commands = self.stored()
        assert not waiting, "stuck in the queue"
        assert messages[-1].role == "assistant"
        assert mark in messages[-1].text, "it is answered"
        for one in self.programs:
            assert all(one.ended[which] == 1 for which in one.put), "exactly one end"
        self.check_calls(messages)
        self.check_order(messages, [one for one in commands if one.text in CHANGING])

    def check_calls(self, messages: list[Message]) -> None:
        """Every call has one result, and one that says so if the tool did not run."""
        calls = [one.id for message in messages for one in message.calls]
        results = {one.call_id: one.text for message in messages for one in message.results}
        assert sorted(calls) == sorted(one.call_id for message in messages for one in message.results)
        for message in messages:
            for one in message.calls:
                number = MARK.findall(one.arguments)[0]
                if one.name == "fire" and not self.world.fired[number]:
                    assert results[one.id] in (INTERRUPTED, ABORTED, "not run: the reply broke off")

    def check_order(self, messages: list[Message], changed: list[CommandEntry]) -> None:
        """Commands are in their place among the messages, where everything that was typed was acknowledged."""
        if all(is_known for _, is_known in self.typed):
            said = [(n, 1, *MARK.findall(one.text)) for n, one in enumerate(messages) if one.role == "user"]
            merged = sorted([*said, *((one.size, 0, one.text) for one in changed)], key=lambda one: one[:2])
            assert [one[2] for one in merged] == [one for one, _ in self.typed], "out of order"


ChatMachine.TestCase.settings = settings(
    max_examples=settings.default.max_examples * (1 if is_thorough else 2),
    stateful_step_count=60 if is_thorough else 25,
)
TestChat = ChatMachine.TestCase
