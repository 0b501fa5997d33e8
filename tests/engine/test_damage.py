"""A conversation that shows damaged messages goes on, in every format and over every store: placeholders keep the pairs of the
others whole, and nothing of a damaged message is passed off as what was said.
"""

from __future__ import annotations

import logging
from itertools import combinations
from pathlib import Path

import apsw
import msgspec
import pytest
from msgspec import structs

import refold
from refold.core.pairs import repair
from refold.core.verify import verify
from refold.engine.damage import is_placeholder, placeholder_text, read_run
from refold.model.dialect import DIALECTS
from refold.model.errors import Damaged, StoreError
from refold.ports.records import Head, StoredMessage
from refold.stores.memory import MemoryStore
from refold.wire.request import decode_message
from tests.damage import damage

CALLS = [
    {"id": f"c{one}", "type": "function", "function": {"name": "look", "arguments": '{"at": "Vik"}'}}
    for one in (1, 2)
]
CHAT = [
    {"role": "user", "content": "How is the water?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "high at the pier"},
    {"role": "tool", "tool_call_id": "c2", "content": "low at the mill"},
    {"role": "assistant", "content": "High and low."},
    {"role": "user", "content": "And now?"},
]
USES = [{"type": "tool_use", "id": f"c{one}", "name": "look", "input": {"at": "Vik"}} for one in (1, 2)]
ANTHROPIC = [
    {"role": "user", "content": "How is the water?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s1"}, *USES]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "high at the pier"},
            {"type": "tool_result", "tool_use_id": "c2", "content": "low at the mill"},
        ],
    },
    {"role": "assistant", "content": "High and low."},
    {"role": "user", "content": "And now?"},
]
RESPONSES = [
    {"role": "user", "content": "How is the water?"},
    *({"type": "function_call", "call_id": f"c{one}", "name": "look", "arguments": "{}"} for one in (1, 2)),
    {"type": "function_call_output", "call_id": "c1", "output": "high at the pier"},
    {"type": "function_call_output", "call_id": "c2", "output": "low at the mill"},
    {"role": "assistant", "content": "High and low."},
    {"role": "user", "content": "And now?"},
]
HISTORIES = {"chat": CHAT, "anthropic": ANTHROPIC, "responses": RESPONSES}
SETTINGS = {"model": "gpt-4o", "window": 12_000}
SEPARATE = [(name, seq) for name, messages in HISTORIES.items() for seq in range(len(messages))]


async def made(path: Path, wire_format: str, *messages: object) -> None:
    async with refold.Engine(path, **SETTINGS, format=wire_format) as engine:
        await (await engine.conversation("tides")).add(*messages)


def rows(wire_format: str, lost: tuple[int, ...]) -> list[StoredMessage]:
    dialect = DIALECTS[wire_format]
    bodies = [msgspec.json.encode(one) for one in HISTORIES[wire_format]]
    return [
        StoredMessage(
            seq=seq,
            role=decode_message(body, dialect).role,
            format=wire_format,
            body=b"x" if seq in lost else body,
        )
        for seq, body in enumerate(bodies)
    ]


@pytest.mark.feature("N2")
@pytest.mark.parametrize(("wire_format", "seq"), SEPARATE)
async def test_all_acts_go_on_with_a_placeholder_and_whole_pairs(tmp_path, wire_format, seq):
    path, messages = tmp_path / "chats.db", HISTORIES[wire_format]
    await made(path, wire_format, *messages)
    damage(path, "tides", seq)
    async with refold.Engine(path, **SETTINGS, format=wire_format) as engine:
        talk = await engine.conversation("tides")
        sent = (await talk.context())[DIALECTS[wire_format].messages_key]
        read = [
            decode_message(msgspec.json.encode(one), DIALECTS[wire_format])
            for one in msgspec.to_builtins(sent)
        ]
        assert not verify(read, DIALECTS[wire_format], as_request=True)
        assert len(read) == len(messages), "no other message lost its counterpart"
        assert is_placeholder(read[seq], seq)
        assert [one.role for one in read] == [one.role for one in rows_read(wire_format)]
        assert (await talk.status()).damaged == (seq,)
        with pytest.raises(Damaged):
            await talk.recall(f"#m{seq}")
        assert await talk.recall(f"#m{(seq + 1) % len(messages)}")
        await talk.add({"role": "assistant", "content": "It falls."}, "And then?")
        assert await talk.context()
        await talk.compact()
        assert await talk.undo()
        assert (await talk.status()).damaged == (seq,)
        session = (await engine.sessions("tides"))[0]
        await talk.start_session()
        assert (await talk.status()).damaged == ()
        await talk.resume(session)
        assert (await talk.status()).damaged == (seq,)
        branch = await engine.fork("tides", seq)
        fork = await engine.conversation("tides", branch=branch)
        assert (await fork.status()).damaged == ()
        assert [one.what for one in await engine.examine("tides")]


def rows_read(wire_format: str):
    return [decode_message(one.body, DIALECTS[wire_format]) for one in rows(wire_format, ())]


