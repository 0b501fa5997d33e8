"""Which upstream is asked, and where it is."""

from __future__ import annotations

import pytest

from refold.config import UpstreamSettings
from refold.gateway.upstreams import Target, Targets, local_target, open_targets, target_of, with_local
from refold.model.errors import ConfigError

OPENAI = Target("openai", "https://api.openai.com/v1", ("chat", "responses"), models=("gpt-*", "o?"))
CLAUDE = Target("anthropic", "https://api.anthropic.com", ("anthropic",), models=("claude-*",))
ANY = Target("box", "http://10.0.0.7:8000/v1", ("chat", "anthropic"), fallback=("openai",))


@pytest.mark.parametrize(
    "base, path, address",
    [
        ("https://api.openai.com/v1", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.anthropic.com", "/v1/messages", "https://api.anthropic.com/v1/messages"),
        ("https://openrouter.ai/api/v1", "/v1/models", "https://openrouter.ai/api/v1/models"),
        ("http://host/v1beta/openai", "/v1/chat/completions", "http://host/v1beta/openai/chat/completions"),
    ],
)
def test_the_path_of_a_call_goes_after_the_base(base, path, address):
    target = Target("one", base, ("chat",))
    assert target.address(path) == address
    assert target.address(path, "a=%2F") == f"{address}?a=%2F"


def test_the_query_of_a_base_comes_before_that_of_a_call():
    target = Target("azure", "https://host/openai/v1?api-version=2026", ("chat",))
    address = "https://host/openai/v1/chat/completions?api-version=2026"
    assert target.address("/v1/chat/completions") == address
    assert target.address("/v1/chat/completions", "a=1") == f"{address}&a=1"


@pytest.mark.parametrize(
    "model, wanted, names",
    [
        ("gpt-5", "chat", ["openai"]),
        ("o3", "responses", ["openai"]),
        ("claude-opus-4-8", "anthropic", ["anthropic"]),
        ("qwen3", "chat", ["box", "openai"]),
        ("qwen3", "anthropic", ["box"]),
        ("gpt-5", "anthropic", ["box"]),
        ("", None, ["box", "openai"]),
    ],
)
def test_a_model_goes_to_who_serves_it_and_to_fallbacks_that_speak_its_format(model, wanted, names):
    targets = Targets([OPENAI, CLAUDE, ANY])
    assert [one.name for one in targets.choose(model, wanted)] == names


def test_a_name_that_is_asked_for_wins():
    targets = Targets([OPENAI, CLAUDE, ANY])
    assert targets.choose("gpt-5", "chat", "box")[0] is ANY
    with pytest.raises(ConfigError, match="no upstream with this name"):
        targets.choose("gpt-5", "chat", "evil")


def test_a_format_that_nobody_speaks_is_refused():
    with pytest.raises(ConfigError, match="speaks this format"):
        Targets([CLAUDE]).choose("gpt-5", "chat")
    with pytest.raises(ConfigError, match="no upstream"):
        Targets([])


def test_without_any_the_clients_own_key_goes_to_the_provider_it_was_made_for():
    targets = {one.name: one for one in open_targets({}, {})}
    assert targets["openai"].passes_key
    assert targets["anthropic"].passes_key
    own = {one.name: one for one in open_targets({}, {"OPENAI_API_KEY": "sk-own"})}
    assert own["openai"].passes_key
    assert own["openai"].key is not None  # for clients that send none


async def test_a_key_is_sent_as_the_format_wants_it_and_never_printed():
    target = target_of("anthropic", UpstreamSettings(), {"ANTHROPIC_API_KEY": "sk-canary"})
    assert target.key is not None
    assert await target.key.headers() == {"x-api-key": "sk-canary"}
    assert "canary" not in f"{target!r} {target.key!r}"


def test_the_model_that_comes_along_is_asked_for_by_its_name():
    targets = with_local(Targets([OPENAI, CLAUDE]), local_target("http://127.0.0.1:9/v1", "secret"))
    assert targets.choose("local", "chat")[0].name == "local"
    assert targets.choose("local", "anthropic")[0].name == "local"
    assert targets.choose("gpt-5", "chat")[0].name == "openai"


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/v1/v1", "ends with /v1/v1, with the version twice"),
        ("/api/v4/v4/", "ends with /v4/v4, with the version twice"),
        (
            "/v1/chat/completions",
            "ends with /chat/completions, which every call adds by itself: leave it out",
        ),
        ("/v1", ""),
        ("/v1/v2", ""),
        ("", ""),
    ],
)
def test_a_url_whose_path_is_probably_wrong_is_a_warning(path, fault, caplog):
    settings = {"mine": UpstreamSettings(url=f"http://127.0.0.1:9{path}", formats=("chat",))}

    open_targets(settings, {})

    told = f"the url of upstream mine {fault}: calls may be answered by 404"
    assert caplog.messages == ([told] if fault else [])
