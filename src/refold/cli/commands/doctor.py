"""`refold doctor`: checks that the rows of stored conversations fit together, and changes nothing.

Every finding is printed with the rule that it breaks and with a remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from refold.cli import output
from refold.cli.options import JsonOption, StoreOptions, expanded
from refold.cli.output import ALARM, plain, plural, short

if TYPE_CHECKING:
    from rich.text import Text

    from refold.engine.doctor import Finding
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold doctor --json")(expanded(doctor))


def doctor(
    conv: Annotated[
        str, typer.Argument(metavar="CONV", help="Default: every conversation.", show_default=False)
    ] = "",
    *,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Check that every stored message is in its place, once, and can be reached.

    Every finding comes with the rule that it breaks and a remedy. Nothing is changed. The exit code is 1 if there is any.
    """
    from refold.cli import store_access

    async def act(engine: Engine) -> int:
        if conv:
            await store_access.head_of(engine, conv)
        names = (
            [conv] if conv else [one.id for one in await engine.conversations(limit=store_access.EVERYTHING)]
        )
        found: list[Finding] = []
        for number, one in enumerate(names):
            if len(names) > 1:
                output.progress(f"looked at {number:,} of {len(names):,} conversations")
            found += await engine.examine(one)
        output.progress("")
        held = await engine.held_back()
        if as_json:
            output.write_json({**_document(names, found), "held_back": held})
        else:
            output.show(*_page(names, found))
            if held:
                output.note(store_access.held_back_note(held))
        return 1 if found else 0

    return store_access.look(place, act)


def _page(names: Sequence[str], found: Sequence[Finding]) -> Iterator[Text]:
    from rich.text import Text

    from refold.engine.doctor import RULES

    for one in found:
        place = f"{plain(one.conversation)}, branch {short(one.branch)}"
        yield Text.assemble((place, "bold"), ": ", (one.rule, ALARM), f": {plain(one.what)}")
        yield Text(f"  rule: {RULES[one.rule]}", style="dim")
        if one.hint:
            yield Text(f"  hint: {one.hint}", style="dim")
    count = plural(len(found), "finding") if found else "no findings"
    yield Text(f"{count} in {plural(len(names), 'conversation')}", style=ALARM if found else "green")


def _document(names: Sequence[str], found: Sequence[Finding]) -> dict[str, object]:
    from refold.engine.doctor import RULES

    return {
        "conversations": len(names),
        "rules": RULES,
        "findings": [{**structs.asdict(one), "means": RULES[one.rule]} for one in found],
    }
