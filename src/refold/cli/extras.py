"""Checks that an extra is installed before a command starts work that needs it."""

from __future__ import annotations

from importlib.util import find_spec

from refold.model.errors import MissingExtra

SERVER_PACKAGES = ("aiohttp", "starlette", "uvicorn")
"""The packages of the extra `server`."""


def check_server_extra(what: str) -> None:
    """
    Raises:
        MissingExtra: a package that the gateway needs is not installed.
    """
    if not all(map(find_spec, SERVER_PACKAGES)):
        raise MissingExtra("server", what)
