"""The recall tool that the gateway offers and runs: the client sees one ordinary reply, and its history stays valid."""

from __future__ import annotations

import asyncio
import json
import re

import anthropic
import msgspec
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import refold
from refold.core.assemble import RECALL
from refold.gateway import recall_rounds
from refold.gateway.admin import Admin
from refold.gateway.auth import Rules
from refold.gateway.exchange import UpstreamAnswer
from refold.gateway.recall_rounds import MOST_ROUNDS, SECOND_NAME, TOO_OFTEN
from refold.gateway.server import build
from refold.plugins.registry import Plugins, use
from refold.ports.records import read_reply
from refold.stores.url import open_store
from refold.testing import Broken, Received, Refuse, Say, ScriptedUpstream, Slow, call, say, think
from tests.bad_queries import BAD_QUERIES
from tests.gateway.conftest import served, target_for
from tests.gateway.recall_clients import CLIENTS, MODEL, WIRES, ResponsesClient, recalled_texts
from tests.plugins.plugin_setup import plugin, using

BOAT = "The night boat from Vik leaves at 02:30 from pier 7."
ON = {"compaction_recall_tool": True, "summariser_enabled": False}
LOOKS = call("recall", {"what": "night boat Vik"})


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request):
    return request.param


@pytest.fixture
def _no_plugins_afterwards():
    yield
    use(Plugins())


def bare(received):
    return [message.bare() for message in received.messages]


def tool_names(received):
    return [tool.name for tool in received.request.tools]


@pytest.mark.parametrize("wire", WIRES)
async def test_the_client_sees_one_reply_and_its_next_request_has_the_hidden_messages(wire, stream):
    async with ScriptedUpstream(binds_thinking=True, strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream)
        thought = (think("I have to look."),) if wire == "anthropic" else ()
        again = (think("Here it is."),) if wire == "anthropic" else ()
        provider.script(
            "Noted.",
            say(*thought, "Let me see.", LOOKS),
            say(*again, "It leaves at 02:30."),
            "You are welcome.",
        )
        await client.ask(BOAT)
        text, calls = await client.ask("When does it leave?")
        assert text == "Let me see.\n\nIt leaves at 02:30." if wire != "responses" else "02:30" in text
        assert calls == []
        assert b"recall" not in msgspec.json.encode(client.history)

        follow_up = provider.requests[-1]
        assert "02:30 from pier 7" in recalled_texts(follow_up)[0]
        await client.ask("Thank you.")
        sent = provider.requests[-1]
        assert bare(sent)[: len(bare(follow_up))] == bare(follow_up)
        assert all(tool_names(one) == [RECALL] for one in provider.requests)
        (listed,) = await gate.store.conversations("local")
        assert listed.branches == 1
        assert listed.messages == len(sent.messages)


@pytest.mark.parametrize("wire", WIRES)
async def test_the_usage_of_all_rounds_is_summed_and_every_round_has_a_receipt(wire, stream):
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream)
        provider.script("Noted.", say("See.", LOOKS), say(LOOKS), "At 02:30.")
        await client.ask(BOAT)
        await client.ask("When?")
        (listed,) = await gate.store.conversations("local")
        calls = await gate.store.calls("local", listed.id)
        assert len(calls) == 4
        used = client.usage
        read, written = (
            (used.prompt_tokens, used.completion_tokens)
            if wire == "chat"
            else (used.input_tokens, used.output_tokens)
        )
        if wire == "anthropic":
            read += used.cache_read_input_tokens + used.cache_creation_input_tokens
        assert read == sum(one.usage.prompt for one in calls[1:])
        assert written == sum(one.usage.output for one in calls[1:])
        assert all(b"recall_tool" in one.receipt for one in calls)


