"""The features that no seed system has, through the doors that users have."""

from __future__ import annotations

import pytest

from refold.sync import Conversation
from tests.features.tool_outputs import FAILURES, LOOK_ALIKES
from tests.formats import answer, chat_call, chat_result, question, turn

LEAST_RECOGNISED = 20
KNOWN_WRONG = {"manual": pytest.mark.xfail(strict=True, reason="listed as an error")}


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


@pytest.mark.xfail(strict=True, reason="0 of 22 are recognised")
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
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=KNOWN_WRONG.get(name, ())) for name in LOOK_ALIKES]
)
def test_what_only_looks_like_an_error_is_not_listed(name):
    assert errors_after("./look", LOOK_ALIKES[name]) == ""
