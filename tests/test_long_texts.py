"""How much of a text is read is bounded by its characters: the same on every machine, and said where something was left out."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from refold import Conversation, Engine
from refold.core.digest.shorten import DIGEST, MAX_LEDGER, MAX_SOURCE, MAX_TEXT
from refold.core.presets import PRESETS
from refold.engine.events import notice
from refold.stores.memory import MemoryStore
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served

LINE = "2026-11-15 worker handled a request\n"
LOG = f"worker started at dawn\n{LINE * (2 * MAX_TEXT // len(LINE))}worker ended at dusk"
"""A tool's output, twice as long as what a summariser is given of one text."""
WIDE = 4_000_000
"""A window in which several such texts fit, so that nothing stands for them before the summary that is asked for."""
SUMMARY = "## Goal\nFind out why the worker ended at dusk."
KEY = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3


class Author:
    def __init__(self) -> None:
        self.asked: list[list[dict]] = []
        self.previous: list[str] = []

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked.append(messages)
        self.previous.append(previous)
        return SUMMARY

    @property
    def read(self) -> str:
        return msgspec.json.encode(self.asked).decode()


def call(number: int, result: str) -> list[dict]:
    """A call and its result."""
    function = {"name": "read_log", "arguments": '{"path": "worker.log"}'}
    called = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def talk_of(*results: str) -> list[dict]:
    said = [{"role": "user", "content": "Why did the worker end?"}]
    for number, result in enumerate(results):
        said += call(number, result)
        said += [{"role": "assistant", "content": f"Look {number}."}, {"role": "user", "content": "Go on."}]
    return said


async def compacted(messages: list[dict], **settings):
    """A conversation whose messages were summed up by a model, what the model was given, and what was told."""
    author, heard = Author(), []
    given = {"window": 100_000, "max_output": 0, "policy": PRESETS["refold"], **settings}
    async with Conversation("gpt-4o", summariser=author, on_event=heard.append, **given) as talk:
        await talk.add(*messages)
        await talk.compact()
    return talk, author, heard


async def test_a_summariser_is_given_the_plain_digest_of_a_text_that_is_too_long():
    _, author, _ = await compacted(talk_of(LOG, "short"))
    (result,) = [one["content"] for one in author.asked[0] if "plain digest" in str(one)]

    assert result.startswith(
        f"[plain digest of {len(LOG):,} characters: the first and the last lines]\nworker started"
    )
    assert "[… the rest is in #m2]" in result
    assert result.endswith("worker ended at dusk")
    assert len(result) < DIGEST + 200


async def test_the_receipt_and_the_events_say_so():
    talk, _, heard = await compacted(talk_of(LOG, LOG.upper(), "short"), window=WIDE)
    receipt = talk.receipts[-1]

    assert receipt.reason.endswith(
        "2 texts were too long for the summariser, which was given a plain digest of each"
    )
    assert receipt.summary.digested == 2
    told = {event.kind: event for event in heard if event.kind in ("summary_written", "compaction_end")}
    assert told["summary_written"].digested == told["compaction_end"].digested == 2
    assert "(2 long texts by plain digest)" in notice(told["compaction_end"])


async def test_a_text_for_which_a_digest_stood_first_is_read_by_the_model_all_the_same():
    """The second text does not fit beside the first, so a digest bridges it until the model has written."""
    messages = [
        {"role": "user", "content": LOG},
        {"role": "assistant", "content": "Look 0."},
        {"role": "user", "content": LOG.upper()},
        {"role": "assistant", "content": "Look 1."},
        {"role": "user", "content": "Go on."},
    ]
    talk, author, _ = await compacted(messages)

    assert [one.summary.kind for one in talk.receipts if one.summary] == ["extractive", "model", "model"]
    assert "[… the rest is in #m0]" in msgspec.json.encode(author.asked[0]).decode()
    assert "[… the rest is in #m2]" in author.read
    assert talk.receipts[-1].summary.digested == 1
    assert SUMMARY in author.previous[1]
    assert "#m0]" not in msgspec.json.encode(author.asked[1]).decode()  # a model has read it


async def test_nothing_is_said_where_no_text_is_too_long():
    talk, author, heard = await compacted(talk_of(LOG[:MAX_TEXT], "short"))

    assert "plain digest" not in author.read
    assert "too long" not in talk.receipts[-1].reason
    assert all(getattr(event, "digested", 0) == 0 for event in heard)


