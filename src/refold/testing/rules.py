"""The checks that a provider makes before a model sees a request.

Refold's own rules (`refold.core.verify`) check the request, and the refusal has the provider's wording. A
request that would fail in production fails here, in the form that an application has to recognise.

The wordings for a request that is too long, about fifty, are data: a status and a body with placeholders for the
numbers of the request. Some providers have another wording if only input and output together are too long
(`total`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct, structs

from refold.core.verify import count_breakpoints, count_fixed_breakpoints, is_refused, verify
from refold.model.errors import ConfigError, WireError
from refold.model.message import DialectName, Message, Reasoning
from refold.model.tokens import Usage
from refold.model.window import Violation, WindowRule
from refold.testing import compactions
from refold.testing.script import Answer, Body, Finish, Received, Refuse, Say, sign
from refold.wire import Request

# Wordings for a request that is too long


class Wording(Struct, frozen=True):
    status: int
    body: object
    """JSON, or text. A string that is only a placeholder becomes a number."""
    total: object = None
    """The body if the input alone would fit."""


def _openai(
    message: str, code: str | None = "context_length_exceeded", kind: str = "invalid_request_error"
) -> object:
    return {"error": {"message": message, "type": kind, "param": "messages", "code": code}}


def _anthropic(message: str, kind: str = "invalid_request_error") -> object:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _vllm(message: str) -> object:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


def _google(message: str) -> object:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


_MAXIMUM = "This model's maximum context length is {window} tokens. However, "
_REQUESTED = (
    _MAXIMUM
    + "you requested {total} tokens ({prompt} in the messages, {output} in the completion). Please reduce the length of the messages or completion."
)
_OPENROUTER = "This endpoint's maximum context length is {window} tokens. However, you requested about {total} tokens ({prompt} of text input, {output} in the output). Please reduce the length of either one, or use the context-compression plugin to compress your prompt automatically."
_VLLM = (
    _MAXIMUM
    + "you requested {output} output tokens and your prompt contains {prompt} input tokens, for a total of {total} tokens. Please reduce the length of the input prompt or the number of requested output tokens."
)
_TGI = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {window}. Given: {prompt} `inputs` tokens and {output} `max_new_tokens`"
_PER_MINUTE = "Request too large for model `{model}` in organization `org_1` service tier `on_demand` on tokens per minute (TPM): Limit {window}, Requested {total}, please reduce your message size and try again."

WORDINGS: dict[str, Wording] = {
    "openai": Wording(400, _openai(_MAXIMUM + "your messages resulted in {prompt} tokens. Please reduce the length of the messages."), _openai(_REQUESTED)),
    "openai older": Wording(400, _openai(_REQUESTED)),
    "openai responses": Wording(400, _openai("Your input exceeds the context window of this model. Please adjust your input and try again.")),
    "openai configured": Wording(400, _openai("Input tokens exceed the configured limit of {window} tokens. Your messages resulted in {prompt} tokens. Please reduce the length of the messages.")),
    "openai per minute": Wording(429, _openai("Request too large for {model} in organization org-1 on tokens per min (TPM): Limit {window}, Requested {total}. The input or output tokens must be reduced in order to run successfully. Visit https://platform.openai.com/account/rate-limits to learn more.", "rate_limit_exceeded", "tokens")),
    "azure": Wording(400, {"error": {"code": "context_length_exceeded", "message": _MAXIMUM + "your messages resulted in {prompt} tokens. Please reduce the length of the messages."}}),
    "anthropic": Wording(400, _anthropic("prompt is too long: {prompt} tokens > {window} maximum"), _anthropic("input length and `max_tokens` exceed context limit: {prompt} + {output} > {window}, decrease input length or `max_tokens` and try again")),
    "anthropic no numbers": Wording(400, _anthropic("Prompt is too long")),
    "gemini": Wording(400, _google("The input token count ({prompt}) exceeds the maximum number of tokens allowed ({window}).")),
    "gemini limit only": Wording(400, _google("The input token count exceeds the maximum number of tokens allowed ({window}).")),
    "vertex": Wording(400, _google("Unable to submit request because the input token count is {prompt} but model only supports up to {window}. Reduce the input token count and try again. You can also use the CountTokens API to calculate prompt token count and billable characters.")),
    "bedrock": Wording(400, {"message": "Input is too long for requested model."}),
    "bedrock claude": Wording(400, {"message": "The model returned the following errors: prompt is too long: {prompt} tokens > {window} maximum"}),
    "bedrock nova": Wording(400, {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again."}),
    "bedrock llama": Wording(400, {"message": "This model's maximum context length is {window} tokens. Please reduce the length of the prompt"}),
    "bedrock nova in a 200": Wording(200, {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again."}),
    "bedrock llama in a 200": Wording(200, {"message": "This model's maximum context length is {window} tokens. Please reduce the length of the prompt"}),
    "mistral": Wording(400, {"object": "error", "message": "Prompt contains {prompt} tokens and 0 draft tokens, too large for model with {window} maximum context length", "type": "invalid_request_invalid_args", "param": None, "code": "3051"}),
    "groq": Wording(400, _openai("Please reduce the length of the messages or completion.")),
    "groq per minute": Wording(413, _openai(_PER_MINUTE, "rate_limit_exceeded", "tokens")),
    "xai": Wording(400, {"code": "Client specified an invalid argument", "error": "This model's maximum prompt length is {window} but the request contains {prompt} tokens."}),
    "deepseek": Wording(400, _openai(_REQUESTED, "invalid_request_error")),
    "openrouter": Wording(400, {"error": {"code": 400, "message": _OPENROUTER, "metadata": {"provider_name": None}}, "user_id": "user_1"}),
    "openrouter in a 200": Wording(200, {"error": {"code": 400, "message": _OPENROUTER}, "user_id": "user_1"}),
    "poolside": Wording(400, _openai("Input length {prompt} exceeds the maximum allowed input length of {window} tokens.", None)),
    "sglang": Wording(400, _vllm("Input length ({prompt}) exceeds model's maximum context length ({window}).")),
    "together": Wording(400, _openai("The input ({prompt} tokens) is longer than the model's context length ({window} tokens).", None), _openai(_TGI, None)),
    "tgi": Wording(422, {"error": _TGI, "error_type": "validation"}),
    "fireworks": Wording(400, {"error": {"object": "error", "type": "invalid_request_error", "message": "The prompt is too long: {prompt}, model maximum context length: {window}"}}),
    "cohere": Wording(400, {"message": "too many tokens: size limit exceeded by {over} tokens. Try using shorter or fewer inputs. The limit for this model is {window} tokens."}),
    "ai21": Wording(400, {"detail": "Prompt has too many tokens"}),
    "cerebras": Wording(400, {"message": "Please reduce the length of the messages or completion. Current length is {prompt} while limit is {window}", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}),
    "vllm": Wording(400, _vllm(_VLLM)),
    "vllm input": Wording(400, _vllm(_MAXIMUM + "your request has {prompt} input tokens. Please reduce the length of the input messages.")),
    "llama.cpp": Wording(400, {"error": {"code": 400, "message": "request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": "{prompt}", "n_ctx": "{window}"}}),
    "llama.cpp older": Wording(500, {"error": {"code": 500, "message": "the request exceeds the available context size. try increasing the context size or enable context shift", "type": "server_error"}}),
    "llama-cpp-python": Wording(400, _openai("Requested tokens ({prompt}) exceed context window of {window}", None)),
    "lm studio": Wording(400, {"error": "Trying to keep the first {prompt} tokens when context the overflows. However, the model is loaded with context length of only {window} tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input"}),
    "lm studio no numbers": Wording(400, {"error": "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input"}),
    "ollama": Wording(400, {"error": "prompt too long; exceeded max context length by {over} tokens"}),
    "ollama no numbers": Wording(500, {"error": "the input length exceeds the context length"}),
    "kimi": Wording(400, _openai("Invalid request: Your request exceeded model token limit: {window} (requested: {total})", None)),
    "minimax": Wording(400, _anthropic("invalid params, context window exceeds limit (2013)", "bad_request_error")),
    "minimax in a 200": Wording(200, {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"}}),
    "dashscope": Wording(400, {"code": "InvalidParameter", "message": "Range of input length should be [1, {window}]", "request_id": "req_1"}),
    "zai": Wording(400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    "volcengine": Wording(400, {"error": {"code": "InvalidParameter", "message": "Total tokens of image and text exceed max message tokens. Request id: 1", "param": "", "type": "BadRequest"}}),
    "copilot": Wording(400, {"error": {"message": "prompt token count of {prompt} exceeds the limit of {window}", "code": "model_max_prompt_tokens_exceeded"}}),
    "github models": Wording(413, {"error": {"code": "tokens_limit_reached", "message": "Request body too large for {model} model. Max size: {window} tokens.", "details": "Request body too large for {model} model. Max size: {window} tokens."}}),
    "cloudflare": Wording(413, {"errors": [{"message": "AiError: AiError: The estimated number of input and maximum output tokens ({total}) exceeded this model context window limit ({window}).", "code": 5021}], "success": False, "result": {}, "messages": []}),
    "watsonx": Wording(400, {"errors": [{"code": "invalid_input_argument", "message": "Invalid input argument for Model '{model}': the number of input tokens {prompt} cannot exceed the total tokens limit {window} for this model"}], "trace": "1", "status_code": 400}),
    "litellm": Wording(400, {"error": {"message": "litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicException - prompt is too long: {prompt} tokens > {window} maximum", "type": None, "param": None, "code": "400"}}),
    "proxy": Wording(400, {"message": "The total length of all messages is too long."}),
    "empty": Wording(400, ""),
}  # fmt: skip
"""By the name of the provider."""

SILENT: dict[str, Finish] = {"mimo": "length", "anthropic newest": "window"}
"""Providers that send an empty success instead of an error, with its finish reason."""

DEFAULT_WORDINGS: dict[DialectName, str] = {
    "chat": "openai",
    "responses": "openai responses",
    "anthropic": "anthropic",
}


def overflow(
    wording: str,
    *,
    window: int,
    prompt: int,
    output: int = 0,
    model: str = "scripted",
    in_stream: bool = False,
) -> Body | Say:
    """The answer of a provider to a prompt (with the requested output) that does not fit in its window.

    With `in_stream`, a streaming client gets the error inside a stream that began with a 200.

    Raises:
        ConfigError: there is no wording with this name.
    """
    if wording in SILENT:
        return Say((), SILENT[wording], Usage(input=min(prompt, window)))
    words = WORDINGS.get(wording)
    if words is None:
        raise ConfigError(f"there is no wording {wording!r}", hint="see refold.testing.WORDINGS and SILENT")
    body = words.total if words.total is not None and prompt <= window else words.body
    numbers = {
        "window": window,
        "prompt": prompt,
        "output": output,
        "total": prompt + output,
        "over": prompt - window,
    }
    filled = _fill(body, {**{name: str(number) for name, number in numbers.items()}, "model": model})
    content = filled.encode() if isinstance(filled, str) else msgspec.json.encode(filled)
    return Body(words.status, content, in_stream=in_stream)


def _fill(value: object, words: dict[str, str]) -> object:
    if isinstance(value, dict):
        return {key: _fill(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, words) for inner in value]
    if not isinstance(value, str):
        return value
    if value in ("{prompt}", "{window}"):
        return int(words[value[1:-1]])
    for name, word in words.items():
        value = value.replace(f"{{{name}}}", word)
    return value


class ProviderLimits(Struct, frozen=True):
    """The limits and checks of this provider."""

    window: int | None = 128_000
    """None accepts prompts of any size without an error, as some servers do. Most models have 128,000."""
    max_output: int | None = None
    """None writes as much as fits."""
    key: str = ""
    """The only accepted key; empty accepts any key, and none."""
    wording: str = ""
    """The provider whose wording refuses a too long prompt; empty for the protocol's own provider."""
    validates: bool = True
    """Refuse a conversation that is not well-formed."""
    is_strict: bool = False
    """Refuse also what only some servers of a format refuse: empty messages, and arguments that are no JSON."""
    binds_thinking: bool = False
    """Reasoning is valid only after the messages that it was first given after."""
    alternates: bool = False
    """Refuse a chat that the assistant opens, or in which one side speaks twice in a row. OpenAI and Anthropic
    accept both; the chat templates of many open models do not.
    """
    overflows_in_stream: bool = False
    """Refuse a too long prompt inside the stream, if one is asked for: some providers send a 200 before they
    check.
    """


