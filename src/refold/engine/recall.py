"""Recall: an original by its handle, or passages that fit some words.

A handle names a place in the branch, and a branch never forgets, so a handle that was ever shown works for good. What the state holds
answers at once; the rest is read from the store. Words are looked up by the store, which compares them more loosely than passages are
chosen: a message that it found is never left out for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter

from msgspec import Struct

from refold.core.digest.facts import Facts, index_message
from refold.core.digest.search import excerpt, find, mentions, messages_with_terms
from refold.core.fold import Folded
from refold.core.measure import CharacterEstimate
from refold.core.shown import handle_of, part_of
from refold.engine import actions
from refold.engine.journal import Journal
from refold.engine.state import State
from refold.model.errors import Damaged, NotFound
from refold.model.message import Message, Part
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter
from refold.ports.records import Head, StoredMessage
from refold.ports.stored_messages import read_stored
from refold.text_work import run_text_work

_HANDLE = re.compile(r"#?(?P<kind>[ms])(?P<number>[0-9]{1,9})(?:\.(?P<part>[0-9]{1,9}))?")
_HINT = "handles look like #m12, #m12.2 for its second part, or #s0 for an older summary"
MOST_HITS = 40
"""Messages that are read for a search: passages of more than these never fit where anybody would read them."""
LEAST_EXCERPT = 40
"""Tokens that must be left for one more message: a handle with a line of text."""


def is_handle(text: str) -> bool:
    """Can only a handle be meant? Without its sign it may be a word, such as the name of a machine or a service."""
    return text.strip().startswith("#") and _HANDLE.fullmatch(text.strip()) is not None


class Handle(Struct, frozen=True):
    """What a handle names: a message (m) or a summary (s), or one part of a message."""

    kind: str
    number: int
    part: int | None = None


def read_handle(handle: str) -> Handle:
    """
    Raises:
        NotFound: this is no handle.
    """
    found = _HANDLE.fullmatch(handle.strip())
    if found is None:
        raise NotFound(f"{handle[:40]!r} is no handle", hint=_HINT)
    return Handle(found["kind"], int(found["number"]), int(found["part"]) if found["part"] else None)


def look_up(handle: str, folded: Folded) -> Message | Part | Summary:
    """The original behind a handle: a message, one of its parts, or a summary.

    Raises:
        NotFound: there is no such original.
    """
    place = read_handle(handle)
    number, part = place.number, place.part
    if place.kind == "s":
        return _held_summary(number, folded)
    if not folded.origin <= number < folded.size:
        raise NotFound(f"there is no message {number}: the conversation has {folded.size}", hint=_HINT)
    message = folded.original(number).message
    inner = message if part is None else part_of(message, part)
    if inner is None:
        raise NotFound(f"message {number} has no part {part}", hint=_HINT)
    return inner


def retrieve(handle: str, folded: Folded) -> Message | Summary:
    """The original as it can be shown by itself: a part as the message that would hold nothing else.

    Raises:
        NotFound: there is no such original.
    """
    found = look_up(handle, folded)
    if isinstance(found, Message | Summary):
        return found
    whole = look_up(handle.partition(".")[0], folded)
    assert isinstance(whole, Message)
    return Message(whole.role, (found,))


def _held_summary(number: int, folded: Folded) -> Summary:
    count = folded.numbered + len(folded.past)
    if not folded.numbered <= number < count:
        raise NotFound(f"there is no summary {number}: the conversation has {count}", hint=_HINT)
    return folded.past[number - folded.numbered]


async def recall(journal: Journal, state: State, handle: str) -> Message | Summary:
    """The original behind a handle, wherever it is kept.

    Raises:
        NotFound: there is no such original.
        Damaged: it cannot be read.
    """
    place = read_handle(handle)
    if place.kind == "s":
        return await _summary(journal, state, place)
    if place.number >= state.folded.origin:
        return retrieve(handle, state.folded)
    found = await journal.store.pick(journal.head, [place.number])
    message = read_stored(found[0], journal.head) if found else None
    if message is None:
        raise NotFound(
            f"message {place.number} is not kept", hint="it was stored without content, or deleted"
        )
    if place.part is None:
        return message
    part = part_of(message, place.part)
    if part is None:
        raise NotFound(f"message {place.number} has no part {place.part}")
    return Message(message.role, (part,))


async def search(journal: Journal, state: State, query: str, *, max_tokens: int) -> str:
    """Passages of everything ever said in the conversation that fit the words, each with its handle."""
    store, head = journal.store, journal.head
    found = await store.search(
        head.owner, query, conversation=head.conversation, branch=head, limit=MOST_HITS
    )
    # A model asks by a call that waits for its result: it would find its own question first.
    numbers = [hit.seq for hit in found if hit.seq < state.folded.asking]
    rows = await store.pick(head, numbers)
    window, counter = state.frame.budget.window, state.folded.shown.counter

    def tell() -> str:
        said, damaged = _readable(rows, head)
        note = f"{', '.join(map(handle_of, damaged))} [damaged: cannot be read]" if damaged else ""
        room = max_tokens - (counter.text(f"\n{note}") if note else 0)
        # Where nothing holds all of the words a store takes any, and every text has an `of`.
        ranked = [(seq, said[seq]) for seq in numbers if seq in said and mentions(said[seq], query)]
        told = _tell(ranked, query, budget=room, window=window, counter=counter)
        told = told or actions.search(state, query, max_tokens=room)
        return "\n".join(filter(None, (told, note)))

    return await run_text_work(sum(len(one.body) for one in rows) + state.text_size, tell)


def _readable(rows: Sequence[StoredMessage], head: Head) -> tuple[dict[int, Message], list[int]]:
    """The messages of rows by their numbers, and the numbers of those that are damaged."""
    said, damaged = dict[int, Message](), list[int]()
    for one in rows:
        try:
            message = read_stored(one, head)
        except Damaged:
            damaged.append(one.seq)
        else:
            if message is not None:
                said[one.seq] = message
    return said, damaged


def passage(stored: StoredMessage, head: Head, query: str, *, max_tokens: int) -> str:
    """What one stored message says about the words; empty where its content was not kept.

    Raises:
        Damaged: it cannot be read.
    """
    message = read_stored(stored, head)
    if message is None:
        return ""
    said = [(stored.seq, message)]
    return _tell(said, query, budget=max_tokens, window=max_tokens, counter=CharacterEstimate())


def _tell(
    said: Sequence[tuple[int, Message]], query: str, *, budget: int, window: int, counter: TokenCounter
) -> str:
    """What messages that were found say, best first: passages that match as they are spelled, then of the others while there
    is room.
    """
    facts = Facts()
    for seq, message in sorted(said, key=itemgetter(0)):
        facts = index_message(facts, message, seq)
    known = messages_with_terms(facts, query)
    found = find(facts, query, budget=budget, window=window, counter=counter) if known else ""
    if not found:
        return excerpt(facts, said, query, budget=budget, counter=counter)
    others, left = [one for one in said if one[0] not in known], budget - counter.text(f"{found}\n")
    rest = excerpt(facts, others, query, budget=left, counter=counter) if left >= LEAST_EXCERPT else ""
    return f"{found}\n{rest}" if rest else found


async def _summary(journal: Journal, state: State, place: Handle) -> Summary:
    """A summary that is shown or was written lately, or one that the store has."""
    for held in (*reversed(state.folded.summaries), *reversed(state.folded.past)):
        if held.number == place.number:
            return held
    found = await journal.store.summary(journal.head, place.number)
    if found is None and place.number >= state.folded.numbered:
        return _held_summary(place.number, state.folded)
    if found is None or not found.summary.text:
        why = "was stored without content" if found else "is not kept"
        raise NotFound(f"summary {place.number} {why}", hint="look for words of what it stood for")
    return found.summary
