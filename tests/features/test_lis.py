"""The features of the preset `lis`, through the doors that users have."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

import refold
from refold.cli.main import run
from refold.config import Layer
from refold.engine.events import text_of
from refold.ports.records import QueuedEntry
from refold.stores.memory import MemoryStore
from refold.sync import Conversation, Engine
from refold.testing import ScriptedUpstream, call, say, sign
from refold.tokens import FittedCounter, counter_for
from refold.upstreams import Provider, open_upstream
from tests.config.samples import PRESET_OF, SAMPLES
from tests.core.conversations import TextCounter
from tests.embedder import Subjects
from tests.features.folds import Run, Writer
from tests.formats import answer, anthropic_call, anthropic_result, chat_call, chat_result, question
from tests.gateway.conftest import served

ROOT = Path(__file__).parents[2]
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


@pytest.mark.feature("L3")
def test_earlier_sessions_are_listed_and_resumed_by_id_or_by_words(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with Engine(url, model="gpt-4o", window=8_000, embedder=Subjects()) as engine:
        talk = engine.conversation("shop")
        for text in ("The boat left the harbour.", "The zebras are on the savanna."):
            talk.add(question(text), answer("I see."))
            talk.start_session()
        boat, zebras = (one.id for one in engine.sessions("shop") if one.last is not None)

    def resume(*what):
        assert run(["resume", "shop", *what, "--store", url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [one["id"] for one in resume()["sessions"]] == [zebras, boat]  # the latest first
    for what, found in (((boat[:8],), boat), (("zebras", "savanna"), zebras)):
        done = resume(" ".join(what))
        assert (done["target"], done["carries"]) == (found, "full")
    with Engine(url, model="gpt-4o", window=8_000) as engine:
        talk = engine.conversation("shop")
        talk.add(question("And now?"))
        sent = talk.context()["messages"]
    assert sent == [question("The zebras are on the savanna."), answer("I see."), question("And now?")]


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


@pytest.mark.feature("L13")
@pytest.mark.parametrize(("effort", "tokens"), [("low", 1_024), ("high", 16_384), ("5k", 5_000)])
async def test_thinking_effort_has_a_name_or_a_number_of_tokens(effort, tokens):
    sent, _ = await thought_about([question("Why?")], thinking=effort, max_tokens=20_000)
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": tokens}


@pytest.mark.feature("L13")
async def test_the_latest_thinking_is_not_altered_by_a_compaction():
    call, result = anthropic_call("look"), anthropic_result("look", "Nothing.")
    said = [*turns(40, words=20), question("Look."), {**call, "content": [THOUGHT, *call["content"]]}, result]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=12_000, compaction_preset="lis", summariser_enabled=False) as gate,
        gate.anthropic() as client,
    ):
        thinking = {"type": "enabled", "budget_tokens": 1_024}
        await client.messages.create(
            model="claude-opus-4-8", max_tokens=2_000, messages=said, tools=LOOK, thinking=thinking
        )
        sent = upstream.requests[-1].json["messages"]
    assert len(sent) < len(said) - 20
    assert sent[-2] == said[-2]


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
    assert reply.headers["x-refold-action"] == ("folded" if is_counted else "passed")


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


@pytest.mark.feature("L15")
@pytest.mark.parametrize("is_on", [True, False])
async def test_notices_of_pruning_and_compaction_can_be_turned_off(is_on, caplog):
    caplog.set_level(logging.INFO, "refold.events")
    flags = {"notify_pruning": is_on, "notify_compaction": is_on, "compaction_preset": "lis"}
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, window=16_000, summariser_enabled=False, **flags) as gate,
        gate.openai() as client,
    ):
        for messages in (look("read_log", output(9_000)), turns(60, words=20)):
            await client.chat.completions.create(model="gpt-4o", messages=[*messages, question("And?")])
    notices = [one.getMessage() for one in caplog.records if one.name == "refold.events"]
    if not is_on:
        assert notices == []
        return
    assert len(notices) == 2
    assert re.search(r"🔧 Tool outputs pruned \(.+k → \d+, -99%\)\n  📊 Context: .+/.+ \(\d+%\)", notices[0])
    assert re.search(r"⚙️ Compacted \(.+k → .+k\)\n(  \S+ .+\n){4}", notices[1])
    for region in ("System", "Summary", "Kept context", "Tools", "Total"):
        assert f"{region}: " in notices[1]


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
def test_the_newest_4_000_tokens_are_kept():
    talk = Conversation(
        "gpt-4o", preset="lis", window=20_000, max_output=500, counter=TextCounter(), system="Be brief."
    )
    while not talk.receipts:
        talk.add(question("q" * 500))
        talk.context()
        talk.add(answer("a" * 80))
    talk.add(question("And now?"))
    _, summary, *tail = talk.context()["messages"]
    assert summary["role"] == "assistant"
    assert 4_000 - 500 < sum(len(one["content"]) for one in tail[:-1]) <= 4_000


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


@pytest.mark.feature("L6")
@pytest.mark.parametrize(
    ("usage", "is_compacted"),
    [
        ({"input_tokens": 8_000}, False),
        ({"input_tokens": 8_001}, True),
        ({"input_tokens": 1, "cache_read_input_tokens": 8_000}, True),
        ({"input_tokens": 1, "cache_read_input_tokens": 4_000, "cache_creation_input_tokens": 3_999}, False),
    ],
)
def test_reports_alone_decide_when_a_conversation_is_compacted(usage, is_compacted):
    """What came from the cache counts once, and an answer that came since does not count."""
    talk = Conversation("claude-opus-4-8", format="anthropic", preset="lis", window=10_000, max_output=500)
    talk.add(question("The gulls flew out to sea. " * 800))
    talk.context()
    talk.record({"output_tokens": 900, **usage})
    talk.add(answer("They were grey. " * 200))
    talk.add(question("And now?"))
    talk.context()
    assert [one.reason for one in talk.receipts] == (
        ["8,001 tokens > 80 % of 10,000"] if is_compacted else []
    )


@pytest.mark.feature("L4")
def test_each_session_keeps_its_own_summary_and_ancestors_stay_reachable():
    talk = Conversation("gpt-4o", preset="lis", window=6_000, max_output=500)
    number, summaries = 0, []
    while len(summaries) < 4:
        talk.add(question(f"Step {number}: {'look at the next file. ' * 20}"))
        sent = str(talk.context()["messages"][0]["content"])
        talk.add(answer("It reads the settings and checks them. " * 12))
        summaries = [one.summary for one in talk.receipts if one.summary]
        number += 1
    talk.add(question("And now?"))
    sent = str(talk.context()["messages"][0]["content"])
    for parent, child in pairwise(summaries):
        assert parent.last == child.first  # none is merged into the next
    assert summaries[-1].text.splitlines()[-1] in sent
    assert "## Before that" in sent
    assert re.search(r"^#s2 ", sent, re.MULTILINE)
    for at, summary in enumerate(summaries):
        assert summary.text.splitlines()[-1] in talk.recall(f"#s{at}", max_tokens=4_000)


# Sessions

TOPIC = "The cargo of the third ship waits in the harbour until the papers are signed. "
SUMMARY = "## Goal\nGet the cargo out of the harbour.\n## Progress\n### Done\nThe papers were signed."


def turns(count, first=0, words=10):
    """So many questions, each with its answer."""
    numbers = range(first, first + count)
    return [
        message
        for number in numbers
        for message in (question(f"Question {number}: {TOPIC * words}"), answer(f"Answer {number}."))
    ]


def told(capsys, *args):
    """Run a command that succeeds, and return the document that it prints for programs."""
    assert run([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def assert_each_message_is_in_one_session(sessions, size):
    """The live sessions of a branch follow one another without a gap, from the first message to the open end."""
    live = sorted((one for one in sessions if one.state == "live"), key=lambda one: one.first)
    assert live[0].first == 0
    assert [one.last for one in live[:-1]] == [one.first for one in live[1:]]
    assert live[-1].last is None
    assert live[-1].first <= size


@pytest.mark.feature("L2")
@pytest.mark.parametrize("url", ["memory:", "sqlite:///{folder}/chats.db"])
async def test_a_new_session_has_no_parent_and_the_old_one_is_summarised_in_the_background(tmp_path, url):
    may_write = asyncio.Event()

    async def slow(messages, *, previous, max_tokens):
        await may_write.wait()
        return SUMMARY

    url = url.format(folder=tmp_path)
    async with refold.Engine(url, model="gpt-4o", window=8_000, summariser=slow) as engine:
        talk = await engine.conversation("shop")
        await talk.add(*turns(6))
        begun = asyncio.create_task(talk.start_session())
        await asyncio.sleep(0)
        await talk.add("Something else.")  # it waits for the new session
        await begun

        assert (await talk.context())["messages"] == [question("Something else.")]
        old, new = await engine.sessions("shop")
        assert (old.first, old.last, new.first, new.kind) == (0, 12, 12, "new")
        assert (new.parent, new.carries) == ("", "none")
        assert (await talk.recall("#m0"))["content"].startswith("Question 0")
        may_write.set()
        await talk.ready()
        (written,) = await engine.summaries([(await engine.sessions("shop"))[0].summary])
        assert "The papers were signed." in written.summary.text


@pytest.mark.feature("L2")
def test_the_command_begins_a_session_that_shows_nothing(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with Engine(url, model="gpt-4o", window=8_000) as engine:
        engine.conversation("shop").add(*turns(6))
    begun = told(capsys, "new", "shop", "--store", url)
    old, new = told(capsys, "sessions", "shop", "--store", url)["sessions"]

    assert (begun["closed"], old["last"]) == (old["id"], 12)
    assert (new["kind"], new["carries"], new["parent"]) == ("new", "none", "")
    with Engine(url, model="gpt-4o", window=8_000) as engine:
        talk = engine.conversation("shop")
        talk.add(question("Hello?"))
        assert talk.context()["messages"] == [question("Hello?")]


@pytest.mark.feature("L5", "L1")
async def test_after_every_act_each_message_is_in_one_session(tmp_path):
    async with refold.Engine(tmp_path / "chats.db", model="gpt-4o", preset="lis", window=6_000) as engine:
        talk = await engine.conversation("shop")
        for number in range(26):
            sent, got = turns(1, first=number, words=20)
            for act in (talk.add(sent), talk.context(), talk.add(got)):
                await act
                assert_each_message_is_in_one_session(await engine.sessions("shop"), talk.size)
            if number == 16:
                await talk.start_session()
            if number == 18:
                await talk.resume((await engine.sessions("shop"))[0])
            if number == 22:
                await talk.compact(keep=300)
                assert await talk.undo()
            assert_each_message_is_in_one_session(await engine.sessions("shop"), talk.size)
        sessions = await engine.sessions("shop")
        assert {one.kind for one in sessions} == {"root", "compaction", "new", "resume"}
        for child in (one for one in sessions if one.kind == "compaction" and one.state == "live"):
            (parent,) = (one for one in sessions if one.id == child.parent)
            (written,) = await engine.summaries([parent.summary])
            assert written.summary.last == parent.last == child.first  # by the number of the message
        assert await engine.examine("shop") == []


@pytest.mark.feature("L5")
async def test_a_reply_to_a_request_from_before_the_switch_is_in_the_new_session(tmp_path):
    async with refold.Engine(tmp_path / "chats.db", model="gpt-4o", preset="lis", window=8_000) as engine:
        talk = await engine.conversation("shop")
        await talk.add(*turns(8), question("And now?"))
        await talk.context()  # the request is on its way
        other = await engine.conversation("shop")
        await other.compact(keep=600)
        await talk.add(answer("The papers came late."))

        parent, child = await engine.sessions("shop")
        assert (child.parent, parent.last) == (parent.id, child.first)
        assert child.first < talk.size - 1
        assert (await talk.recall(f"#m{talk.size - 1}"))["content"] == "The papers came late."


@pytest.mark.feature("L1")
async def test_a_commit_that_fails_leaves_the_session_as_it_was():
    store = MemoryStore()
    async with refold.Engine(store, model="gpt-4o", preset="lis", window=8_000) as engine:
        talk = await engine.conversation("shop")
        await talk.add(*turns(8), question("And now?"))
        before, sessions, commit = await talk.context(), await engine.sessions("shop"), store.commit

        async def fails(*_args, **_more):
            raise refold.StoreError("the disk is full")

        store.commit = fails
        with pytest.raises(refold.StoreError):
            await talk.compact(keep=600)
        store.commit = commit
        assert await engine.sessions("shop") == sessions
        assert await talk.context() == before
        await talk.compact(keep=600)
        parent, child = await engine.sessions("shop")
        assert (child.kind, child.parent, child.first) == ("compaction", parent.id, parent.last)
        assert parent.summary


@pytest.mark.feature("L16")
async def test_closed_sessions_are_found_by_words_and_by_meaning_in_one_conversation_or_in_all():
    async def close(engine, name, *texts):
        talk = await engine.conversation(name)
        for text in texts:
            await talk.add(question(text), answer("I see."))
            await talk.start_session()
        return [one.id for one in await engine.sessions(name) if one.last is not None]

    def ids(found):
        return [one.id for _, one in found]

    async with refold.Engine("memory:", model="gpt-4o", embedder=Subjects()) as engine:
        trip, bill = await close(engine, "work", "The boat left the harbour.", "We want our money back.")
        (herd,) = await close(engine, "zoo", "The zebras are on the savanna.")

        assert ids(await engine.find_sessions("vessel"))[0] == trip  # nobody said this word
        assert ids(await engine.find_sessions("reimbursed"))[0] == bill
        assert ids(await engine.find_sessions("horse", name="zoo")) == [herd]
        assert await engine.find_sessions("horse", name="work") == []
        assert ids(await engine.find_sessions("savanna", by_meaning=False)) == [herd]
        assert await engine.find_sessions("horse", by_meaning=False) == []


@pytest.mark.feature("L16")
async def test_messages_of_open_sessions_are_found_by_meaning_but_not_sensitive_or_deleted_ones(tmp_path):
    url, embedder = f"sqlite:///{tmp_path / 'chats.db'}", Subjects()
    async with refold.Engine(url, model="gpt-4o", embedder=embedder) as engine:
        talk, other = await engine.conversation("work"), await engine.conversation("zoo")
        await talk.add(question("The boat left the harbour."), answer("I see."))
        await talk.add(question("My zebras are a secret."), sensitive=True)
        await other.add(question("The zebras are on the savanna."), answer("How many are they?"))

        found = await engine.search("vessel")  # nobody said this word
        assert [(one.conversation, one.handle) for one in found] == [("work", "#m0"), ("work", "#m1")]
        assert "harbour" in await talk.recall("vessel")
        found = await engine.search("horse")
        assert [(one.conversation, one.handle) for one in found] == [("zoo", "#m0"), ("zoo", "#m1")]
        assert not any("secret" in text for text in embedder.read)
        assert [one.conversation for one in await engine.search("horse in:work")] == []

        await engine.delete("zoo")
        assert await engine.search("horse") == []


@pytest.mark.feature("L16")
def test_the_messages_of_a_store_without_vectors_get_them_by_a_command(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with Engine(url, model="gpt-4o", embedder=None) as engine:
        engine.conversation("trip").add(question("The boat left the harbour at dawn."), answer("Fine."))
    assert told(capsys, "db", "backfill", "--store", url)["embedded"] == 2
    assert told(capsys, "db", "backfill", "--store", url)["embedded"] == 0
    found = told(capsys, "search", "a ship sailing out of port", "--store", url)["found"]
    assert found[0]["handle"] == "#m0"


@pytest.mark.feature("L16")
def test_the_command_finds_a_session_that_a_compaction_closed(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with Engine(url, model="gpt-4o", window=8_000, embedder=Subjects()) as engine:
        talk = engine.conversation("shop")
        talk.add(question("The zebras are on the savanna. " * 40), answer("Yes."), *turns(6))
        talk.compact(keep=300)
        closed = engine.sessions("shop")[0].id
    for words in (("savanna",), ("savanna", "--in", "shop")):
        found = told(capsys, "search", "--sessions", *words, "--words-only", "--store", url)["sessions"]
        assert found[0]["id"] == closed
    assert run(["search", "--sessions", "horse", "--words-only", "--store", url]) == 1


# Tool output, by policy and by tool

BOOK = "Chapter {0} of the book is about the whale.\n"


def three_tools():
    """Results of three tools, of which the second may have a rule of its own; the last one is small."""
    book = BOOK.format(7) * 500
    return [*look("read_log", output(6_000)), *look("read_book", book), *look("ls", "a.py and b.py, too")]


async def pruned(window=100_000, **flags):
    """The results of the three tools as the provider gets them from a gateway with these settings."""
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, window=window, compaction_preset="lis", summariser_enabled=False, **flags) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[*three_tools(), question("And?")])
        return [text[:20] for text in results(json.loads(upstream.requests[-1].body)["messages"])]


@pytest.mark.feature("L8")
@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        ({}, ["read_log #m2", "read_book #m6", "a.py and b.py, too"]),
        ({"compaction_tools": ["read_book=summarise"]}, ["read_log #m2", BOOK.format(7)[:20], "a.py and b.py, too"]),
        ({"compaction_tool_policy": "keep_all"}, [LONG.format(0)[:20], BOOK.format(7)[:20], "a.py and b.py, too"]),
        ({"compaction_tool_policy": "keep_none"}, ["read_log #m2", "read_book #m6", "ls #m10"]),
    ],
    ids=["auto", "a rule for a tool", "keep_all", "keep_none"],
)  # fmt: skip
async def test_the_policy_for_tool_output_is_a_setting(flags, sent):
    assert await pruned(**flags) == sent


@pytest.mark.feature("L8")
async def test_keep_all_prunes_when_the_conversation_is_compacted():
    sent = await pruned(window=12_000, compaction_tool_policy="keep_all")
    assert sent[0] == "read_log #m2"


@pytest.mark.feature("L8")
async def test_the_output_of_a_tool_that_is_summarised_goes_into_the_prompt_of_the_summary():
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        ScriptedUpstream(otherwise=SUMMARY) as writer,
        served(
            upstream,
            window=100_000,
            compaction_preset="lis",
            compaction_tools=["read_book=summarise"],
            summariser_models=[f"small@{writer.url}/v1"],
        ) as gate,
        gate.openai() as client,
    ):
        said = [*three_tools(), *turns(3, words=60), question("And?")]
        name = {"x-refold-conversation": "books"}
        await client.chat.completions.create(model="gpt-4o", messages=said, extra_headers=name)
        async with aiohttp.ClientSession() as session:
            await session.post(f"{gate.url}/refold/conversations/books/compact", json={"keep": 500})
    asked = "".join(one.body.decode() for one in writer.requests)
    assert asked.count(BOOK.format(7).strip()) == 500


# Cache breakpoints


def marked_places(body):
    """The places of a request that carry a breakpoint: `system`, or the beginning of a message's text."""
    found = ["system" for block in body["system"] if "cache_control" in block]
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        found += [
            str(block.get("text") or block.get("content")) for block in blocks if "cache_control" in block
        ]
    return found


