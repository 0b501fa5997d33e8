"""Classify a provider's error: whether a smaller window is the remedy, and how much smaller.

`classify` reads an answer, `classify_finish` a finish reason with its usage. The known sentences of providers
are in `overflow_sentences`.

Only the fields that errors are written in are read, up to a fixed number of steps. Gateways wrap errors in
errors, as JSON in strings in JSON; the content of a reply must not be mistaken for an error, so no other
field is read.

The first matching rule decides, so the order of `RULES` is significant; if an answer states numbers,
arithmetic on them corrects the kind that the words suggest.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TypeAlias

from msgspec import MsgspecError, Struct, json

from refold.core.overflow_sentences import (
    BYTES,
    CODES,
    FLOOR,
    HISTORY,
    LARGEST_NUMBER,
    LIMIT_CODES,
    LIMITS,
    NAMED,
    NUMBERED,
    OUTPUT,
    PARAMETERS,
    UNNUMBERED,
    SentencePhrase,
    SentenceRule,
    StatedNumbers,
    read_phrase,
)
from refold.model.errors import Overflow, OverflowKind
from refold.model.tokens import Usage

# The codes, sentences and numbers of an error body

MOST_TEXT = 4_096
"""Limit of characters of text that are read: every known error states its reason long before."""
MOST_JSON = 1 << 20
"""A larger body is read as text: an error echoes at most a request, and a larger body is no error. Only
the last part of a stream is read."""
MOST_DEPTH = 8
MOST_NODES = 256
"""Limit of visited objects, lists and strings, and of the last lines of a stream; a wrapped error has
about ten."""
MOST_ITEMS = 16
"""Limit of items read from one list (half at either end) and from a stream (the last ones: an error ends
it)."""

_INSIDE = (
    "error", "Error", "errors", "message", "Message", "cause", "response", "responseBody", "body", "data", "value",
    "metadata", "$metadata", "detail", "details", "detailMessage", "base_resp", "choices", "lastError", "raw",
    "msg", "error_message", "errorMessage", "error_msg", "status_msg", "description", "title",
    "validationException", "modelStreamErrorException", "throttlingException", "external_model_error",
)  # fmt: skip
"""Fields that contain objects, lists and sentences of an error, in the order in which they are read."""
_CODED = (
    "code", "Code", "type", "__type", "error_type", "errorType", "error_code", "name", "reason", "status",
    "stop_reason", "finish_reason", "status_code", "statusCode", "http_code", "httpStatusCode",
)  # fmt: skip
_ENDS_URL = " \t\r\n\"'<>()[]{},\\"
_BLANK = "\ufeff \t\r\n"
_STARTS_STREAM = ("data:", "event:", "id:", "retry:", ":")
_NAMES_ERROR = ("event: error", "event:error")
_COUNTED = (("n_prompt_tokens", "prompt"), ("n_ctx", "limit"))
"""llama.cpp states its numbers as fields."""

Node: TypeAlias = tuple[object, int]


class ErrorDetails(Struct, frozen=True):
    """The contents of an error body."""

    codes: frozenset[str]
    text: str
    numbers: StatedNumbers
    status: int | None
    """The HTTP status that the body itself states."""


def read_answer(body: object) -> ErrorDetails:
    """Read a body: bytes, text, or JSON already decoded. Values of other types are treated as empty."""
    codes: list[str] = []
    texts: list[str] = []
    numbers: StatedNumbers = {}
    queue: deque[Node] = deque([(_parsed(body) if isinstance(body, bytes | str) else body, 0)])
    for _ in range(MOST_NODES):
        if not queue:
            break
        value, depth = queue.popleft()
        node = _decode_string(value)
        children = _children(node)
        if isinstance(value, str) and not children:
            texts.append(value[:MOST_TEXT])
        if isinstance(node, dict):
            _collect_fields(node, codes, numbers)
        if depth < MOST_DEPTH:
            queue.extend((child, depth + 1) for child in children)
    return ErrorDetails(frozenset(codes), normalise("\n".join(texts)), numbers, _stated_status(codes))


def normalise(text: str) -> str:
    """Return the first 4 KB in lower case on one line, without backticks and URLs (these lead to pages about
    rate limits).
    """
    text = text[:MOST_TEXT].lower().replace("`", "").replace("’", "'")
    return " ".join(_without_urls(text).split())


def _without_urls(text: str) -> str:
    before, *rest = text.split("://")
    kept = [before]
    for part in rest:
        kept[-1] = kept[-1].removesuffix("https").removesuffix("http")
        kept.append(part[_url_end(part) :])
    return " ".join(kept)


def _url_end(text: str) -> int:
    """Return the end of a URL: the first character that cannot be part of one.

    Chinese text follows without a space.
    """
    return next((at for at, char in enumerate(text) if char in _ENDS_URL or char > "~"), len(text))


def _children(node: object) -> list[object]:
    if isinstance(node, list):
        half = MOST_ITEMS // 2
        return node if len(node) <= MOST_ITEMS else [*node[:half], *node[-half:]]
    if isinstance(node, dict):
        return [node[key] for key in _INSIDE if key in node and not _is_content(node, key)]
    return []


def _is_content(node: dict[object, object], key: str) -> bool:
    """Return True if the field is the text of a reply, or metadata of a client, and not of an error."""
    if key == "metadata":
        return "message" not in node
    return key == "response" and isinstance(node[key], str)


def _decode_string(value: object) -> object:
    """Return the JSON inside a string of an error, if it contains JSON."""
    return _decoded(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def _parsed(source: bytes | str) -> object:
    """Return the JSON of a body, or the events of a stream, or the text itself."""
    if (value := _decoded(source)) is not source:
        return value
    start = _as_text(source[: 4 * MOST_TEXT]).lstrip(_BLANK)
    if start.startswith(_STARTS_STREAM):
        return _stream_events(source)
    # Lines of JSON are a stream as well: the model's text in them is no error either.
    return (start.startswith("{") and _stream_events(source)) or start


def _decoded(source: bytes | str) -> object:
    """Return the decoded JSON, or the source itself if it is no JSON."""
    if len(source) > MOST_JSON:
        return source
    try:
        return json.decode(source)
    except (MsgspecError, ValueError, RecursionError):
        return source


def _stream_events(source: bytes | str) -> list[object]:
    """Return the last events of a raw stream that may contain an error."""
    text = _as_text(source[-MOST_JSON:]).replace("\r\n", "\n")
    lines = ["", *text.rsplit("\n", MOST_NODES)]
    events = [event for before, line in pairwise(lines) if (event := _event(before, line)) is not None]
    return events[-MOST_ITEMS:]


def _event(before: str, line: str) -> object:
    """Return the object on a line of a stream, or the text of an error event.

    Other text may come from the model.
    """
    payload = line.removeprefix("data:").removeprefix("error:").strip()
    value = _decoded(payload) if payload.startswith("{") else payload
    return value if isinstance(value, dict) or before in _NAMES_ERROR else None


def _as_text(source: bytes | str) -> str:
    return source.decode("utf-8", errors="replace") if isinstance(source, bytes) else source


def _collect_fields(node: dict[object, object], codes: list[str], numbers: StatedNumbers) -> None:
    for key in _CODED:
        value = node.get(key)
        if isinstance(value, str):
            codes.append(value[:128].lower())
        elif isinstance(value, int) and 0 <= value <= LARGEST_NUMBER:
            codes.append(str(int(value)))
    for key, name in _COUNTED:
        value = node.get(key)
        if isinstance(value, int) and 0 < value <= LARGEST_NUMBER:
            numbers.setdefault(name, int(value))


def _stated_status(codes: list[str]) -> int | None:
    for code in codes:
        if len(code) == 3 and code.isascii() and code.isdigit() and "400" <= code < "600":
            return int(code)
    return None


RULES: tuple[SentenceRule, ...] = (
    *LIMIT_CODES,  # authentication, billing and rate limits, by code or numbers
    *OUTPUT,  # output caps even use overflow's codes, and a smaller history would not help
    *CODES,  # a provider's own code is more reliable than words
    *LIMITS,  # the same in words: they use those of overflow ("too many tokens")
    *HISTORY,  # broken pairs and altered thinking: a repair helps, a summary does not
    *NAMED,  # overflow's codes inside a sentence
    *BYTES,  # "exceeds the limit", but not of tokens
    *NUMBERED,  # overflow sentences with numbers
    *UNNUMBERED,  # overflow sentences without numbers
    *PARAMETERS,  # complaints about parameters whose names occur in FLOOR
    *FLOOR,  # words that usually mean overflow, if no other rule matched
)

SMALLEST_WINDOW = 512
"""No model has a smaller window: a vague sentence with a lower limit is about a name or a list."""

_OPEN = (None, 200, 400, 413, 422)
"""Statuses under which any rule may decide. None and 200 are errors found in a stream or instead of a
reply."""
_BARE = {
    "bad request": 400,
    "400 bad request": 400,
    "400 status code (no body)": 400,
    "413 status code (no body)": 413,
    "google request failed with status code 400": 400,
}
"""Texts that clients produce for an answer without a reason."""
_FINISHED_FULL = ("length", "max_tokens", "max_output_tokens")
_REPORTED: tuple[OverflowKind, ...] = (
    "input_too_long",
    "input_plus_output",
    "bytes_too_large",
    "output_cap",
    "rate_limit",
)


def classify(
    status: int | None, body: object, *, estimated: int | None = None, budget: int | None = None
) -> Overflow:
    """Classify an answer that is not a reply. Never raises, for any body.

    Args:
        status: the HTTP status; None for an error found in a stream.
        body: bytes, text or decoded JSON.
        estimated: our own count of the request that was answered, if there is one.
        budget: the tokens that request was allowed. An answer without a reason counts as overflow only near it.
    """
    answer = read_answer(body)
    if status in (None, 200) and answer.status is not None:
        status = answer.status
    if status not in _OPEN and status != 429 and not _is_server_error(status):
        return Overflow("other", evidence=f"status {status}")
    for rule in RULES:
        if _may_decide(rule, status) and (numbers := _rule_numbers(rule, answer)) is not None:
            return _overflow_of(rule, {**answer.numbers, **numbers})
    return _without_reason(status, answer, is_near=_is_near(estimated, budget))


def classify_finish(
    reason: str | None, usage: Usage | None, window: int | None, *, estimated: int | None = None
) -> Overflow | None:
    """Return the overflow that a finished reply shows, or None.

    Reported usage above the window is an overflow that the provider did not report as an error. If we have
    our own estimate, it must agree: reports are sometimes doubled.
    """
    prompt = usage.context if usage else None
    if reason == "model_context_window_exceeded":
        return Overflow("input_too_long", limit=window, prompt=prompt, evidence="finish reason")
    if usage is None or not window or window < 0:
        return None
    if reason in _FINISHED_FULL and not usage.output and usage.context * 100 >= window * 99:
        return Overflow("input_too_long", limit=window, prompt=prompt, output=0, evidence="length, no output")
    if usage.context > window and (estimated is None or _is_near(estimated, window)):
        return Overflow("input_too_long", limit=window, prompt=prompt, evidence="reported input")
    return None


def _is_server_error(status: int | None) -> bool:
    return status is not None and 500 <= status < 600


def _may_decide(rule: SentenceRule, status: int | None) -> bool:
    if status == 429:
        return rule.kind in ("rate_limit", "other")
    return not (rule.is_vague and (status == 413 or _is_server_error(status)))


def _rule_numbers(rule: SentenceRule, answer: ErrorDetails) -> StatedNumbers | None:
    """Return the numbers stated with this rule; None if it does not match."""
    numbers = _first_match(rule.says, answer.text)
    if numbers is None and answer.codes.isdisjoint(rule.codes):
        return None
    if not numbers and rule.kind == "input_too_long":
        return _stated_anywhere(answer.text)
    return numbers or {}


def _stated_anywhere(text: str) -> StatedNumbers:
    """Return the numbers of the first sentence that states some: the code decides the kind, the sentence
    beside it the amount.
    """
    found = (_first_match(numbered.says, text) for numbered in (*NAMED, *NUMBERED))
    return next((numbers for numbers in found if numbers), {})


def _first_match(phrases: tuple[SentencePhrase, ...], text: str) -> StatedNumbers | None:
    found = (read_phrase(words, text) for words in phrases)
    return next((numbers for numbers in found if numbers is not None), None)


def _overflow_of(rule: SentenceRule, stated: StatedNumbers) -> Overflow:
    numbers = _complete_numbers(stated)
    kind = _corrected_kind(rule, numbers)
    if rule.is_vague or kind not in _REPORTED:
        return Overflow(kind, evidence=rule.name)
    limit = numbers.get("limit") or None
    if kind == "output_cap" and "window" in numbers and "prompt" in numbers:
        limit = numbers["window"] - numbers["prompt"]
    return Overflow(
        kind,
        limit=limit or numbers.get("window"),
        limit_of=rule.limit_of,
        requested=numbers.get("requested"),
        prompt=numbers.get("prompt"),
        output=numbers.get("output"),
        evidence=rule.name,
    )


def _complete_numbers(stated: StatedNumbers) -> StatedNumbers:
    """Add the numbers that follow from the stated ones."""
    numbers = dict(stated)
    if "megabytes" in numbers:
        numbers.setdefault("limit", numbers["megabytes"] << 20)
    if "excess" in numbers and "limit" in numbers:
        numbers.setdefault("prompt", numbers["limit"] + numbers["excess"])
    match numbers:
        case {"requested": requested, "prompt": prompt} if requested >= prompt:
            numbers.setdefault("output", requested - prompt)
        case {"requested": requested, "output": output} if requested >= output:
            numbers["prompt"] = requested - output
        case {"prompt": prompt, "output": output}:
            numbers["requested"] = prompt + output
    return numbers


def _corrected_kind(rule: SentenceRule, numbers: StatedNumbers) -> OverflowKind:
    """Return the kind, corrected by the numbers if they contradict it."""
    limit = numbers.get("limit") or numbers.get("window")
    if not limit:
        return rule.kind
    prompt, requested = numbers.get("prompt", 0), numbers.get("requested", 0)
    if rule.is_vague:
        return rule.kind if limit >= SMALLEST_WINDOW else "other"
    if rule.limit_of == "minute":
        return "input_too_long" if requested > limit else "rate_limit"
    if rule.kind == "output_cap":
        return "input_too_long" if "window" in numbers and prompt >= limit else rule.kind
    if rule.kind in ("input_too_long", "input_plus_output") and prompt:
        if prompt >= limit:
            return "input_too_long"
        return "input_plus_output" if requested > limit else rule.kind
    return rule.kind


def _without_reason(status: int | None, answer: ErrorDetails, *, is_near: bool) -> Overflow:
    """Classify an answer that no rule matches: by its status, and, if it gives no reason, by our own estimate."""
    bare = _bare_status(status, answer)
    if bare is not None and is_near:
        return Overflow("input_too_long", evidence=f"{bare} without a reason, estimate near the budget")
    if 413 in (status, bare):
        return Overflow("bytes_too_large", evidence="status 413")
    if status in (429, 529):
        return Overflow("rate_limit", evidence=f"status {status}")
    return Overflow("other", evidence="no rule")


def _bare_status(status: int | None, answer: ErrorDetails) -> int | None:
    """Return 400 or 413 if the answer contains nothing but that."""
    if status not in (None, 400, 413):
        return None
    if answer.text:
        return _BARE.get(answer.text.rstrip("."))
    return status if not answer.codes - {"400", "413"} else None


def _is_near(estimated: int | None, budget: int | None) -> bool:
    """Return True from 80 % of the budget on: estimates fall short by less than a fifth."""
    return estimated is not None and bool(budget) and estimated * 5 >= (budget or 0) * 4
