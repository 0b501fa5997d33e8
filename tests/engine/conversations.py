"""Conversations to run through the engine, and a summariser that only counts."""

from refold.core.presets import PRESETS
from refold.model.dialect import CHAT, Dialect
from refold.model.message import Message, ToolCall, assistant, system, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Budget
from refold.model.window import FixedFields
from tests.core.conversations import TextCounter
from tests.engine.action_player import Played


class Counter(TextCounter):
    """Characters, and one for each message, so that nothing is free."""

    def message(self, message: Message, /) -> int:
        return 1 + super().message(message)


COUNTER = Counter()


def count(request, folded, frame) -> Summary:
    text = f"[{len(request.items)} messages]"
    policy_words = 400  # the longest words that a preset puts around a summary
    return Summary(text, request.first, request.last, len(text) + policy_words, "mechanical", "cumulative")


def give_up(request, folded, frame) -> None:
    return None


def memory(preset="opal", *, window=10_000, dialect: Dialect = CHAT, summarise=count, **budget) -> Played:
    rules = () if dialect.name == "anthropic" else (system("be kind"),)
    policy = PRESETS[preset] if isinstance(preset, str) else preset
    return Played(FixedFields(dialect, rules), Budget(window=window, **budget), policy, COUNTER, summarise)


def agent_turn(number: int, *, size: int = 200) -> list[Message]:
    call = f"call-{number}"
    return [
        user(f"question {number} " + "q" * 20),
        Message("assistant", (ToolCall(call, "read_file", f'{{"path": "src/f{number}.py"}}'),)),
        tool(call, f"file {number}\n" + "line of code\n" * (size // 13)),
        assistant(f"answer {number} " + "a" * 60),
    ]


def size_of(window) -> int:
    return sum(map(COUNTER.message, (*window.system, *window.summaries, *window.messages)))
