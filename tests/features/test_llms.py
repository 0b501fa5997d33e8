"""The features of the preset `llms` and of the HTTP API, through the doors that users have."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
import subprocess
from contextlib import AsyncExitStack, redirect_stdout, suppress
from pathlib import Path

import aiohttp
import pytest

import refold
from refold.cli.main import run
from refold.model.tokens import Usage
from refold.stores.url import open_store
from refold.sync import Conversation, Engine
from refold.testing import Body, Broken, Refuse, Reset, ScriptedUpstream, call, say
from scripts.features import main as list_features
from tests.embedder import Subjects
from tests.features.folds import ALL, FOREVER, WAITING, Run, Writer
from tests.formats import answer, question
from tests.formats import turn as file_turn
from tests.gateway.conftest import served, target_for
from tests.gateway.test_admin import asked
from tests.gateway.test_summarisers import SUMMARY, either, is_question, told
from tests.program import command

ROOT = Path(__file__).parents[2]
TEXT = "We talked about the shop, and the customer wants the money of the order back soon. " * 24


async def grow(talk, turns):
    """Add turns to a conversation, with a request before each reply."""
    for number in range(turns):
        await talk.add(question(f"Question {number}: {TEXT}"))
        await talk.context()
        await talk.add(answer(f"Answer {number}: {TEXT}"))


def ends(events):
    found = [one for one in events if isinstance(one, refold.CompactionEnd)]
    return [one for one in found if one.outcome == "installed"]


def warnings(caplog):
    found = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    return [one for one in found if "without the summariser" in one]


# Who wrote a summary, and why


@pytest.mark.feature("X6", "O3")
async def test_a_digest_says_that_the_model_is_still_writing_and_then_that_it_is_ready(caplog):
    may_write, events = asyncio.Event(), []

    async def slow(messages, *, previous, max_tokens):
        await may_write.wait()
        return SUMMARY

    settings = {"window": 8_000, "max_output": 500, "summariser": slow, "on_event": events.append}
    async with refold.Conversation("gpt-4o", **settings) as talk:
        await grow(talk, 16)
        end, receipt = ends(events)[0], next(one for one in talk.receipts if one.summary)

        assert (end.author, end.why) == ("digest", "the model is still writing")
        assert (receipt.author, receipt.why) == (end.author, end.why)
        assert (await talk.status()).summary.text == "digest; the model is still writing"
        assert warnings(caplog) == [
            "a compaction was made without the summariser: the model is still writing"
        ] * len(ends(events))
        may_write.set()
        await talk.ready()
        assert (await talk.status()).summary.text == "digest; model summary ready"


@pytest.mark.feature("X6", "O3")
async def test_a_model_that_wrote_ahead_is_named_as_the_author(caplog):
    events = []

    async def quick(messages, *, previous, max_tokens):
        return SUMMARY

    settings = {"window": 8_000, "max_output": 500, "summariser": quick, "on_event": events.append}
    async with refold.Conversation("gpt-4o", **settings) as talk:
        for number in range(16):
            await talk.add(question(f"Question {number}: {TEXT}"))
            await talk.context()
            await talk.add(answer(f"Answer {number}: {TEXT}"))
            await talk.ready()
        status = await talk.status()

    assert {(one.author, one.why) for one in ends(events)} == {("model", "")}
    assert status.summary.author == "model"
    assert not warnings(caplog)


@pytest.mark.feature("X6")
@pytest.mark.parametrize(
    "preset, settings, why",
    [
        ("llms", {}, "the model failed"),
        ("refold", {"max_spend": 0.0}, "max_spend is reached"),
        ("llms", {"summariser_timeout_s": 0.05}, "the model took longer than 0.05 seconds"),
    ],
)
async def test_a_summariser_that_was_not_used_is_a_warning_with_the_reason(preset, settings, why, caplog):
    events = []

    async def writes_nothing(messages, *, previous, max_tokens):
        await asyncio.sleep(5 if "summariser_timeout_s" in settings else 0)
        raise OSError

    settings = {"window": 8_000, "max_output": 500, "on_event": events.append, **settings}
    async with refold.Conversation("gpt-4o", preset=preset, summariser=writes_nothing, **settings) as talk:
        await grow(talk, 18)
        status = await talk.status()

    assert why in {one.why for one in ends(events)}
    assert f"a compaction was made without the summariser: {why}" in warnings(caplog)
    assert status.summary.author == "digest"


@pytest.mark.feature("X6")
async def test_a_summariser_that_keeps_failing_is_paused_and_the_event_says_so():
    events = []

    async def fails(messages, *, previous, max_tokens):
        raise OSError

    settings = {"window": 8_000, "max_output": 500, "on_event": events.append, "summariser": fails}
    async with refold.Conversation("gpt-4o", **settings) as talk:
        for number in range(40):
            await talk.add(question(f"Question {number}: {TEXT}"))
            await talk.context()
            await talk.add(answer(f"Answer {number}: {TEXT}"))
            await talk.ready()

    assert any("times in a row" in one.why for one in ends(events))


@pytest.mark.feature("X6")
async def test_without_a_summariser_nothing_is_warned_of(caplog):
    async with refold.Conversation("gpt-4o", window=8_000, max_output=500) as talk:
        await grow(talk, 16)
        status = await talk.status()

    assert status.summary.text == "digest; no summariser is configured"
    assert not warnings(caplog)


async def chat_until_folded(gate, *, ready=True, turns=101, stops=False, **headers):
    """Send a growing conversation, and return the response headers of each request. With `stops`, the first
    request with a summary is the last one.
    """
    found = []
    for turn in range(1, turns, 2):
        body = json.dumps({"model": "gpt-5", "messages": told(turn), "max_tokens": 100}).encode()
        status, said, _ = await gate.post(
            "/v1/chat/completions", body, x_refold_conversation="ships", **headers
        )
        assert status == 200
        found.append(said)
        if stops and "x-refold-summary" in said:
            break
        for live in (await gate.gateway.host("local")).table if ready else ():
            await live.conversation.ready()
    return found


@pytest.mark.feature("X4", "X6", "X9")
@pytest.mark.parametrize(
    "is_model_up, settings, summary",
    [
        (True, {}, "model gpt-5"),
        (False, {}, "digest; the summariser answered 500"),
        (True, {"summariser_enabled": False}, "digest; no summariser is configured"),
    ],
)
async def test_the_gateway_names_the_author_in_a_header_and_its_pages(is_model_up, settings, summary):
    def reply(received):
        return either(received) if is_model_up or not is_question(received) else Refuse(500)

    async with (
        ScriptedUpstream(window=6_000, otherwise=reply) as upstream,
        served(upstream, window=6_000, **settings) as gate,
    ):
        sent = await chat_until_folded(gate, stops=True)
        _, detail = await asked(gate, "GET", "conversations/ships")
        _, (listed,) = await asked(gate, "GET", "conversations")

    assert "x-refold-summary" not in sent[0]
    assert sent[-1]["x-refold-summary"].startswith(summary)
    assert detail["summary"]["author"] == summary.split(";")[0].split()[0]
    assert listed["summary"].startswith(summary)


def cli(folder, *args):
    """Run a command that succeeds on the store of a folder, and return its output."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert run([*args, "--store", f"sqlite:///{folder / 'chats.db'}"]) == 0
    return out.getvalue()


