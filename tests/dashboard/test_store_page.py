"""`refold dashboard`: the page for a store without a gateway, as the program serves it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from refold.cli.main import run
from refold.config import resolve
from refold.dashboard import workspace
from refold.engine.engine import Engine
from refold.gateway.auth import KeyRing, mint
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.dashboard.example_store import sentence
from tests.dashboard.visitor import Visitor


async def write(url: str, *, with_key: bool = False) -> str:
    key = ""
    async with Engine(url, model="gpt-4o", window=12_000, embedder=None) as engine:
        chat, random = await engine.conversation("talk", title="A talk"), Random(1)
        for _ in range(12):
            await chat.add({"role": "user", "content": sentence(random, 120)})
            await chat.add({"role": "assistant", "content": sentence(random, 200)})
        await chat.context()
        if with_key:
            key, row = mint("local", at=1.0)
            await engine.store.add_key(row)
    return key


@contextmanager
def running(path: Path, *options: str):
    """The program, and the port that it prints."""
    command = [
        sys.executable,
        "-m",
        "refold",
        "dashboard",
        "--no-open",
        "--port",
        "0",
        "--store",
        str(path),
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.communicate(timeout=10)
            yield int(address.rpartition(":")[2]), process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)


def test_the_program_serves_the_page_of_a_store_until_it_is_stopped(tmp_path):
    path = tmp_path / "chats.db"
    asyncio.run(write(str(path)))
    with running(path) as (port, process):
        visitor = Visitor(port)
        assert "A talk" in visitor.get("/").text
        assert visitor.get("/", host="evil.example").status == 403
        assert visitor.get("/", sec_fetch_site="cross-site").status == 403
        assert visitor.get("/v1/models").status == 404
        assert visitor.get("/refold/status").status == 404
        for view in ("", "/compact", "/preview", "/pins", "/replay", "/delete"):
            assert visitor.get(f"/conversations/talk{view}").status == 200
        before = visitor.get("/conversations/talk/compact.json").json()["status"]
        visitor.get("/conversations/talk/compact")
        assert visitor.act("/conversations/talk/compact", keep="1000").status == 303
        after = visitor.get("/conversations/talk/compact.json").json()["status"]
        assert after["tokens"] < before["tokens"]
        assert after["window"] == before["window"] == 12_000
        visitor.get("/settings")
        assert visitor.act("/settings", name="compaction.preset", value="opal").status == 303
        assert "gateway" in visitor.get("/operations").text
    assert process.returncode == 0

    async def stored() -> bytes | None:
        store = await open_store(str(path))
        try:
            return await store.setting("local", "runtime")
        finally:
            await store.close()

    assert asyncio.run(stored()) == b'{"compaction.preset":"opal"}'  # a gateway on this store has it too


def test_the_page_is_opened_in_the_browser_while_it_is_served(tmp_path):
    """The browser here is one that returns only when it has the page, as those of a terminal do."""
    path, seen, browser = tmp_path / "chats.db", tmp_path / "seen", tmp_path / "browser.py"
    asyncio.run(write(str(path)))
    os.mkfifo(seen)
    browser.write_text(
        "import sys, urllib.request\n"
        "try: page = urllib.request.urlopen(sys.argv[1], timeout=20).read()\n"
        "except OSError: page = b'nothing'\n"
        f"open({str(seen)!r}, 'wb').write(page)\n"
    )
    command = [sys.executable, "-m", "refold", "dashboard", "--port", "0", "--store", str(path)]
    environ = {**os.environ, "BROWSER": f"{sys.executable} {browser} %s"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ
    ) as process:
        try:
            assert "A talk" in seen.read_text()
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.slow  # the gate is that of the gateway's page, which the tests of the app knock at
def test_a_store_with_keys_asks_for_one(tmp_path):
    path = tmp_path / "chats.db"
    key = asyncio.run(write(str(path), with_key=True))
    with running(path) as (port, _):
        visitor = Visitor(port)
        assert visitor.get("/").location == "/sign-in"
        assert visitor.get("/index.json").status == 401
        visitor.sign_in(key)
        assert "A talk" in visitor.get("/").text


def test_a_missing_store_and_a_taken_port_are_told(tmp_path, capsys):
    def told(*options: str) -> str:
        capsys.readouterr()
        assert run(["dashboard", "--no-open", *options]) == 2
        return capsys.readouterr().err

    assert "there is no store yet" in told("--store", str(tmp_path / "none.db"))
    assert "memory" in told("--store", "memory:")
    path = tmp_path / "chats.db"
    asyncio.run(write(str(path)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in told("--store", str(path), "--port", str(port))


async def test_the_stream_of_a_store_tells_when_something_was_stored(monkeypatch):
    monkeypatch.setattr(workspace, "POLL_S", 0.001)
    store = MemoryStore()
    engine = Engine(store, model="gpt-4o", embedder=None)
    chat = await engine.conversation("talk")
    backend = workspace.StoreBackend(store, resolve(), KeyRing(store), "test")
    sent, told = list[bytes](), asyncio.Event()

    async def send(message) -> None:
        if body := message.get("body"):
            sent.append(body)
            told.set()

    async def receive():
        await asyncio.Event().wait()

    scope = {"type": "http", "state": {"owner": "local", "key_id": "", "admin": True}}
    stream = asyncio.create_task(backend.stream(scope, receive, send))
    await told.wait()
    assert sent == [b":\n\n"]
    told.clear()
    await chat.add("Where is the ferry?")
    await told.wait()
    assert sent[1:] == [b"event: changed\ndata: {}\n\n"]
    backend.end_streams()
    await asyncio.wait_for(stream, 10)
    await backend.close()


async def test_the_stream_ends_when_its_key_is_revoked(monkeypatch):
    monkeypatch.setattr(workspace, "POLL_S", 0.001)
    monkeypatch.setattr("refold.gateway.auth.REMEMBER_S", 0.0)
    store = MemoryStore()
    _, row = mint("anna", at=1.0)
    await store.add_key(row)
    backend = workspace.StoreBackend(store, resolve(), KeyRing(store), "test")
    begun = asyncio.Event()

    async def send(_) -> None:
        begun.set()

    async def receive():
        await asyncio.Event().wait()

    scope = {"type": "http", "state": {"owner": "anna", "key_id": row.id, "admin": False}}
    stream = asyncio.create_task(backend.stream(scope, receive, send))
    await begun.wait()
    await store.revoke_key("anna", row.id, 2.0)
    await asyncio.wait_for(stream, 10)


@pytest.mark.parametrize("owner", ["local", "anna"])
async def test_a_store_page_shows_the_owner_that_was_named(owner):
    store = MemoryStore()
    backend = workspace.StoreBackend(store, resolve(), KeyRing(store), "test", owner="anna")

    assert (await backend.workspace(owner)).engine.owner == "anna"
