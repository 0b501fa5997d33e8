from __future__ import annotations

import pytest

from refold.core.policy import MessagesToRefine, RemainingTokens, TokenRatio
from refold.core.presets import LIBRECHAT, LIBRECHAT_PROMPTS, WITHOUT_SUMMARIES, policy_of_block, read_block
from refold.core.stages import Trim
from refold.model.errors import ConfigError
from refold.model.tokens import Share

pytestmark = pytest.mark.feature("C16")


def policy(**values):
    return policy_of_block(read_block(values))


def test_an_empty_block_is_the_preset_itself():
    assert policy() == LIBRECHAT
    assert (LIBRECHAT.recipe.max_tokens, LIBRECHAT.recipe.temperature) == (2_048, 0.3)
    assert LIBRECHAT.reserve == Share(0.05)


def test_off_summarises_nothing():
    assert policy(enabled=False) == WITHOUT_SUMMARIES
    assert policy(enabled=False, contextPruning={"enabled": False}) == WITHOUT_SUMMARIES


@pytest.mark.parametrize(
    "trigger, expected",
    [
        (None, MessagesToRefine(1)),
        ({"type": "token_ratio", "value": 0.7}, TokenRatio(0.7, ">=", of="room")),
        ({"type": "remaining_tokens", "value": 500}, RemainingTokens(500)),
        ({"type": "token_ratio", "value": 0}, MessagesToRefine(1)),
        ({"type": "messages_to_refine", "value": 4}, MessagesToRefine(4)),
    ],
)
def test_every_kind_of_trigger(trigger, expected):
    assert policy(trigger=trigger).triggers == {"before_call": expected}


def test_the_length_is_taken_from_either_place_and_its_own_key_wins():
    assert policy(maxSummaryTokens=700).recipe.max_tokens == 700
    assert policy(parameters={"maxSummaryTokens": 800}).recipe.max_tokens == 800
    assert policy(maxSummaryTokens=700, parameters={"maxSummaryTokens": 800}).recipe.max_tokens == 700


def test_parameters_that_are_the_model_s_own_are_left_to_it():
    block = read_block({"parameters": {"temperature": 0.1, "maxSummaryTokens": 9, "top_p": 0.5}})
    assert block.fields == {"top_p": 0.5}
    assert policy_of_block(block).recipe.temperature == 0.1
    assert policy(parameters={"temperature": None}).recipe.temperature is None


@pytest.mark.feature("C12")
def test_prompts():
    mine = policy(prompt="Sum it up.").recipe.prompts
    assert (mine.fresh, mine.update) == ("Sum it up.", "")
    both = policy(prompt="Sum it up.", updatePrompt="Go on.").recipe.prompts
    assert (both.fresh, both.update) == ("Sum it up.", "Go on.")
    later = policy(updatePrompt="Go on.").recipe.prompts
    assert (later.fresh, later.update) == (LIBRECHAT_PROMPTS.fresh, "Go on.")


@pytest.mark.feature("C12")
def test_the_built_in_prompt_speaks_as_the_user_who_directs_the_assistant():
    for words in (LIBRECHAT_PROMPTS.fresh, LIBRECHAT_PROMPTS.update):
        assert words.startswith("Stop here")
        assert "I want you to" in words
        assert "Give me the checkpoint and nothing else" in words


def test_pruning_by_position_where_nothing_is_summarised():
    values = {"enabled": True, "keepLastAssistants": 1, "softTrimRatio": 0.2, "hardClearRatio": 0.4}
    more = {"minPrunableToolChars": 100, "softTrim": {"maxChars": 50}, "hardClear": {"enabled": False}}
    stages = policy(enabled=False, contextPruning={**values, **more}).stages
    assert stages[:-1] == WITHOUT_SUMMARIES.stages
    assert stages[-1] == Trim(1, 0.2, 0.4, 100, soft_max=50, hard_clear=False)
    plain = policy(enabled=False, contextPruning={"enabled": True})
    assert plain.stages[-1] == Trim()
    assert policy(contextPruning={"enabled": True}) == LIBRECHAT


def test_the_reserve():
    assert policy(reserveRatio=0.2).reserve == Share(0.2)


@pytest.mark.parametrize(
    "values, named",
    [
        ({"enabeld": False}, "summarization cannot be used: Object contains unknown field `enabeld`"),
        ({"enabled": "no"}, "summarization.enabled"),
        ({"provider": 3}, "summarization.provider"),
        ({"parameters": []}, "summarization.parameters"),
        ({"parameters": {"maxSummaryTokens": 0}}, "summarization.parameters.maxSummaryTokens"),
        ({"parameters": {"temperature": 3}}, "summarization.parameters.temperature"),
        ({"prompt": ""}, "summarization.prompt"),
        ({"trigger": {"type": "token_ratio", "value": 80}}, "summarization.trigger.value"),
        ({"trigger": {"type": "token_ratio", "value": float("nan")}}, "summarization.trigger.value"),
        ({"trigger": {"type": "sometimes", "value": 1}}, "summarization.trigger.type"),
        ({"trigger": {"type": "messages_to_refine"}}, "summarization.trigger"),
        ({"reserveRatio": 1}, "summarization.reserveRatio"),
        ({"maxSummaryTokens": -1}, "summarization.maxSummaryTokens"),
        ({"contextPruning": {"keepLastAssistants": 11}}, "summarization.contextPruning.keepLastAssistants"),
        ({"contextPruning": {"softTrimRatio": 2}}, "summarization.contextPruning.softTrimRatio"),
        ({"contextPruning": {"ratio": 2}}, "summarization.contextPruning cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(values, named):
    with pytest.raises(ConfigError) as error:
        read_block(values)
    assert error.value.message.startswith(named)
    assert error.value.hint
