"""`refold.wrap`, with the SDKs' own clients before the scripted provider."""

from __future__ import annotations

from contextlib import ExitStack

import anthropic
import openai
import pytest

import refold
from refold.testing import Refuse, ScriptedUpstream, echo, overflow, say
from tests.damage import damage

LONG = "All work and no play makes the harbour a dull place. " * 40


@pytest.fixture
def server():
    with ScriptedUpstream(otherwise=echo, window=4_096, strict=True) as running:
        yield running


@pytest.fixture
def kept():
    with refold.sync.Engine("memory:", window=4_096, max_output=200) as engine:
        yield engine


@pytest.fixture
def client(server, kept):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield refold.wrap(made, kept)


def user(text):
    return {"role": "user", "content": text}


def ask(client, messages, **more):
    reply = client.chat.completions.create(model="m", messages=messages, **more)
    messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return reply


def test_a_short_history_is_sent_as_it_is(client, server):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "No lists."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
    ]

    reply = client.chat.completions.create(model="m", messages=messages, temperature=0)

    assert reply.choices[0].message.content == "Hello."
    assert server.requests[0].json == {"model": "m", "messages": messages, "temperature": 0}


def test_a_long_history_fits_and_the_caller_s_list_is_not_changed(client, server, kept):
    messages = [user("The code word is MARIGOLD-58."), {"role": "assistant", "content": "Noted."}]
    for number in range(12):
        messages.append(user(f"{number}. {LONG}"))
        ask(client, messages)

    assert len(messages) == 26
    assert len(server.requests) == len(server.answered) == 12, "nothing was refused"
    assert len(server.requests[-1].messages) < 12
    assert "MARIGOLD-58" in client.refold.recall({"what": "code word"}, messages)
    assert [talk.messages for talk in kept.conversations()] == [25], (
        "one conversation; the last reply comes with the next call"
    )


def test_the_system_prompt_and_the_tools_of_each_call_are_sent(client, server):
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
    messages = [{"role": "system", "content": "Be brief."}, user("One.")]
    ask(client, messages)
    messages[0] = {"role": "system", "content": "Be long."}
    messages.append(user("Two."))
    ask(client, messages, tools=[tool])
    messages.append(user("Three."))
    ask(client, messages[1:])

    assert [one.system for one in server.requests] == ["Be brief.", "Be long.", ""]
    assert [len(one.request.tools) for one in server.requests] == [0, 1, 0]


def test_equal_openings_are_two_conversations_after_their_replies(client, server, kept):
    first, second = [user("Hello.")], [user("Hello.")]
    server.script("Good morning.", "Good evening.", otherwise=echo)
    for messages in (first, second):
        ask(client, messages)
    for messages in (first, second):
        messages.append(user("Who are you?"))
        ask(client, messages)

    assert len(kept.conversations()) == 2


def test_an_edited_history_goes_on_in_a_branch(client, server, kept):
    messages = [user("One.")]
    ask(client, messages, refold_conversation="edited")
    messages += [user("Two.")]
    ask(client, messages, refold_conversation="edited")
    changed = [*messages[:2], user("Zwei.")]
    ask(client, changed, refold_conversation="edited")

    assert [one.text for one in server.requests[-1].messages] == ["One.", "One.", "Zwei."]
    assert len(kept.conversations()) == 1
    assert "refold_conversation" not in server.requests[-1].json


def test_a_named_conversation_is_found_again_after_a_restart(server, tmp_path):
    url, messages = f"sqlite:///{tmp_path}/chats.db", []
    for question in ("The code word is MARIGOLD-58.", "What was it?"):
        with (
            refold.sync.Engine(url, window=4_096) as engine,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as plain,
        ):
            client = refold.wrap(plain, engine, conversation="harbour")
            for text in (question, "And now?"):
                messages.append(user(text))
                ask(client, messages)
            sizes = [talk.messages for talk in engine.conversations()]
            found = client.refold.recall({"what": "code word"})

    assert sizes == [7]
    assert "MARIGOLD-58" in found


@pytest.mark.parametrize("shared", [True, False], ids=["one engine", "an engine each"])
def test_two_clients_that_take_turns_are_one_conversation(shared, server, tmp_path):
    """Such as two agents of one program, or two programs. Each message is stored once."""
    url, messages = f"sqlite:///{tmp_path}/chats.db", []
    with ExitStack() as opened:
        engines = [opened.enter_context(refold.sync.Engine(url, window=4_096, max_output=200)) for _ in "ab"]
        clients = [
            refold.wrap(
                opened.enter_context(
                    openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
                ),
                engines[0 if shared else number],
                conversation="harbour",
            )
            for number in (0, 1)
        ]
        for number in range(12):
            messages.append(user(f"{number}. {LONG}"))
            ask(clients[number % 2], messages, max_tokens=100 + number % 2)
        (talk,) = engines[0].conversations()

    assert (talk.messages, talk.branches) == (len(messages) - 1, 1)
    assert len(server.requests) == len(server.answered) == 12


