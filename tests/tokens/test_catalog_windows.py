import pytest

from refold.model.errors import ConfigError
from refold.tokens import WindowSize, window_for
from refold.tokens.catalog import is_local, window_by_pattern


@pytest.mark.feature("O15", "X8")
def test_the_best_evidence_wins_in_the_order_of_the_contract():
    evidence = {"override": 1_000, "upstream_report": 2_000}
    order = [("override", 1_000), ("upstream", 2_000)]
    for (source, tokens), name in zip(order, list(evidence), strict=True):
        assert window_for("gpt-4o", provider="openai", **evidence) == WindowSize(tokens, source)
        del evidence[name]
    assert window_for("gpt-4o", provider="openai") == WindowSize(128_000, "catalogue")
    for name, tokens in (("gpt-4o-of-my-own", 128_000), ("claude-of-my-own", 200_000)):
        size = window_for(name)
        assert (size.tokens, size.source) == (tokens, "pattern")
        assert f"its name suggests {tokens:,}" in size.warning


@pytest.mark.feature("O15")
def test_an_unknown_model_gets_a_default_and_a_warning():
    size = window_for("brand-new")
    assert (size.tokens, size.source) == (128_000, "default")
    assert "brand-new" in size.warning
    local = window_for("brand-new", url="http://localhost:11434/v1")
    assert (local.tokens, local.source) == (8_192, "default")
    assert "8,192" in local.warning


@pytest.mark.feature("O15")
@pytest.mark.parametrize(
    "evidence",
    [{}, {"override": 500}, {"upstream_report": 5}],
    ids=",".join,
)
def test_what_is_known_needs_no_call_and_no_warning(evidence, monkeypatch):
    monkeypatch.setattr(
        "socket.socket", lambda *args, **kwargs: pytest.fail("a window is known before any call")
    )
    assert window_for("gpt-4o", **evidence).warning == ""


@pytest.mark.feature("O15")
def test_the_catalogue_is_asked_by_provider_and_model():
    assert (
        window_for("claude-sonnet-4", provider="github-copilot").tokens
        != window_for("claude-sonnet-4-0").tokens
    )


@pytest.mark.feature("O15")
def test_the_user_s_overrides_win_by_provider_and_by_model():
    overrides = {"gpt-4o": 10_000, "azure/gpt-4o": 20_000}
    assert window_for("gpt-4o", overrides=overrides, upstream_report=5) == WindowSize(10_000, "override")
    assert window_for("gpt-4o", provider="azure", overrides=overrides).tokens == 20_000
    assert window_for("openai/gpt-4o:free", overrides=overrides).tokens == 10_000
    assert window_for("gpt-4o", override=700, overrides=overrides).tokens == 700
    assert window_for("gpt-4", overrides=overrides).source == "catalogue"


@pytest.mark.parametrize("tokens", [0, -1, 255, 100_000_001, 1.5, "128k", True, None])
def test_an_override_that_is_no_size_is_refused_by_name(tokens):
    with pytest.raises(ConfigError, match="my-model"):
        window_for("gpt-4o", overrides={"my-model": tokens})
    if tokens is not None:
        with pytest.raises(ConfigError, match="window is not a number of tokens from 256 to 100,000,000"):
            window_for("gpt-4o", override=tokens)


def test_a_report_of_nothing_is_no_report():
    assert window_for("gpt-4o", upstream_report=0).source == "catalogue"


@pytest.mark.feature("X8")
@pytest.mark.parametrize(
    "name, tokens",
    [
        ("gpt-4o-something", 128_000),
        ("gpt-4-turbo-something", 128_000),
        ("gpt-4-32k", 32_768),
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-3.5-turbo-x", 16_385),
        ("gpt-4.1-pico", 1_047_576),
        ("o3-huge", 200_000),
        ("anthropic/claude-next", 200_000),
        ("gemini-9-pro", 1_048_576),
        ("llama3:8b", 8_192),
        ("llama3.2:3b", 128_000),
        ("moonshot-v1-8k", 8_192),
        ("phi-3-mini-128k-instruct", 128_000),
        ("some-model-1m", 1_000_000),
        ("some-model-16k", 16_384),
    ],
)
def test_a_name_alone_tells_the_window_of_its_family(name, tokens):
    assert window_by_pattern(name) == tokens


@pytest.mark.parametrize("name", ["brand-new", "model-4kids", "", "10km"])
def test_other_names_tell_nothing(name):
    assert window_by_pattern(name) is None


@pytest.mark.parametrize(
    "url, local",
    [
        ("http://localhost:11434/v1", True),
        ("localhost:8080", True),
        ("http://127.0.0.2/", True),
        ("http://[::1]:8000", True),
        ("http://192.168.1.20:1234/v1", True),
        ("http://10.0.0.5", True),
        ("http://box.local:8080", True),
        ("http://host.docker.internal:11434", True),
        ("https://api.openai.com/v1", False),
        ("https://8.8.8.8/", False),
        ("https://localhost.example.org", False),
        ("http://[broken", False),
        ("", False),
    ],
)
def test_a_url_is_local_on_this_machine_and_its_network(url, local):
    assert is_local(url) is local
