"""The features of the preset `lis`, through the doors that users have."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

import refold
from refold.cli.main import run
from refold.engine.events import text_of
from refold.sync import Conversation, Engine
from refold.testing import ScriptedUpstream, sign
from refold.tokens import FittedCounter, counter_for
from refold.upstreams import Provider, open_upstream
from tests.features.folds import Run, Writer
from tests.formats import answer, anthropic_call, anthropic_result, chat_call, chat_result, question
from tests.gateway.conftest import served

LONG = "a line of a long listing, number {0}\n"


def output(words, number=0):
    return LONG.format(number) * (words // 10)


def look(name, text):
    """A question that a tool answers."""
    return [question(f"What does {name} say?"), chat_call(name), chat_result(name, text), answer("I see.")]


def results(messages):
    return [one["content"] for one in messages if one["role"] == "tool"]


def sent_by(talk):
    """The results of the next request; the question is taken back by an answer."""
    talk.add(question("And?"))
    found = results(talk.context()["messages"])
    talk.add(answer("Well."))
    return found


@pytest.mark.feature("L7", "N2")
def test_a_pruned_result_is_the_name_of_its_tool_with_the_handle_of_the_original():
    talk = Conversation("gpt-4o", preset="lis", window=100_000)
    whole = output(9_000)
    talk.add(*look("read_log", whole), *look("ls", "a.py"))
    assert sent_by(talk) == ["read_log #m2", "a.py"]
    assert talk.recall("#m2")["content"] == whole


@pytest.mark.feature("L7")
def test_a_result_that_is_the_name_of_its_tool_hides_no_other_from_pruning():
    talk = Conversation("gpt-4o", preset="lis", window=100_000)
    talk.add(*look("read_log", output(9_000)), *look("done", "done"), *look("read_more", output(9_000)))
    assert sent_by(talk) == ["read_log #m2", "done", "read_more #m10"]


@pytest.mark.feature("L7")
def test_later_output_is_pruned_again_and_the_prefix_stays(tmp_path):
    """The boundary is stored: another program goes on with the same bytes."""
    url, sent, pruned = f"sqlite:///{tmp_path / 'chats.db'}", [], []
    for number in range(14):
        with Engine(url, preset="lis", model="gpt-4o", window=200_000) as engine:
            talk = engine.conversation("logs")
            talk.add(*look(f"tool_{number}", output(2_500, number)))
            found = sent_by(talk)
        stubs = [text for text in found if "#m" in text]
        known = [text for text in sent if "#m" in text]
        assert stubs[: len(known)] == known
        if len(stubs) == len(known):
            assert found[: len(sent)] == sent  # nothing before changes unless something is pruned
        else:
            pruned.append(number)
        sent = found
    assert len(pruned) >= 3
    assert all(later - earlier >= 3 for earlier, later in pairwise(pruned))


@pytest.mark.feature("L7")
async def test_the_gateway_prunes_once_and_keeps_the_bytes_before_the_boundary():
    said = [*look("read_log", output(9_000)), *look("done", "done")]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=100_000, compaction_preset="lis", summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        for number in range(4):
            said += look(f"ls_{number}", f"{number}.py")
            await client.chat.completions.create(model="gpt-4o", messages=[*said, question("And?")])
        sent = [json.loads(one.body)["messages"] for one in upstream.requests]
    assert results(sent[0])[0] == "read_log #m2"
    for earlier, later in pairwise(sent):
        assert later[: len(earlier) - 1] == earlier[:-1]


@pytest.mark.feature("N2", "L4")
def test_the_summary_names_the_messages_that_it_stands_for():
    openings = {}
    for preset in ("lis", "opal", "llms", "picoclaw", "librechat", "refold"):
        talk = Conversation("gpt-4o", preset=preset, window=6_000, max_output=600, system="Be brief.")
        for number in range(40):
            talk.add(question(f"Step {number}: {'look at the next file. ' * 12}"))
            sent = json.dumps(talk.context())
            if talk.receipts and talk.receipts[-1].summary:
                break
            talk.add(answer("It reads the settings and checks them. " * 8))
        summary = talk.receipts[-1].summary
        openings[preset] = f"#m{summary.first} to #m{summary.last - 1}" in sent
    assert openings == dict.fromkeys(openings, True)


@pytest.mark.feature("L3")
@pytest.mark.parametrize(
    ("budget", "carries"), [("", "summary"), ("90%", "full"), ("6000", "full"), ("1k", "summary")]
)
def test_the_resume_budget_is_a_setting(tmp_path, monkeypatch, capsys, budget, carries):
    """By default an earlier session is resumed whole if it takes at most 70 % of the window."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    if budget:
        monkeypatch.setenv("REFOLD_COMPACTION_RESUME_BUDGET", budget)
    with Engine(url, model="gpt-4o", window=8_000) as engine:
        talk = engine.conversation("shop")
        first = talk.status()
        while talk.measurement.content.tokens < 5_650:
            talk.add(question("What comes next? " * 20), answer("The next file, of course. " * 20))
        talk.start_session()
        session = engine.sessions("shop")[0]
    assert first.messages == 0
    args = ["resume", "shop", session.id, "--window", "8000", "--max-output", "500", "--store", url, "--json"]
    assert run(args) == 0
    assert json.loads(capsys.readouterr().out)["carries"] == carries


