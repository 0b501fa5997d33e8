"""Which conversation a request says it belongs to, and what it wishes."""

from __future__ import annotations

import msgspec
import pytest

from refold.gateway.request import MAX_NAME, Wishes, name_of, read_incoming, shape_of, wishes_of
from refold.model.errors import ConfigError, WireError

SESSION = "0198c2a4-55d1-7c3e-9a57-3f1d2b9e8a10"
OTHER = "3b241101-e2bb-4255-8caf-4136c566a962"


def named(headers=None, **fields):
    return name_of(
        headers or {}, {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in fields.items()}
    )


@pytest.mark.feature("X3")
@pytest.mark.parametrize(
    "headers, fields, name",
    [
        ({"x-refold-conversation": "support-42"}, {"prompt_cache_key": OTHER}, "support-42"),
        ({"x-claude-code-session-id": SESSION}, {}, SESSION),
        ({"session-id": SESSION}, {}, SESSION),
        ({"session_id": SESSION}, {}, SESSION),
        ({"x-session-id": "ses_1234"}, {}, "ses_1234"),
        ({"x-opencode-session": "ses_1234"}, {}, "ses_1234"),
        ({}, {"metadata": {"session_id": SESSION}}, SESSION),
        ({}, {"metadata": {"conversation_id": SESSION, "user_id": OTHER}}, SESSION),
        ({}, {"metadata": {"thread_id": f"{OTHER}/2"}}, ""),
        ({}, {"prompt_cache_key": SESSION}, ""),
        ({}, {"metadata": {"user_id": "alice"}}, ""),
        ({}, {"metadata": "none", "prompt_cache_key": 7}, ""),
        ({}, {}, ""),
    ],
)
def test_what_names_one_conversation_is_taken_for_its_name(headers, fields, name):
    assert named(headers, **fields) == name


def test_a_name_that_is_too_long_or_cannot_be_printed_is_known_by_its_hash():
    long, odd = (
        named({"x-refold-conversation": "x" * (MAX_NAME + 1)}),
        named({"x-refold-conversation": "a\x07b"}),
    )
    assert len(long) == len(odd) == 32
    assert long != odd
    assert named({"x-refold-conversation": "x" * MAX_NAME}) == "x" * MAX_NAME


def test_wishes():
    told = {
        "x-refold": " OFF",
        "x-refold-preset": "lis",
        "x-refold-window": "32000",
        "x-refold-upstream": "mine",
    }
    assert wishes_of(told) == Wishes(is_off=True, preset="lis", window=32_000, upstream="mine")
    assert wishes_of({}) == Wishes()


@pytest.mark.parametrize("window", ["-1", "1.5", "1e3", "80%", "٣", "0", "9" * 10])
def test_a_window_is_a_number_of_tokens(window):
    with pytest.raises(ConfigError, match="number of tokens"):
        wishes_of({"x-refold-window": window})


def test_what_a_request_says_of_itself():
    body = b'{"model":"m","stream":true,"max_completion_tokens":50,"max_tokens":90,"messages":[ {"role":"user"} ]}'
    found = read_incoming("/v1/chat/completions", {}, body)
    assert (found.model, found.is_stream, found.max_output, found.array) == (
        "m",
        True,
        50,
        b'[ {"role":"user"} ]',
    )
    assert not found.continues


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_a_request_that_goes_on_from_what_the_provider_holds(field):
    body = msgspec.json.encode({"model": "m", "input": "hi", field: "resp_1"})
    found = read_incoming("/v1/responses", {}, body)
    assert found.continues
    assert found.goes_on == (field == "previous_response_id")
    assert found.array == b'[{"role":"user","content":"hi"}]'


def test_odd_values_say_nothing():
    body = b'{"model":null,"stream":"yes","max_tokens":"many","messages":[]}'
    found = read_incoming("/v1/chat/completions", {}, body)
    assert (found.model, found.is_stream, found.max_output) == ("", False, None)


def test_what_is_no_object_is_refused():
    with pytest.raises(WireError):
        read_incoming("/v1/chat/completions", {}, b"[]")


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/responses", "responses"),
        ("/v1/responses/r1/cancel", "responses"),
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/models", "chat"),
        ("/v1/anything", "chat"),
        ("/refold/config", "refold"),
        ("/healthz", "refold"),
        ("/", "refold"),
        ("http://evil/v1/x", "refold"),
    ],
)
def test_a_path_tells_the_shape(path, shape):
    assert shape_of(path) == shape


def test_a_path_of_both_providers_answers_the_one_that_is_asked_for():
    assert shape_of("/v1/models", speaks_anthropic=True) == "anthropic"
    assert shape_of("/refold/status", speaks_anthropic=True) == "refold"
