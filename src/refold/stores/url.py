"""Store URLs: from a URL or a path to an open store.

`memory:` is a store in memory and `postgresql://...` a server. A file is named as SQLAlchemy names it: `sqlite:///chats.db` is
relative to the current folder, `sqlite:////home/me/chats.db` is absolute, and a plain path works too. Earlier versions read
`sqlite:///path` as absolute and `sqlite://path` as relative; a URL that may have had another meaning there gives a message.
Messages show paths of files, but no URL of a server, which may hold a password.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import unquote

from msgspec import Struct

from refold.model.errors import ConfigError, MissingExtra, RefoldError, StoreError
from refold.model.mask import is_store_file, mask_url, printable
from refold.plugins.registry import active
from refold.ports.store import Store
from refold.stores.sql.queries import Tables

FILE = "refold.db"
StoreKind: TypeAlias = Literal["sqlite", "memory", "postgresql", "plugin"]
Warn: TypeAlias = Callable[[str], None]
WARN: ContextVar[Warn | None] = ContextVar("WARN", default=None)
"""Takes the warnings about URLs of a caller whose lines are not on the stack: `refold.sync` works in a thread of its own."""

_HINT = "write sqlite:///file for a relative path, sqlite:////path/to/file for an absolute one, postgresql://..., or memory:"
_SCHEMES = ("sqlite", "memory", "postgres", "postgresql")
_PLAIN = re.compile(r"[/~]|\.\.?/|[^:=]+\Z")
"""A plain path. One with a colon or an equals sign has to begin like a path: it may be a mistyped address of a server."""


class _NamedFile(Struct, frozen=True):
    """An SQLite file as a URL names it."""

    form: Literal["default", "plain", "url", "old"]
    """`url` has three slashes or four, `old` the two that earlier versions used for relative paths."""
    written: str = ""
    """The part of the URL after the slashes."""
    name: str = ""
    """The path, with its escapes decoded."""

    @property
    def is_explicit(self) -> bool:
        """True if earlier versions opened the same file for this name, or refused it."""
        first = self.name.partition("/")[0]
        return self.form != "url" or first in ("", ".", "..") or first.startswith("~")

    @property
    def earlier(self) -> str:
        """The absolute path that a URL with three slashes had in earlier versions."""
        return f"/{self.name}"

    @property
    def path(self) -> Path:
        name = os.path.expanduser(self.name)  # noqa: PTH111  # a Path has lost the "./" of "./~name", and fails for unknown users
        return Path(f"/{name.lstrip('/')}" if name.startswith("/") else name).absolute()


async def open_store(
    url: str | os.PathLike[str] = "",
    *,
    patience_s: float | None = None,
    warn: Warn | None = None,
    tables: Tables = "upgraded",
) -> Store:
    """Open the store that a URL or a path names; without one, the file in the platform's data folder.

    In a file, a write waits `patience_s` for another program that writes; with a server, a call waits so long for a
    connection. `warn` is called if the URL has the spelling of earlier
    versions; without it the caller gets a FutureWarning. A store of an earlier
    version is upgraded, or refused with `tables="checked"`, or opened as it is with `tables="any"`.

    Raises:
        ConfigError: the URL names no store, or may have named another file in earlier versions.
        MissingExtra: the package of this kind of store is not installed.
        StoreError: the store cannot be opened; it was not changed.
    """
    text = url if isinstance(url, str) else _absolute_path(url)
    match kind_of(text):
        case "plugin":
            return await _open_with_plugin(text)
        case "memory":
            from refold.stores.memory import MemoryStore

            return MemoryStore()
        case "postgresql":
            return await _open_postgres(text, patience_s, tables=tables)
        case "sqlite":
            return await _open_sqlite(text, patience_s, warn or WARN.get() or warn_caller, tables=tables)


async def _open_with_plugin(url: str) -> Store:
    opener = active().store_opener(url.partition(":")[0])
    assert opener is not None
    try:
        store = await opener(url)
    except RefoldError:
        raise
    except Exception as error:
        raise StoreError(f"the plugin cannot open the store ({type(error).__name__})") from error
    if not all(callable(getattr(store, name, None)) for name in ("commit", "close", "messages")):
        raise StoreError("the plugin returned no store", hint="it has the methods of `refold.Store`")
    return store


def kind_of(url: str) -> StoreKind:
    """
    Raises:
        ConfigError: the URL names no known kind of store.
    """
    scheme, colon, rest = url.partition(":")
    if not url or scheme == "sqlite":
        return "sqlite"
    if scheme == "memory" and colon and not rest.strip("/"):
        return "memory"
    if scheme in {"postgresql", "postgres"} and rest.startswith("//"):
        return "postgresql"
    if url == ":memory:":
        raise _in_memory()
    if rest.startswith("//") and active().store_opener(scheme) is not None:
        return "plugin"
    if url in _SCHEMES or not _PLAIN.match(url):
        raise ConfigError(
            "the URL of the store names an unknown kind of store",
            hint=f"{_HINT}; a plain path with a colon begins with ./",
        )
    return "sqlite"


def sqlite_file(url: str, warn: Warn = lambda _: None) -> Path | None:
    """The absolute path of the SQLite file that a setting or an option names; None for another kind of store.

    A word that is not the path of a file may be a key in the wrong place. Messages name the path, so such a word is accepted only if
    there is a file of this name, and `sqlite://USER:PASSWORD@...` is not.

    Raises:
        ConfigError: the URL names no store, or may have named another file in earlier versions.
    """
    if kind_of(url) != "sqlite":
        return None
    file = _file(url)
    _check_without_password(url, file)
    if file.form == "plain" and not is_store_file(url) and not _is_there(file):
        raise ConfigError(
            "the store is named by a word that is no path, and there is no file of this name",
            hint="begin the path of a new file with ./, or let its name end in .db",
        )
    return _path_of(url, warn)


def _check_without_password(url: str, file: _NamedFile) -> None:
    if file.form == "old" and ":" in url.partition(":")[2].rpartition("@")[0]:
        raise ConfigError("the URL of an SQLite file has no user and no password", hint=_HINT)


def _path_of(url: str, warn: Warn) -> Path:
    file = _file(url)
    if file.form == "default":
        return default_path(os.environ, sys.platform, Path.home())
    if file.form == "old":
        warn(
            f"the store URL {_shown(url)} has the old form of a relative path: write {_shown(_relative(file))}"
        )
    if _is_ambiguous(file):
        raise ConfigError(
            f"the store URL {_shown(url)} is a relative path, and there is no such file; earlier versions read it as an absolute path",
            hint=f"write {_shown(_absolute(file))} for the absolute path, or {_shown(_explicit(file))} for the relative one",
        )
    if _has_earlier_file(file):
        warn(
            f"the store URL {_shown(url)} is a relative path, and {printable(file.earlier)}, which earlier versions opened, is there"
            f" as well: write {_shown(_explicit(file))} for the relative path, or {_shown(_absolute(file))} for the absolute one"
        )
    return file.path


def current_spelling(url: str) -> str:
    """The current spelling of a URL that an earlier version may have saved.

    A URL with three slashes is taken for an absolute path only if the relative file does not exist and the absolute one is a
    store of Refold: then the earlier version has used it.

    Raises:
        ConfigError: the URL names no store.
    """
    if kind_of(url) != "sqlite":
        return url
    file = _file(url)
    _check_without_password(url, file)
    if file.form == "old":
        return _relative(file)
    if _is_ambiguous(file) and _is_store(file.earlier):
        return _absolute(file)
    return url


def _is_ambiguous(file: _NamedFile) -> bool:
    """True if the relative file does not exist, and the same path from the root exists or could be created in an existing folder."""
    if file.is_explicit or os.path.lexists(file.path) or _is_same(file):
        return False
    first, slash, _ = file.name.partition("/")
    return os.path.lexists(file.earlier) or (bool(slash) and os.path.isdir(f"/{first}"))  # noqa: PTH112


def _is_there(file: _NamedFile) -> bool:
    """True if the file exists, or is named in a folder that does."""
    return os.path.lexists(file.path) or ("/" in file.name and file.path.parent.is_dir())


def _has_earlier_file(file: _NamedFile) -> bool:
    """True if earlier versions opened an existing file for this URL, and it is not the file of the current reading."""
    return not file.is_explicit and os.path.isfile(file.earlier) and not _is_same(file)  # noqa: PTH113


def default_path(environ: Mapping[str, str], platform: str, home: Path) -> Path:
    """The default path of the file: in the platform's folder for application data."""
    if platform == "win32":
        folder = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        # A relative XDG_DATA_HOME is ignored: its meaning would change with the current folder.
        named = Path(environ.get("XDG_DATA_HOME", ""))
        folder = named if named.is_absolute() else home / ".local" / "share"
    return folder / "refold" / FILE


