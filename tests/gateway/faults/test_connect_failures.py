"""Whatever a client sends, only upstreams that the operator named are asked, and a key goes nowhere else."""

from __future__ import annotations

import random
import sys
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from yarl import URL

from refold.gateway.upstreams import PrivateNetworkGuard
from refold.testing import Body, Received, ScriptedUpstream
from tests.gateway.conftest import served, target_for
from tests.gateway.faults.dials import dials
from tests.gateway.faults.wires import PATHS

SEED = 20_261_118
OPERATORS, CLIENTS = "sk-operators-own-4711", "sk-clients-own-0815"
ELSEWHERE = ("http://{trap}", "https://{trap}/v1", "//{trap}", "{trap}", "http://scripted@{trap}", "http://{trap}#@scripted",
             "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "gopher://{trap}/_x", "http://[::1]:9", "unix:/run/x",
             "http://0x7f000001:9", "http://scripted.{trap}", "\\\\{trap}\\x", "jar:http://{trap}!/")  # fmt: skip
FIELDS = ("api_base", "base_url", "url", "endpoint", "host", "proxy", "callback_url", "webhook", "user_config", "extra_body",
          "model_list", "router", "upstream", "model", "previous_response_id", "mcp_servers", "image_url", "file_url")  # fmt: skip
HEADERS = ("x-refold-upstream", "x-refold-preset", "x-forwarded-host", "x-forwarded-for", "forwarded", "x-original-url",
           "x-rewrite-url", "x-api-base", "openai-base-url", "location", "referer", "via", "baggage", "traceparent", "cookie",
           "proxy-authorization", "proxy-connection", "x-real-ip", "true-client-ip", "x-host", "destination")  # fmt: skip
OTHER_PATHS = ("/v1/models", "/v1/models/{there}", "/v1/embeddings", "/v1/files/{there}", "/v1/@{there}", "/v1//{there}",
               "/v1/{there}/chat/completions", "/v1/responses/{there}", "/v1/batches?url={there}")  # fmt: skip


class Guess:
    """Random requests that want to be sent elsewhere."""

    def __init__(self, trap: str, chance: random.Random) -> None:
        self.chance, self._trap = chance, trap

    @property
    def there(self) -> str:
        return self.chance.choice(ELSEWHERE).replace("{trap}", self._trap)

    def body(self) -> bytes:
        image = {"type": "image_url", "image_url": {"url": self.there}}
        said = [{"role": "user", "content": [{"type": "text", "text": self.there}, image]}]
        fields: dict[str, object] = {"model": "gpt-5", "max_tokens": 9, "messages": said, "input": said}
        for name in self.chance.sample(FIELDS, 3):
            fields[name] = self.chance.choice(
                [self.there, {"api_base": self.there, "url": self.there}, [self.there]]
            )
        return msgspec.json.encode(fields)

    def headers(self) -> dict[str, str]:
        chosen = dict.fromkeys(self.chance.sample(HEADERS, 2), self.there)
        if self.chance.random() < 0.5:
            chosen["x-refold-upstream"] = self.chance.choice(["scripted", "other", self.there])
        chosen["x-api-key" if self.chance.random() < 0.5 else "authorization"] = f"Bearer {CLIENTS}"
        return chosen

    def path(self) -> str:
        if self.chance.random() < 0.7:
            return f"{self.chance.choice([*PATHS.values()])}?url={self.there}"
        return self.chance.choice(OTHER_PATHS).replace("{there}", self.there)


def redirect_now_and_then(trap: str):
    """A provider that sends its clients elsewhere."""
    chance = random.Random(SEED)

    def answer(_: Received):
        status = chance.choice([200, 200, 301, 302, 303, 307, 308])
        return (
            Body(status, b"{}", headers={"location": f"http://{trap}/v1/chat/completions"})
            if status > 200
            else "Fine."
        )

    return answer


async def run_guesses(count: int) -> set[int]:
    """Ports that were dialled for random requests, apart from those of the two upstreams and of the gateway."""
    async with ScriptedUpstream(otherwise="Hello.") as trap, ScriptedUpstream(otherwise="Fine.") as other:
        place = urlsplit(trap.url).netloc
        async with ScriptedUpstream(otherwise=redirect_now_and_then(place)) as upstream:
            own = target_for(
                other, name="other", models=("other-*",), passes_key=False, headers={"x-own": OPERATORS}
            )
            async with served(upstream, targets=[target_for(upstream), own]) as gate:
                with dials() as noted:
                    await _send(gate.url, Guess(place, random.Random(SEED)), count)
        _check_keys(upstream.requests, other.requests)
        assert trap.requests == []
        known = {urlsplit(url).port for url in (upstream.url, other.url, gate.url)}
    hosts = {place[0] if isinstance(place, tuple) else place for _, place in noted}
    assert hosts <= {"127.0.0.1"}
    return {place[1] for event, place in noted if event == "socket.connect"} - known


async def _send(url: str, guess: Guess, count: int) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(count):
            address = URL(url + guess.path().replace("\\", "%5C").replace("#", "%23"), encoded=True)
            async with session.post(
                address, data=guess.body(), headers=guess.headers(), allow_redirects=False
            ) as response:
                await response.read()
                assert response.status < 500


def _check_keys(first: list[Received], second: list[Received]) -> None:
    """Each upstream got its own key, and no other."""
    assert first
    assert second
    assert not any(OPERATORS in value for one in first for value in one.headers.values())
    assert not any(CLIENTS in value for one in second for value in one.headers.values())
    assert all(one.headers["x-own"] == OPERATORS for one in second)
    assert all(
        CLIENTS in (one.headers.get("x-api-key", "") + one.headers.get("authorization", "")) for one in first
    )


async def test_nothing_that_is_sent_leads_elsewhere():
    assert await run_guesses(600) == set()


@pytest.mark.slow
async def test_nothing_that_is_sent_leads_elsewhere_however_often_it_is_tried(capsys):
    count = 20_000
    strange = await run_guesses(count)

    with capsys.disabled():
        sys.stdout.write(
            f"\nDialling: {count} random requests; hosts that nobody named {len(strange)}, redirects followed 0\n"
        )
    assert strange == set()


async def test_a_name_that_leads_into_a_private_network_is_not_dialled(upstream):
    """Unless the operator says that it is there: names can be changed by others later."""
    port = urlsplit(upstream.url).port
    inside = target_for(upstream, url=f"http://localhost:{port}", is_private=False)
    async with served(upstream, targets=[inside]) as gate:
        status, _, answer = await gate.post("/v1/chat/completions", b'{"model":"m","messages":[]}')

    assert status == 502
    assert b"cannot be reached" in answer
    assert upstream.requests == []


async def test_every_address_of_a_name_is_looked_at(monkeypatch):
    guard = PrivateNetworkGuard()

    async def resolve(host, port=0, family=0):
        return [{"host": one, "port": port} for one in ("93.184.216.34", "10.0.0.7")]

    monkeypatch.setattr(guard._names, "resolve", resolve)
    with pytest.raises(OSError, match="private"):
        await guard.resolve("mixed.example")
    await guard.close()