@pytest.mark.parametrize("wire", WIRES)
async def test_recalls_beside_the_clients_calls_stay_hidden_and_come_back_with_its_results(wire, stream):
    async with ScriptedUpstream(binds_thinking=True, strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream, tools=("look",))
        thought = (think("Both."),) if wire == "anthropic" else ()
        provider.script(
            "Noted.",
            say("First.", LOOKS),
            say(*thought, "Then.", LOOKS, call("look", {"path": "a"}), call("recall", {"what": "#m0"})),
            "Done.",
            "Bye.",
        )
        await client.ask(BOAT)
        _, calls = await client.ask("Look both up.")
        assert [one.name for one in calls] == ["look"]
        assert b"recall" not in msgspec.json.encode(client.history)
        text, _ = await client.answer({calls[0].id: "the file a"})
        assert text == "Done."
        sent = provider.requests[-1]
        results = recalled_texts(sent)
        assert len(results) == 4
        assert sum("02:30" in one for one in results) == 3
        assert "the file a" in results
        await client.ask("Thanks.")
        assert bare(provider.requests[-1])[: len(bare(sent))] == bare(sent)
        (listed,) = await gate.store.conversations("local")
        assert listed.branches == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_is_read_to_its_end_before_its_first_event_is_passed_on_has_one_follow_up(
    wire, monkeypatch
):
    real = UpstreamAnswer.read

    async def read_all_in_single_events(self):
        while await real(self):
            pass
        events = re.findall(rb".*?\n\n|.+", b"".join(self.held), re.DOTALL)
        self.held[:] = events
        return sum(map(len, events))

    monkeypatch.setattr(UpstreamAnswer, "read", read_all_in_single_events)
    async with ScriptedUpstream(strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=True)
        rounds = [say(f"Round {at}.", LOOKS) for at in range(MOST_ROUNDS)]
        provider.script("Noted.", *rounds, "It leaves at 02:30.", "Welcome.")
        await client.ask(BOAT)
        text, calls = await client.ask("When?")
        assert not calls
        assert text.endswith("It leaves at 02:30.")
        assert len(provider.requests) == 2 + MOST_ROUNDS
        follow_up = provider.requests[-1]
        await client.ask("Thank you.")
        assert bare(provider.requests[-1])[: len(bare(follow_up))] == bare(follow_up)


@pytest.mark.parametrize("wire", WIRES)
async def test_after_three_rounds_the_model_has_to_answer_in_words(wire, stream):
    async with ScriptedUpstream(strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream)
        rounds = [say(f"Round {at}.", LOOKS) for at in range(MOST_ROUNDS + 1)]
        provider.script("Noted.", *rounds, "Sorry.", "Well.")
        await client.ask(BOAT)
        text, calls = await client.ask("When?")
        assert not calls
        assert all(f"Round {at}." in text for at in range(MOST_ROUNDS + 1))
        assert text.endswith("Sorry.")
        assert len(provider.requests) == 3 + MOST_ROUNDS
        *earlier, third, last = [json.loads(one.body) for one in provider.requests]
        assert not any("tool_choice" in one for one in (*earlier, third))
        assert last["tool_choice"] == ({"type": "none"} if wire == "anthropic" else "none")
        assert last["tools"] == third["tools"]
        await client.ask("And?")
        assert recalled_texts(provider.requests[-3])[-1].endswith("go on without the tool]")
        results = [
            part.text
            for one in provider.requests[-1].messages
            for result in one.results
            for part in result.parts
        ]
        assert results[-1] == TOO_OFTEN


@pytest.mark.feature("N14")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_never_stops_recalling_gives_an_answer_or_an_error(wire, stream):
    def answers_if_it_must(received: Received) -> Say:
        return say("At 02:30.") if b"tool_choice" in received.body else say(LOOKS)

    async with ScriptedUpstream(strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream)
        provider.script("Noted.", otherwise=answers_if_it_must)
        await client.ask(BOAT)
        assert await client.ask("When?") == ("At 02:30.", [])
        provider.script(otherwise=say(LOOKS))
        with pytest.raises((openai.APIError, anthropic.APIError), match="although it was told not to"):
            await client.ask("And when is low water?")


