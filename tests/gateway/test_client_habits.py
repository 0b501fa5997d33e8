"""Habits of clients in use: what they send beside the user's words, and what they send back."""

from __future__ import annotations

import asyncio
import json
import re
import time

import aiohttp
import pytest

from refold import Engine, NotFound
from refold.cli.main import run
from refold.gateway.marker import without_markers
from refold.integrations.mcp import ConversationTools
from refold.stores.url import open_store
from refold.testing import ScriptedUpstream, call, say
from tests.e2e.test_gateway_sdks import prose
from tests.gateway.conftest import ServedModel, served

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TYPED = "Port the ferry timetable to version 7."


async def get(gate: ServedModel, path: str):
    async with aiohttp.ClientSession() as session, session.get(f"{gate.url}{path}") as answer:
        return await answer.json()


async def post(gate: ServedModel, path: str, fields: object, **headers: str):
    status, told, body = await gate.post(path, json.dumps(fields).encode(), **headers)
    assert status == 200, body
    return told, json.loads(body)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(
            MESSAGES,
            {
                "max_tokens": 100,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "text",
                                "text": "<system-reminder>\nAvailable agent types: general\n</system-reminder>",
                            },
                            {"type": "text", "text": TYPED},
                        ],
                    }
                ],
            },
            id="claude code",
        ),
        pytest.param(
            RESPONSES,
            {
                "input": [
                    {
                        "role": "user",
                        "content": "<environment_context>\n  <cwd>/home/ada</cwd>\n</environment_context>",
                    },
                    {"role": "user", "content": TYPED},
                ]
            },
            id="codex",
        ),
        pytest.param(
            CHAT,
            {
                "messages": [
                    {"role": "user", "content": "Generate a title for this conversation:\n"},
                    {"role": "user", "content": TYPED},
                ]
            },
            id="opencode",
        ),
    ],
)
async def test_a_title_is_what_the_user_typed(gate, path, fields):
    await post(gate, path, {"model": "m", **fields}, x_refold_conversation="talk")

    assert [one["title"] for one in await get(gate, "/refold/conversations")] == [TYPED]


@pytest.mark.parametrize(
    "asked",
    [
        "Generate a title for this conversation:",
        "Please write a 5-10 word title for the following conversation:\n\nUser: Hello",
        "Provide a concise, 5-word-or-less title for the conversation, using title case.",
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.",
    ],
)
async def test_a_request_for_a_title_gives_none_and_the_conversation_gets_its_own_later(gate, asked):
    side = {"model": "m", "messages": [{"role": "user", "content": asked}]}
    main = {"model": "m", "messages": [{"role": "user", "content": TYPED}]}
    await post(gate, CHAT, side, x_refold_conversation="talk")
    await post(gate, CHAT, main, x_refold_conversation="talk")

    assert [one["title"] for one in await get(gate, "/refold/conversations")] == [TYPED]


async def test_a_user_who_asks_for_a_title_of_something_else_gets_that_as_the_title(gate):
    asked = "Write a title for the chat window of my application."
    await post(gate, CHAT, {"model": "m", "messages": [{"role": "user", "content": asked}]})

    assert [one["title"] for one in await get(gate, "/refold/conversations")] == [asked]


def talk(*texts: str):
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


async def test_a_websocket_is_refused_so_that_codex_goes_on_by_http(gate, caplog):
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{gate.url}{RESPONSES}", headers=headers) as answer,
    ):
        told = await answer.json()

    assert answer.status == 426
    assert "pip install" not in caplog.text  # the advice of the HTTP server would not help
    assert "WebSocket" in told["error"]["message"]
    assert not gate.upstream.requests


