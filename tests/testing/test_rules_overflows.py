"""Every way of saying "too long", through real HTTP: what arrives means what the truth table says."""

from __future__ import annotations

import msgspec
import openai
import pytest

from refold.core.overflow import classify, classify_finish
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError, Overflow
from refold.testing import SILENT, WORDINGS, Body, ScriptedUpstream, overflow
from refold.wire import decode_error, decode_reply
from tests.core.overflow_answers import OVERFLOW
from tests.core.overflow_refusals import NOT_OVERFLOW
from tests.testing.exchanges import PROTOCOLS, WordCounter, ask

SILENT_ABOUT_LIMIT = {
    "openai responses", "anthropic no numbers", "bedrock", "bedrock nova", "bedrock nova in a 200", "groq", "ai21", "llama.cpp older",
    "lm studio no numbers", "ollama", "ollama no numbers", "minimax", "minimax in a 200", "zai", "volcengine", "proxy",
}  # fmt: skip
"""Those whose words state no limit."""
STATES_PROMPT = {
    "openai", "openai older", "openai configured", "azure", "anthropic", "gemini", "vertex", "bedrock claude", "mistral",
    "deepseek", "openrouter", "openrouter in a 200", "poolside", "sglang", "together", "tgi", "fireworks", "cohere",
    "cerebras", "vllm", "vllm input", "llama.cpp", "llama-cpp-python", "lm studio", "copilot", "watsonx", "litellm",
}  # fmt: skip


def numbers(found: Overflow) -> tuple[int | None, ...]:
    return found.limit, found.requested, found.prompt, found.output


def served(case) -> Body:
    """An answer of the truth table as a server would send it; an error without a status comes in a stream."""
    if case.status is None and isinstance(case.body, dict):
        return Body(200, b"event: error\ndata: %s\n\n" % msgspec.json.encode(case.body), "text/event-stream")
    return Body.of(case.status or 200, case.body)


TABLE = [*OVERFLOW, *NOT_OVERFLOW]
NO_TEXT = [case for case in TABLE if case.status is not None or isinstance(case.body, dict)]
"""The others are sentences that clients make of answers; no server sends them."""


@pytest.fixture(scope="module")
def provider():
    with ScriptedUpstream() as running:
        yield running


async def test_the_whole_truth_table_arrives_and_means_the_same(provider):
    wrong = []
    for case in NO_TEXT:
        provider.answers.append(served(case))
        answered = await ask(provider, "chat", stream=case.status is None)
        found = classify(answered.status, answered.content)
        if (found.kind, *numbers(found)) != tuple(case[3:]):
            wrong.append((case.name, found))
    assert not wrong
    assert len(NO_TEXT) > 240


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", [name for name in WORDINGS if name != "empty"])
async def test_every_wording_is_recognised_with_its_numbers(provider, protocol, name):
    provider.answers.append(overflow(name, window=8_000, prompt=9_000, output=100))

    answered = await ask(provider, protocol)

    found = classify(answered.status, answered.content)
    assert found.kind == "input_too_long"
    assert found.limit == (None if name in SILENT_ABOUT_LIMIT else 8_000)
    assert found.prompt == (9_000 if name in STATES_PROMPT else None)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_wording_can_stand_inside_of_a_stream(provider, protocol):
    """Also of those that a client has to tell from what the model says: nothing was said before."""
    names = [name for name in WORDINGS if name != "empty"]
    for name in names:
        provider.answers.append(overflow(name, window=8_000, prompt=9_000, output=100, in_stream=True))
        answered = await ask(provider, protocol, stream=True)
        found = classify(answered.status, answered.content)
        assert (answered.status, answered.headers["content-type"][:17]) == (200, "text/event-stream"), name
        assert (found.kind, len(answered.events)) == (
            "input_too_long",
            3 if protocol == "responses" else 2,
        ), name
        assert found.limit == (None if name in SILENT_ABOUT_LIMIT else 8_000), name


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_server_can_refuse_what_does_not_fit_after_the_stream_has_begun(protocol):
    async with ScriptedUpstream(window=10, overflows_in_stream=True, counter=WordCounter()) as small:
        streamed, whole = [await ask(small, protocol, words(99), stream=stream) for stream in (True, False)]

    assert (streamed.status, whole.status) == (200, 400)
    assert classify(200, streamed.content).is_overflow
    assert classify(400, whole.content).is_overflow


