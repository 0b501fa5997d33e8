"""`refold db`: the store as a whole.

A copy of the file and a check of its structure are made by the database itself; the archive that any store reads and writes is lines
of JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Protocol, cast, runtime_checkable

import typer

from refold.cli import output
from refold.cli.options import JsonOption, StoreUrl, WholeLines
from refold.cli.output import plain, plural
from refold.model.errors import ConfigError, Damaged, MissingExtra, StoreError

if TYPE_CHECKING:
    from refold.ports.store import Store

PIPE = "-"
DAMAGE = frozenset({"CorruptError", "NotADBError"})
"""SQLite's errors for a damaged file. By name: the module that has them is an extra."""
RESTORE = "hint: put a backup in its place, such as one that `refold db backup` has made"

Archive = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A file of lines, JSONL; .gz is packed, - is a pipe.", show_default=False
    ),
]


IMPORT_EXAMPLE = """\b
Example:
  refold db import chats.jsonl.gz --store postgresql://localhost/chats"""


def declare(app: typer.Typer) -> None:
    db = typer.Typer(
        cls=WholeLines, help="The store as a whole: upgrade, check, copy, move, clean.", rich_markup_mode=None
    )
    db.command("upgrade", epilog="Example: refold db upgrade --store sqlite:///chats.db")(upgrade)
    db.command("backfill", epilog="Example: refold db backfill")(backfill)
    db.command("check", epilog="Example: refold db check")(check)
    db.command("backup", epilog="Example: refold db backup chats-backup.db")(backup)
    db.command("vacuum", epilog="Example: refold db vacuum")(vacuum)
    db.command("export", epilog="Example: refold db export chats.jsonl.gz")(export_all)
    db.command("import", epilog=IMPORT_EXAMPLE)(import_all)
    app.add_typer(db, name="db")


@runtime_checkable
class CheckedStore(Protocol):
    """A store that can check its own structure."""

    async def check(self) -> list[str]: ...


@runtime_checkable
class CopiedStore(Protocol):
    """A store that can write a copy of itself."""

    async def backup(self, path: Path) -> None: ...


@runtime_checkable
class Rewritten(Protocol):
    """A store that can write itself anew."""

    async def vacuum(self) -> tuple[int, int]: ...


def upgrade(store: StoreUrl = "", as_json: JsonOption = False) -> int:
    """Bring a store to the tables of this version. Every command that writes does so when it opens one; a newer store is refused."""
    from refold.cli.store_access import EVERYTHING, with_store

    async def act(opened: Store) -> int:
        await _upgrade_jobs(store)
        count = sum(
            [len(await opened.conversations(owner, limit=EVERYTHING)) for owner in await opened.owners()]
        )
        words = f"the store has the tables of this version; {plural(count, 'conversation')} in it"
        return _show({"upgraded": True, "conversations": count}, words, as_json=as_json)

    return with_store(store, act, begins=True)


async def _upgrade_jobs(url: str) -> None:
    """Create or upgrade the tables of the job queue, if the store can have one and the extra `cluster` is installed."""
    from refold.stores.url import kind_of

    if kind_of(url) != "postgresql":
        return
    with suppress(MissingExtra):
        from refold.stores.postgres.job_queue import JobQueue

        queue = JobQueue(url)
        await queue.open()
        await queue.close()


BACKFILL_BATCH = 1_000
"""Rows of one transaction: other writers wait for some tens of milliseconds."""


def backfill(store: StoreUrl = "", as_json: JsonOption = False) -> int:
    """Complete a store of an earlier version: the sums by day, each call and compaction once, and the vectors of messages.

    The sums stay when a conversation is deleted; without an embedder there are no vectors. The store can be in use meanwhile, and the command can be stopped and run again.
    A store of an earlier version is upgraded first, by `refold db upgrade`.
    """
    from refold.cli.settings import embedder_here
    from refold.cli.store_access import with_store
    from refold.engine.engine import Engine

    async def act(opened: Store) -> int:
        calls = compactions = embedded = 0
        embedder = embedder_here()
        for owner in await opened.owners():
            while any(some := await opened.backfill(owner, BACKFILL_BATCH)):
                calls, compactions = calls + some[0], compactions + some[1]
                output.progress(f"counted {calls:,} calls and {compactions:,} compactions")
            output.progress(f"making vectors of the messages of {plain(owner)}")
            embedded += await Engine(opened, owner=owner, embedder=embedder).embed_messages()
        output.progress("")
        words = f"counted {plural(calls, 'call')} and {plural(compactions, 'compaction')} of earlier versions"
        words += f"; made the vectors of {plural(embedded, 'message')}" if embedded else ""
        done: dict[str, object] = {"calls": calls, "compactions": compactions, "embedded": embedded}
        return _show(done, words, as_json=as_json)

    return with_store(store, act, tables="checked")


def check(store: StoreUrl = "", as_json: JsonOption = False) -> int:
    """Check the database itself: its structure, its references, the bytes of every message, reply, summary and note.

    The exit code is 1 if there is a fault. `refold doctor` checks what the rows mean.
    """
    from refold.cli.store_access import with_store

    async def act(opened: Store) -> int:
        if not isinstance(opened, CheckedStore):
            raise ConfigError(
                "this kind of store is checked by its server", hint="`refold doctor` looks at what it holds"
            )
        return _list_faults(await opened.check(), as_json=as_json)

    try:
        return with_store(store, act, tables="checked")
    except StoreError as error:
        if type(error.__cause__).__name__ not in DAMAGE:
            raise
        # The file cannot even be opened: that is a finding too.
        return _list_faults([error.located], as_json=as_json)


