"""Work on much text is done in threads: nobody else waits for it, and nothing that goes on meanwhile is lost or mixed up."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager

import msgspec
import pytest

from refold import Conversation, Engine
from refold.core import secrets
from refold.core.presets import PRESETS
from refold.model.errors import RefoldError
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import ScriptedUpstream
from refold.text_work import MAX_LOOP_BYTES
from refold.tokens.counters import MessageCounter, counter_for
from tests.formats import turn
from tests.gateway.conftest import served

LONG = "The build failed because a module was moved. " * 3_000
"""Twice as much as is worked on in the event loop."""
assert len(LONG) > 2 * MAX_LOOP_BYTES
TOO_LONG_ERROR = {"error": {"code": "context_length_exceeded", "message": "too long"}}
SUMMARY = "## Goal\nFix the build that failed because a module was moved."


class Counter:
    """Counts as ever, and remembers in which thread texts were counted. It waits for a text that it is told to wait for."""

    source = "counted"

    def __init__(self, waits_for: str = "\0") -> None:
        self._counter, self._waits_for = counter_for("gpt-4o"), waits_for
        self.threads: dict[str, set[int]] = {}
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def text(self, text: str) -> int:
        self.threads.setdefault(text, set()).add(threading.get_ident())
        if text.startswith(self._waits_for):
            self.is_asked.set()
            assert self.may_answer.wait(60)
        return self._counter.text(text)

    def message(self, message) -> int:
        return 4 + sum(self.text(getattr(part, "text", "") or repr(part)) for part in message.parts)


class Author:
    """A summariser that answers when it is told to."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.asked: list[list[dict]] = []

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked.append(messages)
        self.is_asked.set()
        await self.may_answer.wait()
        return SUMMARY


@pytest.fixture(params=["memory", "stored"])
def opened(request):
    """How a conversation is opened: in memory, or in a store."""

    @asynccontextmanager
    async def open_talk(**settings):
        given = {"window": 20_000, "max_output": 0, "policy": PRESETS["refold"], **settings}
        if request.param == "memory":
            async with Conversation("gpt-4o", **given) as talk:
                yield talk
        else:
            async with Engine(MemoryStore()) as engine:
                yield await engine.conversation("talk", model="gpt-4o", **given)

    return open_talk


async def test_small_texts_are_worked_on_in_the_event_loop_and_long_ones_are_not(opened):
    counter = Counter()
    async with opened(counter=counter) as talk:
        await talk.add("Hello there")
        assert counter.threads["Hello there"] == {threading.get_ident()}
        # It does not fit: what came before it is summed up in the same act, and so in the same thread.
        await talk.add(LONG)

    assert threading.get_ident() not in counter.threads[LONG]


async def test_others_go_on_while_a_long_text_is_taken_in(opened):
    counter = Counter(waits_for=LONG)
    async with opened(counter=counter) as slow, opened() as other:
        adding = asyncio.create_task(slow.add(LONG))
        await asyncio.to_thread(counter.is_asked.wait)
        await other.add("Hello there")
        assert (await other.context())["messages"][0]["content"] == "Hello there"
        counter.may_answer.set()
        await adding
        assert (await slow.recall("#m0"))["content"] == LONG


async def test_of_a_long_text_whose_caller_is_stopped_nothing_stays(opened):
    counter, heard = Counter(waits_for=LONG), []
    async with opened(counter=counter, on_event=heard.append) as talk:
        await talk.add("Hello there")
        adding = asyncio.create_task(talk.add(LONG))
        await asyncio.to_thread(counter.is_asked.wait)
        adding.cancel()
        after = asyncio.create_task(talk.add("And now?"))
        await asyncio.sleep(0)
        assert not after.done(), "the thread is not done"
        counter.may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await adding
        await after

        said = [message["content"] for message in (await talk.context())["messages"]]
    assert said == ["Hello there", "And now?"]
    assert heard == []


async def test_events_of_long_texts_are_told_in_the_event_loop(opened):
    heard = []
    async with opened(on_event=lambda event: heard.append((event.kind, threading.get_ident()))) as talk:
        await talk.add(LONG)

    assert heard == [("pruned", threading.get_ident())]


async def test_a_long_text_is_worked_on_in_a_thread_also_while_a_summary_is_written(opened):
    author, counter = Author(), Counter()
    async with opened(summariser=author, counter=counter, window=8_000) as talk:
        number = 0
        while not author.is_asked.is_set():
            number += 1
            await talk.add(*turn(number))
            await asyncio.sleep(0)
        await talk.add(LONG)
        author.may_answer.set()
        await talk.ready()
        await talk.compact()

        assert threading.get_ident() not in counter.threads[LONG]
        assert (await talk.recall(f"#m{4 * number}"))["content"] == LONG
        shown = str((await talk.context())["messages"])
    assert "a module was moved" in shown


