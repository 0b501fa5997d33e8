"""Every connection that this program makes, and every name that it looks up, told by Python itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
_lists: list[set[tuple[str, object]]] = []


def _note(event: str, args: tuple[object, ...]) -> None:
    if event in _EVENTS:
        place = args[1] if event != "socket.getaddrinfo" else args[0]
        for noted in _lists:
            noted.add((event, place))


@cache
def _listen() -> None:
    """Begin to be told. It cannot be ended, and Python tells of much more, such as every call of `id`: so it is not begun before
    somebody wants to know.
    """
    sys.addaudithook(_note)


@contextmanager
def dials() -> Iterator[set[tuple[str, object]]]:
    """What is dialled within."""
    _listen()
    noted: set[tuple[str, object]] = set()
    _lists.append(noted)
    try:
        yield noted
    finally:
        _lists.remove(noted)
