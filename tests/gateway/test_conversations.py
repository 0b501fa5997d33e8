"""Which conversation and which branch a request belongs to, and that only what is new is kept."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from contextlib import suppress
from weakref import ref

import aiohttp
import msgspec
import pytest
from msgspec import structs

from refold import text_work
from refold.engine import actions
from refold.gateway import conversations, recognition
from refold.gateway.conversations import limit_in
from refold.gateway.recognition import read_line
from refold.gateway.request import IncomingRequest, read_incoming
from refold.gateway.response_tap import CallResult
from refold.model.dialect import CHAT
from refold.model.tokens import Share, Tokens, Usage
from refold.testing import Broken, Refuse, ScriptedUpstream
from tests.gateway.conftest import served

USER, REPLY = "user", "assistant"


def say(*texts: str) -> list[dict[str, str]]:
    """Messages in turn: the user's, the assistant's, and so on."""
    return [{"role": (USER, REPLY)[index % 2], "content": text} for index, text in enumerate(texts)]


async def ask(gate, messages, model="gpt-5", **headers):
    body = msgspec.json.encode({"model": model, "messages": messages})
    status, told, _ = await gate.post("/v1/chat/completions", body, **headers)
    assert status == 200
    return told


async def texts(gate, told, owner="local"):
    head = await gate.store.head(owner, told["x-refold-conversation"], told["x-refold-branch"])
    return [msgspec.json.decode(one.body)["content"] for one in await gate.store.messages(head)]


@pytest.mark.feature("X3")
async def test_it_is_found_again_after_a_restart(upstream):
    store_of = None
    async with served(upstream) as gate:
        first = await ask(gate, say("one", "Fine.", "two"))
        store_of = gate.store
    async with served(upstream, store=store_of) as gate:
        second = await ask(gate, say("one", "Fine.", "two", "Fine.", "three"))

        assert first["x-refold-branch"] == second["x-refold-branch"]
        assert len(await texts(gate, second)) == 5


@pytest.mark.feature("X3")
async def test_an_edited_history_forks_where_it_was_edited(gate):
    first = await ask(gate, say("one", "Fine.", "two", "Fine.", "three"))
    second = await ask(gate, say("one", "Fine.", "TWO", "Fine.", "three"))

    assert first["x-refold-conversation"] == second["x-refold-conversation"]
    assert first["x-refold-branch"] != second["x-refold-branch"]
    assert await texts(gate, first) == ["one", "Fine.", "two", "Fine.", "three"]
    assert await texts(gate, second) == ["one", "Fine.", "TWO", "Fine.", "three"]
    head = await gate.store.head("local", second["x-refold-conversation"], second["x-refold-branch"])
    assert (head.base, head.base_seq) == (first["x-refold-branch"], 2)


@pytest.mark.feature("X3")
async def test_a_question_that_is_asked_again_is_the_same_question(gate):
    first = await ask(gate, say("one", "Fine.", "two"))
    again = await ask(gate, say("one", "Fine.", "two"))

    assert again["x-refold-branch"] == first["x-refold-branch"]
    assert len(await texts(gate, again)) == 3


@pytest.mark.feature("X3")
async def test_what_goes_on_from_nothing_is_a_branch_of_its_own_in_a_named_conversation(gate):
    main = await ask(gate, say("Fix the bug.", "Sure.", "Go on."), x_refold_conversation="work")
    title = await ask(gate, say("Write a title."), x_refold_conversation="work")
    later = await ask(
        gate, say("Fix the bug.", "Sure.", "Go on.", "Done.", "Thanks."), x_refold_conversation="work"
    )

    assert title["x-refold-branch"] != main["x-refold-branch"] == later["x-refold-branch"]
    assert await texts(gate, title) == ["Write a title."]


@pytest.mark.feature("X3")
async def test_how_a_client_writes_its_history_down_does_not_matter(gate):
    first = await ask(gate, say("one", "Fine.", "two"))
    blocks = [
        {"role": one["role"], "content": [{"type": "text", "text": one["content"]}]}
        for one in say("one", "Fine.", "two")
    ]
    second = await ask(gate, [*blocks, *say("one", "Fine.", "two", "Fine.", "three")[3:]])

    assert second["x-refold-branch"] == first["x-refold-branch"]
    assert len(await texts(gate, second)) == 5


async def test_many_at_once_on_one_conversation_lose_nothing(gate):
    await ask(gate, say("one", "Fine.", "two"))
    asked = [say("one", "Fine.", "two", f"Fine {n}.", f"three {n}") for n in range(8)]
    told = await asyncio.gather(*(ask(gate, messages) for messages in asked))

    assert len({one["x-refold-branch"] for one in told}) == 8
    for messages, one in zip(asked, told, strict=True):
        assert await texts(gate, one) == [message["content"] for message in messages]


async def test_two_gateways_on_one_store_go_on_with_each_others_conversations(upstream):
    async with served(upstream) as one, served(upstream, store=one.store) as two:
        history = ["one"]
        for turn in range(6):
            told = await ask((one, two)[turn % 2], say(*history))
            history += ["Fine.", f"more {turn}"]

        assert await texts(one, told) == history[:-2]


async def test_what_was_let_go_of_is_found_in_the_store(gate, monkeypatch):
    monkeypatch.setattr(recognition, "MOST_BYTES", 100)
    first = await ask(gate, say("one", "Fine.", "two"))
    for other in range(3):
        await ask(gate, say(f"other {other}"))
    second = await ask(gate, say("one", "Fine.", "two", "Fine.", "three"))

    assert second["x-refold-branch"] == first["x-refold-branch"]
    assert len((await gate.gateway.host("local")).table) == 1


async def test_of_a_new_long_history_only_the_end_and_the_beginning_are_looked_up(gate, monkeypatch):
    host = await gate.gateway.host("local")
    asked, places = [], host.engine.store.places

    async def count(owner, hashes):
        asked.extend(hashes)
        return await places(owner, hashes)

    monkeypatch.setattr(host, "_find_places", lambda hashes: count(host.engine.owner, hashes))
    history = [f"message {number}" for number in range(99)]
    first = await ask(gate, say(*history))
    assert len(asked) == recognition.FIRST_LOOK + 1

    others = [f"another way {number}" for number in range(40)]
    earlier = await ask(gate, say(*history[:4], *others, "and now?"))
    assert earlier["x-refold-conversation"] == first["x-refold-conversation"]


async def test_a_conversation_above_the_memory_limit_is_let_go_of_when_it_rests(gate, monkeypatch):
    monkeypatch.setattr(recognition, "MOST_BYTES", 100)
    monkeypatch.setattr(recognition, "IDLE_S", 0.0)
    first = await ask(gate, say("one", "Fine.", "two"))
    table = (await gate.gateway.host("local")).table
    async with asyncio.timeout(30):
        while len(table):  # noqa: ASYNC110  # the table raises no event
            await asyncio.sleep(0.001)
    second = await ask(gate, say("one", "Fine.", "two", "Fine.", "three"))

    assert second["x-refold-branch"] == first["x-refold-branch"]


async def test_a_large_list_of_messages_is_not_copied(gate, monkeypatch):
    read = []
    monkeypatch.setattr(
        conversations, "read_line", lambda array, *more: read.append(array) or read_line(array, *more)
    )
    words = "word " * 20_000
    first = await ask(gate, say(words, "Fine.", "two"))
    second = await ask(gate, say(words, "Fine.", "two", "Fine.", "three"))
    changed = await ask(gate, say(words, "Fine.", "another", "Fine.", "three"))

    assert all(isinstance(array, memoryview) for array in read)
    assert second["x-refold-branch"] == first["x-refold-branch"] != changed["x-refold-branch"]
    assert await texts(gate, second) == [words, "Fine.", "two", "Fine.", "three"]


async def test_conversations_of_one_question_leave_nothing_behind_but_the_latest(gate, monkeypatch):
    monkeypatch.setattr(recognition, "MOST_BYTES", 5 * recognition.EACH_BYTES)
    for other in range(20):
        await ask(gate, say(f"question {other}"))
    host = await gate.gateway.host("local")
    gc.collect()

    assert len(host.table) <= 4
    assert len(host.engine._opened) <= 4


@pytest.fixture
def without_collector():
    """No garbage collection during the test: reference counts alone free memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_branch_that_is_dropped_is_freed_without_the_garbage_collector(
    gate, monkeypatch, without_collector
):
    monkeypatch.setattr(recognition, "MOST_BYTES", 3 * recognition.EACH_BYTES)
    held = []
    for other in range(10):
        await ask(gate, say(f"question {other}", "Fine.", "more"))
        talks = [live.conversation for live in (await gate.gateway.host("local")).table]
        held += [ref(talk) for talk in talks if all(one() is not talk for one in held)]
        del talks

    assert len(held) == 10
    assert sum(one() is not None for one in held) <= 3


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("reply", ["Fine.", Refuse(400, "Unknown parameter: 'x'."), Refuse(500)])
async def test_requests_leave_nothing_for_the_garbage_collector(without_collector, reply, is_stream):
    async with (
        ScriptedUpstream(otherwise=reply) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
        aiohttp.ClientSession(gate.url) as session,
    ):

        async def post(number):
            body = {"model": "gpt-5", "messages": say(f"question {number}"), "stream": is_stream}
            async with session.post("/v1/chat/completions", json=body) as answer:
                await answer.read()

        for number in range(3):
            await post(number)
        gc.collect()
        for number in range(20):
            await post(number)

        assert gc.collect() < 20


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("then", ["reset", "end"])
async def test_a_request_whose_answer_breaks_off_is_freed_without_the_collector(
    without_collector, then, is_stream
):
    async with (
        ScriptedUpstream(otherwise=Broken("Half of a reply", then=then)) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
        aiohttp.ClientSession(gate.url) as session,
    ):
        for number in range(10):
            body = {"model": "gpt-5", "messages": say(f"question {number}"), "stream": is_stream}
            with suppress(aiohttp.ClientError):
                async with session.post("/v1/chat/completions", json=body) as answer:
                    await answer.read()

        assert sum(isinstance(one, IncomingRequest) for one in gc.get_objects()) <= 3