@pytest.mark.parametrize(
    "name", ["openai", "openai older", "anthropic", "openrouter", "vllm", "deepseek", "together", "tgi"]
)
async def test_some_say_when_only_input_and_output_together_are_too_long(provider, name):
    provider.answers.append(overflow(name, window=8_000, prompt=7_000, output=2_000))

    answered = await ask(provider, "chat")

    found = classify(answered.status, answered.content)
    assert (found.kind, *numbers(found)) == ("input_plus_output", 8_000, 9_000, 7_000, 2_000)


async def test_an_answer_without_a_word_needs_a_count_of_ones_own(provider):
    provider.answers.append(overflow("empty", window=8_000, prompt=9_000))

    answered = await ask(provider, "chat")

    assert classify(answered.status, answered.content).kind == "other"
    assert classify(answered.status, answered.content, estimated=9_000, budget=8_000).is_overflow


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("protocol", ["chat", "anthropic"])
async def test_some_say_nothing_and_stop(provider, protocol, name):
    provider.answers.append(overflow(name, window=8_000, prompt=9_000))

    answered = await ask(provider, protocol)

    reply = decode_reply(answered.content, DIALECTS[protocol])
    found = classify_finish(reply.finish, reply.usage, 8_000)
    assert answered.status == 200
    assert found is not None
    assert found.is_overflow


def words(count: int) -> str:
    return "word " * count


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_window_refuses_what_does_not_fit_in_the_protocols_own_words(protocol):
    async with ScriptedUpstream(otherwise="ok", window=1_000, counter=WordCounter()) as small:
        fits = await ask(small, protocol, words(936))
        large = await ask(small, protocol, words(1_001))

    found = classify(large.status, large.content)
    assert fits.status == 200
    assert found.kind == "input_too_long"
    if protocol != "responses":
        assert (found.limit, found.prompt) == (1_000, 1_001)


async def test_openais_own_client_knows_the_code():
    async with (
        ScriptedUpstream(window=10, counter=WordCounter()) as small,
        openai.AsyncOpenAI(base_url=f"{small.url}/v1", api_key="k", max_retries=0) as client,
    ):
        message = {"role": "user", "content": words(11)}
        with pytest.raises(openai.BadRequestError) as chat:
            await client.chat.completions.create(model="m", messages=[message])
        with pytest.raises(openai.BadRequestError) as responses:
            await client.responses.create(model="m", input=words(11))

    assert chat.value.code == responses.value.code == "context_length_exceeded"


async def test_the_output_asked_for_needs_room_as_well():
    async with ScriptedUpstream(otherwise="ok", window=1_000, counter=WordCounter()) as small:
        for protocol in ("chat", "anthropic"):
            answered = await ask(small, protocol, words(500), max_tokens=501)
            found = classify(answered.status, answered.content)
            assert (found.kind, *numbers(found)) == ("input_plus_output", 1_000, 1_001, 500, 501)
            assert (await ask(small, protocol, words(500), max_tokens=500)).status == 200
        assert (await ask(small, "responses", words(500), max_output_tokens=501)).status == 200


async def test_a_server_can_speak_like_another_provider():
    async with ScriptedUpstream(window=10, wording="llama.cpp", counter=WordCounter()) as small:
        answered = await ask(small, "chat", words(12))

    error = answered.json["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 12, 10)


async def test_a_server_without_a_window_takes_everything_and_bills_it():
    async with ScriptedUpstream(otherwise="ok", window=None, counter=WordCounter()) as endless:
        answered = await ask(endless, "chat", words(200_000))

    usage = decode_reply(answered.content, DIALECTS["chat"]).usage
    assert usage.prompt == 200_000
    assert classify_finish("stop", usage, 128_000).is_overflow


async def test_more_output_than_the_model_writes_is_refused():
    async with ScriptedUpstream(otherwise="ok", max_output=4_096) as capped:
        for protocol in ("chat", "anthropic"):
            answered = await ask(capped, protocol, max_tokens=8_192)
            found = classify(answered.status, answered.content)
            assert (found.kind, found.limit, found.output) == ("output_cap", 4_096, 8_192)
        answered = await ask(capped, "responses", max_output_tokens=8_192)
        assert "Expected a value <= 4096, but got 8192" in decode_error(answered.content).message


def test_a_name_nobody_has_is_a_mistake():
    with pytest.raises(ConfigError, match="no wording 'gtp'"):
        overflow("gtp", window=1, prompt=2)
    with pytest.raises(ConfigError, match="no wording 'gtp'"):
        ScriptedUpstream(wording="gtp")
