"""A chat streams, runs tools, and leaves a valid conversation whatever happens."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from itertools import permutations

import pytest
from msgspec import structs

import refold
from refold.chat import chat as chat_module
from refold.chat.chat import CallUsage, Queued, ToolEnded, ToolStarted
from refold.core.pairs import repair
from refold.core.presets import PRESETS
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError
from refold.testing import Broken, Refuse, ScriptedUpstream, Slow, call, say, think
from refold.wire.sse import ReasoningDelta
from tests.chat.chats import FORMATS, Gate, chatting, done, messages, provider, results, said, sent, text_of

every_format = pytest.mark.parametrize("wire", FORMATS)


@refold.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def valid(chat, wire):
    found = await messages(chat.conversation)
    assert repair(found, DIALECTS[wire]).messages == tuple(found), "there is nothing to repair"
    calls = [one.id for message in found for one in message.calls]
    answered = [one.call_id for message in found for one in message.results]
    assert sorted(calls) == sorted(answered)


@every_format
async def test_a_reply_is_streamed_and_kept(wire):
    async with (
        ScriptedUpstream("It is a harbour at the end of the sea.") as server,
        chatting(server, wire=wire) as chat,
    ):
        events = await sent(chat, "What is it?")

        assert text_of(events) == "It is a harbour at the end of the sea."
        assert len([one for one in events if hasattr(one, "text")]) > 1, "piece by piece"
        assert done(events).status == "answered"
        assert await said(chat.conversation) == [
            ("user", "What is it?"),
            ("assistant", "It is a harbour at the end of the sea."),
        ]


@every_format
async def test_tools_are_run_until_the_model_calls_none(wire):
    script = (
        say("Let me see.", call("add", {"a": 2, "b": 3}, id="c1"), call("add", {"a": 4, "b": 5}, id="c2")),
        say(call("add", {"a": 5, "b": 9}, id="c3")),
        "It is 14.",
    )
    async with ScriptedUpstream(*script) as server, chatting(server, wire=wire, tools=[add]) as chat:
        events = await sent(chat, "What is 2 + 3 + 4 + 5?")

        assert sorted(results(events)) == ["14", "5", "9"]
        assert [one.name for one in events if isinstance(one, ToolStarted)] == ["add"] * 3
        assert text_of(events).endswith("It is 14.")
        assert len(server.requests) == 3
        await valid(chat, wire)
        results_sent = [one for message in server.requests[2].messages for one in message.results]
        assert [one.text for one in results_sent] == ["5", "9", "14"]


@pytest.mark.parametrize("own, theirs", [*permutations(FORMATS, 2)])
async def test_the_format_of_the_conversation_may_be_another_one_than_the_provider_s(own, theirs):
    calls = say("Let me see.", call("add", {"a": 2, "b": 3}, id="c1"), call("add", {"a": 4, "b": 5}, id="c2"))
    async with (
        ScriptedUpstream(calls, "5 and 9.", "Yes.", strict=True) as server,
        refold.Engine("memory:", model="m-1", window=32_000) as engine,
    ):
        talk = await engine.conversation("talk", format=own)
        async with refold.Chat(talk, provider(server, theirs), tools=[add]) as chat:
            events = await sent(chat, "What is 2 + 3, and 4 + 5?")
            assert sorted(results(events)) == ["5", "9"]
            assert done(events).status == "answered"
            assert text_of(await sent(chat, "Sure?")) == "Yes."
            await valid(chat, own)


@pytest.mark.feature("L18")
@every_format
async def test_the_usage_of_every_call_of_the_loop_is_recorded(wire):
    script = [say(call("add", {"a": n, "b": 1}, id=f"c{n}")) for n in range(4)]
    async with ScriptedUpstream(*script, "Done.") as server, chatting(server, wire=wire, tools=[add]) as chat:
        events = await sent(chat, "Count.")
        reported = [one.usage for one in events if isinstance(one, CallUsage)]
        head = chat.conversation.journal.head
        calls = await chat.conversation.journal.store.calls(head.owner, head.conversation)

        assert len(reported) == 5
        assert [one.usage for one in calls] == reported
        assert all(usage.prompt and usage.output for usage in reported)


@every_format
@pytest.mark.parametrize(
    ("answer", "notice"),
    [
        (say("The tide co", finish="length"), "✂️ The reply is cut: "),
        (say(finish="length"), "✂️ The reply is cut: "),
        (say(), "∅ The reply is empty"),
        (say(" \n"), "∅ The reply is empty"),
    ],
)
async def test_a_reply_that_is_cut_or_empty_is_told(wire, answer, notice):
    async with ScriptedUpstream(answer, "Whole.") as server, chatting(server, wire=wire) as chat:
        for text, told in (("one", [notice]), ("two", [])):
            events = await sent(chat, text)
            notices = [one.text for one in events if isinstance(one, refold.Notice) and one.event is None]
            assert [one[: len(notice)] for one in notices] == told
            assert done(events).status == "answered"


@pytest.mark.parametrize(
    "content",
    [
        "",
        " \n\t",
        "\u200b\u2060",
        [],
        [{"type": "text", "text": "  "}],
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
    ],
)
async def test_nothing_is_not_sent(content):
    async with ScriptedUpstream() as server, chatting(server) as chat:
        with pytest.raises(ConfigError, match="there is nothing to send"):
            await sent(chat, content)
        assert await chat.conversation.journal.store.queued("local", chat.conversation.branch) == []
        assert server.requests == []


async def test_reasoning_is_streamed_apart_from_the_text():
    async with (
        ScriptedUpstream(say(think("I wonder."), "It is."), otherwise="x") as server,
        chatting(server, wire="anthropic") as chat,
    ):
        events = await sent(chat, "Is it?")
        assert "".join(one.text for one in events if isinstance(one, ReasoningDelta)) == "I wonder."
        assert text_of(events) == "It is."


async def test_parallel_calls_run_together_up_to_the_limit():
    running, most, both = 0, 0, asyncio.Event()

    @refold.tool
    async def meet(name: str) -> str:
        """Wait for another call."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await both.wait()
        running -= 1
        return name

    calls = say(*(call("meet", {"name": f"n{n}"}, id=f"c{n}") for n in range(5)))
    async with (
        ScriptedUpstream(calls, "Met.") as server,
        chatting(server, tools=[meet], parallel_tools=2) as chat,
    ):
        events = await sent(chat, "Meet.")

        assert most == 2
        assert sorted(results(events)) == [f"n{n}" for n in range(5)]
        stored = [one.text for message in await messages(chat.conversation) for one in message.results]
        assert stored == [f"n{n}" for n in range(5)], "in the order of the calls"


