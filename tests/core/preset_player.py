"""Conversations as a client of the engine plays them: ask for a context, report what it cost, add the reply."""

from msgspec import structs

from refold.core.presets import PRESETS
from refold.model.dialect import CHAT, Dialect
from refold.model.message import Message, ToolCall, assistant, system, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Budget, Usage
from refold.model.window import FixedFields, Window
from tests.core.conversations import TextCounter
from tests.engine.action_player import Played
from tests.engine.conversations import COUNTER


class Quarter(TextCounter):
    """Four characters to a token."""

    def text(self, text: str, /) -> int:
        return -(-len(text) // 4)

    def message(self, message: Message, /) -> int:
        return 4 + -(-super().message(message) // 4)


def tell(request, folded, frame) -> Summary:
    """A summary of one line, of the scope that the policy wants."""
    text = f"What happened from {request.first} to {request.last}."
    return Summary(text, request.first, request.last, len(text), "model", frame.policy.scope)


def chat(
    preset, *, window=10_000, dialect: Dialect = CHAT, summarise=tell, counter=COUNTER, **budget
) -> Played:
    """A conversation under a preset or policy, in which a character is a token unless a counter says otherwise."""
    policy = PRESETS[preset] if isinstance(preset, str) else preset
    fixed = FixedFields(dialect, (system("be kind"),))
    return Played(fixed, Budget(window=window, **budget), policy, counter, summarise)


def estimated(preset, **settings) -> Played:
    """The same with four characters to a token."""
    return chat(preset, counter=Quarter(), **settings)


def changed(preset: str, **changes):
    return structs.replace(PRESETS[preset], **changes)


def ask(talk: Played, text: str, *, reported: int | None = None, reply: str = "well") -> Window:
    """One turn without tools."""
    talk.add(user(text))
    window = talk.context()
    talk.record(None if reported is None else Usage(input=reported))
    talk.add(assistant(reply))
    return window


def use_tool(talk: Played, output: str, name: str = "read_file", *, say: str = "") -> None:
    """One call and its result."""
    call = ToolCall(f"call-{len(talk.folded.branch)}", name, '{"path": "src/app.py"}')
    talk.context()
    talk.add(assistant(say, call), tool(call.id, output))


def work(talk: Played, *outputs: str, name: str = "read_file", question: str = "please look") -> None:
    """One turn with a tool for every output."""
    talk.add(user(question))
    for output in outputs:
        use_tool(talk, output, name)
    talk.context()
    talk.add(assistant("I have seen it."))


def results(messages) -> list[str]:
    return [result.text for message in messages for result in message.results]


def written(talk: Played) -> list[Summary]:
    """Every summary that was of use, oldest first."""
    return [receipt.summary for receipt in talk.receipts if receipt.summary]
