"""An act whose commit fails changes nothing: the next request is the one from before."""

from __future__ import annotations

from typing import Any

import pytest

import refold
from refold.stores.memory import MemoryStore

TOOL = {"type": "function", "function": {"name": "second", "parameters": {"type": "object"}}}


class FailingStore(MemoryStore):
    """Refuses commits, or reads, while it is told to."""

    refuses = reads_fail = False

    async def commit(self, *args: Any, **options: Any) -> Any:
        if self.refuses:
            raise refold.StoreError("the disk is full")
        return await super().commit(*args, **options)

    async def messages(self, *args: Any, **options: Any) -> Any:
        if self.reads_fail:
            raise refold.StoreError("the connection was lost")
        return await super().messages(*args, **options)


@pytest.mark.parametrize(
    "act",
    [
        lambda chat: chat.set_system("new"),
        lambda chat: chat.set_tools([TOOL]),
        lambda chat: chat.add("lost"),
        lambda chat: chat.set_instructions(b'{"tools": [], "messages": [], "model": "other"}'),
    ],
    ids=["set_system", "set_tools", "add", "set_instructions"],
)
async def test_a_failed_commit_changes_nothing(act):
    store = FailingStore()
    async with refold.Engine(store, model="gpt-4o", system="old") as engine:
        chat = await engine.conversation("x")
        await chat.add("hello")
        before = await chat.context()
        store.refuses = True
        with pytest.raises(refold.StoreError, match="disk is full"):
            await act(chat)
        store.refuses = False
        assert await chat.context() == before

        await act(chat)  # and can be done again
        await chat.context()


async def test_instructions_of_a_failed_import_are_not_sent():
    store = FailingStore()
    async with refold.Engine(store, model="gpt-4o") as engine:
        chat = await engine.conversation("x")
        await chat.add("hello")
        fields = b'{"tools": [{"type": "function", "function": {"name": "second", "parameters": {"type": "object"}}}]}'
        store.refuses = True
        with pytest.raises(refold.StoreError):
            await chat.set_instructions(fields)
        store.refuses = False
        assert "tools" not in await chat.context()
        await chat.set_instructions(fields)
        assert (await chat.context())["tools"][0]["function"]["name"] == "second"


async def test_a_model_that_could_not_be_loaded_is_not_used():
    store = FailingStore()
    async with refold.Engine(store, model="gpt-4o") as engine:
        chat = await engine.conversation("x")
        await chat.add("hello")
        before = chat.window
        store.reads_fail = True
        with pytest.raises(refold.StoreError):
            await chat.reconfigure(model="claude-sonnet-4-5")
        store.reads_fail = False
        await chat.context()
        assert chat.window == before