async def test_of_many_texts_that_are_too_much_together_the_longest_are_digested():
    half = LOG[: MAX_TEXT // 2]
    results = (f"{number} {half}" for number in range(12))
    talk, author, _ = await compacted(talk_of(*results, "short"), window=WIDE)
    read = sum(len(str(one.get("content"))) for one in author.asked[0])
    number = author.read.count("plain digest of")

    assert talk.receipts[-1].summary.digested == number > 8
    assert 0.9 * MAX_SOURCE < read < 1.01 * MAX_SOURCE
    assert "Look 0." in author.read


async def test_the_same_messages_give_a_summariser_the_same_texts():
    first, second = [(await compacted(talk_of(LOG, "short")))[1].asked for _ in range(2)]
    assert first == second


@pytest.mark.parametrize("where", ["beginning", "end", "edge"])
async def test_a_plain_digest_has_no_secrets(where):
    lines = LOG.splitlines()
    lines.insert(
        {"beginning": 3, "end": -3, "edge": DIGEST * 3 // 4 // len(LINE)}[where], f"OPENAI_API_KEY={KEY}"
    )
    _, author, _ = await compacted(talk_of("\n".join(lines), "short"))

    assert "plain digest" in author.read
    assert KEY[:20] not in author.read
    assert KEY[-20:] not in author.read


async def test_a_sensitive_text_that_is_too_long_is_only_named():
    author = Author()
    async with Conversation(
        "gpt-4o", summariser=author, window=100_000, max_output=0, policy=PRESETS["refold"]
    ) as talk:
        await talk.add("Why did the worker end?", {"role": "assistant", "content": "Show me."})
        await talk.add(LOG, sensitive=True)
        await talk.add({"role": "assistant", "content": "Thanks."}, "Go on.")
        await talk.compact()

    assert "[withheld: #m2]" in author.read
    assert "plain digest" not in author.read
    assert talk.receipts[-1].summary.digested == 0


async def test_media_that_are_too_long_are_only_named():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2 * MAX_TEXT}}
    said = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    talk, author, _ = await compacted([*said, *talk_of("short")[1:]])

    assert "AAAA" not in author.read
    assert talk.receipts[-1].summary.digested == 0


async def test_a_stored_compaction_says_so_too():
    author = Author()
    async with Engine(MemoryStore(), summariser=author) as engine:
        talk = await engine.conversation("talk", model="gpt-4o", window=100_000, max_output=0)
        await talk.add(*talk_of(LOG, "short"))
        await talk.compact()
        rows = await engine.store.compactions("local", talk.branch)
        (written,) = await engine.summaries([rows[-1].id])

    assert "one text was too long for the summariser" in rows[-1].reason
    assert written.summary.digested == 1


async def test_a_gateway_says_so_where_compactions_are_listed():
    with ScriptedUpstream(
        otherwise=lambda one: SUMMARY if "checkpoint" in str(one.json) else "Fine.", window=WIDE
    ) as upstream:
        async with served(upstream, window=WIDE) as gate:
            body = msgspec.json.encode({"model": "gpt-4o", "messages": talk_of(LOG, *["short " * 500] * 8)})
            status, _, _ = await gate.post("/v1/chat/completions", body, x_refold_conversation="talk")
            assert status == 200
            host = await gate.gateway.host("local")
            await asyncio.gather(*(live.conversation.ready() for live in host.table))
            for live in host.table:
                await live.conversation.compact()
                rows = await gate.store.compactions("local", live.conversation.branch)
    assert any("one text was too long for the summariser" in row.reason for row in rows)


async def test_rules_are_not_looked_for_in_the_middle_of_a_long_text():
    middle = "this was said before and goes on. " * (MAX_LEDGER // 16)
    said = (
        f"Always answer in French.\n\n{middle}\n\nAlways lock the door.\n\n{middle}\n\nNever touch billing."
    )
    async with Conversation("gpt-4o", window=8_000, max_output=0) as talk:
        await talk.add(said)
        rules = talk.state.folded.ledger.rules

    assert rules == ("Always answer in French.",)


async def test_every_word_of_a_long_text_is_found():
    size = MAX_TEXT // 40
    places = range(0, 50 * size, size)  # a fifth of them is beyond what a summariser is given
    said = "".join(f" needle{number} {LOG[at : at + size]}" for number, at in enumerate(places))
    async with Engine(MemoryStore()) as engine:
        talk = await engine.conversation("talk", model="gpt-4o")
        await talk.add(said)
        found = [len(await engine.search(f"needle{number}")) for number in range(len(places))]

    assert found == [1] * len(places)
