"""What can be asked and changed over HTTP, and that it holds for the next request."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest

from refold.config import Layer
from refold.gateway.auth import mint
from tests.gateway.conftest import served

LONG = [
    {"role": ("user", "assistant")[n % 2], "content": f"Sentence {n} of a long story about ships. " * 12}
    for n in range(41)
]


async def asked(gate, method, path, body=None, key=""):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        sent = msgspec.json.encode(body) if body is not None else None
        async with session.request(method, f"{gate.url}/refold/{path}", data=sent) as response:
            return response.status, msgspec.json.decode(await response.read())


async def twin(gate, path):
    async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/{path}") as response:
        return await response.json()


async def talk(gate, messages=LONG, **headers):
    body = msgspec.json.encode({"model": "gpt-5", "messages": messages, "max_tokens": 100})
    status, told, _ = await gate.post(
        "/v1/chat/completions", body, x_refold_conversation="ships/1", **headers
    )
    assert status == 200
    return told


@pytest.mark.feature("X9", "X2")
async def test_a_conversation_tells_how_full_it_is(gate):
    await talk(gate)
    status, found = await asked(gate, "GET", "conversations/ships/1")

    assert (status, found["messages"], found["compactions"]) == (200, 41, 0)
    assert 0.3 < found["ratio"] < 0.9
    _, listed = await asked(gate, "GET", "conversations")
    assert [one["id"] for one in listed] == ["ships/1"]
    _, status_page = await asked(gate, "GET", "status")
    assert status_page["conversations"][0]["id"] == "ships/1"
    assert status_page["upstreams"] == [{"name": "scripted", "formats": ["chat", "responses", "anthropic"]}]


@pytest.mark.feature("X9")
async def test_a_compaction_that_is_asked_for_really_compacts_and_can_be_taken_back(gate):
    await talk(gate)
    status, done = await asked(gate, "POST", "conversations/ships/1/compact", {"focus": "sails"})
    assert (status, done["compactions"]) == (200, 1)
    assert done["after"] < done["before"] / 2
    more = [*LONG, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And then?"}]
    await talk(gate, more)
    assert len(gate.upstream.requests[-1].messages) < 20

    status, undone = await asked(gate, "POST", "conversations/ships/1/undo")
    assert (status, undone["undone"]) == (200, True)
    await talk(
        gate, [*more, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Really?"}]
    )
    assert len(gate.upstream.requests[-1].messages) == len(more) + 2

    _, sessions = await asked(gate, "GET", "conversations/ships/1/sessions")
    assert {one["kind"] for one in sessions} == {"root", "compaction"}
    _, changes = await asked(gate, "GET", "conversations/ships/1/compactions")
    assert [(one["state"], one["moment"]) for one in changes] == [("undone", "manual")]
    assert "shown" not in changes[0]


@pytest.mark.parametrize(
    ("posted", "field"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"format": "responses"}, "input"),
        ({"format": "anthropic", "system": "Be brief."}, "messages"),
    ],
)
async def test_without_messages_there_is_nothing_to_compact(gate, posted, field):
    status, told = await asked(gate, "POST", "compact", {"model": "gpt-4o", **posted})
    assert status == 400
    assert told["error"]["message"].startswith(f"{field} is empty or missing")
    assert field in told["error"]["hint"]


@pytest.mark.parametrize("path", ["compact", "conversations/ships/1/compact"])
async def test_a_focus_of_the_length_of_a_page_is_refused(gate, path):
    await talk(gate)
    posted = {"model": "gpt-4o", "messages": LONG} if path == "compact" else {}
    status, told = await asked(gate, "POST", path, {**posted, "focus": "password is 'x' " * 300})

    assert (status, told["error"]["message"].splitlines()[0]) == (
        400,
        "focus is longer than 4,000 characters",
    )
    assert (await asked(gate, "POST", path, {**posted, "focus": "x" * 4_000}))[0] == 200


@pytest.mark.feature("X9")
async def test_receipts_tell_what_each_call_cost(gate):
    told = await talk(gate)
    _, receipts = await asked(gate, "GET", "conversations/ships/1/receipts")

    assert [one["id"] for one in receipts] == [told["x-refold-receipt"]]
    assert receipts[0]["usage"]["input"] > 1_000
    assert receipts[0]["receipt"]["size"] == 41


async def test_settings_are_shown_without_their_secrets(upstream):
    secret = {
        "store_url": "postgresql://me:canary@host/db?password=canary",
        "compaction_sensitive": ["canary"],
        "summariser_models": ["m@https://host/v1?key=canary"],
    }
    async with served(upstream, **secret) as gate:
        _, shown = await asked(gate, "GET", "config")
        _, changed = await asked(gate, "POST", "config", {"cache": {"ttl": "1h"}})

    assert "canary" not in str(shown) + str(changed)
    assert shown["settings"]["store"]["url"] == "postgresql://***@host/db?***"
    assert shown["settings"]["compaction"]["sensitive"] == ["***"]
    assert shown["settings"]["summariser"]["models"] == ["m@https://host/v1?***"]
    assert shown["origins"]["store.url"] == "the flag --store"


OPERATED = Layer(
    "user",
    {
        "store.url": "postgresql://db.internal/talks",
        "server.names": ["gateway.internal"],
        "upstreams.box.url": "https://models.internal/v1",
        "upstreams.box.key_command": "vault read box",
        "upstreams.box.headers": {"X-Team": "tides"},
        "compaction.sensitive": ["salary"],
        "compaction.limit": "70%",
        "summariser.models": ["m@https://writer.internal/v1"],
    },
    path="/etc/operator/refold.toml",
)
OPERATIONS = ("internal", "operator", "vault", "X-Team", "salary", "writer", "box", "/etc")


async def keys_of(gate) -> dict[str, str]:
    """A key of anna's, and an admin key of hers."""
    made = {}
    for name, admin in (("own", False), ("admin", True)):
        made[name], kept = mint("anna", at=1.0, admin=admin)
        await gate.store.add_key(kept)
    return made


