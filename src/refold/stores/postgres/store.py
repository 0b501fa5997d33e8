"""The PostgreSQL store and its driver.

A transaction is retried if it cannot have been committed, or if running it twice has no effect. If the connection is lost before the
commit, the transaction is retried on another one. If it is lost during the commit, the outcome is unknown, and the caller gets an error
that says so. No connection is held while the caller awaits anything but the database. A batch of a single message is one statement
that updates the branch's row, appends the message and commits: one round trip instead of four.

Every error names the failure, says whether anything was stored, and has a hint. None contains the data of the transaction or a
password. So the server's own text is repeated only for errors of the connection, and only in the location of the error, which clients
of the gateway do not see.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec
import psycopg
from msgspec import Struct, structs
from psycopg import AsyncConnection, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from refold.core.search.query import words_by_piece
from refold.model.errors import ConfigError, Conflict, NotFound, RefoldError, StoreError
from refold.model.mask import is_clear_url
from refold.ports.records import Batch, Head, NewMessages, Session, StoredMessage, StoreNotice
from refold.stores.search import said, said_in, scope
from refold.stores.sql import conversations, queries, rows
from refold.stores.sql.commit import (
    PORTION_BYTES,
    check_numbers,
    commit,
    committed,
    is_one_message,
    refuse,
    swapping,
)
from refold.stores.sql.queries import (
    P,
    QueryParameters,
    QueryStep,
    SqlDialect,
    T,
    TableRow,
    Tables,
    Transaction,
    load,
)
from refold.stores.sql.store import SqlStore
from refold.text_work import run_text_act, run_text_work

RULE: Final = "RF001"
"""The error code with which Refold's triggers refuse a change."""

_AGAIN = "try again"
_MORE_CONNECTIONS: Final = "raise max_connections or the limit of the user, or open fewer stores"
_ESCAPES = "in a password %40 is written for @, %2F for /, %3F for ?"
_REASONS: Final[tuple[tuple[type[psycopg.Error], str, str], ...]] = (
    (
        errors.QueryCanceled,
        "the database took too long for one statement",
        "see what keeps it busy, and try again",
    ),
    (errors.LockNotAvailable, "another writer kept the conversation locked for too long", _AGAIN),
    (errors.DeadlockDetected, "other writers were in the way again and again", _AGAIN),
    (errors.SerializationFailure, "other writers were in the way again and again", _AGAIN),
    (errors.DiskFull, "there is no room left on the server's disk", "free some space there, and try again"),
    (
        errors.TooManyConnections,
        "the server has no connection left",
        _MORE_CONNECTIONS,
    ),
    (
        errors.ReadOnlySqlTransaction,
        "the database can be read and not written",
        "connect to the primary server",
    ),
    (
        errors.InsufficientPrivilege,
        "the user may not do this in the database",
        "let the user create and use the schema refold",
    ),
    (
        errors.UndefinedTable,
        "the database does not have the tables of this program",
        "run `refold db upgrade`",
    ),
    (
        errors.UndefinedColumn,
        "the database does not have the tables of this program",
        "run `refold db upgrade`",
    ),
    (
        errors.ProgramLimitExceeded,
        "a message is larger than the database can hold",
        "send media by reference",
    ),
)
_REFUSALS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "password authentication",
        "the server refuses the password",
        "see the user and the password in the URL",
    ),
    ("no password", "the server asks for a password", "write it into the URL, or into ~/.pgpass"),
    # Before the next: these texts name the role or the database that has reached its limit.
    ("too many connections", "the server has no connection left", _MORE_CONNECTIONS),
    ("connection slots are reserved", "the server has no connection left", _MORE_CONNECTIONS),
    ('role "', "the server does not know the user", "see the user in the URL, or create it with CREATE ROLE"),
    ("pg_hba.conf", "the server lets no such user in from here", "see pg_hba.conf on the server"),
    ("too many clients", "the server has no connection left", _MORE_CONNECTIONS),
    ('database "', "there is no such database", "create it with CREATE DATABASE, or see its name in the URL"),
)
"""A refused connection has no code, only the server's text, which may be in another language; then it is shown alone."""


