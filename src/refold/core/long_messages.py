"""Shortens messages that the model has not read yet.

They have never been sent, so no cached prefix changes. A cut message keeps its beginning, its end, the parts
between them that the window does not show already, and the user's rules in full.

The newest tool results and the newest question reach the model in full: everything else is summarised,
masked or dropped first. They are cut only if they do not fit beside the instructions, the question they
belong to, the calls they answer and the smallest summary (`fit_unread`). Then they share all the room that is
left: the largest is cut first, so that smaller ones stay whole.

A policy with arrival stages shortens every message as it arrives (`arrive`). No preset has any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from msgspec import Struct

from refold.core.budget import (
    Frame,
    Now,
    effective_for,
    fits,
    limit_for,
)
from refold.core.digest.extract import CHARACTERS_PER_TOKEN, VisibleText, in_sight
from refold.core.digest.facts import text_of
from refold.core.digest.ledger import rules
from refold.core.digest.pieces import ends
from refold.core.digest.shorten import MAX_LEDGER, fair_share, shorten
from refold.core.digest.typed_text import said_by_user
from refold.core.fold import FoldedBranch
from refold.core.stage import Edit, Item, Room, ShownMessages, handle_of, reduce
from refold.core.stages import AnyStage, Fit
from refold.core.stages.parts import unread_from
from refold.core.system_messages import newest_instruction
from refold.model.message import Message, holds_compaction, tool
from refold.model.tokens import share_of

# Text that the model sees already, which quotes need not repeat


def terms_in_sight(folded: FoldedBranch, frame: Frame, *, before: int | None = None) -> set[int]:
    """The terms of everything that would be sent now, or of the part `before` a message. Quoting them again adds nothing."""
    lead = (folded.lead.block, *(message.text for message in folded.lead.messages))
    items = [item for item in folded.items.items if before is None or item.seq < before]
    return in_sight(folded.facts, seen_of(folded, items, (*system_texts(frame), *lead)))


def seen_of(folded: FoldedBranch, shown: Iterable[Item], texts: Iterable[str]) -> VisibleText:
    """The text in the model's view: messages in full, shortened messages, and other texts."""
    whole, partly = list[Item](), list[Item]()
    for item in shown:
        (whole if folded.is_original(item.message, item.seq) else partly).append(item)
    cut = (text_of(part) for item in partly for part in item.message.parts)
    return VisibleText((*texts, *cut), tuple(item.seq for item in whole), tuple(item.seq for item in partly))


def system_texts(frame: Frame) -> tuple[str, ...]:
    return tuple(message.text for message in frame.fixed.system)


KEPT_QUESTION_SHARE = 0.15
"""Share of the room. A longer question is left to the summary once the assistant has begun to answer it."""
LEAST_BESIDE = 0.05
"""Share of the room that uncut messages leave for a summary of everything else."""
SMALL_ROOM, LEAST_NOTE = 400, 100
"""In a room below so many tokens, that share is less than the frame of a note and a line of the task take: this much is left."""
LEAST = 50
"""Least tokens for a cut message: with fewer, only its handle would be left."""
WORTHWHILE = 8
"""Least tokens that a cut must save: the tokens of an image cannot be saved by cutting the text beside it."""


class NeededMessages(Struct, frozen=True):
    """Indices of the shown messages that the next reply requires."""

    unread: tuple[int, ...]
    """The results of the latest reply's calls, and the question if no reply followed it."""
    reply: tuple[int, ...]
    """The reply with the calls that these results answer."""
    others: tuple[int, ...]
    """The question in progress, pinned messages, provider settings, and the newest instruction within the conversation."""

    @property
    def all(self) -> frozenset[int]:
        return frozenset((*self.unread, *self.reply, *self.others))


def needed(folded: FoldedBranch, effective: int) -> NeededMessages:
    """The messages that must stay. `effective` is the number of tokens that the instructions leave for messages."""
    shown, items, size = folded.shown, folded.items.items, len(folded.shown)
    start, newest = unread_from(folded.items), newest_instruction(folded.instructions)
    results = [index for index in range(start, size) if shown[index].message.results]
    asked = folded.active if shown.turn_starts and not folded.is_turn_over else -1
    fixed = _fixed(folded) if newest is None else {newest, *_fixed(folded)}
    others = [index for index, item in enumerate(items) if item.seq in fixed] if fixed else []
    if 0 <= asked < start and shown[asked].tokens <= share_of(KEPT_QUESTION_SHARE, effective):
        others.append(asked)
    unread = {*results, asked} if asked >= start else {*results}
    reply = range(shown.progress.batch, start) if results else ()
    return NeededMessages(tuple(sorted(unread)), tuple(reply), tuple(others))