def folded_roles(preset, format_name, *, ends_with):
    """The roles of a request after a fold, and the edits of that request."""
    talk = Conversation("gpt-4o", preset=preset, format=format_name, window=6_000, max_output=500)
    for number in range(30):
        talk.add(question(f"Step {number}: {'look at the next file. ' * 20}"))
        talk.context()
        talk.add(answer("It reads the settings and checks them. " * 12))
    assert talk.receipts
    if ends_with == "user":
        talk.add(question("And now?"))
    sent = talk.context()
    said = sent["input" if format_name == "responses" else "messages"]
    return [one["role"] for one in said], said, [edit.stage for edit in talk.state.window_edits]


@pytest.mark.feature("X7", "L4")
@pytest.mark.parametrize("preset", ["lis", "llms"])
@pytest.mark.parametrize("format_name", ["chat", "responses", "anthropic"])
def test_two_messages_of_the_assistant_never_follow_each_other(preset, format_name):
    roles, said, _ = folded_roles(preset, format_name, ends_with="user")
    assert not [pair for pair in pairwise(roles) if pair == ("assistant", "assistant")]
    first = ["user", "assistant"] if format_name == "anthropic" else ["assistant"]
    assert roles[: len(first)] == first  # a bridge of the user's stands first only where the format wants it
    assert roles[-1] == "user"
    assert "And now?" in str(said[-1])


@pytest.mark.feature("L4")
@pytest.mark.parametrize("preset", ["lis", "llms"])
def test_where_the_assistant_spoke_last_the_user_says_continue_if_the_format_wants_it(preset):
    roles, said, edits = folded_roles(preset, "anthropic", ends_with="assistant")
    assert roles[-2:] == ["assistant", "user"]
    assert "continue" in str(said[-1]["content"])
    assert "continue" in edits
    roles, _, edits = folded_roles(preset, "chat", ends_with="assistant")
    assert roles[-1] == "assistant"
    assert "continue" not in edits


LOOK = [{"name": "look", "input_schema": {"type": "object"}}]
THOUGHT = {"type": "thinking", "thinking": "I look.", "signature": sign("I look.")}


async def thought_about(messages, *, thinking="medium", **fields):
    """Send a request through a gateway that adds thinking; return the body that the provider got, and the
    response headers.
    """
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=100_000, compaction_thinking=thinking) as gate,
        gate.anthropic() as client,
    ):
        reply = await client.messages.with_raw_response.create(
            model="claude-opus-4-8", messages=messages, **{"max_tokens": 8_000, **fields}
        )
        return upstream.requests[-1].json, reply.headers


@pytest.mark.feature("L13")
async def test_thinking_without_room_is_left_out_and_a_header_says_so():
    sent, told = await thought_about([question("Why?")], max_tokens=2_000)

    assert "thinking" not in sent
    assert told["x-refold-thinking"] == "off; max_tokens 2000 leaves no room beside 4096"


@pytest.mark.feature("L13")
async def test_thinking_is_not_added_in_a_tool_loop_that_began_without_it():
    loop = [anthropic_call("look"), anthropic_result("look", "Nothing.")]
    sent, told = await thought_about([question("Why?"), *loop], tools=LOOK)
    assert "thinking" not in sent
    assert told["x-refold-thinking"] == "off; a tool loop goes on that began without it"

    sent, told = await thought_about([question("Why?"), *loop, *_second(loop), question("And?")], tools=LOOK)
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 4_096}
    assert "x-refold-thinking" not in told


@pytest.mark.feature("L13")
async def test_thinking_goes_on_in_a_tool_loop_that_began_with_it():
    call, result = anthropic_call("look"), anthropic_result("look", "Nothing.")
    loop = [{**call, "content": [THOUGHT, *call["content"]]}, result, *_second([call, result])]
    sent, told = await thought_about([question("Why?"), *loop], tools=LOOK)

    assert sent["thinking"]["budget_tokens"] == 4_096
    assert told["x-refold-added"] == "thinking"


def _second(loop):
    """Return the messages with other ids of their calls."""
    call, result = loop
    return [
        {**call, "content": [{**call["content"][0], "id": "call_2"}]},
        {**result, "content": [{**result["content"][0], "tool_use_id": "call_2"}]},
    ]


# The provider's own count before a very large request

COUNTED_AS = 1.25
"""Tokens of the provider per token of ours."""


