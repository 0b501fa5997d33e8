"""`refold demo`: plays a long agent session through a real gateway, and draws every call and the totals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from refold.cli import output
from refold.cli.options import JsonOption, Preset, at_least, token_count

if TYPE_CHECKING:
    from rich.text import Text

    from refold.demo import DemoCall, DemoSession

CELLS, DOES, WIDTH = 16, 20, 80
"""Columns of the bar, and of the agent's step, on a screen of this width; a wider one gives more room to both."""
BLOCKS, LETTERS = ("█", "░", "▶"), ("#", ".", ">")
"""The history that is sent, the rest of it, and more than fits; letters where the output has no blocks."""
COLOURS = {"summarise": "bold yellow", "reduce": "cyan", "recover": "bold magenta", "refused": "bold red"}


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold demo --window 16000")(demo)


def demo(
    speed: Annotated[
        float,
        typer.Option(
            "--speed",
            metavar="N",
            callback=at_least(0),
            help="Calls in a second, on a terminal; 0 for no pause.",
        ),
    ] = 5.0,
    window: Annotated[
        int,
        typer.Option(
            "--window",
            metavar="TOKENS",
            parser=token_count(1_000, 1_000_000),
            help="The model's window, such as 8000 or 8k.",
        ),
    ] = 8_000,
    preset: Preset = "",
    as_json: JsonOption = False,
) -> int:
    """Watch a long agent session stay inside a small window.

    A scripted session of 58 calls goes through a real gateway, with a store that is thrown away. Every call is shown with what
    the history holds, what was sent of it, and what Refold did. No model is called and nothing leaves this machine. The extras
    `server` and `sqlite` are needed; the client is OpenAI's own where it is installed.
    """
    from refold.cli.settings import check_server_extra

    check_server_extra("the demo")
    import asyncio

    from refold.cli.settings import preset_here
    from refold.demo import DemoOptions, play

    preset = preset or preset_here()
    pause_s = 1 / speed if speed and output.open_stdout().isatty() else 0.0
    painter = Painter(window)
    if not as_json:
        output.show(*painter.opening())
    options, on_call = DemoOptions(window, preset, pause_s), _quiet if as_json else painter.draw
    played = asyncio.run(play(on_call, options, on_start=_tell_page if pause_s and not as_json else None))
    if as_json:
        output.write_json(document(played))
    else:
        output.show(*closing(played))
        output.note("\nYour own agent: `refold serve`, and its base URL (docs/gateway.md).")
    return 1 if played.refused else 0


def _quiet(call: DemoCall) -> None:
    del call


def _tell_page(address: str) -> None:
    """The page is there as long as the session is played: without a pause nobody could open it."""
    output.note(f"Watch it in a browser as well: {address}/")


def document(played: DemoSession) -> dict[str, Any]:
    """The session for programs."""
    totals = {"history": played.whole, "sent": played.sent, "compactions": played.compactions}
    return {**msgspec.to_builtins(played), "totals": totals}


class Painter:
    """Draws the calls as they come. The bar is the window: the part of the history that is sent fills it, the rest is drawn behind."""

    def __init__(self, window: int) -> None:
        self._window, self._told = window, set[str]()
        more = min(40, max(0, output.screen_width() - WIDTH))
        self._does, self._cells, self._said = DOES + more // 2, CELLS + more - more // 2, WIDTH - 8 + more
        self._marks = BLOCKS if _has_blocks() else LETTERS

    def opening(self) -> list[Text]:
        from rich.text import Text

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
        from rich.text import Text

        lines = [Text(f"\nuser: {_short(call.asks, self._said)}", "bold")] if call.asks else []
        lines.append(self._line(call))
        if call.reason and (call.action != "reduce" or call.action not in self._told):
            lines.append(
                Text(f"     {call.action}: {output.plain(call.reason)}", COLOURS.get(call.action, ""))
            )
        self._told.add(call.action)
        output.show(*lines)

    def _line(self, call: DemoCall) -> Text:
        from rich.text import Text

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


def closing(played: DemoSession) -> list[Text]:
    """The totals of the session."""
    from rich.text import Text

    calls = f"{len(played.calls)} calls, {played.compactions} compactions"
    head = Text(f"\n{calls}, {played.refused} refused by the provider\n", "bold")
    return [head, *(Text(f"{name:<14}{words}") for name, words in _facts(played))]


def _facts(played: DemoSession) -> Iterator[tuple[str, str]]:
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
