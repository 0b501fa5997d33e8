"""A disk that forgets what was not synced when the power fails.

One idea: SQLite writes through a file layer of ours that notes every write since the last sync of its file. A power cut is then a
picture of the folder as it might be found afterwards: what was synced is there, and of each later write any part may be, in
sectors, or none. The program goes on meanwhile, so one run gives as many cuts as one likes.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

SECTOR = 512
NAME, BASE = "power", apsw.vfs_names()[0]


class Written:
    """One file: what is on the disk for certain, and what was written since."""

    def __init__(self, path: str) -> None:
        self.durable = bytearray(Path(path).read_bytes() if Path(path).exists() else b"")
        self.pending: list[tuple[int, bytes | None]] = []
        """Offset and bytes of a write; None where the file was cut off there."""

    def sync(self) -> None:
        for offset, data in self.pending:
            _apply(self.durable, offset, data)
        self.pending.clear()

    def after_a_cut(self, chance: random.Random) -> bytes:
        """What may be found: each write since the last sync is there, is not, or is there in part."""
        found = bytearray(self.durable)
        for offset, data in self.pending:
            fate = chance.random()
            if fate < 0.4:
                _apply(found, offset, data)
            elif fate < 0.7 and data is not None:
                for start in range(0, len(data), SECTOR):
                    if chance.random() < 0.5:
                        _apply(found, offset + start, data[start : start + SECTOR])
        return bytes(found)


class Power:
    """Everything written in one folder. `on_write` is called at every step of it."""

    def __init__(self, folder: Path, on_write: Callable[[], None]) -> None:
        self.folder, self.on_write, self.lock = f"{folder}{os.sep}", on_write, threading.RLock()
        self.files: dict[str, Written] = {}

    def file(self, name: str | None) -> Written | None:
        """What is known about a file; shared memory of readers and files without a name are none that a disk keeps."""
        if name is None or not name.startswith(self.folder) or name.endswith("-shm"):
            return None
        return self.files.setdefault(name, Written(name))

    def cut(self, chance: random.Random) -> dict[str, bytes]:
        """The folder as it may be found if the power failed now."""
        with self.lock:
            return {Path(name).name: file.after_a_cut(chance) for name, file in self.files.items()}


class _Layer(apsw.VFS):
    def __init__(self, power: Power) -> None:
        self.power = power
        super().__init__(NAME, BASE, makedefault=True)

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's own names
        return _File(self.power, name, flags)

    def xDelete(self, filename, syncdir):  # noqa: N802
        with self.power.lock:
            super().xDelete(filename, syncdir)
            self.power.files.pop(filename, None)


class _File(apsw.VFSFile):
    def __init__(self, power: Power, name, flags) -> None:
        self.power, self.name = power, name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(BASE, name, flags)

    def xWrite(self, data, offset):  # noqa: N802
        with self.power.lock:
            super().xWrite(data, offset)
            self._note(offset, bytes(data))
        self.power.on_write()

    def xTruncate(self, newsize):  # noqa: N802
        with self.power.lock:
            super().xTruncate(newsize)
            self._note(newsize, None)
        self.power.on_write()

    def xSync(self, flags):  # noqa: N802
        # The disk itself is not waited for: whether it is asked at the right time is what counts here.
        self.power.on_write()
        with self.power.lock:
            file = self.power.file(self.name)
            if file:
                file.sync()
        self.power.on_write()

    def _note(self, offset: int, data: bytes | None) -> None:
        file = self.power.file(self.name)
        if file:
            file.pending.append((offset, data))


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@contextmanager
def powered(folder: Path, on_write: Callable[[], None]) -> Iterator[Power]:
    """SQLite writes to this folder through the layer that remembers."""
    power = Power(folder, on_write)
    layer = _Layer(power)
    try:
        yield power
    finally:
        layer.unregister()
