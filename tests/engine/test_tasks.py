"""What a summariser is given, and what is taken out before."""

from __future__ import annotations

import pytest
from msgspec import Raw, structs

from refold.core.presets import PRESETS
from refold.engine.state import Secrecy
from refold.engine.summary_source import task_of
from refold.model.dialect import CHAT
from refold.model.message import Message, Origin, Text, assistant, system, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Budget
from refold.model.window import FixedFields, Tool
from tests.engine.action_player import Played
from tests.engine.conversations import COUNTER, agent_turn

SAID = "the password is hunter2222"


def talk_of(
    *messages: Message, prompt: str = "be kind", tools: tuple[Tool, ...] = (), secrecy=None
) -> Played:
    fixed, budget = FixedFields(CHAT, (system(prompt),), tools), Budget(window=100_000)
    policy = structs.replace(PRESETS["opal"], manual=None)
    talk = Played(fixed, budget, policy, COUNTER, secrecy=secrecy)
    talk.add(*messages)
    return talk


def task(talk: Played, **changes):
    for number in range(20, 30):
        talk.add(*agent_turn(number, size=3_000))
    talk.add(user("and now?"))
    window, request = talk.context(), talk.wanted_now()
    request = structs.replace(request, **changes)
    return task_of(request, talk.folded, talk.frame, secrecy=talk.secrecy, sent=window)


@pytest.mark.feature("X19")
def test_what_is_clean_is_given_as_it_was_sent():
    given = task(talk_of(user("hello"), assistant("hi")))
    assert given.sent[:2] == (user("hello"), assistant("hi"))
    assert given.system == (system("be kind"),)


@pytest.mark.feature("X19")
@pytest.mark.parametrize(
    "talk",
    [
        lambda: talk_of(user(SAID), assistant("hi")),
        lambda: talk_of(user("hello"), assistant("hi"), prompt="Use api_key=hunter2222 for it."),
        lambda: talk_of(user("hello"), assistant("hi"), tools=(Tool("curl", schema='{"default": "sk-aB3dE6gH9jK2mN5pQ8rS"}'),)),
        lambda: talk_of(user("hello"), assistant("hi"), secrecy=Secrecy.of(("be kind",))),
        lambda: talk_of(user("hello"), assistant("hi"), secrecy=Secrecy.of(("hello",))),
        lambda: talk_of(Message("user", (Text("hello"),), Origin("chat", Raw(b'{"role":"user","content":"hello","note":"password=hunter2222"}')))),
    ],
    ids=["message", "prompt", "tool", "prompt that matches", "message that matches", "unknown field"],
)  # fmt: skip
def test_messages_are_not_given_as_they_were_sent_where_anything_had_to_be_taken_out(talk):
    given = task(talk())
    assert given.passages
    assert (given.sent, given.system, given.tools) == ((), (), ())
    assert "hunter2222" not in str(given)


@pytest.mark.feature("X19")
def test_a_secret_is_taken_out_wherever_it_was_copied_to():
    talk = talk_of(
        user(f"{SAID}. Never write hunter2222 down."), assistant("I decided to use hunter2222."), user("ok")
    )
    before = Summary("It says hunter2222 there.", 0, 1, 10, "extractive", "cumulative")
    given = task(talk, previous=(before,), first=0)
    assert given.ledger.rules == ("Never write [secret] down.",)
    assert given.ledger.decisions == ("I decided to use [secret].",)
    assert given.previous == "It says [secret] there."
    assert given.passages[1].message.text == "I decided to use [secret in #m1]."
    assert "hunter2222" not in str(given)


@pytest.mark.feature("X19")
def test_a_sensitive_message_is_named_in_its_place():
    talk = talk_of(user("hello"))
    talk.add(assistant("We decided to buy Contoso."), user("Never say so."), sensitive=True)
    talk.add(tool("c", "fine"), sensitive=True)
    given = task(talk)
    assert [one.message.text for one in given.passages[:3]] == ["hello", "[withheld: #m1]", "[withheld: #m2]"]
    assert given.passages[3].message.results[0].text == "[withheld: #m3]"
    assert given.ledger.decisions == given.ledger.rules == ()
    assert given.sent == ()
