"""SQLite's errors as errors of Refold.

Every error says what happened, whether anything was stored, and what to do. None contains the data that was to be stored.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from refold.model.errors import Conflict, NotFound, StoreError

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
            "a name holds characters that are no text", hint="use valid Unicode in names and titles"
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
