"""Whose key a call leaves with: what upstreams received, for every way in which keys can be had."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec
import pytest
from yarl import URL

from refold.config import UpstreamSettings
from refold.gateway.upstreams import open_targets
from refold.model.message import DialectName
from refold.testing import Received, Refuse, ScriptedUpstream
from refold.upstreams import provider
from refold.upstreams.provider import ProviderDefaults
from tests.gateway.conftest import served, target_for
from tests.gateway.gates import make_key
from tests.gateway.stateful_provider import keeping
from tests.gateway.test_summarisers import SUMMARY, WINDOW, is_question, play

SETTINGS, CLIENT, ENVIRON, SECOND = "sk-settings", "sk-client", "sk-environ", "sk-second"
SECRETS = (SETTINGS, CLIENT, ENVIRON, SECOND)
ALL: tuple[DialectName, ...] = ("chat", "responses", "anthropic")
KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
STYLES = {
    "openai": ("/v1/chat/completions", "authorization", f"Bearer {CLIENT}"),
    "anthropic": ("/v1/messages", "x-api-key", CLIENT),
    "subscription": ("/v1/messages", "authorization", f"Bearer {CLIENT}"),
    "azure": ("/v1/chat/completions", "api-key", CLIENT),
}
BODY = msgspec.json.encode(
    {"model": "gpt-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
)


def keys_in(received: Received) -> set[str]:
    """The keys that a request carries, in whichever header."""
    return {secret for secret in SECRETS for value in received.headers.values() if secret in value}


def named(monkeypatch, upstream: ScriptedUpstream, formats: tuple[DialectName, ...] = ALL, **given: object):
    """A well-known provider at the address of a scripted one: only those have a key in the environment."""
    monkeypatch.setitem(provider.KNOWN, "known", ProviderDefaults(upstream.url, "KNOWN_API_KEY"))
    environ = {"MY_KEY": SETTINGS, "SECOND_KEY": SECOND}
    if given.pop("has_environ", False):
        environ["KNOWN_API_KEY"] = ENVIRON
    others = given.pop("others", {})
    upstreams = {"known": UpstreamSettings(formats=formats, **given), **others}
    return [*open_targets(upstreams, environ)]


@asynccontextmanager
async def two(monkeypatch, second: dict[str, object], **first: object):
    """A gateway whose first upstream is busy, so that the second is asked."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(ScriptedUpstream(otherwise=Refuse(503)))
        two = await stack.enter_async_context(ScriptedUpstream(otherwise="I am the second."))
        other = UpstreamSettings(
            **{"url": two.url, "formats": ALL, "models": ("none",), "private": True, **second}
        )
        targets = named(monkeypatch, one, fallback=("second",), others={"second": other}, **first)
        gate = await stack.enter_async_context(served(one, targets=targets, summariser_enabled=False))
        yield gate, one, two


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("has_settings", "has_environ", "sends", "pass_key", "goes"),
    [
        (True, True, True, None, SETTINGS),
        (True, True, False, None, SETTINGS),
        (True, False, True, None, SETTINGS),
        (True, False, False, None, SETTINGS),
        (False, True, True, None, CLIENT),
        (False, True, False, None, ENVIRON),
        (False, False, True, None, CLIENT),
        (False, False, False, None, None),
        (True, True, True, True, CLIENT),
        (True, True, False, True, SETTINGS),
        (False, True, True, False, ENVIRON),
        (False, True, False, False, ENVIRON),
        (False, False, True, False, None),
    ],
)
async def test_a_key_of_the_settings_comes_first_then_the_clients_then_the_environments(
    monkeypatch, upstream, style, has_settings, has_environ, sends, pass_key, goes
):
    path, header, value = STYLES[style]
    targets = named(
        monkeypatch,
        upstream,
        has_environ=has_environ,
        key_env="MY_KEY" if has_settings else "",
        pass_key=pass_key,
    )
    async with served(upstream, targets=targets, summariser_enabled=False) as gate:
        sent = {header: value} if sends else {}
        status, _, _ = await gate.post(path, BODY, **sent)

    assert status == 200
    (received,) = upstream.requests
    assert keys_in(received) == ({goes} if goes else set())
    assert sum(name in received.headers for name in KEY_HEADERS) == (1 if goes else 0)
    if goes == CLIENT:
        assert received.headers[header] == value


