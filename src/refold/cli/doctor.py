"""`refold doctor`: is everything that was said where it belongs?

One idea: a finding is of use only with the rule that it breaks and with what to do, so both are printed with it. Looking changes
nothing, not even what a crash has left behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from msgspec import structs
from rich.text import Text

from refold.cli import output, stored
from refold.cli.columns import short
from refold.cli.grid import ALARM
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.engine.doctor import RULES, Finding
from refold.engine.engine import Engine


def run(place: Place, name: str, *, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        if name:
            await stored.head_of(engine, name)
        names = [name] if name else [one.id for one in await engine.conversations(limit=EVERYTHING)]
        found: list[Finding] = []
        for number, one in enumerate(names):
            _progress(number, len(names))
            found += await engine.examine(one)
        _progress(len(names), len(names))
        held = await engine.held_back()
        if as_json:
            output.write_json({**_document(names, found), "held_back": held})
        else:
            output.show(*_page(names, found))
            if held:
                output.note(stored.told_held(held))
        return 1 if found else 0

    return stored.look(place, act)


def _page(names: Sequence[str], found: Sequence[Finding]) -> Iterable[Text]:
    for one in found:
        place = f"{plain(one.conversation)}, branch {short(one.branch)}"
        yield Text.assemble((place, "bold"), ": ", (one.rule, ALARM), f": {plain(one.what)}")
        yield Text(f"  rule: {RULES[one.rule]}", style="dim")
        if one.hint:
            yield Text(f"  hint: {one.hint}", style="dim")
    count = plural(len(found), "finding") if found else "no findings"
    yield Text(f"{count} in {plural(len(names), 'conversation')}", style=ALARM if found else "green")


def _document(names: Sequence[str], found: Sequence[Finding]) -> dict[str, object]:
    return {
        "conversations": len(names),
        "rules": RULES,
        "findings": [{**structs.asdict(one), "means": RULES[one.rule]} for one in found],
    }


def _progress(done: int, total: int) -> None:
    """A line that is written over, for whoever watches."""
    if sys.stderr.isatty() and total > 1:
        line = f"\rlooked at {done:,} of {total:,} conversations\x1b[K" if done < total else "\r\x1b[K"
        sys.stderr.write(line)
        sys.stderr.flush()
