from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.config.formats import SAMPLE, commented, settings_toml, toml, tree_of
from refold.config.layers import Layer, environment_layer, flat
from refold.config.resolution import resolve
from refold.config.tree import KEYS, UPSTREAM_KEYS, Settings, UpstreamSettings
from tests.config.samples import ALL, SAMPLES, base_for, layer_for


def uncommented() -> str:
    """The commented file with the mark taken away from every setting."""
    return re.sub(r"^# (?=\w+ = |\[)", "", commented(), flags=re.MULTILINE)


@pytest.mark.feature("X1")
def test_the_commented_file_changes_nothing():
    assert flat(tomllib.loads(commented())) == {}


@pytest.mark.feature("X1")
def test_every_default_stands_in_the_commented_file():
    values = flat(tomllib.loads(uncommented().replace('url = ""', 'url = "http://box"')))
    values["store.url"] = ""
    assert set(values) >= {*KEYS, *(f"upstreams.{SAMPLE}.{field}" for field in UPSTREAM_KEYS)}
    settings = resolve([Layer("user", values)]).settings
    assert settings.upstreams.pop(SAMPLE) == UpstreamSettings(url="http://box")
    assert settings.upstreams.pop("openai") == UpstreamSettings(models=("gpt-*",))
    assert settings == Settings()


def test_every_setting_has_its_sentence_in_the_commented_file():
    assert not [key.name for key in ALL if f"# {key.what} (" not in commented()]


@pytest.mark.parametrize(
    "key",
    [key for key in ALL if key.field not in ("headers", "key_command", "sensitive")],
    ids=lambda key: key.name,
)
def test_what_is_shown_can_be_read_again(key):
    for sample in SAMPLES[key.name]:
        resolved = resolve([base_for(key), layer_for(key, "user", sample)])
        again = resolve([Layer("user", flat(tomllib.loads(settings_toml(resolved))))])
        assert again.settings == resolved.settings
        assert flat(tree_of(resolved))


def test_origins_are_told_for_what_is_set():
    shown = settings_toml(resolve([environment_layer({"REFOLD_CACHE_TTL": "1h"})]), with_origins=True)
    assert 'ttl = "1h"  # the variable REFOLD_CACHE_TTL\n' in shown
    assert "port = 7336\n" in shown


def test_secrets_are_not_shown():
    values = {
        "store.url": "postgresql://me:canary@host/db?password=canary",
        "upstreams.box.url": "https://host/v1?token=canary",
        "upstreams.box.headers": {"X-Title": "canary"},
        "upstreams.box.key_command": "echo canary",
    }
    resolved = resolve([Layer("user", values)])
    assert "canary" not in settings_toml(resolved, with_origins=True)
    assert "canary" not in str(tree_of(resolved))
    assert "canary" not in repr(resolved)
    assert 'url = "postgresql://***@host/db?***"' in settings_toml(resolved)
    assert 'key_command = "echo ***"' in settings_toml(resolved)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_is_written_as_toml(text):
    assert tomllib.loads(f"it = {toml({text: [text]})}") == {"it": {text: [text]}}
