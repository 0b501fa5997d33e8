"""Whose a request is: keys that are taken, keys that are refused, and that nobody ever sees one again."""

from __future__ import annotations

import logging
from itertools import product

import pytest
from msgspec import structs
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import refold.gateway.auth
from refold.gateway.auth import MAX_REMEMBERED, OUTAGE_S, PUBLIC, REMEMBER_S, Access, KeyRing, Rules, mint
from refold.model.errors import KeyRefused, StoreError
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import begin
from tests.gateway.gates import HOME, NAMED, Clock, CounterChoice, gate, make_key
from tests.gateway.served_gateway import ask, scope_of, send_raw, serving

ROUTES = ("/healthz", "/readyz", "/refold/config", "/refold/status", "/v1/models", "/v1/chat/completions")
TRICKS = ("//healthz", "/healthz/", "/HEALTHZ", "/healthz/../refold/config", "/readyz;x", "/v1/healthz", "")


@pytest.mark.feature("X9", "X18")
async def test_with_keys_nothing_but_health_is_told_without_one():
    store, clock = MemoryStore(), Clock()
    good, revoked = await make_key(store), await make_key(store)
    await store.revoke_key("anna", revoked.split("_")[1], 2.0)
    other_secret = f"{good[:-1]}{'0' if good[-1] != '0' else '1'}"
    stranger, _ = mint("anna", at=1.0)
    wrong = [None, other_secret, revoked, stranger, "rf_", "rf_x", "", good.upper(), f"{good}0", good[:-1]]
    for path, given in product((*ROUTES, *TRICKS), wrong):
        app, inside = gate(store, clock=clock)
        headers = [HOME] if given is None else [HOME, ("x-refold-key", given)]
        told = await ask(app, scope_of(path, headers))

        assert bool(inside.scopes) == (path in PUBLIC), (path, given)
        assert told.status in ((200,) if path in PUBLIC else (401, 403))
        assert not any("owner" in scope["state"] for scope in inside.scopes)


WAYS = {
    "bearer": lambda key: ("authorization", f"Bearer {key}"),
    "a small letter": lambda key: ("authorization", f"bearer  {key} "),
    "x-api-key": lambda key: ("x-api-key", key),
    "x-refold-key": lambda key: ("x-refold-key", f" {key}"),
}


@pytest.mark.feature("X18")
@pytest.mark.parametrize("way", WAYS)
async def test_a_key_is_taken_in_three_ways_and_never_passed_on(way):
    store = MemoryStore()
    key = await make_key(store)
    app, inside = gate(store)
    headers = [HOME, WAYS[way](key), ("anthropic-beta", "x"), ("cookie", f"a={key}"), ("x-note", "rf_1")]
    await ask(app, scope_of("/v1/messages", headers, client="10.0.0.5"))

    (scope,) = inside.scopes
    assert (scope["state"]["owner"], scope["state"]["key_id"]) == ("anna", key.split("_")[1])
    assert [name for name, _ in scope["headers"]] == [b"host", b"anthropic-beta", b"x-note"]


async def test_the_client_s_own_key_for_its_provider_stays():
    store = MemoryStore()
    key = await make_key(store)
    app, inside = gate(store)
    own = [("authorization", "Bearer sk-mine"), ("x-api-key", "sk-ant-mine")]
    await ask(app, scope_of(headers=[HOME, *own, ("x-refold-key", key)]))
    await ask(app, scope_of(headers=[HOME, own[0], ("x-api-key", key)]))

    first, second = ([name for name, _ in scope["headers"]] for scope in inside.scopes)
    assert first == [b"host", b"authorization", b"x-api-key"]
    assert second == [b"host", b"authorization"]


async def test_one_key_at_a_time():
    store = MemoryStore()
    anna, boris = await make_key(store), await make_key(store, "boris")
    app, inside = gate(store)

    both = [HOME, ("x-refold-key", anna), ("authorization", f"Bearer {boris}")]
    assert (await ask(app, scope_of(headers=both))).status == 401
    same = [HOME, ("x-api-key", anna), ("authorization", f"Bearer {anna}")]
    assert (await ask(app, scope_of(headers=same))).status == 200
    assert [scope["state"]["owner"] for scope in inside.scopes] == ["anna"]


async def test_a_key_in_an_address_is_refused():
    store = MemoryStore()
    key = await make_key(store)
    app, inside = gate(store)
    headers = [HOME, ("x-refold-key", key)]

    assert (await ask(app, scope_of(headers=headers, query=f"key={key}"))).status == 401
    assert (await ask(app, scope_of(f"/v1/{key}", headers))).status == 401
    assert inside.scopes == []


async def test_a_wrong_key_is_refused_although_none_would_do():
    app, inside = gate()
    text, _ = mint("anna", at=1.0)

    assert (await ask(app, scope_of(headers=[HOME, ("x-api-key", text)]))).status == 401
    assert inside.scopes == []


