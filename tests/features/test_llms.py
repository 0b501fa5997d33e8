"""The features of the preset `llms` and of the HTTP API, through the doors that users have."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from contextlib import AsyncExitStack, redirect_stdout
from pathlib import Path

import aiohttp
import pytest

import refold
from refold.cli.main import run
from refold.model.tokens import Usage
from refold.stores.url import open_store
from refold.testing import Refuse, ScriptedUpstream, say
from tests.features.folds import ALL, FOREVER, WAITING, Run, Writer
from tests.formats import answer, question
from tests.gateway.conftest import served, target_for
from tests.gateway.test_admin import asked
from tests.gateway.test_summarisers import SUMMARY, either, is_question, told

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


async def chat_until_folded(gate, *, ready=True, turns=101, **headers):
    """Send a growing conversation, and return the response headers of each request."""
    found = []
    for turn in range(1, turns, 2):
        body = json.dumps({"model": "gpt-5", "messages": told(turn), "max_tokens": 100}).encode()
        status, said, _ = await gate.post(
            "/v1/chat/completions", body, x_refold_conversation="ships", **headers
        )
        assert status == 200
        found.append(said)
        for live in (await gate.gateway.host("local")).table if ready else ():
            await live.conversation.ready()
    return found


@pytest.mark.feature("X4", "X6", "X9")
@pytest.mark.parametrize(
    "is_model_up, settings, summary",
    [
        (True, {}, "model gpt-5"),
        (False, {}, "digest; the model "),
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
        sent = await chat_until_folded(gate)
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
def test_the_commands_name_the_author_of_a_summary(tmp_path):
    why = "digest; no summariser is configured"
    cli(tmp_path, "import", str(ROOT / "examples/coding-agent.json"), "--as", "shifts")
    cli(tmp_path, "compact", "shifts", "--window", "12000")

    sessions = json.loads(cli(tmp_path, "sessions", "shifts", "--json"))
    assert (sessions["summary"], sessions["sessions"][0]["author"]) == (why, why)
    assert why in cli(tmp_path, "conversations")
    store = f"sqlite:///{tmp_path / 'chats.db'}"
    program = [sys.executable, "-m", "refold", "show", "shifts", "--json", "--store", store]
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


@pytest.mark.feature("X1")
async def test_a_preset_that_needs_a_permission_says_which_flag_gives_it(tmp_path):
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served(upstream, window=8_000) as gate:
        body = json.dumps({"model": "gpt-5", "messages": told(1)}).encode()
        status, _, refused = await gate.post("/v1/chat/completions", body, x_refold_preset="picoclaw")
    assert (status, b"--compaction-allow-system-summary" in refused) == (400, True)

    serve = [sys.executable, "-m", "refold", "serve", "--compaction-preset", "picoclaw", "--server-port", "0"]
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
    folded = actions.index("summarise")

    assert set(actions[:folded]) == {"none"}
    assert set(actions[folded:]) == {"summarise", "earlier"}
    for one in sent:
        whole, shown = one["x-refold-tokens"].split("->")
        assert (whole == shown) == (one["x-refold-action"] == "none")


@pytest.mark.feature("X12")
async def test_another_gateway_on_the_same_store_sees_changed_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("refold.gateway.app.LOOK_S", 0.3)
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
        await asyncio.sleep(0.4)
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
    assert all(fields["messages"][-1]["content"].startswith("Where is crate") for fields in run.sent)
    await run.chat.close()


@pytest.mark.feature("X6")
async def test_a_model_that_hangs_is_waited_for_no_longer_than_the_setting_says():
    run = Run("opal", 8_000, Writer(FOREVER), summariser_timeout_s=0.05)
    await run.play(1, words=40)
    assert run.folds() == {"mechanical": 1}
    await run.chat.close()