def store_error(error: psycopg.Error | UnicodeEncodeError, place: str) -> RefoldError:
    """The error of Refold for an error of PostgreSQL in a transaction."""
    if isinstance(error, psycopg.Error) and (
        isinstance(error, psycopg.IntegrityError) or error.sqlstate == RULE
    ):
        return _refused(error)
    if isinstance(error, UnicodeEncodeError | psycopg.DataError):
        return StoreError(
            "a name has characters that are not valid Unicode", hint="use valid Unicode in names and titles"
        )
    for kind, reason, hint in _REASONS:
        if isinstance(error, kind):
            return StoreError(reason, hint=hint, location=place)
    return StoreError(f"the database failed ({type(error).__name__})", hint=_AGAIN, location=place)


def lost(place: str) -> StoreError:
    """The connection was lost before the commit, and so was a second one."""
    return StoreError(
        "the connection to the database was lost, and nothing was stored",
        hint="see that the server runs, and try again",
        location=place,
    )


def unknown_outcome(place: str) -> StoreError:
    """The connection was lost during the commit: it is unknown whether the transaction was stored."""
    return StoreError(
        "the connection was lost during a commit, so it is not known whether it was stored",
        hint="load the conversation and see what is there, then try again",
        location=place,
    )


def unreachable(error: psycopg.Error | OSError, place: str, password: str = "") -> RefoldError:
    """No connection can be made. An empty `place` means that the URL is ambiguous."""
    if isinstance(error, psycopg.ProgrammingError):
        return unreadable()
    said = str(error)
    for part, reason, hint in _REFUSALS:
        if part in said:
            return StoreError(reason, hint=hint, location=place)
    return StoreError(
        "the database cannot be reached",
        hint="see that the server runs and that the URL is right" + ("" if place else f"; {_ESCAPES}"),
        location=_with_words(place, said, password),
    )


def unreadable() -> ConfigError:
    """The URL cannot be parsed. The driver's own error quotes the text, which may contain a password, so it is left out."""
    return ConfigError(
        "the URL of the database cannot be read",
        hint=f"write postgresql://user:password@host:5432/database; {_ESCAPES}",
    )


def _with_words(place: str, said: str, password: str) -> str:
    """A place with the first line of the driver's error, unless that line may contain a part of the password."""
    first = next(iter(said.strip().splitlines()), "")
    is_safe = bool(place and first) and not (password and password in first)
    return f"{place} ({first})" if is_safe else place


def _refused(error: psycopg.Error) -> StoreError:
    if isinstance(error, errors.UniqueViolation):
        return Conflict()
    if isinstance(error, errors.ForeignKeyViolation):
        return NotFound("there is no such conversation or branch")
    return StoreError("the database refused a change that would break its rules; nothing was stored")


OLDEST = 13_00_00
"""The oldest supported server: earlier versions get no more fixes."""
ATTEMPTS = 5
"""Attempts for one transaction: after a deadlock, the same two writers rarely meet again."""

_DATABASE = re.compile(r"[\w .-]+")
_SERVER = re.compile(r"[\w./,:-]*")
"""Names, addresses, and folders of sockets."""

PostgresConnection: TypeAlias = AsyncConnection[TableRow]


class Patience(Struct, frozen=True):
    """The number of connections, and the timeouts."""

    connections: int = 8
    """Connections of the pool. A transaction takes a millisecond, so a few serve many conversations; a server has a hundred for
    all programs.
    """
    wait_s: float = 10.0
    """Timeout for a connection: longer than the restart of a server."""
    statement_s: float = 30.0
    """Timeout for a statement: far longer than any takes. A deletion has no timeout."""
    lock_s: float = 10.0
    """Timeout for the lock of another writer of the same conversation: its transaction is as short as this one."""


HURRIED_S = 0.05
"""Timeout for a connection after the server could not be reached, until it is: the next calls do not each wait the full
timeout. The pool goes on trying to connect meanwhile."""


