from __future__ import annotations

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.tokens import Usage
from refold.wire import decode_usage

CHAT_REPORT = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 1050,
    "prompt_tokens_details": {"cached_tokens": 900},
    "completion_tokens_details": {"reasoning_tokens": 20},
}
RESPONSES_REPORT = {
    "input_tokens": 1000,
    "output_tokens": 50,
    "input_tokens_details": {"cached_tokens": 900},
    "output_tokens_details": {"reasoning_tokens": 20},
}
ANTHROPIC_REPORT = {
    "input_tokens": 60,
    "cache_read_input_tokens": 900,
    "cache_creation_input_tokens": 40,
    "output_tokens": 50,
}


@pytest.mark.parametrize(
    "dialect, report, usage",
    [
        (CHAT, CHAT_REPORT, Usage(input=100, cache_read=900, output=50, reasoning=20)),
        (RESPONSES, RESPONSES_REPORT, Usage(input=100, cache_read=900, output=50, reasoning=20)),
        (CHAT, RESPONSES_REPORT, Usage(input=100, cache_read=900, output=50, reasoning=20)),
        (ANTHROPIC, ANTHROPIC_REPORT, Usage(input=60, cache_read=900, cache_write=40, output=50)),
    ],
)
def test_one_window_has_one_size_whoever_reports_it(
    dialect: Dialect, report: dict[str, object], usage: Usage
):
    assert decode_usage(report, dialect) == usage
    assert usage.prompt == 1000


def test_a_window_that_came_wholly_from_the_cache_is_as_large_as_ever():
    chat = decode_usage({"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 900}}, CHAT)
    anthropic = decode_usage({"input_tokens": 0, "cache_read_input_tokens": 900}, ANTHROPIC)
    assert chat is not None
    assert anthropic is not None
    assert chat.prompt == anthropic.prompt == 900


def test_a_server_that_adds_the_cache_on_top_is_recognised():
    usage = decode_usage({"prompt_tokens": 6, "prompt_tokens_details": {"cached_tokens": 380_000}}, CHAT)
    assert usage == Usage(input=6, cache_read=380_000)


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, ANTHROPIC])
@pytest.mark.parametrize(
    "report",
    [
        {},
        {"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 0, "output_tokens": 0},
        {"prompt_tokens": None, "input_tokens": None},
        {"prompt_tokens": "many", "input_tokens": [], "output_tokens": True},
        {"prompt_tokens": -5, "input_tokens": -5, "output_tokens": float("nan")},
        b"null",
        b"[1]",
        b"{",
        b'"\xff"',
    ],
)
def test_a_report_of_nothing_is_no_report(dialect: Dialect, report: object):
    assert decode_usage(report, dialect) is None


def test_odd_numbers_are_read_where_they_make_sense():
    assert decode_usage(b'{"prompt_tokens":12.0,"prompt_tokens_details":null}', CHAT) == Usage(input=12)
    huge = decode_usage(b'{"prompt_tokens":1' + b"0" * 400 + b"}", CHAT)
    assert huge is not None
    assert huge.prompt == 10**400
