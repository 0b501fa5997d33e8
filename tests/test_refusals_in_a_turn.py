"""A provider that refuses requests of a long tool loop, whatever it says about their length, ends no conversation."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from refold import RecoverySpent
from refold.sync import Conversation


def refusal(prompt: int, window: int) -> bytes:
    message = f"prompt is too long: {prompt} tokens > {window} maximum"
    return json.dumps(
        {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    ).encode()


@pytest.mark.parametrize("refused", [{3}, {3, 4}, {3, 4, 6}, {2, 3, 4, 5, 6}])
@pytest.mark.parametrize("prompt", [3_600, 5_200, 20_000])
def test_a_refused_tool_loop_goes_on(refused, prompt):
    talk = Conversation("claude-sonnet-4-5", format="anthropic", window=4_000, max_output=300)
    talk.add({"role": "user", "content": "Port the ferry timetable. " + "The ferry is late. " * 15})
    for turn in range(14):
        talk.context()
        if turn in refused:
            with suppress(
                RecoverySpent
            ):  # one call may fail: the provider counts twenty times as many tokens
                talk.recover(refusal(prompt, 3_500))
        talk.record({"input_tokens": talk.measurement.input, "output_tokens": 40})
        call = {"type": "tool_use", "id": f"c{turn}", "name": "read_file", "input": {"path": f"a{turn}.py"}}
        result = {
            "type": "tool_result",
            "tool_use_id": f"c{turn}",
            "content": f"r{turn} " + "quay pier boat " * 160,
        }
        talk.add({"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, call]})
        talk.add({"role": "user", "content": [result]})
    assert talk.context()["messages"]
