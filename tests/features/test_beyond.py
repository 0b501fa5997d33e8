"""The features that no seed system has, through the doors that users have."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from msgspec import structs

import refold
from refold import presets
from refold.cli.main import run
from refold.core.policy import Age, LastMessages, ReportedOverflow
from refold.engine.events import text_of
from refold.sync import Conversation, Engine, answer_recall
from refold.testing import Say, ScriptedUpstream
from tests.core.conversations import TextCounter
from tests.damage import damage
from tests.features.folds import ALL, LongWriter, Run, Writer
from tests.features.tool_outputs import FAILURES, LOOK_ALIKES
from tests.formats import KEYS, answer, chat_call, chat_result, question, turn, violations
from tests.gateway.conftest import served

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-agent.json"
LEAST_RECOGNISED = 20
GOAL = "Port the invoice service to version 7 and never touch billing/ledger.py."


@pytest.mark.feature("N1")
@pytest.mark.parametrize("format_name", KEYS)
@pytest.mark.parametrize("preset", ["refold", "lis", "opal", "llms", "picoclaw", "librechat"])
def test_every_request_of_every_preset_is_valid_and_fits(preset, format_name):
    talk = Conversation(
        "gpt-4o", preset=preset, format=format_name, window=4_000, max_output=400, system="Be brief."
    )
    talk.add(question(GOAL), answer("I will."))
    for number in range(24):
        *asked, reply = turn(number, format_name)
        talk.add(*asked)
        fields = talk.context()
        assert violations(fields, format_name) == ()
        assert talk.measurement.content.tokens <= 3_600
        talk.add(reply)
    assert talk.receipts
    assert GOAL in json.dumps(fields)


@pytest.mark.feature("N1")
def test_no_candidate_of_a_replay_is_as_good_as_the_default_in_everything(capsys):
    """By a command that needs no model. docs/evaluation.md has the same for recorded sessions, and what a real model gets."""
    assert run(["replay", str(EXAMPLE), "--baselines", "--json", "--window", "2k", "--window", "8k"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["fits"] == row["valid"] == 100]
    assert {(row["candidate"], row["window"]) for row in rows} >= {
        (name, window) for name in ALL for window in (2_000, 8_000)
    }
    for row in rows:
        default = next(one for one in rows if (one["candidate"], one["window"]) == ("refold", row["window"]))
        known = [row[name] >= default[name] for name in ("fur_old", "bound", "phrases_old")]
        is_cheaper = row["dollars"]["anthropic"] <= default["dollars"]["anthropic"]
        assert row is default or not (all(known) and is_cheaper), row["candidate"]


def stored_talk(url, preset="refold"):
    """Store a conversation that is folded, and return its messages and the ones that are sent of it."""
    said = [question("Get the shop running."), answer("I will.")]
    said += [message for number in range(14) for message in turn(number, lines=80)]
    with Engine(url, model="gpt-4o", window=8_000, max_output=800, preset=preset) as engine:
        talk = engine.conversation("shop")
        talk.add(*said, question("And now?"))
        sent = talk.context()["messages"]
        assert talk.receipts
    return said, sent


@pytest.mark.feature("N2")
def test_a_damaged_tool_call_takes_no_other_message_with_it(tmp_path):
    path = tmp_path / "chats.db"
    said = [
        question("How high is the water?"),
        chat_call("gauge", at="Vik"),
        chat_result("gauge", "high at the pier"),
    ]
    with Engine(path, model="gpt-4o", window=8_000) as engine:
        engine.conversation("tides").add(*said, answer("High."), question("And now?"))
    damage(path, "tides", 1)
    with Engine(path, model="gpt-4o", window=8_000) as engine:
        talk = engine.conversation("tides")
        fields = talk.context()
        assert "high at the pier" in json.dumps(fields)
        assert violations(fields, "chat") == ()
        assert talk.status().damaged == (1,)
        with pytest.raises(refold.Damaged, match="1"):
            talk.recall("#m1")


@pytest.mark.feature("N2")
@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_message_that_is_not_shown_has_a_handle_that_opens_it(preset, tmp_path):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    said, sent = stored_talk(url, preset)
    hidden = [number for number, message in enumerate(said) if message not in sent]
    text = json.dumps(sent)
    named = {
        number
        for first, last in re.findall(r"#m(\d+)(?:\.\d+)?(?: to #m(\d+))?", text)
        for number in range(int(first), int(last or first) + 1)
    }
    assert hidden
    assert set(hidden) <= named
    with Engine(url) as engine:
        talk = engine.conversation("shop")
        assert [talk.recall(f"#m{number}") for number in range(len(said))] == said


@pytest.mark.feature("N2")
def test_an_original_comes_back_by_a_command_and_by_the_model_s_tool(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    said, _ = stored_talk(url)
    assert run(["recall", "shop", "#m4", "--json", "--store", url]) == 0
    assert json.loads(capsys.readouterr().out)["found"] == said[4]
    assert run(["search", "value_7", "--store", url]) == 0
    assert "#m" in capsys.readouterr().out
    with Engine(url) as engine:
        talk = engine.conversation("shop")
        told = answer_recall(talk, json.dumps({"what": "#m5"}))
        found = answer_recall(talk, json.dumps({"what": "value_7"}))
    assert "File 0 sets value_0 to 0." in told
    assert "value_7 = 259" in found


@pytest.mark.feature("N2")
async def test_an_original_comes_back_over_mcp(tmp_path):
    mcp = pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
    tools = pytest.importorskip("refold.integrations.mcp", reason="the server needs a newer `mcp`")
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    said, _ = stored_talk(url)
    async with refold.Engine(url) as engine:

        async def opened():
            return engine

        async with mcp.Client(tools.server_for(tools.ConversationTools(opened))) as client:
            found = await client.call_tool("recall", {"conversation": "shop", "handle": "#m5"})
    assert said[5]["content"] in found.content[0].text


@pytest.mark.feature("N5")
def test_a_model_whose_prices_are_known_is_folded_where_that_is_cheapest():
    """Reading costs half of writing at gpt-4o, and nothing is known about the other model."""
    reasons = {}
    for model in ("gpt-4o", "some-model"):
        talk = Conversation(model, window=32_000, max_output=1_000)
        for number in range(120):
            *asked, reply = turn(number, lines=40)
            talk.add(*asked)
            talk.context()
            talk.add(reply)
            if talk.receipts:
                break
        reasons[model] = talk.receipts[0].reason
    assert "tokens cost more to carry along than to fold, from" in reasons["gpt-4o"]
    assert "do not fit into" in reasons["some-model"]


@pytest.mark.feature("N5")
def test_the_bill_says_what_was_saved():
    """Told call by call: 1,000 characters are said, then they are folded, and the rest is arithmetic."""
    talk = Conversation("gpt-4o-mini", counter=TextCounter(), window=100_000, max_output=0)
    talk.add("q" * 600, answer("a" * 300), "w" * 100)
    talk.context()
    talk.record({"prompt_tokens": 2_000, "completion_tokens": 50})
    assert (talk.bill.saved, talk.bill.whole) == (0, 2_000)

    talk.add(answer("b" * 100))
    talk.add("x" * 100)
    talk.compact()
    sent = talk.measurement.content.tokens
    assert sent < 1_200
    talk.record(
        {"prompt_tokens": 2 * sent, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}}
    )

    # The provider counts two for one of ours: 2,400 would have been sent, 2,000 of them read from the cache.
    without = (2_000 * 0.15 + 50 * 0.60) + (2_000 * 0.075 + 400 * 0.15 + 50 * 0.60)
    spent = (2_000 * 0.15 + 50 * 0.60) + (2 * sent * 0.15 + 50 * 0.60)
    assert talk.bill.whole == 2_400
    assert talk.bill.spent == pytest.approx(spent / 1e6)
    assert talk.bill.saved == pytest.approx((without - spent) / 1e6)


def folded_text(*messages, turns=20, **settings):
    """Return the text of a context in which the messages are folded, behind later turns."""
    talk = Conversation("gpt-4o", **{"window": 8_000, "max_output": 800, **settings})
    talk.add(question("Get the shop running."), *messages, answer("I see."))
    for number in range(turns):
        talk.add(*turn(number, lines=80))
    talk.add(question("And now?"))
    sent = talk.context()["messages"]
    assert talk.receipts
    assert not any(message in sent for message in messages if message["role"] == "tool")
    return "\n".join(str(message["content"]) for message in sent)


def listed(text, title):
    """Return the entries under a heading, as one text with single blanks."""
    found, lines = [], iter(text.splitlines())
    if title in lines:
        for line in lines:
            if not line.startswith("- "):
                break
            found.append(" ".join(line[2:].split()))
    return "\n".join(found)


def errors_after(command, output):
    return listed(folded_text(chat_call("bash", command=command), chat_result("bash", output)), "## Errors")


@pytest.mark.feature("N3")
def test_the_errors_of_the_usual_tools_are_kept():
    kept = {name: errors_after(failure.command, failure.output) for name, failure in FAILURES.items()}
    missed = [
        name for name, failure in FAILURES.items() if not all(line in kept[name] for line in failure.errors)
    ]
    assert len(FAILURES) == 22
    assert len(FAILURES) - len(missed) >= LEAST_RECOGNISED, missed


@pytest.mark.feature("N3")
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_only_looks_like_an_error_is_not_listed(name):
    assert errors_after("./look", LOOK_ALIKES[name]) == ""


ORDER = "ORD-99123"


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "messages",
    [
        (question(f"The customer of {ORDER} was charged twice, 1,299.50 EUR each time."),),
        (
            chat_call("find_order", customer="c-7"),
            chat_result("find_order", f'{{"order": "{ORDER}", "state": "paid", "total": 1299.50}}'),
        ),
        (answer(f"I have reserved {ORDER} for them."),),
    ],
    ids=["user", "result", "reply"],
)
def test_an_id_is_kept_with_the_words_around_it(messages):
    noise = [
        message for number in range(30) for message in (question(f"Look at f{number}."), answer("I did."))
    ]
    entries = listed(folded_text(*messages, *noise), "## Ids and numbers")
    assert ORDER in entries
    assert any(word in entries for word in ("charged twice", '"state": "paid"', "reserved"))
    if messages[0]["role"] == "user":
        assert "1,299.50 EUR" in entries


@pytest.mark.feature("N3")
async def test_ids_that_a_model_left_out_are_added_to_its_summary():
    async def forgetful(messages, *, previous, max_tokens):
        return "The user has an order that was charged twice, and looked at files after that."

    async with refold.Conversation("gpt-4o", window=8_000, max_output=800, summariser=forgetful) as talk:
        await talk.add(question("Hello."), answer("Hello."), question(f"{ORDER} was charged twice."))
        await talk.add(answer("I see."))
        for number in range(14):
            await talk.add(*turn(number, lines=80))
        await talk.compact()
        await talk.add(question("And now?"))
        text = str((await talk.context())["messages"])
    assert talk.receipts[-1].summary.kind == "model"
    assert "looked at files after that" in text
    assert ORDER in text


FAILED_RUN = "\n".join(
    (
        *(f"tests/test_part_{number}.py ....." for number in range(380)),
        "FAILED tests/test_cart.py::test_total - assert 237 == 238",
        "1 failed, 750 passed in 3.12s",
    )
)
"""About 3,800 tokens. Its first words do not say that it failed."""
PASSED_RUN = "...........\n751 passed in 3.08s"


def run_of_tests(number, output, **arguments):
    call = chat_call("bash", command="pytest tests", **arguments)
    call["tool_calls"][0]["id"] = f"call_{number}"
    return call, {"role": "tool", "tool_call_id": f"call_{number}", "content": output}


def results_in(messages):
    return [message["content"] for message in messages if message["role"] == "tool"]


def a_fixed_error(second=PASSED_RUN):
    return [
        question("Make the tests pass."),
        *run_of_tests(1, FAILED_RUN, description="Run the tests"),
        answer("The tax is not rounded. I have changed it."),
        *run_of_tests(2, second, description="Run the tests again", timeout=60),
        answer("They pass."),
        question("Explain the change. " + "Say it in detail. " * 600),
        answer("It rounds. " * 400),
        question("And now?"),
    ]


@pytest.mark.feature("N12")
def test_a_failed_run_of_tests_is_the_first_to_go_after_a_pass():
    talk = Conversation("gpt-4o", window=8_000, max_output=800)
    said = a_fixed_error()
    talk.add(*said)
    sent = talk.context()["messages"]
    assert results_in(sent) == ["[an error, fixed in #m5; this was #m2]", PASSED_RUN]
    assert [one for one in sent if one["role"] != "tool"] == [one for one in said if one["role"] != "tool"]
    assert [(edit.seq, edit.reason) for edit in talk.receipts[-1].edits] == [(2, "fixed in #m5")]
    assert talk.recall("#m2") == said[2]


@pytest.mark.feature("N12")
def test_a_failed_run_that_failed_again_is_not_called_fixed():
    text = folded_text(*a_fixed_error(FAILED_RUN.replace("237", "239"))[1:-1], turns=2)
    assert "fixed in" not in text


@pytest.mark.feature("N12")
async def test_the_gateway_replaces_a_failed_run_after_a_pass():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=a_fixed_error(), max_tokens=800)
        sent = json.loads(upstream.requests[-1].body)["messages"]
    assert results_in(sent) == ["[an error, fixed in #m5; this was #m2]", PASSED_RUN]


@pytest.mark.feature("N12", "N3")
def test_an_error_that_was_fixed_leaves_the_list_of_errors():
    run = FAILURES["gcc"]
    failed = (chat_call("bash", command=run.command), chat_result("bash", run.output), answer("I see."))
    passed = (chat_call("bash", command=run.command), chat_result("bash", "done\n"), answer("Built."))
    assert "has no member named 'nxt'" in listed(folded_text(*failed), "## Errors")
    assert listed(folded_text(*failed, *passed), "## Errors") == ""


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


def idle_policy(seconds):
    return structs.replace(
        presets.OPAL, name="idle", triggers={"turn_start": Age(seconds)}, cut=LastMessages(2)
    )


@pytest.mark.feature("X11")
async def test_a_conversation_that_rested_is_compacted_by_its_age(tmp_path):
    """The time of the last call is stored: another program knows it too."""
    clock, url = Clock(), f"sqlite:///{tmp_path / 'chats.db'}"
    for number, pause in enumerate((0, 100, 299, 300)):
        clock.now += pause
        async with refold.Engine(url, model="gpt-4o", policy=idle_policy(300), clock=clock) as engine:
            talk = await engine.conversation("shop")
            await talk.add(*turn(number), question("And?"))
            await talk.context()
            assert [one.reason for one in talk.receipts] == (
                ["300.0 seconds without a call >= 300"] if pause == 300 else []
            )
            await talk.add(answer("Well."))


@pytest.mark.feature("X11", "O13")
@pytest.mark.parametrize(("reported", "is_compacted"), [(9_999, False), (10_000, False), (10_001, True)])
def test_a_report_above_the_window_fires_its_trigger(reported, is_compacted):
    policy = structs.replace(
        presets.OPAL, name="clipped", triggers={"after_call": ReportedOverflow()}, cut=LastMessages(2)
    )
    talk = Conversation("gpt-4o", policy=policy, window=10_000, max_output=500)
    for number in range(6):
        talk.add(*turn(number, lines=70))
    talk.add(question("And now?"))
    talk.context()
    talk.record({"prompt_tokens": reported, "completion_tokens": 9, "total_tokens": reported + 9})
    talk.add(answer("Well."))
    reasons = [one.reason for one in talk.receipts]
    assert reasons == (["10,001 reported tokens > 10,000"] if is_compacted else [])


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "## Goal\n## Progress",
        "I'm sorry, but I can't help with that.",
        "value_3 = 111\n" * 4_000,
    ],
    ids=["empty", "only headings", "a refusal", "longer than its source"],
)
async def test_a_text_that_is_no_summary_is_not_used(text):
    async def writer(messages, *, previous, max_tokens):
        return text

    async with refold.Conversation("gpt-4o", window=8_000, max_output=800, summariser=writer) as talk:
        await talk.add(question("Get the shop running."), answer("I will."))
        for number in range(14):
            *asked, reply = turn(number, lines=80)
            await talk.add(*asked)
            await talk.context()
            await talk.add(reply)
            await talk.ready()
    assert "model" not in {one.author for one in talk.receipts}
    assert [one.author for one in talk.receipts if one.summary]


@pytest.mark.feature("N4")
async def test_a_summary_is_there_when_the_window_is_full():
    asked_at = []

    async def writer(messages, *, previous, max_tokens):
        asked_at.append(talk.measurement.content.tokens)
        return "The user wants the shop to run. Files were read."

    async with refold.Conversation("some-model", window=8_000, max_output=800, summariser=writer) as talk:
        await talk.add(question("Get the shop running."), answer("I will."))
        for number in range(60):
            *asked, reply = turn(number)
            await talk.add(*asked)
            sent = await talk.context()
            await talk.add(reply)
            await talk.ready()
            if talk.receipts:
                break
    limit = 8_000 - 800 - 80
    assert 0.8 * limit <= asked_at[0] < 0.9 * limit
    assert [one.author for one in talk.receipts] == ["model"]
    assert "The user wants the shop to run." in str(sent["messages"])


@pytest.mark.feature("N4", "L17", "P5")
@pytest.mark.parametrize("window", [4_000, 16_000])
@pytest.mark.parametrize("preset", ALL)
async def test_a_configured_model_writes_the_summaries_whatever_the_window(preset, window):
    run = Run(preset, window, Writer())
    await run.play(3, words=window // 200)
    assert run.writer.asked >= 3
    assert run.folds().keys() <= {"model"} or run.count(refold.SummarySwitched) >= 1
    assert run.folds()["model"] + run.count(refold.SummarySwitched) >= 3
    assert run.count(refold.SummaryDiscarded) == 0
    await run.chat.close()


@pytest.mark.feature("N4")
@pytest.mark.parametrize("turns", [2, 8])
async def test_a_slow_model_is_bridged_by_a_digest_and_its_summary_is_used(turns):
    run = Run("refold", 8_000, Writer(turns))
    await run.play(4, words=60)
    used = run.folds()["model"] + run.count(refold.SummarySwitched)
    assert used >= run.writer.asked - 1  # the last one may still stand by for the next fold
    assert run.count(refold.SummaryDiscarded) == 0
    texts = [str(fields["messages"][0]["content"]) for fields in run.sent]
    assert any("The user asks about crates." in text for text in texts)
    await run.chat.close()


@pytest.mark.feature("N4")
@pytest.mark.parametrize("words", [30, 40, 60])
async def test_no_paid_summary_is_lost_in_a_window_that_fills_fast(words):
    """One may be written while the one before it replaces its digest, or just as a digest takes its place."""
    run = Run("refold", 4_000, Writer(3))
    await run.play(8, words=words)
    used = run.folds()["model"] + run.count(refold.SummarySwitched)
    assert run.count(refold.SummaryDiscarded) == 0
    assert run.count(refold.SummaryWritten) - used <= 1
    await run.chat.close()


@pytest.mark.feature("N4", "N5")
@pytest.mark.parametrize(
    ("preset", "window", "seed"),
    [
        ("refold", 4_000, 1),
        ("refold", 8_000, 2),
        ("refold", 12_000, 2),
        ("refold", 32_000, 4),
        ("lis", 8_000, 2),
    ],
)
async def test_no_paid_summary_is_larger_than_what_it_replaces(preset, window, seed):
    run = Run(preset, window, LongWriter())
    run.writer.count = run.chat.state.counter.text
    await run.work(seed)
    assert run.writer.asked
    ends = [one for one in run.events if isinstance(one, refold.CompactionEnd)]
    assert [one.problem for one in ends if "it takes" in one.problem] == []
    assert [one.reason for one in run.chat.receipts if "it takes" in one.reason] == []
    used = run.folds()["model"] + run.count(refold.SummarySwitched) + run.count(refold.SummaryDiscarded)
    assert run.writer.asked - used <= 2  # one may be ready, and another one stand by for its digest
    await run.chat.close()


@pytest.mark.feature("N4", "N5")
@pytest.mark.parametrize("role", ["system", "user"])
async def test_a_model_is_not_asked_about_a_reminder_alone(role):
    run = Run("refold", 6_000, LongWriter())
    run.writer.count = run.chat.state.counter.text
    note = "<system-reminder>\n" + "The branch is main and clean.\n" * 210 + "</system-reminder>"
    opening = [question("Find the lost boat."), {"role": role, "content": note}]
    await run.chat.add(*(opening if role == "system" else reversed(opening)))
    await run.chat.add({"role": "system", "content": "Be brief."})
    for number in range(8):
        text = "".join(f"pier {number} has boat {place} at anchor\n" for place in range(260))
        call, result = chat_call("read", path=f"{number}.txt"), chat_result("read", text)
        call["tool_calls"][0]["id"] = result["tool_call_id"] = f"call_{number}"
        await run.chat.add(call, result)
        await run.chat.context()
        await run.chat.ready()
    asked = [{one["role"] for one in source} for source in run.writer.sources]
    assert asked
    assert all("assistant" in roles for roles in asked)
    await run.chat.close()


@pytest.mark.feature("N10", "N4")
async def test_an_undo_opens_a_fold_that_a_model_s_summary_replaced_as_a_whole():
    run, is_switched = Run("refold", 8_000, Writer(8)), False
    for number in range(400):
        run.writer.turn += 1
        await run.chat.add("Where is the next crate? " + "It was blue and heavy. " * 60)
        shown = len((await run.chat.context())["messages"])
        is_switched = bool(run.events) and isinstance(run.events[-1], refold.SummarySwitched)
        if is_switched:
            break
        await run.chat.add({"role": "assistant", "content": f"Crate {number} is in hall {number % 7}."})
        await asyncio.sleep(0.002)
    assert is_switched
    assert "The user asks about crates." in run.chat.state.folded.summaries[-1].text
    folds = (await run.chat.status()).compactions
    assert await run.chat.undo()
    assert (await run.chat.status()).compactions == folds - 1
    assert len(run.chat.state.folded.shown) > shown
    await run.chat.close()


class CrateWriter(Writer):
    """A summariser that fills its room with sentences of its own."""

    async def __call__(self, messages, *, previous, max_tokens):
        text = await super().__call__(messages, previous=previous, max_tokens=max_tokens)
        lines = (
            f"Crate {at} is blue, heavy and in hall {at % 7}, as said." for at in range(max_tokens // 22)
        )
        return "\n".join((text, *lines))


@pytest.mark.feature("N10")
async def test_a_summary_that_replaces_a_digest_in_a_full_window_is_followed_by_a_compaction_that_fits():
    run = Run("refold", 4_000, CrateWriter(2))
    await run.play(4, words=60, turns=120)
    full = [
        at
        for at, event in enumerate(run.events)
        if isinstance(event, refold.SummarySwitched) and event.after.tokens > event.after.limit
    ]
    assert full
    for at in full:
        assert text_of(run.events[at]).endswith("; a compaction follows")
        done = next(one for one in run.events[at:] if isinstance(one, refold.CompactionEnd))
        assert (done.outcome, done.after.tokens <= done.after.limit) == ("installed", True)
        assert done.before.tokens >= run.events[at].after.tokens
    await run.chat.close()


@pytest.mark.feature("N3")
async def test_the_lists_beside_a_model_s_summary_have_what_left_and_not_what_is_shown():
    async def write(messages, *, previous, max_tokens):
        return "The user takes orders for the harbour. " * 10

    talk = refold.Conversation("gpt-4o", window=4_000, summariser=write)
    for number in range(60):
        await talk.add(f"Please note order ORD-{5_000 + number} for the harbour, and keep it in mind.")
        await talk.context()
        await talk.add(answer("Noted. " + "The harbour is calm and the boats lie still by the pier. " * 6))
        await talk.ready()
    fields = await talk.context()
    summary, *shown = (str(one["content"]) for one in fields["messages"])
    assert "The user takes orders" in summary
    listed, below = ({*re.findall(r"ORD-\d+", text)} for text in (summary, " ".join(shown)))
    assert len(listed) > 5
    assert not listed & below
    await talk.close()


@pytest.mark.feature("N6", "X17")
def test_a_recording_is_replayed_under_several_policies_side_by_side(capsys, tmp_path):
    page = tmp_path / "report.html"
    presets_of = ["--preset", "refold", "--preset", "opal"]
    assert run(["replay", str(EXAMPLE), *presets_of, "--window", "8000", "--report", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("window 8,000: 1 recording, 52 calls")
    assert lines[1].startswith("lines: ")
    names = {*lines[3].split(), *lines[7].split()}
    assert {"valid", "fits", "near", "mid", "far", "$", "p50", "p95"} <= names
    for head, *rows in (lines[3:6], lines[7:10]):
        assert [row.split()[0] for row in rows] == ["refold", "opal"]
        assert {len(row.split()) for row in rows} == {len(head.split())}
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "Window of 8,000 tokens" in text
    assert text.count("<svg") >= 1


@pytest.mark.feature("N6")
def test_programs_get_the_replay_as_one_document(capsys):
    args = ["replay", str(EXAMPLE), "--preset", "refold", "--window", "8000", "--json", "--baselines"]
    assert run(args) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert (rows[0]["candidate"], rows[0]["valid"], rows[0]["fits"]) == ("refold", 100.0, 100.0)
    assert rows[0]["fur_old"] > 80
    assert rows[0]["dollars"]["anthropic"] > 0
    assert rows[0]["latency_ms"]["p95"] > 0
    assert len(rows) > 5


async def ask_chat(gate, messages, *, stream):
    async with gate.openai() as client:
        asked = {"model": "gpt-4o", "messages": messages, "max_tokens": 500}
        if not stream:
            return (await client.chat.completions.create(**asked)).choices[0].message.content
        async with client.chat.completions.stream(**asked) as events:
            return (await events.get_final_completion()).choices[0].message.content


async def ask_responses(gate, messages, *, stream):
    async with gate.openai() as client:
        # The SDK takes long over a long list of items that it knows of.
        more = {"extra_body": {"input": messages}}
        asked = {"model": "gpt-4o", "max_output_tokens": 500, "store": False, **more}
        if not stream:
            return (await client.responses.create(**asked)).output_text
        async with client.responses.stream(**asked) as events:
            return (await events.get_final_response()).output_text


async def ask_anthropic(gate, messages, *, stream):
    async with gate.anthropic() as client:
        asked = {"model": "claude-opus-4-8", "messages": messages, "max_tokens": 500}
        if not stream:
            return (await client.messages.create(**asked)).content[0].text
        async with client.messages.stream(**asked) as events:
            return await events.get_final_text()


ASK = {"chat": ask_chat, "responses": ask_responses, "anthropic": ask_anthropic}


@pytest.mark.feature("N7")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("format_name", ASK)
async def test_the_official_clients_of_three_formats_stay_inside_the_window(format_name, stream):
    async with (
        ScriptedUpstream(otherwise="Fine.", window=8_000) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        said = [question(GOAL), answer("I will.")]
        for first in (0, 24):
            said += [message for number in range(first, first + 24) for message in turn(number, format_name)]
            said.append(question("And now?"))
            assert await ASK[format_name](gate, said, stream=stream) == "Fine."
            said.append(answer("Fine."))
        assert all(isinstance(one, Say) for one in upstream.answered)
        body = json.loads(upstream.requests[-1].body)
        (listed,) = await gate.store.conversations("local")
    assert len(body[KEYS[format_name]]) < len(said) / 2
    assert GOAL in json.dumps(body)
    assert listed.compactions >= 1


@pytest.mark.feature("N10")
def test_a_compaction_is_previewed_shown_undone_and_done_again_with_another_preset(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    said = [message for number in range(10) for message in turn(number, lines=60)]
    with Engine(url, model="gpt-4o", window=100_000) as engine:
        talk = engine.conversation("shop")
        talk.add(*said, question("And now?"))
        whole = talk.context()["messages"]
        preview = talk.preview()
        assert preview.after < preview.before
        assert talk.context()["messages"] == whole
        talk.compact()
        folded = talk.context()["messages"]
        assert len(folded) < len(whole)

    place = ["--store", url]
    assert run(["diff", "shop", "--json", *place]) == 0
    assert capsys.readouterr().out
    assert run(["rerun", "shop", "--preset", "lis", *place]) == 0
    with Engine(url, model="gpt-4o", window=100_000) as engine:
        again = engine.conversation("shop").context()["messages"]
    assert again[0]["role"] == "assistant"
    assert "Here is context from the previous conversation session" in again[0]["content"]
    assert run(["undo", "shop", *place]) == 0
    with Engine(url, model="gpt-4o", window=100_000) as engine:
        assert engine.conversation("shop").context()["messages"] == whole


@pytest.mark.feature("N10")
def test_a_compaction_is_done_again_by_another_preset_and_another_model():
    async def writer(messages, *, previous, max_tokens):
        return "The user looked at files, one after the other."

    talk = Conversation("gpt-4o", window=100_000)
    talk.add(*(message for number in range(10) for message in turn(number, lines=60)), question("And now?"))
    assert talk.compact()["messages"][0]["role"] == "user"
    assert talk.rerun(policy=presets.LIS)
    assert talk.context()["messages"][0]["role"] == "assistant"
    assert talk.rerun(summariser=writer)
    assert "The user looked at files, one after the other." in str(talk.context()["messages"])


SQUARED = "The books were squared away gladly."


def as_anthropic(messages):
    """The same history as a client of Anthropic's has it."""
    out = []
    for message in messages:
        if message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            out.append({"role": "user", "content": [block]})
        elif calls := message.get("tool_calls"):
            blocks = [
                {
                    "type": "tool_use",
                    "id": one["id"],
                    "name": one["function"]["name"],
                    "input": json.loads(one["function"]["arguments"]),
                }
                for one in calls
            ]
            out.append({"role": "assistant", "content": blocks})
        else:
            out.append(message)
    return out


