from __future__ import annotations

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from refold.model.dialect import RESPONSES
from refold.model.tokens import Usage
from refold.testing import call, say, think
from refold.wire import decode_reply, decode_usage
from tests.testing.exchanges import ask

LONG = "A sentence that takes more than one event, with an emoji 🎉 and an ä."
EVENT = TypeAdapter(ResponseStreamEvent)
SEALED = {"include": ["reasoning.encrypted_content"], "store": False}


async def test_a_text_arrives_whole(server, gpt):
    server.answers.append(LONG)

    reply = await gpt.responses.create(model="gpt-5", input="hi")

    assert (reply.output_text, reply.status, reply.model) == (LONG, "completed", "gpt-5")
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens > 0


async def test_a_stream_is_put_together_by_the_client(server, gpt):
    server.script(otherwise=say(think("why so"), LONG, call("read", {"path": "a/long/path/to/a/file.py"})))

    async with gpt.responses.stream(model="m", input="hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    whole = await gpt.responses.create(model="m", input="hi")

    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == LONG
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[2].arguments == whole.output[2].arguments == '{"path":"a/long/path/to/a/file.py"}'
    assert final.output[0].summary[0].text == "why so"
    assert final.usage == whole.usage
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_order_of_events_is_the_providers(threaded, sync_gpt):
    threaded.answers.append("Hello.")

    kinds = [event.type for event in sync_gpt.responses.create(model="m", input="hi", stream=True)]

    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_calls_can_be_answered_with_the_whole_history(server, gpt):
    server.script(say(think("hm"), call("read", {"path": "a.py"})), "Done.")
    history = [{"role": "user", "content": "hi"}]

    reply = await gpt.responses.create(model="m", input=history, **SEALED)
    history += [item.model_dump(exclude_none=True) for item in reply.output]
    output = {"type": "function_call_output", "call_id": reply.output[1].call_id, "output": "ok"}
    second = await gpt.responses.create(model="m", input=[*history, output], **SEALED)

    assert reply.output[0].encrypted_content
    assert second.output_text == "Done."


async def test_a_response_can_be_gone_on_from(server, gpt):
    server.script(say(call("read")), "Done.", "Again.")

    first = await gpt.responses.create(model="m", input="hi there, you", instructions="Be brief.")
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "ok"}
    second = await gpt.responses.create(model="m", input=[output], previous_response_id=first.id)
    third = await gpt.responses.create(model="m", input="more", previous_response_id=second.id)

    assert (second.output_text, third.output_text) == ("Done.", "Again.")
    assert third.usage.input_tokens > second.usage.input_tokens > first.usage.input_tokens - 10
    with pytest.raises(Exception, match="'resp_99' not found"):
        await gpt.responses.create(model="m", input="hi", previous_response_id="resp_99")


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (say("cut o", finish="length"), "incomplete", "max_output_tokens"),
        (say("x", finish="filter"), "incomplete", "content_filter"),
        (say(), "completed", None),
    ],
)
async def test_replies_that_end_otherwise(server, gpt, answer, status, reason):
    server.script(otherwise=answer)

    reply = await gpt.responses.create(model="m", input="hi")
    events = [event async for event in await gpt.responses.create(model="m", input="hi", stream=True)]

    assert (reply.status, reply.incomplete_details and reply.incomplete_details.reason) == (status, reason)
    assert events[-1].type == f"response.{status}"


async def test_a_refusal_is_content_of_its_own_kind(server, gpt):
    server.script(otherwise=say("I won't.", finish="refusal"))

    reply = await gpt.responses.create(model="m", input="hi")
    events = [event async for event in await gpt.responses.create(model="m", input="hi", stream=True)]

    assert reply.output[0].content[0].refusal == "I won't."
    assert "".join(event.delta for event in events if event.type == "response.refusal.delta") == "I won't."


async def test_tokens_can_be_counted_without_a_reply(server, gpt):
    server.answers.append("ok")

    counted = await gpt.responses.input_tokens.count(model="m", input="hello there", instructions="Be brief.")
    reply = await gpt.responses.create(model="m", input="hello there", instructions="Be brief.")

    assert (counted.object, counted.input_tokens) == ("response.input_tokens", reply.usage.input_tokens)


ANSWERS = [
    say(think("why"), LONG, call("f", {"a": 1})),
    say(),
    say("no", finish="refusal"),
    say(think("only")),
]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_official_types_accept_every_byte_of_it(server, answer):
    server.script(otherwise=answer)

    whole = await ask(server, "responses")
    streamed = await ask(server, "responses", stream=True)

    Response.model_validate(whole.json)
    for event in streamed.events:
        EVENT.validate_python(event)
    usage = decode_reply(whole.content, RESPONSES).usage
    assert usage == decode_usage(streamed.events[-1]["response"]["usage"], RESPONSES)


async def test_the_usage_can_be_made_up(server, gpt):
    server.answers.append(say("ok", usage=Usage(100, 900, 0, 50, 20)))

    usage = (await gpt.responses.create(model="m", input="hi")).usage

    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (1_000, 900)
    assert usage.output_tokens_details.reasoning_tokens == 20
