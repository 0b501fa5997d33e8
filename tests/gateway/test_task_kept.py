"""The user's task behind the gateway: in every request that leaves, and in all that a model is shown that writes summaries."""

from __future__ import annotations

import msgspec
import pytest

from refold.testing import Received, ScriptedUpstream
from tests.e2e.test_gateway_sdks import prose
from tests.gateway.conftest import served

WINDOW = 16_000
TASK = "Port the ferry timetable of Vik to the ledger format; the code word is amberlantern."
ADDED = "<environment_context>\n<cwd>/srv/ferries</cwd>\n<shell>bash</shell>\n</environment_context>"
POOR = "## Progress\nThe assistant has read some files and went on with the work, step by step."


def is_question(received: Received) -> bool:
    """Is it a summary that is asked for?"""
    return b"read" not in received.body.partition(b'"tools"')[2]


def step(number: int, words: int) -> list[dict[str, object]]:
    call = {"name": "read", "arguments": msgspec.json.encode({"path": f"f{number}.txt"}).decode()}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"c{number}", "content": prose(number, words)},
    ]


async def play(gate, turns: int) -> None:
    """A client that sends its environment first, then works long on the first question and less on those after it."""
    history: list[dict[str, object]] = [{"role": "user", "content": ADDED}]
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    number = 0
    for turn in range(turns):
        said = f"Go on with step {turn}: {prose(turn, 20)}" if turn else TASK
        history.append({"role": "user", "content": said})
        for _ in range(1 if turn % 4 else 25):
            number += 1
            await send(gate, history, tool)
            history += step(number, 60 + 40 * (number % 4))
        await send(gate, history, tool)
        history.append({"role": "assistant", "content": prose(number, 40)})


async def send(gate, history, tool) -> None:
    body = {"model": "gpt-5", "messages": history, "tools": [tool], "max_tokens": 400}
    status, _, _ = await gate.post(
        "/v1/chat/completions", msgspec.json.encode(body), x_refold_conversation="port"
    )
    assert status == 200
    for live in (await gate.gateway.host("local")).table:
        await live.talk.ready()


@pytest.mark.parametrize("preset", ["refold", "opal"])
async def test_no_request_is_without_the_task_and_whoever_writes_is_shown_it(preset):
    def either(received: Received) -> str:
        return POOR if is_question(received) else "Fine."

    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        served(upstream, window=WINDOW, compaction_preset=preset) as gate,
    ):
        await play(gate, 13)

        questions = [one.body.decode() for one in upstream.requests if is_question(one)]
        sent = [one.body.decode() for one in upstream.requests if not is_question(one)]
        assert len(questions) > 1
        assert [TASK in body for body in sent] == [True] * len(sent)
        assert ["amberlantern" in body for body in questions] == [True] * len(questions)
        assert any(POOR.splitlines()[1] in body for body in sent)
