"""Keys and words are where they belong: a key in the request to its provider and nowhere else, what was said in no log.

A real gateway runs through everything that goes wrong, with keys and words that can be recognised; then every byte that it wrote
anywhere is looked through.
"""

from __future__ import annotations

import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest

from refold.stores.url import open_store
from refold.testing import Broken, Received, Refuse, Reset, ScriptedUpstream, garbage, overflow, say
from tests.gateway.faults.clients import is_summary
from tests.gateway.faults.process import Program
from tests.gateway.gates import make_key
from tests.program import command

CLIENT, UPSTREAM = "sk-client-canary-6fe1c0ffee", "sk-upstream-canary-d15ea5ed"
WRONG = "rf_0123456789ab_" + "bad0" * 12
SECRET = "the-word-that-nobody-logs-4242"
SECRETS = ("authorization", "x-api-key", "x-refold-key")


class Run:
    """One gateway, and all that it said to its clients."""

    def __init__(self, url: str, key: str, session: aiohttp.ClientSession) -> None:
        self.url, self.key, self._session = url, key, session
        self.answers: list[bytes] = []
        self.errors: list[bytes] = []
        self.said = [{"role": "user", "content": f"Remember {SECRET}."}]

    async def ask(self, path: str = "/v1/chat/completions", body: object = None, **headers: str) -> int:
        sent = {"x-refold-key": self.key, "authorization": f"Bearer {CLIENT}", "anthropic-version": "2023-06-01",
                "x-refold-conversation": "talk"}  # fmt: skip
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else msgspec.json.encode(body or self.request())
        try:
            async with self._session.post(
                self.url + path, data=data, headers=sent, allow_redirects=False
            ) as response:
                got = repr(response.headers).encode() + await response.read()
        except aiohttp.ClientError:
            return 0
        self.answers.append(got)
        self.errors += [got] if response.status >= 400 else []
        return response.status

    async def look(self, page: str) -> int:
        async with self._session.get(
            f"{self.url}/refold/{page}", headers={"x-refold-key": self.key}
        ) as response:
            self.answers.append(await response.read())
            return response.status

    def request(self, **more: object) -> dict[str, object]:
        return {"model": "gpt-5", "max_tokens": 100, "messages": self.said, **more}

    def grow(self) -> None:
        self.said += [
            {"role": "assistant", "content": f"{SECRET}. " * 12},
            {"role": "user", "content": f"{SECRET} " * 12},
        ]


async def go_wrong(run: Run, upstream: ScriptedUpstream) -> None:
    """Everything that a provider does, and everything that a client does."""
    faults = (Refuse(429), Refuse(500), Refuse(401), Reset(), garbage(), overflow("openai", window=900, prompt=1_900),
              *(Broken(f"{SECRET} and more of it", 3, then) for then in ("end", "reset", "garbage", "error")))  # fmt: skip
    for fault in faults:
        upstream.script(fault, otherwise=either)
        await run.ask(body=run.request(stream=True))
        upstream.script(fault, otherwise=either)
        await run.ask("/v1/messages")
    for body in (b"{", b"[[" * 50_000, SECRET.encode(), b'{"model":5,"messages":"%s"}' % SECRET.encode()):
        await run.ask(body=body)
    await run.ask(x_refold_window=SECRET)
    await run.ask(x_refold_upstream=CLIENT)
    await run.ask(x_refold_key=WRONG)
    await run.ask(x_refold_key=run.key[:-1] + "x")
    await run.ask(f"/v1/chat/completions?key={run.key}")
    await run.ask(f"/v1/{run.key}/x")
    await run.ask(host="evil.example")
    await run.ask("/v1/embeddings", {"model": "m", "input": SECRET})


async def talk(run: Run) -> None:
    """Long enough for summaries, by both upstreams, one of which is gone in the end."""
    for _ in range(24):
        assert await run.ask() == 200
        run.grow()
    assert await run.ask(x_refold_upstream="own") == 200
    for page in ("status", "config", "conversations", "conversations/none", "conversations?limit=x"):
        await run.look(page)
    for part in ("", "/sessions", "/compactions", "/receipts"):
        await run.look(f"conversations/talk{part}")


def either(received: Received) -> object:
    if is_summary(received):
        return (
            Refuse(500)
            if received.number % 4 == 0
            else say(f"## Goal\nKeep it.\n## Progress\n### Done\n{SECRET} was said.")
        )
    return "Fine."


def files(folder: Path) -> bytes:
    """Everything that was written to disk."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def count(keys: list[str], *surfaces: bytes) -> int:
    return sum(surface.count(key.encode()) for key in keys for surface in surfaces)


@pytest.mark.feature("X18")
@pytest.mark.parametrize("form", ["text", pytest.param("json", marks=pytest.mark.slow)])
async def test_keys_are_written_nowhere_and_words_in_no_log(tmp_path, form, capsys):
    url = f"sqlite:///{tmp_path}/talks.db"
    store = await open_store(url)
    key = await make_key(store)
    await store.close()
    async with (
        ScriptedUpstream(otherwise=either, window=None) as upstream,
        aiohttp.ClientSession() as session,
    ):
        flags = ("--upstream", f"own={upstream.url}/v1", "--upstreams-key-env", "own=OWN_KEY", "--window", "3000",
                 "--server-log", form, "--server-log-level", "debug", "--upstreams-models", "own=own-*")  # fmt: skip
        program = Program(
            url,
            f"{upstream.url}/v1",
            *flags,
            home=tmp_path,
            environ={"OWN_KEY": UPSTREAM},
            command=command(),
        )
        async with program:
            run = Run(program.url, key, session)
            await talk(run)
            await go_wrong(run, upstream)
            kept = files(tmp_path)
            await program.stop()
        sent = [one.headers for one in upstream.requests]
    written, answers, errors = bytes(program.out + program.err), b"".join(run.answers), b"".join(run.errors)
    keys = [CLIENT, UPSTREAM, WRONG, key, key.rpartition("_")[2]]
    if form == "json":
        with capsys.disabled():
            sizes = f"{len(written):,} bytes of log, {len(kept):,} on disk, {len(answers):,} of answers"
            sys.stdout.write(f"\nSecrets: {sizes}; keys in them 0\n")
    assert count(keys, written, kept, files(tmp_path), answers) == 0
    assert count([SECRET], written, errors) == 0
    assert any(is_summary(one) for one in upstream.requests)
    # What is looked for is what was sent, and what was said is on disk: looking finds what is there.
    assert {CLIENT, UPSTREAM} == {
        value.removeprefix("Bearer ") for one in sent for name, value in one.items() if name in SECRETS
    }
    assert count([SECRET], kept)