@pytest.mark.parametrize("wire_format", HISTORIES)
def test_any_damaged_messages_leave_a_list_that_can_be_made_legal_without_a_loss(wire_format):
    dialect, count = DIALECTS[wire_format], len(HISTORIES[wire_format])
    head = Head(owner="local", conversation="tides", branch="b", session="s", format=wire_format)
    for size in range(1, count + 1):
        for lost in combinations(range(count), size):
            found = read_run(rows(wire_format, lost), head)
            messages = [one.message for one in found]
            assert [one.number for one in found if one.damage] == [*lost]
            assert all(is_placeholder(one.message, one.number) for one in found if one.damage)
            mended = repair(messages, dialect, as_request=True)
            assert not [
                one
                for one in verify(mended.messages, dialect, as_request=True)
                if one.rule not in {"ends_with_assistant", "starts_without_user"}
            ], lost
            told = str([one.bare() for one in mended.messages])
            for one in found:
                kept = [part.text for result in one.message.results for part in result.parts]
                assert all(text in told for text in kept), (lost, one.number)


async def test_it_is_told_by_an_event_the_log_and_the_status_command(tmp_path, caplog):
    path = tmp_path / "chats.db"
    await made(path, "chat", *CHAT)
    for seq in (0, 4):
        damage(path, "tides", seq)
    heard = []
    with caplog.at_level(logging.WARNING, "refold"):
        async with refold.Engine(path, **SETTINGS) as engine:
            talk = await engine.conversation("tides", on_event=heard.append)
            await talk.load()
            told = await refold.run_command(talk, "/status")
    assert [(one.kind, one.messages) for one in heard] == [("messages_damaged", (0, 4))]
    assert (heard[0].conversation, bool(heard[0].branch)) == ("tides", True)
    text = "messages 0, 4 are damaged and cannot be read: placeholders are shown for them (`refold doctor`)"
    assert refold.notice(heard[0]) == f"⚠️ {text}"
    assert caplog.messages.count(f"tides: {text}") == 1
    assert text in told


async def test_a_summary_says_that_it_cannot_be_read_and_invents_nothing(tmp_path):
    path = tmp_path / "chats.db"
    asked = [{"role": "user", "content": "The boat to Vik is called Ottoline and leaves at two."}]
    more = [{"role": role, "content": "fog " * 300} for _ in range(6) for role in ("assistant", "user")]
    await made(path, "chat", *asked, *more)
    damage(path, "tides", 0, b'{"role":"user","content":"The boat to Vik is called Ottilie."}')
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        told = str((await talk.compact(keep=100))["messages"])
    assert placeholder_text(0) in told
    assert "Ott" not in told


async def test_a_message_that_is_restored_is_there_again(tmp_path):
    path = tmp_path / "chats.db"
    await made(path, "chat", *CHAT)
    damage(path, "tides", 0, b"x")
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        await talk.add({"role": "assistant", "content": "It falls."})
    damage(path, "tides", 0, msgspec.json.encode(CHAT[0]))
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        assert (await talk.context())["messages"][0] == CHAT[0]
        assert (await talk.status()).damaged == ()
        assert await engine.examine("tides") == []


async def test_a_damaged_message_that_was_sensitive_or_held_a_secret_is_in_no_summary(tmp_path):
    path, secret = tmp_path / "chats.db", "hunter2-hunter2-xyz"
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        await talk.add(
            f"The password = {secret} is for the gate.", {"role": "assistant", "content": "Noted."}
        )
        await talk.compact(keep=0)
        await talk.undo()
        await talk.add(f"Say {secret} at the gate.", {"role": "assistant", "content": "fog " * 400}, "Go on.")
    damage(path, "tides", 0, b'{"role":"user","content":"The password = ' + secret.encode() + b" is for")
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        told = str((await talk.compact(keep=10))["messages"])
    assert "gate" in told
    assert secret not in told


async def test_thoughts_that_were_signed_with_a_damaged_message_before_them_are_left_out(tmp_path):
    path = tmp_path / "chats.db"
    await made(path, "anthropic", *ANTHROPIC)
    damage(path, "tides", 0)
    async with refold.Engine(path, **SETTINGS, format="anthropic") as engine:
        sent = (await (await engine.conversation("tides")).context())["messages"]
    assert "thinking" not in str(sent)


async def test_the_memory_store_behaves_alike(monkeypatch):
    store = MemoryStore()
    await (await refold.Engine(store, **SETTINGS).conversation("tides")).add(*CHAT)
    for name in ("messages", "pick"):
        read = getattr(store, name)

        async def with_damage(*given: object, read=read, **named: object) -> list[StoredMessage]:
            found = await read(*given, **named)
            return [structs.replace(one, body=b"x") if one.seq == 1 else one for one in found]

        monkeypatch.setattr(store, name, with_damage)
    async with refold.Engine(store, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        assert (await talk.status()).damaged == (1,)
        assert len((await talk.context())["messages"]) == len(CHAT)
        with pytest.raises(Damaged, match="message 1"):
            await talk.recall("#m1")


async def test_a_damaged_snapshot_is_named_with_a_way_out(tmp_path):
    path = tmp_path / "chats.db"
    async with refold.Engine(path, **SETTINGS) as engine:
        talk = await engine.conversation("tides")
        await talk.add(*CHAT[:1], {"role": "assistant", "content": "fog " * 400}, "Go on.")
        await talk.compact(keep=10)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE compaction SET shown = x'c1'")
    connection.close()
    async with refold.Engine(path, **SETTINGS) as engine:
        with pytest.raises(StoreError, match="the snapshot of the conversation cannot be read") as told:
            await engine.conversation("tides")
        assert isinstance(told.value, Damaged)
        assert "refold export" in told.value.hint
        assert await engine.recall("tides", "#m0") == CHAT[0]