@pytest.mark.feature("L9")
@pytest.mark.parametrize("ttl", ["5m", "1h", "off"])
async def test_breakpoints_stand_after_the_system_prompt_the_summary_the_pruned_and_everything(ttl):
    def used(name, text):
        return [question("Look."), anthropic_call(name), anthropic_result(name, text), answer("I see.")]

    said = turns(20, words=30)
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(
            upstream, window=12_000, compaction_preset="lis", summariser_enabled=False, cache_ttl=ttl
        ) as gate,
        gate.anthropic() as client,
    ):
        for more in ((), used("read_log", output(9_000)), [question("And now?"), answer("Well.")]):
            said += more
            await client.messages.create(
                model="claude-opus-4-8",
                max_tokens=200,
                messages=[*said, question("Go on.")],
                system="Be brief.",
            )
        sent = upstream.requests[-1].json
    if ttl == "off":
        assert "cache_control" not in json.dumps(sent)
        return
    system, summary, boundary, tail = marked_places(sent)
    assert (system, tail) == ("system", "Go on.")
    assert summary.startswith("Here is context from the previous conversation session")
    assert boundary.startswith("read_log #m")
    times = re.findall(r'"cache_control": ({.*?})', json.dumps(sent))
    assert {json.loads(one).get("ttl", "5m") for one in times} == {ttl}


