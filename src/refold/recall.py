"""The recall tool: a model itself brings back messages that left its context.

It consists of a definition to send with your own tools, and a function that answers its calls. The answer is
a text of bounded length that states its source, the part that was left out, and how to get the rest. A wrong
question is answered with a hint for a better one.

    chat = refold.Conversation("gpt-4o-mini", tools=[*tools, recall_tool()])
    ...
    if call.function.name == "recall":
        result = await answer_recall(chat, call.function.arguments)

`refold.sync.answer_recall` does the same without `await`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from refold.core.assemble import RECALL
from refold.core.budget import Now, effective_for
from refold.core.digest.line_markers import quoted_lines
from refold.core.long_messages import largest_result
from refold.core.search.query import parse_query, tell_mistakes
from refold.core.search.terms import limit_query
from refold.core.stage import handle_of
from refold.core.stages.removal import describe
from refold.core.tool_use import FOUND, SOURCES, SUMMARY
from refold.engine.recall import is_handle, read_handle
from refold.engine.state import State
from refold.model.errors import ConfigError, NotFound
from refold.model.message import (
    File,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    readable_text,
)
from refold.model.tokens import TokenCounter, share_of
from refold.text_work import run_text_work
from refold.wire.sdk import read_message, text_in

NAME = RECALL
MAX_TOKENS = 1_000
"""Tokens of one answer: most originals fit, and in a small window the model still has room to work with it."""
ROOM_SHARE = 0.125
"""Share of the room for messages that one answer may take: it stays in the window with all later answers."""
LEAST_TOKENS = 150
"""With fewer tokens, an answer would be little more than the lines around it."""
_FRAME_TOKENS = 80
"""For the lines that state the source of a text and the part that was left out."""
_MESSAGE_TOKENS = 20
"""Tokens that a message takes beside its text."""
_LONGEST_TOKEN = 16
"""Characters per token: a longer text is cut to this bound before it is counted."""
_CUT_SHARE = 4
"""Up to a fourth of a text may be given up to end it with a whole line."""

HANDLES = (
    "A handle is a name that stands for something left out: #m12 is a message, #m12.2 the second part of it (such as one tool "
    "call or result), #s0 an older summary."
)
DESCRIPTION = (
    "Brings back what was said or read earlier in this conversation and is no longer shown in full. Nothing is lost: where the "
    "context was shortened, it names handles. "
    + HANDLES
    + " Give one handle, exactly as it stands in the context, to get the "
    "original word for word. Where you know what you need but see no handle for it, give words instead: names, file paths, "
    "numbers or phrases that were used then; the answer is passages with their handles. Use it before you guess, ask the user "
    "again or repeat a tool call whose result you had."
)
WHAT = "One handle such as #m12, #m12.2 or #s0, or some words to look for."
START = "Only to go on with an answer that was cut: the number it names."
_PARAMETERS = {
    "type": "object",
    "properties": {
        "what": {"type": "string", "description": WHAT},
        "start": {"type": "integer", "minimum": 0, "description": START},
    },
    "required": ["what"],
    "additionalProperties": False,
}
_HINT = 'call it with {"what": "#m12"} for an original, or {"what": "words that were used"} to search'


class RecallQuery(Struct, frozen=True):
    """The arguments of a call: a handle or words, and the first character to return."""

    what: str
    start: int = 0


class Recallable(Protocol):
    """A conversation that answers recalls: `refold.Conversation`."""

    @property
    def state(self) -> State: ...

    async def recall(self, what: str, *, max_tokens: int = ...) -> dict[str, Any] | str: ...


def recall_tool(format: str = "chat") -> dict[str, Any]:  # noqa: A002  # the word users know
    """Return the tool's definition for requests of a format.

        chat = refold.Conversation("gpt-4o-mini", tools=[*tools, refold.recall_tool()])

    Args:
        format: "chat", "responses" or "anthropic".

    Raises:
        ConfigError: there is no such format.
    """
    parameters = msgspec.json.decode(msgspec.json.encode(_PARAMETERS))  # a copy: some clients change it
    function = {"name": NAME, "description": DESCRIPTION, "parameters": parameters}
    match format:
        case "chat":
            return {"type": "function", "function": function}
        case "responses":
            # Strict is the default of this format, and would make `start` a required argument.
            return {"type": "function", **function, "strict": False}
        case "anthropic":
            return {"name": NAME, "description": DESCRIPTION, "input_schema": parameters}
    raise ConfigError(f"there is no format {str(format)[:40]!r}", hint="use chat, responses or anthropic")


async def answer_recall(
    chat: Recallable, arguments: str | Mapping[str, object], *, max_tokens: int = MAX_TOKENS
) -> str:
    """Return the answer to a model's call of the recall tool.

        result = await refold.answer_recall(chat, call.function.arguments)

    Wrong arguments do not raise: the answer tells the model about them.

    Args:
        chat: the conversation.
        arguments: the arguments of the call, as JSON or as a mapping.
        max_tokens: the size of the answer, 150 or more. In a small window the answer is shorter still, so
            that it leaves room to go on.

    Raises:
        StoreError: the conversation cannot be read at all.
    """
    try:
        asked, most = read_arguments(arguments), most_tokens(chat.state, max_tokens)
        found = await chat.recall(asked.what, max_tokens=room(most))
        return await run_text_work(text_in(found), partial(tell, asked, found, chat.state, max_tokens=most))
    except (ConfigError, NotFound) as error:
        return f"error: {error}"


def read_arguments(arguments: str | Mapping[str, object]) -> RecallQuery:
    """Parse the arguments of a call.

    Raises:
        ConfigError: the model wrote something that is not a query.
    """
    try:
        fields = msgspec.json.decode(arguments) if isinstance(arguments, str) else {**arguments}
        asked = msgspec.convert(fields, RecallQuery, strict=False)
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError):
        raise ConfigError(f"these are no arguments for {NAME}", hint=_HINT) from None
    # Stubs are in brackets, and names in prose in quotes: models copy these together with the handle.
    bare = asked.what.strip(" \t\r\n[]()`'\".,:;")
    what = bare if is_handle(bare) else asked.what.encode("utf-8", "replace").decode().strip()
    if not what or asked.start < 0:
        raise ConfigError(f"{NAME} takes one handle, or some words", hint=_HINT)
    return RecallQuery(limit_query(what), asked.start)


def most_tokens(state: State, max_tokens: int) -> int:
    """Return the size of an answer that leaves room to go on after it is added to the same conversation."""
    room = share_of(ROOM_SHARE, effective_for(state.frame, Now("before_call")))
    whole = largest_result(state.frame) or room
    return min(max_tokens, min(room, whole) - _MESSAGE_TOKENS)


def room(max_tokens: int) -> int:
    """Return the tokens of an answer that are left for the text that was found."""
    return max(LEAST_TOKENS, max_tokens) - _FRAME_TOKENS


def tell(asked: RecallQuery, found: Mapping[str, Any] | str, state: State, *, max_tokens: int) -> str:
    """Format a found text for a model: its source, the text, and the part that was cut.

    Raises:
        NotFound: nothing matches the words, the original ends before `start`, or it is not for models.
    """
    if isinstance(found, str):
        head, text = _head_of(asked.what), found
    else:
        asked = RecallQuery(f"#{asked.what.strip().lstrip('#')}", asked.start)
        message = read_message(found, state.frame.fixed.dialect)
        _check_shown(asked.what, state)
        head, text = f"{asked.what}, {SOURCES[message.role]}:", _message_text(message, asked.what)
    mistakes = "" if is_handle(asked.what) else tell_mistakes(asked.what)
    if not text:
        raise NotFound(
            "nothing that was said in this conversation fits", hint=mistakes or _better_words(asked.what)
        )
    if mistakes:
        text = f"{text}\n[{mistakes}]"
    return f"{head}\n{_page(asked, text, room(max_tokens), state.folded.shown.counter)}"


def _better_words(what: str) -> str:
    """What to try where nothing was found."""
    if parse_query(what).conversation:
        return "recall looks in this conversation alone: leave `in:` out"
    return "try fewer or other words, such as a name, a path or a number, or one handle such as #m12"


def _head_of(what: str) -> str:
    return f"{what.strip()}, {SUMMARY}:" if is_handle(what) else FOUND


def _check_shown(handle: str, state: State) -> None:
    """Refuse a sensitive message: the answer becomes a message like any other, and would be in the next
    summary.
    """
    if read_handle(handle).number in state.secrecy.numbers:
        raise NotFound(f"{handle} is marked as sensitive", hint="ask the user for what you need of it")


def _message_text(message: Message, handle: str) -> str:
    """Return the text of a message; several parts each under their handle. Thinking is left out, and not
    counted as a part.
    """
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    if len(parts) == 1:
        return _part_text(parts[0], handle) or "(nothing)"
    number = read_handle(handle).number
    named = [(part, handle_of(number, at)) for at, part in enumerate(parts, 1)]
    return "\n".join(f"[{name}]\n{_part_text(part, name)}" for part, name in named) or "(nothing)"


def _part_text(part: Part, handle: str) -> str:
    """Return a part word for word. A line that looks like a handle's heading is quoted, because the text
    after it would seem to be another part or another message.
    """
    return quoted_lines("\n".join(_lines(part, handle)), "recalled", own=handle, begins_line=True)


def _lines(part: Part, handle: str) -> Iterator[str]:
    match part:
        case Text():
            yield part.text
        case ToolCall():
            yield f"call of {part.name}: {part.arguments}"
        case ToolResult():
            for inner in part.parts:
                yield from _lines(inner, handle)
        case File() if part.text:
            yield part.text
        case Opaque():
            yield readable_text(part) or f"[{part.kind} {handle}]"
        case _:
            yield describe(part, handle)


def _page(asked: RecallQuery, text: str, budget: int, counter: TokenCounter) -> str:
    """Return the text from `start` on as far as it fits, and a note of the part that was left out."""
    if asked.start >= len(text):
        raise NotFound(f"it has only {len(text)} characters", hint="leave `start` out to begin at the first")
    rest = text[asked.start : asked.start + budget * _LONGEST_TOKEN]
    stop = asked.start + _fitting(rest, budget, counter)
    if asked.start == 0 and stop == len(text):
        return text
    shown = f"characters {asked.start} to {stop} of {len(text)}"
    more = f"; for what follows, ask for the same with start={stop}" if stop < len(text) else ", the end"
    return f"{text[asked.start : stop]}\n[cut: {shown}{more}]"


def _fitting(text: str, budget: int, counter: TokenCounter) -> int:
    """Return how many characters fit: all of them, or up to the end of a line if one is near."""
    stop = len(text)
    while stop > 1 and (tokens := counter.text(text[:stop])) > budget:
        stop = max(1, min(stop - 1, stop * budget // tokens))
    if stop == len(text):
        return stop
    line = text.rfind("\n", stop - stop // _CUT_SHARE, stop)
    return line + 1 if line >= 0 else stop
