"""Where a request may come from: Hosts, Origins and clients that are ours."""

from __future__ import annotations

from itertools import product

import pytest

from refold.gateway import auth
from refold.gateway.auth import Access, Rules, check_binding, mint
from refold.model.errors import ConfigError, StoreError
from refold.stores.memory import MemoryStore
from tests.gateway.gates import HOME, NAMED, gate
from tests.gateway.served_gateway import ask, scope_of, send_raw, serving

PATHS = ("/healthz", "/readyz", "/refold/config", "/v1/models", "/v1/messages", "/", "/nonsense")

# Where a request comes from: each of these on its own decides, whatever the others say.
HOSTS = {
    **dict.fromkeys(("localhost", "localhost:7336", "LOCALHOST:1", "127.0.0.1:7336", "127.0.0.2"), True),
    **dict.fromkeys(("[::1]:7336", "[::ffff:127.0.0.1]", "gateway.LAN:80", "203.0.113.9"), True),
    **dict.fromkeys(("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7336"), False),
    **dict.fromkeys(("localhost#@evil.example", "evil@localhost", "localhost, evil.example"), False),
    **dict.fromkeys(("", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::]", "10.0.0.5"), False),
    **dict.fromkeys(("localhost.", "x.localhost", "[::1", "::1", "localhost:99999999", "localhost:"), False),
    **dict.fromkeys(("localhost/..", " localhost", "local\xadhost", "http://localhost", "[::1%lo]"), False),
}
ORIGINS = {
    None: True,
    "http://{host}": True,
    "https://{host}": True,
    "null": False,
    "": False,
    "http://evil.example": False,
    "http://{host}.evil.example": False,
    "http://{host}:81": False,
    "chrome-extension://abcdef": False,
}
SITES = {
    None: True,
    "same-origin": True,
    "none": True,
    "same-site": False,
    "cross-site": False,
    "": False,
    "same-origin, cross-site": False,
}


@pytest.mark.feature("X18")
@pytest.mark.parametrize("path", PATHS)
async def test_what_gets_in_is_exactly_what_is_allowed(path):
    app, inside = gate()
    for host, origin, site in product(HOSTS, ORIGINS, SITES):
        headers = [("host", host)]
        headers += [] if origin is None else [("origin", origin.format(host=host))]
        headers += [] if site is None else [("sec-fetch-site", site)]
        inside.scopes.clear()
        told = await ask(app, scope_of(path, headers))

        is_allowed = HOSTS[host] and ORIGINS[origin] and SITES[site]
        assert bool(inside.scopes) == is_allowed, headers
        assert told.status == (200 if is_allowed else 403)
        assert not [name for name in told.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [HOME, HOME],
        [HOME, ("host", "evil.example")],
        [HOME, ("origin", "http://localhost:7336"), ("origin", "http://evil.example")],
        [HOME, ("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
    ],
)
async def test_what_is_said_twice_or_not_at_all_is_refused(headers):
    app, inside = gate()

    assert (await ask(app, scope_of(headers=headers))).status == 403
    assert inside.scopes == []


@pytest.mark.parametrize(
    ("bound", "host", "is_ours"),
    [
        ("192.168.1.5", "192.168.1.5:7336", True),
        ("192.168.1.5", "192.168.1.6:7336", False),
        ("fd00::5", "[fd00:0::5]:7336", True),
        ("0.0.0.0", "192.168.1.5", True),
        ("::", "[fd00::5]", True),
        ("0.0.0.0", "0.0.0.0", False),
        ("0.0.0.0", "gateway.lan", False),
        ("0.0.0.0", "127.1", False),
        ("localhost", "10.0.0.5", False),
    ],
)
def test_numbers_are_ours_where_we_listen(bound, host, is_ours):
    assert auth.is_own_host(Rules(bound=bound), host) is is_ours


@pytest.mark.parametrize(
    "target", ["http://evil.example/healthz", "http://localhost/healthz", "*", "evil:80"]
)
async def test_only_a_path_is_asked_for(target):
    app, inside = gate()

    assert (await ask(app, scope_of(target, [HOME]))).status == 403
    async with serving(app) as port:
        method = "CONNECT" if target == "evil:80" else "GET"
        told = await send_raw(port, f"{method} {target} HTTP/1.1", f"Host: localhost:{port}")
        assert told.startswith(b"HTTP/1.1 400 ")
        told = await send_raw(port, "GET /healthz HTTP/1.1", f"Host: localhost:{port}", "Host: localhost")
        assert told.startswith(b"HTTP/1.1 403 ")
        told = await send_raw(port, "GET /healthz HTTP/1.1", f"Host: localhost:{port}")
        assert told.startswith(b"HTTP/1.1 200 ")
    assert len(inside.scopes) == 1


@pytest.mark.parametrize("bound", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_this_machine_alone_needs_no_key(bound):
    check_binding(Rules(bound=bound), has_keys=False)


@pytest.mark.feature("X9")
@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "192.168.1.5", "gateway.lan", "", "127.1"])
def test_others_are_not_served_without_a_key(bound):
    with pytest.raises(ConfigError) as refused:
        check_binding(Rules(bound=bound), has_keys=False)

    assert "refold keys create" in refused.value.hint
    check_binding(Rules(bound=bound), has_keys=True)
    check_binding(Rules(bound=bound, requires_key=True), has_keys=False)


@pytest.mark.parametrize(
    ("client", "more", "owner"),
    [
        ("127.0.0.1", (), "local"),
        ("::1", (), "local"),
        ("::ffff:127.0.0.1", (), "local"),
        ("10.0.0.5", (), None),
        (None, (), None),
        ("", (), None),
        ("127.0.0.1", (("x-forwarded-for", "127.0.0.1"),), None),
        ("127.0.0.1", (("forwarded", "for=10.0.0.5"),), None),
        ("127.0.0.1", (("x-real-ip", "10.0.0.5"),), None),
    ],
)
async def test_without_keys_the_owner_is_whoever_sits_here(client, more, owner):
    app, inside = gate()
    told = await ask(app, scope_of(headers=[HOME, *more], client=client))

    assert told.status == (200 if owner else 403)
    assert [scope["state"]["owner"] for scope in inside.scopes] == ([owner] if owner else [])


async def test_without_the_store_nobody_gets_in():
    class Broken(MemoryStore):
        async def find_key_owner(self, which):
            raise StoreError("The database is locked.")

        async def has_keys(self):
            raise StoreError("The database is locked.")

    app, inside = gate(Broken())
    text, _ = mint("anna", at=1.0)

    assert (await ask(app, scope_of(headers=[HOME]))).status == 503
    assert (await ask(app, scope_of(headers=[HOME, ("x-api-key", text)]))).status == 503
    assert inside.scopes == []


async def test_a_refusal_has_the_shape_that_the_client_reads():
    app, _ = gate(rules=Rules(requires_key=True))

    told = await ask(app, scope_of("/v1/chat/completions", [HOME]))
    assert (told.headers["www-authenticate"], told.headers["content-type"]) == ("Bearer", "application/json")
    assert told.body.startswith(b'{"error":{"message":"this gateway needs a key\\nhint: make one')
    told = await ask(app, scope_of("/v1/models", [HOME, ("anthropic-version", "2023-06-01")]))
    assert b'"authentication_error"' in told.body
    told = await ask(app, scope_of("/refold/config", [HOME]))
    assert b'"code":"key_refused"' in told.body


async def test_sockets_are_closed_and_the_start_is_passed_on():
    app, inside = gate()
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    await app({**scope_of(), "type": "websocket"}, receive, send)

    assert [message["type"] for message in sent] == ["websocket.close"]
    assert inside.scopes == []
    reached = []

    async def app_at_start(scope, receive, send):
        reached.append(scope["type"])

    await Access(app_at_start, MemoryStore(), NAMED)({"type": "lifespan"}, receive, send)
    assert reached == ["lifespan"]
