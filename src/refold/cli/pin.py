"""`refold pin` and `refold unpin`: messages that no compaction takes out of the window."""

from __future__ import annotations

from refold.cli import output, stored
from refold.cli.stored import Place
from refold.engine.engine import Engine


def pin(place: Place, name: str, handle: str, *, branch: str, on: bool, as_json: bool) -> int:
    """Pin a message, or unpin it; without a handle, list what is pinned."""

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        talk = await engine.conversation(name, branch=head.branch)
        if handle:
            await (talk.pin(handle) if on else talk.unpin(handle))
        pins = await talk.pins()
        if as_json:
            output.write_json({"conversation": name, "branch": head.branch, "pins": pins})
        else:
            output.write("".join(f"{one}\n" for one in pins))
            if not pins:
                output.note("nothing is pinned")
        return 0

    return stored.change(place, act) if handle else stored.look(place, act)