@pytest.mark.parametrize("wire", WIRES)
async def test_a_restarted_gateway_finds_the_hidden_messages_and_a_deleted_conversation_has_none(
    wire, tmp_path
):
    url = f"sqlite:///{tmp_path}/chats.db"
    async with ScriptedUpstream() as provider:
        store = await open_store(url)
        async with served(provider, store=store, **ON) as gate:
            client = CLIENTS[wire](gate, stream=True)
            provider.script("Noted.", say("See.", LOOKS), "At 02:30.", otherwise="Well.")
            await client.ask(BOAT)
            await client.ask("When?")
            history = client.history
        await store.close()
        store = await open_store(url)
        async with served(provider, store=store, id_prefix="new", **ON) as gate:
            client = CLIENTS[wire](gate, stream=False)
            client.history = history
            await client.ask("Thanks.")
            assert any(one.results for one in provider.requests[-1].messages)
            (listed,) = await store.conversations("local")
            assert listed.branches == 1
            await store.delete("local", listed.id)
            await client.ask("Again.")
            assert not any(one.results for one in provider.requests[-1].messages)
        await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_notes_of_hidden_recalls_are_deleted_with_their_conversation(kind, tmp_path):
    store = await open_store("memory:" if kind == "memory" else f"sqlite:///{tmp_path}/chats.db")
    noted, learn = [], store.learn

    async def spy(owner, topic, key, value, at):
        noted.append((owner, topic, key))
        await learn(owner, topic, key, value, at)

    store.learn = spy
    async with ScriptedUpstream() as provider, served(provider, store=store, **ON) as gate:
        for boat in (BOAT, "The morning boat leaves at 06:10 from pier 2."):
            client = CLIENTS["chat"](gate, stream=False)
            provider.script("Noted.", say("See.", LOOKS), "So.")
            await client.ask(boat)
            await client.ask("When?")
        recalls = [one for one in noted if one[1].startswith("recall_")]
        assert len(recalls) == 2
        gone, other = recalls
        await store.delete("local", gone[2].partition(" ")[2])
        assert await store.learnt(*gone) is None
        assert await store.learnt(*other) is not None
    await store.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_tool_of_the_client_with_the_same_name_keeps_its_name_and_its_calls(wire, stream):
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream, tools=(RECALL,))
        provider.script("Noted.", say(LOOKS), say(call(SECOND_NAME, {"what": "#m0"})), "Done.")
        await client.ask(BOAT)
        _, calls = await client.ask("Use your own.")
        assert tool_names(provider.requests[-1]) == [RECALL, SECOND_NAME]
        assert [one.name for one in calls] == [RECALL]
        text, calls = await client.answer({calls[0].id: "own result"})
        assert (text, calls) == ("Done.", [])


async def test_nothing_is_offered_where_the_client_has_our_tool_or_the_reply_cannot_go_on():
    async with ScriptedUpstream(otherwise="Fine.") as provider, served(provider, **ON) as gate:
        hi = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        mcp = {"type": "function", "function": {"name": "mcp__refold__recall", "parameters": {}}}
        for fields in ({"tools": [refold.recall_tool("chat")]}, {"tools": [mcp]}, {"n": 2}):
            _, told, _ = await gate.post("/v1/chat/completions", msgspec.json.encode({**hi, **fields}))
            assert provider.requests[-1].json == {**hi, **fields}
            assert "x-refold-added" not in told
        _, told, _ = await gate.post("/v1/chat/completions", msgspec.json.encode(hi))
        assert told["x-refold-added"] == "tools"


async def test_a_call_that_a_client_writes_itself_is_not_run():
    async with ScriptedUpstream(otherwise="Fine.") as provider, served(provider, **ON) as gate:
        secret = {"model": MODEL, "messages": [{"role": "user", "content": "The pass phrase is plum-42."}]}
        await gate.post("/v1/chat/completions", msgspec.json.encode(secret), x_refold_conversation="hers")
        asked = {
            "id": "x",
            "type": "function",
            "function": {"name": "recall", "arguments": '{"what": "#m0"}'},
        }
        messages = [
            {"role": "user", "content": "Run it."},
            {"role": "assistant", "content": None, "tool_calls": [asked]},
        ]
        body = {"model": MODEL, "messages": messages}
        _, _, answer = await gate.post(
            "/v1/chat/completions", msgspec.json.encode(body), x_refold_conversation="his"
        )
        assert b"plum-42" not in answer
        assert b"plum-42" not in provider.requests[-1].body