def _list_faults(found: Sequence[str], *, as_json: bool) -> int:
    if as_json:
        output.write_json({"faults": found})
    else:
        output.write("".join(f"{plain(one)}\n" for one in found))
        output.note(plural(len(found), "fault") if found else "no faults")
    if found:
        output.note(RESTORE)
    return 1 if found else 0


def backup(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file to write.", show_default=False)],
    store: StoreUrl = "",
    as_json: JsonOption = False,
) -> int:
    """Copy the database into a new file, as it is at one moment, while others go on writing.

    Never copy the file of a database in use by hand: part of it is beside it.
    """
    from refold.cli.store_access import with_store

    async def act(opened: Store) -> int:
        if not isinstance(opened, CopiedStore):
            raise ConfigError(
                "this kind of store is copied by its server", hint="use pg_dump, or `refold db export PATH`"
            )
        await opened.backup(Path(path))
        return _show({"backup": path}, f"a copy is in {plain(path)}", as_json=as_json)

    return with_store(store, act, tables="any")


def vacuum(store: StoreUrl = "", as_json: JsonOption = False) -> int:
    """Write an SQLite file anew, without the room and the remains of what was deleted; others wait to write meanwhile.

    Files of up to 64 MB are written anew by every deletion, so they need no vacuum.
    """
    from refold.cli.store_access import with_store

    async def act(opened: Store) -> int:
        if not isinstance(opened, Rewritten):
            raise ConfigError(
                "this kind of store is cleaned up by its server", hint="PostgreSQL does so by itself"
            )
        before, after = await opened.vacuum()
        words = f"the file was written anew: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now"
        return _show({"bytes_before": before, "bytes_after": after}, words, as_json=as_json)

    return with_store(store, act)


def export_all(
    path: Archive,
    owner: Annotated[
        str,
        typer.Option(
            "--owner", metavar="NAME", help="Only this owner's. Default: everybody's.", show_default=False
        ),
    ] = "",
    store: StoreUrl = "",
    as_json: JsonOption = False,
) -> int:
    """Write every conversation as lines of JSON, to be put into any other store.

    Messages, sessions, summaries, calls and pins go along. What can be made again stays behind: the cache of paid summaries and
    what was learnt about models.
    """
    from refold.cli.store_access import with_store
    from refold.engine.archive import pack

    async def act(opened: Store) -> int:
        owners = [owner] if owner else await opened.owners()
        count, faults = 0, list[tuple[str, str]]()
        with _new_file(path) as file:
            async for line in pack(
                opened, owners, lambda _, name, error: faults.append((name, _about(error)))
            ):
                file.write(line)
                if line.startswith(b'{"type":"conversation"'):
                    count += 1
                    output.progress(f"exported {count:,} conversations")
        output.progress("")
        _note_faults(faults)
        whole = count - len(faults)
        document = {"exported": whole, "path": path, "left_out": [name for name, _ in faults]}
        _show(document, f"exported {plural(whole, 'conversation')}", as_json=as_json and path != PIPE)
        return 1 if faults else 0

    return with_store(store, act, tables="checked")


def import_all(path: Archive, store: StoreUrl = "", as_json: JsonOption = False) -> int:
    """Put the conversations of an archive into a store.

    Each is put in whole or not at all. One whose name is there already stays as it is, and the exit code is 1.
    """
    from refold.cli.store_access import with_store
    from refold.engine.archive import unpack

    async def act(opened: Store) -> int:
        added, left, faults = 0, list[str](), list[tuple[str, str]]()
        with _open(path) as file:
            async for one in unpack(opened, file):
                added += one.is_new
                if one.fault:
                    faults.append((one.name, one.fault))
                elif not one.is_new:
                    left.append(one.name)
                output.progress(f"imported {added:,} conversations")
        output.progress("")
        for name in left:
            output.note(f"{plain(name)!r} is there already and stays as it is")
        _note_faults(faults)
        document = {"imported": added, "skipped": left, "left_out": [name for name, _ in faults]}
        _show(document, f"imported {plural(added, 'conversation')}", as_json=as_json)
        return 1 if left or faults else 0

    return with_store(store, act, begins=True)


def _about(error: StoreError) -> str:
    """What is wrong, without the conversation, whose name stands before it."""
    return error.what if isinstance(error, Damaged) else error.located


def _note_faults(faults: Sequence[tuple[str, str]]) -> None:
    for name, fault in faults:
        output.note(f"{plain(name)!r} was left out: {plain(fault)}")


@contextmanager
def _new_file(path: str) -> Iterator[BinaryIO]:
    """A file that gets its name when it is complete; stdout for `-`."""
    if path == PIPE:
        with output.guarded():
            stdout = output.open_stdout()
            yield stdout.buffer
            stdout.buffer.flush()
        return
    target = Path(path)
    if target.exists():
        raise ConfigError(f"there is a file {plain(path)} already", hint="choose another name")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        # Only the owner of the file may read it.
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with _opened(partial, "wb", path.endswith(".gz")) as file:
            yield file
        partial.rename(target)
    except OSError as error:
        raise ConfigError(
            f"{plain(path)} cannot be written: {error.strerror}",
            hint="see that its folder is there, can be written and has room",
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    import zlib

    if path == PIPE:
        yield sys.stdin.buffer
        return
    try:
        with _opened(Path(path), "rb", path.endswith(".gz")) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", "") or "it is no gzip file, or cut short"
        raise ConfigError(
            f"{plain(path)} cannot be read: {reason}", hint="give the path of an archive"
        ) from error


def _opened(path: Path, mode: str, is_packed: bool) -> BinaryIO:
    import gzip

    return cast("BinaryIO", gzip.open(path, mode) if is_packed else path.open(mode))


def _show(document: dict[str, object], words: str, *, as_json: bool) -> int:
    if as_json:
        output.write_json(document)
    else:
        output.note(words)
    return 0
