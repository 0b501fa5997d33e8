"""The scripted provider compacts on request as Anthropic and OpenAI do, and refuses what they refuse."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from refold.testing import ScriptedUpstream

BETA = "compact-2026-09-04"
HISTORY: Any = [
    {"role": "user", "content": "Name the entities."},
    {"role": "assistant", "content": "Recipe, Ingredient, Step."},
]
GO_ON: Any = {"role": "user", "content": "Go on."}
SUMMARIZE: Any = {"type": "summarize"}


def claude(server: ScriptedUpstream) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)


def gpt(server: ScriptedUpstream) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


async def told_by(sdk: anthropic.AsyncAnthropic, messages: Any = HISTORY, **more: Any) -> Any:
    fields = {"model": "m", "max_tokens": 500, "betas": [BETA], **more}
    return await sdk.beta.messages.create(messages=messages, **fields)


async def refusal_of(call: Any) -> str:
    with pytest.raises((anthropic.BadRequestError, openai.BadRequestError)) as caught:
        await call
    return str(caught.value)


async def test_anthropic_answers_with_one_signed_block_that_is_taken_back():
    async with (
        ScriptedUpstream(otherwise="Fine.", compaction="They are designing recipes.") as server,
        claude(server) as sdk,
    ):
        made = await told_by(sdk, compaction=SUMMARIZE)
        async with sdk.beta.messages.stream(
            model="m", max_tokens=500, betas=[BETA], messages=HISTORY, compaction=SUMMARIZE
        ) as events:
            streamed = await events.get_final_message()
        block = made.content[0].to_dict()
        reply = await told_by(sdk, [{"role": "assistant", "content": [block]}, GO_ON])
    assert (made.stop_reason, len(made.content)) == ("compaction", 1)
    assert streamed.content[0].to_dict() == block
    assert made.usage.input_tokens == 0
    assert made.usage.iterations[0].input_tokens > 0
    assert reply.content[0].text == "Fine."


async def test_anthropic_refuses_a_block_that_was_changed_or_stands_elsewhere():
    async with ScriptedUpstream(otherwise="Fine.") as server, claude(server) as sdk:
        block = (await told_by(sdk, compaction=SUMMARIZE)).content[0].to_dict()

        def first(**changed: Any) -> Any:
            return [{"role": "assistant", "content": [{**block, **changed}]}, GO_ON]

        assert "compaction_content_mismatch" in await refusal_of(told_by(sdk, first(content="Else.")))
        assert "compaction_signature_invalid" in await refusal_of(told_by(sdk, first(signature="no")))
        assert "Extra inputs" in await refusal_of(told_by(sdk, first(citations=None)))
        assert "compaction_block_misplaced" in await refusal_of(told_by(sdk, [GO_ON, *first()]))
        assert "at most one" in await refusal_of(told_by(sdk, [first()[0], *first()]))
        assert "Input tag 'compaction'" in await refusal_of(told_by(sdk, first(), betas=[]))


async def test_anthropic_refuses_a_wish_that_it_cannot_fulfil():
    open_call: Any = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
    }
    managed: Any = {"edits": [{"type": "compact_20260112"}]}
    async with ScriptedUpstream(otherwise="Fine.") as server, claude(server) as sdk:
        wish = {"compaction": SUMMARIZE}
        assert "requires anthropic-beta" in await refusal_of(told_by(sdk, betas=[], **wish))
        assert "context_management" in await refusal_of(told_by(sdk, context_management=managed, **wish))
        assert "stop_sequences" in await refusal_of(told_by(sdk, stop_sequences=["x"], **wish))
        assert "tool_choice" in await refusal_of(told_by(sdk, tool_choice={"type": "any"}, **wish))
        assert "tool_use" in await refusal_of(told_by(sdk, [GO_ON, open_call], **wish))


async def test_openai_answers_with_the_users_messages_and_one_sealed_item():
    async with ScriptedUpstream(otherwise="Fine.") as server, gpt(server) as sdk:
        made = await sdk.responses.compact(model="m", input=HISTORY)
        items: Any = [one.to_dict(warnings=False) for one in made.output]
        reply = await sdk.responses.create(model="m", input=[*items, GO_ON])
        triggered = await sdk.responses.create(model="m", input=[*HISTORY, {"type": "compaction_trigger"}])
        changed = json.loads(json.dumps(items).replace("cmp1.", "cmp1.x"))
        altered = await refusal_of(sdk.responses.create(model="m", input=[*changed, GO_ON]))
        elsewhere = await refusal_of(sdk.responses.create(model="other", input=[*items, GO_ON]))
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'store'"):
            await sdk.responses.compact(model="m", input=HISTORY, extra_body={"store": False})
    assert [one.type for one in made.output] == ["message", "compaction"]
    assert reply.output_text == "Fine."
    assert [one.type for one in triggered.output] == ["compaction"]
    assert "could not be verified" in altered
    assert "could not be verified" in elsewhere


async def test_a_provider_without_compactions_refuses_them():
    async with (
        ScriptedUpstream(otherwise="Fine.", compaction=None) as server,
        gpt(server) as one,
        claude(server) as other,
    ):
        with pytest.raises(openai.NotFoundError):
            await one.responses.compact(model="m", input=HISTORY)
        assert "Extra inputs" in await refusal_of(told_by(other, compaction=SUMMARIZE))
