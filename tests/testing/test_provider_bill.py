"""The bill: what is counted, and what the cache knew."""

from __future__ import annotations

import pytest

from refold.core.prompt_cache import LOOKBACK
from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.tokens import Usage
from refold.testing import ScriptedUpstream, call, say, think
from refold.tokens import FittedCounter
from refold.wire import decode_reply
from tests.testing.exchanges import PROTOCOLS, WordCounter, ask, body_of, post

FIVE_MINUTES, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def provider(clock):
    async with ScriptedUpstream(
        otherwise="ok", counter=WordCounter(), cache_minimum=100, clock=clock
    ) as running:
        yield running


def words(name: str, count: int) -> str:
    return " ".join([name] * count)


def block(name, count, mark=None):
    text = {"type": "text", "text": words(name, count)}
    return {**text, "cache_control": mark} if mark else text


async def claude(provider, *blocks, system=None, tools=None, automatic=None) -> Usage:
    extra = {"system": system, "tools": tools, "cache_control": automatic}
    given = {key: value for key, value in extra.items() if value is not None}
    body = {**body_of("anthropic"), **given, "messages": [{"role": "user", "content": [*blocks]}]}
    return decode_reply((await post(provider, "/v1/messages", body)).content, ANTHROPIC).usage


async def gpt(provider, *texts) -> Usage:
    messages = [{"role": "user", "content": text} for text in texts]
    answered = await post(provider, "/v1/chat/completions", {"model": "m", "messages": messages})
    return decode_reply(answered.content, CHAT).usage


async def test_openai_reads_any_beginning_it_has_seen_in_steps(provider):
    first = await gpt(provider, words("a", 100), words("b", 100))
    again = await gpt(provider, words("a", 100), words("b", 100), words("c", 100))
    other = await gpt(provider, words("a", 100), words("x", 300))

    assert (first.input, first.cache_read, first.cache_write) == (200, 0, 0)
    assert (again.input, again.cache_read) == (300 - 128, 128)
    assert other.cache_read == 0  # 100 words are one beginning, but less than a step


async def test_openai_forgets_after_five_minutes_without_use(provider, clock):
    prompt = [words("a", 200)]
    await gpt(provider, *prompt)

    clock.now = 299
    read = await gpt(provider, *prompt)
    clock.now = 299 + 301
    forgotten = await gpt(provider, *prompt)

    assert (read.cache_read, forgotten.cache_read) == (128, 0)


async def test_a_short_prompt_is_never_cached(provider):
    await gpt(provider, words("a", 99))

    assert (await gpt(provider, words("a", 99))).cache_read == 0
    assert (await claude(provider, block("a", 99, FIVE_MINUTES))).cache_write == 0


async def test_models_do_not_share_a_cache(provider):
    for model in ("a", "b"):
        answered = await ask(provider, "chat", words("x", 200), model=model)
        assert decode_reply(answered.content, CHAT).usage.cache_read == 0


async def test_anthropic_caches_only_where_it_is_asked_to(provider):
    unmarked = [await claude(provider, block("a", 200)) for _ in range(2)]
    wrote = await claude(provider, block("a", 200, FIVE_MINUTES), block("b", 50))
    read = await claude(provider, block("a", 200, FIVE_MINUTES), block("c", 60))

    assert unmarked == [Usage(input=200, output=1)] * 2
    assert wrote == Usage(input=50, cache_write=200, output=1)
    assert read == Usage(input=60, cache_read=200, output=1)


async def test_a_mark_that_moves_on_reads_what_it_left_behind(provider):
    await claude(provider, block("a", 200, FIVE_MINUTES))
    moved = await claude(provider, block("a", 200), block("b", 100, FIVE_MINUTES))
    changed = await claude(provider, block("x", 200), block("b", 100, FIVE_MINUTES))

    assert moved == Usage(cache_read=200, cache_write=100, output=1)
    assert changed == Usage(cache_write=300, output=1)


async def test_anthropic_looks_back_only_so_far(provider):
    await claude(provider, block("a", 200, FIVE_MINUTES))
    later = [block(f"b{number}", 1) for number in range(LOOKBACK)]

    far = await claude(provider, block("a", 200), *later[:-1], {**later[-1], "cache_control": FIVE_MINUTES})
    near = await claude(provider, block("a", 200), *later[:-2], {**later[-2], "cache_control": FIVE_MINUTES})

    assert far.cache_read == 0
    assert near.cache_read == 200


