from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.overflow import (
    MOST_NODES,
    MOST_TEXT,
    RULES,
    ErrorDetails,
    SentenceRule,
    classify,
    classify_finish,
    phrase,
    read_answer,
    read_number,
    read_phrase,
)
from refold.model.errors import Overflow
from refold.model.tokens import Usage
from tests.core.overflow_answers import OVERFLOW, Case, anthropic, openai
from tests.core.overflow_refusals import NOT_OVERFLOW

ANTHROPIC = "prompt is too long: 274468 tokens > 200000 maximum"
OPAL = (
    "context_length_exceeded", "maximum context length", "max_tokens", "max_prompt_tokens", "too many tokens",
    "prompt is too long", "prompt_tokens_exceeded", "request too large", "context window", "token limit",
    "exceeds the limit", "input too long", "exceeds the model's maximum", "reduce the length",
    "maximum number of tokens", "content_too_large",
)  # fmt: skip


def numbers(overflow: Overflow) -> tuple[int | None, ...]:
    return overflow.limit, overflow.requested, overflow.prompt, overflow.output


@pytest.mark.parametrize("case", OVERFLOW, ids=lambda case: f"E48 {case.name}")
def test_recognises_overflow_and_reads_its_numbers(case: Case):
    found = classify(case.status, case.body)
    assert (found.kind, *numbers(found)) == case[3:], found
    assert found.is_overflow


@pytest.mark.parametrize("case", NOT_OVERFLOW, ids=lambda case: f"E48 {case.name}")
def test_is_not_fooled(case: Case):
    found = classify(case.status, case.body)
    assert (found.kind, *numbers(found)) == case[3:], found
    assert not found.is_overflow


@pytest.mark.parametrize("words", OPAL)
@pytest.mark.parametrize("shape", ["{}", "Error: {} !", '{{:api_error, "{}"}}'])
def test_opals_words_are_the_floor(words: str, shape: str):
    for text in (shape.format(words), shape.format(words.upper())):
        assert classify(400, text).is_overflow
        assert classify(None, {"error": {"message": text}}).is_overflow


@pytest.mark.parametrize("words", OPAL)
def test_the_floor_is_gated_by_rate_limits_and_statuses(words: str):
    assert classify(400, f"rate limit reached: {words}").kind == "rate_limit"
    assert classify(429, words).kind == "rate_limit"
    assert classify(404, words).kind == "other"


@pytest.mark.parametrize("form", ["bytes", "text", "decoded"])
def test_an_answer_means_the_same_in_every_form(form: str):
    body = {
        "bytes": b'{"error":{"message":"%s"}}' % ANTHROPIC.encode(),
        "text": ANTHROPIC,
        "decoded": anthropic(ANTHROPIC),
    }
    assert numbers(classify(400, body[form])) == (200000, None, 274468, None)


def test_e56_reads_the_error_in_a_raw_event_stream():
    stream = 'event: message_start\ndata: {"type":"message_start"}\n\nevent: error\ndata: {"type":"error","error":{"message":"%s"}}\n'
    assert classify(200, (stream % ANTHROPIC).encode()).prompt == 274468


DELTA = 'data: {"choices":[{"delta":{"content":"context_length_exceeded: prompt is too long: 9 tokens > 5 maximum"}}]}\n\n'
ERROR = f'{{"type":"error","error":{{"message":"{ANTHROPIC}"}}}}'
LONG = f'"instructions":"{"context_length_exceeded " * 5_000}"'


@pytest.mark.parametrize("stream", [
    f": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\ndata: {ERROR}\n\ndata: [DONE]\n",
    f"\ufeff\r\nid: 1\r\nretry: 500\r\nevent: error\r\ndata:{ERROR}\r\n\r\n",
    DELTA * 400 + f"data: {ERROR}\n\n",
    DELTA * 40_000 + f"data: {ERROR}\n\n",
    DELTA + f"error: {ERROR}\n\n",
    f'event: response.created\ndata: {{"response":{{{LONG}}}}}\n\nevent: error\ndata: {ERROR}\n\nevent: response.failed\ndata: {{"response":{{{LONG}}}}}\n\n',
    '{"model":"m","response":"rate limit"}\n' * 40 + ERROR,
    f"[{','.join(['{}'] * 40)},{ERROR}]",
], ids=["comments", "every field", "16 KB", "5 MB", "llama.cpp", "long events", "lines of JSON", "list"])  # fmt: skip
@pytest.mark.parametrize("form", [str, str.encode])
def test_an_error_is_found_wherever_a_stream_holds_it(stream: str, form: Callable[[str], object]):
    assert numbers(classify(200, form(stream))) == (200000, None, 274468, None)


