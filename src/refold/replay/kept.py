"""Summaries that were paid for, kept in files.

One idea: an answer lies under the hash of its question, so the next replay finds it whatever has changed in between, and a
replay that was stopped goes on where it was. Files are plain JSON and nobody else's to read, since a summary tells
what was said. A file that cannot be read is no summary; it is written anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from refold.model.errors import ConfigError
from refold.model.summary import Summary


def summary_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where this platform keeps what can be made again."""
    if platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "refold" / "summaries"


class KeptInFiles:
    """A `SummaryCache` in a folder: one file for each summary, in subfolders by the last letters of its key."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: nothing can be written there.
        """
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"summaries cannot be kept in {folder.name}: {error.strerror}",
                hint="name another folder with --summary-cache",
            ) from error

    async def get(self, key: str) -> Summary | None:
        try:
            return msgspec.json.decode(self._file(key).read_bytes(), type=Summary)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def put(self, key: str, summary: Summary) -> None:
        try:
            _write(self._file(key), msgspec.json.encode(summary))
        except OSError as error:
            raise ConfigError(
                f"a summary cannot be kept: {error.strerror}", hint="name another folder with --summary-cache"
            ) from error

    def _file(self, key: str) -> Path:
        return self._folder / key[-2:] / f"{key}.json"


def _write(file: Path, data: bytes) -> None:
    """Written beside and renamed: a reader finds all of it or nothing. A temporary file is its owner's alone."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with NamedTemporaryFile(dir=file.parent, delete=False) as beside:
        beside.write(data)
    Path(beside.name).replace(file)
