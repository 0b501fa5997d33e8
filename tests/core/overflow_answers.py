"""What providers answer, and what it means: the truth table of `test_overflow`.

The words are the providers' own; where a sentence has variables the numbers are made up. `OVERFLOW` holds what a smaller window
helps against, `NOT_OVERFLOW` what it does not.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from refold.model.errors import OverflowKind


class Case(NamedTuple):
    name: str
    status: int | None
    body: object
    kind: OverflowKind
    limit: int | None = None
    requested: int | None = None
    prompt: int | None = None
    output: int | None = None


def too_long(name: str, status: int | None, body: object, **numbers: int) -> Case:
    return Case(name, status, body, "input_too_long", **numbers)


def openai(
    message: str, *, code: str | int | None = None, kind: str = "invalid_request_error"
) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": "messages", "code": code}}


def anthropic(message: str, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


CODES = ("context_window_exceeded", "prompt_tokens_exceeded", "exceed_context_size_error", "tokens_limit_reached", "tokens_too_long",
    "too_many_tokens", "contextwindowexceedederror", "model_max_prompt_tokens_exceeded")  # fmt: skip
MAXIMUM = "This model's maximum context length is {} tokens. However, "
REDUCE = " Please reduce the length of the messages."

OPENAI = (
    too_long("openai", 400, openai(MAXIMUM.format(128000) + "your messages resulted in 149767 tokens." + REDUCE, code="context_length_exceeded"), limit=128000, prompt=149767),
    too_long("openai without code", 400, openai(MAXIMUM.format(128000) + "your messages resulted in 149767 tokens."), limit=128000, prompt=149767),
    too_long("openai older, prompt too long", 400, openai(MAXIMUM.format(8192) + "you requested 9216 tokens (8200 in the messages, 1016 in the completion)." + REDUCE, code="context_length_exceeded"), limit=8192, requested=9216, prompt=8200, output=1016),
    Case("openai older, sum too long", 400, openai(MAXIMUM.format(8192) + "you requested 9000 tokens (1000 in the messages, 8000 in the completion)." + REDUCE, code="context_length_exceeded"), "input_plus_output", 8192, 9000, 1000, 8000),
    Case("openai with functions", 400, openai(MAXIMUM.format(4097) + "you requested 4200 tokens (3000 in the messages, 200 in the functions, and 1000 in the completion)."), "input_plus_output", 4097, 4200, 3200, 1000),
    Case("openai completions", 400, openai(MAXIMUM.format(4097) + "you requested 4198 tokens (102 in your prompt; 4096 for the completion)."), "input_plus_output", 4097, 4198, 102, 4096),
    too_long("openai requested", 400, openai(MAXIMUM.format(8192) + "you requested 9000 tokens."), limit=8192, requested=9000),
    too_long("openai responses", 400, openai("Your input exceeds the context window of this model. Please adjust your input and try again.", code="context_length_exceeded")),
    too_long("openai responses without code", 400, openai("Your input exceeds the context window of this model.")),
    too_long("E56 responses: error event in a 200 stream", 200, {"type": "error", "sequence_number": 1, "code": "context_length_exceeded", "message": "Your input exceeds the context window of this model.", "param": "input"}),
    too_long("E56 responses: response.failed in a stream", None, {"type": "response.failed", "response": {"id": "resp_1", "object": "response", "status": "failed", "error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}, "output": []}}),
    too_long("openai configured limit", 400, openai("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 299999 tokens."), limit=272000, prompt=299999),
    too_long("openai configured limit, no numbers", 400, openai("input tokens exceed the configured limit")),
    too_long("azure", 400, {"error": {"code": "context_length_exceeded", "message": MAXIMUM.format("16,385") + "your messages resulted in 20,001 tokens."}}, limit=16385, prompt=20001),
    too_long("openai tokens per minute, request > limit", 429, openai("Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 200000, Requested 480002. The input or output tokens must be reduced in order to run successfully. Visit https://platform.openai.com/account/rate-limits to learn more.", code="rate_limit_exceeded", kind="tokens"), limit=200000, requested=480002),
    too_long("groq tokens per minute, request > limit", 413, openai("Request too large for model `llama-3.1-8b-instant` in organization `org_1` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 38928, please reduce your message size and try again. Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing", code="rate_limit_exceeded", kind="tokens"), limit=6000, requested=38928),
    too_long("groq", 400, openai("Please reduce the length of the messages or completion.", code="context_length_exceeded")),
    too_long("groq without code", 400, openai("Please reduce the length of the messages or completion.")),
    too_long("openai with a word of rate limits beside the code", 400, openai(MAXIMUM.format(32768) + "your messages resulted in 40000 tokens. Contact support if you need a higher quota.", code="context_length_exceeded"), limit=32768, prompt=40000),
    too_long("openai resulted, with functions", 400, openai(MAXIMUM.format(128000) + "your messages resulted in 130040 tokens (129000 in the messages, 1040 in the functions). Please reduce the length of the messages or functions.", code="context_length_exceeded"), limit=128000, prompt=130040),
    too_long("openai sdk text", None, "Error code: 400 - {'error': {'message': \"" + MAXIMUM.format(128000) + "your messages resulted in 149767 tokens.\", 'code': 'context_length_exceeded'}}", limit=128000, prompt=149767),
)  # fmt: skip

ANTHROPIC = (
    too_long("anthropic", 400, anthropic("prompt is too long: 274468 tokens > 200000 maximum"), limit=200000, prompt=274468),
    too_long("E56 anthropic: error event in a 200 stream", 200, anthropic("prompt is too long: 200,001 tokens > 200_000 maximum"), limit=200000, prompt=200001),
    too_long("anthropic without numbers", 400, anthropic("Prompt is too long")),
    Case("anthropic input and max_tokens", 400, anthropic("input length and `max_tokens` exceed context limit: 189284 + 16000 > 200000, decrease input length or `max_tokens` and try again"), "input_plus_output", 200000, 205284, 189284, 16000),
    Case("vs code input and max_tokens", 400, "input length and max_tokens exceed context limit: 189284 + 16000 > 200000", "input_plus_output", 200000, 205284, 189284, 16000),
    Case("input and max_tokens, no numbers", 400, "input length and max_tokens exceed context limit", "input_plus_output"),
    too_long("anthropic sum whose input alone is too long", 400, anthropic("input length and `max_tokens` exceed context limit: 210000 + 16000 > 200000"), limit=200000, requested=226000, prompt=210000, output=16000),
    too_long("anthropic stop reason in a 200", 200, {"type": "message", "role": "assistant", "content": [], "stop_reason": "model_context_window_exceeded"}),
    too_long("zai finish reason in a 200", 200, {"choices": [{"index": 0, "finish_reason": "model_context_window_exceeded", "message": {"role": "assistant", "content": ""}}]}),
    too_long("vertex anthropic in a list", 400, [{"error": {"code": 400, "message": "Prompt is too long", "status": "INVALID_ARGUMENT"}}]),
)  # fmt: skip

CLOUDS = (
    too_long("gemini", 400, {"error": {"code": 400, "message": "The input token count (70000) exceeds the maximum number of tokens allowed (65536).", "status": "INVALID_ARGUMENT"}}, limit=65536, prompt=70000),
    too_long("gemini, limit only", 400, {"error": {"code": 400, "message": "The input token count exceeds the maximum number of tokens allowed (65536)."}}, limit=65536),
    too_long("gemini input tokens", 400, {"error": {"code": 400, "message": "The input token count (1050001) exceeds the maximum number of input tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}, limit=1048576, prompt=1050001),
    too_long("vertex", 400, {"error": {"code": 400, "message": "Unable to submit request because the input token count is 1277429 but model only supports up to 1048576. Reduce the input token count and try again.", "status": "INVALID_ARGUMENT"}}, limit=1048576, prompt=1277429),
    too_long("databricks", 400, {"error_code": "BAD_REQUEST", "message": json.dumps({"external_model_provider": "anthropic", "external_model_error": anthropic("prompt is too long: 204209 tokens > 200000 maximum")})}, limit=200000, prompt=204209),
    too_long("gateway with keys of its own", 400, {"message": json.dumps({"upstream_says": "prompt is too long: 204209 tokens > 200000 maximum"})}, limit=200000, prompt=204209),
    too_long("watsonx", 400, {"errors": [{"code": "invalid_input_argument", "message": "Invalid input argument for Model 'ibm/granite-13b': the number of input tokens 135000 cannot exceed the total tokens limit 131072 for this model"}], "trace": "a1", "status_code": 400}, limit=131072, prompt=135000),
    too_long("snowflake", 400, {"message": "max tokens of 8192 exceeded", "request_id": "x"}, limit=8192),
    too_long("sambanova", 400, openai("The maximum context length of DeepSeek-R1 is 8192. However, answering your request will take 15000 tokens. Please reduce the length of the messages or the specified max_completion_tokens value."), limit=8192, requested=15000),
    *(too_long(f"cloudflare as a {status}", status, {"errors": [{"message": "AiError: AiError: The estimated number of input and maximum output tokens (32005) exceeded this model context window limit (24000).", "code": 5021}], "success": False, "result": {}}, limit=24000, requested=32005) for status in (400, 413)),
    too_long("deepinfra", 400, openai("Requested input length 39818 exceeds maximum input length 32767"), limit=32767, prompt=39818),
    too_long("volcengine ark", 400, {"error": {"code": "InvalidParameter", "message": "Input length 203743 exceeds the maximum length 202752. Request id: 0217", "type": "BadRequest"}}, limit=202752, prompt=203743),
    too_long("qianfan", 200, {"error_code": 336103, "error_msg": "Prompt tokens too long", "id": "as-1"}),
    too_long("siliconflow", 400, {"code": 20015, "message": "length of prompt_tokens (140000) must be less than max_seq_len (131072).", "data": None}, limit=131072, prompt=140000),
    too_long("siliconflow total", 400, {"code": 20015, "message": "max_total_tokens (40000) must be less than or equal to max_seq_len (32768)", "data": None}, limit=32768, requested=40000),
    too_long("kimi, no size", 400, openai("Invalid request: Your request exceeded model token limit: 8192"), limit=8192),
    too_long("gemini older", 400, "The input token count (1200000) exceeds", prompt=1200000),
    too_long("gemini, no numbers", 400, "The input token count exceeds the maximum number of tokens allowed."),
    too_long("bedrock sonnet", 400, {"message": "Input is too long for requested model.", "__type": "ValidationException"}),
    too_long("bedrock boto3", 400, {"Error": {"Code": "ValidationException", "Message": "The model returned the following errors: Input is too long for requested model."}}),
    too_long("bedrock claude", 400, {"message": "The model returned the following errors: prompt is too long: 274468 tokens > 200000 maximum"}, limit=200000, prompt=274468),
    too_long("bedrock too many input tokens", 400, {"message": "Too many input tokens. Max input tokens: 8192"}),
    too_long("E56 bedrock nova in a 200", 200, {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again."}),
    too_long("E56 bedrock llama in a 200", 200, {"message": "This model's maximum context length is 131072 tokens. Please reduce the length of the prompt"}, limit=131072),
    too_long("bedrock max input token limit", 400, {"message": "Input exceeds the max input token limit"}),
    too_long("bedrock schema", 400, {"message": "Malformed input request: expected maxLength: 400000, actual: 512345, please reformat your input and try again."}),
    too_long("bedrock schema, no numbers", 400, {"message": "expected maxLength:"}),
    too_long("E56 bedrock stream", None, {"modelStreamErrorException": {"message": "Input is too long", "originalStatusCode": 400}}),
    too_long("bedrock stream text", None, "ModelStreamErrorException: Input is too long"),
    too_long("mistral", 400, {"object": "error", "message": "Prompt contains 170397 tokens and 0 draft tokens, too large for model with 131072 maximum context length", "type": "invalid_request_invalid_args", "code": "3051"}, limit=131072, prompt=170397),
    too_long("mistral without drafts", 400, {"object": "error", "message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length", "type": "invalid_request_error"}, limit=32768, prompt=65673),
    too_long("mistral older", 400, {"object": "error", "message": "Prompt 170397 > 131072 maximum context length"}, limit=131072, prompt=170397),
    too_long("xai", 400, {"code": "Client specified an invalid argument", "error": "This model's maximum prompt length is 256000 but the request contains 332986 tokens."}, limit=256000, requested=332986),
    too_long("deepseek", 400, openai(MAXIMUM.format(1048576) + "you requested 1179668 tokens (1179652 in the messages, 16 in the completion)." + REDUCE), limit=1048576, requested=1179668, prompt=1179652, output=16),
    too_long("copilot code", 400, openai("prompt token count of 13000 exceeds the limit of 12288", code="model_max_prompt_tokens_exceeded"), limit=12288, prompt=13000),
    too_long("copilot", 400, "prompt token count of 13000 exceeds the limit of 12288", limit=12288, prompt=13000),
    too_long("copilot code alone", 400, "model_max_prompt_tokens_exceeded"),
    too_long("github models", 413, {"error": {"code": "tokens_limit_reached", "message": "Request body too large for gpt-4o model. Max size: 8000 tokens."}}, limit=8000),
    too_long("github models text", 413, "Request body too large for gpt-4o model. Max size: 8000 tokens.", limit=8000),
    too_long("together", 400, openai("The input (9000 tokens) is longer than the model's context length (8192 tokens)."), limit=8192, prompt=9000),
    Case("together sum", 422, openai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 7200 `inputs` tokens and 1024 `max_new_tokens`"), "input_plus_output", 8193, 8224, 7200, 1024),
    Case("tgi sum, no counts", 422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096", "error_type": "validation"}, "input_plus_output", 4096),
    too_long("tgi sum whose input alone is too long", 422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`", "error_type": "validation"}, limit=4096, requested=5020, prompt=5000, output=20),
    too_long("tgi input", 422, {"error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", "error_type": "validation"}, limit=4096, prompt=5000),
    too_long("hugging face", 400, {"error": "length limit exceeded"}),
    too_long("fireworks", 400, {"error": {"object": "truncate", "type": "invalid_request_error", "message": "The prompt is too long: 140000, model maximum context length: 131072"}}, limit=131072, prompt=140000),
    too_long("cohere", 400, {"error_type": "TOO_MANY_TOKENS", "message": "too many tokens: size limit exceeded by 1200 tokens. Try using shorter or fewer inputs. The limit for this model is 128000 tokens."}, limit=128000, prompt=129200),
    too_long("cohere without code", 400, {"message": "too many tokens: size limit exceeded by 1 tokens. The limit for this model is 128,000 tokens."}, limit=128000, prompt=128001),
    too_long("cohere received, limit unsaid", 400, {"message": "too many tokens - received 4292. Try using a shorter prompt"}, prompt=4292),
    too_long("cohere received", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter prompt, or enabling prompt truncating."}, limit=4081, prompt=4292),
    too_long("ai21", 400, {"detail": "Prompt has too many tokens"}),
    too_long("cerebras", 400, {"message": "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192", "code": "context_length_exceeded"}, limit=8192, prompt=9000),
    too_long("cerebras without code", 413, "Current length is 9000 while limit is 8192", limit=8192, prompt=9000),
    too_long("kimi", 400, openai("Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)"), limit=131072, requested=140000),
    too_long("minimax", 400, anthropic("invalid params, context window exceeds limit (2013)", "bad_request_error")),
    too_long("E56 minimax in a 200", 200, {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"}}),
    too_long("dashscope", 400, {"code": "InvalidParameter", "message": "Range of input length should be [1, 30720]", "request_id": "x"}, limit=30720),
    too_long("dashscope internal", 400, {"code": "10012", "message": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"}, limit=129024),
    too_long("zai code", 400, {"error": {"code": "1261", "message": "Prompt 超长"}}),
    too_long("zai", 400, {"error": {"message": "Prompt exceeds max length"}}),
    too_long("zai text", 400, "model_context_window_exceeded"),
    too_long("volcengine", 400, "InvalidParameter: Total tokens of image and text exceed max message tokens"),
    too_long("replicate", 422, {"detail": "input is too long"}),
    too_long("nlp cloud", 400, {"detail": "Input text length should not exceed 4096"}),
    too_long("aleph alpha", 400, {"error": "This is longer than the model's maximum context length"}),
    too_long("chinese length", 400, {"error": {"message": "输入内容超过最大长度限制，详见https://example.com/错误码"}}),
    too_long("chinese context", 400, {"error": {"message": "请求超出模型上下文长度"}}),
)  # fmt: skip

SERVERS = (
    too_long("openrouter", 400, {"error": {"code": 400, "message": "This endpoint's maximum context length is 32768 tokens. However, you requested about 56827 tokens (56811 of text input, 16 in the output). Please reduce the length of either one, or use the context-compression plugin", "metadata": {"error_type": "context_length_exceeded"}}}, limit=32768, requested=56827, prompt=56811, output=16),
    Case("openrouter without code", 400, {"error": {"code": 400, "message": "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (24000 of text input, 16000 in the output)."}}, "input_plus_output", 32768, 40000, 24000, 16000),
    Case("openrouter with tools", 400, {"error": {"code": 400, "message": "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (20000 of text input, 4000 of tool input, 16000 in the output)."}}, "input_plus_output", 32768, 40000, 24000, 16000),
    too_long("E56 openrouter error body in a 200", 200, {"error": {"code": 400, "message": "Provider returned error", "metadata": {"provider_name": "Anthropic", "raw": json.dumps(anthropic("prompt is too long: 274468 tokens > 200000 maximum"))}}, "user_id": "u"}, limit=200000, prompt=274468),
    too_long("E56 openrouter error in a choice", None, {"id": "gen-1", "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": 400, "message": "maximum context length is 8192 tokens"}}]}, limit=8192),
    too_long("poolside", 400, openai("Input length 131500 exceeds the maximum allowed input length of 131072 tokens."), limit=131072, prompt=131500),
    too_long("sglang", 400, {"object": "error", "message": "Input length (265330) exceeds model's maximum context length (262144).", "type": "BadRequestError", "code": 400}, limit=262144, prompt=265330),
    too_long("litellm sentence", 400, "Requested token count exceeds the model's maximum context length of 131072 tokens.", limit=131072),
    Case("sglang total", 400, "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 140000 tokens: 131000 tokens from the input messages and 9000 tokens for the completion.", "input_plus_output", 131072, 140000, 131000, 9000),
    too_long("vllm", 400, {"object": "error", "message": "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your prompt contains at least 262145 input tokens, for a total of at least 262145 tokens.", "type": "BadRequestError", "code": 400}, limit=262144, requested=262145, prompt=262145, output=0),
    Case("vllm sum", 400, {"error": {"message": "This model's maximum context length is 4096 tokens. However, you requested 1000 output tokens and your prompt contains 3500 input tokens, for a total of 4500 tokens."}}, "input_plus_output", 4096, 4500, 3500, 1000),
    too_long("vllm request has", 400, {"error": {"message": "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please reduce the length of the input messages."}}, limit=4096, prompt=5000),
    too_long("vllm newer", 400, {"error": {"message": "You passed 9001 input tokens and requested 1024 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 7168 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=9001)", "type": "BadRequestError", "param": "input_tokens", "code": 400}}, limit=8192, requested=10025, prompt=9001, output=1024),
    Case("vllm newer, sum", 400, {"error": {"message": "You passed 7501 input tokens and requested 1024 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 7168 tokens.", "code": 400}}, "input_plus_output", 8192, 8525, 7501, 1024),
    too_long("tabbyapi", 400, {"detail": "Prompt length 9001 is greater than max_seq_len 8192"}, limit=8192, prompt=9001),
    too_long("tensorrt-llm", 400, openai("Prompt length (9001) exceeds maximum input length (8192). Set log level to info and check TRTLLM logs for how to set maximum input length"), limit=8192, prompt=9001),
    too_long("llama-cpp-python", 400, openai("Requested tokens (13223) exceed context window of 4096"), limit=4096, prompt=13223),
    too_long("lm studio n_keep", 400, {"error": "Cannot truncate prompt with n_keep (32794) >= n_ctx (32768)"}, limit=32768, prompt=32794),
    too_long("vllm fit", 400, {"error": {"message": "The prompt (total length 50000) is too long to fit into the model (context length 32768). Make sure that `max_model_len` is no smaller"}}, limit=32768, prompt=50000),
    too_long("vllm model length", 400, "The decoder prompt (length 50000) is longer than the maximum model length of 32768. Make sure that `max_model_len` is no smaller", limit=32768, prompt=50000),
    too_long("atlas", 400, "Prompt too long: 5152 tokens exceeds max_seq_len 2048 (leave room for output tokens)", limit=2048, prompt=5152),
    too_long("input tokens, no numbers", 400, "input token count exceeds the maximum number of input tokens"),
    too_long("input length", 400, "input length exceeds context length"),
    *(too_long(words, 500, words) for words in ("Prompt too long", "prompt exceeds the length limit", "Context length exceeded", "Context size has been exceeded.", "tokens in request more than max tokens allowed")),
    too_long("llama.cpp", 400, {"error": {"code": 400, "message": "request (124071 tokens) exceeds the available context size (123904 tokens), try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 124071, "n_ctx": 123904}}, limit=123904, prompt=124071),
    too_long("llama.cpp text", 500, "request (124071 tokens) exceeds the available context size (123904 tokens), try increasing it", limit=123904, prompt=124071),
    too_long("llama.cpp fields alone", 400, {"error": {"message": "no", "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192}}, limit=8192, prompt=9000),
    too_long("llama.cpp older", 500, {"error": {"code": 500, "message": "the request exceeds the available context size, try increasing it"}}),
    too_long("llama.cpp embeddings", 500, {"error": {"message": "input is too large to process. increase the physical batch size"}}),
    too_long("lm studio", 400, {"error": "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length"}, limit=4096, prompt=9000),
    too_long("lm studio, no numbers", 500, {"error": "The number of tokens to keep from the initial prompt is greater than the context length"}),
    too_long("ollama", 400, {"error": "prompt too long; exceeded max context length by 812 tokens"}),
    too_long("ollama input length", 500, {"error": "the input length exceeds the context length"}),
    too_long("ds4", 400, openai("Prompt has 70000 tokens, but the configured context size is 65536 tokens"), limit=65536, prompt=70000),
    too_long("litellm class in text", 400, "litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicException - " + json.dumps(anthropic("prompt is too long: 215000 tokens > 200000 maximum")), limit=200000, prompt=215000),
    too_long("litellm class as a name", 500, {"name": "ContextWindowExceededError", "message": "OpenAIException"}),
    *(too_long(f"{code} as a code", 400, {"error": {"code": code, "message": "no"}}) for code in CODES),
    *(too_long(f"{code} in words", 400, f"error: {code}") for code in CODES),
    too_long("proxy", 400, {"message": "The total length of all messages is too long."}),
    too_long("nested causes", None, {"name": "AI_APICallError", "cause": {"response": {"data": {"value": {"detail": {"error": {"code": "context_length_exceeded"}}}}}}}),
    too_long("body in a string", 400, {"message": "Bad Request", "statusCode": 400, "responseBody": json.dumps(openai("x", code="context_length_exceeded"))}),
    too_long("opal: 500 with the code in the text", 500, "500: context_length_exceeded"),
)  # fmt: skip

WRAPPED = (
    Case("openrouter, in a client's words", None, "Internal error: 400 This endpoint’s maximum context length is 131072 tokens. However, you requested about 135349 tokens (60662 of text input, 10687 of tool input, 64000 in the output).", "input_plus_output", 131072, 135349, 71349, 64000),
    too_long("llama.cpp behind ollama", 400, openai(json.dumps({"error": {"code": 400, "message": "request (216286 tokens) exceeds the available context size (196608 tokens), try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 216286, "n_ctx": 196608}})), limit=196608, prompt=216286),
    too_long("llama.cpp, first error type", 500, {"error": {"code": 500, "message": "the request exceeds the available context size. try increasing the context size or enable context shift", "type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256}}, limit=256, prompt=1407),
    too_long("mlx-serve", 400, anthropic("Prompt exceeds maximum context length")),
    too_long("prompt exceeds", 400, "The prompt exceeds what this model can read"),
    too_long("total tokens", 400, {"message": "total tokens exceeds the model's max of 4096"}),
    too_long("token count", 400, {"message": "Token count exceeds the maximum of the model"}),
    too_long("token length", 400, {"message": "Token length exceeds what the model allows"}),
    too_long("dashscope input length", 400, {"code": "InvalidParameter", "message": "Input length exceeds the maximum length"}),
    too_long("dashscope total", 400, {"code": "InvalidParameter", "message": "<400> InternalError.Algo.InvalidParameter: Total message token length exceed model limit (10000000 tokens)."}, limit=10000000),
    too_long("ollama, for a model", 500, {"error": "ollama: context length exceeded for llama3"}),
    too_long("openai, the model's window", 400, openai("Your input exceeds the model's context window. Please adjust your input and try again.")),
    too_long("openai, older sentence", 400, openai("This model's maximum context length is 8191 tokens, however you requested 89686 tokens (89686 in your prompt; 0 for the completion). Please reduce your prompt; or completion length."), limit=8191, requested=89686, prompt=89686, output=0),
    too_long("E56 error event with plain text", 200, b'event: error\ndata: error from LLM: unexpected status code: 413, body: {"error":{"message":"Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 10338, please reduce your message size and try again.","code":"rate_limit_exceeded"}}\n\n', limit=6000, requested=10338),
    too_long("E56 error event cut off", 200, b'event: error\r\ndata: {"error":{"message":"prompt is too long: 274468 tokens > 200000 maximum', limit=200000, prompt=274468),
    too_long("token limit as a 413", 413, {"title": "Token Limit Exceeded", "status": 413, "detail": "The request exceeded the model's token limit.", "code": "token_limit_exceeded"}),
    too_long("token limit in words", 400, "TOKEN_LIMIT_EXCEEDED"),
    too_long("gemini in a client's words", None, '[API Error: [{\n "error": {\n "code": 400,\n "message": "The input token count (1305820) exceeds the maximum number of tokens allowed (1048576).",\n "status": "INVALID_ARGUMENT"\n }\n }\n ]]', limit=1048576, prompt=1305820),
    too_long("volcengine in a plugin's words", 500, "PluginInvokeError: {\"args\":{},\"error_type\":\"ArkBadRequestError\",\"message\":\"Error code: 400 - {'error': {'code': 'InvalidParameter', 'message': 'Input length 203743 exceeds the maximum length 202752. Request id: 02'}}\"}", limit=202752, prompt=203743),
    too_long("dify", 400, {"code": "completion_request_error", "message": "Query or prefix prompt is too long, you can reduce the prefix prompt, or shrink the max token, or switch to a llm with a larger token limit size.", "status": 400}),
)  # fmt: skip
OVERFLOW = (*OPENAI, *ANTHROPIC, *CLOUDS, *SERVERS, *WRAPPED)
