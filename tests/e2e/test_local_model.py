"""A true model, small and poor, writes the summaries of a conversation.

It runs on this machine: `pip install 'refold[local]'` and `refold local install` once. Nothing is fetched here. What such a
model writes differs from one machine to the next, so what is asserted holds whatever it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from msgspec import structs
from openai import AsyncOpenAI, AuthenticationError

from refold import Conversation
from refold.cli.main import run as run_program
from refold.core.presets import PRESETS
from refold.core.prompts import Prompts, Recipe
from refold.local import ServedModel, serve_local, weights_path
from refold.model.summary import Summary
from refold.ports.models import SummaryTask
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.upstreams import Provider, Retries, open_upstream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed (extra local)"),
    pytest.mark.skipif(not weights_path().is_file(), reason="no weights: refold local install"),
]

AHEAD = structs.replace(PRESETS["refold"], soft=0.6, prepares=False)
RULES = ("Never touch billing/tax.py.", "Always answer in one line.", "You must keep the public API.")
WISHES = (
    "add a function that rounds prices",
    "rename the class Invoice to Bill",
    "write a test for the empty basket",
    "remove the print statements",
    "read the currency from the settings",
    "handle a negative amount",
)
FILES = tuple(f"src/module_{number}.py" for number in range(len(WISHES)))
SHORT = Prompts(
    system="You summarise conversations in plain words.",
    fresh="Summarise the conversation above in one short paragraph: what the user asked for, and what was done.",
)
RECIPES = {
    "our own words": Recipe(max_tokens=320),
    "words for a small model": Recipe(prompts=SHORT, strategy="selective", max_tokens=320),
}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedModel]:
    with serve_local() as running:
        yield running


class Watched:
    """A summariser, and what became of everything that it was asked for."""

    def __init__(self, summariser: ModelSummariser) -> None:
        self.summariser, self.verdicts = summariser, list[tuple[Summary | None, list[str]]]()

    async def write(self, task: SummaryTask) -> Summary | None:
        summary = await self.summariser.write(task)
        self.verdicts.append((summary, self.summariser.problems))
        return summary


def turn(number: int) -> list[dict]:
    path, said = FILES[number % len(FILES)], " ".join(RULES) if number == 0 else ""
    arguments = f'{{"path": "{path}", "content": "value = {number}"}}'
    function = {"name": "write_file", "arguments": arguments}
    return [
        {"role": "user", "content": f"Please {WISHES[number % len(WISHES)]} in {path}. {said}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"wrote {path}\n" + "value = 1\n" * 60},
        {"role": "assistant", "content": f"Done: I changed {path} as you asked, and the tests pass."},
    ]


def shown(fields: dict) -> str:
    return "\n".join(str(message.get("content")) for message in fields["messages"])


async def converse(talk: Conversation, turns: int) -> dict:
    """Say so many turns, up to the point at which the last one waits for its reply."""
    for number in range(turns):
        if number:
            await talk.add(turn(number - 1)[-1])
        await talk.add(*turn(number)[:-1])
        await talk.ready()
        fields = await talk.context()
    return fields


@pytest.mark.feature("N3")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
async def test_what_a_small_model_writes_is_mended_or_refused_and_the_conversation_goes_on(served, recipe):
    provider = Provider(
        "local",
        served.model,
        base_url=served.base_url,
        headers=served.headers,
        parameters={"seed": 7, "repeat_penalty": 1.1},
        retries=Retries(tries=1),
    )
    async with open_upstream(provider, environ={}) as upstream:
        writer = SummaryWriter(upstream, served.window, lambda text: len(text) // 3)
        watched = Watched(ModelSummariser([writer], recipe))
        settings = {"window": 2_200, "max_output": 0, "policy": AHEAD, "summariser": watched}
        async with Conversation("gpt-4o", **settings) as talk:
            fields = await converse(talk, len(FILES))
            told, used = shown(fields), [one.summary for one in talk.receipts if one.summary]
            async with AsyncOpenAI(base_url=served.base_url, api_key=served.key, max_retries=0) as client:
                reply = await client.chat.completions.create(model=served.model, max_tokens=24, **fields)
            await talk.record(reply.usage)
            await talk.add({"role": "assistant", "content": reply.choices[0].message.content or "Done."})
            await talk.add(*turn(len(FILES))[:-1])
            later = shown(await talk.context())
            first = await talk.recall("#m0")

    assert watched.verdicts
    for summary, problems in watched.verdicts:
        assert summary.checks if summary else problems
    assert used
    for window in (told, later):
        assert [rule for rule in RULES if rule not in window] == []
        assert [path for path in FILES if path not in window] == []
    real = {*FILES, "billing/tax.py"}
    assert {path for one in used for path in re.findall(r"[\w/.]*\w+\.py\b", one.text)} <= real
    assert 0 < reply.usage.prompt_tokens < served.window
    assert all(rule in first["content"] for rule in RULES)


async def test_whoever_does_not_know_the_key_is_turned_away(served):
    message = {"role": "user", "content": "Hello!"}
    async with AsyncOpenAI(base_url=served.base_url, api_key="guessed", max_retries=0) as client:
        with pytest.raises(AuthenticationError):
            await client.chat.completions.create(model=served.model, max_tokens=1, messages=[message])


def test_it_answers_in_the_terminal_chat_where_no_model_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_STORE", f"sqlite:///{tmp_path / 'chats.db'}")

    assert run_program(["chat", "vik", "--once", "Say hello."]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "on this machine answers" in err
    assert run_program(["chat", "vik", "--once", "/status"]) == 0
    assert "🧠 Model: local" in capsys.readouterr().out
