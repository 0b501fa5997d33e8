"""What is shown of a huge message, through a conversation whose policy cuts it as it arrives."""

import json

import pytest
from msgspec import structs

from refold.core.stages import DescribeMedia, DropHalf
from refold.model.dialect import CHAT
from refold.model.message import Image, Message, Text, ToolCall, assistant, tool, user
from refold.model.tokens import Budget
from refold.model.window import FixedFields
from refold.replay import ReferenceCounter
from refold.tokens import FittedCounter
from tests.engine.action_player import Played
from tests.policies import ARRIVING
from tests.work import calls_made

WINDOW = 8_000
COUNTER = ReferenceCounter()
LOG = "\n".join(f"12:00:{n % 60:02} worker_{n % 3} handled request {n}" for n in range(900))


def conversation(policy=None) -> Played:
    return Played(FixedFields(CHAT), Budget(window=WINDOW), policy or ARRIVING, COUNTER)


def asked(talk: Played, number: int = 0) -> Played:
    talk.add(
        user(f"Run job {number}."), assistant("Now.", ToolCall(f"c{number}", "run", f'{{"job": {number}}}'))
    )
    return talk


def shown(talk: Played) -> Message:
    return talk.context().messages[-1]


def test_what_has_its_share_stays_as_it_came():
    talk = asked(conversation())
    result = tool("c0", "done in 3 s")
    talk.add(result)
    assert shown(talk) is result
    assert talk.receipts == ()


@pytest.mark.feature("C5")
def test_of_a_huge_result_the_ends_and_the_news_are_shown():
    talk = asked(conversation())
    talk.add(tool("c0", f"{LOG}\nERROR disk_full on host_alpha code 5150\n{LOG}\nexit status 3 after 99 s"))
    text = shown(talk).results[0].text
    assert text.startswith("12:00:00 worker_0 handled request 0\n")
    assert "ERROR disk_full on host_alpha code 5150" in text
    assert text.endswith("exit status 3 after 99 s")
    assert COUNTER.message(shown(talk)) < 0.2 * WINDOW
    assert talk.recall("#m2").results[0].text.count("\n") > 1_800
    (receipt,) = talk.receipts
    assert (receipt.decision, receipt.edits[0].handle) == ("reduce", "#m2")


def test_what_is_in_sight_is_not_quoted_again():
    talk = asked(conversation())
    first, second = (
        f"{LOG}\nbuild_alpha is ready\n{LOG}",
        f"{LOG}\nbuild_alpha is ready\nbuild_beta is late\n{LOG}",
    )
    talk.add(tool("c0", first), assistant("build_alpha is ready, I run it again."))
    asked(talk, 1).add(tool("c1", second))
    assert "build_beta is late" in shown(talk).results[0].text.splitlines()
    assert "build_alpha is ready" not in shown(talk).results[0].text.splitlines()


@pytest.mark.feature("C5")
def test_huge_arguments_stay_valid():
    talk = conversation()
    talk.add(
        user("Write it."),
        assistant("", ToolCall("w", "write_file", json.dumps({"path": "a.py", "text": LOG}))),
    )
    talk.add(tool("w", "written"))
    (call,) = talk.context().messages[1].calls
    assert json.loads(call.arguments)["path"] == "a.py"
    assert len(call.arguments) < len(LOG) / 4


def test_the_rules_in_a_huge_question_stay_word_for_word():
    rule = (
        "Never touch the public API of billing/api.py, and always run the linter before you commit anything."
    )
    talk = conversation()
    talk.add(user(f"Here is the log.\n{LOG}\n{rule}\n{LOG}\nWhat is wrong?"))
    text = shown(talk).text
    assert rule in text
    assert text.startswith("Here is the log.")
    assert text.endswith("What is wrong?")
    assert COUNTER.message(shown(talk)) <= 0.4 * WINDOW


def test_instructions_are_never_cut():
    talk = conversation()
    message = Message("developer", (Text("\n".join(f"rule {n}" for n in range(1_500))),))
    talk.add(user("hello"), assistant("hi"), message, user("go on"))
    assert message in talk.context().messages


def test_nothing_is_cut_by_a_policy_that_does_not_ask_for_it():
    talk = asked(conversation(structs.replace(ARRIVING, arrival=())))
    result = tool("c0", LOG[:16_000])
    talk.add(result)
    assert shown(talk) is result


def test_other_stages_can_be_run_on_arrival_but_none_takes_the_message_away():
    talk = conversation(structs.replace(ARRIVING, arrival=(DescribeMedia(), DropHalf())))
    talk.add(Message("user", (Text("look"), Image(media_type="image/png", data="AAAA"))))
    assert talk.context().messages[0].text == "look\n[image image/png #m0.2]"


def test_a_message_of_a_megabyte_takes_no_more_work_than_one_of_a_quarter():
    def work(lines):
        talk, days = asked(conversation()), [f"2025-01-{n:02}" for n in range(1, 29)]
        said = (f"{days[n % 28]} INFO svc_{n % 97} request_{n} took {n * 7 % 999} ms" for n in range(lines))
        message = tool("c0", "\n".join(said))
        return calls_made(lambda: talk.add(message))

    assert work(22_000) < 1.5 * work(5_500)


def test_the_words_beside_a_picture_are_not_cut_for_it():
    talk = Played(FixedFields(CHAT), Budget(window=1_800), ARRIVING, FittedCounter())
    shown_to_us = Message(
        "user",
        (Text("Oh, sorry: it is S-20417. Here is the crack."), Image(media_type="image/png", data="AAAA")),
    )
    talk.add(shown_to_us)
    assert shown(talk) is shown_to_us
    assert talk.receipts == ()
