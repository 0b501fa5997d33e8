from __future__ import annotations

import pytest

from refold.config.layers import Layer
from refold.config.resolution import resolve
from refold.model.errors import SettingError

BOX = {"upstreams.box.url": "http://box/v1"}


@pytest.mark.feature("X1")
@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"compaction.limit": "0%"}, "compaction.limit"),
        ({"compaction.limit": 0}, "compaction.limit"),
        ({"compaction.preset": "lis", "compaction.trigger": 0.0}, "compaction.trigger"),
        ({"compaction.sensitive": ["fine", "(broken"]}, "compaction.sensitive"),
        ({"compaction.preset": "nonsense"}, "compaction.preset"),
        ({"summariser.models": ["nonsense"]}, "summariser.models"),
        ({"upstreams.nobody": {}}, "upstreams.nobody.url"),
        ({"upstreams.box.url": "box"}, "upstreams.box.url"),
        ({**BOX, "upstreams.box.headers": {"authorization": "Bearer canary"}}, "upstreams.box.headers"),
        ({**BOX, "upstreams.box.headers": {"X-API-Key": "canary"}}, "upstreams.box.headers"),
        ({**BOX, "upstreams.box.headers": {"X A": "canary"}}, "upstreams.box.headers"),
        ({**BOX, "upstreams.box.headers": {"X-A": "canary\r\nb"}}, "upstreams.box.headers"),
        (
            {**BOX, "upstreams.box.key_env": "A", "upstreams.box.key_command": "b"},
            "upstreams.box.key_command",
        ),
        ({**BOX, "upstreams.box.fallback": ["nobody"]}, "upstreams.box.fallback"),
        ({**BOX, "upstreams.box.fallback": ["box"]}, "upstreams.box.fallback"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_the_key(values, key):
    with pytest.raises(SettingError) as error:
        resolve([Layer("user", values, path="mine.toml")])
    assert error.value.key == key
    assert error.value.hint
    assert error.value.place == "mine.toml"
    assert "canary" not in str(error.value)


def test_two_upstreams_may_stand_in_for_each_other():
    values = {"upstreams.openai.fallback": ["anthropic"], "upstreams.anthropic.fallback": ["openai"]}
    assert set(resolve([Layer("user", values)]).settings.upstreams) == {"openai", "anthropic"}


def test_a_refusal_has_the_place_of_the_strongest_layer():
    layers = [
        Layer("user", {"compaction.preset": "opal"}, path="mine.toml"),
        Layer("project", {"compaction.preset": "nonsense"}, path="refold.toml"),
    ]
    with pytest.raises(SettingError) as error:
        resolve(layers)
    assert error.value.place == "refold.toml"
