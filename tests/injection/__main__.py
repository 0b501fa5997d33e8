"""`python -m tests.injection`: how many payloads get what they want, through each door."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.injection.doors import Seen, by_command, by_digest, by_gateway, by_model, faults
from tests.injection.payloads import PAYLOADS, Payload

Door = Callable[[Payload], Awaitable[Seen]]


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with by_model() as model, by_gateway() as gateway:
            doors: dict[str, Door] = {
                "digest": by_digest,
                "model": model,
                "command": partial(by_command, folder=Path(folder)),
                "gateway": gateway,
            }
            failed: dict[str, dict[str, list[str]]] = {}
            for name, door in doors.items():
                found = {payload.id: faults(payload, await door(payload)) for payload in PAYLOADS}
                failed[name] = {id_: faults for id_, faults in found.items() if faults}
    for name, found in failed.items():
        print(f"{name}: {len(found)} of {len(PAYLOADS)} fail")
        for id_, said in found.items() if "-v" in sys.argv else ():
            print(f"    {id_}: {'; '.join(said)[:200]}")
    ids = {id_ for found in failed.values() for id_ in found}
    print(f"in all: {len(ids)} of {len(PAYLOADS)} payloads fail at one door or more")


if __name__ == "__main__":
    asyncio.run(main())
