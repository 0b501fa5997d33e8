"""Classify a provider's error: whether a smaller window is the remedy, and how much smaller.

The first matching rule decides, so the order of `RULES` is significant; if an answer states numbers,
arithmetic on them corrects the kind that the words suggest.
"""

from __future__ import annotations

from refold.core.overflow.body import ErrorDetails, read_answer
from refold.core.overflow.phrases import Numbers, Phrase, Rule, read_phrase
from refold.core.overflow.sentences import (
    BYTES,
    CODES,
    FLOOR,
    HISTORY,
    LIMIT_CODES,
    LIMITS,
    NAMED,
    NUMBERED,
    OUTPUT,
    PARAMETERS,
    UNNUMBERED,
)
from refold.model.errors import Overflow, OverflowKind
from refold.model.tokens import Usage

RULES: tuple[Rule, ...] = (
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


def _may_decide(rule: Rule, status: int | None) -> bool:
    if status == 429:
        return rule.kind in ("rate_limit", "other")
    return not (rule.is_vague and (status == 413 or _is_server_error(status)))


def _rule_numbers(rule: Rule, answer: ErrorDetails) -> Numbers | None:
    """Return the numbers stated with this rule; None if it does not match."""
    numbers = _first_match(rule.says, answer.text)
    if numbers is None and answer.codes.isdisjoint(rule.codes):
        return None
    if not numbers and rule.kind == "input_too_long":
        return _stated_anywhere(answer.text)
    return numbers or {}


def _stated_anywhere(text: str) -> Numbers:
    """Return the numbers of the first sentence that states some: the code decides the kind, the sentence
    beside it the amount.
    """
    found = (_first_match(numbered.says, text) for numbered in (*NAMED, *NUMBERED))
    return next((numbers for numbers in found if numbers), {})


def _first_match(phrases: tuple[Phrase, ...], text: str) -> Numbers | None:
    found = (read_phrase(words, text) for words in phrases)
    return next((numbers for numbers in found if numbers is not None), None)


def _overflow_of(rule: Rule, stated: Numbers) -> Overflow:
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


def _complete_numbers(stated: Numbers) -> Numbers:
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


def _corrected_kind(rule: Rule, numbers: Numbers) -> OverflowKind:
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
