"""Make what is shown whole again where messages arrived broken.

One idea: a client may bring a result without its call, an id used twice, an empty message. The original stays in the branch as
it came; what is shown of it is repaired once, with an edit for everything that was taken away.
"""

from __future__ import annotations

from refold.core.fold import Folded
from refold.core.pairs import repair
from refold.core.stages.shown import Edit, Item, handle_of
from refold.core.thoughts import thoughtless

_SET_RIGHT = ("starts_without_user", "too_many_breakpoints")
"""A bridge helps the one; of too many breakpoints the oldest are left out."""
_SET_RIGHT_FIRST = "system_without_user"
"""Of the first message after the summaries: one of them or a bridge stands before it."""
REASON = "the messages broke a rule of their format"
VOID = "the provider no longer takes the thoughts that it signed"


def is_broken(folded: Folded) -> bool:
    """Is anything wrong with the messages shown that assembling a window does not set right?"""
    return any(
        found.rule not in _SET_RIGHT and (found.rule, found.index) != (_SET_RIGHT_FIRST, folded.opening)
        for found in folded.shown.violations()
    )


def forget_thoughts(folded: Folded) -> tuple[Folded, tuple[Edit, ...]]:
    """What is shown, without any signed thought: the provider says that they no longer hold."""
    if not folded.shown.dialect.signed_thinking or not (folded.edited or folded.lead.tokens):
        return folded, ()  # nothing was shown another way than it came, so it is not our doing
    items = folded.items.items
    kept = thoughtless(items, folded.size, folded.shown.counter)
    edits = tuple(
        Edit("mend", item.seq, item.tokens, left.tokens, VOID, handle_of(item.seq))
        for item, left in zip(items, kept, strict=True)
        if item is not left
    )
    return (folded.show(kept) if edits else folded), edits


def mend(folded: Folded, *, as_request: bool = False) -> tuple[Folded, tuple[Edit, ...]]:
    """What is shown, with calls and results made whole. As a request, calls that still wait for a result go as well."""
    items, view = folded.items.items, folded.shown
    messages = [item.message for item in items]
    found = repair(
        messages,
        view.dialect,
        as_request=as_request,
        continues=view.continues,
        follows_user=folded.lead.ends_with_user,
    )
    count = view.counter.message
    pairs = zip(found.messages, found.origins, strict=True)
    kept = [Item(message, items[at].seq, count(message)) for message, at in pairs]
    mended = folded.show(kept)
    after = dict[int, int]()
    for index, item in enumerate(kept):
        after[item.seq] = after.get(item.seq, 0) + mended.shown[index].tokens
    edits = tuple(
        Edit("mend", item.seq, item.tokens, after.get(item.seq, 0), REASON, handle_of(item.seq))
        for item in items
        if after.get(item.seq, 0) != item.tokens
    )
    return mended, edits
