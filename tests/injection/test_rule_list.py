"""The list of the user's rules keeps the oldest as well as the newest, however little room there is for it."""

from __future__ import annotations

import refold
from tests.injection.doors import RULES, parted, under
from tests.injection.payloads import assistant, user


def talk_of(count: int) -> list[dict]:
    """Each of so many rules in a message of its own, and then enough to fill the window."""
    rules = [(user(f"Never open the door to room number {at}."), assistant("Fine.")) for at in range(count)]
    rest = [(user(f"Tell me of sea {at}."), assistant("It is wide. " * 150)) for at in range(14)]
    return [message for turn in (*rules, *rest) for message in turn]


def room(at: int) -> str:
    return f"Never open the door to room number {at}."


def test_in_a_digest():
    talk = refold.sync.Conversation("gpt-4o", window=3_000, max_output=100)
    talk.add(*talk_of(60), user("And now?"))
    lead, _ = parted(talk.context())

    listed = under(lead, RULES)
    assert room(59) in listed
    assert room(1) in listed  # the first is the task as well, and not said twice
    assert room(30) not in listed


async def test_in_a_summary_of_little_room():
    async def summarise(messages, *, previous, max_tokens):
        return "The user named many rooms, and then asked about the sea, which is wide."

    async with refold.Conversation("gpt-4o", window=3_000, max_output=100, summariser=summarise) as talk:
        await talk.add(*talk_of(150))
        await talk.ready()
        await talk.add(user("And now?"))
        lead, _ = parted(await talk.compact())

    listed = under(lead, RULES)
    assert room(149) in listed
    assert room(1) in listed
    assert room(75) not in listed
