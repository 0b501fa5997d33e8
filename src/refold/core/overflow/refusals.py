"""Sentences and codes of providers that are not overflow, although they often sound like it.

Rate limits, output caps and file sizes share words with overflow ("too many tokens", "exceeds the limit"),
and a smaller history as the response would lose context for nothing. So they are recognised first.
"""

from __future__ import annotations

from refold.core.overflow.phrases import rule

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
    rule("output in words", "output_cap", "output tokens exceed", "completion tokens exceed"),
    rule("text parameter", "other", "exceeds the limit of {_} characters"),
)
