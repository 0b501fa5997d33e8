"""Which fields of a request name its conversation: those that stand for one conversation, and none that stand for a person."""

from __future__ import annotations

import asyncio
import json
import subprocess
from itertools import count

import msgspec
import pytest

from refold.gateway.auth import mint
from refold.stores.sqlite.store import SqliteStore
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served
from tests.gateway.test_summarisers import SUMMARY, is_question, told
from tests.program import command

PERSON = "3b241101-e2bb-4255-8caf-4136c566a962"
SESSION = "0198c2a4-55d1-7c3e-9a57-3f1d2b9e8a10"
OTHER = "0198c2a4-55d1-7c3e-9a57-3f1d2b9e8a11"
DEVICE = "8affcbe039c1380bd8de140015ef63dd4936d02ecd7d5a0f78af6ed95967c5c0"


def as_text(session=SESSION, account=""):
    """As Claude Code wrote it before 2.1.78."""
    return f"user_{DEVICE}_account_{account}_session_{session}"


def as_object(session=SESSION, account="", **more):
    """As it writes it since."""
    fields = {**more, "device_id": DEVICE, "account_uuid": account, "session_id": session}
    return json.dumps(fields, separators=(",", ":"))


async def ask(gate, *texts, path="/v1/messages", headers=None, **fields):
    """The name of the conversation that a request of these texts was taken for."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)
    ]
    key = "input" if path == "/v1/responses" else "messages"
    body = msgspec.json.encode({"model": "claude-sonnet-4-5", "max_tokens": 50, key: messages, **fields})
    status, answered, _ = await gate.post(path, body, **(headers or {}))
    assert status == 200
    return answered["x-refold-conversation"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x" * 201, "replaced; it is longer than 200 characters"),
        ("ships\u200e", "replaced; it has a character that cannot be shown"),
        ("x" * 200, None),
        ("Fähre 42", None),
    ],
)
@pytest.mark.parametrize("header", ["x_refold_conversation", "x_session_id"])
async def test_a_name_that_is_replaced_is_told(gate, header, name, told):
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "One?"}]})
    for switch in ("on", "off"):
        _, answered, _ = await gate.post("/v1/chat/completions", body, **{header: name}, x_refold=switch)
        assert answered.get("x-refold-name") == told
    (kept,) = await stored(gate)
    assert (kept == name) is (told is None)


@pytest.mark.parametrize("switch", ["on", "off"])
async def test_a_header_of_refold_s_that_is_not_known_is_told_and_does_no_harm(gate, switch):
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "One?"}]})
    status, answered, _ = await gate.post(
        "/v1/chat/completions",
        body,
        x_refold=switch,
        x_refold_presett="lis",
        x_refold_window="8000",
        x_refoldable="yes",
    )
    known = (
        "X-Refold, X-Refold-Conversation, X-Refold-Preset, X-Refold-Window, X-Refold-Upstream, X-Refold-Key"
    )
    assert (status, answered["x-refold-ignored"]) == (200, f"x-refold-presett; known: {known}")
    _, answered, _ = await gate.post("/v1/chat/completions", body, x_refold=switch)
    assert "x-refold-ignored" not in answered


async def test_a_header_with_an_unknown_preset_is_refused_by_its_name(gate):
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "One?"}]})
    status, _, answered = await gate.post("/v1/chat/completions", body, x_refold_preset="nope")
    assert status == 400
    told = msgspec.json.decode(answered)["error"]["message"]
    assert told.startswith("X-Refold-Preset names no preset")
    assert "refold, lis" in told


async def stored(gate, owner="local"):
    return {one.id: one.messages for one in await gate.store.conversations(owner)}


@pytest.mark.feature("X3")
@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": PERSON}},
        {"metadata": {"user_id": "anna@example.com"}},
        {"metadata": {"user_id": f"user_{PERSON}"}},
        {"metadata": {"user_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}},
    ],
    ids=lambda fields: fields["metadata"]["user_id"],
)
async def test_chats_of_one_person_are_conversations_of_their_own(gate, fields):
    names = [await ask(gate, first, **fields) for first in ("boats", "trains", "trams")]
    later = [
        await ask(gate, first, "Fine.", "and today?", **fields) for first in ("boats", "trains", "trams")
    ]

    assert len(set(names)) == 3
    assert later == names, "each goes on by what it begins with"
    assert await stored(gate) == dict.fromkeys(names, 3)
    assert PERSON not in names


@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_what_openai_s_clients_send_for_a_person_or_a_cache_names_no_conversation(gate, path, field):
    names = [await ask(gate, first, path=path, **{field: PERSON}) for first in ("boats", "trains")]

    assert len(set(names)) == 2
    assert PERSON not in names


async def test_deleting_one_chat_of_a_person_leaves_the_others(upstream, tmp_path):
    store = await SqliteStore.open(tmp_path / "chats.db")
    try:
        async with served(upstream, store=store) as gate:
            metadata = {"user_id": PERSON}
            first, *others = [await ask(gate, text, metadata=metadata) for text in ("one", "two", "three")]
    finally:
        await store.close()
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    deleted = await asyncio.to_thread(
        subprocess.run,
        [*command(), "delete", first, "--store", url, "--json"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(deleted.stdout)["deleted"] == 1
    store = await SqliteStore.open(tmp_path / "chats.db")
    assert {one.id for one in await store.conversations("local")} == set(others)
    await store.close()


async def test_what_is_spent_on_one_chat_is_not_taken_from_another_of_the_same_person():
    async def talk(gate, opening):
        for turn in range(1, 101, 2):
            messages = [{"role": "user", "content": opening}, {"role": "assistant", "content": "Fine."}]
            body = msgspec.json.encode(
                {
                    "model": "claude-sonnet-4-5",
                    "max_tokens": 100,
                    "messages": messages + told(turn),
                    "metadata": {"user_id": PERSON},
                }
            )
            status, answered, _ = await gate.post("/v1/messages", body)
            assert status == 200
            for live in (await gate.gateway.host("local")).table:
                await live.conversation.ready()
        return answered["x-refold-conversation"]

    def either(received):
        return SUMMARY if is_question(received) else "Fine."

    async with (
        ScriptedUpstream(window=6_000, otherwise=either) as upstream,
        served(upstream, window=6_000, summariser_max_spend=0.000001) as gate,
    ):
        names = [await talk(gate, opening) for opening in ("boats", "trains")]
        paid = [
            [call.id for call in await gate.store.calls("local", name) if call.kind == "summary"]
            for name in names
        ]

    assert [len(calls) for calls in paid] == [1, 1], "each may spend until it is over the limit"
    assert paid[0] != paid[1], "and each has spent for itself"


async def test_a_chat_that_is_stored_under_its_user_s_id_stays_and_goes_on_whole_in_one_of_its_own(gate):
    """As older versions stored it: under the UUID in `metadata.user_id`."""
    await ask(gate, "boats", "Fine.", "trains", headers={"X-Refold-Conversation": PERSON})

    name = await ask(gate, "boats", "Fine.", "trains", "Fine.", "trams", metadata={"user_id": PERSON})

    assert await stored(gate) == {PERSON: 3, name: 5}


@pytest.mark.feature("X3")
@pytest.mark.parametrize(
    "user_id",
    [
        as_text(),
        as_text(account=PERSON),
        as_object(),
        as_object(account=PERSON),
        as_object(team="harbour"),
        json.dumps(json.loads(as_object()), indent=1),
    ],
)
async def test_claude_code_s_session_names_the_conversation_with_and_without_its_header(gate, user_id):
    header = {"X-Claude-Code-Session-Id": SESSION}
    assert await ask(gate, "boats", headers=header) == SESSION
    assert await ask(gate, "boats", "Fine.", "trains", metadata={"user_id": user_id}) == SESSION
    assert await ask(gate, "boats", "Fine.", "trains", "Fine.", "trams", headers=header) == SESSION
    assert await stored(gate) == {SESSION: 5}
    assert len(await gate.store.sessions("local", SESSION)) == 1, "and it is one branch"


@pytest.mark.parametrize("form", [as_text, as_object])
async def test_headers_come_before_the_session_in_the_body(gate, form):
    metadata = {"user_id": form()}
    assert await ask(gate, "a", headers={"X-Refold-Conversation": "mine"}, metadata=metadata) == "mine"
    assert await ask(gate, "b", headers={"X-Claude-Code-Session-Id": OTHER}, metadata=metadata) == OTHER
    assert await ask(gate, "c", metadata=metadata) == SESSION


MALFORMED = {
    "a part before": f"x{as_text()}",
    "a part behind": f"{as_text()}x",
    "a line behind": f"{as_text()}\n",
    "a short device": as_text().replace(DEVICE, DEVICE[:-1]),
    "a device that is not hexadecimal": as_text().replace("8aff", "8agg"),
    "an account that is no UUID": as_text(account="anna"),
    "a session that is no UUID": as_text(session="today"),
    "a session without dashes": as_text(session=SESSION.replace("-", "")),
    "no account": f"user_{DEVICE}_session_{SESSION}",
    "two sessions": f"{as_text()}_session_{OTHER}",
    "letters that fold to ours": as_text().replace("session", "\u017fession"),
    "an object without a device": json.dumps({"account_uuid": "", "session_id": SESSION}),
    "an object without an account": json.dumps({"device_id": DEVICE, "session_id": SESSION}),
    "an object without a session": json.dumps({"device_id": DEVICE, "account_uuid": ""}),
    "an object with a word for a session": as_object(session="today"),
    "an object with a line behind its session": as_object(session=f"{SESSION}\n"),
    "an object with a number for an account": as_object(account=7),
    "an object with a person's name for a device": as_object().replace(DEVICE, "anna"),
    "an object within an object": json.dumps({"user": json.loads(as_object())}),
    "an object in a list": f"[{as_object()}]",
    "two objects": as_object() + as_object(),
    "half an object": as_object()[:-1],
    "deep nesting": "{" + '"a":{' * 900,
}


@pytest.mark.parametrize("user_id", MALFORMED.values(), ids=MALFORMED)
async def test_what_only_looks_like_claude_code_s_form_names_nothing(gate, user_id):
    names = [await ask(gate, first, metadata={"user_id": user_id}) for first in ("boats", "trains")]

    assert len(set(names)) == 2
    assert not {SESSION, OTHER, PERSON} & set(names)


async def test_no_field_of_a_request_names_an_owner(gate):
    (key, anna), (_, person) = mint("anna", at=1.0), mint(PERSON, at=1.0)
    await gate.store.add_key(anna)
    await gate.store.add_key(person)
    for user_id in (PERSON, as_text(account=PERSON), as_object(account=PERSON)):
        await ask(gate, "boats", headers={"X-Refold-Key": key}, metadata={"user_id": user_id}, user=PERSON)

    assert await stored(gate, PERSON) == {}
    assert await stored(gate, "local") == {}
    assert SESSION in await stored(gate, "anna")


async def test_programs_without_names_are_told_apart_by_the_reply_and_with_names_at_once(upstream):
    numbers = count(1)
    async with (
        ScriptedUpstream(otherwise=lambda _: f"Reply {next(numbers)}.") as replying,
        served(replying, window=8_000, summariser_enabled=False) as gate,
    ):
        chat = {"path": "/v1/chat/completions"}
        opened = [
            await ask(gate, "Hello", **chat),
            await ask(gate, "Hello"),
            await ask(gate, "Hello", **chat),
        ]
        assert len({*opened}) == 1
        first = await ask(gate, "Hello", "Reply 1.", "And mine?", **chat)
        third = await ask(gate, "Hello", "Reply 3.", "And mine?", **chat)
        assert (first, third != first) == (opened[0], True)
        named = [
            await ask(gate, "Hello", **chat, headers={"x_refold_conversation": name}) for name in ("a", "b")
        ]
        assert named == ["a", "b"]
