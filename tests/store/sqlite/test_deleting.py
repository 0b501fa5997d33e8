"""What is deleted is gone from the disk too."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from refold.ports.store import Batch
from tests.contract.talks import (
    ANNA,
    BORIS,
    begin,
    embedding,
    fold,
    planned,
    read,
    say,
    summary,
)
from tests.store.sqlite.inside import writer_of


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


async def test_what_is_deleted_is_on_the_disk_no_more(store, tmp_path):
    secret, other = "kraken", "walrus"
    for number in range(80):
        head = await begin(store, f"{secret}{number}", title=f"about {secret}")
        head = await say(store, head, f"the {secret} number {number}", f"{secret} " * 900)
        await store.reserve(ANNA, f"key{number}", 1.0)
        await store.cache(ANNA, f"key{number}", summary(f"a {secret}"), 1.0)
    near = structs.replace(embedding(head.session, secret), vector=secret.encode())
    batch = Batch(at=3.0, changes=(fold(head, 1, secret),), embeddings=(near,), notes=b"about a kraken")
    head = await store.commit(head, batch)
    await store.plan(ANNA, planned(head, f"{secret}-plan"))
    await store.search(ANNA, secret)
    await say(store, await begin(store, "kept"), other)
    assert secret.encode() in bytes_on_disk(tmp_path)
    for number in range(80):
        assert await store.delete(ANNA, f"{secret}{number}") == 1

    left = bytes_on_disk(tmp_path)
    assert secret.encode() not in left
    assert other.encode() in left
    assert await store.search(ANNA, secret) == []
    assert [hit.conversation for hit in await store.search(ANNA, other)] == ["kept"]
    assert await store.check() == []


async def test_deleting_an_owner_leaves_nothing_of_them(store, tmp_path):
    head = await say(store, await begin(store), "kraken")
    await store.learn(ANNA, "limit", "kraken", b"kraken", 1.0)
    await store.pin(head, 0, on=True)
    theirs = await say(store, await begin(store, owner=BORIS), "walrus")
    assert await store.delete(ANNA) == 1

    assert b"kraken" not in bytes_on_disk(tmp_path)
    assert await store.owners() == [BORIS]
    assert await read(store, theirs) == ["walrus"]
    tables = [
        name
        for (name,) in writer_of(store).execute("SELECT name FROM pragma_table_list WHERE type = 'table'")
        if any(row[1] == "owner" for row in writer_of(store).execute(f"PRAGMA table_info({name})"))
    ]
    assert len(tables) >= 10
    for table in tables:
        assert not list(writer_of(store).execute(f"SELECT 1 FROM {table} WHERE owner = ?", (ANNA,))), table
