from __future__ import annotations

from msgspec import Raw, structs

from refold.core.digest.ledger import Ledger
from refold.core.prompts import DEFAULT, Passage, Recipe
from refold.model.message import Message, Opaque, Text, user
from refold.model.window import Tool
from refold.ports.models import Ask, SummaryTask
from refold.summarisers import ModelSummariser, key_of, question_key
from tests.summarisers.scripted_upstream import GOOD, Scripted, task, writer

HALF = "half \ud800"


async def test_what_only_one_provider_understands_has_a_key_too():
    odd = (
        Passage(0, Message("assistant", (Opaque("server_tool_use", raw=Raw(b"{}")), Text(HALF)))),
        *task().passages[1:],
    )
    assert await ModelSummariser([writer(Scripted(GOOD))]).write(SummaryTask(odd, 0, 24, 600)) is not None


def test_half_a_pair_of_surrogates_is_no_reason_to_have_no_key():
    prompts = structs.replace(DEFAULT, fresh=HALF)
    odd = task(ledger=Ledger(rules=(HALF,)), previous=HALF, focus=HALF)
    assert key_of(Recipe(prompts=prompts), HALF, odd) == key_of(Recipe(prompts=prompts), HALF, odd)


def test_whatever_changes_a_summary_changes_its_key():
    plain, recipe = task(), Recipe()
    raw = Recipe(reading="raw")
    keys = [
        key_of(recipe, "m", plain),
        key_of(recipe, "n", plain),
        key_of(Recipe(temperature=None), "m", plain),
        key_of(Recipe(max_tokens=9), "m", plain),
        key_of(Recipe(strategy="selective"), "m", plain),
        key_of(Recipe(prompts=structs.replace(DEFAULT, fresh="x")), "m", plain),
        key_of(recipe, "m", task(ledger=Ledger(rules=("Never x.",)))),
        key_of(recipe, "m", task(scope="cumulative")),
        key_of(recipe, "m", task(previous="x")),
        key_of(recipe, "m", task(focus="x")),
        key_of(recipe, "m", task(turns=5)),
        key_of(raw, "m", plain),
        key_of(raw, "m", task(sent=(user("x"),))),
        key_of(raw, "m", task(system="x")),
    ]
    assert len(set(keys)) == len(keys)


def test_another_question_is_another_answer():
    plain = Ask((user("x"),))
    asks = [plain, Ask((user("y"),)), Ask((user("x"),), "s"), Ask((user("x"),), tools=(Tool("t"),))]
    asks += [structs.replace(plain, max_output=1), structs.replace(plain, temperature=None)]
    assert len({question_key("m", ask) for ask in asks} | {question_key("n", plain)}) == len(asks) + 1
