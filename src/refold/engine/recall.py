"""Recall: an original by its handle, or passages that match some words; and the tool with which a model asks for them.

A handle names a position in the branch, and messages are never deleted from a branch, so every handle that
was ever shown keeps working. Messages in memory are returned at once; others are read from the store. Words
are searched in the store, and the passages follow its ranking, which is that of every other search.

With the recall tool a model itself brings back messages that left its context. It consists of a definition to send
with your own tools, and a function that answers its calls. The answer is a text of bounded length that states its
source, the part that was left out, and how to get the rest. A wrong question is answered with a hint for a better one.

    chat = refold.Conversation("gpt-4o-mini", tools=[*tools, recall_tool()])
    ...
    if call.function.name == "recall":
        result = await answer_recall(chat, call.function.arguments)

`refold.sync.answer_recall` does the same without `await`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from refold.core.assemble import RECALL
from refold.core.budget import Now, effective_for
from refold.core.digest.extract import excerpt
from refold.core.digest.facts import Facts, index_message, text_of
from refold.core.digest.line_markers import quoted_lines
from refold.core.fold import FoldedBranch
from refold.core.long_messages import largest_result
from refold.core.measure import CharacterEstimate
from refold.core.search.query import Query, limit_query, parse_query, spelt_words, tell_mistakes
from refold.core.stage import handle_of, part_of
from refold.core.stages.removal import describe
from refold.core.tool_use import FOUND, SOURCES, SUMMARY, is_recall
from refold.engine import actions
from refold.engine.arguments import check_text
from refold.engine.journal import Journal
from refold.engine.search import find_messages
from refold.engine.state import State
from refold.model.errors import ConfigError, Damaged, NotFound
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
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter, share_of
from refold.ports.records import Call, Head, StoredMessage, read_reply, read_stored
from refold.ports.store import Store
from refold.text_work import run_text_work
from refold.wire.sdk import read_message, text_in

_HANDLE = re.compile(r"#?(?P<kind>[ms])(?P<number>[0-9]{1,9})(?:\.(?P<part>[0-9]{1,9}))?")
_HINT = "handles look like #m12, #m12.2 for its second part, or #s0 for an older summary"
MOST_HITS = 40
"""Messages that are read for a search: the passages of more would not fit into a readable answer."""
RECENT_CALLS = 100
"""Calls of a conversation among which the newest of a branch is looked for."""
PASSAGE = 80
"""Tokens of each message that a search found: a few lines, and its handle opens the rest."""
LEAST_EXCERPT = 40
"""Tokens that must be left for one more message: a handle with a line of text."""


def is_handle(text: str) -> bool:
    """Whether a text can only be a handle. Without the `#` it may be a word, such as the name of a machine."""
    return text.strip().startswith("#") and _HANDLE.fullmatch(text.strip()) is not None


class Handle(Struct, frozen=True):
    """A parsed handle: of a message (m), of a summary (s), or of one part of a message."""

    kind: str
    number: int
    part: int | None = None


def read_handle(handle: str) -> Handle:
    """Parse a handle.

    Raises:
        NotFound: the text is not a handle.
        ConfigError: the value is not a text.
    """
    check_text(handle, "a handle", hint=_HINT)
    found = _HANDLE.fullmatch(handle.strip())
    if found is None:
        raise NotFound(f"{handle[:40]!r} is no handle", hint=_HINT)
    return Handle(found["kind"], int(found["number"]), int(found["part"]) if found["part"] else None)


def look_up(handle: str, folded: FoldedBranch) -> Message | Part | Summary:
    """Return the original behind a handle: a message, one of its parts, or a summary.

    Raises:
        NotFound: there is no such original.
    """
    place = read_handle(handle)
    number, part = place.number, place.part
    if place.kind == "s":
        return _held_summary(number, folded)
    if not folded.origin <= number < folded.size:
        raise NotFound(no_message(number, folded.size), hint=_HINT)
    message = folded.original(number).message
    inner = message if part is None else part_of(message, part)
    if inner is None:
        raise NotFound(f"message {number} has no part {part}", hint=_HINT)
    return inner


def no_message(number: int, size: int) -> str:
    """Return what is wrong with the number of a message in a conversation of so many: numbers begin at 0."""
    known = f"the last is {handle_of(size - 1)}" if size else "the conversation has none"
    return f"there is no message {number}: {known}"


def retrieve(handle: str, folded: FoldedBranch) -> Message | Summary:
    """Return the original behind a handle; a part is returned as a message with this part alone.

    Raises:
        NotFound: there is no such original.
    """
    found = look_up(handle, folded)
    if isinstance(found, Message | Summary):
        return found
    whole = look_up(handle.partition(".")[0], folded)
    assert isinstance(whole, Message)
    return Message(whole.role, (found,))


def _held_summary(number: int, folded: FoldedBranch) -> Summary:
    count = folded.numbered + len(folded.past)
    if not folded.numbered <= number < count:
        raise NotFound(f"there is no summary {number}: the conversation has {count}", hint=_HINT)
    return folded.past[number - folded.numbered]


async def recall(journal: Journal, state: State, handle: str) -> Message | Summary:
    """Return the original behind a handle, from memory or from the store; the messages of the newest reply too,
    which a client may not have sent back yet.

    Raises:
        NotFound: there is no such original.
        Damaged: the message cannot be read.
    """
    place = read_handle(handle)
    if place.kind == "s":
        return await _summary(journal, state, place)
    is_held = state.folded.origin <= place.number < state.folded.size
    if is_held and place.number not in journal.damaged:
        return retrieve(handle, state.folded)
    if place.number >= state.folded.size:
        found = await newest_reply(journal.store, journal.head)
        found = [one for one in found if one.seq == place.number]
        if not found:
            raise NotFound(no_message(place.number, state.folded.size), hint=_HINT)
    else:
        found = await journal.store.pick(journal.head, [place.number])
    message = read_stored(found[0], journal.head) if found else None
    if message is None:
        raise NotFound(
            f"message {place.number} is not stored", hint="it was stored without content, or deleted"
        )
    if place.part is None:
        return message
    part = part_of(message, place.part)
    if part is None:
        raise NotFound(f"message {place.number} has no part {place.part}", hint=_HINT)
    return Message(message.role, (part,))


async def search(journal: Journal, state: State, query: str, *, max_tokens: int) -> str:
    """Return passages of the whole conversation that match the words, each with its handle, best first. `in:` with another
    conversation finds nothing.
    """
    store, head, parsed = journal.store, journal.head, parse_query(query)
    if parsed.conversation not in {"", head.conversation}:
        return ""
    found = await find_messages(
        store,
        head.owner,
        journal.meaning.turns,
        query,
        conversation=head.conversation,
        branch=head,
        limit=MOST_HITS,
    )
    # A model searches by a tool call that has no result yet: without this limit it would find its own
    # question first.
    numbers = [hit.seq for hit in found if hit.seq < state.folded.asking]
    rows = await store.pick(head, numbers)
    counter = state.folded.shown.counter
    # Without content in the store, what is in memory is all there is.
    has_rest = not journal.keeps_content

    def find_passages() -> str:
        messages, damaged = _readable(rows, head)
        note = f"{', '.join(map(handle_of, damaged))} [damaged: cannot be read]" if damaged else ""
        room = max_tokens - (counter.text(f"\n{note}") if note else 0)
        # An index of an earlier version has the answers of recalls, which repeat the originals.
        ranked = [
            (seq, messages[seq])
            for seq in numbers
            if seq in messages and not _has_only_recalls(messages[seq])
        ]
        passages = _passages(ranked, parsed, budget=room, counter=counter)
        if not passages and has_rest:
            passages = actions.search(state, query, max_tokens=room)
        return "\n".join(filter(None, (passages, note)))

    return await run_text_work(sum(len(one.body) for one in rows) + state.text_size, find_passages)


def _readable(rows: Sequence[StoredMessage], head: Head) -> tuple[dict[int, Message], list[int]]:
    """Return the messages of the rows by number, and the numbers of the damaged ones."""
    messages, damaged = dict[int, Message](), list[int]()
    for one in rows:
        try:
            message = read_stored(one, head)
        except Damaged:
            damaged.append(one.seq)
        else:
            if message is not None:
                messages[one.seq] = message
    return messages, damaged


async def newest_reply(store: Store, head: Head) -> list[StoredMessage]:
    """Return the reply to the newest request of a branch, if it is not a message of the branch yet: a stateless
    client has not sent it back. Its messages have the numbers that they will get then.
    """
    return (await newest_replies(store, [head])).get(head.branch, [])


async def newest_replies(store: Store, heads: Sequence[Head]) -> dict[str, list[StoredMessage]]:
    """Return the newest reply of each of some branches of one conversation, see `newest_reply`; a branch without one is left out."""
    if not heads:
        return {}
    calls = await store.calls(heads[0].owner, heads[0].conversation, RECENT_CALLS)
    newest = {(call.branch, call.size): call for call in calls if call.kind == "reply"}
    found = {
        head.branch: await _reply_to(store, head, newest[head.branch, head.next_seq])
        for head in heads
        if (head.branch, head.next_seq) in newest
    }
    return {branch: messages for branch, messages in found.items() if messages}


async def _reply_to(store: Store, head: Head, call: Call) -> list[StoredMessage]:
    """Return the messages of the reply to a call, if it was stored."""
    stored = await store.reply_to(head.owner, call.id)

    def read() -> list[StoredMessage]:
        found = list[StoredMessage]()
        for seq, item in enumerate(read_reply(stored) or (), head.next_seq):
            message = StoredMessage(
                seq=seq,
                role="assistant",
                format=head.format,
                body=bytes(item),
                tokens=call.usage.output,
                at=call.at,
            )
            try:
                read_stored(message, head)
            except Damaged:
                return []  # it was answered in another format
            found.append(message)
        return found

    return await run_text_work(len(stored), read)


def holds_all(stored: StoredMessage, head: Head, words: str) -> bool:
    """Return True if a stored message contains every word, in lower or upper case.

    Raises:
        Damaged: the message cannot be read.
    """
    message, wanted = read_stored(stored, head), words.casefold().split()
    text = message.text.casefold() if message else ""
    return bool(wanted) and all(word in text for word in wanted)


def is_copy(stored: StoredMessage, head: Head) -> bool:
    """Whether a stored message only repeats others: recalls and their answers. A damaged one is none."""
    if stored.role == "user" and b"tool_result" not in stored.body:  # the usual message needs no parsing
        return False
    try:
        message = read_stored(stored, head)
    except Damaged:
        return False
    return message is not None and _has_only_recalls(message)


def passage(stored: StoredMessage, head: Head, query: str, *, max_tokens: int) -> str:
    """Return the passage of one stored message that matches the words; empty if its content is not stored.

    Raises:
        Damaged: the message cannot be read.
    """
    message = read_stored(stored, head)
    if message is None:
        return ""
    return _excerpt(stored.seq, message, parse_query(query), budget=max_tokens, counter=CharacterEstimate())


def _excerpt(seq: int, message: Message, query: Query, *, budget: int, counter: TokenCounter) -> str:
    """Return the passage of one message that matches a query, or its beginning."""
    facts, words = index_message(Facts(), message, seq), spelt_words(_texts(message), query)
    return excerpt(facts, [(seq, message)], words, budget=budget, counter=counter)


def _texts(message: Message) -> list[str]:
    return [text_of(part) for part in message.parts if not isinstance(part, Reasoning)]


def _passages(
    messages: Sequence[tuple[int, Message]], query: Query, *, budget: int, counter: TokenCounter
) -> str:
    """Return passages of the messages in their order, as many as fit. The messages share the room: each gets at least a few lines,
    and what one leaves is for those after it.
    """
    passages, left = list[str](), budget
    for place, (seq, message) in enumerate(messages):
        if passages and left < LEAST_EXCERPT:
            break
        room = min(left, max(PASSAGE, left // (len(messages) - place)))
        if found := _excerpt(seq, message, query, budget=room, counter=counter):
            passages.append(found)
            left -= counter.text(f"{found}\n")
    return "\n".join(passages)


def _has_only_recalls(message: Message) -> bool:
    """Whether a message has recalls and no other text."""
    parts = [part for part in message.parts if not isinstance(part, Reasoning) and text_of(part).strip()]
    return bool(parts) and all(map(is_recall, parts))


async def _summary(journal: Journal, state: State, place: Handle) -> Summary:
    """Return a summary from memory, or from the store."""
    for held in (*reversed(state.folded.summaries), *reversed(state.folded.past)):
        if held.number == place.number:
            return held
    found = await journal.store.summary(journal.head, place.number)
    if found is None and place.number >= state.folded.numbered:
        return _held_summary(place.number, state.folded)
    if found is None or not found.summary.text:
        why = "was stored without content" if found else "is not stored"
        raise NotFound(
            f"summary {place.number} {why}", hint="search for words of the messages that it covers"
        )
    return found.summary


# The recall tool

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
_ARGUMENTS_HINT = (
    'call it with {"what": "#m12"} for an original, or {"what": "words that were used"} to search'
)


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
        raise ConfigError(f"these are no arguments for {NAME}", hint=_ARGUMENTS_HINT) from None
    # Stubs are in brackets, and names in prose in quotes: models copy these together with the handle.
    bare = asked.what.strip(" \t\r\n[]()`'\".,:;")
    what = bare if is_handle(bare) else asked.what.encode("utf-8", "replace").decode().strip()
    if not what or asked.start < 0:
        raise ConfigError(f"{NAME} takes one handle, or some words", hint=_ARGUMENTS_HINT)
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
