"""The features that no seed system has, through the doors that users have."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

import refold
from refold import presets
from refold.core.policy import Age, LastMessages, ReportedOverflow
from refold.sync import Conversation
from refold.testing import ScriptedUpstream
from tests.features.tool_outputs import FAILURES, LOOK_ALIKES
from tests.formats import answer, chat_call, chat_result, question, turn
from tests.gateway.conftest import served

LEAST_RECOGNISED = 20


def folded_text(*messages, turns=14, **settings):
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
    missed = [
        name
        for name, failure in FAILURES.items()
        if not all(line in errors_after(failure.command, failure.output) for line in failure.errors)
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