def test_a_message_does_not_hold_on_to_the_messages_before_it():
    array = msgspec.json.encode(say("one", "Fine.", "two"))
    held = sys.getrefcount(array)
    seen = read_line(array, CHAT, b"key")
    new = seen.since(2, CHAT)
    del seen

    assert [message.text for message in new] == ["two"]
    assert sys.getrefcount(array) == held


async def test_a_message_that_is_nested_too_deeply_is_refused_though_the_rest_is_known(gate):
    known = msgspec.json.encode(say(*("a long story " * 50 for _ in range(21))))
    await ask(gate, msgspec.Raw(known))
    deep = b'{"role":"user","content":%s}' % (b"[" * 300 + b"]" * 300)
    body = b'{"model":"gpt-5","messages":%s,%s]}' % (known[:-1], deep)
    status, _, answer = await gate.post("/v1/chat/completions", body)

    assert status == 400
    assert "nested more than 256 levels" in msgspec.json.decode(answer)["error"]["message"]


class Waiting:
    """Takes a request in when it is told to, in whichever thread it is asked."""

    def __init__(self, monkeypatch) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        take = actions.take_request

        def wait_and_take(state, messages, request):
            if len(messages) > 1:
                self.has_begun.set()
                assert self.may_end.wait(10)
            return take(state, messages, request)

        monkeypatch.setattr(actions, "take_request", wait_and_take)