@pytest.mark.feature("X18")
async def test_only_an_admin_key_sees_how_the_gateway_is_run(upstream):
    async with served(upstream, layers=[OPERATED]) as gate:
        keys = await keys_of(gate)
        for method, body in (("GET", None), ("POST", {"cache": {"ttl": "1h"}})):
            _, own = await asked(gate, method, "config", body, key=keys["own"])

            assert not [word for word in OPERATIONS if word in str(own)]
            assert own["settings"]["compaction"]["limit"] == "70%"
            assert own["origins"]["compaction.limit"] == "the user file"
            assert {"store", "server", "upstreams"} < set(own["hidden"])
            assert {"compaction.sensitive", "summariser.models"} < set(own["hidden"])
            assert not set(own["settings"]) & set(own["hidden"])
            assert "refold keys create --admin" in own["hint"]
        _, whole = await asked(gate, "GET", "config", key=keys["admin"])

        assert own["settings"]["cache"] == whole["settings"]["cache"] == {"ttl": "1h"}, "it is anna's too"
        assert whole["hidden"] == []
        assert whole["settings"]["store"]["url"] == "postgresql://db.internal/talks"
        assert whole["settings"]["upstreams"]["box"]["key_command"] == "vault ***"
        assert whole["origins"]["compaction.limit"] == "the user file /etc/operator/refold.toml"
        assert "salary" not in str(whole)


@pytest.mark.feature("X18")
async def test_without_keys_this_machine_is_the_admin(upstream):
    async with served(upstream, layers=[OPERATED]) as gate:
        _, shown = await asked(gate, "GET", "config")

    assert shown["hidden"] == []
    assert shown["settings"]["upstreams"]["box"]["url"] == "https://models.internal/v1"


@pytest.mark.parametrize("which", ["own", "admin"])
async def test_an_admin_key_changes_no_more_than_any_other(upstream, which):
    async with served(upstream, layers=[OPERATED]) as gate:
        key = (await keys_of(gate))[which]
        for change in ({"store.url": "memory:"}, {"upstreams.box.url": "http://x"}, {"server.port": 1}):
            assert (await asked(gate, "POST", "config", change, key=key))[0] == 403


async def test_a_change_that_does_not_fit_a_file_names_no_path(upstream):
    """Of a setting that is fine by itself, and does not go with another one that stands in a file."""
    said = {"compaction.preset": "lis", "compaction.tool_prune_threshold": 9_000}
    file = Layer("user", said, path="/etc/operator/refold.toml")
    async with served(upstream, layers=[file]) as gate:
        key = (await keys_of(gate))["own"]
        status, told = await asked(gate, "POST", "config", {"compaction.preset": "opal"}, key=key)

    assert (status, told["error"]["message"].partition(":")[0]) == (400, "compaction.tool_prune_threshold")
    assert "operator" not in str(told)


