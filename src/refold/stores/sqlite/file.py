"""Opens an SQLite file, or refuses it without changing it; copies it while it is in use, and checks it for damage.

A path is checked before the file is written to: for a missing folder, a network filesystem, a file of another program or of a newer
Refold. SQLite's locks and shared memory need a local disk; over a network two programs can hold the same lock, which destroys the
file. The connection settings guarantee that a commit is on the disk when it returns, and that deleted data is overwritten.

SQLite's errors become errors of Refold here. Every error says what happened, whether anything was stored, and what to do. None contains
the data that was to be stored.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from random import uniform

import apsw
from msgspec import json

from refold.model.errors import Conflict, NotFound, StoreError
from refold.stores.sql.queries import missing_migrations
from refold.stores.sql.rows import digest_of, is_damaged

# SQLite's errors as errors of Refold

_THERE_ALREADY = {
    apsw.SQLITE_CONSTRAINT_UNIQUE,
    apsw.SQLITE_CONSTRAINT_PRIMARYKEY,
    apsw.SQLITE_CONSTRAINT_ROWID,
}
_RESTORE = "check it with `refold db check`, and restore a backup"
_REASONS: tuple[tuple[type[apsw.Error], str, str], ...] = (
    (
        apsw.BusyError,
        "another program kept the database locked for too long",
        "close that program, and try again",
    ),
    (
        apsw.LockedError,
        "another program kept the database locked for too long",
        "close that program, and try again",
    ),
    (apsw.FullError, "there is no room left on the disk for the database", "free some space, and try again"),
    (apsw.ReadOnlyError, "the database can be read and not written", "make the file and its folder writable"),
    (apsw.PermissionsError, "the database may not be opened", "make the file and its folder writable"),
    (apsw.CantOpenError, "the database cannot be opened", "see that its folder is there and can be written"),
    (apsw.NotADBError, "the file is not an SQLite database", "choose another path; nothing was changed"),
    (apsw.CorruptError, "the database is damaged", _RESTORE),
    (
        apsw.IOError,
        "the disk failed to read or write the database",
        "see that the disk is healthy, and try again",
    ),
    (apsw.TooBigError, "a message is larger than the database can hold", "send media by reference instead"),
    (
        apsw.SQLError,
        "the database does not have the tables of this program",
        "start the program again: a newer one may have brought the database up to date meanwhile",
    ),
)


def store_error(error: apsw.Error | UnicodeEncodeError, path: Path) -> StoreError:
    """The error of Refold for an error of SQLite."""
    if isinstance(error, apsw.ConstraintError):
        return _refused(error)
    if isinstance(error, UnicodeEncodeError):
        return StoreError(
            "a name has characters that are not valid Unicode", hint="use valid Unicode in names and titles"
        )
    for kind, reason, hint in _REASONS:
        if isinstance(error, kind):
            return StoreError(reason, hint=hint, location=str(path))
    return StoreError(f"the database failed ({type(error).__name__})", hint=_RESTORE, location=str(path))


def _refused(error: apsw.ConstraintError) -> StoreError:
    code: int = getattr(error, "extendedresult", 0)
    if code in _THERE_ALREADY:
        return Conflict()
    if code == apsw.SQLITE_CONSTRAINT_FOREIGNKEY:
        return NotFound("there is no such conversation or branch")
    return StoreError("the database refused a change that would break its rules; nothing was stored")


OLDEST = (3, 51, 3)
"""Versions of SQLite before this one can damage a file in WAL mode that two connections write to."""
APPLICATION = 1_382_368_879
"""The application id that the first migration writes into the header: "ReFo"."""
PATIENCE_S = 60.0
"""Time that a writer waits for another program: far longer than any transaction of Refold, short enough to report a hang."""
COPY_PAUSE_S = 0.01
"""The pause between two attempts to empty the log while another thread or program copies it."""
READER_PATIENCE_MS = 5_000
"""Readers wait for a lock only while a file is recovered after a crash."""
MOST_IN_MEMORY = 64_000_000
"""The largest file, in bytes, that is rewritten by way of a copy in memory; larger ones use a temporary file."""
STATEMENTS = 500
"""Prepared statements that the writer keeps. apsw puts a statement into the next place after each use, so with
its default of 100 places a statement that was not among the last hundred uses is prepared again: nearly one
with every request of a growing conversation."""
_MAGIC = b"SQLite format 3\0"


def prepare(path: Path) -> None:
    """Check that a file can be opened as a database of Refold, and create an empty one if there is none.

    Raises:
        StoreError: the file cannot be used; it was not changed.
    """
    check_version(apsw.sqlite_lib_version())
    _check_place(path)
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        with path.open("r+b") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(
            f"the database cannot be opened ({error.strerror})",
            hint="make the file and its folder writable, or choose another path",
            location=str(path),
        ) from None
    if start not in {b"", _MAGIC}:
        raise StoreError(
            "the file is not an SQLite database",
            hint="choose another path; nothing was changed",
            location=str(path),
        )


def is_ours(path: Path) -> bool:
    """True if the header of a file marks it as a database of Refold. The file is only read."""
    try:
        with path.open("rb") as file:
            header = file.read(72)
    except OSError:
        return False
    return header.startswith(_MAGIC) and header[68:72] == APPLICATION.to_bytes(4, "big")


def open_writer(path: Path, wait: Callable[[int], bool]) -> apsw.Connection:
    """Open the connection that writes, after `prepare` has checked the file. `wait` returns whether to wait longer for another
    program.
    """
    try:
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENTS
        )
        connection.set_busy_handler(wait)
        _prepare_once(connection)
        _check_owner(connection, path)
        _settle(connection, path)
    except apsw.Error as error:
        raise store_error(error, path) from error
    return connection


def open_reader(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(READER_PATIENCE_MS)
    _prepare_once(connection)
    connection.pragma("trusted_schema", False)
    register_functions(connection)
    return connection


def _prepare_once(connection: apsw.Connection) -> None:
    """Let SQLite plan a statement without its values. Otherwise it plans some statements again for every execution, which takes several
    times as long as the execution.
    """
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def copy_log(path: Path) -> int:
    """Copy the pages of the log into the file, without waiting for anybody. Returns how many of its pages are copied now."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.pragma("synchronous", "FULL")
        connection.pragma("user_version")  # a connection that has read nothing does not know the log
        return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)[1]
    finally:
        connection.close()


