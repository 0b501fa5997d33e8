"""The exit code of a script: 2 if a message got no reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from refold.engine.engine import Engine
from refold.stores.memory import MemoryStore
from refold.terminal.dialogue import FAILED, run_script
from refold.terminal.event_text import PageLook
from refold.testing import ScriptedUpstream, echo
from tests.chat.chats import chatting


async def inputs_of(*texts: str) -> AsyncIterator[str]:
    for text in texts:
        yield text


async def code_of(chat, *texts: str) -> tuple[int, str, str]:
    written, told = list[str](), list[str]()
    code = await run_script(
        chat,
        inputs_of(*texts),
        as_json=False,
        look=PageLook(has_markdown=False, has_colour=False),
        write=written.append,
        tell=told.append,
    )
    return code, "".join(written), "".join(told)


async def test_a_message_that_another_program_answers_got_no_reply(monkeypatch):
    store = MemoryStore()
    enqueue, engine = store.enqueue, Engine(store, model="m-1", window=32_000)
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        assert (await code_of(chat, "zero", "/status"))[0] == 0
        other = await engine.conversation("talk")
        head = other.journal.head
        while await store.lease_holder(head.owner, head.branch):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)

        async def taken_at_once(head, entry):
            await enqueue(head, entry)
            await other.add_queued([entry])

        monkeypatch.setattr(store, "enqueue", taken_at_once)
        code, out, err = await code_of(chat, "one", "/status")
        assert code == FAILED
        assert "one" not in out
        assert "another program answers this conversation" in err
    await engine.rest()