@every_format
async def test_what_goes_wrong_in_a_tool_is_told_to_the_model(wire):
    hang = threading.Event()

    @refold.tool(timeout_s=0.05)
    def sleep() -> str:
        """Never end."""
        hang.wait()
        return ""

    @refold.tool
    def fail() -> str:
        """Raise."""
        raise ValueError("no such ship")

    @refold.tool
    def shout() -> str:
        """Give too much."""
        return "a" * 1_200_000

    script = say(
        call("sleep", id="c1"),
        call("fail", id="c2"),
        call("shout", id="c3"),
        call("nothing", id="c4"),
        call("add", '{"a": 1}', id="c5"),
    )
    async with (
        ScriptedUpstream(script, "I see.", window=None) as server,
        chatting(server, wire=wire, tools=[sleep, fail, shout, add]) as chat,
    ):
        events = await sent(chat, "Try.")
        hang.set()
        found = {one.call_id: one.text for one in events if isinstance(one, ToolEnded)}

        assert found["c1"] == "error: no result after 0.05 s; it may still be running"
        assert found["c2"] == "error: ValueError: no such ship"
        assert found["c3"].endswith(
            "[cut: the result has 1,200,000 characters; these are the first 1,000,000]"
        )
        assert found["c4"].startswith("error: there is no tool 'nothing'; the tools are: recall, sleep")
        assert found["c5"].startswith("error: the arguments do not fit: Object missing required field `b`")
        assert done(events).status == "answered"
        await valid(chat, wire)


async def test_arguments_that_are_no_json_are_told_to_the_model():
    async with (
        ScriptedUpstream(say(call("add", '{"a": 1', id="c1")), "Sorry.", validates=False) as server,
        chatting(server, tools=[add]) as chat,
    ):
        events = await sent(chat, "Try.")
        assert results(events) == ["error: the arguments are no JSON object"]
        assert text_of(events) == "Sorry."