async def test_stats_over_http_are_those_of_the_command(upstream, tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    store = await open_store(url)
    async with served(upstream, store=store, window=4_000, summariser_enabled=False) as gate:
        history = []
        for turn in range(12):
            history += [{"role": "user", "content": f"Step {turn}. " + "The ferry leaves at noon. " * 80}]
            await post(gate, CHAT, {"model": "gpt-4o", "messages": history, "max_tokens": 50})
            history += [{"role": "assistant", "content": "Fine."}]
        found = await get(gate, "/refold/stats")
        latest = await get(gate, "/refold/stats?days=2")
        wrong = await get(gate, "/refold/stats?days=soon")
        owner = (await get(gate, "/refold/status"))["owner"]
    await store.close()
    capsys.readouterr()
    assert await asyncio.to_thread(run, ["stats", "--json", "--owner", owner]) == 0

    assert found == json.loads(capsys.readouterr().out)
    assert found["unsent"] > 0
    assert latest == {**found, "days": 2.0}
    assert wrong["error"]["code"] == "config_error"


async def test_a_conversation_that_is_switched_off_is_passed_on_until_it_is_on_again(gate):
    fields = {"model": "m", "messages": talk("One?", "Fine.", "Two?")}
    await post(gate, CHAT, {**fields, "messages": fields["messages"][:1]}, x_refold_conversation="ships")
    _, switched = await post(gate, "/refold/conversations/ships/off", {})
    assert switched == {"id": "ships", "off": True}

    told, _ = await post(gate, CHAT, fields, x_refold_conversation="ships")
    other, _ = await post(gate, CHAT, fields, x_refold_conversation="boats")
    assert (told["x-refold-action"], other["x-refold-action"]) == ("off", "passed")
    assert (await get(gate, "/refold/conversations/ships"))["messages"] == 1
    assert (await get(gate, "/refold/conversations/ships"))["off"] is True

    await post(gate, "/refold/conversations/ships/on", {})
    told, _ = await post(gate, CHAT, fields, x_refold_conversation="ships")
    assert told["x-refold-action"] == "passed"
    assert (await get(gate, "/refold/conversations/ships"))["messages"] == 3


async def test_a_header_switches_a_conversation_without_a_name_off(gate):
    await post(gate, CHAT, {"model": "m", "messages": talk("One?", "Fine.", "Two?")})
    longer = {"model": "m", "messages": talk("One?", "Fine.", "Two?", "Fine.", "Three?")}

    actions = []
    for wish in ("conversation-off", "on", "conversation-on", "on"):
        told, _ = await post(gate, CHAT, longer, x_refold=wish)
        actions.append(told["x-refold-action"])

    assert actions == ["off", "off", "passed", "passed"]
    status, _, body = await gate.post(CHAT, b"{}", x_refold="disabled")
    assert (status, b"conversation-off" in body, b"takes on (the default), off" in body) == (400, True, True)


@pytest.mark.parametrize("is_by_command", [True, False], ids=["refold off", "POST"])
async def test_a_chat_without_a_name_is_off_from_its_second_request_on(tmp_path, monkeypatch, is_by_command):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    store = await open_store(url)
    replies = [
        say(text) for text in ("At noon.", "Two.", "Three.", "At nine.", "Five.", "Six.", "Seven.", "8.")
    ]
    async with ScriptedUpstream(*replies) as upstream:
        async with served(upstream, store=store, window=8_000, summariser_enabled=False) as gate:
            await post(gate, CHAT, {"model": "m", "messages": talk("When?")})
            (one,) = await get(gate, "/refold/conversations")
            owner = (await get(gate, "/refold/status"))["owner"]
            if not is_by_command:
                await post(gate, f"/refold/conversations/{one['id']}/off", {})
                other = {"model": "m", "messages": talk("When?", "At nine.", "Where?")}
                told, _ = await post(gate, CHAT, other)
                assert told["x-refold-action"] == "passed"
        if is_by_command:
            assert await asyncio.to_thread(run, ["off", one["id"], "--owner", owner]) == 0
        async with served(upstream, store=store, window=8_000, summariser_enabled=False) as gate:
            actions = []
            for texts in (
                ("When?", "At  noon.\n", "Where?"),  # clients change the spaces of a reply
                ("When?", "At noon.", "Where?", "Two.", "Why?"),
                ("When?", "At nine.", "Where?"),  # another chat with the same opening
                ("When?", "At nine.", "Where?", "Five.", "Why?"),
                ("When?", "At noon.", "Where?", "Two.", "Why?", "Three.", "Who?"),
            ):
                told, _ = await post(gate, CHAT, {"model": "m", "messages": talk(*texts)})
                actions.append(told["x-refold-action"])
            sizes = {row["id"]: row["messages"] for row in await get(gate, "/refold/conversations")}
    await store.close()

    assert actions == ["off", "off", "passed", "passed", "off"]
    assert sizes.pop(one["id"]) == 1
    assert list(sizes.values()) == [5]


async def test_the_commands_agree_about_the_output_and_the_window_of_a_request(tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    store = await open_store(url)
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, window=4_000, summariser_enabled=False) as gate,
    ):
        asked = {"model": "m", "max_tokens": 580, "messages": talk("One?")}
        await post(gate, CHAT, asked, x_refold_conversation="a")
        owner = (await get(gate, "/refold/status"))["owner"]
        await store.close()

    async def told(*args: str):
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*args, "--owner", owner]) == 0
        return capsys.readouterr()

    sessions = json.loads((await told("sessions", "a", "--json")).out)
    context = json.loads((await told("context", "a", "--json")).out)
    (listed,) = json.loads((await told("conversations", "--json")).out)["conversations"]

    assert context["max_output"] == 580
    assert context["compress_at"]["arithmetic"] == sessions["arithmetic"]
    assert "output 580" in sessions["arithmetic"]
    assert "4,000 tokens (set by you)" in (await told("context", "a")).out
    assert "(window: set by you)" in (await told("show", "a")).err
    assert (listed["messages"], listed["reply_messages"]) == (1, 1)


