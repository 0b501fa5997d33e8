from __future__ import annotations

import pytest
from msgspec import structs

from refold.config import Settings, policy_of
from refold.config.tree import Cache, CompactionSettings, SummariserSettings
from refold.core.policy import AnyOf, MessageCount, OverBudget, TokenRatio, ToolTokens
from refold.core.presets import PRESETS
from refold.core.stages import Prune
from refold.model.errors import SettingError
from refold.model.tokens import Share, Tokens


def chosen(**fields: object) -> Settings:
    return Settings(compaction=CompactionSettings(**fields))


@pytest.mark.parametrize("name", PRESETS)
def test_without_more_a_preset_is_taken_as_it_is(name):
    policy = policy_of(chosen(preset=name, allow_system_summary=True))
    assert policy == PRESETS[name]


def test_what_every_preset_takes():
    settings = Settings(
        compaction=CompactionSettings(enabled=False, recoveries=1, prompt="Say it."),
        cache=Cache(ttl="1h"),
        summariser=SummariserSettings(temperature="off", max_tokens=500, enabled=False),
    )
    policy = policy_of(settings)
    assert (policy.enabled, policy.cache, policy.recovery.attempts) == (False, "1h", 1)
    recipe = policy.recipe
    assert (recipe.temperature, recipe.max_tokens, recipe.strategy) == (None, 500, "extractive")
    assert policy_of(Settings(cache=Cache(ttl="off"))).cache is None


@pytest.mark.feature("C12")
def test_a_prompt_of_your_own_serves_for_updates_too():
    prompts = policy_of(chosen(prompt="Say it.")).recipe.prompts
    assert (prompts.fresh, prompts.update) == ("Say it.", "")
    prompts = policy_of(chosen(prompt="Say it.", update_prompt="Go on.")).recipe.prompts
    assert (prompts.fresh, prompts.update) == ("Say it.", "Go on.")
    prompts = policy_of(chosen(update_prompt="Go on.")).recipe.prompts
    assert prompts.fresh == PRESETS["refold"].recipe.prompts.fresh


def test_another_trigger_moves_the_fold_point():
    policy = policy_of(chosen(preset="opal", trigger=Share(0.4)))
    assert policy.triggers == {"turn_start": TokenRatio(0.4, ">=")}
    assert policy.soft is None


def test_another_trigger_leaves_other_conditions_alone():
    policy = policy_of(chosen(preset="picoclaw", trigger=Share(0.6), allow_system_summary=True))
    assert policy.triggers == {"after_call": AnyOf((MessageCount(20, ">"), OverBudget(0.6)))}


@pytest.mark.parametrize(
    ("preset", "keep", "kept"),
    [
        ("lis", Tokens(6000), Tokens(6000)),
        ("lis", Share(0.3), Share(0.3)),
        ("opal", Tokens(20_000), Tokens(20_000)),
        ("refold", Share(0.2), Share(0.2, "effective")),
    ],
)
def test_what_is_kept_is_the_preset_s_own_way_with_another_size(preset, keep, kept):
    policy = policy_of(chosen(preset=preset, keep_recent=keep))
    assert policy.cut == structs.replace(PRESETS[preset].cut, keep=kept)


def test_pruning_is_set_where_a_preset_prunes():
    fields = {"tool_prune_threshold": 5000, "tool_keep_threshold": 1000, "tool_policy": "keep_none"}
    policy = policy_of(chosen(preset="lis", tools={"read": "summarise"}, **fields))
    assert policy.stages == (Prune(5000, 1000, "keep_none", {"read": "summarise"}),)
    assert policy.reduce_at == {"after_call": ToolTokens(5000, ">")}


@pytest.mark.parametrize(
    ("preset", "field", "value", "able"),
    [
        ("refold", "trigger", Share(0.7), "lis, opal, llms, picoclaw"),
        ("librechat", "trigger", Share(0.7), "lis, opal, llms, picoclaw"),
        ("llms", "keep_recent", Tokens(4000), "refold, lis, opal, librechat"),
        ("picoclaw", "keep_recent", Share(0.2), "refold, lis, opal, librechat"),
        ("opal", "tool_prune_threshold", 8000, "lis"),
        ("opal", "tool_keep_threshold", 8000, "lis"),
        ("refold", "tool_policy", "keep_all", "lis"),
        ("refold", "tools", {"bash": "prune"}, "lis"),
    ],
)
def test_what_a_preset_does_not_go_by_is_refused_with_those_that_do(preset, field, value, able):
    with pytest.raises(SettingError) as error:
        policy_of(chosen(preset=preset, **{field: value}))
    assert error.value.key == f"compaction.{field}"
    assert repr(preset) in error.value.what
    assert f"choose a preset that does: {able}" in error.value.hint


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(SettingError, match=r"compaction\.preset: there is no such preset") as error:
        policy_of(chosen(preset="opel"))
    assert "opal" in error.value.hint


def test_a_summary_in_the_system_prompt_has_to_be_allowed():
    with pytest.raises(SettingError) as error:
        policy_of(chosen(preset="picoclaw"))
    assert error.value.key == "compaction.allow_system_summary"


@pytest.mark.feature("X1")
def test_a_request_may_ask_for_another_preset():
    settings = chosen(preset="lis", tool_policy="keep_all", recoveries=0)
    policy = policy_of(settings, preset="opal")
    assert (policy.name, policy.recovery.attempts) == ("opal", 0)
    assert policy.cut == PRESETS["opal"].cut
    assert policy_of(settings, preset="lis") == policy_of(settings)
    with pytest.raises(SettingError):
        policy_of(settings, preset="picoclaw")


@pytest.mark.feature("O11")
def test_tools_of_files_are_added_to_the_known_ones_in_every_preset():
    for name in PRESETS:
        tools = policy_of(
            chosen(preset=name, allow_system_summary=True, read_tools=("load_doc",), write_tools=("view",))
        ).file_tools
        assert {"load_doc", "read_file"} <= set(tools.reads)
        assert "view" in tools.writes
        assert "view" not in tools.reads


def test_a_tool_is_of_one_kind():
    with pytest.raises(SettingError, match="'both'") as error:
        policy_of(chosen(read_tools=("both",), write_tools=("both", "a")))
    assert error.value.key == "compaction.write_tools"
