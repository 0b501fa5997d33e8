"""Short ways to show conversations to a stage."""

from refold.core.stage import Item, Room, ShownMessages
from refold.model.dialect import CHAT
from refold.model.message import Message, ToolCall, assistant, tool, user
from tests.core.conversations import TextCounter


def show_all(messages, *, protected=None, counter=None) -> ShownMessages:
    """What is shown of a conversation; without `protected` nothing is."""
    counter = counter or TextCounter()
    items = tuple(Item(message, seq, counter.message(message)) for seq, message in enumerate(messages))
    return ShownMessages(items, len(items) if protected is None else protected)


def room_for(tokens, *, instructions=0, dialect=CHAT, pinned=(), counter=None) -> Room:
    return Room(tokens, instructions, counter or TextCounter(), dialect, frozenset(pinned))


def work(*outputs, name="look", answer="done") -> list[Message]:
    """A question, one call with its result for each output, and an answer."""
    messages = [user("please look")]
    for number, output in enumerate(outputs):
        messages += [assistant("", ToolCall(f"c{number}", name)), tool(f"c{number}", output)]
    return [*messages, assistant(answer)] if answer else messages


def results_of(shown) -> list[str]:
    return [result.text for message in shown.messages for result in message.results]


def lines(count, width=39) -> str:
    """Text of `count` lines of `width` characters and a line end each, no two alike."""
    return "".join(f"line {number}".ljust(width, ".") + "\n" for number in range(count))
