from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.config import Settings, resolve, runtime_layer, update
from refold.config.layers import RANKS, Layer, environment_layer, flag_layer
from refold.config.resolution import faults
from refold.config.tree import KEYS
from refold.model.errors import SettingError, SettingFixed, SettingLocked
from tests.config.samples import ALL, BOX, SAMPLES, base_for, layer_for, name_of

SOURCES = RANKS[1:]


def user(**values: object) -> Layer:
    return Layer("user", {name.replace("__", "."): value for name, value in values.items()})


def value_in(settings: Settings, key) -> object:
    tree = settings.upstreams[BOX] if key.is_upstream else getattr(settings, key.section)
    return getattr(tree, key.field)


def may_say(key, source: str) -> bool:
    if source == "runtime":
        return key.is_tunable
    return source != "project" or (key.field != "key_command" and key.section != "plugins")


def test_without_layers_everything_is_the_default():
    resolved = resolve()
    assert resolved.settings == Settings()
    assert {origin.source for origin in resolved.origins.values()} == {"default"}
    assert set(resolved.origins) == set(KEYS)


@pytest.mark.feature("X1", "L14")
@given(st.data())
def test_the_strongest_source_wins_for_every_setting(data):
    key = data.draw(st.sampled_from(ALL))
    sources = [source for source in SOURCES if may_say(key, source)]
    chosen = data.draw(st.lists(st.sampled_from(sources), min_size=1, unique=True))
    samples = {source: data.draw(st.sampled_from(SAMPLES[key.name])) for source in chosen}

    resolved = resolve([*(layer_for(key, source, samples[source]) for source in chosen), base_for(key)])

    strongest = max(chosen, key=RANKS.index)
    alone = resolve([base_for(key), layer_for(key, "user", samples[strongest])])
    assert value_in(resolved.settings, key) == value_in(alone.settings, key)
    assert resolved.origins[name_of(key)].source == strongest


@pytest.mark.feature("L14")
@pytest.mark.parametrize(
    ("key", "source"),
    [
        pytest.param(key, source, id=f"{source}: {key.name}")
        for key in ALL
        for source in SOURCES
        if may_say(key, source)
    ],
)
def test_every_setting_can_be_set_from_every_source(key, source):
    for sample in SAMPLES[key.name]:
        resolved = resolve([base_for(key), layer_for(key, source, sample)])
        assert resolved.origins[name_of(key)].source == source


@given(st.permutations(SOURCES))
def test_the_order_of_the_layers_does_not_matter(order):
    key = KEYS["cache.ttl"]
    layers = [layer_for(key, source, SAMPLES[key.name][at % 2]) for at, source in enumerate(SOURCES)]
    assert (
        resolve(layers[SOURCES.index(source)] for source in order).origins["cache.ttl"].place == "--cache-ttl"
    )


def test_lists_and_tables_are_taken_whole():
    layers = [user(server__names=["a", "b"]), Layer("project", {"server.names": ["c"]})]
    assert resolve(layers).settings.server.names == ("c",)


def test_a_stronger_layer_can_leave_the_choice_to_somebody_else_again():
    layers = [user(compaction__window=8000), environment_layer({"REFOLD_COMPACTION_WINDOW": "default"})]
    assert resolve(layers).settings.compaction.window is None


@pytest.mark.feature("X1")
@pytest.mark.parametrize(
    ("values", "key", "hint"),
    [
        ({"compaction__prset": "x"}, "compaction.prset", "did you mean compaction.preset?"),
        ({"port": 3}, "port", "did you mean server.port?"),
        ({"server": 3}, "server", "write [server]"),
        ({"upstreams__openai": "https://x"}, "upstreams.openai", "write [upstreams.openai]"),
        ({"upstreams__My_Box": {}}, "upstreams.My_Box", "small letters"),
        (
            {"upstreams__openai__modles": ["x"]},
            "upstreams.openai.modles",
            "did you mean upstreams.openai.models?",
        ),
        ({"zzz": 1}, "zzz", "refold config show"),
    ],
)
def test_a_key_that_is_not_known_is_refused_by_its_name(values, key, hint):
    with pytest.raises(SettingError) as error:
        resolve([user(**values)])
    assert error.value.key == key
    assert hint in error.value.hint


@pytest.mark.parametrize(
    "name", ["api_key", "apiKey", "key", "token", "api-key", "secret", "password", "Authorization"]
)
def test_a_key_in_a_file_is_refused_and_not_repeated(name):
    with pytest.raises(SettingError, match="a key does not belong here") as error:
        resolve([Layer("user", {f"upstreams.openai.{name}": "sk-canary"})])
    assert "key_env" in error.value.hint
    assert "canary" not in str(error.value)


def test_a_project_names_no_program_to_run():
    command = {"upstreams.openai.key_command": "sh -c canary"}
    with pytest.raises(SettingError, match="must not choose the programs") as error:
        resolve([Layer("project", command)])
    assert "canary" not in str(error.value)
    assert resolve([Layer("user", command)]).settings.upstreams["openai"].key_command


