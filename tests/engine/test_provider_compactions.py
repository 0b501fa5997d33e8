"""A provider's own compaction: it stays byte for byte and first, summaries stand behind it, and elsewhere words take its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold import Engine
from refold.model.errors import DoesNotFit, RecoverySpent
from refold.model.message import UNREADABLE
from refold.sync import Conversation
from refold.testing import Body, ScriptedUpstream
from refold.upstreams import Provider, open_upstream
from tests.test_system_messages import PRESETS, refusal

ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABm" + "Qx7-" * 300 + "=="}
TEXT = "The user wants the build of harbour-7 fixed. The port is 48213. " * 10
BLOCK = {"type": "compaction", "content": TEXT}
FAILED = {"type": "compaction", "content": None}


def words(number: int) -> str:
    return " ".join(f"step {number * 60 + at} of the work is done" for at in range(40))


def called(number: int, name: str, *blocks: dict) -> list[dict]:
    """A reply that calls a tool, and its result."""
    if name == "responses":
        call = {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"}
        return [
            *blocks,
            call,
            {"type": "function_call_output", "call_id": f"c{number}", "output": words(number)},
        ]
    call = {"type": "tool_use", "id": f"c{number}", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": words(number)}
    return [{"role": "assistant", "content": [*blocks, call]}, {"role": "user", "content": [result]}]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def open_talk(name: str, preset: str = "refold", window: int = 8_000) -> Conversation:
    return Conversation("m", format=name, preset=preset, window=window, max_output=500)


def key(name: str) -> str:
    return "input" if name == "responses" else "messages"


def compactions(fields: dict, name: str) -> list[tuple[int, dict]]:
    """Where compactions stand in what leaves, and what they are."""
    if name == "responses":
        return [(at, item) for at, item in enumerate(fields["input"]) if item.get("type") == "compaction"]
    return [
        (at, block)
        for at, message in enumerate(fields["messages"])
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "compaction"
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_an_item_of_responses_stays_and_comes_first(preset):
    talk = open_talk("responses", preset)
    talk.add(user("Fix the build."), ITEM, user("go on"))
    for number in range(30):
        fields = talk.context()
        assert refusal(fields, "responses") == ""
        assert [item for _, item in compactions(fields, "responses")] == [ITEM]
        talk.add(*called(number, "responses"), {"role": "assistant", "content": words(number)}, user("go on"))
    assert compactions(talk.context(), "responses") == [(0, ITEM)]
    assert len(talk.context()["input"]) < 100


@pytest.mark.parametrize("preset", PRESETS)
def test_a_block_of_anthropics_stays_first_and_the_summary_stands_behind_the_results_of_its_calls(preset):
    talk = open_talk("anthropic", preset)
    talk.add(user("Fix the build."), *called(0, "anthropic", BLOCK))
    for number in range(1, 30):
        fields = talk.context()
        assert refusal(fields) == ""
        assert [block for _, block in compactions(fields, "anthropic")] == [BLOCK]
        talk.add(*called(number, "anthropic"))
    fields = talk.context()
    assert compactions(fields, "anthropic") == [(1, BLOCK)]
    results = fields["messages"][2]["content"]
    assert [block["type"] for block in results][:1] == ["tool_result"]
    if talk.state.frame.policy.placement == "user":
        assert [block["type"] for block in results] == ["tool_result", "text"]
        assert talk.state.folded.summaries[-1].text[:80] in results[1]["text"]


def test_without_calls_the_summary_is_a_message_of_its_own():
    talk = open_talk("anthropic")
    talk.add(
        user("Fix the build."),
        {"role": "assistant", "content": [BLOCK, {"type": "text", "text": "Yes."}]},
        user("go on"),
    )
    for number in range(1, 30):
        talk.add(*called(number, "anthropic"))
    fields = talk.context()
    assert compactions(fields, "anthropic") == [(1, BLOCK)]
    assert [message["role"] for message in fields["messages"][:3]] == ["user", "assistant", "user"]
    assert "[End of the earlier messages]" in str(fields["messages"][2])


def test_a_history_that_begins_with_one_leaves_as_it_came():
    talk = open_talk("anthropic")
    history = [{"role": "assistant", "content": [BLOCK]}, user("go on")]
    talk.add(*history)
    assert [message["role"] for message in talk.context()["messages"]] == ["assistant", "user"]
    talk = open_talk("responses")
    talk.add(ITEM, user("go on"))
    assert talk.context()["input"][0] == ITEM
    assert len(talk.context()["input"]) == 2


def test_what_stood_before_it_is_folded_and_what_the_user_said_there_is_kept():
    talk = open_talk("responses")
    talk.add(
        user("The code word is ZEBRA-41. Never touch the file it.toml."),
        *called(90, "responses"),
        ITEM,
        user("go on"),
    )
    for number in range(30):
        talk.add(*called(number, "responses"))
    fields = talk.context()
    assert compactions(fields, "responses") == [(0, ITEM)]
    assert "ZEBRA-41" in str(fields["input"][1])
    assert "c90" not in str(fields["input"])


def test_the_newest_counts_and_an_older_one_is_history():
    talk = open_talk("anthropic")
    older = {"type": "compaction", "content": "Older words, with the number 77231."}
    talk.add(user("Fix the build."), *called(0, "anthropic", older), *called(1, "anthropic", BLOCK))
    for number in range(2, 30):
        talk.add(*called(number, "anthropic"))
    assert compactions(talk.context(), "anthropic") == [(1, BLOCK)]


def test_a_newer_one_takes_the_place_of_one_that_was_first():
    talk = open_talk("responses")
    talk.add(user("Fix the build."), ITEM, user("go on"))
    for number in range(30):
        talk.add(*called(number, "responses"))
    talk.context()
    newer = {**ITEM, "id": "cmp_2", "encrypted_content": "gAAAAAnew" * 50}
    talk.add(newer, user("and on"))
    for number in range(30, 60):
        talk.add(*called(number, "responses"))
    assert compactions(talk.context(), "responses") == [(0, newer)]


def test_one_that_failed_is_nothing_special():
    talk = open_talk("anthropic")
    talk.add(user("Fix the build."), *called(0, "anthropic", FAILED))
    for number in range(1, 30):
        talk.add(*called(number, "anthropic"))
    assert compactions(talk.context(), "anthropic") == []


@pytest.mark.parametrize("preset", PRESETS)
def test_recovery_undo_and_a_system_message_leave_it_where_it_is(preset):
    talk = open_talk("anthropic", preset)
    talk.add(
        user("Fix the build."), *called(0, "anthropic", BLOCK), {"role": "system", "content": "Be brief."}
    )
    for number in range(1, 20):
        talk.add(*called(number, "anthropic"))
        talk.context()
    size = talk.state.folded.tokens
    told = f"prompt is too long: {size} tokens > {size * 2 // 3} maximum"
    smaller = talk.recover({"error": {"type": "invalid_request_error", "message": told}})
    assert refusal(smaller) == ""
    assert compactions(smaller, "anthropic") == [(1, BLOCK)]
    while talk.undo():
        pass
    talk.add(*called(20, "anthropic"))
    again = talk.context()
    assert refusal(again) == ""
    assert [block for _, block in compactions(again, "anthropic")] == [BLOCK]


def test_it_is_counted():
    talk = open_talk("responses", window=32_000)
    talk.add(user("hi"))
    before = talk.state.folded.tokens
    talk.add(ITEM)
    assert talk.state.folded.tokens - before > len(ITEM["encrypted_content"]) * 3 // 16


steps = st.lists(st.sampled_from(["call", "call", "say", "ask", "compaction"]), min_size=5, max_size=25)


@given(
    st.sampled_from(PRESETS),
    st.sampled_from(["responses", "anthropic"]),
    st.sampled_from([3_000, 8_000]),
    steps,
)
def test_wherever_it_stands_the_newest_leaves_as_it_came(preset, name, window, script):
    talk, newest = open_talk(name, preset, window), None
    talk.add(user("Fix the build."))
    for number, step in enumerate(script):
        made = {**(ITEM if name == "responses" else BLOCK)}
        made["id" if name == "responses" else "content"] = f"made {number}"
        match step:
            case "call":
                talk.add(*called(number, name))
            case "say":
                talk.add({"role": "assistant", "content": words(number)}, user("go on"))
            case "ask":
                talk.add(user(words(number)))
            case "compaction":
                talk.add(*called(number, name, made))
                newest = made
        try:
            fields = talk.context()
        except (DoesNotFit, RecoverySpent):
            continue
        assert refusal(fields, name) == ""
        left = [block for _, block in compactions(fields, name)]
        assert left[-1:] == ([newest] if newest else [])


@pytest.mark.parametrize(
    ("name", "made", "said"), [("anthropic", BLOCK, TEXT.strip()), ("responses", ITEM, UNREADABLE)]
)
async def test_another_format_gets_its_text_or_a_line(name, made, said):
    talk = refold.Conversation("m", format=name, window=32_000)
    await talk.add(user("Fix the build."), *called(0, name, made))
    async with ScriptedUpstream("Fine.") as upstream:
        chat = Provider("scripted", base_url=f"{upstream.url}/v1", model="other", format="chat")
        async with open_upstream(chat) as other:
            await talk.ask(other)
    await talk.add(user("And now?"))
    fields = await talk.context()
    assert refusal(fields, name) == ""
    assert "Fine." in json.dumps(fields)  # the reply has joined the conversation in its own format
    (received,) = upstream.requests
    assert said in received.messages[1].text
    assert b"encrypted_content" not in received.body


@pytest.mark.parametrize(
    ("name", "made", "words_of"), [("anthropic", BLOCK, "48213"), ("responses", ITEM, UNREADABLE)]
)
async def test_another_model_of_a_stored_conversation_gets_words_and_its_own_gets_it_back(
    name, made, words_of
):
    async with Engine("memory:", embedder=None, format=name, window=8_000, max_output=500) as engine:
        talk = await engine.conversation("talk", model="one")
        await talk.add(user("Fix the build."), *called(0, name, made))
        assert compactions(await talk.context(), name)[0][1] == made

        other = await engine.conversation("talk", model="two")
        fields = await other.context()
        assert compactions(fields, name) == []
        assert words_of in json.dumps(fields)
        for number in range(1, 25):
            await other.add(*called(number, name))
        fields = await other.context()
        assert compactions(fields, name) == []
        assert refusal(fields, name) == ""

        again = await engine.conversation("talk", model="one")
        fields = await again.context()
        assert refusal(fields, name) == ""
        assert compactions(fields, name) == [(name == "anthropic", made)]


async def test_a_session_that_comes_back_by_its_summary_brings_it_along():
    chosen = {"model": "m", "format": "responses", "window": 8_000, "max_output": 500}
    async with Engine("memory:", embedder=None, **chosen) as engine:
        talk = await engine.conversation("talk")
        await talk.add(user("Fix the build."), ITEM, user("go on"))
        number = 0
        while (await talk.status()).tokens < 6_200:
            await talk.add(*called(number, "responses"))
            number += 1
        await talk.add({"role": "assistant", "content": "Done."})
        await talk.start_session()
        await talk.add(user("something else"))
        assert compactions(await talk.context(), "responses") == []
        closed = next(one for one in await engine.sessions("talk") if one.last is not None)
        assert (await talk.resume(closed)).carries == "summary"
        await talk.add(user("where were we?"))
        assert compactions(await talk.context(), "responses") == [(0, ITEM)]


async def test_another_model_is_told_what_was_folded_behind_a_sealed_one():
    chosen = {"format": "responses", "window": 8_000, "max_output": 500}
    async with Engine("memory:", embedder=None, **chosen) as engine:
        talk = await engine.conversation("talk", model="one")
        first = called(90, "responses")
        first[1]["output"] = "The port of the harbour is 48213."
        await talk.add(user("Fix the build."), *first, ITEM, user("go on"))
        for number in range(30):
            await talk.add(*called(number, "responses"))
        own = await talk.context()
        assert compactions(own, "responses") == [(0, ITEM)]
        assert "48213" not in json.dumps(own)

        other = await (await engine.conversation("talk", model="two")).context()
        assert compactions(other, "responses") == []
        assert "48213" in json.dumps(other)
        assert refusal(other, "responses") == ""


async def test_the_model_that_was_asked_is_the_maker_of_what_it_replies():
    """A block of a reply to `ask` goes back whole, and is not taken for that of whoever opens the conversation next."""
    block = {**BLOCK, "encrypted_content": "ErQC" * 50}
    reply = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "one",
        "content": [block, {"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 900, "output_tokens": 90},
    }
    async with (
        await Engine("memory:", embedder=None, format="anthropic", window=32_000).start() as engine,
        ScriptedUpstream(Body.of(200, reply)) as upstream,
    ):
        talk = await engine.conversation("talk", model="one")
        await talk.add(user("Fix the build."))
        provider = Provider("scripted", base_url=upstream.url, model="one", format="anthropic")
        async with open_upstream(provider) as opened:
            await talk.ask(opened)
        await talk.add(user("go on"))
        other = await engine.conversation("talk", model="two")
        assert compactions(await other.context(), "anthropic") == []
        assert "48213" in json.dumps(await other.context())
        assert compactions(await talk.context(), "anthropic") == [(1, block)]


@pytest.mark.parametrize("name", ["responses", "anthropic"])
@pytest.mark.parametrize("preset", PRESETS)
def test_one_that_is_larger_than_the_window_is_not_dropped(preset, name):
    large = {**ITEM, "encrypted_content": "Qx7-" * 20_000} if name == "responses" else {**BLOCK}
    if name == "anthropic":
        large["content"] = TEXT * 100
    talk = open_talk(name, preset)
    talk.add(user("Fix the build."), *called(0, name, large))
    with pytest.raises(DoesNotFit):
        talk.context()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_call_beside_it_may_wait_for_its_result(preset):
    talk = open_talk("anthropic", preset)
    talk.add(user("Fix the build."))
    for number in range(20):
        talk.add(*called(number, "anthropic"))
    waiting, result = called(20, "anthropic", BLOCK)
    talk.add(waiting)
    talk.add(result)
    for number in range(21, 40):
        waiting, result = called(number, "anthropic")
        talk.add(waiting)
        talk.add(result)
        fields = talk.context()
        assert refusal(fields) == ""
        assert [block for _, block in compactions(fields, "anthropic")] == [BLOCK]
    assert compactions(fields, "anthropic") == [(1, BLOCK)]


async def test_a_fork_for_another_model_gets_words_for_every_one_of_them():
    older = {**ITEM, "id": "cmp_0", "encrypted_content": "gAAAAAold" * 50}
    chosen = {"format": "responses", "window": 32_000}
    async with Engine("memory:", embedder=None, **chosen) as engine:
        talk = await engine.conversation("talk", model="one")
        await talk.add(user("Fix the build."), older, user("go on"), ITEM, user("and on"))
        fork = await engine.fork("talk", 4)
        other = await engine.conversation("talk", branch=fork, model="two")
        await other.add(user("something else"))
        assert compactions(await other.context(), "responses") == []
        own = await engine.conversation("talk", branch=fork, model="one")
        assert [item for _, item in compactions(await own.context(), "responses")] == [older, ITEM]