@pytest.mark.feature("N11")
async def test_a_conversation_goes_on_in_another_format_with_its_summary():
    def reply(received):
        is_talk = received.messages[-1].text in ("And now?", "And then?")
        return "Fine." if is_talk else f"## Goal\nGet the shop running.\n## Progress\n{SQUARED}"

    async with (
        ScriptedUpstream(otherwise=reply) as upstream,
        served(upstream, window=8_000, compaction_preset="librechat") as gate,
    ):
        said = [question(GOAL), answer("I will.")]
        said += [message for number in range(60) for message in turn(number)]
        said.append(question("And now?"))
        assert await ask_chat(gate, said, stream=False) == "Fine."
        assert SQUARED in upstream.requests[-1].body.decode()
        asked = len(upstream.requests)
        said += [answer("Fine."), question("And then?")]
        assert await ask_anthropic(gate, as_anthropic(said), stream=False) == "Fine."
        sent = upstream.requests[-1]
        (listed,) = await gate.store.conversations("local")
    assert len(upstream.requests) == asked + 1  # the summary is not written twice
    assert sent.path.endswith("/messages")
    assert SQUARED in sent.body.decode()
    assert listed.branches == 2


@pytest.mark.feature("N11")
async def test_a_smaller_model_takes_over():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        said = [question(GOAL), answer("I will.")]
        said += [message for number in range(40) for message in turn(number)]
        said.append(question("And now?"))
        await client.chat.completions.create(model="gpt-4o", messages=said)
        assert json.loads(upstream.requests[-1].body)["messages"] == said
        said += [answer("Fine."), question("And then?")]
        await client.chat.completions.create(model="gpt-4", messages=said, max_tokens=500)
        sent = json.loads(upstream.requests[-1].body)["messages"]
    assert len(sent) < 0.6 * len(said)
    assert GOAL in json.dumps(sent)


