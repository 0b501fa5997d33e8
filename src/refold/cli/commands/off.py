"""`refold off` and `refold on`: switch the compaction of one conversation off, and on again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import Conv, JsonOption, StoreOptions, expanded
from refold.cli.output import plain, plural

if TYPE_CHECKING:
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold off support-42")(expanded(off))
    app.command(epilog="Example: refold on support-42")(expanded(on))


def off(
    conv: Annotated[
        str,
        typer.Argument(
            metavar="CONV", help="Its name. Default: list those that are off.", show_default=False
        ),
    ] = "",
    *,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Switch a conversation off: its requests are passed on unchanged.

    The gateway neither compacts nor stores them until `refold on`; a gateway that is running notices within two seconds. The
    messages so far stay stored. Without a name, list the conversations that are off.
    """
    return _switch(conv, place, on=False, as_json=as_json)


def on(conv: Conv, *, place: StoreOptions, as_json: JsonOption = False) -> int:
    """Switch a conversation on again, after `refold off`.

    Its next request brings the messages that were not stored in the meantime.
    """
    return _switch(conv, place, on=True, as_json=as_json)


def _switch(conv: str, place: StoreOptions, *, on: bool, as_json: bool) -> int:
    """Switch a conversation, and print its name if it is off; without a name, list all that are off. JSON has the whole list."""
    from refold.cli import store_access

    async def act(engine: Engine) -> int:
        if conv:
            await store_access.head_of(engine, conv)
            await engine.switch(conv, on=on)
        names = sorted(await engine.switched_off())
        if as_json:
            output.write_json({"owner": place.owner, "off": names})
        else:
            shown = [one for one in names if not conv or one == conv]
            output.write("".join(f"{plain(one)}\n" for one in shown))
            _note_switch(conv, names, on=on)
        return 0

    return store_access.change(place, act) if conv else store_access.look(place, act)


def _note_switch(conv: str, names: list[str], *, on: bool) -> None:
    """Say what happens to the next requests, and how to change it back."""
    if conv and on:
        output.note(
            f"{plain(conv)!r} is on: its next request brings what was not stored meanwhile,\n"
            "and it is compacted again when it has to be\n"
            f"hint: `refold off {plain(conv)}` switches it off again"
        )
    elif conv:
        output.note(
            f"{plain(conv)!r} is off: its next requests are passed on unchanged, neither compacted\n"
            "nor stored; a gateway that is running notices within two seconds\n"
            f"hint: `refold on {plain(conv)}` switches it on again"
        )
    elif names:
        output.note(f"{plural(len(names), 'conversation')} off\nhint: `refold on CONV` switches one on again")
    else:
        output.note("no conversation is off\nhint: `refold off CONV` passes its requests on unchanged")
