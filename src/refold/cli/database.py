"""`refold db`: the store as a whole.

One idea: what a database can do for itself (a copy of its file, a check of its structure) is its own business; what goes from any
store to any other is lines of JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, cast, runtime_checkable

from refold.cli import output, stored
from refold.cli.output import plain, plural
from refold.cli.reading import STDIN
from refold.engine.archive import pack, unpack
from refold.model.errors import ConfigError, StoreError
from refold.ports.store import Store
from refold.store.place import open_store

DAMAGE = frozenset({"CorruptError", "NotADBError"})
"""What SQLite calls a file that is not what it was. By name: the module that has the errors is an extra."""
RESTORE = "hint: put a backup in its place, such as one that `refold db backup` has made"


@runtime_checkable
class Checked(Protocol):
    """A store that can look itself over."""

    async def check(self) -> list[str]: ...


@runtime_checkable
class Copied(Protocol):
    """A store that can write a copy of itself."""

    async def backup(self, path: Path) -> None: ...


@runtime_checkable
class Rewritten(Protocol):
    """A store that can write itself anew."""

    async def vacuum(self) -> tuple[int, int]: ...


def upgrade(url: str, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        count = sum(
            [len(await store.conversations(owner, limit=stored.EVERYTHING)) for owner in await store.owners()]
        )
        if as_json:
            output.write_json({"upgraded": True, "conversations": count})
        else:
            output.note(f"the store has the tables of this version; {plural(count, 'conversation')} in it")
        return 0

    return _with_store(url, act, begins=True)


def check(url: str, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        if not isinstance(store, Checked):
            raise ConfigError(
                "this kind of store is checked by its server", hint="`refold doctor` looks at what it holds"
            )
        return _list_faults(await store.check(), as_json=as_json)

    try:
        return _with_store(url, act)
    except StoreError as error:
        if type(error.__cause__).__name__ not in DAMAGE:
            raise
        # It cannot even be opened: that is what was to be found out.
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


def backup(url: str, path: str, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        if not isinstance(store, Copied):
            raise ConfigError(
                "this kind of store is copied by its server", hint="use pg_dump, or `refold db export PATH`"
            )
        await store.backup(Path(path))
        return _tell({"backup": path}, f"a copy is in {plain(path)}", as_json=as_json)

    return _with_store(url, act)


def vacuum(url: str, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        if not isinstance(store, Rewritten):
            raise ConfigError(
                "this kind of store is cleaned up by its server", hint="PostgreSQL does so by itself"
            )
        before, after = await store.vacuum()
        words = f"the file was written anew: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now"
        return _tell({"bytes_before": before, "bytes_after": after}, words, as_json=as_json)

    return _with_store(url, act)


def take_out(url: str, path: str, owner: str, *, as_json: bool) -> int:
    """Every conversation of an owner, or of everybody, as lines."""

    async def act(store: Store) -> int:
        owners = [owner] if owner else await store.owners()
        count, faults = 0, list[tuple[str, str]]()
        with _new_file(path) as file:
            async for line in pack(
                store, owners, lambda _, name, error: faults.append((name, error.located))
            ):
                file.write(line)
                if line.startswith(b'{"type":"conversation"'):
                    count += 1
                    _progress(f"exported {count:,} conversations")
        _progress("")
        _tell_faults(faults)
        whole = count - len(faults)
        document = {"exported": whole, "path": path, "left_out": [name for name, _ in faults]}
        _tell(document, f"exported {plural(whole, 'conversation')}", as_json=as_json and path != STDIN)
        return 1 if faults else 0

    return _with_store(url, act)


def bring_in(url: str, path: str, *, as_json: bool) -> int:
    async def act(store: Store) -> int:
        added, left, faults = 0, list[str](), list[tuple[str, str]]()
        with _open(path) as file:
            async for one in unpack(store, file):
                added += one.is_new
                if one.fault:
                    faults.append((one.name, one.fault))
                elif not one.is_new:
                    left.append(one.name)
                _progress(f"imported {added:,} conversations")
        _progress("")
        for name in left:
            output.note(f"{plain(name)!r} is there already and stays as it is")
        _tell_faults(faults)
        document = {"imported": added, "skipped": left, "left_out": [name for name, _ in faults]}
        _tell(document, f"imported {plural(added, 'conversation')}", as_json=as_json)
        return 1 if left or faults else 0

    return _with_store(url, act, begins=True)


def _tell_faults(faults: Sequence[tuple[str, str]]) -> None:
    for name, fault in faults:
        output.note(f"{plain(name)!r} was left out: {plain(fault)}")


def _with_store(url: str, act: Callable[[Store], Awaitable[int]], *, begins: bool = False) -> int:
    stored.check_kept(url) if begins else stored.check_there(url)

    async def run() -> int:
        store = await open_store(url)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


@contextmanager
def _new_file(path: str) -> Iterator[BinaryIO]:
    """A file that gets its name when all of it is there; stdout for `-`."""
    if path == STDIN:
        with output.guarded():
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    target = Path(path)
    if target.exists():
        raise ConfigError(f"there is a file {plain(path)} already", hint="choose another name")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        # Nobody else's business: only the owner of the file may read it.
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
    if path == STDIN:
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
    return cast("BinaryIO", gzip.open(path, mode) if is_packed else path.open(mode))


def _tell(document: dict[str, object], words: str, *, as_json: bool) -> int:
    if as_json:
        output.write_json(document)
    else:
        output.note(words)
    return 0


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()