async def test_others_are_answered_while_a_long_history_is_taken_in(gate, monkeypatch):
    monkeypatch.setattr(text_work, "MAX_LOOP_BYTES", 100)
    waiting, long = Waiting(monkeypatch), say(*("word " * 10 for _ in range(9)))
    asking = asyncio.create_task(ask(gate, long))
    await asyncio.to_thread(waiting.has_begun.wait)
    await ask(gate, say("Hi!"))
    waiting.may_end.set()

    assert len(await texts(gate, await asking)) == 9


async def test_nothing_comes_of_a_long_history_whose_request_is_stopped(gate, monkeypatch):
    monkeypatch.setattr(text_work, "MAX_LOOP_BYTES", 100)
    waiting, host = Waiting(monkeypatch), await gate.gateway.host("local")
    long = say(*("word " * 10 for _ in range(9)))
    body = msgspec.json.encode({"model": "gpt-5", "messages": long})
    incoming = read_incoming("/v1/chat/completions", {}, body)
    taking = asyncio.create_task(host.take(incoming, host.terms("gpt-5", "chat", window=None)))
    await asyncio.to_thread(waiting.has_begun.wait)
    taking.cancel()
    waiting.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await taking

    assert len(await texts(gate, await ask(gate, long))) == 9


def came(*texts: str):
    body = msgspec.json.encode({"model": "gpt-5", "messages": say(*texts)})
    return read_incoming("/v1/chat/completions", {}, body)


