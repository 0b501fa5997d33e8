"""`refold import` and `refold export`."""

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


def test_a_log_of_an_agent_is_a_conversation(refold, store, tmp_path):
    log = tmp_path / "session.jsonl"
    records = [
        {"type": "user", "uuid": "1", "parentUuid": None, "sessionId": "s", "message": {"role": "user", "content": "Fix it."}},
        {
            "type": "assistant", "uuid": "2", "parentUuid": "1", "sessionId": "s",
            "message": {"role": "assistant", "id": "x", "content": [{"type": "text", "text": "Fixed."}]},
        },
    ]  # fmt: skip
    log.write_text("".join(json.dumps(record) + "\n" for record in records))

    assert refold("import", str(log), "--as", "agent").code == 0
    shown = json.loads(refold("show", "agent", "--json").out)
    assert shown["format"] == "anthropic"
    assert [one["role"] for one in shown["messages"]] == ["user", "assistant"]


def test_a_conversation_with_messages_is_not_added_to_by_accident(kept):
    refused = kept("import", FILES[0], "--as", "shifts")

    assert (refused.code, refused.out) == (2, "")
    assert "has 134 messages already" in refused.err
    assert "--append" in refused.err
    assert json.loads(kept("conversations", "shifts", "--json").out)["conversations"][0]["messages"] == 134


def test_append_adds_to_it(kept, tmp_path):
    more = tmp_path / "more.json"
    more.write_text('[{"role": "user", "content": "One more thing."}]')

    added = json.loads(kept("import", str(more), "--as", "ferry", "--append", "--json").out)
    assert added == {"conversation": "ferry", "before": 2, "added": 1, "messages": 3}
    other = kept("import", FILES[2], "--as", "ferry", "--append")
    assert "the chat format, the file in anthropic" in other.err


def test_what_is_no_transcript_leaves_no_conversation(refold, store):
    assert refold("import", "-", "--as", "a", stdin=b'{"messages": 7}').code == 2
    assert refold("import", "nosuch.json", "--as", "a").code == 2

    assert not store.exists()


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