def _file(url: str) -> _NamedFile:
    scheme, _, rest = url.partition(":")
    if not url or (scheme == "sqlite" and rest in ("", "/", "//", "///")):
        return _NamedFile("default")
    if scheme != "sqlite":
        return _checked(_NamedFile("plain", url, url))
    if not rest.startswith("//"):
        raise ConfigError("the URL of the SQLite file lacks its slashes", hint=_HINT)
    if "?" in rest or "#" in rest:
        raise ConfigError(
            "the URL of an SQLite file takes no options", hint="write %3F for ? and %23 for # in a name"
        )
    if rest.startswith("///"):
        return _checked(_NamedFile("url", rest[3:], unquote(rest[3:])))
    return _checked(_NamedFile("old", rest[2:], unquote(rest[2:])))


def _absolute_path(path: os.PathLike[str]) -> str:
    return str(Path(path).expanduser().absolute())


def _checked(file: _NamedFile) -> _NamedFile:
    if file.name.strip("/") == ":memory:":
        raise _in_memory()
    if "\0" in file.name or not _is_unicode(file.name):
        raise ConfigError(
            "the path of the SQLite file holds a character that no path can have", hint="choose another name"
        )
    return file


def _is_unicode(name: str) -> bool:
    """SQLite needs paths in UTF-8; in Python, a path with other bytes contains surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _in_memory() -> ConfigError:
    return ConfigError("SQLite in memory is not a store", hint="use memory:")


def _relative(file: _NamedFile) -> str:
    """A relative path in the current form, with "./" if it could be taken for an absolute one."""
    url = f"sqlite:///{file.written}"
    now = _file(url)
    return _explicit(file) if _is_ambiguous(now) or _has_earlier_file(now) else url


def _explicit(file: _NamedFile) -> str:
    return f"sqlite:///./{file.written}"


def _absolute(file: _NamedFile) -> str:
    return f"sqlite:////{file.written}"


def _is_same(file: _NamedFile) -> bool:
    """True if both readings name the same file, as in the root folder."""
    return os.path.realpath(file.path) == os.path.realpath(file.earlier)


def _is_store(path: str) -> bool:
    """True if the header of a file marks it as a database of Refold."""
    try:
        from refold.stores.sqlite.file import is_ours
    except ImportError:
        return False
    return is_ours(Path(path))


def _shown(url: str) -> str:
    return printable(mask_url(url))


def warn_caller(text: str) -> None:
    """Warn the code that called Refold. A FutureWarning is shown without any flag: the URL is a setting of the program's user."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "refold":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, FutureWarning, stacklevel=level + 1)


async def _open_sqlite(url: str, patience_s: float | None, warn: Warn, *, tables: Tables) -> Store:
    path = _path_of(url, warn)
    if _file(url).form == "default":
        _make_folder(path.parent)
    try:
        from refold.stores.sqlite.store import SqliteStore
    except ImportError:
        raise MissingExtra("sqlite", "keeping conversations in an SQLite file") from None
    patience = {"patience_s": patience_s} if patience_s else {}
    return await SqliteStore.open(path, **patience, tables=tables)


async def _open_postgres(url: str, patience_s: float | None, *, tables: Tables) -> Store:
    try:
        from refold.stores.postgres.store import Patience, PostgresStore
    except ImportError:
        raise MissingExtra("postgres", "keeping conversations in PostgreSQL") from None
    patience = Patience(wait_s=patience_s) if patience_s else None
    return await PostgresStore.open(url, patience, tables=tables)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder for conversations cannot be made ({error.strerror})",
            hint="make it writable, or choose another file with a URL: sqlite:////path/to/file",
            location=str(folder),
        ) from None