async def test_a_key_is_asked_for_where_the_settings_say_so():
    app, _ = gate(rules=Rules(requires_key=True))

    assert (await ask(app, scope_of(headers=[HOME]))).status == 401


@pytest.mark.feature("X18")
async def test_who_is_an_admin():
    store = MemoryStore()
    app, inside = gate(store)
    await ask(app, scope_of(headers=[HOME]))
    assert [scope["state"]["admin"] for scope in inside.scopes] == [True], "without keys, this machine"

    keys = [await make_key(store), await make_key(store, admin=True)]
    app, inside = gate(store)
    for key in keys:
        await ask(app, scope_of(headers=[HOME, ("x-refold-key", key)]))
        await ask(app, scope_of(headers=[HOME, ("x-refold-key", key)], client="10.0.0.5"))
    await ask(app, scope_of("/healthz", [HOME]))

    told = [(scope["state"].get("owner"), scope["state"].get("admin")) for scope in inside.scopes]
    assert told == [("anna", False)] * 2 + [("anna", True)] * 2 + [(None, None)]


@pytest.mark.feature("X18")
async def test_an_admin_key_that_is_taken_back_shows_nothing_within_seconds():
    store, clock = CounterChoice(), Clock()
    key = await make_key(store, admin=True)
    app, inside = gate(store, clock=clock)
    scope = scope_of(headers=[HOME, ("x-api-key", key)])
    await ask(app, scope)
    (kept,) = await store.keys("anna")
    store._owners["anna"].client_keys[kept.id] = structs.replace(kept, admin=False)
    clock.now = REMEMBER_S
    await ask(app, scope)
    assert [one["state"]["admin"] for one in inside.scopes] == [True, False]

    await store.revoke_key("anna", kept.id, 2.0)
    clock.now = 2 * REMEMBER_S
    assert (await ask(app, scope)).status == 401


@pytest.mark.feature("X18")
async def test_a_revoked_key_is_refused_within_seconds():
    store, clock = CounterChoice(), Clock()
    key = await make_key(store)
    app, _ = gate(store, clock=clock)
    scope = scope_of(headers=[HOME, ("x-api-key", key)])
    store.asked.clear()
    for _ in range(3):
        assert (await ask(app, scope)).status == 200
    assert len(store.asked) == 1, "the store is not asked for every request"
    await store.revoke_key("anna", key.split("_")[1], 2.0)

    clock.now = REMEMBER_S
    told = await ask(app, scope)

    assert told.status == 401
    assert b"was revoked" in told.body


@pytest.mark.feature("X18")
async def test_the_id_of_a_key_that_is_in_use_opens_nothing():
    store = MemoryStore()
    ring, key = KeyRing(store, Clock()), await make_key(store)
    for _ in range(2):
        assert (await ring.verify(key)).owner == "anna"
        with pytest.raises(KeyRefused):
            await ring.verify(f"{key[:-1]}{'0' if key[-1] != '0' else '1'}")


async def test_a_key_works_from_the_moment_it_is_made():
    store = MemoryStore()
    ring, (text, kept) = KeyRing(store, Clock()), mint("anna", at=1.0)
    with pytest.raises(KeyRefused):
        await ring.verify(text)

    await store.add_key(kept)

    assert (await ring.verify(text)).owner == "anna"


async def test_only_so_many_keys_are_remembered_and_no_strangers():
    store, clock = CounterChoice(), Clock()
    ring = KeyRing(store, clock)
    keys = [await make_key(store) for _ in range(MAX_REMEMBERED + 5)]
    for key in keys:
        await ring.verify(key)
        with pytest.raises(KeyRefused):
            await ring.verify(mint("anna", at=1.0)[0])

    assert len(ring._verified) == MAX_REMEMBERED
    store.asked.clear()
    for key in (keys[-1], keys[0]):
        assert (await ring.verify(key)).owner == "anna"
    assert store.asked == [keys[0].split("_")[1]]


async def test_the_first_key_shuts_the_gate_and_deleting_it_does_not_open_it():
    store, clock = MemoryStore(), Clock()
    app, _ = gate(store, clock=clock)
    scope = scope_of(headers=[HOME])
    assert (await ask(app, scope)).status == 200

    await make_key(store)
    clock.now = REMEMBER_S
    assert (await ask(app, scope)).status == 401

    await store.delete("anna")
    clock.now *= 3
    assert (await ask(app, scope)).status == 401


class Unreachable(MemoryStore):
    """A store whose server stops answering."""

    is_down = False

    async def has_keys(self):
        self._check()
        return await super().has_keys()

    async def find_key_owner(self, which):
        self._check()
        return await super().find_key_owner(which)

    def _check(self):
        if self.is_down:
            raise StoreError("the database cannot be reached", hint="start it")


