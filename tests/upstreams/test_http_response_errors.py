from __future__ import annotations

import pytest

from refold.model.errors import ContextOverflow, RateLimited, UpstreamError, UpstreamUnavailable, WireError
from refold.model.message import user
from refold.ports.models import Ask
from refold.upstreams import Provider
from refold.upstreams.http import ErrorReply, asked_wait, error_of_response, unreadable_reply

PROVIDER, ASK = Provider("acme", "m-1"), Ask((user("Why?"),))
DATE = "Wed, 21 Oct 2026 07:28:10 GMT"
AT = 1792567690.0


@pytest.mark.parametrize(
    "headers, wait_s",
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after": DATE}, 10.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2026 07:28:03 GMT"}, 7.0),
        ({"retry-after": "Wed, 21 Oct 2020 07:28:00 GMT"}, 0.0),
        ({"retry-after": DATE, "date": "yesterday"}, 10.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 99 Oct 2026 07:28:10 GMT"}, None),
    ],
)
def test_how_long_a_provider_asks_to_wait(headers, wait_s):
    """By the provider's own clock where it tells the time: ours may be wrong."""
    assert asked_wait(headers, AT - 10) == wait_s


def setback(status: int, body: bytes = b"", **headers: str):
    return error_of_response(PROVIDER, ErrorReply(status, body, headers), ASK, AT)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 524])
def test_a_server_in_trouble_may_be_asked_again(status):
    found = setback(status, b"<html>")
    assert (type(found.error), found.again) == (UpstreamUnavailable, True)


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 409, 410, 422, 501, 505])
def test_what_is_wrong_with_the_question_stays_wrong(status):
    found = setback(status, b'{"error":{"message":"no"}}')
    assert (type(found.error), found.again) == (UpstreamError, False)


@pytest.mark.parametrize("status", [429, 529])
def test_a_busy_provider_may_be_asked_again(status):
    found = setback(status)
    assert (type(found.error), found.again) == (RateLimited, True)


def test_a_provider_may_say_that_asking_again_is_no_use():
    assert not setback(500, **{"x-should-retry": "false"}).again


def test_an_overflow_is_never_asked_again_whatever_its_status():
    body = b'{"error":{"message":"This model\'s maximum context length is 8000 tokens. However, your messages resulted in 9000 tokens."}}'
    for status in (200, 400, 500):
        found = setback(status, body)
        assert (type(found.error), found.again) == (ContextOverflow, False)
        assert (found.error.overflow.limit, found.error.overflow.prompt) == (8000, 9000)


@pytest.mark.parametrize(
    "body, again",
    [
        (b'{"error":{"code":502,"message":"m"}}', True),
        (b'{"error":{"type":"api_error","message":"m"}}', True),
        (b'{"error":{"code":"server_error","message":"m"}}', True),
        (b'{"error":{"code":404,"message":"m"}}', False),
        (b'{"error":{"code":"99999999999999999999","message":"m"}}', False),
        (b'{"error":{"message":"m"}}', False),
    ],
)
def test_an_error_inside_of_an_answer_tells_by_its_code(body, again):
    assert setback(200, body).again is again


def test_an_error_without_a_word_is_an_overflow_near_the_budget_only():
    near = Ask(ASK.messages, estimated=7_500, budget=8_000)
    assert type(error_of_response(PROVIDER, ErrorReply(400), near, AT).error) is ContextOverflow
    assert type(setback(400).error) is UpstreamError


@pytest.mark.parametrize(
    "code, shown",
    [
        ("model_not_found", True),
        ("canary-7", False),
        ("sk_canary_123", False),
        ("a canary in a sentence", False),
        ("canary" * 20, False),
    ],
)
def test_the_message_names_provider_status_and_code_and_quotes_nothing(code, shown):
    body = b'{"error":{"message":"no canary","type":"","code":"%s"}}' % code.encode()
    told = str(setback(404, body).error)
    assert told.startswith("acme (m-1) did not give a reply: status 404")
    assert (code in told) == shown
    assert "canary" not in told
    assert "hint: check base_url" in told


def test_what_is_no_reply_says_where_it_stops_being_one():
    found = unreadable_reply(PROVIDER, WireError("is missing", place="choices"))
    assert "choices: is missing" in str(found.error)
    assert not found.again