def words(count):
    """A question of about `count` tokens."""
    return question(" ".join(f"ship{number % 97} sails" for number in range(count // 4)))


def history(size):
    """A conversation of about so many tokens of ours, in equal turns."""
    turns = [message for _ in range(10) for message in (words(size // 10), answer("Fine."))]
    return [*turns, question("And now?")]


def counting_provider(window=20_000):
    counter = FittedCounter(COUNTED_AS * counter_for("claude-opus-4-8").factor)
    return ScriptedUpstream(otherwise="Fine.", window=window, counter=counter)


def paths(upstream):
    return [one.path for one in upstream.requests]


@pytest.mark.feature("L6")
@pytest.mark.parametrize("size, is_counted", [(15_000, True), (8_000, False)])
async def test_a_very_large_request_is_counted_by_the_provider_first(size, is_counted):
    async with counting_provider() as upstream:
        provider = Provider(
            "box", "claude-opus-4-8", format="anthropic", base_url=f"{upstream.url}/v1", key_env=""
        )
        talk = refold.Conversation("claude-opus-4-8", format="anthropic", window=20_000, max_output=1_000)
        async with open_upstream(provider) as asked, talk:
            await talk.add(*history(size))
            await talk.ask(asked)

    counts = ["/v1/messages/count_tokens"] if is_counted else []
    assert paths(upstream) == [*counts, "/v1/messages"]  # none was refused


@pytest.mark.feature("L6")
@pytest.mark.parametrize("size, is_counted", [(15_000, True), (8_000, False)])
async def test_the_gateway_lets_the_provider_count_a_very_large_request(size, is_counted):
    async with (
        counting_provider() as upstream,
        served(upstream, window=20_000, summariser_enabled=False) as gate,
        gate.anthropic() as client,
    ):
        reply = await client.messages.with_raw_response.create(
            model="claude-opus-4-8", max_tokens=1_000, messages=history(size)
        )

    counts = ["/v1/messages/count_tokens"] if is_counted else []
    assert paths(upstream) == [*counts, "/v1/messages"]
    assert reply.headers["x-refold-action"] == ("summarise" if is_counted else "none")


@pytest.mark.feature("L6")
async def test_a_provider_that_cannot_count_is_sent_the_request_all_the_same():
    async with (
        counting_provider(window=None) as upstream,
        served(upstream, window=20_000, summariser_enabled=False) as gate,
    ):
        body = json.dumps({"model": "my-model", "messages": history(15_000), "max_tokens": 1_000}).encode()
        status, _, _ = await gate.post("/v1/chat/completions", body)

    assert (status, paths(upstream)) == (200, ["/v1/chat/completions"])


@pytest.mark.feature("L15")
def test_a_notice_has_the_numbers_of_the_provider_that_decided():
    """The provider counts 1.4 times as many tokens as we do, and the preset decides on its reports."""
    events, prompt = [], 0
    talk = Conversation("gpt-4o", preset="lis", window=10_000, max_output=500, on_event=events.append)
    while not any(one.kind == "compaction_end" for one in events):
        talk.add(question("The gulls flew out to sea, and the tide came in. " * 30))
        talk.context()
        prompt = round(talk.state.fill_level.counted * 1.4)
        talk.record({"prompt_tokens": prompt, "completion_tokens": 10})
        talk.add(answer("They were grey, and they were many. " * 10))
    start, end = (one for one in events if one.kind.startswith("compaction"))
    assert (start.before.tokens, start.before.source) == (prompt, "reported")
    assert start.before.counted < prompt / 1.3
    assert re.match(rf"⚙️ Compacting \(8.*\): {prompt:,} tokens > 80 % of 10,000", text_of(start))
    assert sum(getattr(end.before.regions, name) for name in end.before.regions.__struct_fields__) == prompt
    assert end.after.source == end.before.source
    assert end.after.messages < end.before.messages
    assert end.after.tokens == pytest.approx(end.after.counted * 1.4, rel=0.1)


# When a summary is written, and what is sent until then


@pytest.mark.feature("L1", "L17")
async def test_lis_goes_on_with_the_full_history_until_the_summary_is_there():
    run = Run("lis", 8_000, Writer(3))
    await run.play(1, words=10)
    assert set(run.folds()) == {"model"}
    sizes = [len(fields["messages"]) for fields in run.sent]
    assert sizes[:-1] == [2 * turn + 1 for turn in range(len(sizes) - 1)]  # all was sent until the switch
    assert sizes[-2] > sizes[-1]
    await run.chat.close()


@pytest.mark.feature("L1")
async def test_the_limit_is_the_budget_of_the_input():
    """A limit of 12,000 folds above 9,600 in the preset lis, whatever the output of the model."""
    for model in ("gpt-4o", "claude-sonnet-4-5"):
        chat = refold.Conversation(model, preset="lis", limit=12_000)
        number, size = 0, 0
        while not chat.receipts:
            size = chat.measurement.content.tokens
            await chat.add(f"Where is crate {number}? " + "It was blue. " * 40)
            await chat.context()
            await chat.add({"role": "assistant", "content": "In the hall."})
            number += 1
        assert 9_300 < size <= 9_800
        await chat.close()