async def test_tools_stand_before_the_system_prompt_and_both_before_messages(provider):
    tool = {"name": "f", "description": words("d", 92), "input_schema": {}, "cache_control": FIVE_MINUTES}
    system = [block("s", 100, FIVE_MINUTES)]

    wrote = await claude(provider, block("a", 10), system=system, tools=[tool])
    read = await claude(provider, block("b", 20), system=system, tools=[tool])
    other = await claude(provider, block("b", 20), system=[block("t", 100, FIVE_MINUTES)], tools=[tool])
    moved = await claude(provider, block("b", 20), system=system, tools=[{**tool, "name": "g"}])

    prefix = wrote.cache_write
    assert prefix > 200
    assert (wrote.input, read.input, read.cache_read) == (10, 20, prefix)
    assert (other.cache_read, other.cache_write) == (prefix - 100, 100)
    assert moved.cache_read == 0


async def test_an_hour_lives_longer_and_is_billed_apart(provider, clock):
    async def send():
        body = body_of("anthropic")
        body["messages"] = [
            {"role": "user", "content": [block("a", 200, HOUR), block("b", 100, FIVE_MINUTES)]}
        ]
        return (await post(provider, "/v1/messages", body)).json["usage"]

    wrote = await send()
    clock.now = 1_000
    late = await send()

    assert wrote["cache_creation"] == {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200}
    assert (late["cache_read_input_tokens"], late["cache_creation_input_tokens"]) == (200, 100)
    assert late["cache_creation"]["ephemeral_1h_input_tokens"] == 0


async def test_a_client_can_leave_the_marking_to_the_provider(provider):
    wrote = await claude(provider, block("a", 200), automatic=FIVE_MINUTES)
    read = await claude(provider, block("a", 200), block("b", 10), automatic=FIVE_MINUTES)

    assert (wrote.cache_write, read.cache_read, read.cache_write) == (200, 200, 10)


async def test_a_conversation_the_provider_keeps_is_read_and_billed_with_it(provider):
    first = await ask(provider, "responses", words("a", 200))
    second = await ask(provider, "responses", words("b", 50), previous_response_id=first.json["id"])

    usage = decode_reply(second.content, RESPONSES).usage
    assert usage == Usage(input=251 - 128, cache_read=128, output=1)


async def test_what_was_refused_or_lost_leaves_nothing_in_the_cache(provider):
    prompt = words("a", 200)
    await ask(provider, "chat", prompt, messages=[{"role": "tool", "tool_call_id": "x", "content": prompt}])

    assert (await gpt(provider, prompt)).cache_read == 0


async def test_replies_are_counted_with_what_was_thought(provider):
    provider.answers.append(say(think("one two three"), "four five", call("six", '{"seven": 8}')))

    answered = await ask(provider, "responses", "a b c")

    usage = decode_reply(answered.content, RESPONSES).usage
    assert usage == Usage(input=3, output=8, reasoning=3)


async def test_without_a_counter_refolds_estimate_counts():
    async with ScriptedUpstream(otherwise="ok") as plain:
        answered = await ask(plain, "chat", "How long is this sentence, really?")

    counted = FittedCounter().message(plain.requests[0].messages[0])
    assert decode_reply(answered.content, CHAT).usage.prompt == counted


@pytest.mark.parametrize("factor", [0.6, 1.9])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_provider_may_count_otherwise_in_its_bill_and_against_its_window(protocol, factor):
    text = "word " * 1_000
    size, settings = round(1_000 * factor), {"counter": WordCounter(), "count_factor": factor}
    async with ScriptedUpstream(otherwise="ok " * 100, window=size + 100, **settings) as server:
        fits = await ask(server, protocol, text)
        refused = await ask(server, protocol, text + "word " * 200)

    usage = decode_reply(fits.content, server.requests[0].dialect).usage
    assert (usage.prompt, usage.output) == (size, round(100 * factor))
    assert (fits.status, refused.status) == (200, 400)
