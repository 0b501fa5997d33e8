"""A compaction that is done again, by another policy or another model.

One idea: until there is something better, what was there stays. The compaction is taken back, so that the same messages can be
summed up anew; if nothing comes of that, because the model fails or somebody stops it, the old one is put back as it was.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Any

from refold.conversation import Summarise
from refold.core.policy import Policy
from refold.engine.author import summariser_of
from refold.engine.redo import Taken, last_change, put_back
from refold.engine.telling import Act
from refold.engine.work import settled
from refold.model.errors import InvalidWindow, RefoldError, StoreError, SummaryError
from refold.ports.store import Compaction
from refold.ports.summariser import Summariser
from refold.stepping import Stepping

_log = logging.getLogger("refold")


class Rerunning(Stepping):
    """A kept conversation whose last compaction can be done again."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._again: asyncio.Task[bool] | None = None

    async def rerun(
        self, *, preset: Policy | None = None, summariser: Summariser | Summarise | None = None
    ) -> bool:
        """Do the last compaction of this session again, on the same messages, by another policy or another summariser; False
        where there is none. Until it is done everything else waits, and what is stopped or fails leaves the old one.

        Raises:
            SummaryError: nothing came of it.
            StoreError: the conversation was closed meanwhile.
        """
        async with self._compacting:
            again = self._again = asyncio.create_task(self._rerun(preset, summariser))
            try:
                return await again
            except asyncio.CancelledError:
                asking = asyncio.current_task()
                if asking is not None and asking.cancelling():
                    raise
                raise StoreError(
                    "the conversation was closed meanwhile, and its compaction is as it was",
                    hint="open it again to do it once more",
                ) from None

    async def close(self) -> None:
        """Stop what goes on in the background; a compaction that is being done again is put back first."""
        again = self._again
        if again is not None and not again.done():
            again.cancel()
            await asyncio.wait({again})
        await super().close()

    async def _rerun(self, preset: Policy | None, summariser: Summariser | Summarise | None) -> bool:
        async with self._one_at_a_time:
            await self._stop_writing()
            await self._catch_up()
            memory = self._talk.memory
            taken = Taken(memory.folded)
            with memory.telling.act(memory, "rerun") as act:
                try:
                    return await self._redone(act, taken, preset, summariser)
                except BaseException:
                    await self._put_back(taken)
                    raise

    async def _redone(
        self, act: Act, taken: Taken, preset: Policy | None, summariser: Summariser | Summarise | None
    ) -> bool:
        cut, memory = await self._take_back(taken), self._talk.memory
        if cut is None:
            return False
        frame, memory.frame = memory.frame, self._framed(preset)
        try:
            await self._write_up_to(cut, summariser)
            await self._keep(lambda: self._fold_at(cut, act))
        finally:
            memory.frame = frame
        if self._journal.session.id == taken.base:
            raise SummaryError("nothing is gained by doing it this way; the compaction is as it was")
        return True

    async def _take_back(self, taken: Taken) -> int | None:
        """Undo the last compaction of this session and all that was done since; where it cut, None where there is none.

        What was shortened as it arrived stays short: it was never shown otherwise.
        """
        wanted, is_undone = await last_change(self._journal, "summarise"), False
        while wanted is not None and not is_undone:
            change = await last_change(self._journal, "summarise", "reduce") or wanted
            await self._undo(change)
            taken.changes.append(change)
            is_undone = change.id == wanted.id
        return wanted.cut if wanted else None

    async def _undo(self, change: Compaction) -> None:
        await self._step(lambda: self._journal.undo(self._talk.memory, change))

    async def _put_back(self, taken: Taken) -> None:
        if not taken.changes:
            return
        try:
            await settled(self._step(lambda: put_back(self._journal, self._talk.memory, taken)))
        except RefoldError as error:
            _log.warning("a compaction that was taken back could not be put back: %s", error.message)

    async def _write_up_to(self, cut: int, summariser: Summariser | Summarise | None) -> None:
        memory = self._talk.memory
        count = memory.folded.shown.counter.text
        author = summariser_of(summariser, memory.frame.fixed.dialect, count) or self._summariser
        if author is None or memory.frame.policy.recipe.strategy == "extractive":
            return
        request = await self._acted(partial(memory.asked_for, cut), memory.text_size)
        if request is None:
            return
        await self._write(request, author)
        if self._asked is None:
            raise SummaryError(
                "no summary could be had, and the compaction is as it was",
                hint="the model failed, rests after failing, or the money for it is spent; the log says why",
            )

    def _fold_at(self, cut: int, act: Act) -> None:
        memory = self._talk.memory
        # Where no call can follow yet, what is shown changes all the same.
        with memory.telling.within(act), suppress(InvalidWindow):
            memory.compact(cut=cut)
