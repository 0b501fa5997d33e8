from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.json*"))
SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "xylophone"}
ORPHAN = {"role": "tool", "tool_call_id": "call_9", "content": "xylophone"}


def body(*messages: object, **fields: object) -> bytes:
    return json.dumps({**fields, "messages": messages}).encode()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_our_examples_break_no_rule(refold, path):
    code, out, err = refold("check", str(path), "--as-request")

    assert (code, err) == (0, "")
    assert out.startswith("no violations in ")


def test_a_violation_has_a_place_in_the_file_a_name_and_a_hint(refold):
    code, out, err = refold("check", "-", stdin=body(SYSTEM, USER, ORPHAN))

    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "messages[2]: orphan_result: the result for 'call_9' does not follow its call",
        "  hint: move it next to its call, or remove it",
        "1 violation in 3 messages",
    ]


def test_the_place_is_in_the_list_the_format_has(refold):
    items = {"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]}

    assert refold("check", "-", stdin=json.dumps(items).encode()).out.startswith("input[1]: orphan_result")


def test_a_system_prompt_outside_of_the_list_does_not_shift_the_index(refold):
    result = refold("check", "-", stdin=body({"role": "assistant", "content": "a"}, system="s"))

    assert result.out.startswith("messages[0]: starts_without_user")


def test_one_message_is_one_message(refold):
    assert refold("check", "-", stdin=body(USER)) == (0, "no violations in 1 message\n", "")


def test_a_transcript_may_end_where_a_request_may_not(refold):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    data = body(USER, {"role": "assistant", "content": None, "tool_calls": [call]})

    assert refold("check", "-", stdin=data).code == 0
    code, out, _ = refold("check", "-", "--as-request", stdin=data)
    assert code == 1
    assert "messages[1]: unanswered_call: " in out


def test_a_result_may_answer_a_call_that_the_provider_holds(refold):
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    alone = json.dumps({"model": "gpt-4o", "input": [result]}).encode()
    assert refold("check", "-", "--as-request", stdin=alone).code == 1
    for held in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        data = json.dumps({"model": "gpt-4o", "input": [result], **held}).encode()
        assert refold("check", "-", "--as-request", stdin=data).code == 0


def test_a_request_must_fit_into_the_window_with_its_reply(refold):
    data = body(SYSTEM, USER, max_tokens=246)

    assert refold("check", "-", "--as-request", "--window", "1000", stdin=data).code == 0
    code, out, _ = refold("check", "-", "--as-request", "--window", "256", stdin=data)
    assert code == 1
    assert out.startswith("the whole request: over_tokens: ")
    assert "do not fit into 10\n  hint: compact the conversation" in out
    assert refold("check", "-", "--window", "256", stdin=data).code == 0


def test_more_output_than_window_leaves_no_room_at_all(refold):
    _, out, _ = refold("check", "-", "--as-request", "--window", "256", stdin=body(USER, max_tokens=300))

    assert "do not fit into 0\n" in out


def test_a_request_must_fit_into_the_body_limit_of_its_format(refold):
    padding = " " * (32 * 1024 * 1024)
    data = body(USER, system="s").replace(b"{", b"{" + padding.encode(), 1)

    code, out, _ = refold("check", "-", "--as-request", "--model", "claude-sonnet-4-5", stdin=data)

    assert code == 1
    assert "the whole request: over_bytes: " in out


def test_the_document_for_programs(refold):
    code, out, err = refold("check", "-", "--json", "--as-request", stdin=body(SYSTEM, USER, ORPHAN))

    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "file": "stdin",
        "format": "chat",
        "messages": 3,
        "as_request": True,
        "violations": [
            {
                "index": 2,
                "rule": "orphan_result",
                "message": "the result for 'call_9' does not follow its call",
                "hint": "move it next to its call, or remove it",
            }
        ],
    }


def test_a_guessed_window_is_a_warning(refold):
    _, out, err = refold("check", "-", "--as-request", "--model", "nobody-knows-it", stdin=body(USER))

    assert out == "no violations in 1 message\n"
    assert err.startswith("warning: the window of 'nobody-knows-it' is unknown")


def test_ids_from_the_file_are_harmless_and_short(refold):
    orphan = {**ORPHAN, "tool_call_id": "\x1b[2J" + "x" * 10_000}

    out = refold("check", "-", stdin=body(USER, orphan)).out

    assert "\x1b" not in out
    assert len(out) < 500


def test_content_is_never_printed(refold):
    arguments = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "xylophone"}}
    data = body(USER, ORPHAN, {"role": "assistant", "content": "xylophone", "tool_calls": [arguments]})

    for options in ((), ("--json",), ("--as-request",)):
        code, out, err = refold("check", "-", *options, stdin=data)
        assert code == 1
        assert "xylophone" not in out + err