@pytest.mark.feature("X6", "X2")
def test_the_commands_name_the_author_of_a_summary(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    why = "digest; no summariser is configured"
    cli(tmp_path, "import", str(ROOT / "examples/coding-agent.json"), "--as", "shifts")
    cli(tmp_path, "compact", "shifts", "--window", "12000")

    sessions = json.loads(cli(tmp_path, "sessions", "shifts", "--json"))
    assert (sessions["summary"], sessions["sessions"][0]["author"]) == (why, why)
    assert why in cli(tmp_path, "conversations")
    store = f"sqlite:///{tmp_path / 'chats.db'}"
    program = [*command(), "show", "shifts", "--json", "--store", store]
    shown = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(shown)["summary"] == why


@pytest.mark.feature("X14")
def test_the_same_messages_under_another_name_are_not_paid_for_twice(tmp_path):
    file = tmp_path / "talk.json"
    messages = [message for n in range(12) for message in (question(f"{n}: {TEXT}"), answer(f"{n}: {TEXT}"))]
    file.write_text(json.dumps({"model": "gpt-4o", "messages": messages}))
    with ScriptedUpstream(otherwise=SUMMARY) as writer:
        for name in ("one", "two"):
            cli(tmp_path, "import", str(file), "--as", name)
            cli(tmp_path, "compact", name, "--summariser", f"small@{writer.url}/v1")
        sessions = json.loads(cli(tmp_path, "sessions", "two", "--json"))

    assert len(writer.requests) == 1
    assert sessions["summary"] == "model small"


@pytest.mark.feature("X14")
async def test_a_summariser_by_its_name_uses_the_cache_of_the_store(tmp_path):
    async with ScriptedUpstream(otherwise=SUMMARY) as writer:
        named = f"small@{writer.url}/v1"
        async with refold.Engine(tmp_path / "chats.db", model="gpt-4o", summariser=named) as engine:
            for name in ("one", "two"):
                talk = await engine.conversation(name)
                for number in range(12):
                    await talk.add(question(f"{number}: {TEXT}"), answer(f"{number}: {TEXT}"))
                await talk.add(question("And now?"))
                await talk.compact()
                assert (await talk.status()).summary.author == "model"

        assert len(writer.requests) == 1


# Compactions over HTTP


@pytest.fixture
async def gate():
    """A gateway without a summariser."""
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as one,
    ):
        yield one


@pytest.mark.feature("X9", "O2")
async def test_a_compaction_over_http_asks_the_configured_summariser_with_its_focus():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        ScriptedUpstream(otherwise=SUMMARY) as writer,
        served(upstream, window=30_000, summariser_models=[f"small@{writer.url}/v1"]) as gate,
    ):
        await chat_until_folded(gate, turns=22, ready=False)
        assert not writer.requests
        body = {"focus": "the anchors", "keep": 200}
        status, done = await asked(gate, "POST", "conversations/ships/compact", body)

    assert status == 200
    assert "the anchors" in writer.requests[0].body.decode()
    assert done["summary"] == {"author": "model", "model": "small", "why": ""}
    assert done["after"] < done["before"] / 2


@pytest.mark.feature("X6")
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Refuse(401, "PRIVATE", code="invalid_api_key"), "the summariser answered 401, invalid_api_key"),
        (Refuse(404, "PRIVATE", "PRIVATE", "PRIVATE"), "the summariser answered 404"),
        (Body(200, b"<p>PRIVATE</p>"), "the summariser answered with neither a reply nor an error"),
        (Body(200, b'{"error": {"message": "PRIVATE"}}'), "the summariser answered with an error"),
        (Reset(), "the summariser broke the connection"),
    ],
    ids=["401", "404", "html", "error", "reset"],
)
async def test_a_summariser_that_gives_no_answer_is_reported_by_its_status_or_kind(failure, reason, caplog):
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        ScriptedUpstream(otherwise=failure) as writer,
        served(upstream, window=30_000, summariser_models=[f"small@{writer.url}/v1"]) as gate,
    ):
        await chat_until_folded(gate, turns=22, ready=False)
        _, done = await asked(gate, "POST", "conversations/ships/compact", {"keep": 200})
        _, rows = await asked(gate, "GET", "conversations/ships/compactions")

    assert done["summary"] == {"author": "digest", "model": "", "why": reason}
    assert reason in {one["error"] for one in rows}
    assert f"digest; {reason}" in {one["author"] for one in rows}
    assert f"no summary by small: {reason}" in caplog.text
    assert "PRIVATE" not in caplog.text + json.dumps(rows)


@pytest.mark.feature("X9")
@pytest.mark.parametrize(
    "body, words", [({"fokus": "x"}, "fokus"), ({"keep": "many"}, "keep"), ({"keep": -1}, "keep")]
)
async def test_a_wrong_field_of_a_compaction_is_refused_by_its_name(gate, body, words):
    await chat_until_folded(gate, turns=4)
    status, refused = await asked(gate, "POST", "conversations/ships/compact", body)

    assert (status, words in refused["error"]["message"]) == (400, True)


@pytest.mark.feature("X9")
async def test_a_compaction_that_needs_the_clients_key_says_so_and_takes_it():
    async with ScriptedUpstream(otherwise=either) as upstream:
        target = target_for(upstream, is_private=False)
        async with served(upstream, targets=[target], window=30_000) as gate:
            await chat_until_folded(gate, turns=22, authorization="Bearer own", ready=False)
            sent = len(upstream.requests)
            _, done = await asked(gate, "POST", "conversations/ships/compact", {"keep": 200})
            assert "client's key" in done["note"]
            assert (done["summary"]["author"], len(upstream.requests)) == ("digest", sent)
            await asked(gate, "POST", "conversations/ships/undo")
            _, done = await asked(gate, "POST", "conversations/ships/compact", {"keep": 200}, key="own")
            assert (done["summary"]["author"], "note" in done) == ("model", False)
            assert upstream.requests[-1].headers["authorization"] == "Bearer own"