LISTEN_AGAIN_S = 0.5
"""Pause before the connection for notices is made again: shorter than the restart of a server."""


class _Lost(Exception):
    """The connection was lost before the commit."""


class PostgresDriver:
    """Runs transactions on one database."""

    dialect: SqlDialect = "postgres"

    def __init__(self, url: str, patience: Patience) -> None:
        self.conninfo, self.place = _address(url, patience)
        self._password = str(conninfo_to_dict(self.conninfo).get("password") or "")
        self._patience = patience
        self._outage: StoreError | None = None
        """Why the server could not be reached; None since it was."""
        self._statements = {name: text.encode() for name, text in load("postgres").items()}
        self._pool = AsyncConnectionPool[PostgresConnection](
            self.conninfo,
            kwargs={"autocommit": True},
            min_size=0,
            max_size=patience.connections,
            timeout=patience.wait_s,
            reconnect_timeout=patience.wait_s,
            configure=self._settle,
            open=False,
        )

    async def open(self) -> None:
        """Connect to the server and check it. The pool alone would connect later, and hide the error.

        Raises:
            StoreError: the server cannot be reached or used.
        """
        connection = await self.connect()
        async with connection:
            _check_server(connection, self.place)
        await self._pool.open()

    async def read(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._attempt(partial(self._look, partial(begin, *args, **kwargs)))

    look_up = read

    async def read_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._attempt(partial(self._look_at_once, partial(begin, *args, **kwargs)))

    async def write(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._attempt(partial(self._commit, partial(begin, *args, **kwargs)))

    async def write_at_length(
        self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction without a timeout."""
        return await self._attempt(partial(self._commit, partial(begin, *args, **kwargs), at_length=True))

    async def write_text(
        self, size: int, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction that works on `size` bytes of text between its statements, in a thread if that is much."""
        return await self._attempt(partial(self._commit, partial(begin, *args, **kwargs), size=size))

    async def close(self) -> None:
        await self._pool.close()

    async def notices(self) -> AsyncIterator[StoreNotice]:
        """Listen on a connection of its own, and connect again if it is lost."""
        while True:
            try:
                async with await self.connect() as connection:
                    await connection.execute("LISTEN refold")
                    yield StoreNotice("again")
                    async for one in connection.notifies():
                        try:
                            yield msgspec.json.decode(one.payload, type=StoreNotice)
                        except msgspec.DecodeError:
                            continue  # another program uses the channel's name
            except (psycopg.Error, StoreError):
                await asyncio.sleep(LISTEN_AGAIN_S)

    async def write_at_once(self, begin: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one statement that writes and commits by itself.

        If its answer is lost, it may have been committed. It is retried, because it writes only if the branch has not changed
        since. If the retry finds a change, the outcome is unknown: the change may be its own.
        """
        work = partial(self._look, partial(begin, *args, **kwargs))
        try:
            return await self._insist(work)
        except _Lost:
            await self._pool.check()
        try:
            return await self._insist(work)
        except (_Lost, Conflict):
            raise unknown_outcome(self.place) from None

    async def _attempt(self, work: Callable[[PostgresConnection], Awaitable[T]]) -> T:
        try:
            return await self._insist(work)
        except _Lost:
            # The server was restarted: all pooled connections are lost.
            await self._pool.check()
        try:
            return await self._insist(work)
        except _Lost:
            raise lost(self.place) from None

    async def _insist(self, work: Callable[[PostgresConnection], Awaitable[T]]) -> T:
        for left in reversed(range(ATTEMPTS)):
            try:
                return await self._try(work)
            except (errors.DeadlockDetected, errors.SerializationFailure) as error:
                if not left:
                    raise store_error(error, self.place) from None
            except (PoolTimeout, PoolClosed) as error:
                raise await self._why(error) from None
            except (psycopg.Error, UnicodeEncodeError) as error:
                raise store_error(error, self.place) from None
        raise AssertionError

    async def _try(self, work: Callable[[PostgresConnection], Awaitable[T]]) -> T:
        async with self._pool.connection(HURRIED_S if self._outage else None) as connection:
            self._outage = None
            try:
                return await work(connection)
            except psycopg.Error as error:
                if connection.closed:
                    raise _Lost from error
                raise

    async def _look(self, begin: Callable[[], Transaction[T]], connection: PostgresConnection) -> T:
        await _set_autocommit(connection, on=True)
        return await self._run(connection, begin())

    async def _look_at_once(self, begin: Callable[[], Transaction[T]], connection: PostgresConnection) -> T:
        await _set_autocommit(connection, on=False)
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        result = await self._run(connection, begin())
        await connection.rollback()
        return result

    async def _commit(
        self,
        begin: Callable[[], Transaction[T]],
        connection: PostgresConnection,
        *,
        at_length: bool = False,
        size: int = 0,
    ) -> T:
        await _set_autocommit(connection, on=False)
        if at_length:
            await connection.execute("SET LOCAL statement_timeout = 0")
        result = await self._run(connection, begin(), size)
        try:
            await connection.commit()
        except psycopg.OperationalError as error:
            if connection.closed:
                raise unknown_outcome(self.place) from error
            raise
        return result

    async def _run(self, connection: PostgresConnection, transaction: Transaction[T], size: int = 0) -> T:
        step, result = _advance(transaction, None)
        while step is not None:
            found = await self._ask(connection, step)
            # A search counts and ranks the words of up to a thousand messages between its statements.
            work = max(size, _ROW_BYTES * len(found))
            step, result = await run_text_act(work, _advance, transaction, found)
        return result  # type: ignore[return-value]

    async def _ask(self, connection: PostgresConnection, step: QueryStep) -> list[TableRow]:
        name, parameters = step
        if name == COPY and isinstance(parameters, Mapping):
            return await _copy(connection, parameters)
        statement = self._statements[name]
        if not parameters:
            # Without parameters it may be a script; its rows are not needed.
            cursor = await connection.execute(statement)
            return await _rows(cursor)
        async with connection.cursor(binary=True) as cursor:
            if isinstance(parameters, Mapping):
                await cursor.execute(statement, parameters)
            elif len(parameters) == 1:
                await cursor.execute(statement, parameters[0])
            else:
                await cursor.executemany(statement, parameters, returning=True)
            return await _all_rows(cursor)

    async def connect(self) -> PostgresConnection:
        """Make a connection of its own, beside the pool.

        Raises:
            StoreError: the server cannot be reached.
        """
        try:
            return await AsyncConnection.connect(self.conninfo, autocommit=True)
        except (psycopg.Error, OSError) as error:
            raise unreachable(error, self.place, self._password) from None

    async def _settle(self, connection: PostgresConnection) -> None:
        patience = self._patience
        settings = {
            "statement_timeout": f"{patience.statement_s:.3f}s",
            "lock_timeout": f"{patience.lock_s:.3f}s",
            "idle_timeout": f"{patience.statement_s:.3f}s",
        }
        await connection.execute(self._statements["settle_connection"], settings)

    async def _why(self, error: PoolTimeout | PoolClosed) -> Exception:
        """The reason that the pool gave no connection; the pool does not report it."""
        if isinstance(error, PoolClosed):
            return StoreError("the store is closed", hint="open it again")
        if self._outage is not None:
            return self._outage
        try:
            await (await self.connect()).close()
        except StoreError as reason:
            self._outage = reason
            return reason
        return StoreError(
            f"all {self._patience.connections} connections were busy for {self._patience.wait_s:g} s",
            hint="see what keeps the server busy, and try again",
            location=self.place,
        )


class PostgresStore(SqlStore):
    """Conversations in a PostgreSQL database, in their own schema."""

    def __init__(self, driver: PostgresDriver) -> None:
        super().__init__(driver)
        self._database = driver

    @classmethod
    async def open(
        cls, url: str, patience: Patience | None = None, *, tables: Tables = "upgraded"
    ) -> PostgresStore:
        """Open a database, and create its tables if they are missing. With `tables="checked"`, a database without the tables
        of this version is refused.

        Raises:
            ConfigError: the URL cannot be read.
            StoreError: the server cannot be reached or used, or was upgraded by a newer program; nothing was changed.
        """
        driver = PostgresDriver(url, patience or Patience())
        try:
            await driver.open()
            if tables == "upgraded":
                await driver.write_at_length(_bring_up_to_date)
            elif tables == "checked":
                await driver.read(queries.check_tables, "postgres")
        except BaseException:
            await driver.close()
            raise
        return cls(driver)

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        try:
            return await super().create(head, session, title=title, at=at)
        except Conflict:
            # Another program created it at the same moment, so it exists now.
            return await super().create(head, session, title=title, at=at)

    async def commit(self, seen: Head, batch: Batch) -> Head:
        size = batch.text_size
        if (asked := await run_text_work(size, append_parameters, seen, batch)) is not None:
            return committed(await self._database.write_at_once(append, seen, asked))
        if isinstance(batch.messages, NewMessages):
            batch = structs.replace(batch, messages=batch.messages.uncopied())
        add = partial(add_long, batch.messages)
        return committed(await self._database.write_text(size, commit, seen, batch, rows.with_words, add))

    def notices(self) -> AsyncIterator[StoreNotice]:
        """Yield changes of settings and the ends of summaries as they are committed."""
        return self._database.notices()

    async def delete(self, owner: str, conversation: str = "") -> int:
        return await self._database.write_at_length(conversations.delete, owner, conversation)

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        return await self._database.write_at_length(conversations.expire, owner, before, keep, limit)


def _bring_up_to_date() -> Transaction[list[str]]:
    """Run missing migrations only: a user of the database may have no right to change its tables."""
    if (yield from queries.has_current_tables("postgres")):
        return []
    return (yield from queries.upgrade_tables("postgres"))


def _address(url: str, patience: Patience) -> tuple[str, str]:
    """The connection string, and the name of the database for errors, without user and password."""
    # A network that drops packets is noticed as soon as a server that does not answer, and not after hours.
    wait_s = max(2, int(patience.wait_s))
    noticed = {"connect_timeout": wait_s, "keepalives_idle": 30, "tcp_user_timeout": 30_000}
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
        conninfo = make_conninfo(**{"fallback_application_name": "refold", **noticed, **given})
    except (psycopg.Error, ValueError):
        raise unreadable() from None
    return conninfo, _place(url, given)


def _place(url: str, given: Mapping[str, Any]) -> str:
    """The database and its host; empty if a part of the password may have been parsed as one of them."""
    database, host = str(given.get("dbname", "the default database")), str(given.get("host", "localhost"))
    is_clear = is_clear_url(url) and _DATABASE.fullmatch(database) and _SERVER.fullmatch(host)
    return f"{database} on {host}" if is_clear else ""


def _check_server(connection: PostgresConnection, place: str) -> None:
    if connection.info.server_version < OLDEST:
        raise StoreError(
            f"the server is older than PostgreSQL {OLDEST // 10_000}",
            hint="upgrade the server",
            location=place,
        )
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise StoreError(
            "the encoding of the database does not have the letters of every language",
            hint="create one with ENCODING 'UTF8' TEMPLATE template0",
            location=place,
        )


_ROW_BYTES = 512
"""What a row counts for as text: the work on more than some hundred rows is done outside of the event loop."""


def _advance(
    transaction: Transaction[T], found: list[TableRow] | None
) -> tuple[QueryStep, None] | tuple[None, T]:
    """Run a transaction up to its next statement, or to its end. No thread can raise `StopIteration` to a waiter."""
    try:
        return next(transaction) if found is None else transaction.send(found), None
    except StopIteration as end:
        return None, end.value


async def _set_autocommit(connection: PostgresConnection, *, on: bool) -> None:
    """A read needs no transaction, which would take two more round trips to the server."""
    if connection.autocommit != on:
        await connection.set_autocommit(on)


async def _all_rows(cursor: psycopg.AsyncCursor[TableRow]) -> list[TableRow]:
    """The rows of a statement, for all its parameters together."""
    rows = await _rows(cursor)
    while cursor.nextset():
        rows += await _rows(cursor)
    return rows


async def _rows(cursor: psycopg.AsyncCursor[TableRow]) -> list[TableRow]:
    # The cursor's own description says the same, and takes longer than all else that is done to a row here.
    result = cursor.pgresult
    return await cursor.fetchall() if result is not None and result.nfields else []


COPY = "copy_message"
"""The step of a transaction that is not a query, but a row that is copied into the table of messages."""
_COPIED: Final = {
    "owner": "text", "branch": "text", "seq": "int8", "role": "text", "format": "text", "body": "bytea", "digest": "bytea",
    "shown": "bytea", "shown_digest": "bytea", "tokens": "int8", "key": "text", "at": "float8",
}  # fmt: skip
"""The columns with their types."""


async def _copy(connection: PostgresConnection, row: QueryParameters) -> list[TableRow]:
    """Append a message by COPY: its bytes are sent in pieces. Of the parameters of a statement the client library makes two copies or
    more, which it keeps as long as the connection.
    """
    names = ", ".join(_COPIED)
    async with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY message ({names}) FROM STDIN (FORMAT binary)") as copy,
    ):
        copy.set_types(list(_COPIED.values()))
        await copy.write_row([row[name] for name in _COPIED])
    return []


def add_long(new: Sequence[StoredMessage], head: Head, message: StoredMessage) -> Transaction[None]:
    """Append a long message, one of the new ones, and its words a few parts at a time."""
    yield COPY, rows.of_message(head, message)
    if not message.is_findable:
        return
    place = {"owner": head.owner, "branch": head.branch, "seq": message.seq}
    marks = scope(head.owner, head.conversation).split()
    decoded = new.decoded(message.seq) if isinstance(new, NewMessages) else None
    text = said_in(decoded, message.body) if decoded else said(message.format, message.body)
    parts = _parts(words_by_piece(text))
    while few := [{**place, "spelt": _spell_words(words, marks)} for words in islice(parts, TOGETHER)]:
        yield "add_words", few


PART, OVERLAP = 2_000, 32
"""Words that the index takes in one piece, and the first words of the next one that it ends with; the database divides texts of
usual length, see `spell_words`."""
TOGETHER = 16
"""Parts of a long message that are sent together: a third of a megabyte."""


def _parts(words: Iterable[list[str]]) -> Iterator[list[str]]:
    """Divide the words of a text into parts, as `spell_words` does."""
    held = list[str]()
    for some in words:
        held += some
        while len(held) >= PART + OVERLAP:
            yield held[: PART + OVERLAP]
            del held[:PART]
    for start in range(0, len(held), PART):
        yield held[start : start + PART + OVERLAP]


def append_parameters(seen: Head, batch: Batch) -> QueryParameters | None:
    """The parameters of the statement that appends a message; None if the batch is more than one message, or needs a lookup."""
    if not is_one_message(seen, batch) or batch.text_size >= PORTION_BYTES:
        return None
    check_numbers(seen, batch.messages)
    said = rows.with_words(seen, batch.messages[0])
    words = str(said["words"]).split()
    if len(words) > PART:
        return None
    spelt = _spell_words(words, str(said["scope"]).split())
    return {**swapping(seen, batch), **said, "spelt": spelt, "committed_at": batch.at}


def append(seen: Head, asked: QueryParameters) -> Transaction[Head]:
    moved = yield "append_message", asked
    return rows.to_head(moved[0]) if moved else (yield from refuse(seen))


def _spell_words(words: list[str], marks: list[str]) -> str:
    """Words with their positions, as by `spell_words`: a function on the server takes three times as long."""
    placed = [f"{word}:{place}" for place, word in enumerate(words, 1)]
    return " ".join(placed + [f"{mark}:1A" for mark in marks]) if words else ""
