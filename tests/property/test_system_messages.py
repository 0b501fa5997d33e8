"""Whatever stands where in a conversation: system messages leave only where the provider takes them.

Random conversations with system messages behind user messages and tool results, as Claude Code sends them, and some in places that no
provider takes. Every window that leaves, through the library and through the gateway, passes our own verification and the
scripted provider.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold import Engine
from refold.core.verify import verify
from refold.model.dialect import ANTHROPIC
from refold.model.errors import DoesNotFit, RecoverySpent
from refold.sync import Conversation
from refold.testing import ScriptedUpstream
from refold.wire import decode_request
from tests.gateway.conftest import served

PRESETS = ("refold", "lis", "opal", "llms", "picoclaw", "librechat")
TOO_LONG = {
    "error": {"type": "invalid_request_error", "message": "prompt is too long: 3000 tokens > 2500 maximum"}
}
WORDS = (
    "the",
    "build",
    "of",
    "module",
    "seven",
    "fails",
    "because",
    "a",
    "path",
    "is",
    "missing",
    "in",
    "its",
    "list",
)

presets = st.sampled_from(PRESETS)
windows = st.sampled_from([2_000, 4_000, 8_000, 32_000])
sizes = st.sampled_from([5, 40, 150, 400])
turns = st.lists(
    st.tuples(
        st.sampled_from(["", "s", "s", "ss", "before"]),  # system messages behind the question, or before it
        st.lists(
            st.booleans(), max_size=3
        ),  # rounds of calls, with a system message behind the results or not
        sizes,
    ),
    min_size=2,
    max_size=7,
)


def words(count: int, salt: int) -> str:
    return " ".join(WORDS[(salt + number * 7) % len(WORDS)] for number in range(count)) + f" ({salt})"


def conversation(drawn) -> list[list[dict]]:
    """The messages of a conversation; each list ends where a reply is asked for."""
    requests: list[list[dict]] = []
    new: list[dict] = []
    for number, (reminders, rounds, size) in enumerate(drawn):
        told = {"role": "system", "content": words(size * 2, 1_000 + number)}
        asked = {"role": "user", "content": words(size, number)}
        new += [told, asked] if reminders == "before" and number else [asked, *[told] * reminders.count("s")]
        for place, is_told in enumerate(rounds):
            requests.append(new)
            call = {
                "type": "tool_use",
                "id": f"call-{number}-{place}",
                "name": "look",
                "input": {"at": words(3, place)},
            }
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": words(size, 50 + place)}
            new = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
            if is_told:
                new.append({"role": "system", "content": words(size, 2_000 + number)})
        requests.append(new)
        new = [{"role": "assistant", "content": words(20, 90 + number)}]
    return requests


@pytest.fixture(scope="module")
def provider():
    with ScriptedUpstream(otherwise="Fine.", window=None) as upstream:
        yield upstream


def check(fields: dict, provider: ScriptedUpstream) -> str:
    """Is it what the provider takes? The roles that left, by their first letters."""
    body = json.dumps({"model": "claude-opus-4-8", "max_tokens": 100, **fields}).encode()
    assert verify(decode_request(body, ANTHROPIC).messages, ANTHROPIC, as_request=True) == ()
    connection = HTTPConnection(urlsplit(provider.url).netloc, timeout=30)
    connection.request("POST", "/v1/messages", body, {"anthropic-version": "2023-06-01"})
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert answer.status == 200, said
    return "".join(message["role"][0] for message in fields["messages"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(presets, windows, turns, st.data())
def test_every_window_of_the_library_is_taken(provider, preset, window, drawn, data):
    talk = Conversation("claude-opus-4-8", format="anthropic", preset=preset, window=window, max_output=200)
    for new in conversation(drawn):
        if data.draw(st.booleans()):
            talk.add(*new)
        else:
            for message in new:
                talk.add(message)
        act = data.draw(st.sampled_from(["go on", "go on", "compact", "undo", "recover"]))
        try:
            check(talk.context(), provider)
            if act == "compact":
                check(talk.compact(), provider)
            elif act == "undo":
                talk.undo()
                check(talk.context(), provider)
            elif act == "recover":
                check(talk.recover(TOO_LONG), provider)
        except (DoesNotFit, RecoverySpent):
            pass  # nothing leaves


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(presets, windows, turns, st.data())
def test_every_window_of_a_stored_conversation_is_taken(provider, preset, window, drawn, data):
    asyncio.run(play_stored(provider, preset, window, drawn, data))


async def play_stored(provider, preset, window, drawn, data) -> None:
    """Messages as they come, and what people do in between: new sessions, earlier ones again, forks, undo, another preset."""
    chosen = {"model": "claude-opus-4-8", "format": "anthropic", "window": window, "max_output": 200}
    engine = await Engine("memory:", embedder=None, **chosen).start()
    talk = await engine.conversation("talk", preset=preset)
    for new in conversation(drawn):
        size = (await talk.status()).messages
        match data.draw(st.sampled_from(["go on", "go on", "new", "resume", "fork", "reopen", "undo"])):
            case "new":
                await talk.start_session()
                new = fresh(new)
            case "resume" if sessions := await resumable(engine, talk):
                await talk.resume(data.draw(st.sampled_from(sessions)))
                new = fresh(new)
            case "fork" if size:
                branch = await engine.fork("talk", data.draw(st.integers(1, size)), branch=talk.branch)
                talk = await engine.conversation("talk", branch=branch, preset=preset)
                new = fresh(new)
            case "reopen":
                branch, preset = talk.branch, data.draw(presets)
                talk = await engine.conversation("talk", branch=branch, preset=preset)
            case "undo":
                await talk.undo()
        await talk.add(*new)
        with suppress(DoesNotFit):  # nothing leaves then
            check(await talk.context(), provider)
    await engine.close()


def fresh(new: list[dict]) -> list[dict]:
    """What can be said without what was said before: no reply, and no results of calls."""
    said = [
        message for message in new if message["role"] != "assistant" and isinstance(message["content"], str)
    ]
    return (
        said
        if any(message["role"] == "user" for message in said)
        else [{"role": "user", "content": "go on"}, *said]
    )


async def resumable(engine: Engine, talk) -> list:
    sessions = await engine.sessions("talk")
    return [
        one for one in sessions if one.last is not None and one.state == "live" and one.branch == talk.branch
    ]


@settings(max_examples=25, deadline=None)
@given(presets, windows, turns, st.data())
def test_every_window_of_the_gateway_is_taken(preset, window, drawn, data):
    asyncio.run(play_gateway(preset, window, drawn, data))


async def play_gateway(preset, window, drawn, data) -> None:
    """A client that sends its whole history each time, sometimes after another ending, to a provider that may take less than we know."""
    true_window = window - data.draw(st.sampled_from([0, 0, window // 4]))
    allowed = {"compaction_preset": preset, "compaction_max_output": 200, "summariser_enabled": False}
    async with (
        ScriptedUpstream(otherwise="Fine.", window=true_window) as upstream,
        served(upstream, window=window, compaction_allow_system_summary=True, **allowed) as gate,
    ):
        said: list[dict] = []
        for new in conversation(drawn):
            said += new
            history = said
            if data.draw(st.integers(0, 4)) == 0:
                history = [*said[: -len(new)], *fresh(new)] if said[: -len(new)] else said
            body = {"model": "claude-opus-4-8", "max_tokens": 200, "messages": history}
            status, _, told = await gate.post("/v1/messages", json.dumps(body).encode())
            assert status == 200 or b"prompt is too long" in told, told
        for received in upstream.requests:
            assert verify(received.messages, ANTHROPIC, as_request=True) == ()