@pytest.mark.feature("X9")
async def test_the_page_of_a_conversation_has_the_limit_that_the_list_has():
    settings = {"compaction_max_output": 6_000, "compaction_limit": "9k", "summariser_enabled": False}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=16_000, **settings) as gate,
    ):
        body = {"model": "gpt-5", "messages": told(5)}
        await gate.post("/v1/chat/completions", json.dumps(body).encode(), x_refold_conversation="ships")
        _, detail = await asked(gate, "GET", "conversations/ships")
        _, (listed,) = await asked(gate, "GET", "conversations")

    assert detail["limit"] == listed["limit"]


@pytest.mark.feature("X9", "X7")
async def test_a_posted_list_is_compacted_and_nothing_is_stored(gate):
    body = {"model": "gpt-5", "messages": [question("Be brief."), *told(31)], "preset": "llms"}
    status, done = await asked(gate, "POST", "compact", body)

    assert status == 200
    assert [one["role"] for one in done["messages"]][-2:] == ["assistant", "user"]
    assert done["messages"][-2:] == told(31)[-2:]
    assert done["after"] < done["before"] / 2
    assert done["summary"]["author"] == "digest"
    assert await gate.store.conversations("local") == []
    assert (await asked(gate, "POST", "compact", {**body, "keeep": 1}))[0] == 400


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "c1", "content": "The anchor is here."}


@pytest.mark.feature("X9")
@pytest.mark.parametrize(
    ("broken", "index", "rule"),
    [
        ([FOUND], 1, "orphan_result"),
        ([CALLING], 1, "unanswered_call"),
        ([CALLING, FOUND, FOUND], 3, "duplicate_result"),
    ],
)
async def test_a_posted_message_that_breaks_a_rule_is_named_with_the_rule(gate, broken, index, rule):
    posted = [question("Be brief."), *broken, question("Go on.")]
    status, done = await asked(gate, "POST", "compact", {"model": "gpt-5", "messages": posted})

    (repair,) = done["repairs"]
    assert (status, repair["index"], repair["rule"], repair["after"]) == (200, index, rule, 0)
    assert done["messages"] == [*posted[:index], *posted[index + 1 :]]
    assert done["before"] - done["after"] == repair["before"]


@pytest.mark.feature("X9")
async def test_a_call_that_may_still_be_answered_stays_in_a_posted_list(gate):
    posted = [{"role": "system", "content": "Be brief."}, question("Look."), CALLING]
    _, done = await asked(gate, "POST", "compact", {"model": "gpt-5", "messages": posted})

    assert (done["messages"], "repairs" in done) == (posted, False)


@pytest.mark.feature("X9")
@pytest.mark.parametrize("window", [2_000, 4_000, 8_000])
async def test_a_posted_list_is_measured_whole_and_waits_for_its_model(window):
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        ScriptedUpstream(otherwise=SUMMARY) as writer,
        served(upstream, summariser_models=[f"small@{writer.url}/v1"]) as gate,
    ):
        body = {"model": "gpt-5", "messages": told(41), "window": window}
        status, done = await asked(gate, "POST", "compact", body)
        _, wide = await asked(gate, "POST", "compact", {**body, "window": 100_000})

    assert (status, done["summary"]["author"]) == (200, "model")
    assert done["before"] == wide["before"] > 4_000
    assert done["after"] < window


def orders(turns):
    """Turns that a summary of one message cannot make smaller."""
    draw, words = (
        random.Random(5),
        ["harbour", "crane", "ferry", "ledger", "parcel", "locker", "invoice", "tide"],
    )
    return [
        {"role": role, "content": f"Order {9_000 + number}: " + " ".join(draw.choices(words, k=80))}
        for number in range(turns)
        for role in ("user", "assistant")
    ]


@pytest.mark.feature("X9")
async def test_a_posted_list_that_no_compaction_makes_smaller_comes_back_as_it_is(gate):
    posted = orders(20)
    body = {"model": "gpt-4o", "messages": [*posted, question("And the refund?")], "window": 16_000}
    status, done = await asked(gate, "POST", "compact", {**body, "preset": "lis"})

    assert (status, done["messages"], done["after"]) == (200, body["messages"], done["before"])
    assert "nothing was changed" in done["note"]
    assert done["summary"]["author"] == ""


def test_a_compaction_that_would_make_a_conversation_larger_is_not_made():
    talk = Conversation("gpt-4o", preset="lis", window=16_000)
    talk.add(*orders(20), question("And the refund?"))
    before, sent = talk.status().tokens, talk.context()
    assert talk.compact() == sent
    assert (talk.status().tokens, talk.receipts) == (before, ())


@pytest.mark.feature("X9")
@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"window": 10**30}, "window is not a number of tokens from 256 to 100,000,000", "such as"),
        ({"window": 255}, "window is not a number of tokens from 256 to 100,000,000", "such as"),
        ({"window": "big"}, "window is not a number of tokens from 256 to 100,000,000", "such as"),
        ({"keep": -1}, "keep is not a number of tokens from 0 to 100,000,000", "such as"),
        ({"keep": 10**30}, "keep is not a number of tokens from 0 to 100,000,000", "such as"),
        ({"max_output": 0}, "max_output is not a number of tokens from 1 to 100,000,000", "such as"),
        ({"bogus": 1}, "there is no field 'bogus'", "the fields are: model, messages"),
        ({"model": None}, "model is not a text", "docs/gateway.md"),
        ({"format": "xml"}, "format is not a known one", "chat, responses or anthropic"),
        ({"messages": [1]}, "messages is not a list of messages", "docs/gateway.md"),
        ({"messages": [*told(2), {"role": "alien", "content": "Hm."}]}, "messages[2]: role:", "use system"),
    ],
)
async def test_a_wrong_field_of_a_posted_list_is_refused_by_its_name(gate, fields, message, hint):
    status, refused = await asked(gate, "POST", "compact", {"model": "gpt-5", "messages": told(2), **fields})

    assert status == 400
    assert refused["error"]["message"].startswith(message)
    assert hint in refused["error"]["hint"]