async def test_an_answer_that_comes_while_the_next_request_is_taken_in_tells_nothing_of_that(
    gate, monkeypatch
):
    host, long = await gate.gateway.host("local"), "word " * 3_000
    terms = host.terms("gpt-5", "chat", window=None)
    first = await host.take(came(long), terms)
    monkeypatch.setattr(text_work, "MAX_LOOP_BYTES", 100)
    waiting, live = Waiting(monkeypatch), first.live
    second = asyncio.create_task(host.take(came(long, "Fine.", long), terms))
    await asyncio.to_thread(waiting.has_begun.wait)
    outcome = CallResult(Usage(input=3_010, output=3), b"{}", is_answered=True, is_whole=True)
    answer = asyncio.create_task(live.answered(first.made, outcome, "call"))
    await asyncio.sleep(0)
    waiting.may_end.set()
    await asyncio.gather(second, answer)

    state = live.conversation.state
    assert state.meter.anchor is None
    assert state.calibration.ratio == 1.0


@pytest.mark.parametrize("times", [1, 2])
async def test_who_stops_while_a_long_history_is_taken_in_hears_of_no_compaction(gate, monkeypatch, times):
    host, heard = await gate.gateway.host("local"), []
    terms = host.terms("gpt-5", "chat", window=8_000)
    host.engine.settings = structs.replace(host.engine.settings, on_event=heard.append)
    talk = (await host.take(came("Hello there"), terms)).live.conversation
    monkeypatch.setattr(text_work, "MAX_LOOP_BYTES", 100)
    waiting = Waiting(monkeypatch)
    long = [f"word{number} " * 300 for number in range(30)]
    taking = asyncio.create_task(host.take(came("Hello there", *long), terms))
    await asyncio.to_thread(waiting.has_begun.wait)
    for _ in range(times):
        taking.cancel()
        await asyncio.sleep(0)
        assert talk._lock.locked(), "the thread is not done"
    waiting.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await taking

    assert heard == []
    assert (await gate.store.head("local", talk.id, talk.branch)).next_seq == 1
    assert talk.state.folded.size == 1
    await host.take(came("Hello there", *long), terms)
    assert "compaction_end" in [event.kind for event in heard]


async def test_another_model_goes_on_with_the_same_branch(gate):
    first = await ask(gate, say("one", "Fine.", "two"))
    second = await ask(gate, say("one", "Fine.", "two", "Fine.", "three"), model="gpt-4o-mini")

    assert second["x-refold-branch"] == first["x-refold-branch"]


async def test_a_reply_is_kept_beside_its_call(gate):
    told = await ask(gate, say("one"))
    kept = msgspec.json.decode(await gate.store.reply_to("local", told["x-refold-receipt"]))

    assert [one["content"] for one in kept["messages"]] == ["Fine."]
    assert kept["is_whole"] is True
    assert await texts(gate, told) == ["one"]


@pytest.mark.parametrize("turns", [1, 2])
async def test_the_first_request_after_a_deletion_is_stored(gate, turns):
    messages = say("one")
    for number in range(turns):
        told = await ask(gate, messages)
        messages = [*messages, {"role": "assistant", "content": "Fine."}, *say(f"more {number}")]
    assert await gate.store.delete("local", told["x-refold-conversation"])
    told = await ask(gate, messages)
    assert told["x-refold-action"] == "passed"
    assert await texts(gate, told) == [one["content"] for one in messages]


async def test_a_store_that_fails_stops_nobody(upstream, monkeypatch):
    from refold.model.errors import StoreError

    monkeypatch.setattr("refold.gateway.exchange.CLOSING_S", 0.05)  # it never takes anything
    async with served(upstream) as gate:

        async def fail(*_args, **_more):
            raise StoreError("The disk is full.")

        monkeypatch.setattr(gate.store, "commit", fail)
        body = msgspec.json.encode({"model": "gpt-5", "messages": say("one")})
        status, told, _ = await gate.post("/v1/chat/completions", body)

        assert (status, told["x-refold-action"]) == (200, "not-kept")
        assert upstream.requests[0].body == body


@pytest.fixture
async def upstream():
    async with ScriptedUpstream(otherwise="Fine.") as server:
        yield server


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [(None, 0), (Tokens(4000), 4000), (Tokens(90_000), 8000), (Share(0.55), 4400), (Share(1.0), 8000)],
)
def test_a_limit_lies_within_the_window(limit, tokens):
    assert limit_in(8000, limit) == tokens
