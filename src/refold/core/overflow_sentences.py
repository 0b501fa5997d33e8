"""Known sentences and codes of providers: those that report an input that is too long, and those that only sound
like it.

A phrase is written as the provider says it, with named numbers: `prompt is too long: {prompt} tokens >
{limit} maximum`. It is matched by searching for each stretch after the previous one and reading its numbers,
without ever going back, so a hostile text costs no more than an ordinary one; a regular expression could
backtrack. Phrases are in lower case and without backticks, like the normalised text they are compared with.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from refold.model.errors import LimitOf, OverflowKind

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