async def test_show_and_export_count_the_newest_reply_and_name_other_branches(tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    store = await open_store(url)
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, window=8_000, summariser_enabled=False) as gate,
    ):
        for texts in (("One?",), ("One?", "Fine.", "Two?"), ("One?", "Fine.", "Three?")):
            await post(gate, CHAT, {"model": "m", "messages": talk(*texts)}, x_refold_conversation="a")
        owner = (await get(gate, "/refold/status"))["owner"]
        await store.close()

    async def told(*args: str):
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*args, "--owner", owner]) == 0
        return capsys.readouterr()

    shown, written, listed = await told("show", "a"), await told("export", "a"), await told("conversations")
    (other,) = re.findall(r"there is also ([0-9a-f-]+) \(3 messages\)", " ".join(shown.err.split()))

    assert "4 messages; " in shown.err
    assert "the last is the newest reply" in shown.err
    assert "4 messages of 'a', the last is the newest reply" in written.err
    assert (
        len(json.loads(written.out)["messages"] if written.out.startswith("{") else json.loads(written.out))
        == 4
    )
    assert re.search(r"^a +4 ", listed.out, re.MULTILINE)  # of the branch that was used last
    assert other in written.err
    assert "Two?" in (await told("show", "a", "--branch", other)).out


async def test_the_newest_reply_is_shown_exported_and_found_once(tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    store = await open_store(url)
    async with (
        ScriptedUpstream(say("At noon from pier nine.")) as upstream,
        served(upstream, store=store, window=8_000, summariser_enabled=False) as gate,
    ):
        asked = {"model": "gpt-4o", "messages": talk("When does the ferry leave?")}
        await post(gate, CHAT, asked, x_refold_conversation="ferry")
        owner = (await get(gate, "/refold/status"))["owner"]
        await store.close()

    async def told(*args: str):
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*args, "--owner", owner]) == 0
        return capsys.readouterr().out

    assert "At noon from pier nine." in await told("show", "ferry")
    shown = json.loads(await told("show", "ferry", "--json"))
    assert [one["message"]["content"] for one in shown["reply"]] == ["At noon from pier nine."]
    assert json.loads(await told("export", "ferry"))[-1]["content"] == "At noon from pier nine."
    found = json.loads(await told("search", "pier nine", "--json"))["found"]
    assert [(one["conversation"], one["handle"]) for one in found] == [("ferry", "#m1")]
    assert await told("recall", "ferry", "#m1") == "assistant\n  At noon from pier nine.\n"
    async with Engine(url, model="gpt-4o", owner=owner) as engine:
        assert (await engine.recall("ferry", "#m1"))["content"] == "At noon from pier nine."
        assert (await engine.recall("ferry", "#m1.1"))["content"] == "At noon from pier nine."
        with pytest.raises(NotFound, match="there is no message 2: the last is #m0"):
            await engine.recall("ferry", "#m2")
    tools = ConversationTools(Engine(url, model="gpt-4o", owner=owner).start)
    assert "At noon from pier nine." in await tools.recall("ferry", "#m1")
    await tools.close()


