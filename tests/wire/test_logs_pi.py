from __future__ import annotations

import json

import pytest

from refold.model.message import Image
from refold.wire import decode_transcript

pytestmark = pytest.mark.feature("N6")

HEADER = {"type": "session", "version": 3, "id": "pi-1", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"}


class Tree:
    """A session of version 3; `after` branches off an earlier entry."""

    def __init__(self):
        self.entries: list[dict] = []

    def add(self, kind: str, *, after: str = "", **fields) -> str:
        name = f"e{len(self.entries)}"
        parent = after or (self.entries[-1]["id"] if self.entries else None)
        time = f"2026-01-01T00:{len(self.entries):02}:00Z"
        self.entries.append({"type": kind, "id": name, "parentId": parent, "timestamp": time, **fields})
        return name

    def say(self, role: str, content, *, after: str = "", **fields) -> str:
        return self.add("message", after=after, message={"role": role, "content": content, **fields})

    def read(self):
        return read(HEADER, *self.entries)


def read(*lines: dict):
    return decode_transcript("".join(json.dumps(line) + "\n" for line in lines).encode())


def text(words: str) -> list[dict]:
    return [{"type": "text", "text": words}]


def call(name: str) -> dict:
    return {"type": "toolCall", "id": name, "name": "read", "arguments": {"path": "/a.py"}}


def said(request) -> list[tuple[str, str]]:
    return [
        (message.role, message.text or " ".join(result.text for result in message.results))
        for message in request.messages
    ]


def test_messages_calls_and_results():
    tree = Tree()
    tree.add("model_change", provider="anthropic", modelId="claude-sonnet-4-5")
    tree.say("user", "Read it.")
    tree.say(
        "assistant",
        [{"type": "thinking", "thinking": "A file."}, *text("Reading."), call("c1")],
        model="claude-sonnet-4-5",
        stopReason="toolUse",
        usage={"input": 10, "output": 5, "cacheRead": 90, "cacheWrite": 7, "cost": {"total": 0.01}},
    )
    tree.say("toolResult", text("x = 1"), toolCallId="c1", toolName="read", isError=False)

    request = tree.read()

    assert said(request) == [("user", "Read it."), ("assistant", "Reading."), ("tool", "x = 1")]
    (made,) = request.messages[1].calls
    assert (made.id, made.name, json.loads(made.arguments)) == ("c1", "read", {"path": "/a.py"})
    assert (request.dialect.name, request.model) == ("chat", "claude-sonnet-4-5")
    fields = {key: json.loads(bytes(raw)) for key, raw in request.fields.items()}
    assert fields["usage"] == [{"i": 1, "input": 10, "cache_read": 90, "cache_write": 7, "output": 5}]
    assert (fields["id"], fields["times"][0]) == ("pi-1", "2026-01-01T00:01:00Z")


def test_only_the_way_to_the_last_entry_is_the_conversation():
    tree = Tree()
    tree.say("user", "Start.")
    start = tree.say("assistant", text("Started."))
    tree.say("user", "Use MySQL.")
    tree.say("assistant", text("MySQL."))
    tree.add("branch_summary", after=start, summary="MySQL was tried.", fromId="e3")
    tree.say("user", "Use PostgreSQL.")

    assert [words for _, words in said(tree.read())] == [
        "Start.",
        "Started.",
        "MySQL was tried.",
        "Use PostgreSQL.",
    ]


def test_marks_and_compactions_are_no_messages():
    tree = Tree()
    kept = tree.say("user", "Name it aurora.")
    tree.say("assistant", text("Aurora."))
    tree.add("compaction", summary="The user named it.", firstKeptEntryId=kept, tokensBefore=50_000)
    tree.add("label", targetId=kept, label="checkpoint")
    tree.add("custom", customType="state", data={"n": 1})
    tree.say("compactionSummary", None, summary="The user named it.")
    tree.say("user", "Go on.")

    assert [words for _, words in said(tree.read())] == ["Name it aurora.", "Aurora.", "Go on."]


def test_what_pi_says_in_the_user_s_name():
    tree = Tree()
    picture = {"type": "image", "data": "aW1n", "mimeType": "image/png"}
    tree.say("user", [*text("Look."), picture])
    tree.add("message", message={"role": "bashExecution", "command": "make", "output": "ok", "exitCode": 0})
    tree.add(
        "message",
        message={"role": "bashExecution", "command": "env", "output": "TOKEN", "excludeFromContext": True},
    )
    tree.add("custom_message", customType="note", content="Remember the rota.", display=True)

    request = tree.read()

    assert said(request) == [("user", "Look."), ("user", "$ make\nok"), ("user", "Remember the rota.")]
    assert any(isinstance(part, Image) and part.data == "aW1n" for part in request.messages[0].parts)


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_replies_that_failed_go_with_the_results_of_their_calls(reason: str):
    tree = Tree()
    tree.say("user", "Read it.")
    tree.say("assistant", [call("c1")], stopReason=reason)
    tree.say("toolResult", text("half"), toolCallId="c1")
    tree.say("assistant", text("Sorry."), stopReason="stop")

    assert said(tree.read()) == [("user", "Read it."), ("assistant", "Sorry.")]


def test_the_first_version_had_no_tree():
    entries = [
        {
            "type": "message",
            "timestamp": "2025-12-01T00:00:01Z",
            "message": {"role": "user", "content": "Hi."},
        },
        {"type": "compaction", "timestamp": "2025-12-01T00:00:02Z", "summary": "Greeting."},
        {
            "type": "message",
            "timestamp": "2025-12-01T00:00:03Z",
            "message": {"role": "assistant", "content": text("Hello.")},
        },
    ]

    request = read({**HEADER, "version": 1, "provider": "anthropic"}, *entries)

    assert said(request) == [("user", "Hi."), ("assistant", "Hello.")]
