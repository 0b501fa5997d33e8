"""Cut what the model has not read yet, where it does not fit beside what must stay.

The newest results and the newest question reach the model whole: everything else is folded, masked or dropped before a
character of them is. Only where they do not fit beside the instructions, the question they belong to, the calls they answer
and the least that a summary takes, they are cut, and then to all the room that is left: the largest first, so that smaller
ones stay whole. They have never been sent, so no cached prefix changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from msgspec import Struct

from refold.core.budget import share_of
from refold.core.digest.extract import Sight, in_sight
from refold.core.digest.facts import text_of
from refold.core.digest.pieces import ends
from refold.core.digest.rules import rules
from refold.core.digest.shorten import MAX_LEDGER, fair_share, shorten
from refold.core.digest.typed_text import said_by_user
from refold.core.fold import Folded
from refold.core.plan_inputs import Frame, Now, effective_for, fits
from refold.core.shown import Edit, Item, handle_of
from refold.core.stages.parts import unread_from
from refold.core.system_messages import is_setting, newest_instruction

# What the model sees of a conversation now: what is chosen to be quoted beside it need not say that
# again.


def terms_in_sight(folded: Folded, frame: Frame, *, before: int | None = None) -> set[int]:
    """The terms of all that would be sent now, or of what comes `before` a message: to show them again tells nothing new."""
    lead = (folded.lead.block, *(message.text for message in folded.lead.messages))
    items = [item for item in folded.items.items if before is None or item.seq < before]
    return in_sight(folded.facts, seen_of(folded, items, (*system_texts(frame), *lead)))


def seen_of(folded: Folded, shown: Iterable[Item], texts: Iterable[str]) -> Sight:
    """What the model sees: messages as they came, messages cut short, and other texts."""
    whole, partly = list[Item](), list[Item]()
    for item in shown:
        (whole if folded.is_original(item.message, item.seq) else partly).append(item)
    cut = (text_of(part) for item in partly for part in item.message.parts)
    return Sight((*texts, *cut), tuple(item.seq for item in whole), tuple(item.seq for item in partly))


def system_texts(frame: Frame) -> tuple[str, ...]:
    return tuple(message.text for message in frame.fixed.system)


KEPT_QUESTION_SHARE = 0.15
"""Of the room: a longer question is for the summary to carry, once the assistant has begun to answer it."""
LEAST_BESIDE = 0.05
"""Of the room: what is not cut leaves so much for a summary of everything else."""
LEAST = 50
"""Tokens that a cut must leave room for: with fewer, nothing but its handle would be left of a message."""
WORTHWHILE = 8
"""Tokens that a cut must save: what a picture takes cannot be cut from the words beside it."""


class Needed(Struct, frozen=True):
    """Indices of the messages shown that the next reply cannot do without."""

    unread: tuple[int, ...]
    """The results of the latest reply's calls, and the question, where no reply has come since."""
    reply: tuple[int, ...]
    """The reply whose calls they answer."""
    others: tuple[int, ...]
    """The question that is being answered, what is pinned or set at the provider, and the newest instruction given on the way."""

    @property
    def all(self) -> frozenset[int]:
        return frozenset((*self.unread, *self.reply, *self.others))


def needed(folded: Folded, effective: int) -> Needed:
    """What must stay; `effective` are the tokens that the instructions leave for messages."""
    shown, items, size = folded.shown, folded.items.items, len(folded.shown)
    start, newest = unread_from(folded.items), newest_instruction(items)
    results = [index for index in range(start, size) if shown[index].message.results]
    asked = folded.active if shown.turn_starts and not folded.is_turn_over else -1
    others = [index for index, item in enumerate(items) if _is_fixed(folded, item) or item.seq == newest]
    if 0 <= asked < start and shown[asked].tokens <= share_of(KEPT_QUESTION_SHARE, effective):
        others.append(asked)
    unread = {*results, asked} if asked >= start else {*results}
    reply = range(shown.progress.batch, start) if results else ()
    return Needed(tuple(sorted(unread)), tuple(reply), tuple(others))


def _is_fixed(folded: Folded, item: Item) -> bool:
    """Must the item stay as it is?"""
    return item.seq in folded.pinned or is_setting(item.message)


def fit_unread(folded: Folded, frame: Frame, now: Now) -> tuple[Folded, tuple[Edit, ...]]:
    """The branch with its unread messages cut, where these do not fit; the same where they do, or it cannot be done so."""
    if fits(folded, frame, now):
        return folded, ()
    room, items = effective_for(frame, now), folded.items.items
    stays = needed(folded, room)
    is_everything = len(stays.all) == len(items) and not folded.summaries
    left = room - max(frame.bridge, 0 if is_everything else share_of(LEAST_BESIDE, room))
    if sum(items[index].tokens for index in stays.all) <= left:
        return folded, ()
    pinned = {index for index in stays.all if _is_fixed(folded, items[index])}
    # What the assistant itself wrote is cut only where there would be nothing left of what it has not read.
    for cuttable in ({*stays.unread} - pinned, {*stays.unread, *stays.reply} - pinned):
        free = left - sum(items[index].tokens for index in stays.all - cuttable)
        most = fair_share([items[index].tokens for index in cuttable], free)
        if most >= LEAST:
            return _cut(folded, frame, cuttable, stays.all - cuttable, most)
    return folded, ()


def _cut(
    folded: Folded, frame: Frame, cuttable: Collection[int], beside: Collection[int], most: int
) -> tuple[Folded, tuple[Edit, ...]]:
    """The branch with some messages in at most `most` tokens each, chosen against what is sure to stand beside them."""
    items, edits = list(folded.items.items), list[Edit]()
    sight = seen_of(folded, [items[index] for index in sorted(beside)], system_texts(frame))
    covered = in_sight(folded.facts, sight)
    for index in sorted(cuttable):
        item = items[index]
        short = _shortened(item, most, folded, frame, covered) if item.tokens > most else item
        if item.tokens - short.tokens >= WORTHWHILE:
            items[index] = short
            reason = f"{item.tokens:,} tokens do not fit into the {most:,} that are left for them"
            edits.append(Edit("fit", item.seq, item.tokens, short.tokens, reason, handle_of(item.seq)))
    return (folded.show(items), tuple(edits)) if edits else (folded, ())


def _shortened(item: Item, most: int, folded: Folded, frame: Frame, covered: AbstractSet[int]) -> Item:
    message, counter = item.message, folded.shown.counter
    short = shorten(
        folded.facts,
        message,
        item.seq,
        limit=most,
        window=frame.budget.window,
        counter=counter,
        covered=covered,
        must=tuple(rules(ends(said.text, MAX_LEDGER))) if (said := said_by_user(message)) else (),
    )
    return Item(short, item.seq, counter.message(short))
