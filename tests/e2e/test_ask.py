"""A conversation asks its model: the window is made to fit, and made smaller where the provider says it does not."""

import pytest

from refold import Conversation
from refold.model.errors import RecoverySpent, UpstreamError
from refold.testing import Refuse, ScriptedUpstream, overflow
from tests.upstreams.questions import FORMATS, asking

WITHOUT_NUMBERS = {"chat": "groq", "responses": "openai responses", "anthropic": "anthropic no numbers"}


def refusal(wire):
    """A provider's words for a prompt that is too long, which do not say how long it may be."""
    return overflow(WITHOUT_NUMBERS[wire], window=100, prompt=9_999)


async def talked(wire, turns=12):
    talk = Conversation(window=8_000, max_output=200, format=wire)
    for number in range(turns):
        await talk.add({"role": "user", "content": f"question {number} " + "what about this " * 40})
        await talk.add({"role": "assistant", "content": f"answer {number} " + "it is so " * 60})
    await talk.add({"role": "user", "content": "and now?"})
    return talk


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_reply_is_added_and_its_usage_recorded(wire):
    talk = Conversation(format=wire)
    async with ScriptedUpstream("Hello.") as server, asking(server, wire) as upstream:
        await talk.add({"role": "user", "content": "Hi."})
        reply = await talk.ask(upstream)
        assert [message.text for message in reply.messages] == ["Hello."]
        assert "Hello." in str(await talk.recall("#m1"))
        assert talk._state.meter.billed.output > 0


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wire", FORMATS)
async def test_a_window_that_is_refused_as_too_long_is_sent_again_smaller_at_once(wire):
    talk = await talked(wire)
    async with (
        ScriptedUpstream(refusal(wire), refusal(wire), "At last.") as server,
        asking(server, wire) as upstream,
    ):
        assert (await talk.ask(upstream)).messages[-1].text == "At last."
    sizes = [len(request.body) for request in server.requests]
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes), reverse=True)
    assert "question 0" in str(await talk.recall("#m0"))


@pytest.mark.feature("O12")
async def test_after_two_smaller_windows_there_is_a_clear_error_and_nothing_is_lost():
    talk = await talked("chat")
    async with ScriptedUpstream(otherwise=refusal("chat")) as server, asking(server) as upstream:
        with pytest.raises(RecoverySpent) as raised:
            await talk.ask(upstream)
    assert len(server.requests) == 3
    assert raised.value.hint
    assert "question 0" in str(await talk.recall("#m0"))


@pytest.mark.feature("O12")
async def test_a_stated_window_that_holds_nothing_is_a_clear_error_without_another_request():
    talk = await talked("chat")
    stated = overflow("openai", window=256, prompt=9_999)
    async with ScriptedUpstream(otherwise=stated) as server, asking(server) as upstream:
        with pytest.raises(RecoverySpent, match="do not fit into") as raised:
            await talk.ask(upstream)
    assert len(server.requests) == 1
    assert raised.value.hint
    assert "question 0" in str(await talk.recall("#m0"))


@pytest.mark.feature("O12")
@pytest.mark.parametrize("window", [100, 254, 100_000_001])
async def test_a_stated_window_that_no_model_has_leads_to_two_smaller_windows_at_most(window):
    """The number is ignored, so the call is recovered as if the provider had stated none."""
    talk = await talked("chat")
    stated = overflow("openai", window=window, prompt=200_000_000)
    async with ScriptedUpstream(otherwise=stated) as server, asking(server) as upstream:
        with pytest.raises(RecoverySpent) as raised:
            await talk.ask(upstream)
    sizes = [len(request.body) for request in server.requests]
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes), reverse=True)
    assert raised.value.hint
    assert "question 0" in str(await talk.recall("#m0"))


async def test_another_refusal_is_not_answered_with_a_smaller_window():
    talk = await talked("chat")
    async with ScriptedUpstream(otherwise=Refuse(401)) as server, asking(server) as upstream:
        with pytest.raises(UpstreamError):
            await talk.ask(upstream)
    assert len(server.requests) == 1
