"""Short ways to write conversations down in tests: `talk("u a:x t:x u")` is a user, a call x, its result, a user."""

from refold.core.view import View
from refold.model.dialect import CHAT, Dialect
from refold.model.message import Message, Reasoning, Text, ToolCall, assistant, system, tool, user


class FlatCounter:
    """Every message costs the same, so that sizes in tests are easy to read."""

    source = "counted"

    def __init__(self, tokens: int = 10) -> None:
        self.tokens = tokens

    def text(self, text: str, /) -> int:
        return len(text)

    def message(self, message: Message, /) -> int:
        return self.tokens


class TextCounter(FlatCounter):
    """A message costs as much as it has characters, tool arguments and results included."""

    def message(self, message: Message, /) -> int:
        calls = sum(len(call.arguments) for call in message.calls)
        return len(message.text) + calls + sum(len(result.text) for result in message.results)


def talk(script: str) -> list[Message]:
    """One word a message: `u`, `a`, `s`, `a:x,y` (calls), `t:x` (result), `r` (only reasoning)."""
    return [_message(number, word) for number, word in enumerate(script.split())]


def _message(number: int, word: str) -> Message:
    kind, _, ids = word.partition(":")
    match kind:
        case "u":
            return user(f"question {number}")
        case "s":
            return system(f"rule {number}")
        case "a":
            calls = [ToolCall(call_id, "look") for call_id in ids.split(",") if ids]
            return assistant(f"answer {number}", *calls)
        case "c":
            return Message("assistant", tuple(ToolCall(call_id, "look") for call_id in ids.split(",")))
        case "r":
            return Message("assistant", (Reasoning(f"thought {number}", "signed"),))
        case "t":
            return tool(ids, f"result {number}")
    raise ValueError(word)


def show(messages) -> str:
    """The script of some messages: the inverse of `talk`, for readable assertions."""
    return " ".join(map(_word, messages))


def _word(message: Message) -> str:
    if message.role == "tool":
        rest = "+text" if any(isinstance(part, Text) for part in message.parts) else ""
        return "t:" + ",".join(result.call_id for result in message.results) + rest
    ids = ",".join(call.id for call in message.calls)
    if message.role == "assistant":
        if message.parts and all(isinstance(part, Reasoning) for part in message.parts):
            return "r"
        letter = "a" if message.text else "c"
        return f"{letter}:{ids}" if ids else letter
    return message.role[0]


def view_of(script: str, dialect: Dialect = CHAT, *, tokens: int = 10) -> View:
    return View.of(talk(script), dialect, FlatCounter(tokens))
