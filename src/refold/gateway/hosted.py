"""A conversation whose client keeps the history: it comes in with every request, and what leaves is answered elsewhere.

One idea: taking a request in is one act. What is new is added, the window is made, and both are kept together or not at all.
What a provider answers is kept beside the call; it joins the conversation when the client sends it back, as the client has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import is_

from msgspec import Struct, structs

from refold.core.assemble import assemble
from refold.core.fold import Folded
from refold.core.frame import output_for
from refold.core.measure import count_fixed
from refold.core.plan import SummaryRequest
from refold.core.policy import Policy
from refold.durable import DurableConversation
from refold.engine import snapshot
from refold.engine.framing import frame_for
from refold.engine.hindsight import Sent, noted_call
from refold.engine.journal import encoder
from refold.engine.learning import begin_with, keep_learnt
from refold.engine.memory import FOREIGN
from refold.engine.moments import now_of
from refold.engine.receipts import Receipt
from refold.gateway.watching import Outcome
from refold.model.budget import Budget
from refold.model.errors import (
    DoesNotFit,
    HeldElsewhere,
    InvalidWindow,
    RecoverySpent,
    RefoldError,
    StoreError,
)
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.model.window import Fixed, Window
from refold.ports.store import Call
from refold.ports.summariser import Summariser
from refold.text_work import run_text_act


class Moved(RefoldError):
    """The branch is no longer where the request was thought to go on."""


class NotStored(RefoldError):
    """A request was taken in and its window made, and the store did not take it."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made = made


class NeedsBranch(RefoldError):
    """An earlier request cannot be answered again without a change to what is shown, which needs a branch of its own."""


class Terms(Struct, frozen=True):
    """What one request is made with."""

    fixed: Fixed
    budget: Budget
    policy: Policy
    twins: Mapping[int, Message] = {}
    """What to show instead of compactions that another provider or model made, by their numbers."""


class Made(Struct, frozen=True, dict=True):
    """A window that was made, of what, and what was done for it. Where none could be made, `problem` says why."""

    window: Window | None
    sent: Folded
    note: Sent
    receipts: tuple[Receipt, ...] = ()
    problem: RefoldError | None = None

    @cached_property
    def is_plain(self) -> bool:
        """Is every message shown as it came, and nothing besides? Then the client's own bytes say it."""
        window, sent = self.window, self.sent
        if window is None:
            return True
        is_more = window.before or window.summaries or window.block
        is_whole = not (is_more or sent.origin) and len(sent.shown) == len(sent.branch)
        return is_whole and all(map(is_, window.messages, sent.branch.messages()))

    @property
    def is_as_sent(self) -> bool:
        """Is nothing of it to be written in another way than the client did?"""
        return self.is_plain and not (self.window and self.window.breakpoints)

    @property
    def bare(self) -> Window | None:
        """The window without any cache breakpoints of ours."""
        window = self.window
        return window and assemble(window.fixed, self.sent.shown.messages(), self.sent.lead)


