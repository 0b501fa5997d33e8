"""Network namespaces for the parts of a cluster, so that one of them can be cut off: its packets are dropped, and no end is told.

Each part has a namespace with one link to a bridge. PostgreSQL and the provider are in the namespace of the test, behind forwarders at
the bridge's address. Root is needed, and the package iproute2.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from typing import Self


def may_make_namespaces() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if shutil.which("ip") is None:
        return "there is no program `ip` (package iproute2)"
    name = f"refold-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return "network namespaces are not permitted here"
    link = [f"rf{os.getpid() % 10_000}a", f"rf{os.getpid() % 10_000}b"]
    veth = ["ip", "link", "add", link[0], "type", "veth", "peer", "name", link[1]]
    has_links = subprocess.run(veth, capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "link", "del", link[0]], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if has_links else "links between network namespaces are not permitted here"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A bridge, and a namespace for each part."""

    def __init__(self) -> None:
        self._id = secrets.token_hex(2)
        self._bridge, self._net = (
            f"rfb{self._id}",
            f"10.{77 + os.getpid() % 100}.{secrets.randbelow(250) + 1}",
        )
        self.address = f"{self._net}.1"
        self._parts: dict[str, str] = {}
        self._forwarders: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._forwarders:
            one.close()
        for name in self._parts:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", self._space(name))
        ip("link", "del", self._bridge)

    def add(self, name: str) -> str:
        """Make the namespace of a part; its address."""
        number, space = len(self._parts) + 2, self._space(name)
        outer, inner = f"rfo{self._id}{number}", f"rfi{self._id}{number}"
        ip("netns", "add", space)
        ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        ip("link", "set", inner, "netns", space)
        ip("link", "set", outer, "master", self._bridge)
        ip("link", "set", outer, "up")
        for words in (
            ("addr", "add", f"{self._net}.{number}/24", "dev", inner),
            ("link", "set", inner, "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("netns", "exec", space, "ip", *words)
        self._parts[name] = outer
        return f"{self._net}.{number}"

    def before(self, name: str) -> list[str]:
        """What to put before a command so that it runs in the namespace of a part."""
        return ["ip", "netns", "exec", self._space(name)]

    def cut(self, name: str) -> None:
        ip("link", "set", self._parts[name], "down")

    def mend(self, name: str) -> None:
        ip("link", "set", self._parts[name], "up")

    def _space(self, name: str) -> str:
        return f"refold-{self._id}-{name}"

    async def forward(self, *, path: str = "", port: int = 0) -> int:
        """Forward connections at the bridge's address to a socket of this namespace; the port there."""

        async def open_other() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if path:
                return await asyncio.open_unix_connection(path)
            return await asyncio.open_connection("127.0.0.1", port)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await open_other()
            except OSError:
                writer.transport.abort()
                return
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        server = await asyncio.start_server(serve, self.address, 0)
        self._forwarders.append(server)
        return server.sockets[0].getsockname()[1]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.close()
