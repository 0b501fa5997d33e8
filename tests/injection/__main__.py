"""`python -m tests.injection`: how many payloads get what they want, through each door."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.injection.doors import Seen, by_command, by_digest, by_gateway, by_model, faults
from tests.injection.fourth_payloads import FOURTH
from tests.injection.payloads import PAYLOADS, Payload
from tests.injection.second_payloads import SECOND
from tests.injection.third_payloads import THIRD

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
            await tell("first set", PAYLOADS, doors)
            await tell("second set", SECOND, doors)
            await tell("third set", THIRD, doors)
            await tell("fourth set", FOURTH, doors)


async def tell(title: str, payloads: Sequence[Payload], doors: dict[str, Door]) -> None:
    ids: set[str] = set()
    print(title)
    for name, door in doors.items():
        found = {payload.id: faults(payload, await door(payload)) for payload in payloads}
        failed = {id_: said for id_, said in found.items() if said}
        print(f"  {name}: {len(failed)} of {len(payloads)} fail")
        for id_, said in failed.items() if "-v" in sys.argv else ():
            print(f"    {id_}: {'; '.join(said)[:200]}")
        ids |= failed.keys()
    print(f"  {len(ids)} of {len(payloads)} fail at one door or more")


if __name__ == "__main__":
    asyncio.run(main())
