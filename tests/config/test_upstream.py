from __future__ import annotations

import pytest

from refold.config import Settings, UpstreamSettings, completed, summarisers_of
from refold.config.tree import SummariserSettings
from refold.config.upstream import is_literal
from refold.model.errors import SettingError
from refold.upstreams.provider import KNOWN, Provider

KEYS = {known.key_env: "sk-canary" for known in KNOWN.values() if known.key_env}


@pytest.mark.parametrize("name", KNOWN)
def test_a_well_known_name_is_enough(name):
    upstream = completed(name, UpstreamSettings(), KEYS)
    assert upstream.url == KNOWN[name].base_url
    assert upstream.key_env == KNOWN[name].key_env
    assert upstream.pass_key is True  # the client's own comes before the one of the environment
    assert KNOWN[name].format in upstream.formats


def test_openai_speaks_two_formats():
    assert completed("openai", UpstreamSettings(), {}).formats == ("chat", "responses")
    assert completed("openai", UpstreamSettings(formats=("chat",)), {}).formats == ("chat",)


def test_a_key_of_the_settings_comes_before_the_clients_and_that_before_the_environments():
    assert completed("openai", UpstreamSettings(), KEYS).pass_key is True
    assert completed("openai", UpstreamSettings(key_env="OPENAI_API_KEY"), KEYS).pass_key is False
    assert (
        completed("openai", UpstreamSettings(key_env="OPENAI_API_KEY", pass_key=True), KEYS).pass_key is True
    )
    assert completed("openai", UpstreamSettings(pass_key=False), KEYS).pass_key is False


def test_without_a_key_the_client_s_own_goes_through():
    assert completed("openai", UpstreamSettings(), {}).pass_key is True
    assert completed("openai", UpstreamSettings(), {}).key_env == ""
    assert completed("box", UpstreamSettings(url="http://box"), KEYS).pass_key is True
    assert completed("box", UpstreamSettings(url="http://box", key_command="pass box"), {}).pass_key is False
    assert completed("box", UpstreamSettings(url="http://box", pass_key=False), {}).pass_key is False


def test_a_key_goes_only_to_the_host_it_was_named_for():
    elsewhere = completed("openai", UpstreamSettings(url="https://other.example/v1"), KEYS)
    assert (elsewhere.key_env, elsewhere.pass_key) == ("", True)
    named = completed("openai", UpstreamSettings(url="https://other.example/v1", key_env="OTHER"), KEYS)
    assert (named.key_env, named.pass_key) == ("OTHER", False)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.1:1234", True),
        ("http://[::1]/v1", True),
        ("http://192.168.0.7/v1", True),
        ("https://llm.example.com", False),
        ("http://localhost.evil.example", False),
    ],
)
def test_an_address_that_is_written_out_is_meant(url, meant):
    assert is_literal(url) is meant
    assert completed("box", UpstreamSettings(url=url), {}).private is meant
    assert completed("box", UpstreamSettings(url=url, private=True), {}).private


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "it has no address"),
        ("box:8000", "it is not an address"),
        ("ftp://box", "it is not an address"),
        ("http://box:99999999", "it is not an address"),
        ("http://me:canary@box", "it holds a password"),
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url, what):
    with pytest.raises(SettingError) as error:
        completed("box", UpstreamSettings(url=url), {})
    assert (error.value.key, error.value.what) == ("upstreams.box.url", what)
    assert "canary" not in str(error.value)


@pytest.mark.feature("L10")
def test_summarisers_are_known_providers_addresses_or_upstreams_of_yours():
    box = UpstreamSettings(url="http://box/v1", key_env="BOX_KEY", headers={"X-A": "b"})
    models = ("openai:gpt-4o-mini", "m@http://host/v1", "box:qwen3:8b")
    known, address, own = summarisers_of(
        Settings(upstreams={"box": box}, summariser=SummariserSettings(models=models))
    )
    assert known == Provider("openai", "gpt-4o-mini")
    assert (address.model, address.base_url, address.key_env) == ("m", "http://host/v1", "")
    assert (own.name, own.model, own.base_url, own.key_env) == ("box", "qwen3:8b", "http://box/v1", "BOX_KEY")
    assert own.headers == {"X-A": "b"}


@pytest.mark.parametrize("spec", ["gpt-4o", "nobody:model", "openai:", "m@http://me:canary@host", ""])
def test_a_word_that_names_no_model_is_refused_by_its_number(spec):
    with pytest.raises(SettingError, match="number 2 names no model") as error:
        summarisers_of(Settings(summariser=SummariserSettings(models=("openai:gpt-4o", spec))))
    assert error.value.key == "summariser.models"
    assert "canary" not in str(error.value)