async def test_a_handle_or_words_of_another_conversation_bring_nothing_back():
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        hers = CLIENTS["chat"](gate, stream=False, extra_headers={"x-refold-conversation": "hers"})
        his = CLIENTS["chat"](gate, stream=False, extra_headers={"x-refold-conversation": "his"})
        provider.script("Noted.", "Yes.", "Noted.", otherwise="Fine.")
        await hers.ask("The pass phrase is plum-42.")
        await hers.ask("Do you have it?")
        looks = [call("recall", {"what": what}) for what in ("#m2", "pass phrase plum", "hers #m0", "#s0")]
        provider.script(say(*looks), "Nothing.")
        await his.ask("Find the phrase.")
        results = recalled_texts(provider.requests[-1])
        assert len(results) == 4
        assert "plum-42" not in "".join(results)
        assert all(one.startswith(("error", "Found")) for one in results)


@pytest.mark.parametrize("words", BAD_QUERIES, ids=range(len(BAD_QUERIES)))
async def test_whatever_a_model_searches_for_gives_results_or_a_clear_word(words):
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        client = CLIENTS["chat"](gate, stream=False)
        provider.script("Noted.", say(call("recall", json.dumps({"what": words}))), "Done.")
        await client.ask("When does the ferry leave?")
        assert (await client.ask("Look for it."))[0].endswith("Done.")
        (result,) = recalled_texts(provider.requests[-1])
        assert result.startswith(("Found", "error: ")) or "#m0" in result
        assert "internal" not in result


async def test_a_sensitive_message_is_not_returned_to_a_model():
    async with (
        ScriptedUpstream() as provider,
        served(provider, compaction_sensitive=["plum-[0-9]+"], **ON) as gate,
    ):
        client = CLIENTS["chat"](gate, stream=False)
        provider.script(
            "Noted.", say(call("recall", {"what": "#m0"}), call("recall", {"what": "pass phrase"})), "No."
        )
        await client.ask("The pass phrase is plum-42.")
        await client.ask("Say it.")
        assert not any("plum-42" in one for one in recalled_texts(provider.requests[-1]))


async def test_a_chain_of_stored_responses_goes_on_from_any_id_that_the_client_has_seen():
    async with ScriptedUpstream(strict=True) as provider, served(provider, **ON) as gate:
        client = ResponsesClient(gate, stream=True, tools=("look",))
        provider.script("Noted.", say("See.", LOOKS), say("So.", LOOKS, call("look")), "Done.", "Well.")
        await client.ask(BOAT)
        first = client.last
        client.history, client.fields["previous_response_id"] = [], first
        _, calls = await client.ask("When?")
        client.history, client.fields["previous_response_id"] = [], client.last
        text, _ = await client.answer({calls[0].id: "file"})
        assert text == "Done."
        sent = provider.requests[-1]
        assert sent.json["previous_response_id"] == "resp_3"
        assert [item["type"] for item in sent.json["input"]] == ["function_call_output"] * 2
        # The id of the first event names the first round: the gateway goes on from the last one.
        client.fields["previous_response_id"] = "resp_2"
        client.history = []
        text, _ = await client.answer({calls[0].id: "file"})
        assert text == "Well."
        assert provider.requests[-1].json["previous_response_id"] == "resp_3"
        assert all("recall" in tool_names(one) for one in provider.requests)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", [Refuse(500), Broken(say("It leaves", " at 02:30 from pier 7."), 2)])
