"""Conversations for the tests of summaries: short to write, with names and numbers in them."""

import json

from refold.core.digest.facts import DEFAULT, FactLog, Facts, TermKind, index_message, single_terms
from refold.model.message import Message, ToolCall, assistant, tool, user

WINDOW = 2_000


def kinds(text: str) -> set[tuple[str, TermKind]]:
    """The terms of a text that are no phrases, each with its kind."""
    return set(single_terms(text))


class QuarterCounter:
    """Four characters are one token."""

    source = "estimated"

    def text(self, text: str, /) -> int:
        return (len(text) + 3) // 4

    def message(self, message: Message, /) -> int:
        calls = sum(self.text(call.name) + self.text(call.arguments) for call in message.calls)
        return 4 + self.text(message.text) + calls + sum(self.text(result.text) for result in message.results)


class WordCounter(QuarterCounter):
    """Every word is ten tokens: far denser than the first guess of four characters a token."""

    def text(self, text: str, /) -> int:
        return 10 * len(text.split())


COUNTER = QuarterCounter()


def facts_of(messages, weights=DEFAULT) -> Facts:
    facts = Facts(shared=FactLog(weights))
    for seq, message in enumerate(messages):
        facts = index_message(facts, message, seq)
    return facts


def call(name: str, call_id: str = "c", **arguments: object) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


def work(turns: int, start: int = 0) -> list[Message]:
    """An agent at work: each turn reads one file, changes another, and reports."""
    said: list[Message] = []
    for turn in range(start, start + turns):
        said += [
            user(f"Please look into ticket TK-{4000 + turn} of the billing service."),
            assistant(
                "I read the module first.", call("read_file", f"r{turn}", path=f"src/billing/part_{turn}.py")
            ),
            tool(f"r{turn}", listing(turn)),
            assistant(
                f"The rounding in compute_total_{turn} is wrong, I change it.",
                call(
                    "edit_file", f"e{turn}", path=f"src/billing/fix_{turn}.py", new=f"limit = {turn}{turn}7"
                ),
            ),
            tool(f"e{turn}", "changed"),
            assistant(f"Done: ticket TK-{4000 + turn} is fixed in fix_{turn}.py."),
        ]
    return said


def listing(turn: int) -> str:
    lines = [f"def helper_{turn}_{line}(amount): return amount * {turn}.{line}5" for line in range(12)]
    return "\n".join(lines)