def wipe(path: Path, most_bytes: float, patience_ms: int) -> apsw.Error | None:
    """Rewrite a file of at most this size, and empty its log. Returns the error that prevented it, if any.

    Deleted rows are overwritten in place. But when SQLite moves a row to another page, its bytes stay in the unused part of the old
    page, and only rewriting the file removes them.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(patience_ms)
        failed = _write_anew(connection, most_bytes)
        not_emptied = _empty_log(connection, patience_ms)
        return failed or not_emptied
    finally:
        connection.close()


def _empty_log(connection: apsw.Connection, patience_ms: int) -> apsw.Error | None:
    """Copy the log into the file, and empty it. SQLite waits for readers, but not for another copy, such as one of `copy_log` in another
    thread; the pauses here do.
    """
    until = time.monotonic() + patience_ms / 1_000
    while True:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.FullError) as error:
            if isinstance(error, apsw.FullError) or time.monotonic() >= until:
                return error
            time.sleep(COPY_PAUSE_S)
        else:
            return None


def _write_anew(connection: apsw.Connection, most_bytes: float) -> apsw.Error | None:
    # Read first: a connection that has read nothing does not know the log.
    size = connection.pragma("page_count") * connection.pragma("page_size")
    if size > most_bytes:
        return None
    connection.pragma("synchronous", "FULL")
    if size <= MOST_IN_MEMORY:
        connection.pragma("temp_store", "MEMORY")  # no temporary file in another folder
    try:
        connection.execute("VACUUM")
    except (apsw.BusyError, apsw.FullError) as error:
        return error
    return None


def check_version(version: str) -> None:
    """Refuse an SQLite that can damage files.

    Raises:
        StoreError: it is too old.
    """
    if tuple(int(number) for number in version.split(".")) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise StoreError(
            f"SQLite {version} can damage a database; Refold needs {oldest} or newer",
            hint="install a newer one with: pip install -U apsw",
        )


def patiently(
    patience_s: Callable[[], float] = lambda: PATIENCE_S, clock: Callable[[], float] = time.monotonic
) -> Callable[[int], bool]:
    """A busy handler that tries every millisecond; `patience_s` is called each time for the longest wait.

    SQLite's own waits grow to a tenth of a second, and a program that writes without a pause takes the lock again in between. With a
    try every millisecond, the gap between two of its transactions is found.
    """
    begun = 0.0

    def wait(times: int) -> bool:
        nonlocal begun
        if times == 0:
            begun = clock()
        time.sleep(uniform(0.0005, 0.0015))  # noqa: S311 - so that two who wait do not ask in step
        return clock() - begun < patience_s()

    return wait


def _check_place(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(
            "the folder of the database is not there",
            hint="make it with `mkdir -p`; sqlite:///path is relative to the current folder, sqlite:////path is absolute",
            location=str(folder),
        )
    if path.is_dir():
        raise StoreError("this is a folder, not a database", hint="name a file in it", location=str(path))
    if kind := network_filesystem(path):
        raise StoreError(
            f"the database would be on a network filesystem ({kind}), where SQLite can lose it",
            hint="choose a path on a disk of this machine, or use postgresql://",
            location=str(path),
        )


def _check_owner(connection: apsw.Connection, path: Path) -> None:
    """Refuse files of other programs and of newer versions."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return
    if connection.pragma("application_id") != APPLICATION or "migration" not in tables:
        raise StoreError(
            "the database belongs to another program",
            hint="choose another path; nothing was changed",
            location=str(path),
        )
    missing_migrations("sqlite", [name for (name,) in connection.execute("SELECT name FROM migration")])


