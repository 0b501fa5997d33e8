"""A store that fails: no client is told where it is, whatever it asks for; the operator's log says so, without the password."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO

import aiohttp
import msgspec
import psycopg
import pytest

from refold.engine.engine import Engine
from refold.gateway.auth import mint
from refold.gateway.log import TextFormatter
from refold.model.errors import StoreError
from refold.stores.postgres.store import Patience, PostgresStore
from refold.stores.sqlite.store import SqliteStore
from tests.contract.postgres import get_server, make_database
from tests.gateway.conftest import served
from tests.stores.postgres.trouble import kill

DATABASE, USER, PASSWORD, FOLDER = "planteddatabase", "planteduser", "plantedpassword", "plantedfolder"
CHAT = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello."}]}
CALLS = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/v1/responses", {"model": "gpt-5", "input": "Hello."}),
    ("POST", "/v1/responses", {"model": "gpt-5", "input": "Hello.", "previous_response_id": "resp_1"}),
    ("POST", "/v1/messages", {**CHAT, "max_tokens": 9, "stream": True}),
    ("GET", "/v1/models", None),
    ("GET", "/readyz", None),
    ("GET", "/refold/status", None),
    ("GET", "/refold/config", None),
    ("POST", "/refold/config", {"compaction": {"preset": "lis"}}),
    ("GET", "/refold/conversations", None),
    ("GET", "/refold/conversations/tides", None),
    ("GET", "/refold/conversations/tides/receipts", None),
    ("POST", "/refold/conversations/tides/compact", {}),
    ("POST", "/refold/conversations/tides/undo", {}),
    ("GET", "/refold/events", None),
]


@pytest.fixture(autouse=True)
def gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that ends waits for its store, and here it never comes back."""
    monkeypatch.setattr("refold.gateway.exchange.CLOSING_S", 0.05)


@pytest.fixture
def log() -> AsyncIterator[StringIO]:
    """All that is logged, as the gateway writes it down, from debug on."""
    written, root = StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(written), root.level
    handler.setFormatter(TextFormatter())
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


async def ask(gate, method: str, path: str, body: object, key: str) -> tuple[int, bytes]:
    """A status, and every byte that a client gets to see."""
    headers = {"anthropic-version": "2023-06-01"} | ({"x-refold-key": key} if key else {})
    sent = msgspec.json.encode(body) if body is not None else None
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{gate.url}{path}", data=sent, headers=headers) as response,
    ):
        told = await response.read()
        return response.status, b"\n".join((*(b": ".join(one) for one in response.raw_headers), told))


async def assert_tells_nothing(gate, key: str, planted: list[str]) -> None:
    asked = [(*call, which) for which in (key, mint("anna", at=1.0)[0], "") for call in CALLS]
    # All at once: each waits for a connection as long as a busy machine needs to make one.
    answers = await asyncio.gather(*(ask(gate, *one) for one in asked))
    for (method, path, *_), (_, seen) in zip(asked, answers, strict=True):
        assert not [word for word in planted if word in seen.decode()], (method, path)
    failed = sum(status == 503 for status, _ in answers)
    assert failed >= 2 * (len(CALLS) - 1), "a store that is down has to be noticed"