@pytest.mark.parametrize("before", ["", ": PING\n\n", "id: 1\n", "\n", "\ufeff"])
@pytest.mark.parametrize("times", [1, 400, 40_000])
def test_what_a_model_says_in_a_stream_never_decides(before: str, times: int):
    stream = before + DELTA * times
    assert classify(200, stream).kind == "other"
    assert classify(200, stream.encode()[:-20]).kind == "other"


@pytest.mark.parametrize("status,body", [(400, b""), (400, "400 status code (no body)"), (None, "400 status code (no body)"),
    (413, b""), (413, None), (None, "413 status code (no body)"), (400, {}), (400, "Bad Request"),
    (400, {"name": "GaxiosError", "message": "Google request failed with status code 400"})])  # fmt: skip
def test_an_answer_without_a_reason_needs_a_full_window(status: int | None, body: object):
    assert classify(status, body, estimated=80_000, budget=100_000).kind == "input_too_long"
    assert not classify(status, body, estimated=79_999, budget=100_000).is_overflow
    assert not classify(status, body, estimated=80_000).is_overflow
    assert not classify(status, body, budget=100_000).is_overflow
    assert not classify(status, body, estimated=10, budget=0).is_overflow


@pytest.mark.parametrize("status,body", [(None, ""), (401, b""), (500, b""), (413, "Request Entity Too Large"), (400, openai("", code="invalid_model")),
    (400, "Google request failed with status code 400: bad schema"), (429, b"")])  # fmt: skip
def test_a_full_window_alone_is_no_overflow(status: int | None, body: object):
    assert not classify(status, body, estimated=99_000, budget=100_000).is_overflow


def test_what_a_limit_bounds_is_told():
    minute = classify(429, "Request too large for m on tokens per min (TPM): Limit 200000, Requested 480002")
    assert minute.is_overflow
    assert minute.limit_of == "minute"
    assert classify(400, anthropic("image exceeds 5 MB maximum")).limit_of == "item"
    assert classify(400, ANTHROPIC).limit_of == "window"


@pytest.mark.parametrize("requested,kind", [(200_000, "rate_limit"), (200_001, "input_too_long")])
def test_more_than_a_minutes_tokens_never_gets_through(requested: int, kind: str):
    text = f"Rate limit reached on tokens per min (TPM): Limit 200000, Used 0, Requested {requested}. Please try again in 1s."
    assert classify(429, text).kind == kind


@pytest.mark.parametrize(
    "prompt,output,kind",
    [(199_999, 2, "input_plus_output"), (200_000, 1, "input_too_long"), (200_001, 0, "input_too_long")],
)
def test_the_numbers_tell_whether_less_output_would_do(prompt: int, output: int, kind: str):
    text = f"input length and max_tokens exceed context limit: {prompt} + {output} > 200000"
    assert classify(400, text) == Overflow(
        kind, 200_000, requested=prompt + output, prompt=prompt, output=output, evidence="anthropic sum"
    )


def test_an_output_cap_whose_input_fills_the_window_is_overflow():
    text = "max_tokens is too large: 10. This model's maximum context length is 8192 tokens and your request has 8192 input tokens"
    assert numbers(classify(400, text)) == (8192, 8202, 8192, 10)
    assert classify(400, text).is_overflow


def test_evidence_names_the_rule_and_never_quotes_the_answer():
    assert classify(400, anthropic(ANTHROPIC)).evidence == "anthropic"
    assert classify(404, "secret").evidence == "status 404"
    assert classify(400, "secret").evidence == "no rule"
    names = Counter(rule.name for rule in RULES)
    assert max(names.values()) == 1
    assert all(classify(case.status, case.body).evidence for case in (*OVERFLOW, *NOT_OVERFLOW))


@cache
def answers_by_rule() -> dict[str, list[ErrorDetails]]:
    """The known answers, by the name of the rule that decides them."""
    cases = [
        *((case.status, case.body) for case in (*OVERFLOW, *NOT_OVERFLOW)),
        *((400, words) for words in OPAL),
    ]
    found = defaultdict[str, list[ErrorDetails]](list)
    for status, body in cases:
        found[classify(status, body).evidence].append(read_answer(body))
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_phrase_and_code_of_the_table_decides_a_known_answer(rule: SentenceRule):
    answers = answers_by_rule().get(rule.name, [])
    assert [
        words for words in rule.says if all(read_phrase(words, answer.text) is None for answer in answers)
    ] == []
    assert [code for code in rule.codes if all(code not in answer.codes for answer in answers)] == []


