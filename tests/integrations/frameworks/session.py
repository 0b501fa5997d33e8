"""The session that every adapter goes through: many turns with parallel tools in a window of 8,192 tokens.

In the first turn the user tells a code word, and a tool returns the number of an invoice. Each turn calls a tool twice at once. After
the last turn the model recalls both facts. The provider is strict: it refuses what real ones refuse.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from refold.testing import Received, Say, ScriptedUpstream, call, say

ROOT = Path(__file__).parents[3]
TURNS = int(os.environ.get("REFOLD_TURNS", "100"))
"""Before the last question. Fewer are faster to try."""
WINDOW = 8_192
WORD, NUMBER = "MARIGOLD-LANTERN-58", "7351942"
SYSTEM = "You keep the books of the harbour office."
FIRST = f"The code word of the office is {WORD}. Read the notes, two at a time."
LAST = "Which code word was it, and which invoice is unpaid?"
_WORDS = [
    "harbour",
    "lantern",
    "anchor",
    "signal",
    "cargo",
    "ballast",
    "rudder",
    "compass",
    "tide",
    "mooring",
    "beacon",
    "hull",
    "crane",
    "pilot",
]


def read_note(number: int) -> str:
    """Return the note of a number. The first one has the number of the invoice."""
    lines = [
        " ".join(
            f"{_WORDS[(number * 7 + line * 5 + at * 3) % len(_WORDS)]}{number * line % 89}" for at in range(9)
        )
        for line in range(12)
    ]
    if number == 0:
        lines[6] = f"The unpaid invoice has the number {NUMBER}."
    return "\n".join(lines)


def question(turn: int) -> str:
    """Return what the user says; `TURNS` is the last turn, which needs the facts."""
    return FIRST if turn == 0 else LAST if turn == TURNS else f"Go on with the notes of day {turn}."


TOOL = {
    "name": "read_note",
    "description": "Returns the note of a number.",
    "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}


class Provider:
    """Answers a session: two calls at once for every question, a sentence for their results."""

    def __init__(self) -> None:
        self.turn = -1

    def __call__(self, received: Received) -> Say:
        if received.messages[-1].results:
            return say(f"Day {self.turn} is read.")
        self.turn += 1
        if LAST in received.messages[-1].text:
            return say(
                "Let me look.",
                call("recall", {"what": "code word of the office"}),
                call("recall", {"what": "unpaid invoice number"}),
            )
        return say(
            call("read_note", {"number": 2 * self.turn}), call("read_note", {"number": 2 * self.turn + 1})
        )


@contextmanager
def served(**settings):
    with ScriptedUpstream(otherwise=Provider(), window=WINDOW, strict=True, **settings) as server:
        yield server


def check_session(server: ScriptedUpstream, framework: str, version: str, *, calls_a_turn: int = 2) -> None:
    """Check a session of `TURNS` turns and the last question, and write its row of the table where one is asked for."""
    refused = len(server.requests) - len(server.answered)
    orphans = sum(map(_orphans, server.requests))
    last = server.requests[-1].messages
    told = "\n".join(result.text for message in last for result in message.results)
    recalled = [fact for fact in (WORD, NUMBER) if fact in told]
    row = {
        "framework": framework,
        "version": version,
        "turns": TURNS + 1,
        "requests": len(server.requests),
        "refusals": refused,
        "orphans": orphans,
        "recalls": f"{len(recalled)} of 2",
        "largest": max(len(one.body) for one in server.requests),
    }
    if path := os.environ.get("REFOLD_ROWS"):
        with Path(path).open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")

    assert (refused, orphans) == (0, 0)
    assert len(server.requests) == calls_a_turn * (TURNS + 1)
    assert recalled == [WORD, NUMBER]
    first = server.requests[0].messages[0]
    assert first not in last, "nothing had to leave the window"


def _orphans(received: Received) -> int:
    """Calls without a result and results without a call; the calls of the last message are none."""
    calls = Counter(call.id for message in received.messages for call in message.calls)
    results = Counter(result.call_id for message in received.messages for result in message.results)
    return sum(((calls - results) + (results - calls)).values())


def run_page(name: str, **namespace: object) -> dict[str, object]:
    """Run the Python blocks of a guide in order, as one script. Names that are given stand for what a reader has."""
    page = ROOT / "docs" / "guides" / name
    found: dict[str, object] = {"__name__": "__example__", **namespace}
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(ast.parse(block), str(page), "exec"), found)
    return found
