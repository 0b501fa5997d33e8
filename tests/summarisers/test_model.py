from __future__ import annotations

import asyncio
import logging
from copy import copy

import pytest
from msgspec import structs

from refold.core.digest.ledger import Ledger
from refold.core.prompts import DEFAULT, Prompts, Recipe
from refold.model.errors import ConfigError, UpstreamUnavailable
from refold.model.message import Reasoning, ToolCall
from refold.model.tokens import Usage
from refold.summarisers import MemoryCache, ModelSummariser
from tests.summarisers.scripted_upstream import GOOD, Scripted, said, task, writer


@pytest.mark.feature("L10", "X6")
async def test_a_model_of_its_own_writes_the_summary():
    upstream = Scripted(GOOD)
    summary = await ModelSummariser([writer(upstream)]).write(task())
    assert (summary.text, summary.kind, summary.first, summary.last) == (GOOD, "model", 0, 24)
    assert summary.usage == Usage(100, output=20)
    ask = upstream.asked[0]
    assert (ask.temperature, ask.max_output, ask.tools) == (0.3, 600, ())
    assert "do not answer it" in ask.system
    assert "question 5" in ask.messages[0].text


@pytest.mark.feature("C16")
async def test_a_summary_is_no_longer_than_the_recipe_allows():
    upstream = Scripted(GOOD)
    await ModelSummariser([writer(upstream)], Recipe(max_tokens=200, temperature=None)).write(task())
    assert (upstream.asked[0].max_output, upstream.asked[0].temperature) == (200, None)


@pytest.mark.feature("N3", "C11")
@pytest.mark.parametrize(
    "bad",
    [
        "",
        "## Goal\n",
        "I'm sorry, but I can't help with that.",
        said("## Goal\nA beginning of", "length"),
        said("", "stop", Reasoning("thinking about it")),
        said("I will look.", "tool_calls", ToolCall("c", "read_file", "{}")),
        UpstreamUnavailable(),
    ],
)
async def test_what_fails_twice_goes_to_the_next_of_the_chain(bad):
    first, second = Scripted(bad, model="first"), Scripted(GOOD, model="second")
    summariser = ModelSummariser([writer(first), writer(second)])
    summary = await summariser.write(task())
    assert summary.text == GOOD
    assert summariser.problems
    assert all(problem.startswith("first: ") for problem in summariser.problems)
    assert await ModelSummariser([writer(first)]).write(task(focus="other")) is None


async def test_what_a_copy_is_asked_is_told_by_the_original_too():
    """A conversation has a copy write, so that the cost of its task is known though others ask at the same time."""
    first, second = Scripted("", model="first"), Scripted(GOOD, model="second")
    summariser = ModelSummariser([writer(first), writer(second)])
    one, other = copy(summariser), copy(summariser)
    summary = await one.write(task())
    assert (one.spent, one.problems) == (summariser.spent, summariser.problems)
    assert summariser.spent == summary.usage
    assert summariser.problems
    assert (other.spent, other.problems) == (Usage(), [])


@pytest.mark.feature("N3")
async def test_facts_that_must_stay_are_added():
    ledger = Ledger(rules=("Never touch main.py.",), modified=("src/f2.py",))
    summary = await ModelSummariser([writer(Scripted(GOOD))]).write(task(ledger=ledger))
    assert "- Never touch main.py." in summary.text
    assert "- src/f2.py" in summary.text


@pytest.mark.feature("X14")
async def test_the_same_span_with_the_same_recipe_is_paid_for_once():
    upstream, cache = Scripted(GOOD), MemoryCache()
    summariser = ModelSummariser([writer(upstream)], cache=cache)
    first, second = await summariser.write(task()), await summariser.write(task())
    assert first.text == second.text
    assert second.usage == Usage()
    assert len(upstream.asked) == 1
    await summariser.write(task(focus="the login"))
    await ModelSummariser([writer(upstream)], Recipe(temperature=0.0), cache).write(task())
    mine = structs.replace(DEFAULT, fresh="Sum it up.")
    await ModelSummariser([writer(upstream)], Recipe(prompts=mine), cache).write(task())
    assert len(upstream.asked) == 4


