"""What is typed during a reply waits in the store, in order and out of sight, and is answered once."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

import refold
from refold.chat import chat as chat_module
from refold.chat.holder import name_holder
from refold.chat.tools import INTERRUPTED
from refold.engine.archive import pack
from refold.engine.engine import Engine
from refold.model.errors import NotFound, StoreError
from refold.ports.records import CommandEntry, QueuedEntry
from refold.testing import ScriptedUpstream, call, echo, say
from tests.chat.chats import FORMATS, Gate, chatting, done, messages, reply_of, said, sent, text_of


async def until(stream, kind, count=1):
    """Read events until so many of a kind came."""
    found = []
    async with asyncio.timeout(20):
        async for event in stream:
            if isinstance(event, kind):
                found.append(event)
                if len(found) == count:
                    return found
    raise AssertionError("the stream ended")


def queued(which: str, text: str, kind: str = "message") -> QueuedEntry:
    body = f'{{"role": "user", "content": "{text}"}}' if kind == "message" else text
    return QueuedEntry(id=which, branch="", kind=kind, body=body.encode(), at=1.0)


async def left_behind(store, *entries: QueuedEntry, crashed: bool = True, said: tuple = ()):
    """What a program left that was killed: messages, a queue, and its lease."""
    engine = Engine(store, model="m-1", window=32_000)
    talk = await engine.conversation("talk")
    for one in said:
        await talk.add(one)
    head = talk.journal.head
    for one in entries:
        await store.enqueue(head, one)
    if crashed:
        await store.lease(head.owner, head.branch, "dead", now=1.0, until=2.0)
    await engine.rest()


async def test_a_message_that_is_stored_while_the_queue_is_read_is_answered(store, monkeypatch):
    """The worker reads an empty queue, and would end; the message comes before it has the answer."""
    read, release, reached, opened = store.queued, store.release, asyncio.Event(), asyncio.Event()
    is_ending = False

    async def read_slowly(owner, branch):
        found = await read(owner, branch)
        if is_ending and not found:
            reached.set()
            await opened.wait()
        return found

    async def release_lease(*lease):
        nonlocal is_ending
        is_ending = bool(server.requests)
        await release(*lease)

    monkeypatch.setattr(store, "queued", read_slowly)
    monkeypatch.setattr(store, "release", release_lease)
    async with (
        asyncio.timeout(20),
        ScriptedUpstream(otherwise=echo) as server,
        chatting(server, store) as chat,
    ):
        stream = chat.events()
        await chat.put("one")
        await until(stream, refold.Done)
        await reached.wait()
        await chat.put("two")
        opened.set()
        (ended,) = await until(stream, refold.Done)
        assert ended.status == "answered"


async def test_an_error_that_nobody_expected_ends_the_message(store, monkeypatch):
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        monkeypatch.setattr(chat.conversation, "add_queued", lambda _: 1 / 0)
        ended = done(await sent(chat, "one"))
        assert (ended.status, ended.problem) == ("failed", "ZeroDivisionError")


@pytest.mark.feature("L12")
async def test_a_message_that_arrives_during_a_reply_waits_and_is_answered_then(store):
    gate = Gate("First.")
    async with ScriptedUpstream(gate, "Second.") as server, chatting(server, store) as chat:
        stream = chat.events()
        await chat.put("one zanzibar")
        await gate.reached.wait()
        await chat.put("two madagascar")
        await chat.put("three")
        head = chat.conversation.journal.head

        assert await said(chat.conversation) == [("user", "one zanzibar")], "invisible"
        assert await chat.conversation.search("madagascar") == ""
        assert chat.conversation.size == 1
        assert "madagascar" not in str(await chat.conversation.context())
        assert "madagascar" not in str(await chat.history())
        assert [one.messages for one in await store.conversations(head.owner)] == [1]
        assert [one.body.decode() for one in await store.queued(head.owner, head.branch)][1].endswith(
            '"three"}'
        )

        gate.opened.set()
        ended = await until(stream, refold.Done, 2)

        assert [len(one.entries) for one in ended] == [1, 2]
        assert await said(chat.conversation) == [
            ("user", "one zanzibar"),
            ("assistant", "First."),
            ("user", "two madagascar"),
            ("user", "three"),
            ("assistant", "Second."),
        ]
        assert len(server.requests) == 2, "both are answered by one reply"


async def test_queued_messages_are_not_exported(store):
    await left_behind(store, queued("q", "madagascar"), said=("one",), crashed=False)
    archive = b"".join([line async for line in pack(store, ["local"])])
    assert (b"one" in archive, b"madagascar" in archive) == (True, False)


async def test_quick_messages_become_one_turn(store):
    async with ScriptedUpstream("All three.") as server, chatting(server, store, debounce_s=1.0) as chat:
        stream = chat.events()
        for text in ("one", "two", "three"):
            await chat.put(text)
        (ended,) = await until(stream, refold.Done)

        assert len(ended.entries) == 3
        assert [role for role, _ in await said(chat.conversation)] == ["user", "user", "user", "assistant"]


async def test_typing_resets_the_timer():
    async with ScriptedUpstream("Yes.") as server, chatting(server, debounce_s=1.0) as chat:
        stream = chat.events()
        await chat.put("one")
        for _ in range(12):  # longer than the debounce, in pieces that are shorter
            chat.typing()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.1)
        assert not server.requests
        await until(stream, refold.Done)
        assert len(server.requests) == 1


async def test_a_command_skips_the_debounce():
    async with ScriptedUpstream() as server, chatting(server, debounce_s=3_600.0) as chat:
        stream = chat.events()
        first = await chat.put("one")
        assert "Context" in str([one async for one in chat.send("/status")])
        second = await chat.put("/new")
        (ended,) = await until(stream, refold.Done)
        assert (ended.entries, ended.status) == ((first,), "unanswered"), "the last entry is a command"
        (replied,) = await until(stream, refold.CommandReply)
        assert replied.entry == second
        assert not server.requests


async def test_abort_during_the_debounce_stores_the_messages_without_a_reply():
    async with ScriptedUpstream() as server, chatting(server, debounce_s=3_600.0) as chat:
        stream = chat.events()
        await chat.put("one")
        for _ in range(1_000):
            if chat.abort():
                break
            await asyncio.sleep(0)
        (ended,) = await until(stream, refold.Done)
        assert ended.status == "aborted"
        assert await said(chat.conversation) == [("user", "one")]


@pytest.mark.feature("L12")
async def test_what_a_crash_left_in_the_queue_is_answered_once_in_order(store):
    await left_behind(store, queued("a", "one"), queued("b", "two"))
    async with ScriptedUpstream(otherwise=echo) as server:
        async with chatting(server, store) as chat:
            events = await sent(chat, "three")
            assert text_of(events) == "three"
            assert [role for role, _ in await said(chat.conversation)][-1] == "assistant"
        asked = len(server.requests)
        async with chatting(server, store) as chat:
            await sent(chat, "/status")
        assert len(server.requests) == asked, "and not again"
        texts = [text for role, text in await said(chat.conversation) if role == "user"]
        assert texts == ["one", "two", "three"]


async def test_a_message_without_a_reply_is_answered_after_a_crash_only(store):
    await left_behind(store, said=("one",), crashed=False)
    async with ScriptedUpstream(otherwise=echo) as server:
        async with chatting(server, store) as chat:
            await sent(chat, "/new")
        assert not server.requests, "nobody crashed: the person may go on as they like"


async def test_a_reply_that_was_lost_in_a_crash_is_asked_for_again(store):
    await left_behind(store, said=("one",))
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await until(stream, refold.Done)
        assert await said(chat.conversation) == [("user", "one"), ("assistant", "one")]


async def test_a_reply_that_was_lost_in_a_crash_is_owed_until_something_came_of_it(store):
    """A chat that is closed before the first word has not answered; one that is aborted has."""
    await left_behind(store, said=("one",))
    closed, aborted = Gate("Never."), Gate("Never.")
    async with ScriptedUpstream(closed, aborted, otherwise=echo) as server:
        async with chatting(server, store):
            await closed.reached.wait()
        async with chatting(server, store) as chat:
            stream = chat.events()
            await aborted.reached.wait()
            assert chat.abort()
            (ended,) = await until(stream, refold.Done)
            assert (ended.entries, ended.status) == ((), "aborted")
        assert await said(chat.conversation) == [("user", "one")]
        async with chatting(server, store) as chat:
            await sent(chat, "/new")
        assert len(server.requests) == 2


async def test_a_chat_that_is_closed_while_calls_of_a_crash_run_again_owes_the_reply(store):
    started, goes_on = asyncio.Event(), asyncio.Event()

    @refold.tool(idempotent=True)
    async def look() -> str:
        """Look out."""
        started.set()
        await goes_on.wait()
        return "a ship"

    await left_behind(store, said=("go", CALLS))
    async with ScriptedUpstream(otherwise="I see.") as server:
        async with chatting(server, store, tools=[look]):
            await started.wait()
        assert not server.requests
        async with chatting(server, store, tools=[look]) as chat:
            await until(chat.events(), refold.Done)
            assert (await said(chat.conversation))[-1] == ("assistant", "I see.")
        async with chatting(server, store, tools=[look]) as chat:
            await sent(chat, "/status")
        assert len(server.requests) == 1


CALLS = {"role": "assistant", "content": None, "tool_calls": [
    {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
    for n, name in enumerate(("look", "fire", "gone"))
]}  # fmt: skip


async def test_calls_that_were_open_at_a_crash_are_not_run_again_unless_they_are_idempotent(store):
    ran = []

    @refold.tool(idempotent=True)
    def look() -> str:
        """Look out."""
        ran.append("look")
        return "a ship"

    @refold.tool
    def fire() -> str:
        """Fire."""
        ran.append("fire")
        return "boom"

    await left_behind(store, said=("go", CALLS))
    async with ScriptedUpstream("I see.") as server, chatting(server, store, tools=[look, fire]) as chat:
        stream = chat.events()
        await until(stream, refold.Done)

        assert ran == ["look"]
        assert [one.text for message in await messages(chat.conversation) for one in message.results] == [
            "a ship",
            INTERRUPTED,
            INTERRUPTED,
        ]
        assert (await said(chat.conversation))[-1] == ("assistant", "I see.")


@pytest.mark.feature("L12")
async def test_a_message_behind_new_lands_in_the_new_session(store):
    gate = Gate("First.")
    async with ScriptedUpstream(gate, otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await chat.put("one")
        await gate.reached.wait()
        await chat.put("two")
        await chat.put("/new")
        await chat.put("three")
        gate.opened.set()
        ended = await until(stream, refold.Done, 3)

        assert [one.status for one in ended] == ["answered", "unanswered", "answered"]
        assert server.requests[-1].messages[0].text == "three"
        assert len(server.requests[-1].messages) == 1, "nothing of the old session"
        session = chat.conversation.journal.session
        assert (session.kind, session.first) == ("new", 3)


async def test_a_queued_command_of_a_crash_is_run_in_its_place(store):
    await left_behind(store, queued("a", "one"), queued("n", "/new", "command"), queued("b", "two"))
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await until(stream, refold.Done, 2)
        assert [len(one.messages) for one in server.requests] == [1]
        assert server.requests[0].text == "two"
        assert [getattr(one, "text", "") for one in await chat.history()] == ["", "/new", "", ""]


async def test_a_command_that_may_have_run_is_not_repeated_unless_that_is_harmless(store):
    await left_behind(store, queued("u", "/undo", "command"), queued("n", "/new", "command"), said=("one",))
    engine = Engine(store)
    head = (await engine.conversation("talk")).journal.head
    await store.begin_command(head.owner, "u")
    await store.begin_command(head.owner, "n")
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        undo, new = await until(stream, refold.CommandReply, 2)
        assert undo.text == INTERRUPTED
        assert new.text.startswith("✨ New session started.")


async def test_of_two_programs_one_answers(store):
    gate = Gate("First.")
    async with ScriptedUpstream(gate, otherwise=echo) as server:
        async with (
            chatting(server, store, lease_s=4.0) as one,
            chatting(server, store, lease_s=4.0) as other,
        ):
            mine = one.events()
            await one.put("one")
            await gate.reached.wait()
            waiting = other.events()
            theirs = asyncio.create_task(sent(other, "two"))
            await until(waiting, refold.Queued)
            gate.opened.set()
            await until(mine, refold.Done)
            ended = done(await theirs)  # either program may answer the second message
            if ended.status == "elsewhere":
                await until(mine, refold.Done)

        assert len(server.requests) == 2
        assert ended.status in ("elsewhere", "answered")
        found = await said(one.conversation)
        assert [role for role, _ in found] == ["user", "assistant", "user", "assistant"]


async def test_a_message_of_another_program_is_shown_before_its_reply(store):
    """Of a program that has crashed, or that waits."""
    await left_behind(store, queued("a", f"Is {'anybody ' * 40}there?"))
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        first, *_ = await until(chat.events(), refold.Notice | refold.TextDelta, 2)
        assert isinstance(first, refold.Notice)
        assert first.text == f"📨 Not typed here: {('Is ' + 'anybody ' * 40)[:200]}…"
        own = await sent(chat, "And here?")
        assert not [event for event in own if isinstance(event, refold.Notice)]


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_program_that_lost_its_lease_stores_no_second_reply(wire, store):
    """One that was suspended, and woke up after another had answered in its place."""
    late, clock = Gate("Late."), [0.0]
    async with (
        ScriptedUpstream(late, "In time.") as server,
        chatting(server, store, wire=wire, conversation={"clock": lambda: clock[0]}) as sleeper,
    ):
        mine = sleeper.events()
        await sleeper.put("one")
        await late.reached.wait()
        clock[0] = 1_000.0
        async with chatting(server, store, wire=wire, conversation={"clock": lambda: clock[0]}) as other:
            theirs = other.events()
            if not server.requests[1:]:
                await until(theirs, refold.Done)
        late.opened.set()
        (ended,) = await until(mine, refold.Done)
        assert ended.status == "elsewhere"
        assert await said(sleeper.conversation) == [("user", "one"), ("assistant", "In time.")]


async def test_what_is_queued_when_a_chat_is_closed_is_answered_when_it_is_opened_again(store):
    gate = Gate("First.")
    async with ScriptedUpstream(gate, otherwise=echo) as server:
        async with chatting(server, store) as chat:
            await chat.put("one")
            await gate.reached.wait()
            await chat.put("two")
        assert [text for _, text in await said(chat.conversation)] == ["one"]
        async with chatting(server, store) as chat:
            await until(chat.events(), refold.Done)
            assert (await said(chat.conversation))[-2:] == [("user", "two"), ("assistant", "two")]


async def test_a_message_that_arrives_during_a_tool_call_waits_for_the_end_of_the_reply(store):
    started, goes_on = asyncio.Event(), asyncio.Event()

    @refold.tool
    async def dig() -> str:
        """Dig."""
        started.set()
        await goes_on.wait()
        return "gold"

    script = say(call("dig", id="c1")), "Found gold.", "Yes."
    async with ScriptedUpstream(*script) as server, chatting(server, store, tools=[dig]) as chat:
        stream = chat.events()
        await chat.put("dig")
        await started.wait()
        await chat.put("found it?")
        goes_on.set()
        await until(stream, refold.Done, 2)
        assert [role for role, _ in await said(chat.conversation)] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip


async def test_a_message_that_is_stored_while_the_debounced_queue_is_read_resets_the_timer(
    store, monkeypatch
):
    """The worker reads the queue for the debounce; a command comes before it has the answer, and must not wait."""
    read, is_slow, reached, opened = store.queued, True, asyncio.Event(), asyncio.Event()

    async def read_slowly(owner, branch):
        nonlocal is_slow
        found = await read(owner, branch)
        if is_slow and found and reads.append(1) is None and len(reads) == 2:
            is_slow = False
            reached.set()
            await opened.wait()
        return found

    reads: list[int] = []
    monkeypatch.setattr(store, "queued", read_slowly)
    async with (
        asyncio.timeout(20),
        ScriptedUpstream() as server,
        chatting(server, store, debounce_s=3_600.0) as chat,
    ):
        stream = chat.events()
        await chat.put("one")
        await reached.wait()
        await chat.put("/new")
        opened.set()
        await until(stream, refold.CommandReply)


async def test_a_message_that_another_program_takes_at_once_ends(store, monkeypatch):
    """It has left the queue before this program has looked into it."""
    enqueue, engine = store.enqueue, Engine(store, model="m-1", window=32_000)
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        other = await engine.conversation("talk")
        head, now = other.journal.head, other.journal.clock()
        lease = (head.owner, head.branch, "another")
        while await store.lease(*lease, now=now, until=now + 3_600) is None:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)

        async def taken_at_once(head, entry):
            await enqueue(head, entry)
            await other.add_queued([entry])
            await store.release(*lease)

        monkeypatch.setattr(store, "enqueue", taken_at_once)
        assert done(await sent(chat, "one")).status == "elsewhere"
        assert await said(chat.conversation) == [("user", "one")]
    await engine.rest()


async def test_a_reply_that_a_crash_cut_off_comes_before_what_waits(store):
    """As without the crash: the reply was being produced when the rest was typed."""
    await left_behind(store, queued("n", "/compact", "command"), queued("b", "two"), said=("one",))
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await until(stream, refold.Done, 2)
        assert [text for _, text in await said(chat.conversation)] == ["one", "one", "two", "two"]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_message_before_a_command_stays_unanswered_after_a_crash(store, is_kept):
    await left_behind(store, queued("c", "/compact", "command"), said=("one",))
    engine = Engine(store)
    talk = await engine.conversation("talk")
    head = talk.journal.head
    await store.begin_command(head.owner, "c")
    if is_kept:
        entry = CommandEntry(
            id="c", branch=head.branch, session=head.session, size=1, text="/compact", reply="Done."
        )
        await store.keep_command(head.owner, entry)
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        assert text_of(await sent(chat, "two")) == "two"
        assert [text for _, text in await said(chat.conversation)] == ["one", "two", "two"]
    await engine.rest()


async def test_a_command_that_fails_does_not_block_the_queue(store):
    async def fail(_):
        raise ValueError("no wind")

    async def leave(_):
        raise SystemExit(3)

    own = [
        refold.Command(name="/sail", summary="fail", run=fail),
        refold.Command(name="/leave", summary="fail", run=leave),
        refold.Command(name="/look", summary="fail", run=fail, is_immediate=True),
    ]
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store, commands=own) as chat:
        assert reply_of(await sent(chat, "/sail")) == "⚠️ /sail failed: ValueError: no wind"
        assert reply_of(await sent(chat, "/leave")) == "⚠️ /leave failed: SystemExit: 3"
        assert reply_of(await sent(chat, "/look")) == "⚠️ /look failed: ValueError: no wind"
        assert text_of(await sent(chat, "one")) == "one"


async def test_a_command_that_hangs_does_not_keep_the_chat_from_closing(store, monkeypatch):
    monkeypatch.setattr(chat_module, "CLOSE_S", 0.05)
    ran, hangs, started = [], True, asyncio.Event()

    async def hang(_):
        ran.append(1)
        started.set()
        await asyncio.Event().wait() if hangs else None
        return "Done."

    own = [refold.Command(name="/hang", summary="wait", run=hang)]
    async with asyncio.timeout(20), ScriptedUpstream(otherwise=echo) as server:
        async with chatting(server, store, commands=own) as chat:
            await chat.put("/hang")
            await started.wait()
            await chat.put("one")
        hangs = False
        async with chatting(server, store, commands=own) as chat:
            await until(chat.events(), refold.Done)
            assert len(ran) == 2, "it runs again, as after a crash"
            assert [text for _, text in await said(chat.conversation)] == ["one", "one"]


async def test_calls_that_an_error_of_the_store_left_open_get_a_result(store, monkeypatch):
    """The conversation is valid again before the next message is added."""

    @refold.tool
    def fire() -> str:
        """Fire."""
        return "boom"

    script = say(call("fire", id="c1")), "Yes."
    async with ScriptedUpstream(*script) as server, chatting(server, store, tools=[fire]) as chat:
        with monkeypatch.context() as patched:
            patched.setattr(chat.conversation, "add_results", broken)
            ended = done(await sent(chat, "one"))
            assert ended.status == "failed"
            assert ended.problem.startswith("the disk is full")
        assert text_of(await sent(chat, "two")) == "Yes."
        assert [text for _, text in await said(chat.conversation)] == [
            "one", "fire", "boom", "two", "Yes.",
        ]  # fmt: skip


async def broken(*_, **__):
    raise StoreError("the disk is full")


async def test_an_abort_right_after_a_message_is_not_lost(store):
    """The reply has not begun: the message is stored without one, and the next one is answered."""
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await chat.put("one")
        assert chat.abort()
        await chat.put("two")
        ended = await until(stream, refold.Done)
        if len(ended[0].entries) == 1:
            assert ended[0].status == "aborted"
            ended = await until(stream, refold.Done)
        assert ended[0].status == "answered"
        assert [text for _, text in await said(chat.conversation)] == ["one", "two", "two"]
        assert not chat.abort()


async def test_a_caller_that_is_cancelled_while_its_message_is_stored_leaves_nothing_stuck(
    store, monkeypatch
):
    enqueue, reached, opened = store.enqueue, asyncio.Event(), asyncio.Event()

    async def store_slowly(head, entry):
        reached.set()
        await opened.wait()
        await enqueue(head, entry)

    async with (
        asyncio.timeout(20),
        ScriptedUpstream(otherwise=echo) as server,
        chatting(server, store) as chat,
    ):
        stream = chat.events()
        monkeypatch.setattr(store, "enqueue", store_slowly)
        putting = asyncio.create_task(chat.put("one"))
        await reached.wait()
        putting.cancel()
        await asyncio.sleep(0)
        opened.set()
        with pytest.raises(asyncio.CancelledError):
            await putting
        await until(stream, refold.Done)
        assert [text for _, text in await said(chat.conversation)] == ["one", "one"]


async def test_the_lease_of_a_program_that_was_killed_here_is_free_at_once(store):
    """Nobody waits until it expires."""
    engine = Engine(store, model="m-1", window=32_000)
    talk = await engine.conversation("talk")
    await talk.add("one")
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await child.wait()
    machine, _, _, suffix = name_holder("x").split(".")
    holder = f"{machine}.{child.pid}.1.{suffix}"
    head, now = talk.journal.head, time.time()
    await store.lease(head.owner, head.branch, holder, now=now, until=now + 3_600)
    await engine.rest()
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        await until(chat.events(), refold.Done)
        assert await said(chat.conversation) == [("user", "one"), ("assistant", "one")]


async def test_messages_that_waited_during_a_reply_are_not_debounced_again():
    gate = Gate("First.")
    clock = [0.0]
    async with (
        ScriptedUpstream(gate, otherwise=echo) as server,
        chatting(server, debounce_s=60.0, conversation={"clock": lambda: clock[0]}) as chat,
    ):
        stream = chat.events()
        await chat.put("one")
        clock[0] = 61.0
        chat.typing()
        clock[0] = 122.0
        chat._stirred.set()
        await gate.reached.wait()
        await chat.put("two")
        clock[0] = 200.0
        gate.opened.set()
        await until(stream, refold.Done, 2)
        assert len(server.requests) == 2


async def test_the_end_of_a_conversation_is_told(store):
    gate = Gate("Never.")
    async with ScriptedUpstream(gate, otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await chat.put("one")
        await gate.reached.wait()
        head = chat.conversation.journal.head
        await store.delete(head.owner, head.conversation)
        gate.opened.set()
        (ended,) = await until(stream, refold.Done)
        assert ended.status == "failed"
        with pytest.raises(NotFound):
            await chat.put("two")