@asynccontextmanager
async def postgres(
    config: pytest.Config, folder, *, wait_s: float = 1.0
) -> AsyncIterator[tuple[PostgresStore, str]]:
    """A store whose server goes away with the name of its socket's folder."""
    server = get_server(config)
    make_database(server, DATABASE)
    with psycopg.connect(server.get_uri(DATABASE), autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {USER}")
        connection.execute(f"CREATE ROLE {USER} SUPERUSER LOGIN")
    folder.symlink_to(server.get_postmaster_info().socket_dir)
    store = await PostgresStore.open(
        f"postgresql://{USER}:{PASSWORD}@/{DATABASE}?host={folder}", Patience(connections=2, wait_s=wait_s)
    )
    try:
        yield store, server.get_uri(DATABASE)
    finally:
        await store.close()
        make_database(server, DATABASE)
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {DATABASE}")
            connection.execute(f"DROP ROLE {USER}")


async def test_without_postgresql_no_answer_names_its_host_its_database_or_its_user(
    pytestconfig, tmp_path, upstream, log
):
    folder = tmp_path / FOLDER
    planted = [DATABASE, USER, PASSWORD, FOLDER, str(tmp_path), "PGSQL"]
    async with postgres(pytestconfig, folder) as (store, url), served(upstream, store=store) as gate:
        key, kept = mint("anna", at=1.0)
        await store.add_key(kept)
        assert (await ask(gate, "GET", "/refold/status", None, key))[0] == 200
        folder.unlink()
        kill(url)

        await assert_tells_nothing(gate, key, planted)

    assert f"the store failed: the database cannot be reached: {DATABASE} on {folder}" in log.getvalue()
    assert PASSWORD not in log.getvalue()


async def test_without_postgresql_clients_are_answered_and_do_not_wait(pytestconfig, tmp_path, upstream):
    """Each wait for a connection would be two seconds; only the first call has it."""
    folder = tmp_path / FOLDER
    async with (
        postgres(pytestconfig, folder, wait_s=2.0) as (store, url),
        served(upstream, store=store) as gate,
    ):
        assert (await ask(gate, "POST", "/v1/chat/completions", CHAT, ""))[0] == 200
        folder.unlink()
        kill(url)
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.has_keys()

        async with asyncio.timeout(20):  # ten waits for each of these calls would take longer
            told = [await ask(gate, "POST", "/v1/chat/completions", CHAT, "") for _ in range(10)]

        assert [status for status, _ in told] == [200] * 10
        assert all(b"x-refold-action: not-kept" in seen.lower() for _, seen in told)


async def test_without_its_file_no_answer_names_a_path(tmp_path, upstream, log):
    path = tmp_path / FOLDER / "chats.db"
    path.parent.mkdir()
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate:
        key, kept = mint("anna", at=1.0)
        await store.add_key(kept)
        assert (await ask(gate, "GET", "/refold/status", None, key))[0] == 200
        await damage(store, path)

        await assert_tells_nothing(gate, key, [FOLDER, "chats.db", str(tmp_path)])
    await store.close()

    assert "the store failed: " in log.getvalue()
    assert str(path) in log.getvalue()


async def damage(store: SqliteStore, path) -> None:
    """Overwrite the file, so that nothing can be read from it any more."""
    await store.vacuum()
    for one in path.parent.iterdir():
        one.write_bytes(b"\xff" * 65_536)


@pytest.mark.parametrize("tool", ["list_conversations", "search", "recall"])
async def test_an_mcp_client_is_told_no_path_and_no_host(tmp_path, tool, capsys):
    mcp = pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
    if not hasattr(mcp, "Client"):
        pytest.skip("this `mcp` is older than 2.0, which the server needs")
    from refold.integrations.mcp import ConversationTools, server_for

    arguments = {
        "list_conversations": {},
        "search": {"words": "tides"},
        "recall": {"conversation": "a", "handle": "#m1"},
    }
    urls = (
        f"postgresql://{USER}:{PASSWORD}@/{DATABASE}?host={tmp_path / FOLDER}",
        f"sqlite:///{tmp_path / FOLDER / 'a.db'}",
    )
    for url in urls:
        tools = ConversationTools(lambda url=url: Engine(url).start())
        async with mcp.Client(server_for(tools)) as client:
            result = await client.call_tool(tool, arguments[tool])
        await tools.close()

        told = msgspec.json.encode(result.model_dump(mode="json")).decode()
        assert result.is_error
        assert "the database cannot be reached" in told or "the folder of the database is not there" in told
        assert not [word for word in (DATABASE, USER, PASSWORD, FOLDER, str(tmp_path)) if word in told]
    assert PASSWORD not in capsys.readouterr().err
