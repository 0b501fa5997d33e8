from __future__ import annotations

import json

import pytest

from refold.model.errors import WireError
from refold.wire import decode_transcript

pytestmark = pytest.mark.feature("N6")


def record(kind: str, **payload) -> dict:
    return {"timestamp": "2026-04-02T08:00:00.000Z", "type": kind, "payload": payload}


def message(role: str, words: str) -> dict:
    block = "output_text" if role == "assistant" else "input_text"
    return record("response_item", type="message", role=role, content=[{"type": block, "text": words}])


def turn(words: str, answer: str) -> list[dict]:
    return [
        message("user", words),
        record("event_msg", type="user_message", message=words),
        message("assistant", answer),
        record("event_msg", type="agent_message", message=answer),
    ]


META = record("session_meta", id="0199-a", cwd="/w", base_instructions={"text": "You code."}, source="cli")
CALL = record("response_item", type="function_call", name="shell", arguments='{"cmd":"ls"}', call_id="c1")
OUTPUT = record("response_item", type="function_call_output", call_id="c1", output="setup.cfg")


def read(*records: dict):
    return decode_transcript("".join(json.dumps(one) + "\n" for one in records).encode())


def said(request) -> list[str]:
    return [message.text for message in request.messages if message.text]


def test_items_are_read_and_events_that_repeat_them_are_not():
    request = read(
        META,
        record("turn_context", model="gpt-5.5", cwd="/w"),
        *turn("List the files.", "I look."),
        record("response_item", type="reasoning", summary=[], content=None, encrypted_content="c2VhbA=="),
        CALL,
        OUTPUT,
        record("world_state", full=True),
        message("assistant", "One file."),
    )

    assert [message.role for message in request.messages] == [
        "user",
        "assistant",
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [message.text for message in request.system] == ["You code."]
    assert (request.dialect.name, request.model) == ("responses", "gpt-5.5")
    assert json.loads(bytes(request.fields["id"])) == "0199-a"
    assert json.loads(bytes(request.fields["source"])) == "codex"


def test_the_mark_of_a_compaction_is_no_message_and_what_was_before_it_stays():
    request = read(
        META,
        *turn("Call it aurora.", "Aurora."),
        record("compacted", message="The user named it.", replacement_history=[{"type": "message"}]),
        record("response_item", type="compaction", encrypted_content="b3BhcXVl"),
        record("response_item", type="ghost_snapshot", ghost_commit={"id": "f00"}),
        record("event_msg", type="context_compacted"),
        *turn("What is its name?", "Aurora."),
    )

    assert said(request) == ["Call it aurora.", "Aurora.", "What is its name?", "Aurora."]


@pytest.mark.parametrize("is_new", [False, True])
def test_turns_that_were_rolled_back_are_gone(is_new: bool):
    def prompt(words: str) -> list[dict]:
        event = record("event_msg", type="item_completed", item={"type": "UserMessage"})
        lines = turn(words, f"{words} done")
        return [event, lines[0], event, lines[2]] if is_new else lines

    request = read(
        META,
        message("user", "<environment_context/>"),
        *prompt("one"),
        *prompt("two"),
        CALL,
        OUTPUT,
        *prompt("three"),
        record("event_msg", type="thread_rolled_back", num_turns=2),
        *prompt("four"),
    )

    assert said(request) == ["<environment_context/>", "one", "one done", "four", "four done"]
    assert not [message for message in request.messages if message.calls]


def test_tokens_are_reported_for_the_call_before_with_the_cache_taken_out_of_the_input():
    tokens = {"input_tokens": 900, "cached_input_tokens": 700, "output_tokens": 30, "total_tokens": 930}
    count = record(
        "event_msg", type="token_count", info={"last_token_usage": tokens, "model_context_window": 9}
    )
    request = read(
        META,
        record("event_msg", type="token_count", info=None),
        *turn("Hi.", "Hello."),
        count,
        message("user", "Bye."),
        count,
    )

    assert json.loads(bytes(request.fields["usage"])) == [
        {"i": 1, "input": 200, "cache_read": 700, "cache_write": 0, "output": 30}
    ]


def test_an_error_names_the_line_and_no_content():
    broken = json.dumps(META) + '\n{"type": 5, "payload": "hunter2"}\n' + json.dumps(OUTPUT)

    with pytest.raises(WireError) as caught:
        decode_transcript(broken.encode())

    assert caught.value.place == "line 2, type"
    assert "hunter2" not in str(caught.value)
