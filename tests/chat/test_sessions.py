"""Sessions of a chat: what /resume, /compact and a fork leave in the window (acceptance cases 66 to 69)."""

from __future__ import annotations

import pytest
from msgspec import structs

import refold
from refold.engine.engine import Engine
from refold.engine.sessions import closed_session, room_of
from refold.ports.records import Batch
from refold.testing import ScriptedUpstream, echo
from tests.chat.chats import chatting, provider, reply_of, sent
from tests.embedder import Subjects

LONG = "the tide comes and goes by the pier and the boats lie still " * 12


async def note(chat, *numbers: int) -> None:
    for number in numbers:
        await sent(chat, f"Note {number}: {LONG}")


@pytest.mark.feature("L11")
async def test_a_session_is_resumed_whole_if_it_just_fits(store):
    """66: at equality it is whole; a token less, and it is its summary."""
    async with ScriptedUpstream(otherwise="Noted.", window=None) as server:
        async with chatting(server, store) as chat:
            await note(chat, *range(20))
            first, size = chat.conversation.journal.session, chat.conversation.state.folded.tokens
            await sent(chat, "/new")
        for lacking, told in ((0, "with full context"), (1, "resuming from summary")):
            window, more = size, 1
            while more:
                settings = {"window": window, "max_output": 100, "preset": "lis"}
                async with chatting(server, store, conversation=settings, recall=False) as chat:
                    await chat.conversation.load()
                    state, journal = chat.conversation.state, chat.conversation.journal
                    target = await store.session(journal.head.owner, first.id)
                    closed = await closed_session(journal, state, target)
                    more = closed.shown.tokens - room_of(state) - lacking
                    assert more >= 0
                    window += more  # a larger window has at most so much more room: the next is not too large
                    if not more:
                        assert told in reply_of(await sent(chat, f"/resume #{first.id[:8]}"))


async def test_a_session_that_lost_its_summary_gets_one_when_it_is_resumed(store):
    """66: it is not listed, but its id is enough."""
    async with ScriptedUpstream(otherwise="Noted.", window=None) as server:
        async with chatting(server, store) as chat:
            await note(chat, *range(20))
            journal = chat.conversation.journal
            opened = structs.replace(journal.session, id="next", first=journal.head.next_seq, kind="new")
            await store.commit(journal.head, Batch(at=1.0, opens=opened))
        async with chatting(server, store, conversation={"window": 3_000, "max_output": 100}) as chat:
            assert reply_of(await sent(chat, "/resume")) == "No previous sessions to resume."
            told = reply_of(await sent(chat, f"/resume {journal.session.id[:8]}")).splitlines()
            assert told[0].endswith("resuming from summary.")
            assert told[1].startswith("📝 ")


@pytest.mark.parametrize("embedder", [Subjects(), None], ids=["by meaning", "by words"])
async def test_sessions_are_found_by_meaning_or_by_words(store, embedder):
    """66: with an embedder another word for it is enough."""
    async with (
        ScriptedUpstream(otherwise=echo) as server,
        chatting(server, store, conversation={"embedder": embedder}) as chat,
    ):
        await sent(chat, "When does the boat leave the harbour?")
        first = chat.conversation.journal.session.id
        await sent(chat, "/new")
        await sent(chat, "Was the invoice paid?")
        await sent(chat, "/new")
        by_word = reply_of(await sent(chat, "/resume harbour")).splitlines()
        assert by_word[1].startswith(f"#{first[:8]}")
        by_meaning = reply_of(await sent(chat, "/resume vessel"))
        assert (first[:8] in by_meaning) == (embedder is not None)


async def test_compactions_are_counted_by_ancestry(store):
    """66: those that led to the window, not those of other sessions."""

    async def counted(chat) -> str:
        line = next(one for one in reply_of(await sent(chat, "/status")).splitlines() if "Context" in one)
        return line.partition("Compactions: ")[2]

    async with ScriptedUpstream(otherwise="Noted.", window=None) as server, chatting(server, store) as chat:
        for turn in range(2):
            await note(chat, *range(8 * turn, 8 * turn + 8))
            await sent(chat, "/compact")
        assert await counted(chat) == "2"
        session = chat.conversation.journal.session.id
        await sent(chat, "/new")
        assert await counted(chat) == "", "a new session has no ancestors"
        await note(chat, *range(20, 28))
        await sent(chat, "/compact")
        assert await counted(chat) == "1"
        assert reply_of(await sent(chat, f"/resume {session}")).startswith("🔄 Resumed session #")
        assert await counted(chat) == "2"


async def test_a_resumed_session_has_its_boundary(store):
    """67: its summary and what came after it, never the summary and what it replaced."""
    async with ScriptedUpstream(otherwise="Noted.", window=None) as server, chatting(server, store) as chat:
        await note(chat, *range(20))
        await sent(chat, "/compact")
        await sent(chat, "And now?")
        shown = [one.text for one in server.requests[-1].messages]
        assert not any("Note 0:" in text for text in shown[1:])
        session = chat.conversation.journal.session.id
        await sent(chat, "/new")
        await sent(chat, "Something else.")
        await sent(chat, f"/resume #{session[:8]}")
        await sent(chat, "Where were we?")
        again = [one.text for one in server.requests[-1].messages]
        assert again == [*shown, "Noted.", "Where were we?"]


async def test_a_branch_before_a_compaction_sees_the_originals(store):
    """68: a chat goes on from a message that a summary has replaced."""
    async with ScriptedUpstream(otherwise="Noted.", window=None) as server:
        async with chatting(server, store) as chat:
            await note(chat, *range(20))
            await sent(chat, "/compact")
        engine = Engine(store, model="m-1", window=32_000)
        branch = await engine.fork("talk", 4)
        talk = await engine.conversation("talk", branch=branch)
        async with refold.Chat(talk, provider(server)) as chat:
            await sent(chat, "Another way.")
        sent_now = [one.text for one in server.requests[-1].messages]
        assert sent_now == [f"Note 0: {LONG}", "Noted.", f"Note 1: {LONG}", "Noted.", "Another way."]
        await engine.rest()


async def test_summaries_of_ancestors_are_reached_beyond_one_level(store):
    """69: what the first of several summaries covers is found, and brought back."""
    async with (
        ScriptedUpstream(otherwise="Noted.", window=None) as server,
        chatting(server, store, conversation={"preset": "lis", "window": 6_000, "max_output": 500}) as chat,
    ):
        await sent(chat, "The code of zanzibar is 4417.")
        number = 0
        while len(chat.conversation.state.folded.summaries) < 3:
            await note(chat, number := number + 1)
            assert number < 100
        await sent(chat, "And now?")
        assert "The code of zanzibar is 4417." not in [one.text for one in server.requests[-1].messages]
        assert "4417" in reply_of(await sent(chat, "/search zanzibar"))
        assert reply_of(await sent(chat, "/recall #m0")) == "The code of zanzibar is 4417."
        assert reply_of(await sent(chat, "/recall #s0"))