class ReadRequest(Struct, frozen=True):
    """A decoded request, with the earlier messages that the provider stores."""

    received: Received
    request: Request
    held: tuple[Message, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.held, *self.request.messages)


def refuse_unread(received: Received, error: WireError | None, limits: ProviderLimits) -> Refuse | None:
    """The refusal of the key, a header or the body, before the messages are checked."""
    is_anthropic = received.dialect.name == "anthropic"
    if limits.key and received.key != limits.key:
        return Refuse(401)
    if is_anthropic and "anthropic-version" not in received.headers:
        return Refuse(400, "anthropic-version: header is required")
    most = received.dialect.max_body_bytes
    if most and len(received.body) > most:
        return Refuse(413)
    if error is not None:
        return Refuse(400, error.message)
    return None


def refuse(asked: ReadRequest, limits: ProviderLimits, size: int) -> Answer | None:
    """The refusal of a request for a reply with a prompt of this size; None if it is valid."""
    request = asked.request
    if not request.model:
        is_anthropic = request.dialect.name == "anthropic"
        return Refuse(400, "model: Field required" if is_anthropic else "you must provide a model parameter")
    if request.dialect.name == "anthropic" and request.max_output is None:
        return Refuse(400, "max_tokens: Field required")
    if limits.validates and (found := malformed(asked, limits) or _unthought(asked)):
        return found
    if found := compactions.refuse_items(asked.received, request):
        return found
    if limits.alternates and not _is_alternating(asked):
        return Refuse(400, _ROLES)
    return _too_much(request, limits, size)


