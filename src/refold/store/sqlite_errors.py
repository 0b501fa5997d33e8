"""What goes wrong with an SQLite file, in our words.

One idea: every error says what happened, whether anything was stored, and what to do. None holds what was to be stored.
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
        "Another program kept the database locked for too long",
        "close that program, and try again",
    ),
    (
        apsw.LockedError,
        "Another program kept the database locked for too long",
        "close that program, and try again",
    ),
    (apsw.FullError, "There is no room left on the disk for the database", "free some space, and try again"),
    (apsw.ReadOnlyError, "The database can be read and not written", "make the file and its folder writable"),
    (apsw.PermissionsError, "The database may not be opened", "make the file and its folder writable"),
    (apsw.CantOpenError, "The database cannot be opened", "see that its folder is there and can be written"),
    (apsw.NotADBError, "The file is not an SQLite database", "choose another path; nothing was changed"),
    (apsw.CorruptError, "The database is damaged", _RESTORE),
    (
        apsw.IOError,
        "The disk failed to read or write the database",
        "see that the disk is healthy, and try again",
    ),
    (apsw.TooBigError, "A message is larger than the database can hold", "send media by reference instead"),
    (
        apsw.SQLError,
        "The database does not have the tables of this program",
        "start the program again: a newer one may have brought the database up to date meanwhile",
    ),
)


def in_our_words(error: apsw.Error | UnicodeEncodeError, path: Path) -> StoreError:
    """The error to raise for what SQLite says about a file."""
    if isinstance(error, apsw.ConstraintError):
        return _refused(error)
    if isinstance(error, UnicodeEncodeError):
        return StoreError(
            "A name holds characters that are no text.", hint="use valid Unicode in names and titles"
        )
    for kind, reason, hint in _REASONS:
        if isinstance(error, kind):
            return StoreError(reason, hint=hint, location=str(path))
    return StoreError(f"The database failed ({type(error).__name__})", hint=_RESTORE, location=str(path))


def _refused(error: apsw.ConstraintError) -> StoreError:
    code: int = getattr(error, "extendedresult", 0)
    if code in _THERE_ALREADY:
        return Conflict()
    if code == apsw.SQLITE_CONSTRAINT_FOREIGNKEY:
        return NotFound("There is no such conversation or branch.")
    return StoreError("The database refused a change that would break its rules; nothing was stored.")
