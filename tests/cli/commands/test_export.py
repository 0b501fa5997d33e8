"""`refold export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refold.wire import decode_transcript

FILES = (
    "examples/coding-agent.json",
    "examples/research.responses.jsonl",
    "examples/support-chat.anthropic.json",
)


def raws(data: bytes) -> list[bytes]:
    return [bytes(message.origin.raw) for message in decode_transcript(data).messages]


@pytest.mark.parametrize("path", FILES)
def test_what_came_in_goes_out_byte_for_byte(refold, store, path):
    assert refold("import", path, "--as", "a").code == 0
    before, after = Path(path).read_bytes(), refold("export", "a").out.encode()

    assert raws(after) == raws(before)
    came, left = decode_transcript(before), decode_transcript(after)
    assert (left.system, left.tools, left.model) == (came.system, came.tools, came.model)
    assert left.fields.keys() == came.fields.keys()


def test_lines_come_out_as_the_file_that_came(refold, store):
    refold("import", FILES[1], "--as", "a")

    assert refold("export", "a", "--lines").out == Path(FILES[1]).read_text()


def test_an_export_can_be_imported_again(kept):
    exported = kept("export", "shifts").out.encode()
    assert kept("import", "-", "--as", "again", stdin=exported).code == 0

    assert kept("export", "again").out.encode() == exported


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("wanted", ["chat", "responses", "anthropic"])
def test_another_format_is_a_valid_transcript(refold, store, path, wanted):
    refold("import", path, "--as", "a")
    left = refold("export", "a", "--format", wanted).out.encode()

    assert refold("check", "-", "--format", wanted, stdin=left).code == 0
    assert decode_transcript(left).dialect.name == wanted
    assert bool(decode_transcript(left).tools) == bool(decode_transcript(Path(path).read_bytes()).tools)


def test_the_system_prompt_and_the_tools_are_sent_again_in_another_program(kept, store):
    import asyncio

    from refold import Engine

    async def work():
        async with Engine(f"sqlite:///{store}") as engine:
            return await (await engine.conversation("shifts")).context()

    fields = asyncio.run(work())
    came = json.loads(Path(FILES[0]).read_text())
    assert fields["tools"] == came["tools"]
    assert fields["messages"][0] == came["messages"][0]
