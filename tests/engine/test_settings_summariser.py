from __future__ import annotations

import pytest
from msgspec import structs

from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.engine.settings import (
    ConversationSettings,
    open_summariser,
    providers_for,
    summariser_for,
    with_block,
)
from refold.model.errors import ConfigError
from refold.upstreams import Provider
from tests.summarisers.scripted_upstream import GOOD, Scripted, task

OWN = Provider("mine", base_url="http://localhost:1/v1", key_env="KEY", parameters={"top_p": 0.9})
SETTINGS = ConversationSettings(model="gpt-4o", window=9_000)
EXTRACTIVE = structs.replace(PRESETS["refold"], recipe=Recipe(strategy="extractive"))


@pytest.mark.feature("L10")
class TestWho:
    def test_nobody_named_is_the_conversation_s_own(self):
        assert providers_for(SETTINGS, OWN) == (structs.replace(OWN, model="gpt-4o"),)

    def test_another_model_of_the_same_provider(self):
        settings = structs.replace(SETTINGS, summarisers=(Provider("", "small", parameters={"seed": 1}),))
        (found,) = providers_for(settings, OWN)
        assert (found.name, found.model, found.base_url, found.key_env) == (
            "mine",
            "small",
            OWN.base_url,
            "KEY",
        )
        assert found.parameters == {"top_p": 0.9, "seed": 1}

    def test_others_with_their_own_keys_in_their_order(self):
        others = (Provider("openai", key_env="OTHER"), Provider("anthropic", "claude-haiku-4-5"))
        settings = structs.replace(SETTINGS, summarisers=others)
        found = providers_for(settings, OWN)
        assert [(one.name, one.model, one.key_env) for one in found] == [
            ("openai", "gpt-4o", "OTHER"),
            ("anthropic", "claude-haiku-4-5", ""),
        ]

    async def test_each_has_its_own_window(self):
        own, other = Scripted(GOOD, model="gpt-4o"), Scripted(GOOD, model="claude-haiku-4-5")
        assert [writer.window for writer in summariser_for(SETTINGS, own).chain] == [9_000]
        chain = summariser_for(SETTINGS, own, (other, own)).chain
        assert [(writer.upstream.model, writer.window) for writer in chain] == [
            ("claude-haiku-4-5", 200_000),
            ("gpt-4o", 9_000),
        ]
        assert (await summariser_for(SETTINGS, own).write(task())).text == GOOD

    async def test_a_window_that_nobody_knows_can_be_told(self):
        settings = structs.replace(SETTINGS, summarisers=(Provider("", "mystery"),))
        async with open_summariser(settings, OWN, windows={"mystery": 3_000}, environ={"KEY": "k"}) as found:
            assert found.chain[0].window == 3_000

    async def test_a_key_that_is_missing_is_found_at_once(self):
        with pytest.raises(ConfigError, match="KEY"):
            async with open_summariser(SETTINGS, OWN, environ={}):
                pass


@pytest.mark.feature("X10", "C16")
@pytest.mark.parametrize(
    "settings",
    [ConversationSettings(policy=EXTRACTIVE), with_block({"enabled": False}, ConversationSettings())],
)
async def test_where_no_model_has_to_write_none_is_opened(settings):
    assert summariser_for(settings, Scripted(GOOD)) is None
    async with open_summariser(settings, OWN, environ={}) as found:
        assert found is None


@pytest.mark.feature("C16", "L10")
class TestBlock:
    def test_it_names_who_writes(self):
        values = {"provider": "anthropic", "model": "claude-haiku-4-5", "parameters": {"top_k": 3}}
        settings = with_block(values, SETTINGS)
        assert settings.summarisers == (Provider("anthropic", "claude-haiku-4-5", parameters={"top_k": 3}),)
        assert settings.summarisers[0].parameters == {"top_k": 3}
        assert (settings.model, settings.window) == ("gpt-4o", 9_000)

    def test_without_a_name_the_conversation_s_own_writes(self):
        settings = with_block({"prompt": "Sum it up.", "provider": None}, SETTINGS)
        assert settings.summarisers == ()
        assert settings.policy.recipe.prompts.fresh == "Sum it up."
        assert with_block({"parameters": {"temperature": 0}}, SETTINGS).summarisers == ()

    def test_who_writes_already_goes_on_where_it_names_nobody(self):
        others = (Provider("openai", "gpt-4o-mini", parameters={"seed": 1}), Provider("anthropic"))
        settings = structs.replace(SETTINGS, summarisers=others)
        assert with_block({"prompt": "Sum it up."}, settings).summarisers == others
        found = with_block({"parameters": {"temperature": 0, "top_p": 0.5}}, settings).summarisers
        assert [(one.name, one.parameters) for one in found] == [
            ("openai", {"seed": 1, "top_p": 0.5}),
            ("anthropic", {"top_p": 0.5}),
        ]
        assert with_block({"model": "o4-mini"}, settings).summarisers == (Provider("", "o4-mini"),)

    def test_what_is_wrong_is_named(self):
        with pytest.raises(ConfigError, match=r"summarization\.reserveRatio"):
            with_block({"reserveRatio": 5}, SETTINGS)
