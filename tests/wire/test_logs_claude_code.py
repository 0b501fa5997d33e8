from __future__ import annotations

import json

import pytest

from refold.model.errors import WireError
from refold.model.message import ToolCall, ToolResult
from refold.wire import decode_transcript

pytestmark = pytest.mark.feature("N6")

SESSION = "5e551011-0000-4000-8000-000000000001"


class Session:
    """A log as the agent writes it: every record names the one before it."""

    def __init__(self, **common):
        self.lines: list[dict] = []
        self.common = {"isSidechain": False, "sessionId": SESSION, **common}

    def add(self, kind: str, *, after: str | None = "", **fields) -> str:
        uuid = f"u{len(self.lines)}"
        parent = self.lines[-1].get("uuid") if after == "" and self.lines else after or None
        time = f"2026-03-01T10:{len(self.lines):02}:00.000Z"
        record = {
            "parentUuid": parent,
            "type": kind,
            "uuid": uuid,
            "timestamp": time,
            **self.common,
            **fields,
        }
        self.lines.append(record)
        return uuid

    def user(self, content, **fields) -> str:
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def reply(self, name: str, block: dict, **fields) -> str:
        usage = {"input_tokens": 3, "cache_read_input_tokens": 500, "cache_creation_input_tokens": 40}
        message = {
            "id": name,
            "role": "assistant",
            "type": "message",
            "model": "claude-opus-4-6",
            "content": [block],
            "usage": {**usage, "output_tokens": len(self.lines)},
        }
        return self.add("assistant", message=message, **fields)

    def result(self, call: str, text: str, **fields) -> str:
        return self.user([{"type": "tool_result", "tool_use_id": call, "content": text}], **fields)

    @property
    def data(self) -> bytes:
        return "".join(json.dumps(line) + "\n" for line in self.lines).encode()

    def read(self):
        return decode_transcript(self.data)


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def call(name: str) -> dict:
    return {"type": "tool_use", "id": name, "name": "Read", "input": {"path": f"/src/{name}.py"}}


def said(request) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in request.messages]


def test_a_reply_on_several_lines_is_one_message_and_so_are_the_results_of_its_calls():
    log = Session()
    log.user("Fix the parser.")
    log.reply("msg_1", {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"})
    first = log.reply("msg_1", call("t1"))
    log.result("t1", "def parse(): ...")
    log.reply("msg_1", call("t2"), after=first)
    log.result("t2", "def lex(): ...")
    log.reply("msg_2", text("Both are fine."))

    request = log.read()

    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "assistant"]
    parts = request.messages[1].parts
    assert [part.id for part in parts if isinstance(part, ToolCall)] == ["t1", "t2"]
    assert [part.call_id for part in request.messages[2].parts if isinstance(part, ToolResult)] == [
        "t1",
        "t2",
    ]
    assert (request.dialect.name, request.model) == ("anthropic", "claude-opus-4-6")


def test_a_reply_is_dated_and_billed_by_its_last_line():
    log = Session()
    log.user("Hi.")
    log.reply("msg_1", text("Hello"))
    log.reply("msg_1", text("again."))

    fields = {key: json.loads(bytes(raw)) for key, raw in log.read().fields.items()}

    assert fields["times"] == ["2026-03-01T10:00:00.000Z", "2026-03-01T10:02:00.000Z"]
    assert fields["usage"] == [{"i": 1, "input": 3, "cache_read": 500, "cache_write": 40, "output": 2}]
    assert (fields["id"], fields["source"]) == (SESSION, "claude-code")


def test_what_the_client_wrote_for_itself_is_no_message():
    log = Session()
    log.lines.append({"type": "summary", "summary": "A title.", "leafUuid": "elsewhere"})
    log.lines.append({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}})
    log.user("Deploy to eu-west-1.", after=None)
    log.add("progress", data={"type": "hook_progress"})
    log.reply("msg_1", text("Done."))
    log.add("system", subtype="turn_duration", content="took a while")
    log.reply("msg_2", text("API Error: overloaded"), isApiErrorMessage=True)
    message = {"id": "x", "role": "assistant", "model": "<synthetic>", "content": [text("No response.")]}
    log.add("assistant", message=message)
    last = log.lines[-1]["uuid"]
    log.add("system", subtype="compact_boundary", after=None, logicalParentUuid=last)
    log.user("This session is continued from one that ran out of context.", isCompactSummary=True)
    log.user("And now to us-east-1.")

    assert said(log.read()) == [
        ("user", "Deploy to eu-west-1."),
        ("assistant", "Done."),
        ("user", "And now to us-east-1."),
    ]


