"""Recall: an original by its handle, or passages that match some words.

A handle names a position in the branch, and messages are never deleted from a branch, so every handle that
was ever shown keeps working. Messages in memory are returned at once; others are read from the store. Words
are searched in the store, and the passages follow its ranking, which is that of every other search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from refold.core.digest.facts import Facts, index_message, text_of
from refold.core.digest.search import excerpt
from refold.core.fold import FoldedBranch
from refold.core.measure import CharacterEstimate
from refold.core.search.query import Query, parse_query, spelt_words
from refold.core.stage import handle_of, part_of
from refold.core.tool_use import is_recall
from refold.engine import actions
from refold.engine.arguments import check_text
from refold.engine.journal import Journal
from refold.engine.search import find_messages
from refold.engine.state import State
from refold.model.errors import Damaged, NotFound
from refold.model.message import Message, Part, Reasoning
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter
from refold.ports.records import Call, Head, StoredMessage, read_reply, read_stored
from refold.ports.store import Store
from refold.text_work import run_text_work

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