@pytest.mark.parametrize(
    "change",
    [
        {"store": {"url": "postgresql://me:planted@host/db"}},
        {"store": {"postgresql://me:planted@host/db": 1}},
        {"upstreams": {"https://me:planted@host/v1": {"formats": ["chat"]}}},
        {"upstreams": {"box": {"headers": {"X-Key": "planted"}, "key_command": "vault planted"}}},
        {"compaction": {"sensitive": ["(planted"]}},
        {"summariser": {"models": ["planted"]}},
        {"compaction": {"preset": "planted", "prompt": ["planted"], "tools": {"bash": "planted"}}},
        {"compaction": {"prompt": ["planted"]}},
        {"compaction": {"window": "planted"}},
        {"postgresql://me:planted@host": 1},
    ],
)
async def test_what_is_refused_is_not_repeated(upstream, change):
    async with served(upstream) as gate:
        status, told = await asked(gate, "POST", "config", change)

    assert status in (400, 403)
    assert "planted" not in str(told)


@pytest.mark.feature("X18")
async def test_what_is_another_owners_is_not_there(upstream):
    async with served(upstream, window=8_000) as gate:
        keys = {}
        for owner in ("anna", "ben"):
            text, key = mint(owner, at=1.0)
            keys[owner] = text
            await gate.store.add_key(key)
        gate_key = {"x_refold_key": keys["anna"]}
        await talk(gate, **gate_key)

        assert (await asked(gate, "GET", "conversations/ships/1", key=keys["anna"]))[0] == 200
        for path in ("", "/sessions", "/compactions", "/receipts"):
            assert (await asked(gate, "GET", f"conversations/ships/1{path}", key=keys["ben"]))[0] == 404
        assert (await asked(gate, "POST", "conversations/ships/1/compact", {}, key=keys["ben"]))[0] == 404
        assert (await asked(gate, "GET", "conversations", key=keys["ben"]))[1] == []
        assert (await asked(gate, "GET", "status"))[0] == 401


@pytest.mark.feature("X18")
async def test_a_command_is_for_the_owner_of_the_conversation(upstream):
    async with served(upstream, window=8_000) as gate:
        keys = {}
        for owner in ("anna", "ben"):
            keys[owner], key = mint(owner, at=1.0)
            await gate.store.add_key(key)
        await talk(gate, x_refold_key=keys["anna"])
        body = {"conversation": "ships/1", "text": "/status"}

        assert (await asked(gate, "POST", "command", body, key=keys["anna"]))[0] == 200
        assert (await asked(gate, "POST", "command", body, key=keys["ben"]))[0] == 404
        assert (await asked(gate, "POST", "command", body))[0] == 401


async def test_a_command_is_run_as_in_a_chat_and_kept(gate):
    await talk(gate)

    async def run(text):
        status, told = await asked(gate, "POST", "command", {"conversation": "ships/1", "text": text})
        assert status == 200
        return told

    assert (await run("  /STATUS "))["reply"].startswith("🤖 Agent: ships/1\n🧠 Model: gpt-5\n")
    assert (await run("/stats")) == {
        "id": "ships/1",
        "command": "",
        "reply": "There is no command /stats: did you mean /status?",
    }
    assert (await run("/compact sails"))["command"] == "/compact"
    _, found = await asked(gate, "GET", "conversations/ships/1")
    assert found["compactions"] == 1
    assert (await run("/undo"))["reply"].startswith("↩️ Taken back")
    assert (await run("/clear"))["command"] == "/new"
    head = await gate.store.head("local", "ships/1")
    kept = await gate.store.commands("local", head.branch)
    assert [one.text.strip() for one in kept] == ["/STATUS", "/stats", "/compact sails", "/undo", "/clear"]
    sent = len(gate.upstream.requests)
    assert sent <= 2  # the call, and the summary


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"conversation": "ships/1"},
        {"text": "/status"},
        {"conversation": "", "text": "/status"},
        {"conversation": 7, "text": "/status"},
        {"conversation": "ships/1", "text": ["/status"]},
        {"conversation": "ships/1", "text": "/search a\0b"},
        {"conversation": "ships/1", "text": "hello"},
        {"conversation": "ships/1", "text": "/model gpt-4o"},
        {"conversation": "ships/1", "text": "/preset lis"},
        {"conversation": "ships/1", "text": "/status", "owner": "ben"},
        ["/status"],
    ],
)
async def test_what_is_no_command_is_refused_with_a_hint(gate, body):
    await talk(gate)
    status, told = await asked(gate, "POST", "command", body)

    assert (status, bool(told["error"]["hint"])) == (400, True)