async def test_a_follow_up_that_fails_is_an_error_and_no_reply(wire, stream, fault):
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream)
        provider.script("Noted.", say("See.", LOOKS), fault)
        await client.ask(BOAT)
        with pytest.raises(Exception, match=r"(?i)answered|ended|error|broke|peer") as raised:
            await client.ask("When?")
        assert not isinstance(raised.value, AssertionError)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_without_a_recall_passes_byte_for_byte(wire, stream):
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}[wire]
    key = "input" if wire == "responses" else "messages"
    body = {"model": MODEL, key: [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": 99}
    answers = []
    for on in (False, True):
        async with (
            ScriptedUpstream(say("One.", call("look"))) as provider,
            served(provider, summariser_enabled=False, compaction_recall_tool=on) as gate,
        ):
            provider._provider.biller.minimum = 10**9
            _, _, answer = await gate.post(path, msgspec.json.encode(body))
            answers.append(answer)
    usage = rb'(?:"(?:input|prompt|total)_tokens":)\d+'
    assert re.sub(usage, b"", answers[0]) == re.sub(usage, b"", answers[1])


async def test_without_the_setting_the_model_has_no_tool_and_its_call_is_the_clients(gate):
    gate.upstream.script(say(LOOKS))
    client = CLIENTS["chat"](gate, stream=False)
    _, calls = await client.ask(BOAT)
    assert [one.name for one in calls] == ["recall"]
    assert not gate.upstream.requests[0].request.tools


@pytest.mark.parametrize("was_on", [True, False])
async def test_what_a_fold_says_about_recall_is_kept_with_it(tmp_path, was_on):
    store = await open_store(f"sqlite:///{tmp_path}/chats.db")
    async with ScriptedUpstream(otherwise="Fine.") as provider:
        settings = {"window": 3_000, "summariser_enabled": False, "store": store}
        async with served(provider, compaction_recall_tool=was_on, **settings) as gate:
            client = CLIENTS["chat"](gate, stream=False)
            for turn in range(12):
                await client.ask(f"{turn} {'tide and wind ' * 110}")
            lead = provider.requests[-1].messages[0].text
            assert "Earlier messages" in lead
            assert ("recall opens a handle" in lead) == was_on
        async with served(provider, compaction_recall_tool=not was_on, id_prefix="new", **settings) as gate:
            client.gate = gate
            await client.ask("And now?")
            assert provider.requests[-1].messages[0].text == lead
    await store.close()


async def test_the_marker_stands_at_the_end_of_the_joined_reply():
    async with (
        ScriptedUpstream() as provider,
        served(provider, window=3_000, notify_marker=True, **ON) as gate,
    ):
        client = CLIENTS["chat"](gate, stream=True)
        provider.script(*["Noted."] * 9, otherwise="Fine.")
        for turn in range(9):
            await client.ask(f"{turn} {'tide and wind ' * 150}")
            if "[refold:" in client.history[-1]["content"]:
                break
        assert "[refold:" in client.history[-1]["content"]
        provider.script(say("See.", LOOKS), "At 02:30.", "Bye.")
        await client.ask("When?")
        await client.ask("Thanks.")
        assert b"[refold:" not in provider.requests[-1].body


async def test_a_reply_is_stored_with_the_results_of_its_recalls():
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        client = CLIENTS["chat"](gate, stream=False, tools=("look",))
        provider.script(say(LOOKS, call("look")))
        await client.ask(BOAT)
        (listed,) = await gate.store.conversations("local")
        (one,) = await gate.store.calls("local", listed.id)
        stored = await gate.store.reply_to("local", one.id)
        assert len(read_reply(stored) or ()) == 1
        assert b'"recalled"' in stored


async def test_text_reaches_the_client_before_the_follow_up_is_answered():
    has_text = asyncio.Event()

    async def follow_up(_):
        await has_text.wait()
        return say("At 02:30.")

    async with (
        ScriptedUpstream("Noted.", say("See.", LOOKS), follow_up) as provider,
        served(provider, **ON) as gate,
    ):
        client = CLIENTS["chat"](gate, stream=False)
        await client.ask(BOAT)
        messages = [*client.history, {"role": "user", "content": "When?"}]
        async with gate.openai() as sdk:
            said = ""
            async for chunk in await sdk.chat.completions.create(model=MODEL, messages=messages, stream=True):
                said += chunk.choices[0].delta.content or "" if chunk.choices else ""
                if said == "See.":
                    has_text.set()
        assert said == "See.\n\nAt 02:30."


async def test_a_history_in_another_format_gets_no_messages_of_this_one():
    async with ScriptedUpstream(otherwise="Fine.", strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS["responses"](gate, stream=False)
        provider.script("Noted.", say("See.", LOOKS), "At 02:30.", otherwise="Fine.")
        await client.ask(BOAT)
        await client.ask("When?")
        other = CLIENTS["anthropic"](gate, stream=False)
        said = [{"type": "text", "text": text} for text in ("See.", "At 02:30.")]
        other.history = [
            {"role": "user", "content": BOAT},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "content": "When?"},
            {"role": "assistant", "content": said},
        ]
        text, _ = await other.ask("Thanks.")
        assert text == "Fine."
        assert not any(one.results for one in provider.requests[-1].messages)


async def test_a_client_s_cache_marks_stay_and_thinking_that_it_leaves_out_is_left_out():
    async with ScriptedUpstream(otherwise="Fine.", strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS["anthropic"](gate, stream=False)
        provider.script(
            "Noted.", say(think("Hm."), "See.", LOOKS), say(think("Ah."), "At 02:30."), otherwise="Fine."
        )
        await client.ask(BOAT)
        await client.ask("When?")
        mark = {"cache_control": {"type": "ephemeral"}}
        client.history[-1]["content"][-1] |= mark
        await client.ask("Thanks.")
        sent = provider.requests[-1].json["messages"]
        assert b"thinking" in msgspec.json.encode(sent)
        assert [block for one in sent[:-1] for block in one["content"] if "cache_control" in block] == [
            {"type": "text", "text": "At 02:30.", **mark}
        ] or "cache_control" in sent[5]["content"][-1]
        client.history[3]["content"] = [
            block for block in client.history[3]["content"] if block["type"] != "thinking"
        ]
        await client.ask("Bye.")
        sent = provider.requests[-1].json["messages"]
        assert b'"thinking"' not in msgspec.json.encode(sent)
        assert any(block["type"] == "tool_result" for block in sent[4]["content"])


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]], ids=["plain", "encrypted"])
async def test_reasoning_that_is_not_stored_goes_back_only_if_it_is_encrypted(include):
    async with ScriptedUpstream(otherwise="Fine.", strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS["responses"](gate, stream=True, store=False, include=include)
        provider.script("Noted.", say(think("Hm."), "See.", LOOKS), "At 02:30.", otherwise="Fine.")
        await client.ask(BOAT)
        await client.ask("When?")
        kinds = [item.get("type") for item in provider.requests[-1].json["input"]]
        assert kinds.count("reasoning") == len(include)
        if not include:
            client.history = [item for item in client.history if item.get("type") != "reasoning"]
        await client.ask("Thanks.")
        kinds = [item.get("type") for item in provider.requests[-1].json["input"]]
        assert kinds.count("reasoning") == len(include)
        assert kinds.count("function_call_output") == 1


async def test_the_follow_up_goes_to_the_upstream_that_answered():
    async with (
        ScriptedUpstream(otherwise=Refuse(503)) as busy,
        ScriptedUpstream("Noted.", say("See.", LOOKS), "At 02:30.") as second,
    ):
        targets = [target_for(busy, name="busy", fallback=("second",)), target_for(second, name="second")]
        async with served(busy, targets=targets, **ON) as gate:
            client = CLIENTS["chat"](gate, stream=False)
            await client.ask(BOAT)
            text, _ = await client.ask("When?")
            assert text == "See.\n\nAt 02:30."
            assert len(busy.requests) == 2
            (listed,) = await gate.store.conversations("local")
            assert {one.upstream for one in await gate.store.calls("local", listed.id)} == {"second"}


@pytest.mark.usefixtures("_no_plugins_afterwards")
async def test_a_follow_up_has_the_owner_and_the_headers_of_its_first_call(stream):
    owners = []
    using(plugin(on_request=lambda request: owners.append(request.owner)))
    async with ScriptedUpstream() as provider, served(provider, **ON) as gate:
        provider.script(say("See.", LOOKS), "At 02:30.")
        body = {"model": MODEL, "messages": [{"role": "user", "content": BOAT}], "stream": stream}
        _, told, _ = await gate.post(
            "/v1/chat/completions",
            msgspec.json.encode(body),
            x_refold_conversation="n" * 999,
            x_refold_colour="red",
        )
        assert len(provider.requests) == 2
        assert owners == ["local"] * 2
        assert told["x-refold-name"].startswith("replaced")
        assert told["x-refold-ignored"].startswith("x-refold-colour")


SCHEMA = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
LOOK = {"type": "function", "name": "look"}


@pytest.mark.parametrize(
    ("wire", "fields"),
    [
        ("chat", {"tool_choice": "required"}),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ("chat", {"response_format": {"type": "json_object"}}),
        ("responses", {"tool_choice": "required"}),
        ("responses", {"tool_choice": LOOK}),
        ("responses", {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [LOOK]}}),
        ("responses", {"text": {"format": SCHEMA}}),
        ("anthropic", {"tool_choice": {"type": "any"}}),
        ("anthropic", {"tool_choice": {"type": "tool", "name": "look"}}),
    ],
)
async def test_nothing_is_offered_if_a_tool_or_the_format_of_the_reply_is_prescribed(wire, fields, stream):
    async with ScriptedUpstream(otherwise="Fine.") as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=stream, tools=("look",), **fields)
        await client.ask(BOAT)
        assert tool_names(provider.requests[-1]) == ["look"]