async def test_without_keys_an_outage_of_the_store_stops_nobody():
    store, clock = Unreachable(), Clock()
    app, _ = gate(store, clock=clock)
    scope = scope_of(headers=[HOME])
    assert (await ask(app, scope)).status == 200
    store.is_down = True
    for clock.now in (REMEMBER_S, 3 * REMEMBER_S, OUTAGE_S):
        assert (await ask(app, scope)).status == 200

    clock.now = OUTAGE_S + 2 * REMEMBER_S
    assert (await ask(app, scope)).status == 503


async def test_in_an_outage_of_the_store_known_keys_work_and_no_others():
    store, clock = Unreachable(), Clock()
    known, other = await make_key(store), await make_key(store)
    app, _ = gate(store, clock=clock)

    async def status_of(key):
        return (await ask(app, scope_of(headers=[HOME, ("x-api-key", key)]))).status

    assert await status_of(known) == 200
    store.is_down = True
    for clock.now in (REMEMBER_S, OUTAGE_S):
        assert await status_of(known) == 200
        assert await status_of(other) == 503, "nobody knows whether it was revoked"
        assert await status_of(f"{known[:-1]}{'0' if known[-1] != '0' else '1'}") == 503

    clock.now = OUTAGE_S + REMEMBER_S
    assert await status_of(known) == 503


@pytest.mark.feature("X18")
async def test_a_stranger_s_key_takes_the_way_of_a_wrong_one(monkeypatch):
    """Nobody learns from the time it takes whether there is a key of some id, or whether it is in use."""
    store, compared = CounterChoice(), []
    real = refold.gateway.auth.hmac.compare_digest

    def noted(one, other):
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(refold.gateway.auth.hmac, "compare_digest", noted)
    ring, good = KeyRing(store, Clock()), await make_key(store)
    wrong = f"{good[:-1]}{'0' if good[-1] != '0' else '1'}"
    steps = []
    for text in (wrong, mint("anna", at=1.0)[0]):
        store.asked.clear(), compared.clear()
        with pytest.raises(KeyRefused, match="not valid"):
            await ring.verify(text)
        steps.append((len(store.asked), *compared))

    assert steps == [(1, (32, 32))] * 2


def conversations_of(store) -> Starlette:
    async def show(request):
        head = await store.head(request.state.owner, request.path_params["name"])
        return PlainTextResponse(f"{head.owner}'s" if head else "none", 200 if head else 404)

    return Starlette(routes=[Route("/refold/conversations/{name}", show)])


@pytest.mark.feature("X18")
async def test_what_is_another_s_is_not_there():
    store = MemoryStore()
    keys = {owner: await make_key(store, owner) for owner in ("anna", "boris")}
    for owner in keys:
        await begin(store, f"{owner}-talk", owner)
    app = Access(conversations_of(store), store, NAMED)
    for owner, name in product(keys, ("anna-talk", "boris-talk", "no-talk")):
        headers = [HOME, ("authorization", f"Bearer {keys[owner]}")]
        told = await ask(app, scope_of(f"/refold/conversations/{name}", headers))

        is_own = name.startswith(owner)
        assert (told.status, told.body.decode()) == ((200, f"{owner}'s") if is_own else (404, "none"))


@pytest.mark.feature("X18")
async def test_a_key_is_in_no_file_no_log_and_no_answer(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    store = await SqliteStore.open(tmp_path / "store.db")
    good, revoked = await make_key(store), await make_key(store)
    await store.revoke_key("anna", revoked.split("_")[1], 2.0)
    stranger, _ = mint("anna", at=1.0)
    app, inside = gate(store)
    answers = []
    async with serving(app) as port:
        for key in (good, revoked, stranger, f"{good}x"):
            for target in (
                "/v1/models",
                "/v1/messages",
                "/refold/config",
                f"/v1/models?key={key}",
                f"/{key}",
            ):
                for name, value in (way(key) for way in WAYS.values()):
                    host = f"Host: localhost:{port}"
                    answers.append(await send_raw(port, f"GET {target} HTTP/1.1", host, f"{name}: {value}"))
        answers.append(await send_raw(port, f"GET /{good} HTTP/9", f"x: {good}"))
    await store.close()

    written = [path.read_bytes() for path in tmp_path.iterdir()]
    told = [*answers, caplog.text.encode(), "".join(capfd.readouterr()).encode()]
    passed_on = [repr(scope).encode() for scope in inside.scopes]
    assert len(passed_on) == 3 * len(WAYS)
    for key in (good, revoked, stranger):
        secret = key.split("_")[2].encode()
        assert not [place for place in (*written, *told, *passed_on) if secret in place]
    assert any(good.split("_")[1].encode() in file for file in written), "its id is kept, and is public"