@pytest.mark.parametrize(
    ("given", "is_sent"),
    [
        ({}, True),
        ({"key_env": "MY_KEY"}, False),
        ({"has_environ": True}, False),
        ({"pass_key": False}, False),
        ({"headers": {"x-api-key": SETTINGS}}, False),
    ],
)
async def test_a_token_of_another_name_goes_to_the_clients_own_upstream_only_without_another_key(
    monkeypatch, upstream, given, is_sent
):
    targets = named(monkeypatch, upstream, **given)
    more = {"x-portal-token": CLIENT, "x-original-url": "/v1/files", "authorization": "Bearer "}
    async with served(upstream, targets=targets, summariser_enabled=False) as gate:
        status, _, _ = await gate.post("/v1/chat/completions", BODY, **more)

    assert status == 200
    (received,) = upstream.requests
    assert (received.headers.get("x-portal-token") == CLIENT) is is_sent
    assert "x-original-url" not in received.headers


async def test_a_token_of_another_name_goes_to_no_fallback(monkeypatch):
    async with two(monkeypatch, {}) as (gate, one, other):
        status, _, _ = await gate.post("/v1/chat/completions", BODY, **{"x-portal-token": CLIENT})

    assert status == 200
    assert one.requests[0].headers["x-portal-token"] == CLIENT
    assert CLIENT not in "".join(other.requests[0].headers.values())


@pytest.mark.parametrize("blank", ["", "Bearer", "Bearer ", "  bearer  "])
async def test_a_blank_key_is_no_key(monkeypatch, upstream, blank):
    """What an SDK sends that was given an empty key."""
    targets = named(monkeypatch, upstream, has_environ=True)
    async with served(upstream, targets=targets, summariser_enabled=False) as gate:
        await gate.post("/v1/chat/completions", BODY, authorization=blank)

    assert upstream.requests[0].headers["authorization"] == f"Bearer {ENVIRON}"


async def test_a_key_of_refold_is_no_key_for_the_provider(monkeypatch, upstream):
    targets = named(monkeypatch, upstream, has_environ=True)
    async with served(upstream, targets=targets, summariser_enabled=False) as gate:
        key = await make_key(gate.store)
        await gate.post("/v1/chat/completions", BODY, authorization=f"Bearer {key}")
        await gate.post("/v1/chat/completions", BODY, x_refold_key=key, authorization=f"Bearer {CLIENT}")

    assert [keys_in(one) for one in upstream.requests] == [{ENVIRON}, {CLIENT}]
    assert not any(key in str(one.headers) for one in upstream.requests)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("second", "sends", "goes"),
    [
        ({}, True, None),
        ({}, False, None),
        ({"key_env": "SECOND_KEY"}, True, SECOND),
        ({"key_env": "SECOND_KEY"}, False, SECOND),
        ({"pass_key": True}, True, CLIENT),
        ({"pass_key": True}, False, None),
        ({"pass_key": True, "key_env": "SECOND_KEY"}, True, CLIENT),
        ({"pass_key": True, "key_env": "SECOND_KEY"}, False, SECOND),
        ({"pass_key": False}, True, None),
    ],
)
@pytest.mark.parametrize("first", [{}, {"key_env": "MY_KEY"}, {"has_environ": True}])
async def test_the_clients_key_goes_to_a_fallback_only_where_the_settings_say_so(
    monkeypatch, style, second, sends, goes, first
):
    path, header, value = STYLES[style]
    async with two(monkeypatch, second, **first) as (gate, one, other):
        status, told, _ = await gate.post(path, BODY, **({header: value} if sends else {}))

        assert (status, told["x-refold-upstream"]) == (200, "second")
        assert len(one.requests) == 1
        assert [keys_in(each) for each in other.requests] == [{goes} if goes else set()]


async def test_nothing_else_of_the_clients_account_goes_to_a_fallback(monkeypatch):
    sent = {
        "openai_organization": "org-client",
        "openai_project": "proj-client",
        "cookie": f"session={CLIENT}",
        "x_goog_api_key": CLIENT,
        "proxy_authorization": f"Bearer {CLIENT}",
    }
    async with two(monkeypatch, {}) as (gate, one, other):
        await gate.post(f"/v1/chat/completions?key={CLIENT}&beta=true&%61pi_key={CLIENT}", BODY, **sent)

        assert one.requests[0].headers["openai-organization"] == "org-client"
        (received,) = other.requests
        assert not any(word in str(received.headers) for word in ("org-client", "proj-client", CLIENT))


