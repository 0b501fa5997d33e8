"""Shortens messages as they arrive, for policies with arrival stages. No preset has any.

A message is cut once, before it is sent for the first time, so the cut never changes bytes that a provider
has cached. It keeps its beginning, its end, the parts between them that the window does not show already,
and the user's rules in full. Messages that do not fit at all are cut under every policy, by
`core.unread_cut`.
"""

from __future__ import annotations

from refold.core.budget import share_of
from refold.core.digest.extract import CHARACTERS_PER_TOKEN
from refold.core.digest.ledger import rules
from refold.core.digest.pieces import ends
from refold.core.digest.shorten import MAX_LEDGER, shorten
from refold.core.digest.typed_text import said_by_user
from refold.core.emergency import reduce
from refold.core.fold import Folded
from refold.core.plan_inputs import Frame, Now, limit_for
from refold.core.shown import Edit, Item, Room, Shown, handle_of
from refold.core.stages import AnyStage, Fit
from refold.core.unread_cut import terms_in_sight
from refold.model.message import Message, holds_compaction, tool

_BEFORE_CALL = Now("before_call")
REASON = "larger than its share"
SIXTH = 6
"""In a small room, the floor of a message is at most the room divided by this."""
WORTHWHILE = 8
"""Least tokens that a cut must save: the tokens of an image cannot be saved by cutting the text beside it."""
LEAST = 50
"""Least tokens for a cut message: with fewer, only its handle would be left."""


def arrive(folded: Folded, frame: Frame, number: int) -> tuple[Message, tuple[Edit, ...]]:
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


def _apply_stage(item: Item, stage: AnyStage, folded: Folded, frame: Frame) -> tuple[Item, tuple[Edit, ...]]:
    """The item after one stage. `Fit` would cut by position; here the text to keep is chosen by content."""
    instructions, counter, room = frame.instructions, folded.shown.counter, _room(frame)
    if not isinstance(stage, Fit):
        shown, edits = reduce(
            Shown((item,), 1), (stage,), Room(room, instructions, counter, folded.shown.dialect)
        )
        return (shown.items[0], edits) if shown.items else (item, ())
    limit = _limit(stage, item.message, room)
    if limit < LEAST or item.tokens <= limit:
        return item, ()
    short = _shortened(item, limit, folded, frame)
    tokens = counter.message(short)
    edit = Edit("fit", item.seq, item.tokens, tokens, REASON, handle_of(item.seq))
    return (Item(short, item.seq, tokens), (edit,)) if item.tokens - tokens >= WORTHWHILE else (item, ())


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


def _shortened(item: Item, limit: int, folded: Folded, frame: Frame) -> Message:
    message = item.message
    return shorten(
        folded.facts,
        message,
        item.seq,
        limit=limit,
        window=frame.budget.window,
        counter=folded.shown.counter,
        covered=terms_in_sight(folded, frame),
        must=tuple(rules(ends(said.text, MAX_LEDGER))) if (said := said_by_user(message)) else (),
    )
