"""Bring back what memory no longer holds, from the store.

One idea: a handle names a place in the branch for good. What is held answers at once; what is not is read by its number. Words
are looked up by the store, and the messages it finds are told as a search always tells them: the passages that fit, with handles.
"""

from __future__ import annotations

from refold.core.estimate import CharacterEstimate
from refold.core.stages.shown import part_of
from refold.core.summary.facts import Facts, index_message
from refold.core.summary.search import find
from refold.engine.journal import Journal, decoder
from refold.engine.lookup import Place, place_of, retrieve
from refold.engine.memory import Memory
from refold.model.dialect import DIALECTS
from refold.model.errors import NotFound
from refold.model.message import Message
from refold.model.summary import Summary
from refold.ports.store import Head, Store, Stored
from refold.wire.message import decode_message

MOST_HITS = 40
"""Messages that are read for a search: passages of more than these never fit where anybody would read them."""


async def recall(journal: Journal, memory: Memory, handle: str) -> Message | Summary:
    """The original behind a handle, wherever it is kept.

    Raises:
        NotFound: there is no such original.
    """
    place = place_of(handle)
    if place.kind == "s":
        return await _summary(journal, memory, place)
    if place.number >= memory.folded.origin:
        return retrieve(handle, memory.folded)
    found = await journal.store.pick(journal.seen, [place.number])
    if not found or not found[0].body:
        raise NotFound(
            f"message {place.number} is not kept", hint="it was stored without content, or deleted"
        )
    message = decoder(memory)(found[0].body)
    if place.part is None:
        return message
    part = part_of(message, place.part)
    if part is None:
        raise NotFound(f"message {place.number} has no part {place.part}")
    return Message(message.role, (part,))


async def search(journal: Journal, memory: Memory, query: str, *, max_tokens: int) -> str:
    """Passages of everything ever said in the conversation that fit the words, each with its handle."""
    store, head = journal.store, journal.seen
    hits = await store.search(head.owner, query, conversation=head.conversation, limit=MOST_HITS)
    # A model asks by a call that waits for its result: it would find its own question first.
    said = [hit for hit in hits if hit.seq < memory.folded.asking]
    numbers = sorted({hit.seq for hit in said if await _is_here(store, head, hit.branch, hit.seq)})
    facts, decode = Facts(), decoder(memory)
    for one in await store.pick(head, numbers):
        facts = index_message(facts, decode(one.body), one.seq) if one.body else facts
    window, counter = memory.frame.budget.window, memory.folded.shown.counter
    found = find(facts, query, budget=max_tokens, window=window, counter=counter) if facts.size else ""
    return found or memory.search(query, max_tokens=max_tokens)


def passage(stored: Stored, query: str, *, max_tokens: int) -> str:
    """What one stored message says about the words; empty where its content was not kept."""
    if not stored.body:
        return ""
    message = decode_message(stored.body, DIALECTS[stored.format])  # type: ignore[index]
    facts = index_message(Facts(), message, stored.seq)
    return find(facts, query, budget=max_tokens, window=max_tokens, counter=CharacterEstimate())


async def _is_here(store: Store, head: Head, branch: str, seq: int) -> bool:
    """Is a message of another branch one that this branch shares?"""
    if branch == head.branch:
        return True
    if not head.base or seq >= head.base_seq:
        return False
    base = await store.head(head.owner, head.conversation, head.base)
    return base is not None and await _is_here(store, base, branch, seq)


async def _summary(journal: Journal, memory: Memory, place: Place) -> Summary:
    """A summary that is shown or was written lately, or one that the store has."""
    for held in (*reversed(memory.folded.summaries), *reversed(memory.folded.past)):
        if held.number == place.number:
            return held
    found = await journal.store.summary(journal.seen, place.number)
    if found is None or not found.summary.text:
        why = "was stored without content" if found else "is not kept"
        raise NotFound(f"summary {place.number} {why}", hint="look for words of what it stood for")
    return found.summary