def test_a_refused_request_is_sent_again_smaller(client, server, kept):
    messages = [user("Hello.")]
    for number in range(3):
        messages += [user(f"{number}. {LONG}"), {"role": "assistant", "content": "Yes."}]
    messages.append(user("Go on."))
    server.script(overflow("openai", window=2_000, prompt=2_500), "Going on.")

    reply = client.chat.completions.create(model="m", messages=messages)

    assert reply.choices[0].message.content == "Going on."
    assert len(server.requests[1].body) < len(server.requests[0].body)


def test_other_errors_reach_the_caller(client, server):
    server.script(Refuse(401))

    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="m", messages=[user("Hello.")])


def test_a_stream_yields_the_same_events_and_its_usage_is_recorded(client, server, kept):
    stream = client.chat.completions.create(
        model="m",
        messages=[user("Hello.")],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Refold-Conversation": "boats"},
    )
    with stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    assert text == "Hello."
    assert "x-refold-conversation" not in server.requests[0].headers
    (call,) = kept.store.calls(kept.owner, "boats")
    assert call.usage.output > 0


def test_the_usage_of_a_stream_that_ends_after_the_next_call_is_not_that_of_the_next_window(client, kept):
    """Its figures would make the next window look smaller than it is, and the one after it too large."""
    named = {"model": "m", "refold_conversation": "harbour"}
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    late = client.chat.completions.create(messages=[user("Hello.")], **named, **counted)
    reply = client.chat.completions.create(messages=[user("Hello."), user(LONG)], **named)
    assert [*late][-1].usage.prompt_tokens < reply.usage.prompt_tokens

    (call,) = kept.store.calls(kept.owner, "harbour")
    assert call.usage.input == reply.usage.prompt_tokens


@pytest.mark.parametrize("how", ["events", "final"])
def test_the_usage_of_a_stream_of_responses_is_recorded(client, kept, how):
    named = {"X-Refold-Conversation": "boats"}
    with client.responses.stream(model="m", input=[user("Hello.")], extra_headers=named) as stream:
        reply = stream.get_final_response() if how == "final" else [*stream][-1].response

    (call,) = kept.store.calls(kept.owner, "boats")
    assert reply.usage is not None
    assert (call.usage.input, call.usage.output) == (reply.usage.input_tokens, reply.usage.output_tokens)


def test_a_history_at_the_provider_is_left_alone(client, server, kept):
    first = client.responses.create(model="m", input="Hello.")
    client.responses.create(model="m", input="And now?", previous_response_id=first.id)

    assert server.requests[1].json["input"] == "And now?"
    assert len(kept.conversations()) == 1


async def test_an_async_client_of_anthropic(server, kept):
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as plain:
        client, messages = refold.wrap(plain, kept), []
        for number in range(8):
            messages.append(user(f"{number}. {LONG}"))
            asked = {"model": "m", "max_tokens": 200, "system": "Be brief.", "messages": messages}
            if number % 2:
                reply = await client.messages.create(**asked)
            else:
                async with client.messages.stream(**asked) as stream:
                    reply = await stream.get_final_message()
            messages.append({"role": "assistant", "content": reply.content})

    assert len(server.requests) == len(server.answered) == 8, "nothing was refused"
    assert {one.system for one in server.requests} == {"Be brief."}
    (talk,) = kept.conversations()
    assert len(kept.store.calls(kept.owner, talk.id)) == 8


def test_what_is_no_client_is_named():
    with pytest.raises(refold.ConfigError, match="object is no client of OpenAI or Anthropic"):
        refold.wrap(object())


def test_a_client_is_wrapped_once(client):
    with pytest.raises(refold.ConfigError, match="wrapped already"):
        refold.wrap(client)


def test_an_async_engine_is_refused_with_a_hint(server):
    with (
        openai.OpenAI(base_url=server.url, api_key="any") as client,
        pytest.raises(refold.ConfigError, match=r"no engine of `refold\.sync`"),
    ):
        refold.wrap(client, refold.Engine("memory:"))


def test_without_an_engine_it_is_kept_in_memory(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as plain:
        client = refold.wrap(plain)
        server.script(say("Hi."))
        assert ask(client, [user("Hello.")]).choices[0].message.content == "Hi."
        client.refold.close()


def test_a_history_over_a_damaged_message_goes_on_with_the_caller_s_own(server, tmp_path):
    path = tmp_path / "chats.db"
    messages = [user("The code word is MARIGOLD-58.")]
    for _ in range(2):
        with (
            refold.sync.Engine(path, window=4_096, max_output=200) as engine,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made,
        ):
            client = refold.wrap(made, engine)
            ask(client, messages, extra_headers={"x-refold-conversation": "codes"})
            messages.append(user("And now?"))
        with refold.sync.Engine(path) as engine:
            (name,) = [one.id for one in engine.conversations()]
        damage(path, name, 0)
    assert server.requests[-1].json["messages"][0] == messages[0]
