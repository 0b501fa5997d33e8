"""PostgreSQL's errors as errors of Refold.

Every error names the failure, says whether anything was stored, and has a hint. None contains the data of the transaction or a
password. So the server's own text is repeated only for errors of the connection, and only in the location of the error, which clients
of the gateway do not see.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

from refold.model.errors import ConfigError, Conflict, NotFound, RefoldError, StoreError

RULE: Final = "RF001"
"""The error code with which Refold's triggers refuse a change."""

_AGAIN = "try again"
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
        "raise max_connections, or open fewer stores",
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
    ('role "', "the server does not know the user", "see the user in the URL, or create it with CREATE ROLE"),
    ("pg_hba.conf", "the server lets no such user in from here", "see pg_hba.conf on the server"),
    ("too many clients", "the server has no connection left", "raise max_connections, or open fewer stores"),
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
            "a name holds characters that are no text", hint="use valid Unicode in names and titles"
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