@pytest.mark.feature("X9")
async def test_a_missing_field_of_a_posted_list_is_named(gate):
    status, refused = await asked(gate, "POST", "compact", {"messages": told(2)})
    assert (status, refused["error"]["message"]) == (400, "model is missing")


@pytest.mark.feature("X1")
async def test_a_preset_that_needs_a_permission_says_which_flag_gives_it(tmp_path):
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served(upstream, window=8_000) as gate:
        body = json.dumps({"model": "gpt-5", "messages": told(1)}).encode()
        status, _, refused = await gate.post("/v1/chat/completions", body, x_refold_preset="picoclaw")
    assert (status, b"--compaction-allow-system-summary" in refused) == (400, True)

    serve = [*command(), "serve", "--compaction-preset", "picoclaw", "--server-port", "0"]
    ended = await asyncio.to_thread(
        subprocess.run, serve, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert ended.returncode == 2
    assert "--compaction-allow-system-summary" in ended.stderr

    allowed = {"compaction_preset": "picoclaw", "compaction_allow_system_summary": True}
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served(upstream, **allowed) as gate:
        assert (await gate.post("/v1/chat/completions", body))[0] == 200


@pytest.mark.feature("X4")
async def test_none_means_that_the_clients_own_messages_were_sent(gate):
    sent = await chat_until_folded(gate, turns=121)
    actions = [one["x-refold-action"] for one in sent]
    folded = actions.index("folded")

    assert set(actions[:folded]) == {"passed"}
    assert set(actions[folded:]) == {"folded"}
    for one in sent:
        whole, shown = one["x-refold-tokens"].split("->")
        assert (whole == shown) == (one["x-refold-action"] == "passed")


@pytest.mark.feature("X12")
async def test_another_gateway_on_the_same_store_sees_changed_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("refold.gateway.app.LOOK_S", 3_600.0)
    async with ScriptedUpstream(otherwise="Fine.") as upstream, AsyncExitStack() as stack:
        stores = [await open_store(f"sqlite:///{tmp_path / 'chats.db'}") for _ in range(2)]
        gates = [
            await stack.enter_async_context(
                served(upstream, store=store, id_prefix=f"gate{at}", window=8_000)
            )
            for at, store in enumerate(stores)
        ]
        reads = count_reads(stores[1], monkeypatch)
        for gate in gates:
            await chat_until_folded(gate, turns=12, ready=False)
        assert reads() < 5  # not one for each request

        await asked(gates[0], "POST", "config", {"compaction": {"preset": "lis"}})
        monkeypatch.setattr("refold.gateway.app.LOOK_S", 0.0)
        _, shown = await asked(gates[1], "GET", "config")
        for store in stores:
            await store.close()

    assert shown["settings"]["compaction"]["preset"] == "lis"


def count_reads(store, monkeypatch):
    """Count how many times the settings are read from a store."""
    reads, setting = [], store.setting

    async def read(owner, key):
        reads.append(key)
        return await setting(owner, key)

    monkeypatch.setattr(store, "setting", read)
    return lambda: len(reads)


@pytest.mark.feature("X2", "O16")
async def test_the_usage_ratio_is_that_of_the_provider_s_last_prompt():
    """The provider counts many more tokens than we do; the list and the page of the conversation show its number."""
    reply = say("Fine.", usage=Usage(input=6_000, output=5))
    async with (
        ScriptedUpstream(otherwise=reply, window=None) as upstream,
        served(upstream, window=12_000, summariser_enabled=False) as gate,
        aiohttp.ClientSession() as session,
    ):
        asked = [{"role": "user", "content": "The gulls flew out to sea. " * 500}]
        body = json.dumps({"model": "gpt-4o", "messages": asked}).encode()
        for _ in range(2):
            await gate.post("/v1/chat/completions", body, x_refold_conversation="one")
        for page in ("conversations", "conversations/one"):
            found = await (await session.get(f"{gate.url}/refold/{page}")).json()
            found = found[0] if isinstance(found, list) else found
            assert (found["tokens"], found["limit"]) == (6_000, 10_380)
        assert found["ratio"] == pytest.approx(6_000 / 10_380)
        assert (found["billed"]["input"], found["billed"]["output"]) == (12_000, 10)


# When a summary is written, and what is sent until then


@pytest.mark.feature("X7", "C8", "O2")
@pytest.mark.parametrize("preset", WAITING)
async def test_a_preset_that_waits_sends_no_digest(preset):
    run = Run(preset, 8_000, Writer(0))
    await run.play(3, words=40)
    assert set(run.folds()) == {"model"}
    assert run.writer.asked == run.folds()["model"]  # only when it is needed
    await run.chat.close()


@pytest.mark.feature("X7")
async def test_llms_keeps_the_last_two_messages_with_a_model_too():
    run = Run("llms", 8_000, Writer(0))
    await run.play(1, words=40)
    assert len(run.sent[-1]["messages"]) <= 4  # the task's line, the summary, and two messages
    await run.chat.close()


@pytest.mark.feature("X6")
@pytest.mark.parametrize("preset", ALL)
async def test_a_model_that_fails_leaves_the_conversation_going(preset):
    run = Run(preset, 8_000, Writer(fails=True))
    await run.play(4, words=40, turns=120)
    assert run.count(refold.SummaryFailed) >= 1
    assert "model" not in run.folds()
    if preset in ("refold", "lis", "llms"):  # the others have a text of counts and files of their own
        assert set(run.folds()) == {"digest"}
    made = [one.summary for one in run.chat.receipts if one.summary]
    assert min(one.tokens for one in made) > 200  # no stub stands for thousands of tokens
    assert all(fields["messages"][-1]["content"].startswith("Where is crate") for fields in run.sent)
    await run.chat.close()


@pytest.mark.feature("X6")
async def test_a_model_that_hangs_is_waited_for_no_longer_than_the_setting_says():
    run = Run("opal", 8_000, Writer(FOREVER), summariser_timeout_s=0.05)
    await run.play(1, words=40)
    assert run.folds() == {"mechanical": 1}
    await run.chat.close()


# The list of features and the gate


LISTED = """
[A1]
title = "first"
done = true
closes = "core"

[A2]
title = "second"
done = false
closes = "store"
"""


@pytest.mark.feature("X0")
def test_the_script_lists_every_feature_with_the_tests_that_prove_it(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "tests" / "features"
    folder.mkdir(parents=True)
    (tmp_path / "features.toml").write_text(LISTED)
    (folder / "test_it.py").write_text(PROOF.format("pass"))
    monkeypatch.chdir(folder)
    assert list_features([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A1   done  first",
        "           tests/features/test_it.py::test_a1",
        "A2   open  second",
        "2 features, 1 done",
    ]


GATED = """
[pytest]
testpaths = tests
addopts = -p tests.feature_gate --strict-markers --import-mode=importlib
markers =
    feature(*ids): ids
"""
FEATURE = '[A1]\ntitle = "first"\ndone = true\n'
PROOF = (
    'import pytest\n\n@pytest.mark.feature("A1")\ndef test_a1():\n    {0}\n\ndef test_other():\n    pass\n'
)


@pytest.mark.feature("X0")
@pytest.mark.parametrize(
    ("body", "told"),
    [("pass", ""), ("pytest.skip('not here')", "*A1  first (skipped: tests/features/test_it.py::test_a1)*")],
)
def test_the_run_fails_if_a_feature_that_is_done_has_no_test_that_passed(pytester, monkeypatch, body, told):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makefile(".ini", pytest=GATED)
    (pytester.path / "features.toml").write_text(FEATURE)
    folder = pytester.path / "tests" / "features"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(PROOF.format(body))
    result = pytester.runpytest_inprocess()
    assert result.ret == (1 if told else 0)
    if told:
        result.stdout.fnmatch_lines([told])


# Settings


@pytest.mark.feature("X1", "X9")
async def test_a_change_of_settings_holds_at_once_and_after_a_restart():
    async with ScriptedUpstream(otherwise="Fine.") as upstream:
        async with served(upstream, window=8_000) as gate:
            store = gate.store
            status, shown = await asked(
                gate, "POST", "config", {"compaction": {"preset": "lis"}, "notify.pruning": False}
            )
            assert (status, shown["settings"]["compaction"]["preset"]) == (200, "lis")
            assert shown["origins"]["compaction.preset"] == "an update while it runs"
        async with served(upstream, window=8_000, store=store) as gate:
            _, shown = await asked(gate, "GET", "config")
    assert shown["settings"]["compaction"]["preset"] == "lis"
    assert shown["settings"]["notify"]["pruning"] is False


@pytest.mark.feature("X1", "X9")
@pytest.mark.parametrize(
    "change, status, words",
    [
        ({"compaction": {"preset": "best"}}, 400, "compaction.preset"),
        ({"compaction": {"presset": "lis"}}, 400, "compaction.presset"),
        ({"compaction": {"preset": "lis", "recoveries": 9}}, 400, "compaction.recoveries"),
        ({"compaction": {"enabled": False}}, 409, "the flag --compaction-enabled"),
        ({"upstreams": {"openai": {"url": "http://evil"}}}, 403, "upstreams"),
        ({"store": {"url": "memory:"}}, 403, "store.url"),
        ({"server": {"port": 1}}, 403, "server.port"),
        ([], 400, "JSON object"),
    ],
)
async def test_a_change_that_cannot_be_leaves_everything_as_it_was(change, status, words):
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, compaction_enabled=True) as gate,
    ):
        found, refused = await asked(gate, "POST", "config", change)
        assert found == status
        assert words in refused["error"]["message"]
        _, shown = await asked(gate, "GET", "config")
        assert shown["settings"]["compaction"]["preset"] == "refold"


@pytest.mark.feature("X1")
def test_the_environment_comes_before_the_file_of_the_project_and_that_before_your_own(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert run(["config", "init", "--user"]) == run(["config", "init"]) == 0
    own, project = (Path(line) for line in capsys.readouterr().out.splitlines())
    assert '# preset = "refold"' in project.read_text()

    def preset():
        assert run(["config", "show", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        return shown["settings"]["compaction"]["preset"], shown["origins"]["compaction.preset"]["source"]

    assert preset() == ("refold", "default")
    own.write_text('[compaction]\npreset = "lis"\n')
    assert preset() == ("lis", "user")
    project.write_text('[compaction]\npreset = "opal"\n')
    assert preset() == ("opal", "project")
    monkeypatch.setenv("REFOLD_COMPACTION_PRESET", "llms")
    assert preset() == ("llms", "environment")


# Statistics


@pytest.mark.feature("X2")
async def test_statistics_survive_a_restart_and_old_conversations_are_deleted(tmp_path):
    now = [1_000_000.0]
    settings = {"model": "gpt-4o", "preset": "llms", "window": 8_000, "max_output": 500}
    async with refold.Engine(tmp_path / "chats.db", clock=lambda: now[0], **settings) as engine:
        talk = await engine.conversation("shop")
        await grow(talk, 20)
        before = await talk.status()
    assert (before.messages, before.compactions > 0, 0 < before.ratio < 1) == (40, True, True)
    async with refold.Engine(tmp_path / "chats.db", clock=lambda: now[0], **settings) as engine:
        after = await (await engine.conversation("shop")).status()
        (listed,) = await engine.conversations()
    assert (after.messages, after.compactions, after.ratio) == (40, before.compactions, before.ratio)
    assert (after.needs_compaction, listed.compactions) == (before.needs_compaction, before.compactions)
    for day in range(1, 11):
        now[0] += 86_400
        async with refold.Engine(
            tmp_path / "chats.db", clock=lambda: now[0], keep_days=9, max_expired_share=1.0, **settings
        ) as engine:
            await (await engine.conversation("other")).add(question("Good morning."))
            names = {one.id for one in await engine.conversations()}
        assert names == ({"shop", "other"} if day <= 9 else {"other"})


# Which conversation a request belongs to


def said(*texts):
    return [(question, answer)[at % 2](text) for at, text in enumerate(texts)]


async def send(gate, messages, **headers):
    """Send a request, and return the conversation and the branch that it was taken for."""
    body = json.dumps({"model": "gpt-5", "messages": messages}).encode()
    status, told, _ = await gate.post("/v1/chat/completions", body, **headers)
    assert status == 200
    return told["x-refold-conversation"], told["x-refold-branch"]


async def counted(gate, name):
    _, found = await asked(gate, "GET", f"conversations/{name}")
    return found["messages"]


@pytest.mark.feature("X3")
async def test_a_history_that_is_resent_in_full_is_stored_once(gate):
    first = await send(gate, said("one"))
    second = await send(gate, said("one", "Fine.", "two"))
    blocks = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in said("one", "Fine.")]
    third = await send(gate, [*blocks, *said("two", "Fine.", "three")])  # written down in another way

    assert first == second == third
    assert await counted(gate, first[0]) == 5


@pytest.mark.feature("X3")
async def test_an_edited_history_forks_where_it_was_edited(gate):
    name, branch = await send(gate, said("one", "Fine.", "two", "Fine.", "three"))
    edited = await send(gate, said("one", "Fine.", "TWO", "Fine.", "three"))
    again = await send(gate, said("one", "Fine.", "two", "Fine.", "three", "Fine.", "four"))

    assert edited[0] == name == again[0]
    assert edited[1] != branch == again[1]


@pytest.mark.feature("X3")
async def test_two_who_open_alike_are_two(gate):
    await send(gate, said("hi"))
    anna = await send(gate, said("hi", "Hello, Anna.", "I am Anna."))
    ben = await send(gate, said("hi", "Hello, Ben.", "I am Ben."))

    assert anna[0] != ben[0]
    assert await counted(gate, ben[0]) == 3


@pytest.mark.feature("X3")
async def test_conversations_with_names_never_meet(gate):
    one = await send(gate, said("hi", "Fine.", "there"), x_refold_conversation="one")
    two = await send(gate, said("hi", "Fine.", "there"), x_refold_conversation="two")

    assert (one[0], two[0]) == ("one", "two")
    assert one[1] != two[1]


# The response


PATHS = {"/v1/chat/completions": "messages", "/v1/responses": "input", "/v1/messages": "messages"}


def of_its_kind(reply):
    """A reply without the numbers that the scripted provider gives to its replies."""
    return re.sub(rb'"(?:item_)?id": ?"[^"]*"|"created(?:_at)?": ?\d+', b"", reply)


@pytest.mark.feature("X5", "X20", "N7")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_reply_reaches_the_client_byte_for_byte_and_its_usage_is_read(path, is_stream):
    reply = say("Süß, was? 🎉 " * 20, usage=Usage(input=6_500, output=40))
    body = {"model": "gpt-5", PATHS[path]: said(TEXT * 12), "stream": is_stream}
    body |= {"stream_options": {"include_usage": True}} if "chat" in path else {}
    body |= {"max_tokens": 100} if "messages" in path else {}
    sent = json.dumps(body).encode()
    async with (
        ScriptedUpstream(otherwise=reply, window=None) as upstream,
        served(
            upstream, window=8_000, summariser_enabled=False, compaction_preset="llms", cache_ttl="off"
        ) as gate,
    ):
        status, told, through = await gate.post(path, sent, x_refold_conversation="one")
        own, gate.url = gate.url, upstream.url
        _, _, direct = await gate.post(path, sent)
        gate.url = own
        _, found = await asked(gate, "GET", "conversations/one")

    assert upstream.requests[0].body == sent
    assert (status, told["x-refold-action"]) == (200, "passed")
    assert of_its_kind(through) == of_its_kind(direct)
    assert found["tokens"] == 6_500
    assert found["ratio"] == pytest.approx(6_500 / found["limit"])
    assert found["flag"] == "6,500 tokens >= 80 % of 8,000"  # the next request is compacted


@pytest.mark.feature("X5")
async def test_a_usage_chunk_that_we_asked_for_is_stripped_again():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=8_000, compaction_include_usage=True) as gate,
        gate.openai() as client,
    ):
        stream = await client.chat.completions.create(model="gpt-5", messages=said("Why?"), stream=True)
        chunks = [chunk async for chunk in stream]
        assert upstream.requests[0].json["stream_options"] == {"include_usage": True}
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.feature("X20")
@pytest.mark.parametrize("then", ["end", "reset", "error"])
async def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_one(then):
    chunks, is_ended = [], False
    async with (
        ScriptedUpstream(
            otherwise=Broken("A sentence that will not be finished, ever, by anybody.", 4, then)
        ) as upstream,
        served(upstream, window=8_000) as gate,
        gate.openai() as client,
    ):
        stream = await client.chat.completions.create(model="gpt-5", messages=said("Why?"), stream=True)
        with suppress(Exception):  # the SDK decides which error it raises
            async for chunk in stream:
                chunks.append(chunk)  # noqa: PERF401  # the chunks before the error count
            is_ended = True
        again = [*said("Why?"), answer("A sentence"), question("Go on.")]
        upstream.script(otherwise="Fine.")
        reply = await client.chat.completions.create(model="gpt-5", messages=again)

    assert chunks
    assert not is_ended  # the client is told
    assert not any(chunk.choices and chunk.choices[0].finish_reason for chunk in chunks)
    assert reply.choices[0].message.content == "Fine."
    assert [one.text for one in upstream.requests[-1].messages] == ["Why?", "A sentence", "Go on."]


@pytest.mark.feature("X20", "X4")
async def test_streams_with_tool_calls_go_on_through_compactions():
    """The scripted provider refuses every request that breaks the rules of the format or exceeds the window."""
    history = []
    async with (
        ScriptedUpstream(window=4_000) as upstream,
        served(upstream, window=4_000, summariser_enabled=False) as gate,
        gate.anthropic() as client,
    ):
        for turn in range(12):
            upstream.script(
                say("I will look.", call("read", {"path": f"f{turn}.py"})), f"File {turn} is fine."
            )
            history.append(question(f"Step {turn}: {TEXT[:800]}"))
            for _ in range(2):
                asking = client.messages.stream(model="claude-opus-4-8", max_tokens=200, messages=history)
                async with asking as stream:
                    reply = await stream.get_final_message()
                blocks = [block.model_dump(exclude_none=True) for block in reply.content]
                history.append({"role": "assistant", "content": blocks})
                history += [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": one["id"], "content": TEXT[:1_200]}
                        ],
                    }
                    for one in blocks
                    if one["type"] == "tool_use"
                ]
            assert blocks[0]["text"] == f"File {turn} is fine."
    assert len(upstream.requests) == 24
    assert len(upstream.requests[-1].messages) < len(history) - 1