@pytest.mark.parametrize(
    ("wire", "fields"),
    [
        ("chat", {"tool_choice": "auto", "response_format": {"type": "text"}}),
        ("responses", {"tool_choice": "none", "text": {"format": {"type": "text"}}}),
        ("anthropic", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
async def test_the_tool_is_offered_if_the_model_is_free_to_answer_in_words(wire, fields):
    async with ScriptedUpstream(otherwise="Fine.") as provider, served(provider, **ON) as gate:
        await CLIENTS[wire](gate, stream=False, tools=("look",), **fields).ask(BOAT)
        assert tool_names(provider.requests[-1]) == ["look", RECALL]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_request_without_the_tool_goes_on_before_the_recalls_and_the_next_one_after_them(wire):
    must = {"type": "any"} if wire == "anthropic" else "required"
    async with ScriptedUpstream(strict=True) as provider, served(provider, **ON) as gate:
        client = CLIENTS[wire](gate, stream=False, tools=("look",))
        provider.script("Noted.", say("See.", LOOKS), "At 02:30.", say(call("look")), "Fine.")
        await client.ask(BOAT)
        await client.ask("When?")
        client.fields["tool_choice"] = must
        _, calls = await client.ask("Look.")
        assert not any(one.results for one in provider.requests[-1].messages)
        del client.fields["tool_choice"]
        await client.answer({calls[0].id: "the file a"})
        assert len([one for one in provider.requests[-1].messages if one.results]) == 2
        (listed,) = await gate.store.conversations("local")
        assert listed.branches > 1


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}


async def cut_off(gate, wire, body, is_time=lambda _: False):
    """What a client has got of an answer that ends by itself or that the gateway cuts off as soon as `is_time`."""
    app, got, inbox = build(gate.gateway, Admin(gate.gateway, "test"), Rules()), bytearray(), asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": msgspec.json.encode(body), "more_body": False})

    async def send(message):
        got.extend(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "POST",
        "path": PATHS[wire],
        "raw_path": PATHS[wire].encode(),
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            *([(b"anthropic-version", b"2023-06-01")] if wire == "anthropic" else []),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    task = asyncio.create_task(app(scope, inbox.get, send))
    async with asyncio.timeout(20):
        while not is_time(bytes(got)) and not task.done():
            await asyncio.wait({task}, timeout=0.01)
        task.cancel()
        await asyncio.wait({task})
    return bytes(got)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("at", ["stream", "recall", "follow-up", "second stream"])
async def test_a_stream_that_a_stopping_gateway_cuts_off_ends_with_an_error_event(wire, at, monkeypatch):
    is_recalling = False

    async def never(*_, **__):
        nonlocal is_recalling
        is_recalling = True
        await asyncio.Event().wait()

    if at == "recall":
        monkeypatch.setattr(recall_rounds, "answer_recall", never)
    slow = Slow(say("See", " what", " there", " is", " now."), between_s=0.7)
    script = {
        "stream": [slow],
        "recall": [say("See.", LOOKS)],
        "follow-up": [say("One.", LOOKS), Slow("Two.", before_s=30)],
        "second stream": [say("One.", LOOKS), slow],
    }[at]
    key = "input" if wire == "responses" else "messages"
    body = {"model": MODEL, key: [{"role": "user", "content": BOAT}], "stream": True, "max_tokens": 99}
    async with ScriptedUpstream(*script) as provider, served(provider, **ON) as gate:

        def is_time(got):
            if at == "follow-up":
                return len(provider.requests) == 2
            return is_recalling if at == "recall" else b"See" in got

        got = await cut_off(gate, wire, body, is_time)
        events = got.split(b"\n\n")
        assert events[-1] == b""
        assert b"being stopped" in events[-2]
        assert sum(b"being stopped" in event for event in events) == 1
        (listed,) = await gate.store.conversations("local")
        assert len(await gate.store.calls("local", listed.id)) == len(provider.requests)


@pytest.mark.usefixtures("_no_plugins_afterwards")
@pytest.mark.parametrize("reply", [say("See.", LOOKS), say("No."), say(LOOKS, call("look"))])
async def test_a_reply_that_a_filter_refuses_is_stored(reply, stream):
    using(plugin(on_response=lambda _: "no"))
    async with ScriptedUpstream(reply) as provider, served(provider, **ON) as gate:
        body = {"model": MODEL, "messages": [{"role": "user", "content": BOAT}], "stream": stream}
        _, _, answer = await gate.post(PATHS["chat"], msgspec.json.encode(body))
        assert b"refused by the plugin" in answer
        assert len(provider.requests) == 1
        (listed,) = await gate.store.conversations("local")
        (one,) = await gate.store.calls("local", listed.id)
        assert one.usage.output
        assert read_reply(await gate.store.reply_to("local", one.id))


async def test_a_reply_is_stored_if_the_client_leaves_while_its_recall_is_answered(stream, monkeypatch):
    is_recalling, is_over = asyncio.Event(), asyncio.Event()

    async def never(*_, **__):
        is_recalling.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()

    monkeypatch.setattr(recall_rounds, "answer_recall", never)
    async with ScriptedUpstream(say("See.", LOOKS)) as provider, served(provider, **ON) as gate:
        body = {"model": MODEL, "messages": [{"role": "user", "content": BOAT}], "stream": stream}
        task = asyncio.create_task(gate.post(PATHS["chat"], msgspec.json.encode(body)))
        async with asyncio.timeout(20):
            await is_recalling.wait()
            task.cancel()
            await is_over.wait()
            (listed,) = await gate.store.conversations("local")
            while not (calls := await gate.store.calls("local", listed.id)):  # noqa: ASYNC110  # the store tells nobody
                await asyncio.sleep(0.01)
        assert calls[0].usage.output


async def test_a_stream_that_ends_within_an_event_gets_an_error_event_that_can_be_read():
    async def ends_early(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        delta = {"index": 0, "delta": {"role": "assistant", "content": "See."}, "finish_reason": None}
        event = b"data: " + msgspec.json.encode({"id": "a", "model": MODEL, "choices": [delta]})
        await response.write(event + b"\n\n" + event[:40])
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", ends_early)
    async with ScriptedUpstream() as provider, TestServer(app) as server:
        target = target_for(provider, url=str(server.make_url("")).rstrip("/"))
        async with served(provider, targets=[target], **ON) as gate:
            body = {"model": MODEL, "messages": [{"role": "user", "content": BOAT}], "stream": True}
            first, error, rest = (await cut_off(gate, "chat", body)).split(b"\n\n")
            assert b"See." in first
            assert (
                "ended the stream" in msgspec.json.decode(error.removeprefix(b"data: "))["error"]["message"]
            )
            assert rest == b""


async def test_equal_histories_in_two_formats_get_their_own_hidden_messages_back():
    async with ScriptedUpstream(strict=True) as provider, served(provider, **ON) as gate:
        clients = {wire: CLIENTS[wire](gate, stream=False) for wire in WIRES}
        for client in clients.values():
            provider.script("Noted.", say(LOOKS), "At 02:30.")
            await client.ask(BOAT)
            await client.ask("When?")
        for client in clients.values():
            provider.script("Fine.")
            text, _ = await client.ask("Thanks.")
            assert text == "Fine."
            results = [one for one in provider.requests[-1].messages if one.results]
            assert len(results) == 1


async def test_a_large_reply_that_breaks_off_is_the_fault_of_the_upstream():
    async def breaks_off(request):
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = 9_000_000
        await response.prepare(request)
        await response.write(b'{"choices": [{"message": {"content": "' + b"tide " * 500_000)
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", breaks_off)
    async with ScriptedUpstream() as provider, TestServer(app) as server:
        target = target_for(provider, url=str(server.make_url("")).rstrip("/"))
        async with served(provider, targets=[target], **ON) as gate:
            body = {"model": MODEL, "messages": [{"role": "user", "content": BOAT}]}
            status, _, answer = await gate.post(PATHS["chat"], msgspec.json.encode(body))
            assert (status, b"broke the connection" in answer) == (502, True)
