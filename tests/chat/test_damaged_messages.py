"""A chat goes on with a person's conversation when one of its messages is damaged. The provider refuses every list that is not
legal in its format.
"""

from __future__ import annotations

import json

import pytest

from refold.engine.damage import placeholder_text
from refold.testing import ScriptedUpstream, call, say, think
from tests.chat.chats import FORMATS, chatting, done, reply_of, sent, text_of
from tests.damage import damage


def look(at: str) -> str:
    """Look at the gauge."""
    return f"{at}: high"


@pytest.mark.feature("N2")
@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("seq", range(4))
async def test_a_chat_goes_on_over_a_damaged_message(tmp_path, wire, seq):
    path = tmp_path / "chats.db"
    url, script = f"sqlite:///{path}", [say(call("look", {"at": "Vik"})), say("High.")]
    server = ScriptedUpstream(*script, "Still high.", "It falls.", strict=True)
    async with server:
        async with chatting(server, url, wire=wire, tools=[look]) as chat:
            assert done(await sent(chat, "How is the water?")).status == "answered"
        damage(path, "talk", seq)
        async with chatting(server, url, wire=wire, tools=[look]) as chat:
            events = await sent(chat, "And now?")
            assert (done(events).status, text_of(events)) == ("answered", "Still high.")
            request = json.dumps(server.requests[-1].json)
            assert placeholder_text(seq) in request
            assert ("Vik: high" in request) == (seq != 2), "the result stays, also that of a damaged call"
            assert f"message {seq} is damaged" in reply_of(await sent(chat, "/status"))
            await sent(chat, "/new")
            assert "damaged" not in reply_of(await sent(chat, "/status"))
            assert text_of(await sent(chat, "And then?")) == "It falls."
    assert len(server.requests) == 4


async def test_thoughts_that_are_bound_to_a_damaged_message_are_not_sent(tmp_path):
    path = tmp_path / "chats.db"
    server = ScriptedUpstream(
        say(think("I wonder."), "High."), "Still high.", strict=True, binds_thinking=True
    )
    async with server:
        async with chatting(server, f"sqlite:///{path}", wire="anthropic") as chat:
            await sent(chat, "How is the water?")
        damage(path, "talk", 0)
        async with chatting(server, f"sqlite:///{path}", wire="anthropic") as chat:
            assert done(await sent(chat, "And now?")).status == "answered"
    assert len(server.requests) == 2, "none was refused"