async def test_a_dangerous_tool_runs_only_if_it_is_confirmed():
    ran = []

    @refold.tool(dangerous=True)
    def erase(path: str) -> str:
        """Erase a file."""
        ran.append(path)
        return "gone"

    asked = []

    async def confirm(called):
        asked.append(called.name)
        return "a.txt" in called.arguments

    calls = say(call("erase", {"path": "a.txt"}, id="c1"), call("erase", {"path": "b.txt"}, id="c2"))
    async with ScriptedUpstream(calls, "Well.", calls, "Well.") as server:
        async with chatting(server, tools=[erase], confirm=confirm) as chat:
            events = await sent(chat, "Erase both.")
            assert sorted(results(events)) == ["declined: the user did not confirm this call", "gone"]
        async with chatting(server, tools=[erase]) as chat:
            events = await sent(chat, "Erase both.")
            assert set(results(events)) == {"declined: the user did not confirm this call"}
    assert (asked, ran) == (["erase", "erase"], ["a.txt"])


async def test_the_model_can_recall_what_left_its_context():
    script = [
        *[f"Noted {n}." for n in range(1, 41)],
        say(call("recall", {"what": "zanzibar"}, id="c1")),
        "It is 4417.",
    ]
    async with (
        ScriptedUpstream(*script, window=None) as server,
        chatting(server, conversation={"limit": 3_000}) as chat,
    ):
        await sent(chat, "The code of zanzibar is 4417.")
        for n in range(39):
            await sent(chat, f"Note {n}: " + "the tide comes and goes by the pier " * 12)
        events = await sent(chat, "What is the code?")

        assert (await chat.conversation.status()).compactions > 0
        assert "4417" in results(events)[0]


@every_format
async def test_an_aborted_reply_is_kept_as_far_as_it_came(wire):
    async with (
        ScriptedUpstream(
            Slow(say("One two three four five six seven eight. " * 20), between_s=0.02), "Yes."
        ) as server,
        chatting(server, wire=wire) as chat,
    ):
        events = []
        async for event in chat.send("Count."):
            events.append(event)
            if text_of(events):
                chat.abort()
        assert done(events).status == "aborted"
        _, kept = await said(chat.conversation)
        assert kept[0] == "assistant"
        assert text_of(events).startswith(kept[1][:20])
        assert len(kept[1]) < 400
        head = chat.conversation.journal.head
        (paid,) = await chat.conversation.journal.store.calls(head.owner, head.conversation)
        assert paid.is_estimated
        assert text_of(await sent(chat, "Go on?")) == "Yes.", "the conversation goes on"


async def before_done(stream):
    """The events up to the next `Done`, which is the last."""
    async for event in stream:
        yield event
        if isinstance(event, refold.Done):
            return


