"""Streams that break off anywhere, come in any pieces, or that nobody reads to the end."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import anthropic
import httpx2
import msgspec
import openai
import pytest

from tests.gateway.conftest import served
from tests.gateway.faults.pieces import STREAMS, Got, Loose
from tests.gateway.faults.wires import PATHS, Line, RawUpstream, Recording, connected, record, split_answer

SEED = 20_261_118
FORMATS = list(PATHS)
EACH = 500
"""Conversations of one gateway: the store in memory looks through all of them."""
WAYS = ("end", "close", "reset")
"""How a provider breaks off: it ends properly and too early, closes the connection, or resets it."""


def cuts_of(recording: Recording, most: int) -> list[int]:
    """Where to cut: around every end of an event, and anywhere else."""
    ends = [at for at in range(len(recording.bytes)) if recording.bytes[:at].endswith(b"\n\n")]
    near = {at + by for at in ends for by in (-3, -2, -1, 0, 1) if 0 <= at + by < len(recording.bytes)}
    everywhere = range(len(recording.bytes))
    if most >= len(recording.bytes):
        return [*everywhere]
    return sorted(near | {*random.Random(SEED).sample(everywhere, most)})


async def kept_of(gate, head: bytes, name: str) -> dict:
    """What was kept of the one call of a conversation."""
    (call,) = await gate.store.calls("local", name)
    return msgspec.json.decode(await gate.store.reply_to("local", call.id))


async def cut(gate, upstream: RawUpstream, recording: Recording, at: int, how: str) -> list[str]:
    """What is wrong with how a stream that ends at a byte reaches the client and the store."""

    async def answer(line: Line) -> None:
        await line.begin()
        await line.send(recording.bytes[:at])
        await line.end(how)

    upstream.answer, name = answer, f"cut-{recording.format}-{at}-{how}"
    async with connected(gate.url) as client:
        await client.post(recording.path, recording.request, x_refold_conversation=name, connection="close")
        head, got, is_ended = split_answer(await client.read_all())
    kept, is_whole = await kept_of(gate, head, name), at >= recording.whole
    found = []
    if not recording.text.startswith("".join(_texts(kept))):
        found.append("something else is kept than was said")
    if kept["is_whole"] is not is_whole:
        found.append(f"kept as whole: {kept['is_whole']}")
    if not is_whole:
        found += ["taken for whole"] if recording.says_whole(got) else []
        found += ["nobody is told"] if is_ended and b"error" not in got and b" 200 " in head else []
    elif not got.startswith(recording.bytes[: recording.whole]):
        found.append("not all of a whole reply came")
    return [f"{recording.format}, {how} at {at}: {one}" for one in found]


def _texts(kept: dict) -> list[str]:
    return [] if kept["is_whole"] else [kept["text"]]


async def run_cuts(most: int) -> tuple[int, list[str]]:
    plan = [
        (recording, at, how) for name in FORMATS for recording, at, how in ways_to_cut(record(name), most)
    ]
    found: list[str] = []
    async with RawUpstream(lambda line: line.end("close")) as upstream:
        for first in range(0, len(plan), EACH):
            async with served(upstream) as gate:
                for recording, at, how in plan[first : first + EACH]:
                    found += await cut(gate, upstream, recording, at, how)
    return len(plan), found


def ways_to_cut(recording: Recording, most: int) -> Iterator[tuple[Recording, int, str]]:
    """Every cut in one of the ways, by turns; where everything is tried, in all of them."""
    is_all = most >= len(recording.bytes)
    for at in cuts_of(recording, most):
        for how in WAYS if is_all else (WAYS[(at + at // 7) % 3],):
            yield recording, at, how


@pytest.mark.feature("X20")
async def test_a_stream_that_is_cut_anywhere_is_never_taken_for_a_whole_one():
    count, found = await run_cuts(60)

    assert found == []
    assert count > 250


@pytest.mark.slow
@pytest.mark.feature("X20")
async def test_a_stream_that_is_cut_at_every_byte_is_never_taken_for_a_whole_one(capsys):
    count, found = await run_cuts(10**6)

    with capsys.disabled():
        sys.stdout.write(f"\nStreams: {count} cuts at every byte of three recordings: wrong {len(found)}\n")
    assert found == []


@pytest.mark.feature("X20")
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", FORMATS)
async def test_the_official_clients_see_that_a_stream_was_cut(name, how):
    recording = record(name)
    cuts = random.Random(SEED).sample(range(recording.whole), 4)

    async with RawUpstream(lambda line: line.end("close")) as upstream, served(upstream) as gate:
        for at in (*cuts, recording.whole - 2, recording.whole_event):
            upstream.answer = _cut_at(recording, at, how)
            with pytest.raises(BROKEN):
                await read_with_sdk(gate, name)


BROKEN = (openai.APIError, anthropic.APIError, httpx2.HTTPError)


def _cut_at(recording: Recording, at: int, how: str):
    async def answer(line: Line) -> None:
        await line.begin()
        await line.send(recording.bytes[:at])
        await line.end(how)

    return answer


async def read_with_sdk(gate, name: str) -> None:
    """Stream a reply to its end, as an application does."""
    said = [{"role": "user", "content": "How are you?"}]
    async with gate.anthropic() if name == "anthropic" else gate.openai() as client:
        if name == "chat":
            stream = await client.chat.completions.create(model="gpt-5", messages=said, stream=True)
        elif name == "responses":
            stream = await client.responses.create(model="gpt-5", input=said, stream=True)
        else:
            stream = await client.messages.create(model="claude", messages=said, max_tokens=9, stream=True)
        async for _ in stream:
            pass


def splits(size: int, most: int) -> list[tuple[int, int]]:
    """Every way to cut a stream into two or three; a sample of those into three."""
    two = [(at, size) for at in range(1, size)]
    three = [(one, other) for one in range(1, size) for other in range(one + 1, size)]
    chosen = three if len(three) <= most else random.Random(SEED).sample(three, most)
    return two + chosen


async def run_splits(most: int) -> tuple[int, list[str]]:
    count, found = 0, []
    for name, text in STREAMS.items():
        stream = text.encode()
        async with Loose() as loose:
            whole = await ask_in(loose, name, [stream])
            assert (whole.body, whole.is_ended) == (stream, True)
            assert msgspec.json.decode(whole.kept)["is_whole"] is True
            ways = [(one, other) for one, other in splits(len(stream), most)]
            cut = [[stream[:one], stream[one:other], stream[other:]] for one, other in ways]
            cut.append([stream[at : at + 1] for at in range(len(stream))])
            wrong = [pieces for pieces in cut if (await ask_in(loose, name, pieces)).same != whole.same]
        count, found = count + len(cut), found + [f"{name}: {[*map(len, one)]}" for one in wrong]
    return count, found


async def ask_in(loose: Loose, name: str, pieces: list[bytes]) -> Got:
    return await loose.ask(PATHS[name], record(name).request, pieces)


@pytest.mark.feature("X5", "X20")
async def test_in_whatever_pieces_a_stream_comes_the_client_and_the_store_get_the_same():
    count, found = await run_splits(300)

    assert found == []
    assert count > 1_200


@pytest.mark.slow
@pytest.mark.feature("X5", "X20")
async def test_in_all_pieces_that_a_stream_can_come_in_it_is_the_same(capsys):
    count, found = await run_splits(10**9)

    with capsys.disabled():
        sys.stdout.write(
            f"\nStreams: {count} ways to split three streams into two or three: differences {len(found)}\n"
        )
    assert found == []