def refuse_compaction(asked: ReadRequest, limits: ProviderLimits, size: int) -> Answer | None:
    """The refusal of a request for a compaction of a prompt of this size; None if it is valid."""
    request, received = asked.request, asked.received
    if not request.model:
        return Refuse(400, "model: Field required")
    if found := compactions.refuse_wish(received, request) or compactions.refuse_items(received, request):
        return found
    said = structs.replace(request, messages=compactions.without_trigger(request.messages))
    if limits.validates and (
        found := malformed(structs.replace(asked, request=said), limits, may_end_with_reply=True)
    ):
        return found
    return _too_much(request, limits, size)


def malformed(
    asked: ReadRequest, limits: ProviderLimits, *, may_end_with_reply: bool = False
) -> Refuse | None:
    """The first rule of the dialect that the conversation breaks."""
    request = asked.request
    broken = verify(
        asked.messages,
        request.dialect,
        as_request=bool(asked.messages),  # a request that continues a stored conversation may have none
        continues=request.continues and not asked.held,
        fixed_breakpoints=count_fixed_breakpoints(request.fixed),
    )
    broken = tuple(one for one in broken if limits.is_strict or is_refused(one, request.dialect))
    if may_end_with_reply:
        broken = tuple(one for one in broken if one.rule != "ends_with_assistant")
    if broken:
        return Refuse(400, _refusal_text(broken[0], asked))
    return next(_altered_reasoning(asked, limits), None)


