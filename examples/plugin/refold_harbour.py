"""A plugin for Refold with every point: see README.md beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import refold
from refold.plugins import (
    FilterRequest,
    FilterResponse,
    Message,
    RequestChange,
    Room,
    ShownMessages,
    TriggerFacts,
    map_texts,
    replace_texts,
)

EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}")
STAMP = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z? ?")
FORBIDDEN = "embargoed cargo"


def hide_addresses(request: FilterRequest) -> RequestChange | None:
    """Request filter: no e-mail address leaves, and nothing about an embargoed cargo."""
    if FORBIDDEN in str(request.messages):
        return RequestChange(refusal="this cargo is under an embargo")
    hidden = {
        index: replace_texts(message, lambda text: EMAIL.sub("[address]", text))
        for index, message in enumerate(request.messages)
    }
    changed = {index: message for index, message in hidden.items() if message != request.messages[index]}
    return RequestChange(messages=changed, reason="e-mail addresses") if changed else None


def read_reply(response: FilterResponse) -> str | None:
    """Response filter: an answer with the harbour's key does not reach the client."""
    is_leak = any("HARBOUR-KEY-" in str(message.get("content")) for message in response.messages)
    return "the answer holds a key" if is_leak else None


def drop_time_stamps(shown: ShownMessages, room: Room) -> Mapping[int, Message]:
    """Stage: results of tools lose their time stamps, when a conversation is compacted anyway."""
    found = dict[int, Message]()
    for index, item in enumerate(shown.items):
        if item.message.results and room.may_touch(shown, index):
            new = map_texts(item.message, lambda text: STAMP.sub("", text))
            if new.characters + 40 < item.message.characters:
                found[item.seq] = new
    return found


def at_low_water(facts: TriggerFacts) -> str:
    """Trigger: compact after 200 messages, however short they are."""
    return f"{facts.messages} messages" if facts.messages > 200 else ""


def first_lines(messages: Sequence[Mapping[str, Any]], *, previous: str, max_tokens: int) -> str:
    """Summariser: the first line of what each side said."""
    lines = [str(message.get("content") or "").splitlines()[:1] for message in messages]
    text = "\n".join([previous, *(f"- {line[0][:80]}" for line in lines if line)]).strip()
    return text[: 3 * max_tokens]


class ByWord:
    """Counter: four tokens for three words, for models named harbour-*."""

    source = "estimated"

    def text(self, text: str) -> int:
        return max(len(text.split()) * 4 // 3, len(text) // 8)

    def message(self, message: Message) -> int:
        return 4 + message.characters // 5


async def open_pier(url: str) -> refold.Store:
    """Store: pier://NAME is a file NAME.db in the current folder."""
    from refold.stores.url import open_store

    return await open_store(f"./{url.removeprefix('pier://').strip('/')}.db")


async def tide(called: refold.CommandCall) -> str:
    """Command: /tide in a chat."""
    return f"High water at {called.arguments or 'the pier'}: 12:04."


plugin = refold.Plugin(
    name="harbour",
    api=1,
    version="1.0.0",
    fails="closed",  # no request is sent if the addresses could not be hidden
    timeout_s=2.0,
    on_request=hide_addresses,
    on_response=read_reply,
    stages=[drop_time_stamps],
    triggers={"after_call": at_low_water},
    summarisers={"first-lines": first_lines},
    counters={"harbour-*": ByWord()},
    stores={"pier": open_pier},
    commands=[refold.Command(name="/tide", usage="place", summary="when the water is high", run=tide)],
    presets={"harbour": refold.presets.OPAL},
)
