"""The whole truth table through real HTTP, asked as Refold itself asks: every answer is the typed error that it means.

Each row is served three times and more: in all formats, whole and as a stream. An error without a status is an event of a
stream, which is where such errors are found.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec
import pytest

from refold.core.overflow import classify_finish
from refold.model.errors import (
    ContextOverflow,
    MalformedHistory,
    OutputCapExceeded,
    RateLimited,
    UpstreamError,
    UpstreamUnavailable,
)
from refold.model.message import user
from refold.testing import Body, Refuse, ScriptedUpstream
from refold.upstreams import Ask, Provider, Retries, StreamingUpstream, open_upstream
from refold.wire.reply import Reply
from tests.core.overflow_answers import OVERFLOW, Case
from tests.core.overflow_refusals import NOT_OVERFLOW
from tests.testing.exchanges import PROTOCOLS

TABLE = (*OVERFLOW, *NOT_OVERFLOW)
CUT_OFF = "E56 error event cut off"
FINISHED = {"chat": "zai finish reason in a 200", "anthropic": "anthropic stop reason in a 200"}
"""Replies of these formats, which say by their finish reason that the window was full."""
SOUND = {"chat": "reply that talks about overflow"}
"""A reply like any other."""
ERRORS: dict[str, tuple[type[UpstreamError], ...]] = {
    "input_too_long": (ContextOverflow,),
    "input_plus_output": (ContextOverflow,),
    "bytes_too_large": (ContextOverflow,),
    "output_cap": (OutputCapExceeded,),
    "rate_limit": (RateLimited,),
    "malformed_history": (MalformedHistory,),
    "other": (UpstreamError, UpstreamUnavailable),
}
QUESTION = Ask((user("hi"),))


def served(case: Case) -> Body:
    if case.status is None:
        return Body(200, event(case.body), "text/event-stream")
    return Body.of(case.status, case.body)


def event(body: object) -> bytes:
    """An error event; a text of several lines has as many lines of data."""
    said = body if isinstance(body, str) else msgspec.json.encode(body).decode()
    return "\n".join(("event: error", *(f"data: {line}" for line in said.split("\n")), "", "")).encode()


async def outcome(upstream: StreamingUpstream, *, stream: bool) -> Reply | UpstreamError:
    try:
        if not stream:
            return await upstream.ask(QUESTION)
        async with aclosing(upstream.stream(QUESTION)) as items:
            *_, reply = [item async for item in items]
    except UpstreamError as error:
        return error
    return reply


def is_right(case: Case, found: Reply | UpstreamError, wire: str) -> bool:
    if isinstance(found, Reply):
        is_full = classify_finish(found.finish, found.usage, None) is not None
        return case.name == (FINISHED if is_full else SOUND).get(wire)
    if type(found) not in ERRORS[case.kind]:
        return False
    told = found.overflow
    if told is None:
        return case.kind == "other"
    return (told.kind, told.limit, told.requested, told.prompt, told.output) == tuple(case[3:])


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wire", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_e48_every_answer_of_the_truth_table_is_the_error_that_it_means(wire, stream):
    """Case E48, and E56 where the row is an error inside of a success."""
    rows = [case for case in TABLE if (case.status is not None or stream) and case.name != CUT_OFF]
    async with ScriptedUpstream(*map(served, rows)) as server:
        provider = Provider("scripted", "m", wire, f"{server.url}/v1", retries=Retries(tries=1))
        async with open_upstream(provider, environ={}) as upstream:
            found = [(case, await outcome(upstream, stream=stream)) for case in rows]

    assert len(rows) > (350 if stream else 300)
    assert len(server.requests) == len(rows)
    assert [(case.name, case[3:], answer) for case, answer in found if not is_right(case, answer, wire)] == []


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wire", PROTOCOLS)
async def test_e48_what_is_told_with_a_status_is_understood_inside_of_a_stream_too(wire):
    """Case E48 and E56: the sentences of the table as errors of a stream that had begun, as each format spells them."""
    rows = [case for case in OVERFLOW if case.status == 400 and isinstance(case.body, str)]
    answers = [Refuse(400, case.body, in_stream=True) for case in rows]
    async with ScriptedUpstream(*answers) as server:
        provider = Provider("scripted", "m", wire, f"{server.url}/v1", retries=Retries(tries=1))
        async with open_upstream(provider, environ={}) as upstream:
            found = [(case, await outcome(upstream, stream=True)) for case in rows]

    assert len(rows) > 15
    assert [(case.name, case[3:], answer) for case, answer in found if not is_right(case, answer, wire)] == []


@pytest.mark.feature("O12")
async def test_e48_an_error_event_that_is_cut_off_is_understood():
    """Case E48: the one row of the table that is half an event."""
    (case,) = (case for case in TABLE if case.name == CUT_OFF)
    async with ScriptedUpstream(served(case)) as server:
        provider = Provider("scripted", "m", "chat", f"{server.url}/v1", retries=Retries(tries=1))
        async with open_upstream(provider, environ={}) as upstream:
            assert is_right(case, await outcome(upstream, stream=True), "chat")
