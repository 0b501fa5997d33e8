"""All that was ever said, for a summary that is made from everything.

After a restart memory begins where the shown summaries end, and the store has the rest. What is read here goes into the source of
one summary; memory stays as it is, whatever arrives meanwhile.
"""

from __future__ import annotations

from msgspec import structs

from refold.core.fold import Folded
from refold.core.view import View
from refold.engine.journal import Journal
from refold.engine.memory import Memory
from refold.text_work import run_text_work


async def with_originals(journal: Journal, memory: Memory, folded: Folded, first: int = 0) -> Folded:
    """A branch with its messages from the number `first` on."""
    if folded.origin <= first:
        return folded
    earlier = await journal.originals(memory, first, folded.origin)
    view = folded.shown
    empty = View(view.dialect, view.counter, view.key, view.continues)
    messages = (*(one.message for one in earlier), *folded.branch.messages())
    branch = await run_text_work(sum(one.characters for one in messages), empty.extend, messages)
    held = folded.held | {one.number for one in earlier if one.is_secret}
    return structs.replace(folded, branch=branch, origin=first, told=0, held=held)
