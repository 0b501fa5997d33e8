from __future__ import annotations

import msgspec
import pytest

import refold
from refold.model.errors import ConfigError
from refold.upstreams import KNOWN, Provider, Retries, Timeouts
from refold.upstreams.provider import complete


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_name_stands_for_an_address_and_a_format(name):
    whole = complete(Provider(name, "m"))
    assert whole.base_url == KNOWN[name].base_url
    assert (whole.auth == "x-api-key") == (whole.format == "anthropic") == (name == "anthropic")
    is_here = whole.base_url.startswith("http://localhost")
    assert bool(whole.key_env) != is_here


def test_what_is_said_wins():
    own = Provider(
        "openai", "m", "responses", "https://gate.example/v1/", "MY_KEY", auth="api-key", output_field="n"
    )
    whole = complete(own)
    assert (whole.format, whole.base_url, whole.key_env) == ("responses", "https://gate.example/v1", "MY_KEY")
    assert (whole.auth, whole.output_field) == ("api-key", "n")


def test_a_key_does_not_follow_to_another_address():
    assert complete(Provider("openai", "m", base_url="http://localhost:1/v1")).key_env == ""
    assert complete(Provider("openai", "m", key_command="print-key")).key_env == ""


def test_openai_has_a_word_of_its_own_for_the_limit_of_a_reply():
    assert complete(Provider("openai", "m")).output_field == "max_completion_tokens"
    assert complete(Provider("groq", "m")).output_field == "max_tokens"


@pytest.mark.parametrize(
    "provider, words",
    [
        (Provider("nobody", "m"), "has no base_url"),
        (Provider("openai"), "has no model"),
        (Provider("x", "m", base_url="example.com/v1"), "is not an address"),
        (Provider("x", "m", base_url="ftp://example.com"), "is not an address"),
        (Provider("x", "m", base_url="http://[::1"), "is not an address"),
        (Provider("x", "m", base_url="http://h:99999"), "is not an address"),
        (Provider("x", "m", base_url="https://u:canary@example.com"), "holds a password"),
        (Provider("openai", "m", proxy="canary"), "the proxy of 'openai' is not an address"),
        (Provider("openai", "m", headers={"X-A": "can\nary"}), "control character"),
        (Provider("openai", "m", retries=Retries(tries=0)), "too small"),
        (Provider("openai", "m", timeouts=Timeouts(total_s=0)), "too small"),
    ],
)
def test_what_cannot_work_is_refused_with_a_hint_and_without_the_value(provider, words):
    with pytest.raises(ConfigError, match=words) as caught:
        complete(provider)
    assert caught.value.hint
    assert "canary" not in str(caught.value)


def test_a_provider_can_be_read_from_a_configuration():
    settings = {"name": "groq", "model": "m", "timeouts": {"total_s": 9.0}, "retries": {"tries": 1}}
    assert msgspec.convert(settings, Provider) == Provider(
        "groq", "m", timeouts=Timeouts(total_s=9.0), retries=Retries(tries=1)
    )
    with pytest.raises(msgspec.ValidationError, match="unknown field `modell`"):
        msgspec.convert({"name": "groq", "modell": "m"}, Provider)


def test_printing_a_provider_shows_no_secret():
    provider = Provider(
        "x",
        "m",
        proxy="http://u:canary@p",
        headers={"k": "canary"},
        parameters={"k": "canary"},
        key_command="echo canary",
    )
    assert f"{provider} {provider!r} {[provider]}".count("<provider x: m>") == 3
    assert "canary" not in f"{provider} {provider!r} {[provider]}"


def test_an_unknown_format_is_refused_with_the_known_ones():
    provider = Provider("server", "m", format="openai", base_url="http://localhost:1/v1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no known format: 'openai'") as caught:
        complete(provider)
    assert caught.value.hint == "choose from: chat, responses, anthropic"


async def test_a_chat_with_an_unknown_format_is_refused():
    provider = Provider("server", "m", format="openai", base_url="http://localhost:1/v1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no known format"):
        async with refold.Chat(refold.Conversation("m", window=8_000), provider):
            pass
