"""`refold keys`: who may use the gateway.

One idea: a key is shown once, on stdout, when it is made, and never again: the store has only its digest. Everything else goes
by its id, which is no secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from refold.cli import output, stored
from refold.cli.columns import align, when
from refold.cli.output import plain
from refold.cli.stored import Place
from refold.client_keys import mint
from refold.model.errors import NotFound
from refold.ports.store import ClientKey, Store
from refold.store.place import open_store


def create(place: Place, name: str, *, admin: bool, as_json: bool) -> int:
    text, kept = mint(place.owner, name=name, at=time.time(), admin=admin)

    async def act(store: Store) -> int:
        await store.add_key(kept)
        if as_json:
            output.write_json({"key": text, **_document(kept)})
        else:
            output.write(f"{text}\n")
            kind = "an admin key" if kept.admin else "a key"
            output.note(f"{kind} of the owner {plain(kept.owner)!r}; it is not shown again")
        return 0

    stored.check_kept(place.url)
    return _with_store(place, act)


def show_all(place: Place, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        kept = await store.keys(place.owner)
        if as_json:
            output.write_json({"owner": place.owner, "keys": [_document(one) for one in kept]})
        elif kept:
            head = ("id", "state", "made", "rights", "name")
            output.write(align(head, [_cells(one) for one in kept], frozenset()))
        if not kept:
            output.note(f"no keys of the owner {plain(place.owner)!r}\nhint: `refold keys create` makes one")
        return 0

    stored.check_there(place.url)
    return _with_store(place, act)


def revoke(place: Place, which: str, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        # Somebody may give the whole key: what an error repeats is the id.
        start = which.removeprefix("rf_").partition("_")[0]
        if not start:
            raise NotFound("there is no key without an id", hint="`refold keys list` has them")
        chosen = stored.by_prefix([one.id for one in await store.keys(place.owner)], start, "key")
        is_new = await store.revoke_key(place.owner, chosen, time.time())
        if as_json:
            output.write_json({"id": chosen, "revoked": is_new})
        else:
            output.note(f"revoked {chosen}" if is_new else f"{chosen} was revoked before")
        return 0

    stored.check_there(place.url)
    return _with_store(place, act)


def _with_store(place: Place, act: Callable[[Store], Awaitable[int]]) -> int:
    async def run() -> int:
        store = await open_store(place.url)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _document(kept: ClientKey) -> dict[str, object]:
    """A key as others may see it: not even its digest."""
    return {
        "id": kept.id,
        "owner": kept.owner,
        "name": kept.name,
        "admin": kept.admin,
        "at": kept.at,
        "revoked_at": kept.revoked_at,
    }


def _cells(kept: ClientKey) -> tuple[str, ...]:
    state = "valid" if kept.revoked_at is None else f"revoked {when(kept.revoked_at)}"
    return kept.id, state, when(kept.at), "admin" if kept.admin else "owner", plain(kept.name)
