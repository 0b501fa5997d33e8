"""Everything ever said, in memory again.

One idea: after a restart memory begins where the shown summaries end, and the store has the rest. Whoever needs the rest puts
it back before what is there, whatever arrives meanwhile.
"""

from __future__ import annotations

from msgspec import structs

from refold.core.view import View
from refold.engine.journal import Journal
from refold.engine.memory import Memory


async def hold_originals(journal: Journal, memory: Memory) -> None:
    """Have all messages of the branch in memory."""
    while origin := memory.folded.origin:
        earlier = await journal.originals(memory, 0, origin)
        folded = memory.folded  # not the one from before: messages arrive while the store is read
        if folded.origin != origin:
            continue
        view = folded.shown
        empty = View(view.dialect, view.counter, view.key, view.continues)
        branch = empty.extend((*(one.message for one in earlier), *folded.branch.messages()))
        memory.folded = structs.replace(folded, branch=branch, origin=0, told=0)