# Four ways to summarise


def asked_and_sent(strategy, tmp_path, monkeypatch, capsys, *, window="4000", keep=()):
    """Compact a stored conversation with a strategy; return the questions to the model, and the summary."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with Engine(url, model="gpt-4o", window=60_000) as engine:
        talk = engine.conversation("shop")
        for number in range(12):
            talk.add(*file_turn(number, lines=60))
        talk.add(question("Which value has file 3?"))
    with ScriptedUpstream(otherwise="The user asked what is in each file, and was told.") as upstream:
        writer = ["--summariser", f"gpt-4o@{upstream.url}/v1", "--preset", "opal"]
        args = ["compact", "shop", "--window", window, "--max-output", "400", "--store", url, *writer, *keep]
        code = run([*args, *(["--strategy", strategy] if strategy else [])])
        capsys.readouterr()
        questions = [json.loads(one.body) for one in upstream.requests]
    assert code == 0
    with Engine(url, model="gpt-4o", preset="opal", window=4_000, max_output=400) as engine:
        talk = engine.conversation("shop")
        sent = json.dumps(talk.context()["messages"])
    return questions, sent


@pytest.mark.feature("X10")
def test_the_strategy_of_a_summary_is_chosen_at_the_command_line(tmp_path, monkeypatch, capsys):
    found = {}
    for strategy in ("", "abstractive", "hierarchical", "selective", "extractive", "truncate"):
        folder = tmp_path / (strategy or "default")
        folder.mkdir()
        found[strategy] = asked_and_sent(strategy, folder, monkeypatch, capsys)
    asked = {name: len(questions) for name, (questions, _) in found.items()}
    assert asked["extractive"] == asked["truncate"] == 0
    assert asked[""] == asked["abstractive"] >= 1
    assert asked["hierarchical"] >= 1
    assert "value_3" in json.dumps(found["abstractive"][0])
    assert "value_3 =" not in json.dumps(found["selective"][0])  # results of tools are left out
    assert "[Compacted messages: " in found["truncate"][1]
    assert "[Compacted messages: " not in found["extractive"][1]


@pytest.mark.feature("X10")
def test_hierarchical_reads_in_parts_what_would_fit_at_once(tmp_path, monkeypatch, capsys):
    """The conversation has 5,800 tokens, and a part at most 4,000."""
    asked = {}
    for strategy in ("abstractive", "hierarchical"):
        folder = tmp_path / strategy
        folder.mkdir()
        questions, _ = asked_and_sent(
            strategy, folder, monkeypatch, capsys, window="60000", keep=("--keep", "400")
        )
        asked[strategy] = [json.dumps(one) for one in questions]
    assert len(asked["abstractive"]) == 1
    assert len(asked["hierarchical"]) == 3
    first, second, merge = asked["hierarchical"]
    assert "value_1 =" in first
    assert "value_1 =" not in second
    assert "The user asked what is in each file" in merge


@pytest.mark.feature("X10")
async def test_the_strategy_of_a_summary_is_a_setting_of_the_gateway():
    said = [message for number in range(30) for message in file_turn(number)]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=4_000, compaction_preset="opal", summariser_strategy="truncate") as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[*said, question("And now?")])
        assert len(upstream.requests) == 1
        assert "[Compacted messages: " in upstream.requests[-1].body.decode()


@pytest.mark.feature("X10")
def test_an_unknown_strategy_is_refused(capsys):
    assert run(["compact", str(ROOT / "examples/coding-agent.json"), "--strategy", "guess", "--dry-run"]) != 0
    assert "summariser.strategy" in "".join(capsys.readouterr())


# Models


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the catalogue is offline"))


MAJOR = (
    *("openai", "anthropic", "google", "mistral", "deepseek", "xai", "amazon-bedrock", "azure", "openrouter"),
    *("groq", "alibaba", "moonshotai", "zai", "cohere", "togetherai", "fireworks-ai"),
)


@pytest.mark.feature("X8")
def test_limits_and_prices_of_the_major_providers_are_known_offline(capsys, no_network):
    for provider in MAJOR:
        assert run(["models", f"{provider}/*", "--json"]) == 0
        models = json.loads(capsys.readouterr().out)["models"]
        fields = ("window", "max_output", "input_price", "output_price")
        assert sum(all(one[field] is not None for field in fields) for one in models) >= 5
    assert run(["models", "openai/gpt-4o", "--json"]) == 0
    (model,) = [one for one in json.loads(capsys.readouterr().out)["models"] if one["id"] == "gpt-4o"]
    assert (model["window"], model["max_output"]) == (128_000, 16_384)
    assert (model["input_price"], model["output_price"], model["cache_read_price"]) == (2.5, 10, 1.25)


@pytest.mark.feature("X8", "O15")
@pytest.mark.parametrize(
    ("model", "window", "source"),
    [
        ("gpt-4o", 128_000, "catalogue"),
        ("claude-sonnet-4-20250514", 200_000, "catalogue"),
        ("models/gemini-2.5-pro", 1_048_576, "catalogue"),
        ("gpt-4o-of-my-own", 128_000, "pattern"),
        ("claude-of-my-own", 200_000, "pattern"),
        ("brand-new", 128_000, "default"),
    ],
)
def test_the_window_of_a_model_is_known_by_its_name(model, window, source, no_network):
    talk = Conversation(model)
    assert (talk.window.tokens, talk.window.source) == (window, source)


@pytest.mark.feature("X8")
def test_a_call_is_billed_by_the_prices_of_its_model():
    talk = Conversation("gpt-4o")
    talk.add(question("Why?"))
    talk.context()
    talk.record({"prompt_tokens": 1_000_000, "completion_tokens": 100_000})
    assert talk.bill.spent == pytest.approx(2.5 + 1.0)


# Policies side by side


@pytest.mark.feature("X17")
def test_presets_are_compared_on_a_recorded_conversation(capsys):
    presets = ("refold", "opal", "llms")
    chosen = [word for name in presets for word in ("--preset", name)]
    data = str(ROOT / "examples/coding-agent.json")
    assert run(["replay", data, *chosen, "--window", "8000", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]

    assert [(one["candidate"], one["window"]) for one in rows] == [(name, 8_000) for name in presets]
    assert {one["calls"] for one in rows} == {52}  # all have answered the same calls
    assert [one["fits"] for one in rows] == [100.0] * 3
    assert len({json.dumps(one["dollars"]) for one in rows}) == 3


# Keys, owners and secrets

WORDS = "the tide tables of Bergen"


@pytest.mark.feature("X18")
async def test_a_key_opens_the_conversations_of_its_owner_and_no_others(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "refold")
    keys = {
        owner: (await asyncio.to_thread(cli, tmp_path, "keys", "create", "--owner", owner)).strip()
        for owner in ("anna", "ben")
    }
    store = await open_store(f"sqlite:///{tmp_path / 'chats.db'}")
    async with (
        ScriptedUpstream(otherwise=lambda one: Refuse(500) if one.number == 2 else "Fine.") as upstream,
        served(upstream, store=store, window=8_000, summariser_enabled=False) as gate,
    ):
        body = json.dumps({"model": "gpt-5", "messages": said(WORDS)}).encode()
        wrong = f"{keys['anna'][:-1]}{'0' if keys['anna'][-1] != '0' else '1'}"
        for given in ({}, {"x_refold_key": wrong}, {"authorization": "Bearer sk-own"}):
            assert (await gate.post("/v1/chat/completions", body, **given))[0] in (401, 403)
        assert upstream.requests == []
        for _ in range(2):
            await gate.post(
                "/v1/chat/completions",
                body,
                x_refold_key=keys["anna"],
                authorization="Bearer sk-own-of-anna",
                x_refold_conversation="ships",
            )
        assert (await asked(gate, "GET", "conversations/ships", key=keys["anna"]))[0] == 200
        assert (await asked(gate, "GET", "conversations", key=keys["ben"])) == (200, [])
        for page in ("", "/sessions", "/receipts"):
            assert (await asked(gate, "GET", f"conversations/ships{page}", key=keys["ben"]))[0] == 404
        assert (await asked(gate, "POST", "conversations/ships/compact", {}, key=keys["ben"]))[0] == 404
        name, _ = await send(gate, said(WORDS), x_refold_key=keys["ben"])
        assert name != "ships"
        assert all(keys["anna"] not in str(one.headers) for one in upstream.requests)
    await store.close()
    assert caplog.records
    for private in (WORDS, keys["anna"], keys["anna"].rpartition("_")[2], "sk-own-of-anna", wrong):
        assert private not in caplog.text


SECRET = "sk-kJ3dE6gH9jK2mN5pQ8rS1tU4vW7xY0z"
NIGHTINGALE = "Never tell anyone about project Nightingale."


@pytest.mark.feature("X19", "L16")
@pytest.mark.parametrize("how", ["marked", "matched", "secret"])
@pytest.mark.parametrize("has_model", [True, False])
async def test_what_is_sensitive_stays_out_of_summaries_and_embeddings(how, has_model):
    text, words = (f"The key is {SECRET}.", SECRET) if how == "secret" else (NIGHTINGALE, "Nightingale")
    embedder = Subjects()
    async with ScriptedUpstream(otherwise=SUMMARY) as writer:
        settings = {
            "summariser": f"small@{writer.url}/v1" if has_model else None,
            "sensitive": [r"(?i)\bnightingale\b"] if how == "matched" else [],
        }
        async with refold.Engine(
            "memory:", model="gpt-4o", window=20_000, embedder=embedder, **settings
        ) as engine:
            talk = await engine.conversation("shop")
            await talk.add(question(text), sensitive=how == "marked")
            assert words in str(await talk.context())  # the conversation's own model reads it
            await talk.add(answer("I see."))
            await grow(talk, 6)
            await talk.add(question("And now?"))
            shown = json.dumps(await talk.compact(keep=400))
            original = await talk.recall("#m0")
    assert bool(writer.requests) is has_model
    assert not any(words in one.body.decode() for one in writer.requests)
    assert embedder.read
    assert not any(words in one for one in embedder.read)
    assert words not in shown
    assert words in original["content"]


PASSWORD = "hunter2277xyz"


def told_secrets(turns=40):
    """A long chat: the task and a rule hold a secret, and a password is said again without its name."""
    yield user_said(f"Never forget: the key is {SECRET}. Log in with {PASSWORD} first.")
    yield {"role": "assistant", "content": "I see."}
    yield user_said(f"By the way, the password is {PASSWORD}")
    yield {"role": "assistant", "content": f"I typed {PASSWORD} and went on."}
    for number in range(turns):
        yield user_said(f"Question {number} about the module_{number}: {TEXT[:600]}")
        yield {"role": "assistant", "content": f"Answer {number}: {TEXT[:600]}"}


def user_said(text):
    return {"role": "user", "content": text}


def is_without_secrets(text):
    return SECRET not in text and PASSWORD not in text and "[api key]" in text


@pytest.mark.feature("X19")
@pytest.mark.parametrize("preset", ALL)
def test_secrets_stay_out_of_the_summaries_that_no_model_writes(preset):
    talk = Conversation("gpt-4o", window=4_000, preset=preset)
    for message in told_secrets():
        talk.add(message)
        if message["role"] == "user":
            shown = json.dumps(talk.context())
            if talk.receipts and talk.receipts[-1].decision == "summarise":
                assert is_without_secrets(shown)
    made = [one for one in talk.receipts if one.summary]
    assert made
    assert all(is_without_secrets(one.summary.text) for one in made)
    shown = json.dumps(talk.compact(keep=400))
    assert is_without_secrets(shown)
    assert SECRET in str(talk.recall("#m0"))


@pytest.mark.feature("X19")
def test_no_command_writes_a_secret_into_a_summary(tmp_path):
    chat, short = tmp_path / "chat.json", tmp_path / "short.json"
    chat.write_text(json.dumps(list(told_secrets())))
    cli(tmp_path, "compact", str(chat), "--window", "4000", "--output", str(short))
    assert is_without_secrets(short.read_text())
    cli(tmp_path, "import", str(chat), "--as", "shop")
    cli(tmp_path, "compact", "shop", "--window", "4000")
    assert is_without_secrets(cli(tmp_path, "recall", "shop", "#s0"))


@pytest.mark.feature("X19")
async def test_the_gateway_sends_no_secret_in_a_summary_of_its_own():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=4_000, summariser_enabled=False) as gate,
    ):
        await send(gate, list(told_secrets())[:-1])
        sent = upstream.requests[-1].body.decode()
    assert "Task #m0: " in sent
    assert is_without_secrets(sent)


@pytest.mark.feature("X19", "L3")
async def test_a_closed_session_is_resumed_without_its_secrets(tmp_path):
    async with refold.Engine(f"sqlite:///{tmp_path}/a.db", model="gpt-4o", window=4_000) as engine:
        talk = await engine.conversation("shop")
        await talk.add(*told_secrets(6))
        await talk.start_session()
        closed, _ = await engine.sessions("shop")
        (written,) = await engine.summaries([closed.summary])
        assert is_without_secrets(written.summary.text)
    async with refold.Engine(f"sqlite:///{tmp_path}/a.db", model="gpt-4o", window=1_500) as engine:
        talk = await engine.conversation("shop")
        await talk.resume(closed)
        await talk.add("And now?")
        assert is_without_secrets(json.dumps(await talk.context()))
