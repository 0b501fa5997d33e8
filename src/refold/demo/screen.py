"""Shows the session in a terminal: a line for every call, and a summary.

A bar is the window. The sent part of the history fills it; the rest of the history is drawn after it and soon
exceeds the bar. Everything can be read without colour.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.text import Text

from refold.cli.output import note, plain, screen_width, show, write_json
from refold.demo.player import DemoCall, DemoOptions, DemoResult, play

CELLS, DOES, WIDTH = 16, 20, 80
"""Widths of the bar and of the agent's step, on a screen of `WIDTH`; a wider screen gives more room to both."""
BLOCKS, LETTERS = ("█", "░", "▶"), ("#", ".", ">")
"""Sent, not sent, and more than fits; as letters if the output cannot encode blocks."""
COLOURS = {"summarise": "bold yellow", "reduce": "cyan", "recover": "bold magenta", "refused": "bold red"}


def run(order: DemoOptions, *, as_json: bool) -> int:
    """Play the session and show it; returns 1 if the provider refused a request."""
    if not sys.stdout.isatty():
        order = msgspec.structs.replace(order, pause_s=0.0)
    painter = Painter(order.window)
    if not as_json:
        show(*painter.opening())
    played = asyncio.run(play(_ignore if as_json else painter.draw, order))
    if as_json:
        write_json(document(played))
    else:
        show(*closing(played))
        note("\nYour own agent: `refold serve`, and its base URL (docs/gateway.md).")
    return 1 if played.refused else 0


def _ignore(call: DemoCall) -> None:
    del call


def document(played: DemoResult) -> dict[str, Any]:
    """The session as JSON values."""
    totals = {"history": played.whole, "sent": played.sent, "compactions": played.compactions}
    return {**msgspec.to_builtins(played), "totals": totals}


class Painter:
    """Draws the calls as they happen."""

    def __init__(self, window: int) -> None:
        self._window, self._actions_shown = window, set[str]()
        more = min(40, max(0, screen_width() - WIDTH))
        self._does, self._cells, self._text_width = (
            DOES + more // 2,
            CELLS + more - more // 2,
            WIDTH - 8 + more,
        )
        self._marks = BLOCKS if _has_blocks() else LETTERS

    def opening(self) -> list[Text]:
        sent, rest, more = self._marks
        words = (
            f"A day of a coding agent, in a window of {self._window:,} tokens. As agents do, it sends\n"
            "its whole history with every call. Refold decides what the provider gets of it.\n"
            "The gateway and the client are real; the model is scripted, and nothing leaves\n"
            "this machine.\n"
        )
        legend = (
            f"{sent} sent   {rest} history that is not sent   {more} more history than the window holds\n"
        )
        head = f" no  {'what the agent does':<{self._does}}  messages  history   sent  the window"
        return [Text(words), Text(legend, "dim"), Text(head, "bold")]

    def draw(self, call: DemoCall) -> None:
        lines = [Text(f"\nuser: {_short(call.asks, self._text_width)}", "bold")] if call.asks else []
        lines.append(self._line(call))
        if call.reason and (call.action != "reduce" or call.action not in self._actions_shown):
            lines.append(Text(f"     {call.action}: {plain(call.reason)}", COLOURS.get(call.action, "")))
        self._actions_shown.add(call.action)
        show(*lines)

    def _line(self, call: DemoCall) -> Text:
        cells = self._cells
        sizes = f"{call.messages:>8}  {call.whole:>7,}  {call.sent:>5,}"
        line = Text(f"{call.number:>3}  {_short(call.does, self._does):<{self._does}}  {sizes}  ")
        sent, whole = (min(cells, round(size / self._window * cells)) for size in (call.sent, call.whole))
        rest = whole - sent
        line.append(self._marks[0] * sent, "green").append(self._marks[1] * rest, "dim")
        line.append(" " * (cells - whole))
        line.append(self._marks[2] if call.whole > self._window else " ", "red")
        word = call.action if call.action in COLOURS else ""
        return line.append(f" {word}", COLOURS.get(word, ""))


def closing(played: DemoResult) -> list[Text]:
    """The summary at the end."""
    calls = f"{len(played.calls)} calls, {played.compactions} compactions"
    head = Text(f"\n{calls}, {played.refused} refused by the provider\n", "bold")
    return [head, *(Text(f"{name:<14}{words}") for name, words in _facts(played))]


def _facts(played: DemoResult) -> Iterator[tuple[str, str]]:
    saved, largest = 1 - played.sent / max(1, played.whole), max(call.sent for call in played.calls)
    yield "history", f"{played.whole:>9,} tokens, if every call sends all of it"
    yield "sent", f"{played.sent:>9,} tokens: {saved * 100:.0f} % less, never more than {largest:,} at once"
    if played.first_refused:
        yield "without it", f"call {played.first_refused} is refused: {played.without}"
    kept = "is in the last request, word for word" if played.keeps_rule else "has left the window"
    yield "first words", f'"{played.rule}" {kept}'
    if found := played.recalled:
        where = "still in the window too" if found.is_shown else "no longer in the window"
        yield "early detail", f'{where}; recalled by "{found.question}":'
        yield "", f"{found.handle}: {found.text}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def _has_blocks() -> bool:
    try:
        "".join(BLOCKS).encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