@every_format
async def test_calls_that_are_open_at_an_abort_get_a_result(wire):
    reached = asyncio.Event()

    @refold.tool
    async def wait() -> str:
        """Wait for ever."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    calls = say(call("add", {"a": 1, "b": 1}, id="c1"), call("wait", id="c2"))
    async with (
        ScriptedUpstream(calls, "Good.") as server,
        chatting(server, wire=wire, tools=[add, wait]) as chat,
    ):
        stream = chat.events()
        await chat.put("Wait.")
        await reached.wait()
        async for event in stream:
            if isinstance(event, ToolEnded):
                break
        assert chat.abort()
        rest = [event async for event in before_done(stream)]
        assert [event for event in rest if isinstance(event, ToolEnded)] == [
            ToolEnded("c2", "wait", "aborted", is_error=True)
        ]
        assert rest[-1].status == "aborted"
        stored = [one.text for message in await messages(chat.conversation) for one in message.results]
        assert stored == ["2", "aborted"]
        await valid(chat, wire)
        assert text_of(await sent(chat, "And now?")) == "Good."


@every_format
@pytest.mark.parametrize("then", ["end", "reset", "error"])
async def test_a_reply_that_breaks_off_is_kept_and_told(wire, then):
    broken = Broken(
        say("The first half of a long sentence that ends too soon, and more."), after=4, then=then
    )
    async with ScriptedUpstream(broken, "Again.") as server, chatting(server, wire=wire) as chat:
        events = await sent(chat, "Tell me.")

        assert done(events).status == "failed"
        words = {"end": "broke off its reply", "reset": "broke the connection", "error": "an error inside"}
        assert words[then] in done(events).problem or not text_of(events)
        assert "\nhint: " in done(events).problem or then == "error"
        stored = await said(chat.conversation)
        assert stored[1:] == ([("assistant", text_of(events))] if text_of(events) else [])
        assert text_of(await sent(chat, "Go on.")) == "Again."


async def test_a_refused_key_is_told_and_the_message_stays():
    async with ScriptedUpstream(Refuse(401), "Hello.") as server, chatting(server) as chat:
        events = await sent(chat, "Hello?")
        assert (done(events).status, "key" in done(events).problem) == ("failed", True)
        assert await said(chat.conversation) == [("user", "Hello?")]
        assert text_of(await sent(chat, "Again?")) == "Hello."


async def test_a_request_that_is_too_long_is_made_smaller():
    async with (
        ScriptedUpstream(otherwise="Noted.", window=3_000) as server,
        chatting(server, conversation={"max_output": 300}) as chat,
    ):
        for n in range(30):
            events = await sent(chat, f"Note {n}: " + "the tide comes and goes by the pier " * 20)
            assert done(events).status == "answered", done(events).problem


async def test_events_tell_what_is_queued():
    gate = Gate("First.")
    async with ScriptedUpstream(gate, "Second.") as server, chatting(server) as chat:
        stream = chat.events()
        await chat.put("one")
        await gate.reached.wait()
        second = await chat.put("two")
        async for event in stream:
            if isinstance(event, Queued):
                assert (event.entry, event.place) == (second, 1)
                break
        gate.opened.set()
        assert chat.is_busy


async def test_a_chat_that_is_not_open_takes_nothing():
    async with ScriptedUpstream() as server:
        async with chatting(server) as chat:
            with pytest.raises(ConfigError, match="nothing to send"):
                await chat.put("  ")
            with pytest.raises(ConfigError, match="only messages of the user"):
                await chat.put({"role": "assistant", "content": "No."})
        with pytest.raises(ConfigError, match="not open"):
            await chat.put("Hello?")
    with pytest.raises(ConfigError, match="above zero"):
        refold.Chat(refold.Conversation("m"), "m@http://localhost:1/v1", parallel_tools=0)


@every_format
async def test_parts_can_be_sent(wire):
    part = {"type": "input_text" if wire == "responses" else "text", "text": "Look at this."}
    async with ScriptedUpstream("I see.") as server, chatting(server, wire=wire) as chat:
        assert text_of(await sent(chat, [part])) == "I see."
        assert server.requests[0].text == "Look at this."


async def test_a_caller_that_stops_reading_does_not_stop_the_reply():
    async with (
        ScriptedUpstream("A rather long reply that takes several events.") as server,
        chatting(server) as chat,
    ):
        stream = chat.events()
        async for _ in chat.send("Hello?"):
            break
        async for event in stream:
            if isinstance(event, refold.Done):
                break
        assert (await said(chat.conversation))[-1][1].endswith("several events.")


async def test_an_upstream_that_ends_without_a_reply_fails():
    class Silent:
        model = "m-1"

        async def stream(self, ask):
            for word in ("So", " it"):
                yield refold.TextDelta(word)

    async with (
        refold.Engine("memory:", model="m-1", window=32_000) as engine,
        refold.Chat(await engine.conversation("talk"), Silent()) as chat,
    ):
        events = await sent(chat, "Hello?")
        assert (done(events).status, text_of(events)) == ("failed", "So it")
        assert done(events).problem.startswith("the upstream ended without a reply")
        assert await said(chat.conversation) == [("user", "Hello?"), ("assistant", "So it")]


async def test_a_stream_that_nobody_reads_keeps_the_newest_events(monkeypatch):
    monkeypatch.setattr(chat_module, "MAX_UNREAD", 5)
    async with ScriptedUpstream(otherwise="A reply of several words in several events.") as server:
        async with chatting(server) as chat:
            unread = chat.events()
            for _ in range(3):
                await sent(chat, "Hello?")
        left = [one async for one in unread]
        assert len(left) == 5
        assert isinstance(left[-1], refold.Done)
        assert [one async for one in chat.events()] == [], "a chat that is closed has none"


async def test_a_stream_that_is_dropped_is_forgotten():
    async with ScriptedUpstream() as server, chatting(server) as chat:
        dropped = weakref.ref(chat.events())
        gc.collect()
        assert dropped() is None


async def test_a_model_that_cannot_be_used_changes_nothing():
    async with ScriptedUpstream(otherwise="Yes.") as server, chatting(server) as chat:
        with pytest.raises(ConfigError):
            await chat.use_model("opneai:m-9")
        chat.conversation.reconfigure = refuse
        with pytest.raises(ConfigError, match="no room"):
            await chat.use_model("m-2")
        assert chat.model == "m-1"
        assert text_of(await sent(chat, "Hello?")) == "Yes."


async def refuse(**_):
    raise ConfigError("no room")


async def test_closing_a_chat_stops_tools_that_run_again_after_a_crash():
    started = asyncio.Event()

    @refold.tool(idempotent=True)
    async def look() -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return ""

    calls = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    async with (
        asyncio.timeout(20),
        ScriptedUpstream() as server,
        refold.Engine("memory:", model="m-1", window=32_000) as engine,
    ):
        talk = await engine.conversation("talk")
        await talk.add("go", calls)
        head = talk.journal.head
        await engine.store.lease(head.owner, head.branch, "dead", now=1.0, until=2.0)
        async with refold.Chat(talk, provider(server), tools=[look]):
            await started.wait()
        assert (await said(talk))[-1] == ("tool", "interrupted: may have run")


CACHED = {"system": "You keep the log of a harbour. " * 200}
"""A prompt above the smallest size that providers cache."""
UNCACHED = structs.replace(PRESETS["refold"], cache=None)


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("upstream", FORMATS)
async def test_each_turn_reads_the_one_before_from_the_cache_of_the_provider(wire, upstream):
    """Anthropic caches what has breakpoints, whatever the format of the conversation; the others take none."""
    script = [one for n in range(3) for one in (say(call("read_log", {"day": n}, id=f"c{n}")), "Read.")]

    @refold.tool
    def read_log(day: int) -> str:
        """Read the log of a day."""
        return f"{day}: calm"

    async with (
        ScriptedUpstream(*script) as server,
        refold.Engine("memory:", model="m-1", window=32_000) as engine,
    ):
        talk = await engine.conversation("talk", format=wire, **CACHED)
        async with refold.Chat(talk, provider(server, upstream), tools=[read_log]) as chat:
            turns = [await sent(chat, f"How was day {n}?") for n in range(3)]
        bodies = [one.body for one in server.requests]
    usages = [one.usage for turn in turns for one in turn if isinstance(one, refold.CallUsage)]
    assert len(usages) == len(bodies) == 6
    assert all(one.cache_read > 1_024 for one in usages[1:]), usages
    marks = [body.count(b'"cache_control"') for body in bodies]
    assert all(1 < count <= 4 for count in marks) if upstream == "anthropic" else not any(marks), marks


async def test_breakpoints_of_the_client_count_and_a_policy_without_a_cache_sets_none():
    mark = {"cache_control": {"type": "ephemeral"}}
    own = [{"type": "text", "text": f"{n}: {'low tide ' * 20}", **mark} for n in range(3)]
    for settings, expected in (({}, 4), ({"policy": UNCACHED}, 3)):
        async with ScriptedUpstream(otherwise="Noted.") as server:
            async with chatting(server, wire="anthropic", conversation={**CACHED, **settings}) as chat:
                assert done(await sent(chat, own)).status == "answered"
            assert [one.body.count(b'"cache_control"') for one in server.requests] == [expected]


async def test_a_reply_with_many_calls_still_finds_the_prefix_before_it():
    """A provider looks twenty blocks back from a breakpoint; the results of one reply may be more."""

    @refold.tool
    def read_log(day: int) -> str:
        """Read the log of a day."""
        return f"{day}: calm"

    many = say(*(call("read_log", {"day": n}, id=f"c{n}") for n in range(24)))
    async with (
        ScriptedUpstream(many, "Calm.") as server,
        chatting(server, wire="anthropic", conversation=CACHED, tools=[read_log]) as chat,
    ):
        events = await sent(chat, "Read it all. " + "Every day counts. " * 50)
        first, second = [one.usage for one in events if isinstance(one, refold.CallUsage)]
        assert second.cache_read == first.cache_write + first.cache_read