@pytest.mark.feature("L9")
@pytest.mark.parametrize("own", [1, 3, 4])
async def test_breakpoints_of_the_client_stay_and_the_total_is_at_most_four(own):
    said, is_folded = [], False
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, window=6_000, summariser_enabled=False) as gate,
        gate.anthropic() as client,
    ):
        for number in range(14):
            said += turns(1, first=number, words=36)
            marked = [dict(one) for one in said[:-1]]
            for message in marked[::-2][:own]:
                text = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
                message["content"] = [text]
            await client.messages.create(
                model="claude-opus-4-8", max_tokens=200, messages=marked, system="Be brief."
            )
            sent = upstream.requests[-1].json
            assert json.dumps(sent).count("cache_control") <= 4
            assert sent["messages"][-1] == marked[-1]
            is_folded = len(sent["messages"]) < len(marked)
    assert is_folded


# The summariser


@pytest.mark.feature("L10")
@pytest.mark.parametrize("is_named", [True, False])
async def test_the_summariser_has_its_own_provider_model_and_key_or_those_of_the_conversation(
    is_named, monkeypatch
):
    monkeypatch.setenv("BOX_KEY", "operators-own")
    async with (
        ScriptedUpstream(otherwise=SUMMARY) as writer,
        ScriptedUpstream(otherwise=SUMMARY, window=None) as upstream,
    ):
        box = {"upstreams.box.url": f"{writer.url}/v1", "upstreams.box.key_env": "BOX_KEY"}
        named = {"summariser_models": ["box:small"]} if is_named else {}
        async with served(
            upstream, window=8_000, layers=[Layer("user", box)], compaction_preset="opal", **named
        ) as gate:
            body = {"model": "gpt-5", "messages": [*turns(60), question("And?")], "max_tokens": 100}
            await gate.post(
                "/v1/chat/completions", json.dumps(body).encode(), authorization="Bearer clients-own"
            )
    *asked, sent = [*writer.requests, *upstream.requests]
    assert asked
    model, key = ("small", "operators-own") if is_named else ("gpt-5", "clients-own")
    for one in asked:
        assert (one.json["model"], one.headers["authorization"]) == (model, f"Bearer {key}")
    assert len(upstream.requests) == (1 if is_named else 1 + len(asked))
    assert (sent.json["model"], sent.headers["authorization"]) == ("gpt-5", "Bearer clients-own")
    assert "The papers were signed." in sent.body.decode()