def _settle(connection: apsw.Connection, path: Path) -> None:
    if _set_wal(connection) != "wal":
        raise StoreError(
            "the database cannot keep a write-ahead log there",
            hint="choose a path on a disk of this machine",
            location=str(path),
        )
    # The power may fail after any commit: each one is on the disk when it returns.
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", True)
    connection.pragma("trusted_schema", False)
    # With several programs on one file a mapped page can be torn.
    connection.pragma("mmap_size", 0)
    # Deleted data is overwritten, not only unlinked.
    connection.pragma("secure_delete", True)


def _set_wal(connection: apsw.Connection) -> str:
    """Turn on the write-ahead log. If another program does the same at this moment, SQLite fails at once, without a wait."""
    wait = patiently()
    for times in range(1_000_000):
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if not wait(times):
                raise
    raise AssertionError


def register_functions(connection: apsw.Connection) -> None:
    """Make the functions of the queries that count words."""
    connection.register_fts5_function("count_words", _count_words)
    connection.register_fts5_function("count_part", _count_part)


def _count_words(found: apsw.FTS5ExtensionApi, /, *given: object) -> str:
    """The length of a message and the occurrences of each term of a query, as a function that SQLite calls for every match."""
    groups, terms = _groups(str(given[0]))
    counts, occurrence = [0] * terms, found.inst_tokens
    for place in range(found.inst_count):
        for term, value in groups.get(occurrence(place) or (), ()):
            counts[term] += value
    return " ".join([str(found.column_size(1)), *(str(count // _ONCE) for count in counts)])


def _count_part(found: apsw.FTS5ExtensionApi, /, *given: object) -> str:
    """The occurrences of each term of a query in one of several rows of a message, without those that begin in the words which the row
    repeats from the next one.
    """
    groups, terms = _groups(str(given[0]))
    counts, own = [0] * terms, int(str(given[1]))
    for number, phrase in enumerate(found.phrases):
        if values := groups.get(phrase):  # type: ignore[arg-type]
            times = bisect_left(found.phrase_column_offsets(number, 1), own)
            for term, value in values:
                counts[term] += times * value
    return " ".join(str(count // _ONCE) for count in counts)


_ONCE = 12
"""What one occurrence counts. A phrase that the query has two, three or four times is found as often, and each time counts a part."""


@lru_cache(maxsize=64)
def _groups(text: str) -> tuple[dict[tuple[str, ...], list[tuple[int, int]]], int]:
    """The numbers of its terms and the value of an occurrence for every phrase, and the number of all terms."""
    rows = json.decode(text, type=list[tuple[tuple[str, ...], int, int]])
    groups = dict[tuple[str, ...], list[tuple[int, int]]]()
    for phrase, term, times in rows:
        groups.setdefault(phrase, []).append((term, _ONCE // times))
    return groups, 1 + max((term for _, term, _ in rows), default=-1)


_MOUNTS = Path("/proc/self/mountinfo")
_KINDS = """
    9p afs beegfs ceph cifs coda davfs gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb3 smbfs
    fuse.blobfuse2 fuse.ceph fuse.curlftpfs fuse.davfs2 fuse.gcsfuse fuse.glusterfs fuse.goofys fuse.juicefs fuse.rclone
    fuse.s3fs fuse.seaweedfs fuse.smbnetfs fuse.sshfs
"""
_OVER_A_NETWORK = frozenset(_KINDS.split())
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def network_filesystem(path: Path, mounts: str | None = None) -> str:
    """The kind of network filesystem that an absolute path is on; empty if it is none, or unknown.

    `mounts` is the text of Linux's `/proc/self/mountinfo`; other systems do not have it.
    """
    if mounts is None:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape") if _MOUNTS.exists() else ""
    kind, longest = "", 0
    for place, of_kind in map(_place_and_kind, mounts.splitlines()):
        # A later mount hides an earlier one at the same path.
        if path.is_relative_to(place) and len(place.parts) >= longest:
            kind, longest = of_kind, len(place.parts)
    return kind if kind in _OVER_A_NETWORK else ""


def _place_and_kind(line: str) -> tuple[Path, str]:
    mount, _, filesystem = line.partition(" - ")
    place = mount.split(" ")[4]
    for code, character in _ESCAPES:
        place = place.replace(code, character)
    return Path(place), filesystem.split(" ")[0]


# Backup, and the check for damage. A database in use consists of several files, which must not be
# copied by hand. SQLite copies a snapshot page by page into a temporary file, which is renamed when
# all of it is on the disk.

MOST_FAULTS = 100
"""Faults that are listed for each kind: enough to recognise the damage."""


def copy_to(path: Path, source: apsw.Connection) -> None:
    """Write a copy to a path that does not exist yet.

    Raises:
        StoreError: the path exists, or the copy cannot be written.
    """
    try:
        _make_empty(path)
    except FileExistsError:
        raise StoreError(
            "there is a file of this name already", hint="choose another name", location=str(path)
        ) from None
    except OSError as error:
        raise _unwritable(path) from error
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _make_empty(partial)
        _copy(source, partial)
        partial.replace(path)
        _sync_folder(path.parent)
    except (OSError, apsw.Error) as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path) from error
    finally:
        partial.unlink(missing_ok=True)


def find_faults(path: Path) -> list[str]:
    """The faults of a database, one sentence each, without content of messages."""
    # A new connection: one that has searched before caches an index that other programs may have changed.
    connection = open_reader(path)
    try:
        return [
            fault
            for look in (_structure, _references, _messages, _values)
            for fault in _found(look(connection))
        ]
    finally:
        connection.close()


def _structure(connection: apsw.Connection) -> Iterator[str]:
    for (text,) in connection.execute(f"PRAGMA integrity_check({MOST_FAULTS})"):
        if text != "ok":
            yield str(text)


def _references(connection: apsw.Connection) -> Iterator[str]:
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of table {table} refers to a row of {parent} that is not there"


def _messages(connection: apsw.Connection) -> Iterator[str]:
    messages = connection.execute(
        """SELECT branch.owner, branch.id, message.seq, message.body, message.digest
        FROM message LEFT JOIN branch ON branch.ordinal = message.branch ORDER BY message.id"""
    )
    for owner, branch, seq, body, digest in messages:
        if branch is None:
            yield f"message {seq} is of a branch that is not there"
        elif digest_of(body) != digest:
            yield f"message {seq} of branch {branch} of owner {owner} is not what it was when it came"


_DIGESTED = {
    "the notes of branch {}": "SELECT owner, id, notes_digest, revision, notes FROM branch",
    "the shortened form of message {}": """SELECT owner, message.seq || ' of branch ' || branch.id, shown_digest, NULL, shown
        FROM message JOIN branch ON branch.ordinal = message.branch""",
    "the reply to call {}": "SELECT owner, call, digest, NULL, body FROM reply",
    "the summary {}": "SELECT owner, id, digest, number, body, carry FROM summary",
    "the record of compaction {}": "SELECT owner, id, digest, NULL, edits, shown FROM compaction",
    "a system prompt of conversation {}": "SELECT owner, conversation, digest, NULL, body FROM blob",
}
"""Values that are stored with a checksum. A version without checksums stored none."""


def _values(connection: apsw.Connection) -> Iterator[str]:
    for name, query in _DIGESTED.items():
        for owner, which, digest, number, *parts in connection.execute(query):
            if is_damaged(digest, number, *parts):
                yield f"{name.format(which)} of owner {owner} is not what it was when it was stored"


def _found(faults: Iterator[str]) -> Iterator[str]:
    """The faults that a check finds before it fails."""
    try:
        yield from islice(faults, MOST_FAULTS)
    except apsw.Error as error:
        yield f"not everything can be read ({type(error).__name__})"


def _copy(source: apsw.Connection, path: Path) -> None:
    target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with target.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step()
        # One file, without a log beside it, until it is opened as a store.
        target.pragma("journal_mode", "delete")
    finally:
        target.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _make_empty(path: Path) -> None:
    """Create a file that only its owner can read, under an unused name."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _sync_folder(folder: Path) -> None:
    """Flush a new name to the disk, on systems that can open folders for that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(path: Path) -> StoreError:
    return StoreError(
        "the backup cannot be written", hint="see that its folder is there and has room", location=str(path)
    )
