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
    assert decode_usage({"prompt_tokens": 10**9}, CHAT) == Usage(input=10**9)
    for number in (b"1" + b"0" * 400, b"1000000001", b"1e300", b"12.5", b"-3"):
        assert decode_usage(b'{"prompt_tokens":' + number + b',"completion_tokens":2}', CHAT) == Usage(
            output=2
        )


def test_a_report_that_is_no_report_is_not_built():
    assert decode_usage(b'{"prompt_tokens":1,"a":[' + b"[]," * 400_000 + b"[]]}", CHAT) is None


@pytest.mark.parametrize(
    "report, usage",
    [
        (
            {
                "prompt_tokens": 2006,
                "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1000},
            },
            Usage(input=6, cache_read=1000, cache_write=1000),
        ),
        (
            {
                "input_tokens": 2006,
                "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1000},
            },
            Usage(input=6, cache_read=1000, cache_write=1000),
        ),
        (
            {"prompt_tokens": 1000, "prompt_cache_hit_tokens": 896, "prompt_cache_miss_tokens": 104},
            Usage(input=104, cache_read=896),
        ),
        ({"prompt_tokens": 1000, "cached_tokens": 500}, Usage(input=500, cache_read=500)),
        (
            {"prompt_tokens": 1000, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 500},
            Usage(input=200, cache_read=500, cache_write=300),
        ),
    ],
    ids=["written", "responses", "deepseek", "kimi", "litellm"],
)
def test_the_cache_is_found_wherever_a_server_reports_it(report: dict[str, object], usage: Usage):
    assert decode_usage(report, CHAT) == usage
    assert usage.prompt == report.get("prompt_tokens", report.get("input_tokens"))


@pytest.mark.parametrize(
    "total, output",
    [(409, 309), (109, 309), (None, 309)],
    ids=["beside, as the total says", "more than in all", "no total"],
)
def test_reasoning_that_a_server_reports_beside_the_output_is_part_of_it(total: int | None, output: int):
    report = {
        "prompt_tokens": 100,
        "completion_tokens": 9,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": 300},
    }
    assert decode_usage(report, CHAT) == Usage(input=100, output=output, reasoning=300)


def test_anthropic_says_how_much_was_thought():
    report = {**ANTHROPIC_REPORT, "output_tokens_details": {"thinking_tokens": 30}}
    usage = decode_usage(report, ANTHROPIC)
    assert usage is not None
    assert (usage.output, usage.reasoning) == (50, 30)


def test_a_call_of_several_turns_is_billed_whole_but_its_window_is_the_last():
    turns = [
        {"type": "message", "input_tokens": size, "cache_read_input_tokens": 1000, "output_tokens": 100}
        for size in (20_000, 30_000, 40_000)
    ]
    advice = {"type": "advisor_message", "input_tokens": 7, "output_tokens": 7}
    report = {"input_tokens": 90_000, "cache_read_input_tokens": 3000, "output_tokens": 300}
    usage = decode_usage({**report, "iterations": [*turns, advice]}, ANTHROPIC)
    assert usage is not None
    assert (usage.prompt, usage.context, usage.output) == (93_000, 41_000, 300)


def test_a_compaction_is_billed_but_its_prompt_is_not_the_window():
    compaction = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
    turn = {"type": "fallback_message", "input_tokens": 23_000, "output_tokens": 1_000}
    for iterations in ([compaction, turn], [turn, compaction]):
        report = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": iterations}
        usage = decode_usage(report, ANTHROPIC)
        assert usage is not None
        assert (usage.prompt, usage.output, usage.context) == (203_000, 4_500, 23_000)


@pytest.mark.parametrize("iterations", [None, [], [3], {}, [{"type": "message"}]])
def test_without_turns_the_window_is_the_prompt(iterations: object):
    usage = decode_usage({**ANTHROPIC_REPORT, "iterations": iterations}, ANTHROPIC)
    assert usage is not None
    assert usage.context == usage.prompt == 1000