@pytest.mark.parametrize(
    "prompt,found", [(200_000, False), (200_001, True)], ids=["O13 equal", "O13 one more"]
)
def test_reported_input_above_the_window_is_a_silent_overflow(prompt: int, found: bool):
    usage = Usage(input=1, cache_read=prompt - 11, cache_write=10, output=50)
    overflow = classify_finish("stop", usage, 200_000)
    assert (overflow is not None) is found
    if overflow:
        assert numbers(overflow) == (200_000, None, prompt, None)


@pytest.mark.parametrize("estimated,found", [(None, True), (160_000, True), (159_999, False)])
def test_40_a_report_our_own_count_contradicts_is_not_trusted(estimated: int | None, found: bool):
    doubled = Usage(input=220_000, output=50)
    assert (classify_finish("stop", doubled, 200_000, estimated=estimated) is not None) is found


def test_the_sum_of_several_turns_is_not_the_size_of_a_window():
    assert classify_finish("stop", Usage(input=500_000, output=9, last_prompt=90_000), 200_000) is None
    assert classify_finish("stop", Usage(input=500_000, output=9, last_prompt=250_000), 200_000) is not None


@pytest.mark.parametrize("reason", ["length", "max_tokens", "max_output_tokens"])
@pytest.mark.parametrize(
    "prompt,output,found", [(99_000, 0, True), (98_999, 0, False), (99_000, 1, False), (100_000, 0, True)]
)
def test_a_full_window_that_left_no_room_for_a_word(reason: str, prompt: int, output: int, found: bool):
    assert (classify_finish(reason, Usage(input=prompt, output=output), 100_000) is not None) is found
    assert classify_finish("stop", Usage(input=prompt, output=output), 100_000) is None


def test_a_finish_reason_can_say_it_outright():
    assert classify_finish("model_context_window_exceeded", None, None).is_overflow
    told = classify_finish("model_context_window_exceeded", Usage(input=150_000, output=50_000), 200_000)
    assert numbers(told) == (200_000, None, 150_000, None)


@pytest.mark.parametrize(
    "usage,window", [(None, 100), (Usage(input=500), None), (Usage(input=500), 0), (Usage(), 100)]
)
def test_without_usage_or_window_nothing_is_concluded(usage: Usage | None, window: int | None):
    assert classify_finish("length", usage, window) is None
    assert classify_finish(None, usage, window) is None


def nested(depth: int, inner: object) -> object:
    for _ in range(depth):
        inner = {"error": inner}
    return inner


HOSTILE = {
    "2 KB of openers": "prompt is too long: " + "(" * 2_000,
    "2 KB of near matches": "maximum context length is 1 tokens " * 60 + "you requested ",
    "5 MB of spaces": " " * 5_000_000,
    "5 MB of digits": b"prompt is too long: " + b"9" * 5_000_000,
    "5 MB of near matches": "tokens per min limit requested " * 160_000,
    "5 MB of urls": "https://" * 640_000,
    "5 MB of JSON": b'{"error":{"message":"' + b"a" * 5_000_000 + b'"}}',
    "100,000 deep, decoded": lambda: nested(100_000, "context_length_exceeded"),
    "100,000 deep list, decoded": lambda: nested(3, [nested(100_000, [])] * 1_000),
    "100,000 deep, bytes": b'{"error":' * 100_000 + b"1" + b"}" * 100_000,
    "100,000 deep, cut off": b"[" * 100_000,
    "100,000 deep in a string": {"error": {"message": "[" * 100_000}},
    "events in events": b"data:" * 3_200,
    "5 MB of events in events": b"data:" * 1_000_000,
    "5 MB of events": b"data:{}\n" * 600_000,
    "5 MB of lines": "{\n" * 2_500_000,
    "events in strings": {"error": {"message": "data:" * 3_200}},
    "JSON in JSON strings": {"errors": [{"message": '{"message":"' + "a" * 10_000 + '"}'}] * 1_000},
    "invalid UTF-8": b"\xff\xfe\x00{\x80",
    "NUL": b'{"error":"\x00"}',
    "lone surrogate": '{"error": "\ud800"}',
    "lone surrogate, escaped": b'{"error":{"message":"\\ud800"}}',
    "huge code": {"error": {"code": 10**5_000, "status": -1, "n_ctx": 10**5_000}},
    "huge JSON number": b'{"error":{"code":' + b"9" * 6_000 + b"}}",
    "wrong types": {"error": [1, None, 2.5, True, {"message": 7, "code": [], "type": {}}], 5: 6, None: None},
    "not JSON at all": object(),
    "nan": float("nan"),
}  # fmt: skip
"""Objects by the hundred thousand are made where they are needed: the garbage collector looks at all that there are."""


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("status", [None, 200, 400, 413, 429, 500, -1, 10**30])
def test_hostile_bodies_do_no_harm(name: str, status: int | None):
    body = HOSTILE[name]
    body = body() if callable(body) else body
    found = classify(status, body)
    assert found.limit is None or found.limit <= 10**9
    assert len(read_answer(body).text) <= MOST_TEXT + 1


