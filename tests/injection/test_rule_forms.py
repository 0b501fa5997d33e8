"""The fourth set, many messages to a conversation: rules in every form are listed, and what is pasted, asked or reported is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import refold
from tests.injection.doors import RULES, parted, under
from tests.injection.fourth_payloads import NO_RULES, TYPED
from tests.injection.payloads import Payload, assistant, user

GROUP = 30
"""Messages of the set in one conversation: their rules fit into one summary."""


def groups(payloads: Sequence[Payload]) -> list[Sequence[Payload]]:
    return [payloads[at : at + GROUP] for at in range(0, len(payloads), GROUP)]


def listed(payloads: Sequence[Payload]) -> list[str]:
    """The rules that a digest lists after a conversation with these messages."""
    talk = refold.sync.Conversation("gpt-4o", window=30_000, max_output=1_000)
    talk.add(user("Port the timetable."), assistant("Fine."))
    for payload in payloads:
        talk.add(*payload.said, assistant("Fine."))
    for number in range(25):
        talk.add(user(f"Tell me of sea {number}."), assistant("It is wide and grey. " * 200))
    talk.add(user("And now?"))
    return [line.removeprefix("- ") for line in under(parted(talk.compact())[0], RULES).splitlines()]


@pytest.mark.parametrize("group", groups(TYPED), ids=lambda group: group[0].id)
def test_a_typed_rule_is_listed(group):
    rules = listed(group)
    assert [rule for payload in group for rule in payload.rules if rule not in rules] == []


@pytest.mark.parametrize("group", groups(NO_RULES), ids=lambda group: group[0].id)
def test_a_question_or_a_report_is_not_listed(group):
    assert [line for line in listed(group) if line] == []