# Settings


def documented_settings():
    """Every row of the table of settings: its key, its variable and its flag."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| `(REFOLD_[\w<>]+)` \| `(--[\w-]+)`", page, re.MULTILINE)
    return {name: (variable, flag) for name, variable, flag in rows}


@pytest.mark.feature("L14")
def test_every_setting_has_a_row_in_one_table_with_its_variable_and_its_flag(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    settings = documented_settings()
    assert run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    keys = {
        f"{section}.{field}"
        for section, table in schema["properties"].items()
        for field in table.get("properties", ())
    }
    assert keys == {name for name in settings if not name.startswith("upstreams.")}
    assert run(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [flag for _, flag in settings.values() if f"{flag} " not in shown.replace(",", " ")] == []


@pytest.mark.feature("L14")
def test_every_variable_sets_its_setting(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, (variable, _) in documented_settings().items():
        if name.startswith("upstreams."):
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REFOLD_COMPACTION_PRESET", PRESET_OF.get(name, "lis"))
            patch.setenv("REFOLD_COMPACTION_ALLOW_SYSTEM_SUMMARY", "on")
            patch.setenv(variable, SAMPLES[name][0][1])
            found = told(capsys, "config", "show")
        origin = found["origins"][name]
        assert (origin["source"], origin["place"]) == ("environment", variable)


@pytest.mark.feature("L14")
@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("compaction.trigger", "80", "80% or 0.8"),
        ("compaction.trigger", "120%", "0% to 100%"),
        ("compaction.tool_prune_threshold", "80%", "4000 or 4k"),
        ("compaction.keep_recent", "25", "25% for a share"),
        ("server.port", "70000", "65,535"),
        ("compaction.tool_policy", "keep_some", "keep_none"),
    ],
)
def test_a_percent_is_never_read_as_tokens_and_ranges_are_checked(
    name, wrong, words, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_COMPACTION_PRESET", "lis")
    variable, flag = documented_settings()[name]
    assert run(["serve", flag, wrong, "--store", str(tmp_path)]) == 2  # a folder: it never begins to serve
    refused = capsys.readouterr().err
    assert (name in refused or flag in refused, words in refused) == (True, True)
    monkeypatch.setenv(variable, wrong)
    (fault,) = [one for one in faults_of(capsys) if one["key"] == name]
    assert (fault["place"], words in fault["what"] + fault["hint"]) == (variable, True)


def faults_of(capsys):
    assert run(["config", "check", "--json"]) == 1
    return json.loads(capsys.readouterr().out)["faults"]


@pytest.mark.feature("L9")
@pytest.mark.parametrize("ttl", ["5m", "off"])
@pytest.mark.parametrize(("system", "messages"), [(0, 5), (1, 5), (2, 3)])
async def test_a_client_s_own_breakpoints_beyond_four_are_left_out_oldest_first(system, messages, ttl):
    """The scripted provider refuses more than four, as Anthropic does."""
    mark = {"cache_control": {"type": "ephemeral"}}
    said = [
        {"role": role, "content": [{"type": "text", "text": f"m{at}", **mark}]}
        for at, role in zip(range(messages), ("user", "assistant") * 5, strict=False)
    ]
    prompt = [{"type": "text", "text": f"s{at}", **mark} for at in range(system)]
    headers = {"x-api-key": "none", "anthropic-version": "2023-06-01"}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 20, "messages": said, "system": prompt or "Be brief."}
    async with (
        ScriptedUpstream(otherwise=say("Fine.")) as upstream,
        served(upstream, cache_ttl=ttl) as gate,
        aiohttp.ClientSession() as web,
        web.post(f"{gate.url}/v1/messages", json=body, headers=headers) as reply,
    ):
        assert reply.status == 200, await reply.text()
        sent = json.loads(upstream.requests[-1].body)
    assert sent["system"] == body["system"]
    held = ["cache_control" in one["content"][0] for one in sent["messages"]]
    assert held == [False] * (system + messages - 4) + [True] * (4 - system)
    assert [one["content"][0]["text"] for one in sent["messages"]] == [f"m{at}" for at in range(messages)]


# From summaries of their own messages to one of everything

CODES = ("Amber Lighthouse", "Copper Windmill", "Velvet Compass")


class CodeWriter:
    """Writes one code word into each summary, and keeps the previous summary that it was given."""

    def __init__(self):
        self.previous, self.codes = [], iter((*CODES, *["Silver Bridge"] * 9))

    async def __call__(self, messages, *, previous, max_tokens):
        self.previous.append(previous)
        return f"The user asks about crates in the hall of the {next(self.codes)}."


async def fold(talk, turns=3):
    for number in range(turns):
        await talk.add(question(f"Where is crate {number}? " + "It was blue and heavy. " * 60))
        await talk.context()
        await talk.add(answer(f"Crate {number} is in hall {number}."))
    await talk.add(question("And now?"))
    await talk.compact(keep=0)
    await talk.add(answer("Well."))


@pytest.mark.feature("L4", "O7")
@pytest.mark.parametrize("preset", ["opal", "llms", "picoclaw", "librechat"])
@pytest.mark.parametrize("has_model", [True, False])
@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_summary_of_everything_is_built_on_all_summaries_that_stand(
    tmp_path, preset, has_model, is_restarted
):
    url, writer = f"sqlite:///{tmp_path}/chats.db", CodeWriter()
    async with refold.Engine(url, model="gpt-4o", window=30_000) as engine:
        talk = await engine.conversation("crates", preset="lis", summariser=writer)
        for _ in CODES:
            await fold(talk)
        assert writer.previous == ["", "", ""]  # its summaries cover their own messages only
        assert len(talk.state.folded.summaries) == 3
        if not is_restarted:
            other = await engine.conversation(
                "crates", preset=preset, summariser=writer if has_model else None
            )
            await fold(other)
            shown = other.state.folded.summaries
    if is_restarted:
        async with refold.Engine(url, model="gpt-4o", window=30_000) as engine:
            other = await engine.conversation(
                "crates", preset=preset, summariser=writer if has_model else None
            )
            await fold(other)
            shown = other.state.folded.summaries
    (summary,) = shown
    if has_model:
        assert all(code in writer.previous[3] for code in CODES)
    else:
        assert all(code in summary.text for code in CODES)


# The chat

FORMATS = ("chat", "responses", "anthropic")


@refold.tool
def gauge(place: str) -> str:
    """Read a gauge."""
    return f"{place}: 501 mm"


def scripted(server, wire="chat"):
    return Provider("scripted", "m-1", wire, f"{server.url}/v1")


def last_of(events):
    return [*events][-1]


@pytest.mark.feature("L11")
@pytest.mark.parametrize("wire", FORMATS)
def test_commands_run_without_a_model_and_stay_out_of_its_context(wire, tmp_path):
    with (
        ScriptedUpstream(otherwise="Noted.") as server,
        Engine(f"sqlite:///{tmp_path}/chats.db", model="m-1", window=32_000) as engine,
        refold.sync.Chat(
            engine.conversation("talk", format=wire), scripted(server, wire), debounce_s=0.01
        ) as chat,
    ):
        assert last_of(chat.send("one")).status == "answered"
        replies = [
            last_of(chat.send(text)).text for text in ("/status", "/compact", "/prune", "/ABORT", "/nwe")
        ]
        assert replies[0].startswith("🤖 Agent: talk\n🧠 Model: m-1\n🧮 Tokens: ")
        assert replies[1].startswith("⚙️ Compacting session #")
        assert replies[2:] == [
            "No messages to prune.",
            "Nothing to abort.",
            "There is no command /nwe: did you mean /new?",
        ]
        first = chat.conversation.state.size
        assert len(server.requests) == 1, "no command costs a token"
        assert last_of(chat.send("two")).status == "answered"
        assert [one.text for one in server.requests[1].messages] == ["one", "Noted.", "two"]
        assert last_of(chat.send("/new")).text.startswith("✨ New session started. Previous session #")
        assert last_of(chat.send("three")).status == "answered"
        assert [one.text for one in server.requests[2].messages] == ["three"]
        previous = engine.sessions("talk")[0].id[:8]
        assert previous in last_of(chat.send("/resume")).text
        assert last_of(chat.send(f"/resume {previous}")).text.startswith("🔄 Resumed session #")
        kept = [getattr(one, "text", "") for one in chat.history()]
        assert kept[first : first + 5] == ["/status", "/compact", "/prune", "/ABORT", "/nwe"]


@pytest.mark.feature("L12")
async def test_what_is_typed_during_a_reply_waits_unseen_and_is_answered_in_order(tmp_path):
    reached, opened = asyncio.Event(), asyncio.Event()

    async def slow(_):
        reached.set()
        await opened.wait()
        return "First."

    async with (
        ScriptedUpstream(slow, otherwise="Then.") as server,
        refold.Engine(f"sqlite:///{tmp_path}/chats.db", model="m-1", window=32_000) as engine,
    ):
        talk = await engine.conversation("talk")
        async with refold.Chat(talk, scripted(server)) as chat:
            stream = chat.events()
            await chat.put("one")
            await reached.wait()
            for text in ("two zanzibar", "three", "/new", "four"):
                await chat.put(text)
            assert await engine.search("zanzibar") == []
            assert "zanzibar" not in str(await talk.context())
            assert (await engine.conversations())[0].messages == 1
            opened.set()
            ended = []
            async with asyncio.timeout(30):
                while len(ended) < 3:
                    event = await anext(stream)
                    ended += [event] if isinstance(event, refold.Done) else []
            assert [one.status for one in ended] == ["answered", "unanswered", "answered"]
            said = [one["content"] for one in await chat.history() if isinstance(one, dict)]
            assert said == ["one", "First.", "two zanzibar", "three", "four", "Then."]
            assert [one.text for one in server.requests[-1].messages] == ["four"], "in the new session"


@pytest.mark.feature("L12")
def test_quick_messages_are_debounced_into_one_turn(tmp_path):
    with (
        ScriptedUpstream(otherwise="Both.") as server,
        Engine(f"sqlite:///{tmp_path}/chats.db", model="m-1", window=32_000) as engine,
        refold.sync.Chat(engine.conversation("talk"), scripted(server), debounce_s=1.5) as chat,
    ):
        first = chat.put("one")
        ended = last_of(chat.send("two"))
        assert (ended.entries[0], len(ended.entries), ended.status) == (first, 2, "answered")
        assert [one["content"] for one in chat.history()] == ["one", "two", "Both."]
        assert len(server.requests) == 1


@pytest.mark.feature("L11")
async def test_during_a_reply_reading_commands_run_at_once_and_changing_ones_in_the_queue_s_order(tmp_path):
    reached, opened = asyncio.Event(), asyncio.Event()

    async def slow(_):
        reached.set()
        await opened.wait()
        return "First."

    async with (
        ScriptedUpstream(slow, otherwise="Then.") as server,
        refold.Engine(f"sqlite:///{tmp_path}/chats.db", model="m-1", window=32_000) as engine,
        refold.Chat(await engine.conversation("talk"), scripted(server)) as chat,
    ):
        stream = chat.events()
        await chat.put("one")
        await reached.wait()
        for text in ("/status", "/context", "/help"):
            at_once = [event async for event in chat.send(text)]
            assert isinstance(at_once[-1], refold.CommandReply)
        for text in ("two", "/compact", "/new"):
            await chat.put(text)
        opened.set()
        ended = []
        async with asyncio.timeout(30):
            while len(ended) < 4:
                event = await anext(stream)
                if isinstance(event, refold.Done):
                    ended.append(event.status)
                elif isinstance(event, refold.CommandReply) and event.command in ("/compact", "/new"):
                    ended.append(event.command)
        assert ended == ["answered", "unanswered", "/compact", "/new"]
        assert len(server.requests) == 1, "a command came last: no model is asked"


@pytest.mark.feature("L12")
async def test_what_a_crashed_program_left_in_the_queue_is_answered_once(tmp_path):
    url, left = f"sqlite:///{tmp_path}/chats.db", ("one", "two", "three")
    async with ScriptedUpstream(otherwise="Then.") as server:
        async with refold.Engine(url, model="m-1", window=32_000) as engine:
            talk = await engine.conversation("talk")
            for text in left:  # as a program leaves them that is killed before it took them
                body = json.dumps({"role": "user", "content": text}).encode()
                await engine.store.enqueue(
                    talk.journal.head, QueuedEntry(id=text, branch=talk.branch, body=body)
                )
        async with (
            refold.Engine(url, model="m-1", window=32_000) as engine,
            refold.Chat(await engine.conversation("talk"), scripted(server)) as chat,
        ):
            async with asyncio.timeout(30):
                ended = await anext(event async for event in chat.events() if isinstance(event, refold.Done))
        assert (ended.entries, ended.status) == (left, "answered")
        async with (
            refold.Engine(url, model="m-1", window=32_000) as engine,
            refold.Chat(await engine.conversation("talk"), scripted(server)) as chat,
        ):
            _ = [event async for event in chat.send("/new")]
            said = [one["content"] for one in await chat.history() if isinstance(one, dict)]
        assert said == [*left, "Then."]
        assert len(server.requests) == 1


@pytest.mark.feature("L18", "O16")
@pytest.mark.parametrize("wire", FORMATS)
def test_a_reply_is_streamed_with_its_tool_calls_and_every_call_is_billed(wire):
    script = [say(call("gauge", {"place": place}, id=f"c{place}")) for place in ("Vik", "Roros")]
    with (
        ScriptedUpstream(*script, "Both are low, the provider said at last.") as server,
        Engine("memory:", model="m-1", window=32_000) as engine,
        refold.sync.Chat(
            engine.conversation("talk", format=wire), scripted(server, wire), tools=[gauge]
        ) as chat,
    ):
        events = [*chat.send("How is the water?")]
        deltas = [one.text for one in events if isinstance(one, refold.TextDelta)]
        assert len(deltas) > 1
        assert "".join(deltas) == "Both are low, the provider said at last."
        results = [one.text for one in events if isinstance(one, refold.ToolEnded)]
        assert results == ["Vik: 501 mm", "Roros: 501 mm"]
        reported = [one.usage for one in events if isinstance(one, refold.CallUsage)]
        assert len(reported) == 3
        stored = engine.store.calls("local", "talk")
        assert [one.usage for one in stored] == reported
        assert not any(one.is_estimated for one in stored)
        assert chat.conversation.status().billed.prompt == sum(one.prompt for one in reported)


@pytest.mark.feature("L16")
async def test_a_search_is_limited_to_a_time_and_a_date_alone_lists_what_was_said_then():
    now = [1_683_400_000.0]  # 6 May 2023
    async with refold.Engine("memory:", model="gpt-4o", clock=lambda: now[0]) as engine:
        talk = await engine.conversation("talk")
        for text in ("The ferry was late.", "The ferry was early.", "The ferry did not come."):
            await talk.add(text)
            now[0] += 86_400.0

        async def found(words: str) -> list[str]:
            return [one.handle for one in await engine.search(words)]

        assert await found("ferry after:2023-05-08") == ["#m2"]
        assert sorted(await found("ferry before:2023-05-08")) == ["#m0", "#m1"]
        assert await found("7 May 2023") == ["#m1"]
        assert await found("May 2023") == ["#m2", "#m1", "#m0"], "the newest first"
        assert await found("after:2023-05-07 before:2023-05-08") == ["#m1"]
        assert await found("before:2023") == []
        assert "early" in await talk.recall("7 May 2023")
        assert [name for name, _ in await engine.find_sessions("7 May 2023")] == ["talk"]