def test_a_cycle_ends():
    body: dict[str, object] = {}
    body["error"] = body
    assert classify(400, body).kind == "other"


def test_only_the_first_4_kb_are_considered():
    assert classify(400, ANTHROPIC + "x" * 5_000_000).prompt == 274468
    assert classify(400, " x" * MOST_TEXT + ANTHROPIC).kind == "other"


class TokenNumber(dict):
    looked = 0

    def get(self, key, default=None):
        TokenNumber.looked += 1
        return super().get(key, default)

    def __getitem__(self, key):
        TokenNumber.looked += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("width", [10, 1_000])
def test_the_walk_is_bounded_however_large_the_body(width: int):
    TokenNumber.looked = 0
    leaf = TokenNumber(message="no")
    body = TokenNumber(errors=[TokenNumber(errors=[TokenNumber(errors=[leaf] * width)] * width)] * width)
    classify(400, body)
    assert TokenNumber.looked <= MOST_NODES * 60


def test_an_error_is_found_eight_deep_and_no_deeper():
    assert classify(400, nested(8, "context_length_exceeded")).is_overflow
    assert classify(400, nested(9, "context_length_exceeded")).kind == "other"


@pytest.mark.parametrize("text,value", [
    ("200000 max", 200000), ("200,000.", 200000), ("1_048_576", 1048576), (" (65536)", 65536), ("8192, and", 8192), ("0", 0),
    ("1000000000", 10**9), ("1000000001", None), ("9" * 4000, None), ("128k", None), ("5.5", None), ("80%", None), ("٣", None), ("²", None),
    ("tokens", None), ("", None), (",5", None),
])  # fmt: skip
def test_numbers(text: str, value: int | None):
    assert read_number(text, 0)[1] == value


def test_a_phrase_is_found_after_false_starts_and_equal_names_add_up():
    wanted = phrase("used {prompt} of text, {prompt} of tools…limit {limit}")
    assert read_phrase(wanted, "used all; used 5 of text, 6 of tools, no limit but limit 9") == {
        "prompt": 11,
        "limit": 9,
    }
    assert read_phrase(wanted, "limit 9, used 5 of text, 6 of tools") is None


def test_the_words_after_a_number_follow_it_directly_unless_a_gap_is_written():
    assert read_phrase(phrase("limit of {_} pages"), "limit of 5 pages") == {}
    assert read_phrase(phrase("limit of {_} pages"), "limit of 5 tokens, see our pages") is None
    assert read_phrase(phrase("limit of {_}…pages"), "limit of 5 tokens, see our pages") == {}
    assert read_phrase(phrase("limit of {_} pages"), "limit of 5 tokens, limit of 6 pages") == {}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(OPAL),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "metadata", "raw"]), inner)
    ),
)


@given(
    st.none() | st.integers(),
    st.binary() | st.text(st.characters()) | json_values,
    st.none() | st.integers(),
    st.none() | st.integers(),
)
def test_never_raises(status: int | None, body: object, estimated: int | None, budget: int | None):
    found = classify(status, body, estimated=estimated, budget=budget)
    assert not (found.is_overflow and status in (401, 403, 404))


def test_the_page_names_every_rule():
    page = (Path(__file__).parents[2] / "docs" / "overflow.md").read_text(encoding="utf-8")
    assert [rule.name for rule in RULES if f"`{rule.name}`" not in page] == []