def _fixed(folded: FoldedBranch) -> frozenset[int]:
    """Numbers of the messages that must stay unchanged."""
    return folded.pinned | folded.settings


def fit_unread(folded: FoldedBranch, frame: Frame, now: Now) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    """Cut the unread messages if they do not fit. The branch is returned unchanged if they fit, or if cutting cannot help."""
    if fits(folded, frame, now):
        return folded, ()
    room, items = effective_for(frame, now), folded.items.items
    stays = needed(folded, room)
    is_everything = len(stays.all) == len(items) and not folded.summaries
    left = room - max(frame.bridge, 0 if is_everything else _beside(room))
    if sum(items[index].tokens for index in stays.all) <= left:
        return folded, ()
    fixed = _fixed(folded)
    pinned = {index for index in stays.all if items[index].seq in fixed}
    # The assistant's own reply is cut only if nothing of the unread messages would be left
    # otherwise.
    for cuttable in ({*stays.unread} - pinned, {*stays.unread, *stays.reply} - pinned):
        free = left - sum(items[index].tokens for index in stays.all - cuttable)
        most = fair_share([items[index].tokens for index in cuttable], free)
        if most >= LEAST:
            return _cut(folded, frame, cuttable, stays.all - cuttable, most)
    return folded, ()


def _beside(room: int) -> int:
    """Tokens that uncut messages leave for a summary of everything else."""
    least = min(LEAST_NOTE, 3 * room // 5, room - LEAST) if room < SMALL_ROOM else 0
    return max(share_of(LEAST_BESIDE, room), least)


def _cut(
    folded: FoldedBranch, frame: Frame, cuttable: Collection[int], beside: Collection[int], most: int
) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    """Shorten messages to at most `most` tokens each, leaving out terms that the messages beside them show."""
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


def _shortened(item: Item, most: int, folded: FoldedBranch, frame: Frame, covered: AbstractSet[int]) -> Item:
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


# Messages as they arrive, for policies with arrival stages

_BEFORE_CALL = Now("before_call")
REASON = "larger than its share"
SIXTH = 6
"""In a small room, the floor of a message is at most the room divided by this."""


def arrive(folded: FoldedBranch, frame: Frame, number: int) -> tuple[Message, tuple[Edit, ...]]:
    """The form in which an indexed original is to be shown, and the edits for its cuts."""
    entry, edits = folded.original(number), list[Edit]()
    item = Item(entry.message, number, entry.tokens)
    for stage in frame.policy.arrival if frame.policy.enabled else ():
        item, more = _apply_stage(item, stage, folded, frame)
        edits += more
    return item.message, tuple(edits)


def largest_result(frame: Frame) -> int:
    """Largest tool result, in tokens, that is shown in full as it arrives; 0 for no limit."""
    stages = frame.policy.arrival if frame.policy.enabled else ()
    limits = [_limit(stage, tool("", ""), _room(frame)) for stage in stages if isinstance(stage, Fit)]
    return min((limit for limit in limits if limit >= LEAST), default=0)


def _apply_stage(
    item: Item, stage: AnyStage, folded: FoldedBranch, frame: Frame
) -> tuple[Item, tuple[Edit, ...]]:
    """The item after one stage. `Fit` would cut by position; here the text to keep is chosen by content."""
    instructions, counter, room = frame.instructions, folded.shown.counter, _room(frame)
    if not isinstance(stage, Fit):
        shown, edits = reduce(
            ShownMessages((item,), 1), (stage,), Room(room, instructions, counter, folded.shown.dialect)
        )
        return (shown.items[0], edits) if shown.items else (item, ())
    limit = _limit(stage, item.message, room)
    if limit < LEAST or item.tokens <= limit:
        return item, ()
    short = _shortened(item, limit, folded, frame, terms_in_sight(folded, frame))
    edit = Edit("fit", item.seq, item.tokens, short.tokens, REASON, handle_of(item.seq))
    return (short, (edit,)) if item.tokens - short.tokens >= WORTHWHILE else (item, ())


def _room(frame: Frame) -> int:
    """Tokens for all messages together."""
    return max(0, limit_for(frame, _BEFORE_CALL) - frame.instructions)


def _limit(stage: Fit, message: Message, room: int) -> int:
    """Most tokens of a message; 0 for no limit."""
    share = stage.user_share if message.role == "user" else stage.input_share
    if message.results:
        share = stage.result_share
    if not share or message.role in ("system", "developer") or holds_compaction(message):
        return 0
    floor = min(stage.floor // CHARACTERS_PER_TOKEN, room // SIXTH)
    return max(floor, share_of(share, room))
