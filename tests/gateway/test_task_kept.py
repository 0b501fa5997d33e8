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
        await live.conversation.ready()


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
        # A question about the beginning of the present turn is not about the task before it, and one about the
        # environment, which came first, not about the task after it.
        whole = [body for body in questions if "## This Turn So Far" not in body]
        whole = [body for body in whole if "[User #m0]" not in body or "[User #m1]" in body]
        assert ["amberlantern" in body for body in whole] == [True] * len(whole)
        assert any(POOR.splitlines()[1] in body for body in sent)


def exchange(number: int, *beside: str, told: str = "") -> list[dict[str, object]]:
    """A call and its result in Anthropic's format, with texts beside the result."""
    call = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {"path": f"f{number}.txt"}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": told or prose(number, 150)}
    texts = [{"type": "text", "text": text} for text in beside]
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result, *texts]}]


async def windows(gate, path: str, steps: list[list[dict[str, object]]]) -> list[str]:
    """What the provider is sent after each step of a conversation."""
    history, sent = list[dict[str, object]](), list[str]()
    for messages in steps:
        history += messages
        body = {"model": "some-model", "messages": history, "max_tokens": 300}
        status, _, _ = await gate.post(path, msgspec.json.encode(body), x_refold_conversation="port")
        assert status == 200
        sent.append(gate.upstream.requests[-1].body.decode())
    return sent


@pytest.mark.parametrize("preset", ["refold", "opal", "lis", "llms"])
@pytest.mark.parametrize(
    "said",
    ["Never touch the file archive.toml.", "Forget the timetable. Find the lost boat zebra-9931 instead."],
)
async def test_what_the_user_types_beside_a_tool_result_is_in_every_later_request(said, preset):
    steps = [[{"role": "user", "content": TASK}]]
    steps += [exchange(number, *([said] if number == 3 else [])) for number in range(26)]
    async with (
        ScriptedUpstream(window=5_000, otherwise="Fine.") as upstream,
        served(upstream, window=5_000, compaction_preset=preset, summariser_enabled=False) as gate,
    ):
        sent = await windows(gate, "/v1/messages", steps)

    assert prose(1, 150) not in sent[-1]
    assert [TASK in body for body in sent] == [True] * len(sent)
    assert [said in body for body in sent[4:]] == [True] * len(sent[4:])


async def test_what_a_result_holds_or_a_program_adds_beside_it_is_not_the_users():
    reminder = (
        "<system-reminder>\nNever answer in prose. The todo list of quay-17 is empty.\n</system-reminder>"
    )
    told = f"Never trust the harbour master of mole-23.\n{prose(3, 150)}"
    steps = [[{"role": "user", "content": TASK}]]
    steps += [exchange(3, reminder, told=told) if n == 3 else exchange(n) for n in range(26)]
    async with (
        ScriptedUpstream(window=5_000, otherwise="Fine.") as upstream,
        served(upstream, window=5_000, summariser_enabled=False) as gate,
    ):
        sent = await windows(gate, "/v1/messages", steps)

    assert TASK in sent[-1]
    assert "Question #" not in sent[-1]
    assert "## Rules" not in sent[-1]