def test_what_the_client_told_the_model_in_the_user_s_name_stays():
    log = Session()
    log.user("Use the release skill.")
    log.user("Skill: tag, build, publish.", isMeta=True)
    log.reply("msg_1", text("Tagging."))
    log.add("attachment", attachment={"type": "queued_command", "prompt": "Wait, use tag v2."})
    log.add("attachment", attachment={"type": "todo_reminder", "content": ["noise"]})

    assert [words for _, words in said(log.read())] == [
        "Use the release skill.",
        "Skill: tag, build, publish.",
        "Tagging.",
        "Wait, use tag v2.",
    ]


def test_sub_agents_are_not_part_of_the_session_that_called_them():
    log = Session()
    log.user("Find the bug.")
    log.reply("msg_1", call("t1"))
    log.user("You are a searcher.", isSidechain=True, agentId="a1b2c3")
    log.reply("msg_s", text("Found it."), isSidechain=True, agentId="a1b2c3")
    log.result("t1", "The bug is in lex().", after="u1")

    assert [message.role for message in log.read().messages] == ["user", "assistant", "tool"]


def test_the_log_of_a_sub_agent_is_a_session_of_its_own():
    log = Session(isSidechain=True, agentId="a1b2c3")
    log.user("You are a searcher.")
    log.reply("msg_s", text("Found it."))

    request = log.read()

    assert said(request) == [("user", "You are a searcher."), ("assistant", "Found it.")]
    assert json.loads(bytes(request.fields["id"])) == f"{SESSION}/a1b2c3"


def test_a_compaction_that_the_client_ran_as_a_sub_agent_is_no_session():
    log = Session(isSidechain=True, agentId="acompact-99")
    log.user("Everything so far, to be summarised.")

    with pytest.raises(WireError, match="has no messages"):
        log.read()


def test_a_prompt_that_was_replaced_goes_with_all_that_followed_from_it():
    log = Session()
    log.user("Start.")
    start = log.reply("msg_1", text("Started."))
    log.user("Use MySQL.")
    log.reply("msg_2", call("t1"))
    log.result("t1", "MySQL 8")
    log.reply("msg_3", text("MySQL it is."))
    hook = log.add("system", subtype="local_command", after=start)
    log.user("Use PostgreSQL.", after=hook)
    log.reply("msg_4", text("PostgreSQL it is."))

    assert [words for _, words in said(log.read())] == [
        "Start.",
        "Started.",
        "Use PostgreSQL.",
        "PostgreSQL it is.",
    ]


def test_a_link_that_leads_nowhere_loses_nothing():
    log = Session()
    log.user("One.")
    log.reply("msg_1", text("Two."))
    log.user("Three.", after="never-written")
    log.reply("msg_2", text("Four."))
    log.user("Five.", after="never-written-either")

    assert [words for _, words in said(log.read())] == ["One.", "Two.", "Three.", "Four.", "Five."]


def test_records_that_were_copied_on_resuming_are_read_once():
    log = Session()
    log.user("One.")
    log.reply("msg_1", text("Two."))
    log.lines += list(log.lines)
    log.user("Three.")

    assert [words for _, words in said(log.read())] == ["One.", "Two.", "Three."]


def test_half_a_line_at_the_end_is_nothing_and_half_a_line_elsewhere_is_an_error():
    log = Session()
    log.user("One.")
    log.reply("msg_1", text("Two."))
    first, second = log.data.splitlines(keepends=True)

    assert len(decode_transcript(first + second + second[:40]).messages) == 2
    with pytest.raises(WireError) as caught:
        decode_transcript(first + second[:40] + b"\n" + second)
    assert caught.value.place == "line 2"
    assert "Two" not in str(caught.value)