class HostedConversation(DurableConversation):
    """One branch, as requests go on with it."""

    @property
    def model(self) -> str:
        return self._journal.model

    @property
    def format(self) -> str:
        return self._talk.memory.frame.fixed.dialect.name

    @property
    def size(self) -> int:
        return self._journal.seen.next_seq

    async def take(
        self,
        size: int,
        messages: Sequence[Message],
        hashes: Sequence[bytes],
        terms: Terms,
        *,
        claims: bytes = b"",
        new: int = 0,
    ) -> Made:
        """Add what a request brings to the first `size` messages, and make the window for it; `new` is how much text it brings.
        `claims` is the hash that no other branch may hold, see `Batch.claims`.

        Raises:
            Moved: the branch has another number of messages.
            HeldElsewhere: the conversation went on in another branch; nothing was kept.
            NotStored: the window is there, but nothing was kept, or nobody knows.
            StoreError: the branch cannot be read.
        """
        made: Made | None = None

        def act() -> tuple[Made, SummaryRequest | None]:
            nonlocal made
            made = self._take(size, messages, terms)
            return made, self._ahead()

        self._journal.chains, self._journal.claims = dict(enumerate(hashes, size)), claims
        try:
            taken, ahead = await self._kept(act, writes=bool(messages), new=new)
        except StoreError as error:
            if made is None or isinstance(error, HeldElsewhere):
                raise
            raise NotStored(made) from error
        taken = self._noted(taken)
        self._write_ahead(ahead)
        return taken

    async def take_earlier(self, size: int, terms: Terms, text_size: int) -> Made:
        """The window for the first `size` messages, where a client asks again for an answer that the branch has gone on from.
        Nothing is added to the branch: it is read as it was then. For a conversation that was opened for this request alone;
        `text_size` is how much text the request has.

        Raises:
            NeedsBranch: the messages do not fit as they were shown then.
            StoreError: they are not kept, or cannot be read.
        """
        memory = self._talk.memory
        memory.restore(await self._journal.shown_at(memory, size))

        def take() -> Made:
            made = self._take(size, (), terms)
            only = b"" if made.is_plain else snapshot.write(made.sent, encoder(memory), in_words=True)
            return structs.replace(made, note=Sent(made.sent.size, only=only, marks=memory.last_marks))

        made = await run_text_act(text_size, take)
        if made.problem or any(receipt.reason != FOREIGN for receipt in made.receipts):
            raise NeedsBranch
        return made

    def in_words(self, made: Made, twins: Mapping[int, Message]) -> Made:
        """A window that was made for one upstream, for another one: with other twins, see `Terms`."""
        if made.window is None:
            return made
        sent = made.sent.in_words(twins)
        only = snapshot.write(sent, encoder(self._talk.memory), in_words=True)
        window = assemble(made.window.fixed, sent.shown.messages(), sent.lead)
        return structs.replace(made, window=window, sent=sent, note=Sent(sent.size, only=only))

    async def begin(self) -> None:
        """Go on with a branch of which nothing is there yet, and what is known about its model."""
        self._is_behind, self._is_open = False, True
        await begin_with(self._journal, self._talk.memory)

    def carry(self, summary: Summary | None) -> None:
        """Begin with a summary of the first messages that was written elsewhere, once there is need for one."""
        if summary is not None and summary.last:
            self._talk.memory.prepare(summary)

    def written_by(self, summariser: Summariser | None) -> None:
        """From now on, have summaries written by somebody else; one that is being written comes to its end."""
        self._summariser = summariser

    async def _find_twins(self) -> None:
        """They are found for each request: the same model may be asked elsewhere."""

    def _take(self, size: int, messages: Sequence[Message], terms: Terms) -> Made:
        memory = self._talk.memory
        if memory.folded.size != size:
            raise Moved
        memory.twins = terms.twins
        done = len(memory.receipts)
        problem = self._meet(terms)
        memory.add(*messages, at_once=True)
        if problem is None:
            try:
                memory.context()
            except (DoesNotFit, InvalidWindow) as error:
                problem = error
        return self._made(done, problem)

    def _noted(self, made: Made) -> Made:
        """With what to remember of it: the id of a change is known once it is kept."""
        return structs.replace(made, note=self._sent or made.note) if made.window else made

    def _meet(self, terms: Terms) -> RefoldError | None:
        """Go on by other terms, where they are others."""
        memory = self._talk.memory
        now, counter = memory.frame, memory.folded.shown.counter
        if (now.fixed, now.budget, now.policy) == (terms.fixed, terms.budget, terms.policy):
            return None
        try:
            memory.frame = frame_for(terms.fixed, terms.budget, terms.policy, counter, now.prices)
        except RefoldError as error:
            # Whatever leaves, leaves with this request's own instructions.
            cost = count_fixed(terms.fixed, counter)
            memory.frame = structs.replace(
                now, fixed=terms.fixed, cost=cost, budget=terms.budget, policy=terms.policy
            )
            return error
        return None

    def _made(self, done: int, problem: RefoldError | None = None) -> Made:
        memory = self._talk.memory
        window = memory.last_window if problem is None else None
        receipts = tuple(memory.receipts[done:])
        sent = memory.sent if window else memory.folded
        if isinstance(problem, InvalidWindow) and (sent.lead.tokens or sent.edited):
            # What is wrong is the client's own, and the provider's to judge; what was compacted stays so.
            window = assemble(memory.frame.fixed, sent.shown.messages(), sent.lead)
            output = output_for(sent, memory.frame, now_of(memory, "before_call"))
            if output < memory.frame.budget.max_output:
                window = structs.replace(window, output=output)
        return Made(window, sent, Sent(sent.size), receipts, problem)

    async def shrink(self, status: int | None, body: bytes, *, held: int | None = 0) -> Made:
        """The next smaller window after a provider's refusal as too long; `held` as in `Memory.recover`.

        Raises:
            RecoverySpent: it was no such refusal, or nothing smaller can be sent.
        """
        memory = self._talk.memory
        done = len(memory.receipts)

        def act() -> Made:
            try:
                memory.recover(status, body, held=held)
            except RecoverySpent as error:
                return self._made(done, error)
            return self._made(done)

        made = await self._kept(act, new=len(body))
        if made.problem is not None:
            raise made.problem
        return self._noted(made)

    def count_sent(self, made: Made) -> int:
        """What a request takes with its instructions, in tokens, as far as it was sent from here."""
        return self._talk.memory.frame.instructions + made.sent.tokens

    async def answered(self, made: Made, outcome: Outcome, call_id: str, *, held: int = 0) -> None:
        """Keep what came of a call: what was used, and what was said. Of the usage, `held` tokens are of messages that the provider alone
        has.
        """
        memory = self._talk.memory
        noted = noted_call(self._journal, memory, outcome.usage or Usage(), made.note)
        call: Call = structs.replace(noted, id=call_id, reply=outcome.reply)
        before = await self._kept(
            lambda: self._heard(made, outcome, held), [call], writes=True, is_brief=True
        )
        if before is not None:
            await keep_learnt(self._journal, memory, before)

    def _heard(self, made: Made, outcome: Outcome, held: int = 0) -> tuple[float, int | None] | None:
        """Take in what came of the last request, and say what was known before; an earlier one's tells nothing of this window."""
        memory = self._talk.memory
        if memory.sent is not made.sent or not outcome.is_answered:
            return None
        before = memory.calibration.ratio, memory.limits.stated
        memory.answered()
        if outcome.usage is not None:
            memory.record(outcome.usage.without(held))
        return before
