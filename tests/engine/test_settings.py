from __future__ import annotations

import pytest
from msgspec import structs

from refold.core.presets import PRESETS
from refold.engine.settings import ConversationSettings, dialect_named, preset_named, read_prompt, state_for
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS
from refold.model.errors import BudgetError, ConfigError, WireError
from refold.model.message import Text, system
from refold.model.tokens import input_limit
from refold.model.window import FixedFields
from tests.core.conversations import TextCounter


def budget(**settings):
    return state_for(ConversationSettings(**settings))[0].frame.budget


class TestSizes:
    def test_a_known_model_brings_its_window_and_room_for_a_reply(self):
        memory, window = state_for(ConversationSettings(model="gpt-4o"))

        assert (window.tokens, window.source, window.warning) == (128_000, "catalogue", "")
        assert memory.frame.budget.max_output == 4_096
        assert input_limit(memory.frame.budget) == 128_000 - 4_096 - 1_280

    def test_a_small_window_is_not_all_reply(self):
        assert budget(model="gpt-4o", window=8_000).max_output == 1_000

    def test_a_model_that_writes_little_needs_no_more_room(self):
        assert budget(model="gpt-4", window=100_000).max_output <= 4_096

    def test_what_is_said_wins(self):
        found = budget(model="gpt-4o", window=8_000, max_output=100, limit=4_000)

        assert (found.window, found.max_output, found.limit) == (8_000, 100, 4_000)
        assert budget(model="gpt-4o", max_output=0).max_output == 0

    @pytest.mark.parametrize(
        ("preset", "limit"), [("refold", 9_900), ("lis", 9_900), ("picoclaw", 10_000), ("librechat", 9_500)]
    )
    def test_the_reserve_is_the_preset_s(self, preset, limit):
        state, _ = state_for(ConversationSettings(model="gpt-4o", preset=preset, window=10_000, max_output=0))
        assert input_limit(state.frame.budget) == limit

    @pytest.mark.feature("P2")
    def test_in_picoclaw_the_window_is_four_times_the_output_if_nothing_states_it(self):
        _, window = state_for(ConversationSettings(model="gpt-4o", preset="picoclaw", max_output=3_000))
        assert (window.tokens, window.source) == (12_000, "output")
        _, stated = state_for(
            ConversationSettings(model="gpt-4o", preset="picoclaw", max_output=3_000, window=50_000)
        )
        assert (stated.tokens, stated.source) == (50_000, "override")

    def test_an_unknown_model_is_a_guess_that_says_so(self):
        _, window = state_for(ConversationSettings(model="nobody-knows-it"))

        assert (window.source, window.tokens) == ("default", 128_000)
        assert window.warning

    @pytest.mark.parametrize(
        "settings",
        [{"window": 0}, {"window": -1}, {"max_output": -1}, {"limit": 9_000}, {"thinking_budget": -1}],
    )
    def test_sizes_that_leave_no_room_are_refused(self, settings):
        with pytest.raises(ConfigError):
            budget(**{"window": 8_000, **settings})

    def test_a_system_prompt_that_fills_the_window_is_refused(self):
        with pytest.raises(BudgetError, match="the system prompt and the tools take"):
            state_for(ConversationSettings(window=256, max_output=0, system="be kind " * 200))


class TestPrices:
    def test_a_known_model_has_prices(self):
        prices = state_for(ConversationSettings(model="gpt-4o-mini"))[0].frame.prices

        assert (prices.input, prices.output, prices.read, prices.write) == (0.15, 0.60, 0.075, 0.15)

    def test_an_unknown_one_has_none(self):
        assert state_for(ConversationSettings(model="nobody-knows-it"))[0].frame.prices is None


class TestNames:
    def test_every_preset_has_a_name_and_no_other_is_taken(self):
        assert {name: preset_named(name) for name in PRESETS} == PRESETS
        with pytest.raises(ConfigError) as error:
            preset_named("nonsense")
        assert error.value.hint == f"choose from: {', '.join(PRESETS)}"

    def test_every_format_has_a_name_and_no_other_is_taken(self):
        assert [dialect_named(name) for name in DIALECTS] == list(DIALECTS.values())
        with pytest.raises(ConfigError) as error:
            dialect_named("Chat")
        assert error.value.hint == "choose from: chat, responses, anthropic"

    def test_a_policy_of_your_own_stands_for_any_preset(self):
        policy = structs.replace(PRESETS["refold"], name="mine")

        assert state_for(ConversationSettings(policy=policy, preset="nonsense"))[0].frame.policy is policy

    def test_a_counter_of_your_own_is_used(self):
        counter = TextCounter()
        memory, _ = state_for(
            ConversationSettings(model="gpt-4o", counter=counter), FixedFields(CHAT, (system("12345"),))
        )

        assert memory.folded.shown.counter is counter
        assert memory.frame.cost.total.tokens == 5


class TestPrompt:
    def test_a_text(self):
        assert read_prompt("Be kind.", CHAT) == (system("Be kind."),)

    @pytest.mark.parametrize("prompt", [None, "", []])
    def test_nothing(self, prompt):
        assert read_prompt(prompt, CHAT) == ()

    def test_blocks_as_anthropic_takes_them(self):
        from anthropic.types import TextBlock

        (message,) = read_prompt(
            [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                TextBlock(type="text", text="b"),
            ],
            ANTHROPIC,
        )

        assert message.bare().parts == (Text("a"), Text("b"))

    def test_blocks_have_no_place_elsewhere(self):
        with pytest.raises(ConfigError, match="the system prompt is no text"):
            read_prompt([{"type": "text", "text": "a"}], CHAT)

    def test_what_is_no_block_is_an_error(self):
        with pytest.raises(WireError):
            read_prompt(["a"], ANTHROPIC)
