"""The store that a URL names.

One idea: where conversations are kept is one string. `memory:` forgets; `sqlite:///path/to/file` is an absolute path,
`sqlite://file` one from where the program runs, `sqlite:` the file in the platform's data folder; `postgresql://...` is a
server. Whatever a URL lacks is said in words, and no message repeats one: there may be a password in it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from refold.model.errors import ConfigError, MissingExtra, StoreError
from refold.ports.store import Store

FILE = "refold.db"
_HINT = "write sqlite:///path/to/file, sqlite://file for a relative path, postgresql://..., or memory:"
_DRIVE = re.compile(r"/[A-Za-z]:")


async def open_store(url: str = "", *, patience_s: float | None = None) -> Store:
    """Open the store that a URL names; without one, the file in the platform's data folder. In a file, a write waits `patience_s`
    for another program that writes.

    Raises:
        ConfigError: the URL names none.
        MissingExtra: what it needs is not installed.
        StoreError: it cannot be opened; nothing was changed.
    """
    scheme, colon, rest = url.partition(":")
    if not url or scheme == "sqlite":
        return await _open_sqlite(rest, patience_s)
    if scheme == "memory" and colon and not rest.strip("/"):
        from refold.store.memory import MemoryStore

        return MemoryStore()
    if scheme in {"postgresql", "postgres"} and rest.startswith("//"):
        return await _open_postgres(url)
    raise ConfigError("The URL of the store names no kind of store that there is.", hint=_HINT)


def sqlite_path(rest: str) -> Path | None:
    """The path that stands after `sqlite:` in a URL; None for the default.

    Raises:
        ConfigError: it is not a path.
    """
    if not rest.strip("/"):
        return None
    if not rest.startswith("//"):
        raise ConfigError("The URL of the SQLite file lacks its slashes.", hint=_HINT)
    if "?" in rest or "#" in rest:
        raise ConfigError(
            "The URL of an SQLite file takes no options.", hint="write %3F for ? and %23 for # in a name"
        )
    name = unquote(rest[2:])
    if name.strip("/") == ":memory:":
        raise ConfigError("SQLite in memory is not a store.", hint="use memory:")
    if "\0" in name:
        raise ConfigError("The path of the SQLite file holds a zero character.", hint=_HINT)
    return Path(name[1:] if _DRIVE.match(name) else name)


def default_path(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    """Where the file is when nobody says: in the folder that the platform has for data of programs."""
    if platform == "win32":
        folder = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        # A relative XDG_DATA_HOME is to be ignored: it would be another folder wherever the program starts.
        named = Path(environ.get("XDG_DATA_HOME", ""))
        folder = named if named.is_absolute() else home / ".local" / "share"
    return folder / "refold" / FILE


async def _open_sqlite(rest: str, patience_s: float | None) -> Store:
    path = sqlite_path(rest) or _default_file()
    try:
        from refold.store.sqlite import SqliteStore
    except ImportError:
        raise MissingExtra("sqlite", "Keeping conversations in an SQLite file") from None
    return await (SqliteStore.open(path, patience_s=patience_s) if patience_s else SqliteStore.open(path))


async def _open_postgres(url: str) -> Store:
    try:
        from refold.store.postgres import PostgresStore
    except ImportError:
        raise MissingExtra("postgres", "Keeping conversations in PostgreSQL") from None
    return await PostgresStore.open(url)


def _default_file() -> Path:
    path = default_path(os.environ, sys.platform, Path.home())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The folder for conversations cannot be made ({error.strerror})",
            hint="make it writable, or choose another file with a URL: sqlite:///path/to/file",
            location=str(path.parent),
        ) from None
    return path
