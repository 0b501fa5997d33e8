from __future__ import annotations

import pytest

from refold.config.layers import environment_layer, flag_layer, runtime_layer
from refold.config.resolution import resolve
from refold.model.errors import SettingError


def from_environment(**variables: str):
    return resolve([environment_layer(variables)]).settings


def test_variables_of_others_are_left_alone():
    layer = environment_layer(
        {
            "PATH": "/bin",
            "REFOLD_CONFIG": "x",
            "REFOLD_HYPOTHESIS": "thorough",
            "REFOLD_LOCAL_MODEL": "y",
            "REFOLD": "1",
        }
    )
    assert layer.values == {}


def test_an_empty_variable_counts_as_not_set():
    assert environment_layer({"REFOLD_SERVER_PORT": ""}).values == {}


def test_a_summarizer_is_a_summariser_in_variables_as_in_options():
    layer = environment_layer(
        {"REFOLD_SUMMARIZER_ENABLED": "false", "REFOLD_UPSTREAMS_SUMMARIZER_URL": "http://a.example/v1"}
    )
    assert layer.values == {
        "summariser.enabled": "false",
        "upstreams.summarizer.url": "http://a.example/v1",
    }
    assert layer.places["summariser.enabled"] == "REFOLD_SUMMARIZER_ENABLED"


@pytest.mark.feature("X1")
def test_a_variable_that_is_misspelt_is_told():
    with pytest.raises(SettingError) as error:
        from_environment(REFOLD_COMPACTION_PRSET="opal")
    assert error.value.located == "REFOLD_COMPACTION_PRSET: compaction.prset: there is no such setting"
    assert error.value.hint == "did you mean compaction.preset?"


def test_the_older_name_of_the_store_still_counts():
    assert from_environment(REFOLD_STORE="memory:").store.url == "memory:"
    assert from_environment(REFOLD_STORE="memory:", REFOLD_STORE_URL="sqlite:").store.url == "sqlite:"


def test_hyphens_in_names_of_upstreams_are_underscores_in_variables():
    settings = from_environment(
        REFOLD_UPSTREAMS_MY_BOX_URL="http://box/v1", REFOLD_UPSTREAMS_MY_BOX_KEY_ENV="BOX_KEY"
    )
    assert settings.upstreams["my-box"].url == "http://box/v1"
    assert settings.upstreams["my-box"].key_env == "BOX_KEY"


@pytest.mark.parametrize("place", ["environment", "flag"])
def test_upstreams_in_a_word_each(place):
    words = ["openai", "work=https://llm.example.com/v1?a=b", "http://localhost:8000/v1?x=y"]
    layer = (
        environment_layer({"REFOLD_UPSTREAMS": ",".join(words)})
        if place == "environment"
        else flag_layer({"upstreams": words})
    )
    upstreams = resolve([layer]).settings.upstreams
    assert {name: one.url for name, one in upstreams.items()} == {
        "openai": "",
        "work": "https://llm.example.com/v1?a=b",
        "default": "http://localhost:8000/v1?x=y",
    }


def test_two_upstreams_without_a_name_are_refused():
    with pytest.raises(SettingError, match="given twice"):
        flag_layer({"upstreams": ["http://a", "http://b"]})


def test_a_flag_for_an_upstream_says_for_which():
    with pytest.raises(SettingError, match="does not name the upstream") as error:
        flag_layer({"upstreams.NAME.url": ["http://a"]})
    assert error.value.place == "--upstreams-url"


def test_flags_that_were_not_given_say_nothing():
    assert flag_layer({"server.port": None, "server.names": [], "compaction.enabled": False}).values == {
        "compaction.enabled": False
    }


def test_an_update_may_be_nested_or_dotted():
    nested = runtime_layer({"compaction": {"preset": "opal", "tools": {"a": "prune"}}})
    dotted = runtime_layer({"compaction.preset": "opal", "compaction.tools": {"a": "prune"}})
    assert nested.values == dotted.values == {"compaction.preset": "opal", "compaction.tools": {"a": "prune"}}


def test_printing_a_layer_shows_no_value():
    layer = environment_layer({"REFOLD_STORE": "postgresql://me:canary@host/db"})
    assert "canary" not in repr(layer)
    assert "canary" not in repr(resolve([layer]))