def _unthought(asked: ReadRequest) -> Refuse | None:
    """The refusal of a request for thinking that has no room for it, or that goes on with a tool loop which
    began without it.
    """
    request, messages = asked.request, asked.messages
    thinking = msgspec.json.decode(request.fields.get("thinking", b"null"))
    if request.dialect.name != "anthropic" or not thinking or thinking.get("type") != "enabled":
        return None
    if (request.max_output or 0) <= thinking.get("budget_tokens", 0):
        return Refuse(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")
    typed = [at for at, message in enumerate(messages) if message.role == "user" and not message.results]
    loop = range(typed[-1] + 1 if typed else 0, len(messages))
    first = next((at for at in loop if messages[at].role == "assistant" and messages[at].parts), None)
    if first is None or isinstance(messages[first].parts[0], Reasoning):
        return None
    found = "tool_use" if messages[first].calls else "text"
    place = first - len(asked.held) + request.offset
    return Refuse(
        400,
        f"messages.{place}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. When "
        "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
        "lastmost set of `tool_use` and `tool_result` blocks). To avoid this requirement, disable `thinking`.",
    )


def _is_alternating(asked: ReadRequest) -> bool:
    """True if the user and the assistant take turns, and the user begins. As in the templates, replies with tool
    calls and their results are skipped. Only Chat Completions is sent to a template as it is.
    """
    if asked.request.dialect.name != "chat":
        return True
    spoken = [one.role for one in asked.messages if one.role in ("user", "assistant") and not one.calls]
    return all((role == "user") == (at % 2 == 0) for at, role in enumerate(spoken))


def _altered_reasoning(asked: ReadRequest, limits: ProviderLimits) -> Iterator[Refuse]:
    """Reasoning that differs from the server's, or stands in another place."""
    chains = chains_of(asked.messages, limits)
    for index, message in enumerate(asked.messages):
        for at, part in enumerate(message.parts):
            if not isinstance(part, Reasoning):
                continue
            given = part.signature if asked.request.dialect.name == "anthropic" else part.text and part.sealed
            if given and given != sign(part.text, chains[index]):
                yield _invalid_reasoning(asked.request, index, at)


def chains_of(messages: Sequence[Message], limits: ProviderLimits) -> list[bytes]:
    """The hash that reasoning is bound to at each message, and after the last one."""
    return [b"", *compactions.chains(messages)] if limits.binds_thinking else [b""] * (len(messages) + 1)


def _invalid_reasoning(request: Request, index: int, part: int) -> Refuse:
    if request.dialect.name == "anthropic":
        return Refuse(400, f"messages.{index}.content.{part}: Invalid `signature` in `thinking` block")
    message = "The encrypted content could not be verified. Reason: Encrypted content could not be decrypted or parsed."
    return Refuse(400, message, code="invalid_encrypted_content")


def _too_much(request: Request, limits: ProviderLimits, size: int) -> Answer | None:
    output = request.max_output or 0
    if limits.max_output is not None and output > limits.max_output:
        return Refuse(400, _output_cap_text(request, limits.max_output, output))
    if limits.window is None or size + output <= limits.window:
        return None
    wording = limits.wording or DEFAULT_WORDINGS[request.dialect.name]
    if size <= limits.window and request.dialect.name == "responses" and not limits.wording:
        return None  # Responses uses the rest of the window for its output
    return overflow(
        wording,
        window=limits.window,
        prompt=size,
        output=output,
        model=request.model,
        in_stream=limits.overflows_in_stream,
    )


def _output_cap_text(request: Request, most: int, asked: int) -> str:
    return _OUTPUT_CAPS[request.dialect.name].format(most=most, asked=asked, model=request.model)


_ROLES = (
    "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
)
"""The words of the template of Mistral's models, which servers pass on."""
_OUTPUT_CAPS: dict[DialectName, str] = {
    "anthropic": "max_tokens: {asked} > {most}, which is the maximum allowed number of output tokens for {model}",
    "responses": "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= {most}, but got {asked} instead.",
    "chat": "max_tokens is too large: {asked}. This model supports at most {most} completion tokens, whereas you provided {asked}.",
}
_ANTHROPIC: dict[WindowRule, str] = {
    "unanswered_call": "messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {calls}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    "orphan_result": "messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {results}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
    "split_results": "messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {results}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
    "duplicate_result": "messages.{index}.content.0: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {results}",
    "duplicate_call_id": "messages.{index}: `tool_use` ids must be unique",
    "bad_call_id": "messages.{index}.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    "bad_arguments": "messages.{index}.content.0.tool_use.input: Input should be a valid dictionary",
    "unsigned_thinking": "messages.{index}.content.0.thinking.signature: Field required",
    "dangling_reasoning": "messages.{index}: The final block in an assistant message cannot be `thinking`.",
    "empty_message": "messages.{index}: all messages must have non-empty content except for the optional final assistant message",
    "blank_text": "messages: text content blocks must contain non-whitespace text",
    "starts_without_user": 'messages: first message must use the "user" role',
    "ends_with_assistant": "This model does not support assistant message prefill. The conversation must end with a user message.",
    "system_without_user": "messages.{index}: role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result; the directive-only form (content: [] with output_config) is accepted at any position",
    "system_without_reply": "messages.{index}: role 'system' must precede an 'assistant' message or end the array; the directive-only form (content: [] with output_config) is accepted at any position",
    "illegal_role": "messages: Unexpected role. The Messages API accepts a top-level `system` parameter, not a role of that name in its messages.",
    "too_many_breakpoints": "A maximum of 4 blocks with cache_control may be provided. Found {marks}.",
}  # fmt: skip
_FIRST_SYSTEM = "messages.0: use the top-level 'system' parameter for the initial system prompt; the directive-only form (content: [] with output_config) is accepted at any position"
_RESPONSES: dict[WindowRule, str] = {
    "unanswered_call": "No tool output found for function call {calls}.",
    "orphan_result": "No tool call found for function call output with call_id {results}.",
    "duplicate_result": "No tool call found for function call output with call_id {results}.",
    "dangling_reasoning": "Item 'rs_{index}' of type 'reasoning' was provided without its required following item.",
    "bad_call_id": "Invalid 'input[{index}].call_id': string too long. Expected a string with maximum length 64.",
}
_CHAT: dict[WindowRule, str] = {
    "unanswered_call": "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {calls}",
    "orphan_result": "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    "duplicate_result": "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
}  # fmt: skip
_WORDS: dict[DialectName, dict[WindowRule, str]] = {
    "anthropic": _ANTHROPIC,
    "responses": _RESPONSES,
    "chat": _CHAT,
}


def _refusal_text(violation: Violation, asked: ReadRequest) -> str:
    """The provider's sentence for a violation, or Refold's own if none is known."""
    request, index = asked.request, violation.index or 0
    template = _WORDS[request.dialect.name].get(violation.rule)
    place = index - len(asked.held) + request.offset
    if violation.rule == "system_without_user" and place == 0:
        return _FIRST_SYSTEM
    if template is None:
        return f"Invalid value for '{request.dialect.messages_key}[{place}]': {violation.message}."
    calls, results = _ids(asked.messages, index)
    marks = sum(count_breakpoints(message.parts) for message in request.messages)
    marks += count_fixed_breakpoints(request.fixed)
    return template.format(index=place, calls=calls, results=results, marks=marks)


def _ids(messages: Sequence[Message], index: int) -> tuple[str, str]:
    """The unanswered calls of a message (or all of its calls if all are answered), and its results."""
    message = messages[index]
    answered = {result.call_id for other in messages for result in other.results}
    calls = [call.id for call in message.calls]
    missing = [call_id for call_id in calls if call_id not in answered]
    return ", ".join(missing or calls), ", ".join(result.call_id for result in message.results)
