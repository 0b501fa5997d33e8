"""The gateway's own errors: the official SDKs raise for them what they raise for their provider's."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from refold.core.overflow import classify
from refold.gateway.errors import STATUSES, answer, event, status_of
from refold.gateway.request import shape_of
from refold.model import errors
from refold.wire.error import decode_error
from refold.wire.sse import SseParser
from tests.gateway.served_gateway import serving

SHAPES = ("chat", "responses", "anthropic", "refold")
CALLERS = (errors.ConfigError, errors.WireError, errors.AccessError, errors.WindowError)
"""Whoever sent the request can mend these."""
TOO_LONG = (errors.DoesNotFit, errors.RecoverySpent, errors.ContextOverflow)


def every_error() -> list[type[errors.RefoldError]]:
    found: list[type[errors.RefoldError]] = [errors.RefoldError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_and_no_bad_input_is_our_fault(kind):
    status = status_of(kind.__new__(kind))

    assert 400 <= status < 600
    if issubclass(kind, CALLERS) and kind is not errors.MissingExtra:
        assert status < 500


def test_statuses_are_those_that_clients_know():
    known = {kind.__name__: status for kind, status in STATUSES.items()}

    assert known["KeyRefused"] == 401
    assert known["AccessError"] == 403
    assert known["NotFound"] == 404
    assert known["BodyTooSlow"] == 408
    assert known["BodyTooLarge"] == 413
    assert known["BodyEncoded"] == 415
    assert status_of(errors.BudgetError()) == status_of(errors.ConfigError()) == 400
    assert status_of(errors.UpstreamUnavailable()) == 502
    assert status_of(errors.StoreError()) == 503
    assert status_of(ZeroDivisionError()) == 500


def test_the_shapes_word_for_word():
    error = errors.WireError("expected a string", place="messages[3].content", hint="send text")

    assert json.loads(answer(error, "chat").body) == {
        "error": {
            "message": "messages[3].content: expected a string\nhint: send text",
            "type": "invalid_request_error",
            "param": "messages[3].content",
            "code": "wire_error",
        }
    }
    assert answer(error, "responses") == answer(error, "chat")
    assert json.loads(answer(error, "anthropic", request_id="req_7").body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages[3].content: expected a string\nhint: send text",
        },
        "request_id": "req_7",
    }
    assert json.loads(answer(error, "refold").body) == {
        "error": {
            "code": "wire_error",
            "message": "messages[3].content: expected a string",
            "hint": "send text",
        }
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("error", TOO_LONG, ids=lambda kind: kind.__name__)
def test_clients_recognise_a_conversation_that_does_not_fit(shape, error):
    told = answer(error(), shape)
    if shape == "refold":
        assert told.status == 400
        return

    assert classify(told.status, told.body).is_overflow, "as they recognise their provider's own"


@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_bug_nothing_is_told(shape):
    told = answer(ValueError("canary-4711"), shape)

    assert told.status == 500
    assert b"canary" not in told.body
    assert b"canary" not in event(ValueError("canary-4711"), shape)
    assert b"Refold failed" in told.body
    if shape == "refold":
        assert json.loads(told.body)["error"]["code"] == "internal_error"


def test_half_a_character_breaks_no_answer():
    told = answer(errors.ConfigError("there is no preset '\ud83d'"), "chat")

    assert json.loads(told.body)["error"]["message"] == "there is no preset '?'"


def test_headers_say_what_a_client_needs():
    headers = dict(answer(errors.KeyRefused(), "chat", request_id="r1").headers)

    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"
    assert headers["www-authenticate"] == "Bearer"
    assert headers["x-request-id"] == "r1"
    assert dict(answer(errors.KeyRefused(), "anthropic", request_id="r1").headers)["request-id"] == "r1"


@pytest.mark.parametrize("shape", SHAPES)
def test_an_event_is_one_event_and_says_the_same(shape):
    error = errors.UpstreamUnavailable(hint="try\nlater")
    found = SseParser().feed(event(error, shape, sequence=3))

    assert len(found) == 1
    assert found[0].name == ("" if shape == "chat" else "error")
    assert "cannot be reached" in decode_error(found[0].data).message
    if shape == "responses":
        told = json.loads(found[0].data)
        assert (told["type"], told["sequence_number"], told["param"]) == ("error", 3, None)
        assert told["code"] == "upstream_unavailable"


@asynccontextmanager
async def failing(error: Exception, *, in_stream: bool = False):
    """Both SDKs, at a server that answers every call with an error."""

    async def fail(request):
        shape = shape_of(request.url.path)
        if in_stream:
            return Response(event(error, shape), media_type="text/event-stream")
        told = answer(error, shape, request_id="req_1")
        return Response(told.body, told.status, dict(told.headers))

    app = Starlette(routes=[Route("/{path:path}", fail, methods=["GET", "POST"])])
    async with serving(app) as port:
        url = f"http://127.0.0.1:{port}"
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as one,
            anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as other,
        ):
            yield one, other


SAID = [{"role": "user", "content": "Hello"}]


def calls(one, other, *, stream: bool):
    return (
        one.chat.completions.create(model="m", messages=SAID, stream=stream),
        one.responses.create(model="m", input=SAID, stream=stream),
        other.messages.create(model="m", max_tokens=9, messages=SAID, stream=stream),
    )


RAISED = [
    (errors.WireError(), "BadRequestError"),
    (errors.KeyRefused(), "AuthenticationError"),
    (errors.AccessError(), "PermissionDeniedError"),
    (errors.NotFound(), "NotFoundError"),
    (errors.Conflict(), "ConflictError"),
    (errors.RateLimited(), "RateLimitError"),
    (errors.TooManyRequests(), "RateLimitError"),
    (errors.Busy(), "InternalServerError"),
    (errors.BodyTooLarge(), "RequestTooLargeError"),
    (errors.StoreError(), "InternalServerError"),
    (errors.UpstreamUnavailable(), "InternalServerError"),
    (ValueError(), "InternalServerError"),
]


@pytest.mark.feature("X18")
@pytest.mark.parametrize(("error", "name"), RAISED, ids=lambda value: type(value).__name__)
async def test_the_sdks_raise_the_class_that_is_meant(error, name):
    async with failing(error) as (one, other):
        for call in calls(one, other, stream=False):
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
                await call
            module = type(raised.value).__module__.partition(".")[0]
            wanted = getattr({"openai": openai, "anthropic": anthropic}[module], name, None)
            assert wanted is None or isinstance(raised.value, wanted)
            assert raised.value.status_code == status_of(error)
            assert raised.value.request_id == "req_1"
            if isinstance(error, errors.RefoldError):
                assert error.message in str(raised.value)


async def test_the_sdks_read_codes_and_hints():
    async with failing(errors.KeyRefused()) as (one, other):
        with pytest.raises(openai.AuthenticationError) as raised:
            await one.chat.completions.create(model="m", messages=SAID)
        assert raised.value.code == "invalid_api_key"
        assert "hint: make one with `refold keys create`" in raised.value.message
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await other.messages.create(model="m", max_tokens=9, messages=SAID)
        assert refused.value.body["error"]["type"] == "authentication_error"


async def test_an_error_inside_of_a_stream_is_raised_by_the_sdks():
    async with failing(errors.UpstreamUnavailable(), in_stream=True) as (one, other):
        for call in calls(one, other, stream=True):
            with pytest.raises((openai.APIError, anthropic.APIError), match="cannot be reached"):
                async for _ in await call:
                    pass
