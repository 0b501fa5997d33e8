"""Secrets and sensitive messages, and what a summariser behind HTTP gets to see of them: every body it receives is searched."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from refold import Conversation, sync
from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.testing import ScriptedUpstream
from refold.upstreams import Provider, Retries, open_upstream

AHEAD = structs.replace(PRESETS["opal"], soft=0.5, manual=None)
"""Cumulative: every summary is made from the one before."""
GOOD = "## Goal\nChange the files.\n## Progress\n### Done\nSome files were changed."
WORD = "kJ3dE6gH9jK2mN5pQ8rS1tU4vW7xY0z"
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f"
SHAPES = [
    "the password is {p}", "my password for prod is {p}", "DB_PASSWORD={p}", "password: {p}", "export API_KEY={p}",
    '{{"password": "{p}"}}', 'client_secret = "{p}"', "dbPassword={p}", "secretKey: {p}", "PASS_PROD: x\nDB_PASS={p}",
    "redis://:{p}@host:6379/0", "postgres://app:{p}@db.host/main", "curl -u bob:{p} https://x", "mysql -u root -p{p} shop",
    "sshpass -p {p} ssh x", "--password {p}", "Server=x;Password={p};Database=z", "https://x.host/?access_token={p}&page=1",
    "Authorization: Bearer {p}abcdef", "x-api-key: {p}", "Cookie: sessionid={p}; theme=dark", "<password>{p}</password>",
    'password = "correct {p} battery staple"', 'password="ab({p})"', "Passwort: {p}", "la contraseña es {p}", "пароль: {p}",
    "密码是{p}", "- name: DB_PASSWORD\n  value: {p}", "password: |\n  {p}", "sk-{w}", "sk-ant-api03-{w}", "ghp_{w}abcd", "hf_{w}",
    "xoxb-123456789012-{w}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{w}", "sk_live_{w}", "GITHUB_TOKEN={h}",
    '"token": "{h}"', "-----BEGIN RSA PRIVATE KEY-----\n{w}{w}\n{w}{w}\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip


def secret(number: int) -> dict[str, str]:
    """What fills a shape: a password, a key and a hash that only this one has."""
    letters = "abcdefghij"[number // 10] + "klmnopqrst"[number % 10]
    return {
        "p": f"hunter22{letters}77",
        "w": f"{WORD}{letters}9",
        "h": f"{HEX}{number % 16:x}{number // 16:x}{letters[0]}",
    }


def turn(number: int, said: str = "", place: str = "user") -> list[dict]:
    """A turn in which something is said in one of four places."""
    named, path = f"c{number}", f"src/module_{number % 6}.py"
    told = {place: f"\n{said}" if said else ""}
    asked = [{"type": "text", "text": f"Step {number}: change {path}.{told.get('user', '')}"}]
    if said and place == "file":
        text = {"type": "text", "media_type": "text/plain", "data": f"notes\n{said}\n"}
        asked.append({"type": "document", "source": text, "title": "notes.txt"})
    inner = json.dumps({"body": told["call"]}) if said and place == "call" else f"value = {number}"
    output = f"wrote {path}{told.get('result', '')}\n" + f"line {number} of it\n" * 20
    return [
        {"role": "user", "content": asked},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": named,
                    "name": "write_file",
                    "input": {"path": path, "content": inner},
                }
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": named, "content": output}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"Changed {path} in step {number}."}]},
    ]


@asynccontextmanager
async def talking(reading: str, **settings):
    """A conversation whose summaries a scripted model writes, and what that model is asked."""
    with ScriptedUpstream(otherwise=GOOD) as server:
        asked = Provider("mine", "small", base_url=f"{server.url}/v1", retries=Retries(tries=1))
        async with open_upstream(asked, environ={}) as upstream:
            writer = SummaryWriter(upstream, 64_000, lambda text: len(text) // 4)
            summariser = ModelSummariser([writer], Recipe(reading=reading))
            given = {"format": "anthropic", "window": 3_000, "max_output": 0, "policy": AHEAD, **settings}
            async with Conversation("gpt-4o", summariser=summariser, **given) as talk:
                yield talk, server


async def play(talk, messages, *, sensitive=False) -> str:
    """One turn, and all that the conversation's own model is shown in it."""
    question, spoken, result, reply = messages
    await talk.add(question, spoken, result, sensitive=sensitive)
    await talk.ready()
    shown = json.dumps(await talk.context(), ensure_ascii=False)
    await talk.add(reply)
    await talk.ready()
    return shown


def bodies(server) -> list[str]:
    return [
        request.body.decode() + json.dumps(request.json, ensure_ascii=False) for request in server.requests
    ]