async def test_a_reply_that_a_repeated_request_replaced_is_shown_with_its_call(tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    store = await open_store(url)
    async with (
        ScriptedUpstream(say("At noon from pier nine."), say("At one.")) as upstream,
        served(upstream, store=store, window=8_000, summariser_enabled=False) as gate,
    ):
        for _ in range(2):
            asked = {"model": "gpt-4o", "messages": talk("When does the ferry leave?")}
            await post(gate, CHAT, asked, x_refold_conversation="ferry")
        owner = (await get(gate, "/refold/status"))["owner"]
        await store.close()

    async def told(*args: str):
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*args, "--owner", owner]) == 0
        return capsys.readouterr().out

    shown = await told("show", "ferry")
    assert "At one." in shown
    assert "pier nine" not in shown
    first, second = (
        await told("show", "ferry", "--as-sent", "1"),
        await told("show", "ferry", "--as-sent", "2"),
    )
    assert first.endswith("the reply\n  At noon from pier nine.\n\n")
    assert second.endswith("the reply\n  At one.\n\n")
    reply = json.loads(await told("show", "ferry", "--as-sent", "1", "--json"))["reply"]
    assert [one["content"] for one in reply] == ["At noon from pier nine."]


async def test_the_newest_reply_of_every_branch_is_found(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path / 'chats.db'}")
    replies = ("At noon from pier nine.", "It is a dirigible.", "By rail, from platform two.")
    async with (
        ScriptedUpstream(*(say(one) for one in replies)) as upstream,
        served(upstream, store=store, window=8_000, summariser_enabled=False) as gate,
    ):
        for asked in ("When does the ferry leave?", "What is that?", "And from there?"):
            await post(gate, CHAT, {"model": "m", "messages": talk(asked)}, x_refold_conversation="trip")
        engine = (await gate.gateway.host("local")).engine
        found = [await engine.search(words) for words in ("pier nine", "dirigible", "platform two")]
        await store.close()

    assert [[one.text for one in hits] for hits in found] == [[f"#m1 assistant: {one}"] for one in replies]
    assert len({hits[0].branch for hits in found}) == 3


async def test_a_message_of_two_branches_is_found_once(gate):
    for ending in ("Two?", "Three?"):
        await post(
            gate,
            CHAT,
            {"model": "m", "messages": talk("When does the zeppelin land?", "Fine.", ending)},
            x_refold_conversation="air",
        )
    engine = (await gate.gateway.host("local")).engine

    assert len(await engine.sessions("air")) == 2
    assert len(await engine.search("zeppelin")) == 1


CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a'}}
UNUSUAL = [
    pytest.param(
        CHAT,
        {"messages": [{"role": "assistant", "content": "Hello, how can I help?"}, *talk("When?")]},
        id="a greeting first",
    ),
    pytest.param(
        CHAT,
        {"messages": [*talk("When?", ""), *talk("When?")]},
        id="an empty reply",
    ),
    pytest.param(
        CHAT,
        {
            "messages": [
                *talk("Read it."),
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "It is broken JSON."},
            ]
        },
        id="malformed arguments",
    ),
    pytest.param(
        RESPONSES,
        {
            "input": [
                {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            ]
        },
        id="a call first",
    ),
    pytest.param(
        RESPONSES,
        {
            "input": [
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
                {"role": "user", "content": "When?"},
            ]
        },
        id="reasoning first",
    ),
    pytest.param(
        RESPONSES,
        {
            "input": [
                {"type": "compaction", "id": "cmp_1", "encrypted_content": "abc"},
                {"role": "user", "content": "When?"},
            ]
        },
        id="a compaction first",
    ),
    pytest.param(
        RESPONSES,
        {"input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "When?"}]},
        id="a reference first",
    ),
]


@pytest.mark.parametrize(("path", "fields"), UNUSUAL)
async def test_what_fits_and_is_not_refused_leaves_as_it_came(gate, path, fields):
    body = json.dumps({"model": "m", **fields}).encode()
    status, told, _ = await gate.post(path, body)

    assert (status, told["x-refold-action"]) == (200, "passed")
    assert gate.upstream.requests[-1].body == body


async def test_what_the_provider_would_refuse_is_set_right(gate):
    fields = {"max_tokens": 50, "messages": [{"role": "assistant", "content": "Hello."}, *talk("When?", "")]}
    fields["messages"] += talk("When?")
    await post(gate, MESSAGES, {"model": "m", **fields})

    roles = [one.role for one in gate.upstream.requests[-1].messages]
    assert roles == ["user", "assistant", "user", "user"]


@pytest.mark.parametrize("at", [1, 2])
async def test_a_server_that_refuses_more_gets_repaired_messages(at):
    fields = UNUSUAL[at].values[1]
    async with ScriptedUpstream(otherwise="Fine.", strict=True) as upstream, served(upstream) as gate:
        told, _ = await post(gate, CHAT, {"model": "m", **fields})
        again, _ = await post(
            gate, CHAT, {"model": "m", "messages": [*fields["messages"], *talk("And?", "Fine.")[::-1]]}
        )

    assert told["x-refold-action"] == "recovered"
    assert again["x-refold-action"] == "reduced"
    assert len(upstream.requests) == 3


QUESTION = "The ferry leaves at noon. " * 80
REPLIES = {
    CHAT: lambda fields: fields["choices"][0]["message"]["content"],
    RESPONSES: lambda fields: fields["output"][-1]["content"][0]["text"],
    MESSAGES: lambda fields: fields["content"][-1]["text"],
}


def request_of(path: str, history, **more: object):
    key = "input" if path == RESPONSES else "messages"
    output = "max_output_tokens" if path == RESPONSES else "max_tokens"
    return {"model": "m", output: 50, key: history, **more}


async def until_marked(gate: ServedModel, path: str, ask, turns: int = 20):
    """Ask until a reply has the marker; the history, which has the reply as the client got it, and the texts."""
    history, texts = [], []
    for turn in range(turns):
        history.append({"role": "user", "content": f"Step {turn}. {QUESTION}"})
        texts.append(await ask(history))
        history.append({"role": "assistant", "content": texts[-1]})
        if "[refold: " in texts[-1]:
            break
    return history, texts


@pytest.mark.parametrize("path", REPLIES)
async def test_a_marker_tells_of_a_compaction_once_and_never_comes_back_to_the_provider(upstream, path):
    async def ask(history):
        _, found = await post(gate, path, request_of(path, history))
        return REPLIES[path](found)

    flags = {"summariser_enabled": False, "notify_marker": True}
    async with served(upstream, window=4_000, **flags) as gate:
        history, texts = await until_marked(gate, path, ask)
        history.append({"role": "user", "content": "And then?"})
        told, found = await post(gate, path, request_of(path, history))
        sessions = await get(gate, "/refold/conversations")

    assert texts[:-1] == ["Fine."] * (len(texts) - 1)
    assert texts[-1].startswith("Fine.\n\n[refold: older messages are summarised; sent ")
    assert REPLIES[path](found) == "Fine."
    assert told["x-refold-action"] == "folded"
    assert not any(b"[refold: " in one.body for one in upstream.requests)
    assert [one["branches"] for one in sessions] == [1]


@pytest.mark.parametrize("path", REPLIES)
async def test_a_stream_has_the_marker_at_its_end(upstream, path):
    async def ask(history):
        if path == MESSAGES:
            stream = claude.messages.stream(model="m", max_tokens=50, messages=history)
            async with stream as events:
                pieces = [text async for text in events.text_stream]
                final = (await events.get_final_message()).content[-1].text
        elif path == RESPONSES:
            events = [
                event
                async for event in await client.responses.create(
                    model="m", max_output_tokens=50, stream=True, input=history
                )
            ]
            numbers[:] = [event.sequence_number for event in events]
            pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
            final = events[-1].response.output_text
        else:
            chunks = await client.chat.completions.create(
                model="m", max_tokens=50, stream=True, messages=history
            )
            pieces = [one.choices[0].delta.content or "" async for one in chunks if one.choices]
            final = "".join(pieces)
        assert "".join(pieces) == final
        assert numbers == [*range(len(numbers))]
        return final

    numbers = []
    flags = {"summariser_enabled": False, "notify_marker": True}
    async with (
        served(upstream, window=4_000, **flags) as gate,
        gate.openai() as client,
        gate.anthropic() as claude,
    ):
        history, texts = await until_marked(gate, path, ask)
        history.append({"role": "user", "content": "And then?"})
        assert await ask(history) == "Fine."

    assert texts[-1].startswith("Fine.\n\n[refold: older messages are summarised; sent ")
    assert not any(b"[refold: " in one.body for one in upstream.requests)


MARK = "[refold: older messages are summarised; sent 1,234 of 56,789 tokens]"
QUOTED = f"Refold writes `{MARK}` at the end, such as:\n\n    {MARK}\n\nThat is all."


@pytest.mark.parametrize(
    ("sent_back", "clean"),
    [
        pytest.param(f"Fine.\r\n\r\n{MARK}\r\n", "Fine.\r\n", id="CRLF"),
        pytest.param(f"Fine.\n{MARK}", "Fine.", id="one line break"),
        pytest.param(f"Fine.\n\n{MARK}\n\n{MARK}", "Fine.", id="doubled"),
        pytest.param(f"Fine.\n\n{MARK}{MARK} \n\n\n\n", "Fine. \n\n\n\n", id="doubled on a line"),
        pytest.param(f"Fine.\n\n{MARK}\n\nGood.\n\n{MARK}", "Fine.\n\nGood.", id="joined"),
        pytest.param(f"Fine.\n\n{MARK}Good.", "Fine.Good.", id="joined without a space"),
        pytest.param(f"{QUOTED}\n\n{MARK}", QUOTED, id="quoted, then marked"),
        pytest.param(QUOTED, QUOTED, id="quoted"),
        pytest.param(f"It ends with {MARK}", f"It ends with {MARK}", id="in a sentence"),
        pytest.param(MARK, None, id="nothing else"),
        pytest.param(f"\r\n{MARK}\n", None, id="nothing else but line breaks"),
    ],
)
@pytest.mark.parametrize("is_list", [False, True], ids=["string", "blocks"])
@pytest.mark.parametrize("path", REPLIES)
async def test_a_marker_is_removed_however_a_client_sends_it_back(gate, path, is_list, sent_back, clean):
    kind = "output_text" if path == RESPONSES else "text"

    def history(text: str | None):
        content = [{"type": kind, "text": text}] if is_list else text
        said = [{"role": "assistant", "content": content}] if text is not None else []
        return [{"role": "user", "content": MARK}, *said, {"role": "user", "content": "And then?"}]

    await post(gate, path, request_of(path, history(sent_back)))

    key = "input" if path == RESPONSES else "messages"
    *sent, last = json.loads(gate.upstream.requests[-1].body)[key]
    assert sent == history(clean)[:-1]
    assert "And then?" in json.dumps(last)  # Anthropic's has a cache breakpoint


@pytest.mark.parametrize("line", [f"\n\n{MARK}", f"\n\n{MARK}.", f"\n{MARK}\r\n", "\n\n[refold: older"])
def test_megabytes_of_markers_are_read_in_linear_time(line):
    said = {"role": "assistant", "content": "Fine." + line * (2_800_000 // len(line))}
    body = json.dumps({"messages": [said]}).encode()

    def seconds() -> float:
        start = time.process_time()
        without_markers(body, "messages")
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 1


async def test_a_reply_with_calls_or_in_a_given_format_has_no_marker():
    def answer(request):
        return say(call("read", {"path": "a"})) if b'"tools"' in request.body else say('{"ok": true}')

    async def ask(history):
        told = {"tools": TOOLS} if len(history) % 4 == 1 else {"response_format": {"type": "json_object"}}
        headers, found = await post(gate, CHAT, request_of(CHAT, history, **told))
        changed.append(headers.get("x-refold-changed"))
        return found["choices"][0]["message"]["content"] or "A call."

    changed = []
    flags = {"summariser_enabled": False, "notify_marker": True}
    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        served(upstream, window=4_000, **flags) as gate,
    ):
        _, texts = await until_marked(gate, CHAT, ask)

    assert "summarise" in changed
    assert len(texts) == 20
    assert set(texts) == {"A call.", '{"ok": true}'}


TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


async def fill(gate: ServedModel, history, turns: int, model: str, **headers: str):
    told = {}
    for turn in range(turns):
        history.append({"role": "user", "content": f"Step {turn}. {QUESTION}"})
        told, _ = await post(gate, CHAT, {"model": model, "max_tokens": 50, "messages": history}, **headers)
        history.append({"role": "assistant", "content": "Fine."})
    return told


async def test_a_fold_for_a_small_model_opens_again_after_three_calls_to_a_large_one():
    history, flags = [], {"summariser_enabled": False}
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, **flags) as gate,
    ):
        small = await fill(gate, history, 20, "gpt-4", x_refold_conversation="a")
        large = await fill(gate, history, 3, "gpt-4.1", x_refold_conversation="a")
        opened = await fill(gate, history, 1, "gpt-4.1", x_refold_conversation="a")
        body = upstream.requests[-1].body
        again = await fill(gate, history, 1, "gpt-4.1", x_refold_conversation="a")
        rows = await get(gate, "/refold/conversations/a/compactions")

    assert (small["x-refold-action"], large["x-refold-action"]) == ("folded", "folded")
    assert (opened["x-refold-action"], opened["x-refold-changed"]) == ("passed", "undo")
    assert json.loads(body)["messages"] == history[:-3]
    assert again["x-refold-action"] == "passed"
    assert "x-refold-changed" not in again
    assert {row["state"] for row in rows if row["kind"] == "summarise"} == {"undone"}


