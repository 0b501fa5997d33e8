"""The wordings with which providers refuse a request as too long: about fifty.

The wordings are data: a status and a body with placeholders for the numbers of the refused request. Some
providers have another wording if only input and output together are too long (`total`).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from refold.model.errors import ConfigError
from refold.model.message import DialectName
from refold.model.tokens import Usage
from refold.testing.script import Body, Finish, Say


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
