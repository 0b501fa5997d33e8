"""Content gains no authority: every payload, through the library, the command and the gateway."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import pytest

from tests.injection.doors import Seen, by_command, by_digest, by_gateway, by_model, faults
from tests.injection.payloads import PAYLOADS, Payload
from tests.injection.second_payloads import SECOND
from tests.injection.third_payloads import THIRD

EVERY = (*PAYLOADS, *SECOND, *THIRD)
PLAIN = tuple(one for one in EVERY if not one.written)
STEP = 6
"""A short run puts one payload in so many through the doors behind which a server or a command runs; a long run all of them."""
KNOWN = {"model page-opening-alone"}
"""Doors and payloads that get what they want there; what is mended is taken off the list. A first message that is nothing but a page
cannot be told from a task: in a digest it is quoted as the task anyway, and in a model's summary its order stands among the rules.
"""
UNTOLD = {
    *(
        f"third-{one}"
        for one in [
            "ja-announce",
            "ko-announce",
            "tr-announce",
            "vi-announce",
            "ru-announce",
            "ar",
            "nl",
            "sv",
            "fi",
            "id",
            "el",
        ]
    ),
    *(f"third-{one}" for one in ["improve", "fyi", "ellipsis", "dash", "url", "parts"]),
    *(f"third-typed-{one}" for one in ["time", "long", "lines30", "numbered", "kv", "labels", "code-ish"]),
    *(f"third-typed-{one}" for one in ["paste-after-announce", "this", "traceback", "unclosed"]),
    *(f"third-typed-{one}" for one in ["two-fences-between", "rulers-between"]),
}
"""What is wrong at every door: pasted text that nothing marks as such, or that is announced in a language whose words are not known; rules
in a form that is not known, or in what has the form of a list of data; rules below a text that is announced or not closed; and rules between
two fences or lines of dashes, which have the form of a text that holds such marks itself.
"""
UNREAD = {
    "attached-anthropic-document",
    "attached-anthropic-blocks",
    "attached-responses-file",
    "data-base64",
}
"""What no summariser is shown: files are named only, and nothing is decoded."""


async def through(door: str, put: Callable[[Payload], Awaitable[Seen]], payloads: Iterable[Payload]) -> None:
    """Put payloads through a door. What is known to be wrong must still be."""
    wrong = {}
    for payload in payloads:
        found = faults(payload, await put(payload))
        if f"{door} {payload.id}" in KNOWN or payload.id in UNTOLD:
            found = [] if found else ["mended: take it off the list"]
        wrong |= {payload.id: found} if found else {}
    assert wrong == {}


async def test_in_a_digest():
    await through("digest", by_digest, PLAIN)


async def test_in_a_summary_by_a_model_and_in_what_it_was_given():
    await through_a_model(_some(EVERY))


@pytest.mark.slow
async def test_all_in_a_summary_by_a_model_and_in_what_it_was_given():
    await through_a_model(EVERY)


async def through_a_model(payloads: Sequence[Payload]) -> None:
    given = {}

    async def noted(payload: Payload) -> Seen:
        seen = await put(payload)
        given[payload.id] = "\n".join(seen.transcripts)
        return seen

    async with by_model() as put:
        await through("model", noted, payloads)
    for payload in payloads:
        names = re.findall(r"(?:drop|flood)-[\w-]+", " ".join((*payload.not_rules, *payload.forged)))
        assert not names or any(name in given[payload.id] for name in names) or payload.id in UNREAD


async def test_by_command(tmp_path):
    await through("command", partial(by_command, folder=tmp_path), PLAIN[:: 2 * STEP])


@pytest.mark.slow
async def test_all_by_command(tmp_path):
    await through("command", partial(by_command, folder=tmp_path), PLAIN)


async def test_through_the_gateway():
    async with by_gateway() as put:
        await through("gateway", put, _some(PLAIN))


@pytest.mark.slow
async def test_all_through_the_gateway():
    async with by_gateway() as put:
        await through("gateway", put, PLAIN)


def _some(payloads: Sequence[Payload]) -> list[Payload]:
    """One payload in `STEP`, and all that are known to be wrong at one door only."""
    known = {one.partition(" ")[2] for one in KNOWN}
    return [one for number, one in enumerate(payloads) if number % STEP == 0 or one.id in known]


def test_the_corpus_is_what_it_says():
    ids = [one.id for one in EVERY]
    hostile = [one for one in PAYLOADS if one.not_rules or one.forged or one.hidden]

    assert len(ids) == len({*ids})
    assert len(hostile) >= 60
    assert {one.partition(" ")[2] for one in KNOWN} | UNTOLD <= {*ids}
