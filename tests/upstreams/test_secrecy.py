"""Neither a key nor a word of a conversation is logged, printed or put into an error."""

from __future__ import annotations

import gc
import logging
import traceback

import pytest

from refold.model.errors import RefoldError
from refold.model.message import user
from refold.ports.models import Ask
from refold.testing import Body, Broken, Refuse, Reset, ScriptedUpstream, Slow, rate_limited, say
from refold.upstreams import Retries, Timeouts
from refold.upstreams.http import HttpUpstream
from refold.upstreams.provider import ProviderKey
from tests.upstreams.questions import FORMATS, Waits, asking, streamed

SECRETS = ("canaryword", "sk-canary", "header-canary", "reply-canary", "quoted-canary", "proxy-canary")
ASK = Ask((user("Say canaryword."),), system="Never say canaryword.")
QUOTES = b'{"error":{"message":"quoted-canary: Say canaryword. Key sk-canary is bad","code":"sk-canary","type":"canaryword 1"}}'
ANSWERS = {
    "a reply": "The reply-canary.",
    "a busy provider": rate_limited(1),
    "a refusal that quotes": Body(400, QUOTES),
    "a key that is refused": Body(401, QUOTES),
    "a failure that quotes": Body(500, QUOTES),
    "an error in the place of a reply": Body(200, QUOTES),
    "no JSON": Body(200, b'{"choices": [{"message": {"content": "reply-canary'),
    "no reply": Body(200, b'{"choices":[{"message":{"role":"reply-canary","content":7}}]}'),
    "a broken stream": Broken(say("The reply-canary, " * 20), 5, "garbage"),
    "an error in a stream": Refuse(
        400, "quoted-canary canaryword", "canaryword", "sk-canary", in_stream=True
    ),
    "a reset": Reset(),
    "a wait": Slow(say("The reply-canary."), before_s=9),
}


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_nothing_of_a_conversation_and_no_key_is_shown(wire, answer, caplog):
    caplog.set_level(logging.DEBUG)
    settings = {
        "key_command": "echo sk-canary",
        "headers": {"x-extra": "header-canary"},
        "retries": Retries(tries=2),
        "timeouts": Timeouts(first_byte_s=0.2 if isinstance(answer, Slow) else 30),
    }
    shown: list[str] = []
    async with (
        ScriptedUpstream(otherwise=answer) as server,
        asking(server, wire, waits=Waits(), **settings) as upstream,
    ):
        for ask in (upstream.ask, lambda question: streamed(upstream, question)):
            try:
                await ask(ASK)
            except RefoldError as error:
                trace = "".join(traceback.format_exception(error))
                told = (str(error), repr(error), str(error.args), str(vars(error)), trace)
                shown += told
        shown += [repr(held) for held in _held_by(upstream)]
    assert server.requests
    assert all(request.key == "sk-canary" for request in server.requests)
    shown += [caplog.text, *(str(vars(record)) for record in caplog.records)]
    assert not [text for text in shown if any(secret in text for secret in SECRETS)]


def _held_by(upstream: object) -> list[object]:
    """The upstream and every object of ours that it is made of."""
    found, queue = [], [upstream]
    while queue:
        held = queue.pop()
        if type(held).__module__.startswith("refold.") and not any(held is known for known in found):
            found.append(held)
            queue.extend(gc.get_referents(held))
            queue.extend(
                value
                for inner in gc.get_referents(held)
                if isinstance(inner, dict)
                for value in inner.values()
            )
    assert {HttpUpstream, ProviderKey} <= {type(one) for one in found}
    return found


async def test_waiting_is_logged_with_its_reason_and_nothing_else(caplog):
    caplog.set_level(logging.INFO)
    async with ScriptedUpstream(rate_limited(3), "Yes.") as server, asking(server) as upstream:
        await upstream.ask(ASK)
    (record,) = [record for record in caplog.records if record.name == "refold.upstreams"]
    assert "asks to slow down: status 429" in record.getMessage()
    assert "the next in 3.0 s" in record.getMessage()
