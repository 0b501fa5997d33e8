"""Lists the files of Refold on the path of one request that needs no compaction.

.venv/bin/python scripts/request_walk.py            a streamed chat request of a known conversation
.venv/bin/python scripts/request_walk.py --list     the files, by package
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp

import refold
from refold.config import flag_layer, resolve
from refold.gateway import app, server

ROOT = f"{Path(refold.__file__).parent}/"
COUNTED = (
    ("core/plan.py", "plan"),
    ("core/budget.py", "size_of"),
    ("core/budget.py", "_wall"),
    ("engine/state.py", "State._now"),
    ("stores/sqlite/writer.py", "FileWriter.write_here"),
    ("stores/sqlite/writer.py", "FileWriter.write"),
)
"""Functions whose calls are counted: those that planning repeats, and the transactions in the event loop and in the thread."""


class Walk:
    """Counts the files whose functions are called while it is active."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: set[str] = set()
        self.functions: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if self.is_on and event == "call" and name.startswith(ROOT):
            self.files.add(name[len(ROOT) :])
            self.functions[name[len(ROOT) :], frame.f_code.co_qualname] += 1


@asynccontextmanager
async def provider() -> AsyncIterator[int]:
    """The benchmarks' provider, in a process of its own, so that its calls do not count."""
    command = (sys.executable, "-m", "benchmarks.gateway.stub", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(re.findall(rb"[0-9]+", await process.stdout.readline())[-1])
    finally:
        process.kill()
        await process.wait()


async def main(walk: Walk, looking: Walk, folder: str) -> None:
    """Ask four questions, and count at the third one, and at the fourth one, before which the gateway has to look for changed
    settings.
    """
    look_s, app.LOOK_S = app.LOOK_S, inf
    async with provider() as port:
        flags = {
            "upstreams": [f"http://127.0.0.1:{port}/v1"],
            "store.url": f"sqlite:///{folder}/chats.db",
            "server.port": 0,
        }
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        served = asyncio.create_task(
            server.serve(resolve([flag_layer(flags)]), lambda url, _: address.set_result(url))
        )
        url = f"{await address}/v1/chat/completions".replace("//v1", "/v1")
        said: list[dict[str, str]] = []
        async with aiohttp.ClientSession() as session:
            for question in ("Hello?", "Who is there?", "And now?", "And then?"):
                said.append({"role": "user", "content": question})
                walk.is_on, looking.is_on = question == "And now?", question == "And then?"
                if looking.is_on:
                    app.LOOK_S = look_s
                    await asyncio.sleep(look_s)
                body = {"model": "gpt-4o", "messages": said, "stream": True}
                async with session.post(url, json=body) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
                await asyncio.sleep(0.3)
                walk.is_on = looking.is_on = False
                said.append({"role": "assistant", "content": "Hello."})
        served.cancel()
        await asyncio.gather(served, return_exceptions=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the files, by package")
    options = parser.parse_args()
    walk, looking = Walk(), Walk()

    def note(*call: Any) -> None:
        walk(*call)
        looking(*call)

    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(note)
        sys.setprofile(note)
        asyncio.run(main(walk, looking, folder))
        sys.setprofile(None)
        threading.setprofile(None)
    print(f"gateway, a streamed chat request: {len(walk.files)} files, {len(walk.functions)} functions")
    print(
        f"the first one after {app.LOOK_S:g} s, which looks for changed settings: {len(looking.files)} files"
    )
    print("calls: " + ", ".join(f"{name} {walk.functions[file, name]}" for file, name in COUNTED))
    if options.list:
        packages = defaultdict(list)
        for name in sorted(walk.files):
            packages[str(Path(name).parent)].append(Path(name).name)
        for package, names in packages.items():
            print(f"{package:16} {len(names):3}  {' '.join(names)}")
