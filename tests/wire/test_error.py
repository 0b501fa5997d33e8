from __future__ import annotations

import tracemalloc

import pytest

from refold.wire import ErrorBody, decode_error
from tests.wire.test_reply import ANTHROPIC_REPLY, CHAT_REPLY, RESPONSES_REPLY


@pytest.mark.parametrize(
    "body, error",
    [
        (
            b'{"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}',
            ErrorBody("invalid_request_error", "context_length_exceeded", "too long"),
        ),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}',
            ErrorBody("overloaded_error", "", "Overloaded", "req_1"),
        ),
        (b'{"error":"plain"}', ErrorBody(message="plain")),
        (b' [ {"error":"plain"} ]', ErrorBody(message="plain")),
        (b'{"error":[{"message":"m","code":7}]}', ErrorBody("", "7", "m")),
        (b'{"error":{"error":{"message":"m"}}}', ErrorBody(message="m")),
        (
            b'{"message":"Input is too long","__type":"ValidationException"}',
            ErrorBody("ValidationException", "", "Input is too long"),
        ),
        (
            b'{"object":"error","message":"m","type":"BadRequestError","code":400}',
            ErrorBody("BadRequestError", "400", "m"),
        ),
        (b'{"detail":"Not found"}', ErrorBody(message="Not found")),
        (
            b'{"detail":[{"loc":["body"],"msg":"field required","type":"missing"}]}',
            ErrorBody("missing", "", "field required"),
        ),
        (b'{"detail":{"error":{"message":"m"}}}', ErrorBody(message="m")),
        (b'{"success":false,"errors":[{"code":5021,"message":"m"}]}', ErrorBody("", "5021", "m")),
        (b'{"errors":["m"]}', ErrorBody(message="m")),
        (
            b'{"choices":[{"finish_reason":"error","error":{"code":502,"message":"m"}}]}',
            ErrorBody("", "502", "m"),
        ),
        (b'{"error":{"code":400,"message":"m","status":"INVALID"}}', ErrorBody("INVALID", "400", "m")),
        (b'[{"error":{"code":400,"message":"m"}}]', ErrorBody("", "400", "m")),
        (b'{"id":"1","choices":[],"error":{"message":"m"}}', ErrorBody(message="m")),
    ],
)
def test_errors_of_every_format_are_read(body: bytes, error: ErrorBody):
    assert decode_error(body) == error
    assert decode_error(body).is_error


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"null", b"[]", b"{}", b'{"error":null}', b'{"error":[]}', b'{"error":{"message":{}}}', b"\xff",
     b"[" * 100_000, CHAT_REPLY, ANTHROPIC_REPLY, RESPONSES_REPLY,
     b'{"code":0,"message":"Success","choices":[]}', b'{"detail":"x","output":[]}', b'{"error":3}', b'{"error":{}}',
     b'{"error":{"error":{"error":{"error":{"error":{"message":"m"}}}}}}', b'{"choices":[{"error":null}]}'],
)  # fmt: skip
def test_a_body_without_an_error_gives_an_empty_one(body: bytes):
    assert decode_error(body) == ErrorBody()
    assert not decode_error(body).is_error


def test_a_hostile_error_is_read_without_being_built():
    for body in (
        b'{"error":{"a":[' + b"[]," * 500_000 + b"[]]}}",
        b'{"errors":[' + b"{}," * 500_000 + b"{}]}",
    ):
        tracemalloc.start()
        assert decode_error(body) == ErrorBody()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < len(body)