@pytest.mark.feature("N11")
async def test_a_compaction_that_one_model_made_is_sent_to_another_in_words():
    block = {"type": "compaction", "content": f"{SQUARED} The build is next."}
    said = [
        question("Fix the build."),
        {"role": "assistant", "content": [block, {"type": "text", "text": "Done so far."}]},
        question("Go on."),
    ]
    async with ScriptedUpstream(otherwise="Fine.") as upstream, served(upstream, window=8_000) as gate:
        for model in ("claude-opus-4-8", "claude-haiku-4-5"):
            body = {"model": model, "max_tokens": 300, "messages": said}
            status, _, _ = await gate.post("/v1/messages", json.dumps(body).encode())
            assert status == 200
        own, other = (json.loads(one.body)["messages"] for one in upstream.requests)
    assert own[1] == said[1]
    assert SQUARED in json.dumps(other)
    assert '"compaction"' not in json.dumps(other)


@pytest.mark.feature("N4", "L2")
@pytest.mark.parametrize("preset", ["refold", "lis"])
@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("act", ["compact", "focus", "start_session", "close"])
async def test_a_question_in_progress_is_used_or_reported_as_discarded(preset, is_folded, act):
    """Every question that a model was asked ends with an event, and one that is paid for is waited for."""
    answers, events, asked = asyncio.Event(), list[object](), 0

    async def write(messages, previous=None, **_):
        nonlocal asked
        asked += 1
        await answers.wait()
        return "The crates are in the hall. The user looks for the blue one. Next: crate 40."

    chat = refold.Conversation(
        "gpt-4o",
        preset=preset,
        window=8_000,
        summariser=write,
        summariser_timeout_s=2.0,
        on_event=events.append,
    )
    number = 0
    while not (asked and (not is_folded or chat.receipts)):
        await chat.add(f"Where is crate {number}? " + "It was blue. " * 60)
        await chat.context()
        await chat.add({"role": "assistant", "content": "In the hall. " * 10})
        await asyncio.sleep(0.001)
        number += 1
    first = asked
    doing = {
        "compact": chat.compact,
        "focus": lambda: chat.compact(focus="the blue crate"),
        "start_session": chat.start_session,
        "close": chat.close,
    }[act]
    task = asyncio.create_task(doing())
    await asyncio.sleep(0.01)
    answers.set()
    await task
    await asyncio.sleep(0.05)  # a closed session is summarised in the background
    await chat.close()
    ended = [one for one in events if isinstance(one, (refold.SummaryWritten, refold.SummaryFailed))]
    lost = [one for one in events if isinstance(one, refold.SummaryDiscarded)]
    assert first == 1
    assert len(ended) + len(lost) >= asked
    if act == "compact":
        assert not lost