async def test_a_command_needs_a_conversation_that_is_there(gate):
    body = {"conversation": "nothing", "text": "/status"}

    assert (await asked(gate, "POST", "command", body))[0] == 404


async def test_bad_questions_are_answered_with_a_hint(gate):
    assert (await asked(gate, "GET", "conversations/nothing"))[0] == 404
    status, answer = await asked(gate, "GET", "conversations?limit=many")
    assert (status, bool(answer["error"]["hint"])) == (400, True)
    assert (await asked(gate, "GET", "elsewhere"))[0] == 404


async def test_a_pinned_message_leaves_with_every_request_until_it_is_let_go(gate):
    await talk(gate)
    status, told = await asked(gate, "POST", "conversations/ships/1/pins", {"pin": "#m3"})
    assert (status, told["pins"]) == (200, ["#m3"])
    await asked(gate, "POST", "conversations/ships/1/compact")
    more = [*LONG, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And then?"}]
    await talk(gate, more)
    sent = [message.text for message in gate.upstream.requests[-1].messages]
    assert len(sent) < 20
    assert LONG[3]["content"] in sent
    assert (await asked(gate, "GET", "conversations/ships/1/pins"))[1]["pins"] == ["#m3"]
    status, told = await asked(gate, "POST", "conversations/ships/1/pins", {"unpin": "#m3"})
    assert (status, told["pins"]) == (200, [])


@pytest.mark.parametrize("body", [{}, [], {"pin": 3}, {"pin": "#m1", "unpin": "#m1"}])
async def test_what_names_no_message_is_refused(gate, body):
    await talk(gate)
    status, told = await asked(gate, "POST", "conversations/ships/1/pins", body)
    assert status == 400
    assert '{"pin": "#m12"}' in told["error"]["hint"]


@pytest.mark.feature("X9")
async def test_outside_of_a_call_a_conversation_has_the_window_and_the_output_of_its_last_call(upstream):
    """A header gives the window for one request, and the operator's figure is another one."""
    async with served(upstream, window=200_000, summariser_enabled=False) as gate:
        await talk(gate, x_refold_window="8000")
        _, found = await asked(gate, "GET", "conversations/ships/1")
        _, (listed,) = await asked(gate, "GET", "conversations")
        page = await twin(gate, "conversations/ships~11.json")
        replay = await twin(gate, "conversations/ships~11/replay.json")

    assert (found["window"], found["limit"]) == (8_000, listed["limit"])
    assert found["tokens"] == listed["tokens"]
    rooms = {row["region"]: row["tokens"] for row in page["window"]}
    assert sum(rooms.values()) == page["calls"][-1]["window"] == 8_000
    assert page["status"]["limit"] == listed["limit"]
    assert replay["window"] == 8_000


async def test_the_page_counts_and_shows_the_newest_reply_until_the_client_sends_it_back(gate):
    """As `refold show` and `refold conversations` do."""
    question = [{"role": "user", "content": "Which ship?"}]
    await talk(gate, question)
    shown = await twin(gate, "conversations/ships~11/messages.json")
    overview = await twin(gate, "conversations/ships~11.json")
    doomed = await twin(gate, "conversations/ships~11/delete.json")
    (listed,) = (await twin(gate, "index.json"))["conversations"]
    assert [(one["role"], one["text"], one["is_newest_reply"]) for one in shown["messages"]] == [
        ("user", "Which ship?", False),
        ("assistant", "Fine.", True),
    ]
    assert (shown["size"], shown["next_first"], doomed["messages"]) == (2, None, 2)
    assert [(one["size"], one["reply"]) for one in overview["branches"]] == [(1, 1)]
    assert (listed["messages"], listed["reply"]) == (1, 1)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{gate.url}/conversations/ships~11") as response,
    ):
        assert "branch 1: 2 messages" in await response.text()

    await talk(
        gate, [*question, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "So?"}]
    )
    shown = await twin(gate, "conversations/ships~11/messages.json")
    assert [one["is_newest_reply"] for one in shown["messages"]] == [False, False, False, True]
    assert shown["size"] == (await twin(gate, "conversations/ships~11/delete.json"))["messages"] == 4