def test_a_project_names_no_model_that_is_sent_all_messages():
    named = {"store.embedder": "canary@http://localhost:1/v1"}
    with pytest.raises(SettingError, match="must not name a model that reads all your messages") as error:
        resolve([Layer("project", named)])
    assert "canary" not in str(error.value)
    assert resolve([Layer("project", {"store.embedder": "onnx"})]).settings.store.embedder == "onnx"
    assert resolve([Layer("user", named)]).settings.store.embedder.startswith("canary@")


@pytest.mark.feature("X1")
def test_an_update_counts_more_than_files_and_less_than_the_environment():
    resolved = resolve([user(cache__ttl="1h"), environment_layer({"REFOLD_NOTIFY_PRUNING": "no"})])
    changed = update(resolved, {"cache": {"ttl": "off"}})
    assert changed.settings.cache.ttl == "off"
    assert changed.origins["cache.ttl"].source == "runtime"
    assert resolved.settings.cache.ttl == "1h"
    assert changed.runtime == {"cache.ttl": "off"}
    assert resolve([*resolved.layers, runtime_layer(changed.runtime)]).settings == changed.settings


def test_updates_add_up_and_can_be_taken_back():
    once = update(resolve(), {"cache.ttl": "off", "notify.pruning": False})
    twice = update(once, {"cache.ttl": None, "compaction.recoveries": 0})
    assert twice.runtime == {"notify.pruning": False, "compaction.recoveries": 0}
    assert twice.settings.cache.ttl == "5m"


@pytest.mark.feature("X1")
def test_an_update_is_checked_as_a_whole():
    resolved = resolve([user(compaction__preset="lis", compaction__tool_policy="keep_all")])
    with pytest.raises(SettingError) as error:
        update(resolved, {"compaction": {"preset": "opal"}})
    assert error.value.key == "compaction.tool_policy"
    with pytest.raises(SettingError) as error:
        update(resolved, {"notify": {"pruning": False}, "compaction": {"recoveries": 3}})
    assert error.value.key == "compaction.recoveries"
    assert resolved.settings.notify.pruning
    assert update(resolved, {"compaction": {"preset": "lis", "trigger": 0.6}}).settings.compaction.trigger


@pytest.mark.feature("X1")
@pytest.mark.parametrize(
    ("layer", "origin"),
    [
        (environment_layer({"REFOLD_CACHE_TTL": "1h"}), "the variable REFOLD_CACHE_TTL"),
        (flag_layer({"cache.ttl": "1h"}), "the flag --cache-ttl"),
    ],
)
def test_a_key_that_is_fixed_at_the_start_says_by_what(layer, origin):
    with pytest.raises(SettingFixed) as error:
        update(resolve([layer]), {"cache": {"ttl": "off"}})
    assert (error.value.key, error.value.origin) == ("cache.ttl", origin)


@pytest.mark.feature("X1")
@pytest.mark.parametrize(
    "changes",
    [
        {"server": {"host": "0.0.0.0"}},
        {"store.url": "memory:"},
        {"upstreams": {"openai": {"url": "http://evil"}}},
        {"upstreams": {"evil": {}}},
        {"upstreams": {"openai": {}}},
        {"upstreams.openai.key_env": "AWS_SECRET"},
        {"summariser.models": ["x@http://evil"]},
        {"summariser.max_spend": 1000},
        {"compaction.sensitive": []},
        {"compaction.allow_system_summary": True},
    ],
)
def test_addresses_keys_and_protections_are_not_changed_while_it_runs(changes):
    with pytest.raises(SettingLocked):
        update(resolve(), changes)
    with pytest.raises(SettingLocked):
        resolve([runtime_layer(changes)])


@pytest.mark.parametrize("changes", [{"compaction": {"prset": "x"}}, {"foo": None}, {"compaction": None}])
def test_an_update_of_something_unknown_is_refused(changes):
    with pytest.raises(SettingError):
        update(resolve(), changes)


def test_all_faults_are_found_at_once():
    layers = [user(server__port=-1, cache__ttl="2h"), environment_layer({"REFOLD_COMPACTION_TRIGGER": "80"})]
    assert [fault.key for fault in faults(layers)] == ["server.port", "cache.ttl", "compaction.trigger"]
    assert [fault.key for fault in faults([user(compaction__tool_policy="auto")])] == [
        "compaction.tool_policy"
    ]
    assert faults([user(cache__ttl="1h")]) == []


def test_a_hostile_name_is_harmless_in_a_terminal():
    with pytest.raises(SettingError) as error:
        resolve([Layer("user", {"\x1b[31m" + "x" * 5000: 1})])
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 300


def test_upstreams_stand_in_the_order_of_their_sources_and_as_written():
    layers = [
        Layer(
            "user",
            {"upstreams.openai.models": ["x"], "upstreams.b.url": "http://b", "upstreams.a.url": "http://a"},
        ),
        flag_layer({"upstreams": ["http://c", "a=http://d"]}),
    ]
    assert [*resolve(layers).settings.upstreams] == ["default", "a", "openai", "b"]


def test_tables_that_are_nested_without_end_are_refused():
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"x": deep}
    with pytest.raises(SettingError):
        update(resolve(), {"compaction": deep})