@pytest.mark.feature("L2")
@pytest.mark.parametrize("is_detached", [False, True])
async def test_a_session_s_summary_that_a_close_stops_is_reported(is_detached):
    """The model was asked about the closed session, or before it was closed, and had not answered yet."""
    asked, events = asyncio.Event(), list[object]()

    async def write(messages, previous=None, **_):
        asked.set()
        await asyncio.sleep(3_600)
        return ""

    chat = refold.Conversation("gpt-4o", window=8_000, summariser=write, on_event=events.append)
    for number in range(60):
        if asked.is_set() or (number == 8 and not is_detached):
            break
        await chat.add(f"Where is crate {number}? " + "It was blue. " * 60)
        await chat.context()
        await chat.add({"role": "assistant", "content": "In the hall. " * 10})
        await asyncio.sleep(0.001)
    await chat.start_session()
    await asyncio.wait_for(asked.wait(), 30)
    await chat.close()
    lost = [one for one in events if isinstance(one, refold.SummaryDiscarded)]
    assert [one.reason for one in lost] == ["the conversation was closed while it was written"]


@pytest.mark.feature("N10")
async def test_a_summary_that_an_undo_makes_useless_names_the_undo():
    answers, events, asked = asyncio.Event(), list[object](), []

    async def write(messages, previous=None, **_):
        asked.append(len(messages))
        if len(asked) > 1:
            await answers.wait()
        return "The crates are in the hall. The user looks for the blue one."

    chat = refold.Conversation("gpt-4o", window=8_000, summariser=write, on_event=events.append)
    for number in range(200):
        await chat.add(f"Where is crate {number}? " + "It was blue. " * 60)
        await chat.context()
        await chat.add({"role": "assistant", "content": "In the hall. " * 10})
        await asyncio.sleep(0.001)
        if len(asked) > 1:
            break
    assert await chat.undo()
    answers.set()
    await chat.ready()
    lost = [one for one in events if isinstance(one, refold.SummaryDiscarded)]
    assert [one.reason for one in lost] == ["the compaction was undone"]
    await chat.close()