async def test_a_key_in_a_query_goes_where_the_key_goes():
    async with keeping() as first, keeping() as second:
        first.status = 503
        targets = [
            target_for(first, name="first", fallback=("second",)),
            target_for(second, name="second"),
        ]
        query = f"a=1&key={CLIENT}&%61pi_key={CLIENT}&b=%2F"
        async with served(first, targets=targets) as gate, aiohttp.ClientSession() as session:
            address = URL(f"{gate.url}/v1/embeddings?{query}", encoded=True)
            async with session.post(address, data=b"{}") as response:
                assert response.status == 200

    assert first.last.path == f"/v1/embeddings?{query}"
    assert second.last.path == "/v1/embeddings?a=1&b=%2F"


async def test_a_fallback_at_the_same_host_gets_the_clients_key(monkeypatch):
    """Two upstreams at one address: whoever listens there has seen the key."""
    async with ScriptedUpstream(Refuse(503), otherwise="Fine.") as one:
        again = UpstreamSettings(url=f"{one.url}/", formats=ALL, models=("none",))
        targets = named(monkeypatch, one, fallback=("again",), others={"again": again})
        async with served(one, targets=targets, summariser_enabled=False) as gate:
            await gate.post("/v1/chat/completions", BODY, authorization=f"Bearer {CLIENT}")

        assert [keys_in(each) for each in one.requests] == [{CLIENT}, {CLIENT}]


async def test_a_fallback_that_wants_a_key_and_has_none_is_told_in_the_log_once(monkeypatch, caplog):
    async with two(monkeypatch, {}) as (gate, _, other):
        other.script(otherwise=Refuse(401))
        for _ in range(3):
            status, _, _ = await gate.post("/v1/chat/completions", BODY, authorization=f"Bearer {CLIENT}")
            assert status == 401

    said = [record.getMessage() for record in caplog.records if "needs a key" in record.getMessage()]
    assert len(said) == 1
    assert "second" in said[0]
    assert CLIENT not in caplog.text


async def test_a_list_of_models_sends_the_clients_key_to_one_host(monkeypatch):
    async with keeping("a") as first, keeping("b") as second, keeping("c") as third, keeping("d") as fourth:
        others = {
            "second": UpstreamSettings(url=second.url, formats=ALL, key_env="SECOND_KEY"),
            "third": UpstreamSettings(url=third.url, formats=ALL),
            "fourth": UpstreamSettings(url=fourth.url, formats=ALL, pass_key=True),
        }
        targets = named(monkeypatch, first, others=others)
        async with served(first, targets=targets) as gate, aiohttp.ClientSession() as session:
            sent = {"authorization": f"Bearer {CLIENT}"}
            async with session.get(f"{gate.url}/v1/models", headers=sent) as response:
                listed = await response.json()

    assert [one["id"] for one in listed["data"]] == ["a", "b", "c", "d"]
    assert [one.last.key for one in (first, second, third, fourth)] == [CLIENT, SECOND, "", CLIENT]


@pytest.mark.parametrize(
    ("given", "sends", "goes"),
    [
        ({"key_env": "MY_KEY"}, True, SETTINGS),
        ({"has_environ": True}, True, CLIENT),
        ({"has_environ": True}, False, ENVIRON),
        ({}, True, CLIENT),
    ],
)
async def test_summaries_are_written_with_the_key_of_the_conversations_own_calls(
    monkeypatch, given, sends, goes
):
    def either(received: Received) -> str:
        return SUMMARY if is_question(received) else "Fine."

    async with ScriptedUpstream(window=WINDOW, otherwise=either) as upstream:
        targets = named(monkeypatch, upstream, window=WINDOW, **given)
        async with served(upstream, targets=targets) as gate:
            await play(gate, 101, **({"authorization": f"Bearer {CLIENT}"} if sends else {}))

        written = [one for one in upstream.requests if is_question(one)]
        assert written
        assert {key for one in upstream.requests for key in keys_in(one)} == {goes}
