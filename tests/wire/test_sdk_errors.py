from types import SimpleNamespace

import anthropic
import openai
import pytest

from refold.core.overflow import classify
from refold.model.errors import ContextOverflow, Overflow, RateLimited, UpstreamError
from refold.wire.sdk import read_refusal

OPENAI = {
    "error": {
        "message": (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. "
            "Please reduce the length of the messages."
        ),
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
ANTHROPIC = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "prompt is too long: 9001 tokens > 8192 maximum"},
}


def refused(kind, body: object, status: int = 400) -> Exception:
    """The error as the SDK itself makes it of an answer."""
    response = SimpleNamespace(status_code=status, request=None, headers={})
    return kind(api_key="none")._make_status_error("refused", body=body, response=response)


@pytest.mark.parametrize(
    ("client", "body"),
    [(openai.OpenAI, OPENAI), (anthropic.Anthropic, ANTHROPIC)],
    ids=["openai", "anthropic"],
)
def test_what_an_sdk_raises_is_understood(client, body):
    found = classify(*read_refusal(refused(client, body)))

    assert (found.is_overflow, found.limit) == (True, 8192)


def test_the_status_tells_a_rate_limit_from_an_overflow():
    body = {"error": {"message": "Rate limit reached: too many tokens per minute"}}

    status, told = read_refusal(refused(openai.OpenAI, body, 429))

    assert status == 429
    assert not classify(status, told).is_overflow


@pytest.mark.feature("O12")
@pytest.mark.parametrize(
    "error",
    [
        ContextOverflow("it is too long", overflow=Overflow("input_too_long", limit=8_192)),
        RateLimited("it is too long", overflow=Overflow("rate_limit")),
    ],
)
def test_our_own_errors_know_what_was_said(error):
    assert read_refusal(error) == (None, error.overflow)


def test_an_error_of_our_own_that_knows_nothing_is_read_by_its_words():
    assert read_refusal(UpstreamError("it failed")) == (None, "it failed")


class Failed(Exception):
    """An error of a client nobody knows."""

    def __init__(self, **fields: object) -> None:
        super().__init__("it failed")
        self.__dict__.update(fields)


class Unread:
    status_code = 413

    @property
    def text(self) -> str:
        raise RuntimeError("the answer was not read")

    async def content(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        ("prompt is too long", None, "prompt is too long"),
        (b"{}", None, b"{}"),
        (OPENAI, None, OPENAI),
        (ValueError("prompt is too long"), None, "prompt is too long"),
        (Failed(status=400, body="x"), 400, "x"),
        (Failed(code="context_length_exceeded", details=["a list"]), None, "it failed"),
        (Failed(code=413, details=lambda: "a method"), 413, "it failed"),
        (Failed(status=True, response_body={"a": 1}), None, {"a": 1}),
        (Failed(body={}, response=Unread()), 413, "it failed"),
        (Failed(response=SimpleNamespace(status_code=400, text="too long")), 400, "too long"),
    ],
)
def test_status_and_body_are_found_under_any_of_their_names(error, status, body):
    assert read_refusal(error) == (status, body)
