"""`refold import`."""

from __future__ import annotations

import json

FILES = (
    "examples/coding-agent.json",
    "examples/research.responses.jsonl",
    "examples/support-chat.anthropic.json",
)


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
