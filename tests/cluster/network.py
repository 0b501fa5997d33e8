"""Network namespaces for the parts of a cluster, so that one of them can be cut off: its packets are dropped, and no end is told.

Each part has a namespace with one link to a bridge. PostgreSQL and the provider are in the namespace of the test. The provider is behind a
forwarder at the bridge's address, and PostgreSQL behind one in a namespace of its own (`python -m tests.cluster.network ADDRESS
SOCKET`), so that it can be cut off as well. Root is needed, and the package iproute2.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Self, TypeAlias


def may_make_namespaces() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if shutil.which("ip") is None:
        return "there is no program `ip` (package iproute2)"
    name = f"refold-{os.getpid()}-try"
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


_made = count()


class Network:
    """A bridge, and a namespace for each part. All names begin with this process, so that a later run knows what a dead one
    left (`tests/cluster/leftovers.py`).
    """

    def __init__(self) -> None:
        self._number = next(_made)
        self._links = f"{os.getpid():x}-{self._number}"
        self._bridge, self._net = (
            f"rfb{self._links}",
            f"10.{77 + os.getpid() % 100}.{secrets.randbelow(250) + 1}",
        )
        self.address = f"{self._net}.1"
        self._parts: dict[str, str] = {}
        self._forwarders: list[asyncio.Server] = []
        self._process: asyncio.subprocess.Process | None = None

    def __enter__(self) -> Self:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._forwarders:
            one.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
        for name, outer in self._parts.items():
            # The kernel removes the links of a namespace some time after it: this one goes at once, with its other end.
            with suppress(subprocess.CalledProcessError):
                ip("link", "del", outer)
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", self._space(name))
        ip("link", "del", self._bridge)

    def add(self, name: str) -> str:
        """Make the namespace of a part; its address."""
        number, space = len(self._parts) + 2, self._space(name)
        outer, inner = f"rfo{self._links}p{number}", f"rfi{self._links}p{number}"
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
        return f"refold-{os.getpid()}-{self._number}-{name}"

    async def forward(self, port: int) -> int:
        """Forward connections at the bridge's address to a port of this namespace; the port there."""
        server = await _forward(self.address, lambda: asyncio.open_connection("127.0.0.1", port))
        self._forwarders.append(server)
        return server.sockets[0].getsockname()[1]

    async def forward_apart(self, name: str, path: str) -> tuple[str, int]:
        """Forward connections to a socket in a file, in a namespace that can be cut off; the address and the port there."""
        address = self.add(name)
        program = [*self.before(name), sys.executable, "-m", "tests.cluster.network", address, path]
        self._process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout
        return address, int(await self._process.stdout.readline())


Opened: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _forward(address: str, open_other: Callable[[], Awaitable[Opened]]) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await open_other()
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    return await asyncio.start_server(serve, address, 0)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.close()


async def main() -> None:
    address, path = sys.argv[1:]
    server = await _forward(address, lambda: asyncio.open_unix_connection(path))
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