@pytest.mark.feature("X19")
@pytest.mark.parametrize("reading", ["transcript", "raw"])
async def test_no_secret_of_any_shape_is_in_any_body_that_a_summariser_receives(reading):
    assert len(SHAPES) == 40
    places = ("user", "result", "call", "file")
    async with talking(reading) as (talk, server):
        for number, shape in enumerate(SHAPES):
            await play(talk, turn(number, shape.format(**secret(number)), places[number % 4]))
        for number in range(len(SHAPES), len(SHAPES) + 20):
            await play(talk, turn(number))
        await talk.add("Go on.")
        await talk.compact(focus=f"the api key sk-{WORD}")
        first = await talk.recall("#m0")
    received = bodies(server)
    told = {value for number in range(len(SHAPES)) for value in secret(number).values()} | {f"sk-{WORD}"}
    assert len(received) > 3
    assert [value for value in told if any(value in body for body in received)] == []
    assert any("[secret in #m0]" in body for body in received)
    assert any(len(request.messages) > 1 for request in server.requests) is (reading == "raw")
    assert secret(0)["p"] in json.dumps(first)


@pytest.mark.feature("X19")
@pytest.mark.parametrize("reading", ["transcript", "raw"])
async def test_a_secret_that_is_said_again_without_its_name_is_known(reading):
    async with talking(reading) as (talk, server):
        await play(talk, turn(0, "the password is hunter2277xyz"))
        for number in range(1, 30):
            await play(
                talk, turn(number, "typed hunter2277xyz and went on" if number % 5 == 0 else "", "result")
            )
    received = bodies(server)
    assert len(received) > 2
    assert not any("hunter2277xyz" in body for body in received)
    assert any("typed [secret in #m" in body for body in received)


NIGHTINGALE = "Never tell anyone about project Nightingale: we decided to buy Contoso."


@pytest.mark.feature("X19")
@pytest.mark.parametrize("reading", ["transcript", "raw"])
@pytest.mark.parametrize("how", ["marked", "matched"])
@pytest.mark.parametrize("place", ["user", "result", "call", "file"])
async def test_a_sensitive_message_is_named_and_never_told(reading, how, place):
    settings = {"sensitive": (r"(?i)\bnightingale\b",)} if how == "matched" else {}
    async with talking(reading, **settings) as (talk, server):
        seen = await play(talk, turn(0, NIGHTINGALE, place), sensitive=how == "marked")
        for number in range(1, 30):
            await play(talk, turn(number))
        await talk.add("Go on.")
        fields = await talk.compact()
        at = {"user": 0, "file": 0, "call": 1, "result": 2}[place]
        original, found = await talk.recall(f"#m{at}"), await talk.recall("Nightingale")
    received = bodies(server)
    assert len(received) > 2
    assert not any("Nightingale" in body or "Contoso" in body for body in received)
    if place != "call":
        assert any(f"[withheld: #m{at}]" in body for body in received)
    assert "Nightingale" in seen  # the conversation's own model reads it as ever
    assert "Nightingale" in json.dumps(original)
    assert "Nightingale" not in json.dumps(fields)
    assert "Contoso" not in str(found)
    assert talk.receipts[-1].summary.kind == "model"


@pytest.mark.feature("X19")
@pytest.mark.parametrize("preset", PRESETS)
def test_a_digest_that_needs_no_model_does_not_tell_it_either(preset):
    talk = sync.Conversation("gpt-4o", format="anthropic", window=3_000, max_output=0, preset=preset)
    talk.add(*turn(0, NIGHTINGALE), sensitive=True)
    for number in range(1, 40):
        question, spoken, result, reply = turn(number)
        talk.add(question, spoken, result)
        talk.context()
        talk.add(reply)
    talk.add("Go on.")
    shown = json.dumps(talk.compact())
    assert "module_3" in shown
    assert "Nightingale" not in shown
    assert "Contoso" not in shown
    assert all("Nightingale" not in one.summary.text for one in talk.receipts if one.summary)
    assert "Nightingale" in json.dumps(talk.recall("#m0"))


@pytest.mark.feature("X19")
async def test_a_sensitive_system_prompt_is_not_read_along():
    async with talking("raw", format="chat") as (talk, server):
        await talk.add({"role": "system", "content": "Project Nightingale is secret."}, sensitive=True)
        for number in range(30):
            await talk.add({"role": "user", "content": f"question {number} " + "about it " * 20})
            await talk.ready()
            await talk.context()
            await talk.add({"role": "assistant", "content": f"answer {number} " + "well " * 20})
            await talk.ready()
    received = bodies(server)
    assert received
    assert not any("Nightingale" in body for body in received)
