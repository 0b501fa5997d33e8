"""A provider's own count of a request, before it is sent."""

import pytest

from refold.engine.conversation import Conversation
from refold.model.errors import UpstreamError
from refold.model.message import user
from refold.ports.models import Ask
from refold.testing import ScriptedUpstream
from tests.upstreams.questions import QUESTION, asking

COUNTED = ("responses", "anthropic")


@pytest.mark.feature("L6")
@pytest.mark.parametrize("wire", COUNTED)
async def test_the_count_is_what_the_call_is_charged_for(wire):
    long = Ask((user("word " * 5_000),), system="Be brief.")
    async with ScriptedUpstream(otherwise="Yes.") as server, asking(server, wire) as upstream:
        counted = await upstream.count(long)
        reply = await upstream.ask(long)
    assert counted == reply.usage.context
    assert counted > 3_000


async def test_a_format_without_a_way_to_ask_says_so():
    async with ScriptedUpstream() as server, asking(server, "chat") as upstream:
        assert await upstream.count(QUESTION) is None
    assert server.requests == []


@pytest.mark.parametrize("wire", COUNTED)
async def test_a_server_that_cannot_count_is_an_error_with_a_hint(wire):
    async with (
        ScriptedUpstream() as server,
        asking(server, wire, base_url=f"{server.url}/nowhere/v1") as upstream,
    ):
        with pytest.raises(UpstreamError):
            await upstream.count(QUESTION)


class Halves:
    """A counter that is wrong by half."""

    source = "estimated"

    def text(self, text, /):
        return len(text) // 12

    def message(self, message, /):
        return 2 + self.text(message.text)


@pytest.mark.feature("L6")
async def test_a_request_that_the_provider_counts_as_too_large_is_made_smaller_before_it_is_sent():
    talk = Conversation(window=4_000, max_output=100, format="anthropic", counter=Halves())
    async with ScriptedUpstream() as server, asking(server, "anthropic") as upstream:
        for number in range(16):
            await talk.add(f"question {number} " + "what about this " * 40)
            await talk.add({"role": "assistant", "content": f"answer {number} " + "it is so " * 60})
        await talk.add("and now?")
        before = await talk.context()
        assert await talk.count(upstream) > 4_000
        after = await talk.context()
        assert await talk.count(upstream) <= 4_000
    assert len(str(after)) < len(str(before))
