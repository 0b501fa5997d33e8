"""`refold keys`: the keys by which clients use the gateway.

A key is shown once, on stdout, when it is made: the store has only its digest. The other commands take its id, which is no secret.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption, StoreOptions, WholeLines, expanded
from refold.cli.output import align, plain, when
from refold.model.errors import NotFound

if TYPE_CHECKING:
    from refold.ports.records import ClientKey
    from refold.ports.store import Store

_HEAD = ("id", "state", "made", "rights", "name")


def declare(app: typer.Typer) -> None:
    keys = typer.Typer(
        cls=WholeLines, help="Who may use the gateway: make, list and revoke keys.", rich_markup_mode=None
    )
    keys.command("create", epilog="Example: refold keys create laptop")(expanded(create))
    keys.command("list", epilog="Example: refold keys list")(expanded(list_all))
    keys.command("revoke", epilog="Example: refold keys revoke 4f0c2a9be1d7")(expanded(revoke))
    app.add_typer(keys, name="keys")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.", show_default=False)] = "",
    *,
    admin: Annotated[
        bool, typer.Option("--admin", help="Let it see the operations' settings: store, upstreams, files.")
    ] = False,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Make a key for a client of the gateway, and print it once: it is not stored.

    The key gives access to everything of its owner, and to nothing else. With --admin it also shows the settings of the
    gateway's operation, without their secrets, and nothing of other owners. From the first key on the gateway refuses every client
    without one, on this machine too. A store that is not there yet is made.
    """
    from refold.cli.store_access import with_store
    from refold.gateway.auth import mint

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

    return with_store(place.url, act, begins=True)


def list_all(*, place: StoreOptions, as_json: JsonOption = False) -> int:
    """List an owner's keys by their ids, revoked ones too."""
    from refold.cli.store_access import with_store

    async def act(store: Store) -> int:
        kept = await store.keys(place.owner)
        if as_json:
            output.write_json({"owner": place.owner, "keys": [_document(one) for one in kept]})
        elif kept:
            output.write(align(_HEAD, [_cells(one) for one in kept], cuts=("name",)))
        if not kept:
            output.note(f"no keys of the owner {plain(place.owner)!r}\nhint: `refold keys create` makes one")
        return 0

    return with_store(place.url, act, tables="checked")


def revoke(
    which: Annotated[
        str,
        typer.Argument(metavar="ID", help="Its id, or the first letters of it.", show_default=False),
    ],
    *,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """End a key for good. A gateway that runs refuses it within five seconds."""
    from refold.cli.store_access import by_prefix, with_store

    async def act(store: Store) -> int:
        # The whole key may be given by mistake: an error repeats only the id.
        start = which.removeprefix("rf_").partition("_")[0]
        if not start:
            raise NotFound("there is no key without an id", hint="`refold keys list` has them")
        chosen = by_prefix([one.id for one in await store.keys(place.owner)], start, "key")
        is_new = await store.revoke_key(place.owner, chosen, time.time())
        if as_json:
            output.write_json({"id": chosen, "revoked": is_new})
        else:
            output.note(f"revoked {chosen}" if is_new else f"{chosen} was revoked before")
        return 0

    return with_store(place.url, act)


def _document(kept: ClientKey) -> dict[str, object]:
    """A key without its secret and its digest."""
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
