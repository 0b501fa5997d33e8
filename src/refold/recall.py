"""The recall tool: how a model itself brings back what left its context.

It is a definition to send with your own tools, and a function that answers its calls. The answer is a text of bounded length that
says where it comes from, what was left out and how to get that too; a wrong question is answered with what to ask instead.

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

from refold.core.arrival_cap import largest_result
from refold.core.assemble import RECALL
from refold.core.budget import share_of
from refold.core.digest.line_markers import quoted_lines
from refold.core.plan_inputs import Now, effective_for
from refold.core.shown import handle_of
from refold.core.stages.media import describe
from refold.engine.recall import is_handle, read_handle
from refold.engine.state import State
from refold.model.errors import ConfigError, NotFound
from refold.model.message import (
    File,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    readable_text,
)
from refold.model.tokens import TokenCounter
from refold.text_work import run_text_work
from refold.wire.sdk import read_message, text_in

NAME = RECALL
MAX_TOKENS = 1_000
"""Of one answer: most originals fit, and in a small window there is room for what the model does with it."""
ROOM_SHARE = 0.125
"""Of the room for messages, for one answer: it stays there with all that follow."""
LEAST_TOKENS = 150
"""With fewer, an answer would be little more than the lines around it."""
MAX_WORDS = 1_000
"""Characters of a question: more is a text, not something to look for."""
_FRAME_TOKENS = 80
"""For the lines that say where a text comes from and what is left out of it."""
_MESSAGE_TOKENS = 20
"""What a message takes beside its text."""
_LONGEST_TOKEN = 16
"""Characters: no text of more than so many for each token is counted only to be cut."""
_CUT_SHARE = 4
"""The last fourth of a text may be given up to end it with a whole line."""

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
_WHO: dict[Role, str] = {
    "user": "from the user",
    "assistant": "from the assistant",
    "tool": "the result of a tool",
    "system": "from the system prompt",
    "developer": "from the developer",
}


class RecallQuery(Struct, frozen=True):
    """What a model asks for: a handle or words, and from which character on."""

    what: str
    start: int = 0


class Recallable(Protocol):
    """A conversation that can be asked: `refold.Conversation`."""

    @property
    def state(self) -> State: ...

    async def recall(self, what: str, *, max_tokens: int = ...) -> dict[str, Any] | str: ...


def recall_tool(format: str = "chat") -> dict[str, Any]:  # noqa: A002  # the word users know
    """The tool's definition, as requests of this format take it: "chat", "responses" or "anthropic".

    Raises:
        ConfigError: there is no such format.
    """
    parameters = msgspec.json.decode(msgspec.json.encode(_PARAMETERS))  # of one's own: some clients change it
    function = {"name": NAME, "description": DESCRIPTION, "parameters": parameters}
    match format:
        case "chat":
            return {"type": "function", "function": function}
        case "responses":
            # Strict is the default there, and would make `start` something that has to be given.
            return {"type": "function", **function, "strict": False}
        case "anthropic":
            return {"name": NAME, "description": DESCRIPTION, "input_schema": parameters}
    raise ConfigError(f"there is no format {format[:40]!r}", hint="use chat, responses or anthropic")


async def answer_recall(
    chat: Recallable, arguments: str | Mapping[str, object], *, max_tokens: int = MAX_TOKENS
) -> str:
    """What a model gets for a call of the tool, in at most `max_tokens` (150 or more).

    In a small window it is shorter still, so that the answer leaves room to go on. Whatever is wrong with the
    arguments is for the model to read.

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
    """
    Raises:
        ConfigError: a model wrote something else.
    """
    try:
        fields = msgspec.json.decode(arguments) if isinstance(arguments, str) else {**arguments}
        asked = msgspec.convert(fields, RecallQuery, strict=False)
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError):
        raise ConfigError(f"these are no arguments for {NAME}", hint=_HINT) from None
    # Stubs stand in brackets, and names in prose between quotes: they are easily copied with them.
    bare = asked.what.strip(" \t\r\n[]()`'\".,:;")
    what = bare if is_handle(bare) else asked.what.encode("utf-8", "replace").decode().strip()
    if not what or len(what) > MAX_WORDS or asked.start < 0:
        raise ConfigError(f"{NAME} takes one handle, or up to {MAX_WORDS:,} characters of words", hint=_HINT)
    return RecallQuery(what, asked.start)


def most_tokens(state: State, max_tokens: int) -> int:
    """How long an answer may be that is added to the same conversation: with it, there must be room to go on."""
    room = share_of(ROOM_SHARE, effective_for(state.frame, Now("before_call")))
    whole = largest_result(state.frame) or room
    return min(max_tokens, min(room, whole) - _MESSAGE_TOKENS)


def room(max_tokens: int) -> int:
    """Tokens of an answer that are left for what was found."""
    return max(LEAST_TOKENS, max_tokens) - _FRAME_TOKENS


def tell(asked: RecallQuery, found: Mapping[str, Any] | str, state: State, *, max_tokens: int) -> str:
    """What was found, as a text for a model: where it is from, what it says, and what was cut.

    Raises:
        NotFound: nothing fits the words, the original goes no further than that, or it is not for models.
    """
    if isinstance(found, str):
        head, text = _head_of(asked.what), found
    else:
        asked = RecallQuery(f"#{asked.what.strip().lstrip('#')}", asked.start)
        message = read_message(found, state.frame.fixed.dialect)
        _check_shown(asked.what, state)
        head, text = f"{asked.what}, {_WHO[message.role]}:", _spelled(message, asked.what)
    if not text:
        raise NotFound(
            "nothing that was said in this conversation fits",
            hint="try fewer or other words, such as a name, a path or a number, or one handle such as #m12",
        )
    return f"{head}\n{_page(asked, text, room(max_tokens), state.folded.shown.counter)}"


def _head_of(what: str) -> str:
    return f"{what.strip()}, a summary of earlier messages:" if is_handle(what) else "Found, with handles:"


def _check_shown(handle: str, state: State) -> None:
    """The answer becomes a message like any other, and would be in the next summary."""
    if read_handle(handle).number in state.secrecy.numbers:
        raise NotFound(f"{handle} is marked as sensitive", hint="ask the user for what you need of it")


def _spelled(message: Message, handle: str) -> str:
    """All that a message says; several parts each under their handle. Thoughts are not said, and not counted as parts."""
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    if len(parts) == 1:
        return _told(parts[0], handle) or "(nothing)"
    number = read_handle(handle).number
    named = [(part, handle_of(number, at)) for at, part in enumerate(parts, 1)]
    return "\n".join(f"[{name}]\n{_told(part, name)}" for part, name in named) or "(nothing)"


def _told(part: Part, handle: str) -> str:
    """A part word for word. A line of it that begins as the names above do is quoted: whatever follows would seem to be another part, or
    another message.
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
    """A text from where it was asked for, as far as it fits, and what was left out."""
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
    """How many characters fit: all of them, or up to the end of a line where there is one near."""
    stop = len(text)
    while stop > 1 and (tokens := counter.text(text[:stop])) > budget:
        stop = max(1, min(stop - 1, stop * budget // tokens))
    if stop == len(text):
        return stop
    line = text.rfind("\n", stop - stop // _CUT_SHARE, stop)
    return line + 1 if line >= 0 else stop