PLANTED = "The spare key of the pump house hangs behind the third fire bucket."


class Reader:
    """A summariser that fails as long as it is told to, and remembers its questions."""

    def __init__(self):
        self.fails, self.questions = True, []

    async def __call__(self, messages, *, previous, max_tokens):
        if self.fails:
            raise TimeoutError
        self.questions.append((previous, json.dumps(messages)))
        return "The user asks about crates, and each was found in one of the halls."


async def talk_until_folded(talk, start, words=60):
    """Talk until the conversation is folded once more, and return the number of the next turn."""
    folds = len([one for one in talk.receipts if one.summary])
    for number in range(start, start + 80):
        fact = PLANTED if number == 3 else f"Crate {number} is in hall {number % 7}."
        await talk.add(f"Where is crate {number}? " + "It was blue and heavy. " * words)
        await talk.context()
        await talk.add({"role": "assistant", "content": f"{'So it is. ' * 40}{fact}{' As it was.' * 40}"})
        await talk.ready()
        if len([one for one in talk.receipts if one.summary]) > folds:
            return number + 1
    raise AssertionError("it was not folded")


@pytest.mark.feature("N3")
@pytest.mark.parametrize("preset", [one for one in ALL if one != "lis"])
@pytest.mark.parametrize("folds", [1, 2])
async def test_a_model_reads_the_messages_that_were_folded_while_it_failed(preset, folds, tmp_path):
    """Without the model a digest, or a text of counts, stood for them; after a restart as well. In the preset lis
    a summary covers its own messages only.
    """
    reader, url = Reader(), f"sqlite:///{tmp_path / 'chats.db'}"
    clock = Clock()
    settings = {"model": "gpt-4o", "window": 8_000, "max_output": 800, "preset": preset, "clock": clock}
    async with refold.Engine(url, summariser=reader, **settings) as engine:
        talk, turns = await engine.conversation("crates"), 0
        for _ in range(folds):
            turns = await talk_until_folded(talk, turns)
        assert talk.receipts[-1].author != "model"
    reader.fails, clock.now = False, clock.now + 600
    async with refold.Engine(url, summariser=reader, **settings) as engine:
        talk = await engine.conversation("crates")
        await talk_until_folded(talk, turns)
    previous, read = reader.questions[0]
    assert PLANTED in read
    assert previous == ""


@pytest.mark.feature("N3")
async def test_a_model_s_summary_is_updated_with_what_was_folded_without_it(tmp_path):
    """A model wrote, then failed while a digest was made, then wrote again."""
    reader, url = Reader(), f"sqlite:///{tmp_path / 'chats.db'}"
    reader.fails = False
    async with refold.Engine(
        url, summariser=reader, model="gpt-4o", window=8_000, max_output=800, preset="opal"
    ) as engine:
        talk = await engine.conversation("crates")
        turns = await talk_until_folded(talk, 100)
        assert talk.receipts[-1].author == "model"
        reader.fails = True
        await talk_until_folded(talk, 0)
        assert talk.receipts[-1].author == "mechanical"
        reader.fails = False
        await talk_until_folded(talk, turns)
    previous, read = reader.questions[-1]
    assert "each was found in one of the halls" in previous
    assert PLANTED in read
    assert "Where is crate 100?" not in read
