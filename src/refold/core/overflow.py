"""Classify a provider's error: whether a smaller window is the remedy, and how much smaller.

`classify` reads an answer, `classify_finish` a finish reason with its usage. The known sentences of providers,
and those that only sound like them, come first in this file. A phrase is written as the provider says it, with named
numbers: `prompt is too long: {prompt} tokens > {limit} maximum`. It is matched by searching for each stretch after
the previous one and reading its numbers, without ever going back, so a hostile text costs no more than an ordinary
one; a regular expression could backtrack. Phrases are in lower case and without backticks, like the normalised text
they are compared with.

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

from refold.model.errors import LimitOf, Overflow, OverflowKind
from refold.model.tokens import Usage

# Phrases: how a sentence is matched and its numbers are read

SentencePiece: TypeAlias = tuple[str, str]
"""Words, and the name of the number that must follow them ("" for none)."""
Stretch: TypeAlias = tuple[SentencePiece, ...]
"""Pieces that follow each other directly."""
SentencePhrase: TypeAlias = tuple[Stretch, ...]
Named: TypeAlias = tuple[str, int]
StatedNumbers: TypeAlias = dict[str, int]

GAP = "…"
"""Placeholder in a phrase for any number of words."""
UNREAD = "_"
"""The name of a number that must be present but is not used."""
LARGEST_NUMBER = 10**9
"""No window and no body is larger; a greater number is an id, a timestamp or an attack."""

_OPENERS = " ([:=~'\""
_MOST_OPENERS = 4
_DIGITS = "0123456789"
_SEPARATORS = ",_"
_UNITS = "km%"


class SentenceRule(Struct, frozen=True):
    """One kind of error, recognised by any of its codes or any of its phrases."""

    name: str
    kind: OverflowKind
    says: tuple[SentencePhrase, ...] = ()
    codes: tuple[str, ...] = ()
    """Compared only with structured codes, and as a whole: in a sentence they may be ordinary words."""
    limit_of: LimitOf = "window"
    is_vague: bool = False
    """Too uncertain for a 413 or a 5xx. Its numbers may count anything, so they are not reported."""


def rule(
    name: str,
    kind: OverflowKind,
    *says: str,
    codes: tuple[str, ...] = (),
    limit_of: LimitOf = "window",
    is_vague: bool = False,
) -> SentenceRule:
    return SentenceRule(name, kind, tuple(phrase(words) for words in says), codes, limit_of, is_vague)


def phrase(words: str) -> SentencePhrase:
    """Split a phrase in advance, so that matching only has to search."""
    return tuple(_pieces(stretch) for stretch in words.split(GAP))


def _pieces(stretch: str) -> Stretch:
    *heads, tail = stretch.split("}")
    pieces = [(fixed, name) for fixed, _, name in (head.partition("{") for head in heads)]
    return (*pieces, (tail, "")) if tail else tuple(pieces)


def read_phrase(wanted: SentencePhrase, text: str) -> StatedNumbers | None:
    """Return the numbers of the phrase if the text contains all of it in order.

    Numbers with equal names are added up.
    """
    at = 0
    numbers: StatedNumbers = {}
    for stretch in wanted:
        at, found = _find_stretch(stretch, text, at)
        if at < 0:
            return None
        for name, number in found:
            numbers[name] = numbers.get(name, 0) + number
    return numbers


def _find_stretch(stretch: Stretch, text: str, at: int) -> tuple[int, list[Named]]:
    """Return the end of the stretch at its first match, and its numbers; (-1, []) if it does not match."""
    opening = stretch[0][0]
    while (found := text.find(opening, at)) >= 0:
        end, numbers = _read_stretch(stretch, text, found)
        if end >= 0:
            return end, numbers
        at = found + len(opening)
    return -1, []


def _read_stretch(stretch: Stretch, text: str, at: int) -> tuple[int, list[Named]]:
    numbers: list[Named] = []
    for fixed, name in stretch:
        if not text.startswith(fixed, at):
            return -1, []
        at += len(fixed)
        if name:
            end, number = read_number(text, at)
            if end == at:
                return -1, []
            at = end
            if number is not None and name != UNREAD:
                numbers.append((name, number))
    return at, numbers


def read_number(text: str, at: int) -> tuple[int, int | None]:
    """Read `200000`, `200,000` or `200_000` at a position: return its end, and its value if that is
    plausible.

    The end is the position itself if there is no number. `128k`, `5.5` and `80%` are not counts of anything.
    """
    start = at
    while at < len(text) and at - start < _MOST_OPENERS and text[at] in _OPENERS:
        at += 1
    digits: list[str] = []
    while at < len(text) and (text[at] in _DIGITS or _is_separator(text, at, digits)):
        if text[at] in _DIGITS:
            digits.append(text[at])
        at += 1
    if not digits:
        return start, None
    if len(digits) > len(str(LARGEST_NUMBER)) or _has_fraction_or_unit(text, at):
        return at, None
    number = int("".join(digits))
    return at, number if number <= LARGEST_NUMBER else None


def _is_separator(text: str, at: int, digits: list[str]) -> bool:
    return bool(digits) and text[at] in _SEPARATORS and _is_digit(text, at + 1)


def _has_fraction_or_unit(text: str, at: int) -> bool:
    """Return True if the number continues as a fraction or a unit."""
    if text[at : at + 1] == ".":
        return _is_digit(text, at + 1)
    return at < len(text) and text[at] in _UNITS


def _is_digit(text: str, at: int) -> bool:
    return at < len(text) and text[at] in _DIGITS


# The sentences and codes with which each provider reports that the input is too long. The more a
# sentence states, the earlier it is in the table: a sentence with all its numbers comes before its
# own shorter forms, so that the first match is also the best reading.


def _too_long(name: str, *says: str, codes: tuple[str, ...] = ()) -> SentenceRule:
    return rule(name, "input_too_long", *says, codes=codes)


_WORDS = (
    "context_length_exceeded",  # OpenAI, Azure, Groq, OpenRouter
    "context_window_exceeded",  # Anthropic's stop reason and z.ai's finish reason end in it
    "model_max_prompt_tokens_exceeded",  # Copilot
    "prompt_tokens_exceeded",
    "exceed_context_size_error",  # llama.cpp
    "contextwindowexceedederror",  # LiteLLM's class
    "tokens_limit_reached",  # GitHub Models
    "tokens_too_long",  # Qianfan
    "too_many_tokens",  # Cohere
)

CODES = (_too_long("code", codes=(*_WORDS, "model_context_window_exceeded", "1261")),)  # the last is z.ai's

NAMED = (
    _too_long("code in words", *_WORDS),
    # Gateways also answer this when an account has used up its tokens; rules for their words come
    # earlier.
    _too_long("token limit code", "token_limit_exceeded", codes=("token_limit_exceeded",)),
    # Says "body" and means tokens, so it has to come before the sentences about bytes.
    _too_long("github models", "request body too large…max size: {limit} tokens"),
)

NUMBERED = (
    _too_long("anthropic", "prompt is too long: {prompt} tokens > {limit} maximum"),
    _too_long("fireworks", "prompt is too long: {prompt}, model maximum context length: {limit}"),
    rule(
        "anthropic sum",
        "input_plus_output",
        "input length and max_tokens exceed context limit: {prompt} + {output} > {limit}",
        "input length and max_tokens exceed context limit",
    ),
    _too_long(
        "openrouter",
        "maximum context length is {limit} tokens…requested about {requested} tokens "
        "({prompt} of text input, {prompt} of tool input, {output} in the output",
        "maximum context length is {limit} tokens…requested about {requested} tokens "
        "({prompt} of text input, {output} in the output",
    ),
    _too_long(
        "openai sum",
        "maximum context length is {limit} tokens…you requested {requested} tokens "
        "({prompt} in the messages, {prompt} in the functions, and {output} in the completion",
        "maximum context length is {limit} tokens…you requested {requested} tokens "
        "({prompt} in the messages, {output} in the completion",
        "maximum context length is {limit} tokens…you requested {requested} tokens "
        "({prompt} in your prompt; {output} for the completion",
    ),
    _too_long(
        "vllm",
        "context length is {limit} tokens…requested {output} output tokens and your prompt contains at least {prompt} input",
        "context length is {limit} tokens…requested {output} output tokens and your prompt contains {prompt} input",
        "context length is {limit} tokens…your request has {prompt} input tokens",
        "prompt (total length {prompt}) is too long to fit into the model (context length {limit})",
        "(length {prompt}) is longer than the maximum model length of {limit}",
        "passed {prompt} input tokens and requested {output} output tokens…context length is only {limit} tokens",
    ),
    _too_long(
        "openai",
        "maximum context length is {limit} tokens…your messages resulted in {prompt} tokens",
        "maximum context length is {limit} tokens…you requested {requested} tokens",
        "input tokens exceed the configured limit of {limit} tokens…resulted in {prompt} tokens",
    ),
    _too_long("xai", "maximum prompt length is {limit} but the request contains {requested} tokens"),
    _too_long(
        "mistral",
        "prompt contains {prompt} tokens and {_} draft tokens, too large for model with {limit} maximum context length",
        "prompt contains {prompt} tokens, too large for model with {limit} maximum context length",
        "prompt {prompt} > {limit} maximum context length",
    ),
    _too_long(
        "gemini",
        "input token count ({prompt}) exceeds the maximum number of…tokens allowed ({limit})",
        "input token count is {prompt} but model only supports up to {limit}",
        "input token count…exceeds the maximum number of…tokens allowed ({limit})",
        "input token count ({prompt}) exceeds",
    ),
    _too_long("copilot", "prompt token count of {prompt} exceeds the limit of {limit}"),
    _too_long("llama.cpp", "request ({prompt} tokens) exceeds the available context size ({limit} tokens)"),
    _too_long(
        "lm studio",
        "keep the first {prompt} tokens when context…loaded with context length of only {limit} tokens",
        "n_keep ({prompt}) >= n_ctx ({limit})",
    ),
    _too_long(
        "together", "input ({prompt} tokens) is longer than the model's context length ({limit} tokens)"
    ),
    rule(
        "tgi",
        "input_plus_output",
        "max_new_tokens must be <= {limit}. given: {prompt} inputs tokens and {output} max_new_tokens",
        "max_new_tokens must be <= {limit}",
    ),
    _too_long("tgi input", "inputs must have less than {limit} tokens. given: {prompt}"),
    _too_long(
        "cohere",
        "size limit exceeded by {excess} tokens…the limit for this model is {limit} tokens",
        "cannot exceed {limit} - received {prompt}. try using a shorter prompt",
        "received {prompt}. try using a shorter prompt",
    ),
    _too_long("cerebras", "current length is {prompt} while limit is {limit}"),
    _too_long(
        "kimi",
        "exceeded model token limit: {limit} (requested: {requested})",
        "exceeded model token limit: {limit}",
    ),
    _too_long("sambanova", "maximum context length of…is {limit}…will take {requested} tokens"),
    _too_long("watsonx", "input tokens {prompt} cannot exceed the total tokens limit {limit}"),
    _too_long("snowflake", "max tokens of {limit} exceeded"),
    _too_long("cloudflare", "output tokens ({requested}) exceeded this model context window limit ({limit})"),
    _too_long("llama-cpp-python", "requested tokens ({prompt}) exceed context window of {limit}"),
    _too_long(
        "dashscope",
        "range of input length should be [1, {limit}]",
        "message token length exceed model limit ({limit} tokens)",
    ),
    _too_long("ds4", "prompt has {prompt} tokens, but the configured context size is {limit} tokens"),
    _too_long(
        "sglang",
        "maximum context length of {limit} tokens…total of {requested} tokens: {prompt} tokens from the input messages "
        "and {output} tokens for the completion",
        "exceeds the model's maximum context length of {limit} tokens",
    ),
    # Atlas, TabbyAPI and SiliconFlow call the window by its variable.
    _too_long(
        "max_seq_len",
        "prompt too long: {prompt} tokens exceeds max_seq_len {limit}",
        "prompt length {prompt} is greater than max_seq_len {limit}",
        "prompt_tokens ({prompt}) must be less than max_seq_len ({limit})",
        "max_total_tokens ({requested}) must be less than or equal to max_seq_len ({limit})",
    ),
    # SGLang, Poolside, DeepInfra, TensorRT-LLM and Volcengine differ only in the words between.
    _too_long(
        "input length",
        "input length {prompt}…exceeds…maximum…length of {limit}",
        "input length {prompt}…exceeds…maximum…length {limit}",
        "prompt length {prompt}…exceeds…maximum…length {limit}",
    ),
    _too_long(
        "context length", "maximum context length is {limit} tokens", "maximum context length is {limit}"
    ),
)

UNNUMBERED = (
    _too_long("openai, no numbers", "exceeds the context window", "input tokens exceed the configured limit"),
    _too_long(
        "gemini, no numbers",
        "input token count…exceeds the maximum number of tokens",
        "input token count…exceeds the maximum number of input tokens",
    ),
    _too_long(
        "bedrock",
        "input is too long",
        "too many input tokens",
        "number of input tokens exceeds maximum length",
        "exceeds the max input token limit",
    ),
    _too_long("llama.cpp, no numbers", "exceeds the available context size", "input is too large to process"),
    _too_long(
        "lm studio, no numbers", "tokens to keep from the initial prompt is greater than the context length"
    ),
    _too_long(
        "ollama",
        "exceeded max context length by {_} tokens",
        "input length exceeds the context length",
        "input length exceeds context length",
    ),
    _too_long("minimax", "context window exceeds limit"),
    _too_long("zai", "prompt exceeds max length"),
    _too_long("volcengine", "total tokens of image and text exceed max message tokens"),
    _too_long("ai21", "prompt has too many tokens"),
    _too_long("nlp cloud", "input text length should not exceed"),
    _too_long("aleph alpha", "longer than the model's maximum context length"),
    _too_long("proxy", "total length of all messages is too long"),
    _too_long(
        "plain words",
        "prompt is too long",
        "prompt too long",
        "prompt tokens too long",
        "prompt exceeds the length limit",
        "context length exceeded",
        "context size has been exceeded",
        "tokens in request more than max tokens allowed",
    ),
    _too_long("chinese", "超过最大长度", "上下文长度"),
)

FLOOR = (
    rule(
        "bedrock schema",
        "input_too_long",
        "expected maxlength: {limit}",
        "expected maxlength:",
        is_vague=True,
    ),
    rule(
        "floor",
        "input_too_long",
        "exceeds the limit of {limit}",
        "maximum context length",
        "max_tokens",
        "max_prompt_tokens",
        "too many tokens",
        "request too large",
        "context window",
        "token limit",
        "exceeds the limit",
        "input too long",
        "exceeds the model's maximum",
        "reduce the length",
        "maximum number of tokens",
        "content_too_large",
        "length limit exceeded",
        "tokens exceed",
        "token count exceed",
        "token length exceed",
        "input length exceed",
        "prompt exceeds",
        is_vague=True,
    ),
)


# Sentences and codes of providers that are not overflow, although they often sound like it. Rate
# limits, output caps and file sizes share words with overflow ("too many tokens", "exceeds the
# limit"), and a smaller history as the response would lose context for nothing. So they are
# recognised first.

_ACCOUNT = ("invalid_api_key", "authentication_error", "permission_error", "insufficient_quota")

LIMIT_CODES = (
    # A request with more tokens than a minute allows never succeeds by waiting: the numbers decide.
    rule(
        "tokens per minute",
        "rate_limit",
        "tokens per min…limit {limit}…requested {requested}",
        "tokens per day…limit {limit}…requested {requested}",
        "request too large for…limit {limit}, requested {requested}",
        limit_of="minute",
    ),
    rule("grpc message", "bytes_too_large", "message larger than max ({requested} vs. {limit})"),
    rule("account code", "other", codes=_ACCOUNT),
    rule(
        "slow down code",
        "rate_limit",
        codes=(
            "rate_limit",
            "rate_limit_error",
            "rate_limit_exceeded",
            "overloaded_error",
            "throttlingexception",
            "resource_exhausted",
            "too_many_requests_error",
            "429",
        ),
    ),
    # A parameter longer than its schema allows, such as a tool's name.
    rule("string length code", "other", codes=("string_above_max_length",)),
)

LIMITS = (
    rule("account", "other", "unauthorized", "credit balance is too low", *_ACCOUNT),
    rule(
        "slow down",
        "rate_limit",
        "rate limit",
        "per minute",
        "per min ",
        "too many requests",
        "quota",
        "overloaded",
        "throttl",
        "please wait before trying again",
        "too many tokens processed",
        "ratelimit",
        "rate_limit",
        "resource_exhausted",
        "daily…limit",
        "monthly…limit",
    ),
    rule("billing", "other", "billing", "insufficient credits", "more credits"),
    rule("string length", "other", "string too long. expected", "string_above_max_length"),
)

OUTPUT = (
    rule(
        "vllm output",
        "output_cap",
        "max_tokens…is too large: {output}…context length is {window} tokens and your request has {prompt} input tokens",
    ),
    rule(
        "openai output",
        "output_cap",
        "max_tokens is too large: {output}…supports at most {limit} completion tokens",
        "max_completion_tokens is too large: {output}…supports at most {limit} completion tokens",
    ),
    # OpenAI and Volcengine check the parameter before they look at the model.
    rule(
        "output above maximum",
        "output_cap",
        "max_tokens…integer above maximum value…expected a value <= {limit}, but got {output}",
        "max_completion_tokens…integer above maximum value…expected a value <= {limit}, but got {output}",
        "max_output_tokens…integer above maximum value…expected a value <= {limit}, but got {output}",
    ),
    rule(
        "anthropic output",
        "output_cap",
        "max_tokens: {output} > {limit}, which is the maximum allowed number of output tokens",
        "maximum allowed number of output tokens",
    ),
    rule(
        "cohere and groq output",
        "output_cap",
        "max tokens must be less than or equal to {limit}",
        "max_tokens must be less than or equal to {limit}",
        "max_completion_tokens must be less than or equal to {limit}",
        "max tokens must be less than or equal to",
        "max_tokens should be less than or equal to",
    ),
    rule("bedrock output", "output_cap", "maximum tokens you requested exceeds the model limit of {limit}"),
    rule("gemini output", "output_cap", "maxoutputtokens value of {output} but the supported range"),
    rule(
        "deepseek and dashscope output",
        "output_cap",
        "range of max_tokens is [1, {limit}]",
        "range of max_tokens should be [1, {limit}]",
    ),
)

HISTORY = (
    rule(
        "anthropic history",
        "malformed_history",
        "tool_use ids were found without tool_result blocks",
        "unexpected tool_use_id found in",
        "each tool_use must have a single result",
        "tool_use ids must be unique",
        "blocks in the latest assistant message cannot be modified",
        "invalid signature in thinking block",
        "redacted_thinking",
        "non-empty content",
        "must end with a user message",
        "must start with a thinking block",
        "roles must alternate",
        "role 'system' must follow a 'user' message",
        "role 'system' must precede an 'assistant' message",
        "use the top-level 'system' parameter for the initial",
    ),
    rule(
        "openai history",
        "malformed_history",
        "no tool call found for function call output",
        "no tool output found for function call",
        "must be followed by tool messages responding to each",
        "must be a response to a prec",
        "was provided without its required",
        "duplicate item found with id",
        "tool_call_id…not found",
        "missing field tool_call_id",
        codes=("invalid_encrypted_content",),
    ),
    rule(
        "gemini history",
        "malformed_history",
        "invalid thought signature",
        "function call is missing a thought_signature",
        "turn comes immediately after",
        "number of function response parts",
    ),
    rule(
        "bedrock history",
        "malformed_history",
        "expected toolresult blocks",
        "exceeds the number of tooluse blocks",
        "conversation must start with a user message",
    ),
    rule("deepseek history", "malformed_history", "reasoning_content…must be passed back"),
    rule(
        "mistral history",
        "malformed_history",
        "not the same number of function calls and responses",
        codes=("invalid_request_message_order",),
    ),
    # MiniMax gives code 2013 to every bad parameter, overflow included: only its sentences
    # distinguish them.
    rule(
        "minimax history",
        "malformed_history",
        "tool result's tool id…not found",
        "tool call result does not follow tool call",
    ),
)

BYTES = (
    rule("bytes code", "bytes_too_large", codes=("request_too_large",)),
    rule(
        "gemini bytes",
        "bytes_too_large",
        "request payload size exceeds the limit: {limit} bytes",
        "request payload size exceeds",
    ),
    rule(
        "image size",
        "bytes_too_large",
        "image exceeds {_} mb maximum: {requested} bytes > {limit} bytes",
        "image exceeds {megabytes} mb maximum",
        "image dimensions exceed",
        "image is too large",
        limit_of="item",
    ),
    rule(
        "file size",
        "bytes_too_large",
        "file size exceeds",
        "maximum of {_} pdf pages",
        "exceeds the limit of {_} pages",
        "exceeds the limit of {megabytes} mb",
        "exceeds the limit of {_}mb",
        limit_of="item",
    ),
    rule(
        "request size",
        "bytes_too_large",
        "request entity too large",
        "payload too large",
        "content too large",
        "request body too large",
        "request exceeds the maximum size",
        "request too large (max",
        "string value length",
        "value at 'body' failed to satisfy constraint",
    ),
)

PARAMETERS = (
    # Complaints about the name, absence or range of `max_tokens`, or its relation to another
    # parameter. Caps that state a limit are in OUTPUT.
    rule(
        "output parameter",
        "other",
        "unsupported parameter…max_tokens",
        "max_tokens…not supported",
        "max_tokens…required",
        "max_tokens: extra inputs",
        "max_tokens: input should be",
        "max_tokens must be",
        "invalid 'max_tokens'",
        "max_tokens…stream=true",
        "higher max_tokens",
        "budget_tokens",
    ),
    # Complaints about the type of any parameter: a number that was sent as a text.
    rule(
        "parameter type",
        "other",
        "invalid type for '",
        "'type': 'int_parsing'",
        codes=("invalid_type",),
    ),
    rule("output in words", "output_cap", "output tokens exceed", "completion tokens exceed"),
    rule("text parameter", "other", "exceeds the limit of {_} characters"),
)


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
