"""The example agent that recalls: what left its context is opened by the model itself, through OpenAI's own client."""

from __future__ import annotations

import re
from collections.abc import Callable

import openai
import pytest

from examples import recall_loop
from refold.testing import Received, Say, ScriptedUpstream, call, say
from refold.tokens import counter_for

MODEL = "gpt-4o"
GOAL = "Read the logs of all harbours. Then I will want to know something about one of them."
HARBOURS = 40
HOURS = 36
Question = dict[str, object] | str | Callable[[str], dict[str, object]]
SOUGHT = "mooring 7023: 23 boats, 713 crates"


def read_file(path: str) -> str:
    number = int(path.removeprefix("logs/").removesuffix(".txt"))
    return "\n".join(
        f"mooring {7000 + number * HOURS + hour}: {hour} boats, {(number * 57 + hour * 31) % 977} crates"
        for hour in range(HOURS)
    )


def first_handle(text: str) -> dict[str, object]:
    return {"what": re.search(r"#m\d+(?= (read_file|tool):?)", text)[0]}


class Model:
    """Reads every log, then asks for what it no longer sees: what its questions make of the last thing it was shown."""

    def __init__(self, *questions: Question) -> None:
        self.read, self.questions = 0, list(questions)
        self.shown = ""
        """Its context when it first asked."""

    def __call__(self, received: Received) -> Say:
        messages = received.json["messages"]
        if self.read < HARBOURS:
            self.read += 1
            return say(call("read_file", {"path": f"logs/{self.read - 1}.txt"}))
        last = (
            messages[-1]["content"] if self.shown else "\n".join(str(one.get("content")) for one in messages)
        )
        self.shown = self.shown or last
        if self.questions:
            question = self.questions.pop(0)
            return say(call("recall", question(last) if callable(question) else question))
        return say(last)


async def run(model: Model) -> tuple[str, list[str]]:
    """What the agent says at last, and the results of its calls that it still sees."""
    with ScriptedUpstream(otherwise=model, window=8_000, counter=counter_for(MODEL)) as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            said = await recall_loop.run_agent(
                client, MODEL, GOAL, {"read_file": read_file}, window=8_000, max_output=500
            )
    sent = server.requests[-1].json["messages"]
    return said, [message["content"] for message in sent if message["role"] == "tool"]


@pytest.mark.feature("N2")
async def test_a_model_opens_a_handle_that_stands_in_its_context():
    said, _ = await run(model := Model(first_handle))

    handle = first_handle(model.shown)["what"]
    original = read_file(f"logs/{int(handle[2:]) // 2 - 1}.txt")
    assert original not in model.shown
    assert said == f"{handle}, the result of a tool:\n{original}"


@pytest.mark.feature("N2")
async def test_where_no_handle_is_in_sight_words_find_one():
    said, results = await run(model := Model({"what": "crates at mooring 7023"}, first_handle))

    assert SOUGHT not in model.shown
    assert results[-2].splitlines()[1].startswith("#m2 tool: ")
    assert SOUGHT in results[-2].partition("\n#m")[2].partition("\n#m")[0]
    assert said == f"#m2, the result of a tool:\n{read_file('logs/0.txt')}"


async def test_a_wrong_question_does_not_stop_the_loop():
    said, results = await run(Model("{not json", {"what": "#m4000"}, {"what": "#m2"}))

    assert SOUGHT in said
    assert [text.splitlines()[0] for text in results[-3:]] == [
        "error: these are no arguments for recall",
        f"error: there is no message 4000: the last is #m{2 * HARBOURS + 3}",
        "#m2, the result of a tool:",
    ]
