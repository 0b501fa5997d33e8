"""Bring back what memory no longer holds, from the store.

One idea: a handle names a place in the branch for good. What is held answers at once; what is not is read by its number. Words
are looked up by the store, and the messages it finds are told as a search always tells them: the passages that fit, with handles.
A store compares words more loosely than passages are chosen, and what it found is never passed over for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from refold.core.estimate import CharacterEstimate
from refold.core.stages.shown import part_of
from refold.core.summary.alike import excerpt, holds, knows
from refold.core.summary.facts import Facts, index_message
from refold.core.summary.search import find
from refold.engine.journal import Journal, decoder
from refold.engine.lookup import Place, place_of, retrieve
from refold.engine.memory import Memory
from refold.engine.stored import read_stored
from refold.model.dialect import DIALECTS
from refold.model.errors import NotFound
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter
from refold.ports.store import Stored
from refold.text_work import run_text_act
from refold.wire.message import decode_message

MOST_HITS = 40
"""Messages that are read for a search: passages of more than these never fit where anybody would read them."""
LEAST_EXCERPT = 40
"""Tokens that must be left for one more message: a handle with a line of text."""


async def recall(journal: Journal, memory: Memory, handle: str) -> Message | Summary:
    """The original behind a handle, wherever it is kept.

    Raises:
        NotFound: there is no such original.
        Damaged: it cannot be read.
    """
    place = place_of(handle)
    if place.kind == "s":
        return await _summary(journal, memory, place)
    if place.number >= memory.folded.origin:
        return retrieve(handle, memory.folded)
    found = await journal.store.pick(journal.seen, [place.number])
    message = read_stored(found[0], journal.seen) if found else None
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


async def search(journal: Journal, memory: Memory, query: str, *, max_tokens: int) -> str:
    """Passages of everything ever said in the conversation that fit the words, each with its handle. Whoever calls this holds the
    conversation's lock.
    """
    store, head = journal.store, journal.seen
    found = await store.search(
        head.owner, query, conversation=head.conversation, branch=head, limit=MOST_HITS
    )
    # A model asks by a call that waits for its result: it would find its own question first.
    numbers = [hit.seq for hit in found if hit.seq < memory.folded.asking]
    decode = decoder(memory)
    rows = [one for one in await store.pick(head, numbers) if one.body]
    window, counter = memory.frame.budget.window, memory.folded.shown.counter

    def tell() -> str:
        said = {one.seq: decode(one.body) for one in rows}
        # Where nothing holds all of the words a store takes any, and every text has an `of`.
        ranked = [(seq, said[seq]) for seq in numbers if seq in said and holds(said[seq], query)]
        told = _tell(ranked, query, budget=max_tokens, window=window, counter=counter)
        return told or memory.search(query, max_tokens=max_tokens)

    return await run_text_act(sum(len(one.body) for one in rows) + memory.text_size, tell)


def passage(stored: Stored, query: str, *, max_tokens: int) -> str:
    """What one stored message says about the words; empty where its content was not kept."""
    if not stored.body:
        return ""
    said = [(stored.seq, decode_message(stored.body, DIALECTS[stored.format]))]  # type: ignore[index]
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
    known = knows(facts, query)
    found = find(facts, query, budget=budget, window=window, counter=counter) if known else ""
    if not found:
        return excerpt(facts, said, query, budget=budget, counter=counter)
    others, left = [one for one in said if one[0] not in known], budget - counter.text(f"{found}\n")
    rest = excerpt(facts, others, query, budget=left, counter=counter) if left >= LEAST_EXCERPT else ""
    return f"{found}\n{rest}" if rest else found


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