async def test_whatever_goes_on_beside_long_texts_nothing_is_lost_or_changed(opened):
    """Messages arrive while others of the conversation are read, compacted and summarised, all in threads."""
    author = Author()
    author.may_answer.set()
    async with opened(summariser=author) as talk:
        said = [f"{number} {LONG[: 100 * number]}" for number in range(40)]

        async def add() -> None:
            for text in said:
                await talk.add(text, {"role": "assistant", "content": f"Fine, {text}"})

        async def look() -> None:
            for number in range(10):
                acts = talk.compact(), talk.recall("module moved"), talk.recover(TOO_LONG_ERROR)
                done = await asyncio.gather(*acts, talk.recall(f"#m{number}"), return_exceptions=True)
                # No call can follow where the assistant had the last word, and nothing smaller where all is small.
                assert [
                    one for one in done if isinstance(one, Exception) and not isinstance(one, RefoldError)
                ] == []

        await talk.add(LONG)
        await asyncio.gather(add(), add(), look())
        await talk.ready()
        kept = [(await talk.recall(f"#m{number}"))["content"] for number in range(1, 161, 2)]

    assert sorted(kept) == sorted(said * 2)


class Tripwire:
    """Finds long texts that are worked on in the event loop."""

    def __init__(self, monkeypatch) -> None:
        self.loop, self.found, self.is_used = threading.get_ident(), set[str](), set[str]()
        for where, name in ((secrets, "find_secrets"), (MessageCounter, "text")):
            self._watch(monkeypatch, where, name)

    def _watch(self, monkeypatch, where, name) -> None:
        function = getattr(where, name)

        def watched(*args, **settings):
            text = next(one for one in args if isinstance(one, str))
            if len(text) > MAX_LOOP_BYTES:
                self.is_used.add(name)
                if threading.get_ident() == self.loop:
                    self.found.add(name)
            return function(*args, **settings)

        monkeypatch.setattr(where, name, watched)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_nothing_in_the_life_of_a_stored_conversation_reads_long_texts_in_the_event_loop(
    monkeypatch, tmp_path, kind
):
    store = MemoryStore() if kind == "memory" else await SqliteStore.open(tmp_path / "talks.db")
    author = Author()
    author.may_answer.set()
    settings = {"window": 100_000, "max_output": 0, "model": "gpt-4o", "policy": PRESETS["refold"]}
    engine = Engine(store, summariser=author)
    talk = await engine.conversation("talk", **settings)
    tripwire = Tripwire(monkeypatch)
    for number in range(8):
        await talk.add(*turn(number), f"{number} {LONG}")
    await talk.compact()
    await talk.recall("moved module")
    await talk.preview()
    await talk.status()
    await talk.start_session()
    await talk.ready()
    await talk.add(LONG, "And now?")
    first = (await engine.sessions("talk"))[0]
    await talk.resume(first)
    await talk.recover(TOO_LONG_ERROR)
    await engine.search("moved module")
    again = await Engine(store).conversation("talk", **settings)
    await again.compact()
    await talk.close()
    await engine.close()

    assert tripwire.is_used == {"find_secrets", "text"}
    assert tripwire.found == set()


async def test_nothing_in_the_life_of_a_request_reads_long_texts_in_the_event_loop(monkeypatch):
    tripwire = Tripwire(monkeypatch)

    def answer(received):
        return SUMMARY if "You write checkpoints" in str(received.json) else f"Fine. {LONG}"

    # The provider counts, too, and has a thread of its own.
    with ScriptedUpstream(otherwise=answer) as upstream:
        async with served(upstream, window=150_000) as gate:
            await _talk_and_compact(gate)

    assert tripwire.is_used == {"find_secrets", "text"}
    assert tripwire.found == set()


async def _talk_and_compact(gate) -> None:
    messages = []
    for number in range(6):
        messages.append({"role": "user", "content": f"{number} {LONG}"})
        body = msgspec.json.encode({"model": "gpt-4o", "messages": messages})
        status, _, answered = await gate.post("/v1/chat/completions", body, x_refold_conversation="talk")
        assert status == 200
        messages.append(msgspec.json.decode(answered)["choices"][0]["message"])
    host = await gate.gateway.host("local")
    for live in host.table:
        await live.conversation.ready()
    status, _, _ = await gate.post("/refold/conversations/talk/compact", b"{}")
    assert status == 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own():
    async def take_in() -> None:
        async with Conversation("gpt-4o", window=20_000) as talk:
            await asyncio.wait_for(talk.add(LONG), 60)

    asyncio.run(take_in())
    child = os.fork()
    if not child:
        try:
            asyncio.run(take_in())
            os._exit(0)
        except BaseException:  # noqa: BLE001  # the parent is told by the status
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