async def test_a_fold_that_was_asked_for_stays():
    history, flags = [], {"summariser_enabled": False}
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, **flags) as gate,
    ):
        await fill(gate, history, 20, "gpt-4.1", x_refold_conversation="a")
        await post(gate, "/refold/conversations/a/compact", {})
        told = await fill(gate, history, 5, "gpt-4.1", x_refold_conversation="a")

    assert told["x-refold-action"] == "folded"


async def test_a_fold_that_the_policy_would_make_again_stays():
    history = []
    flags = {"summariser_enabled": False, "compaction_preset": "picoclaw", "compaction_max_messages": 12}
    flags["compaction_allow_system_summary"] = True
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, **flags) as gate,
    ):
        told = await fill(gate, history, 20, "gpt-4.1", x_refold_conversation="a")

    assert told["x-refold-action"] == "folded"


async def test_a_call_without_reported_usage_is_estimated_and_marked(upstream, tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("REFOLD_STORE", url)
    monkeypatch.setenv("COLUMNS", "120")
    store = await open_store(url)
    fields = {"model": "gpt-4o", "messages": [{"role": "user", "content": QUESTION}]}
    async with served(upstream, store=store, window=8_000, summariser_enabled=False) as gate:
        status, _, body = await gate.post(CHAT, json.dumps({**fields, "stream": True}).encode())
        assert (status, b'"usage":{' in body) == (200, False)
        found = await get(gate, "/refold/stats")
        await post(gate, CHAT, fields)
        both = await get(gate, "/refold/stats")
    await store.close()

    (one,), (two,) = found["replies"], both["replies"]
    assert (one["calls"], one["estimated"], two["calls"], two["estimated"]) == (1, 1, 2, 1)
    assert one["dollars"] > 0
    assert abs(two["usage"]["input"] - 2 * one["usage"]["input"]) <= 0.2 * two["usage"]["input"]
    capsys.readouterr()
    name = (await asyncio.to_thread(listed, capsys))["conversations"][0]["id"]
    assert await asyncio.to_thread(run, ["show", name, "--calls"]) == 0
    told = capsys.readouterr()
    assert "~" in told.out.splitlines()[1]
    assert "~" not in told.out.splitlines()[2]
    assert "estimated" in told.err
    for command, row in ((["sessions", name], 1), (["stats"], 1)):
        assert await asyncio.to_thread(run, command) == 0
        told = capsys.readouterr()
        assert re.search(r" ~0\.\d\d\b", told.out.splitlines()[row])
        assert re.search(r"^~ .*\bestimated\b", told.err, re.MULTILINE)


def listed(capsys):
    assert run(["conversations", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


OWN_SUMMARY = "\n".join(
    [
        "## Goal",
        "Port the ferry timetable to version 7.",
        "## Instructions",
        "- Never touch the ledger file harbour/ledger.csv.",
        "- Every time is written in UTC, as a whole number of seconds.",
        "## Accomplished",
        *(
            f"- Pier {pier}: the boats of line {pier * 3} leave at {600 + pier} and were moved."
            for pier in range(9)
        ),
        "## Relevant files",
        "- src/timetable/convert.py has the converter; tests/test_piers.py covers it.",
    ]
)
CLAUDE = "This session is being continued from a previous conversation that ran out of context. The conversation is summarized below:\n"
CODEX = (
    "Another language model started to solve this problem and produced a summary of its thinking process. "
    "Use this to build on the work that has already been done. Here is the summary:\n"
)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(talk("What did we do so far?", OWN_SUMMARY), id="opencode"),
        pytest.param(talk(CLAUDE + OWN_SUMMARY, "I go on."), id="claude code"),
        pytest.param([*talk("Port it."), *talk(CODEX + OWN_SUMMARY, "I go on.")], id="codex"),
    ],
)
async def test_a_summary_of_the_clients_own_is_kept_whole_by_every_fold(history):
    history = [*history]
    async with (
        ScriptedUpstream(otherwise="Fine.", window=8_000) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        for turn in range(40):
            history.append({"role": "user", "content": f"Step {turn}. {prose(turn, 150)}"})
            fields = {"model": "m", "max_tokens": 50, "messages": history}
            told, _ = await post(gate, CHAT, fields, x_refold_conversation="a")
            history.append({"role": "assistant", "content": f"Done: {prose(turn + 100, 150)}"})
        rows = await get(gate, "/refold/conversations/a/compactions")

    body = json.loads(upstream.requests[-1].body)
    sent = " ".join(" ".join(one["content"].split()) for one in body["messages"])
    assert told["x-refold-action"] == "folded"
    assert sum(row["kind"] == "summarise" for row in rows) >= 2
    missing = [line for line in OWN_SUMMARY.splitlines() if line.lstrip("#- ") not in sent]
    assert missing == []


async def test_a_conversation_that_is_not_known_is_not_switched_without_a_name(gate):
    asked = {"model": "m", "messages": talk("One?")}

    status, _, body = await gate.post(CHAT, json.dumps(asked).encode(), x_refold="conversation-off")

    assert (status, b"X-Refold-Conversation" in body) == (400, True)
    told, _ = await post(gate, CHAT, asked, x_refold="conversation-off", x_refold_conversation="ships")
    assert told["x-refold-action"] == "off"
