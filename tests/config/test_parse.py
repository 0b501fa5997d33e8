from __future__ import annotations

import math

import pytest

from refold.config.parse import Unreadable, read
from refold.config.tree import ANY_NAME, KEYS, UPSTREAM_KEYS, find_key
from refold.model.tokens import Share
from tests.config.samples import ALL, SAMPLES

pytestmark = pytest.mark.feature("L14")


@pytest.mark.parametrize("key", ALL, ids=lambda key: key.name)
def test_a_text_means_the_same_as_a_value(key):
    for typed, text in SAMPLES[key.name]:
        assert read(key, typed) == read(key, text, is_text=True)


OUTSIDE = [
    ("server.port", -1),
    ("server.port", 65_536),
    ("server.port", "7336"),
    ("server.port", True),
    ("server.port", 80.5),
    ("server.host", ""),
    ("server.names", ["a b"]),
    ("server.names", ["http://a"]),
    ("server.names", "a.example"),
    ("server.max_body_mb", 0),
    ("server.max_body_mb", 1025),
    ("server.max_depth", 15),
    ("server.max_depth", 901),
    ("server.log", "xml"),
    ("server.log_level", "INFO"),
    ("server.metrics_port", 65_536),
    ("server.drain_s", -1),
    ("server.stop_s", 3_601),
    ("server.workers", 0),
    ("cluster.concurrency", 0),
    ("cluster.lease_s", 0.5),
    ("cluster.grace_s", 601),
    ("store.keep_days", 0),
    ("store.max_expired_share", 1.01),
    ("store.max_expired_share", -0.1),
    ("store.max_expired_share", "10%"),
    ("store.content", "yes"),
    ("compaction.enabled", 1),
    ("compaction.window", 255),
    ("compaction.window", "50%"),
    ("compaction.max_output", 63),
    ("compaction.trigger", 80),
    ("compaction.limit", 80),
    ("compaction.keep_recent", 25),
    ("compaction.tool_policy", "keep"),
    ("compaction.tools", {"bash": "drop"}),
    ("compaction.recoveries", 3),
    ("compaction.recoveries", -1),
    ("compaction.prompt", ""),
    ("compaction.thinking", 1023),
    ("compaction.thinking", "huge"),
    ("cache.ttl", "2h"),
    ("summariser.temperature", 2.1),
    ("summariser.temperature", math.nan),
    ("summariser.temperature", "on"),
    ("summariser.max_spend", -0.01),
    (f"{ANY_NAME}.formats", ["gemini"]),
    (f"{ANY_NAME}.key_env", "sk-live-1234"),
    (f"{ANY_NAME}.headers", {"X-A": 3}),
    (f"{ANY_NAME}.window", 100),
    (f"{ANY_NAME}.allow", ["files"]),
    (f"{ANY_NAME}.allow", ["GET"]),
    (f"{ANY_NAME}.allow", ["get /v1/files"]),
    (f"{ANY_NAME}.allow", ["/refold/config"]),
]


@pytest.mark.parametrize(("name", "value"), OUTSIDE)
def test_a_value_out_of_range_is_refused_and_never_repeated(name, value):
    key = KEYS.get(name) or UPSTREAM_KEYS[name.rpartition(".")[2]]
    with pytest.raises(Unreadable) as error:
        read(key, value)
    assert error.value.hint
    assert "sk-live" not in f"{error.value.what} {error.value.hint}"


@pytest.mark.feature("L13")
@pytest.mark.parametrize(
    ("word", "tokens"), [("low", 1_024), ("medium", 4_096), ("high", 16_384), ("20k", 20_000)]
)
def test_thinking_has_words_for_numbers(word, tokens):
    assert read(KEYS["compaction.thinking"], word) == tokens


@pytest.mark.parametrize("key", [key for key in ALL if key.is_optional], ids=lambda key: key.name)
def test_what_may_be_left_to_somebody_else_can_be_given_back(key):
    assert read(key, "default") is None
    assert read(key, "default", is_text=True) is None


def test_other_settings_have_no_such_word():
    with pytest.raises(Unreadable):
        read(KEYS["server.port"], "default")


@pytest.mark.parametrize("text", ["bash", "=", "bash=drop", "{ bash = 3 }"])
def test_a_table_in_a_variable_is_made_of_pairs(text):
    with pytest.raises(Unreadable):
        read(KEYS["compaction.tools"], text, is_text=True)


def test_a_flag_that_is_given_twice_adds_up():
    models = find_key("upstreams.a.models")
    assert models is not None
    assert read(models, ["gpt-*,o*", '["x,y"]'], is_text=True) == ("gpt-*", "o*", "x,y")


def test_a_share_comes_out_as_one():
    assert read(KEYS["compaction.trigger"], "62.5%", is_text=True) == Share(0.625)


def test_the_other_spelling_of_a_tool_s_rule_is_accepted():
    key = KEYS["compaction.tools"]

    assert (
        read(key, {"read": "summarize"}) == read(key, "read=summarize", is_text=True) == {"read": "summarise"}
    )