@pytest.mark.feature("X14")
async def test_another_rule_or_scope_is_another_summary_of_the_same_answer():
    upstream, cache = Scripted(GOOD), MemoryCache()
    summariser = ModelSummariser([writer(upstream)], cache=cache)
    plain = await summariser.write(task())
    ruled = await summariser.write(task(ledger=Ledger(rules=("Never touch main.py.",))))
    assert "Never touch main.py." in ruled.text
    assert (await summariser.write(task(scope="cumulative"))).scope == "cumulative"
    assert len({plain.recipe, ruled.recipe}) == 2
    assert len(upstream.asked) == 1


@pytest.mark.feature("C11")
async def test_a_setting_that_fails_leads_to_the_next_of_the_chain():
    first, second = (
        Scripted(ConfigError("the key command failed"), model="first"),
        Scripted(GOOD, model="second"),
    )
    assert (await ModelSummariser([writer(first), writer(second)]).write(task())).text == GOOD


@pytest.mark.feature("X14", "C11")
async def test_every_try_is_on_the_bill_whoever_made_it():
    first, second = Scripted("", model="first"), Scripted("", GOOD, model="second")
    summariser = ModelSummariser([writer(first), writer(second)])
    assert (await summariser.write(task())).usage == summariser.spent == Usage(400, output=80)
    assert await ModelSummariser([writer(first)]).write(task()) is None
    again = await summariser.write(task())
    assert (again.text, again.usage) == (GOOD, Usage(200, output=40))  # the first was asked in vain once more


@pytest.mark.feature("X6")
async def test_a_failure_is_logged_by_its_kind_alone(caplog):
    upstream = Scripted(UpstreamUnavailable("the secret word xylophone"))
    with caplog.at_level(logging.WARNING):
        assert await ModelSummariser([writer(upstream)]).write(task()) is None
    assert caplog.messages == ["no summary by small: UpstreamUnavailable"]


@pytest.mark.feature("X10")
async def test_an_extractive_policy_asks_no_model():
    upstream = Scripted(GOOD)
    assert await ModelSummariser([writer(upstream)], Recipe(strategy="extractive")).write(task()) is None
    assert upstream.asked == []


@pytest.mark.feature("C12", "X6")
async def test_the_policy_says_how_and_whoever_asks_may_say_otherwise():
    policy, own = Recipe(temperature=0.7, max_tokens=100), Recipe(temperature=0.0)
    upstream = Scripted(GOOD)
    await ModelSummariser([writer(upstream)]).write(task(recipe=policy))
    await ModelSummariser([writer(upstream)], own).write(task(recipe=policy))
    assert [(ask.temperature, ask.max_output) for ask in upstream.asked] == [(0.7, 100), (0.0, 600)]


@pytest.mark.feature("C12")
async def test_prompts_can_be_replaced_and_one_serves_for_updates_too():
    upstream = Scripted(GOOD)
    mine = Prompts(fresh="Sum it up in {words} words.", update="")
    summariser = ModelSummariser([writer(upstream)], Recipe(prompts=mine))
    await summariser.write(task())
    await summariser.write(task(previous="The old story."))
    summariser.recipe = Recipe(prompts=structs.replace(mine, update="Bring it up to date."))
    await summariser.write(task(previous="The old story."))
    ends = [question.rpartition("\n\n")[2] for question in upstream.questions]
    assert ends == ["Sum it up in 270 words."] * 2 + ["Bring it up to date."]


@pytest.mark.feature("C11")
@pytest.mark.parametrize(
    "error", [TimeoutError(), RuntimeError("the session is closed"), KeyError("choices")]
)
async def test_whatever_stops_one_model_the_next_is_asked(error):
    first, second = Scripted(error, model="first"), Scripted(GOOD, model="second")
    summariser = ModelSummariser([writer(first), writer(second)])
    assert (await summariser.write(task())).text == GOOD
    assert summariser.problems == [f"first: {type(error).__name__}"]


@pytest.mark.feature("C11")
async def test_who_is_told_to_stop_asks_nobody_else():
    async def never(ask):
        raise asyncio.CancelledError

    first, second = Scripted(model="first"), Scripted(GOOD, model="second")
    first.ask = never
    with pytest.raises(asyncio.CancelledError):
        await ModelSummariser([writer(first), writer(second)]).write(task())
    assert second.asked == []
