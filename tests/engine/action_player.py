"""A conversation without a store, for tests of actions: every act replaces its state by the outcome's."""

from __future__ import annotations

from msgspec import structs

from refold.core import extractive_summary
from refold.core.budget import Frame
from refold.core.fold import FoldedBranch
from refold.core.policy import Policy
from refold.engine import actions
from refold.engine.actions import Outcome
from refold.engine.events import Event, Undone, sized
from refold.engine.recall import look_up
from refold.engine.state import Change, Secrecy, State
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Budget, Prices, TokenCounter, Usage
from refold.model.window import FixedFields, Window


class Played:
    """Messages go in, windows come out. What it does not define itself is read from its state."""

    def __init__(
        self,
        fixed: FixedFields,
        budget: Budget,
        policy: Policy,
        counter: TokenCounter,
        summarise=extractive_summary.summarise,
        prices: Prices | None = None,
        secrecy: Secrecy | None = None,
    ) -> None:
        self.state = State.begin(
            fixed, budget, policy, counter, prices=prices, secrecy=secrecy, summarise=summarise
        )
        self.changes: list[Change] = []
        self.events: list[Event] = []

    def __getattr__(self, name: str):
        return getattr(self.__dict__["state"], name)

    def set(self, **fields) -> None:
        self.state = structs.replace(self.state, **fields)

    def take(self, done: Outcome) -> Window | None:
        self.state = done.state
        self.changes += done.changes
        self.events += done.events
        if done.problem is not None:
            raise done.problem
        return done.window

    @property
    def frame(self) -> Frame:
        return self.state.frame

    @frame.setter
    def frame(self, frame: Frame) -> None:
        self.set(frame=frame)

    @property
    def folded(self) -> FoldedBranch:
        return self.state.folded

    @folded.setter
    def folded(self, folded: FoldedBranch) -> None:
        self.set(folded=folded)

    def add(self, *messages: Message, sensitive: bool = False) -> None:
        self.take(actions.add(self.state, messages, sensitive=sensitive))

    def add_at_once(self, *messages: Message) -> None:
        """Add a history that comes with one stateless request."""
        frame = self.state.frame
        request = actions.RequestTerms(frame.fixed, frame.budget, frame.policy)
        done = actions.take_request(self.state, messages, request)
        self.take(structs.replace(done, problem=None))

    def context(self) -> Window:
        return self.take(actions.context(self.state))

    def compact(self, keep: int | None = None, cut: int | None = None) -> Window:
        return self.take(actions.compact(self.state, keep=keep, cut=cut))

    def record(self, usage: Usage | None) -> None:
        self.take(actions.record(self.state, usage))

    def take_count(self, tokens: int) -> None:
        self.take(actions.take_count(self.state, tokens))

    def recover(self, status: int | None, body: object, *, held: int | None = 0) -> Window:
        return self.take(actions.recover(self.state, status, body, held=held))

    def undo(self) -> bool:
        """Show what was shown before the last change, and what was said since."""
        if not self.changes:
            return False
        change, known = self.changes.pop(), self.state.folded
        folded = shown_before(change.before, known)
        since = known.size - change.before.size
        for offset, message in enumerate(known.shown.messages(len(known.shown) - since)):
            original = known.original(change.before.size + offset).message
            folded = folded.display(original if offset < change.raw else message)
        self.set(folded=folded, prepared=None)
        receipt = change.receipt
        sizes = sized(self.state, known), sized(self.state)
        self.events.append(
            Undone(decision=receipt.decision, reason=receipt.reason, before=sizes[0], after=sizes[1])
        )
        return True

    def ahead(self):
        return actions.ahead(self.state)

    def wanted_now(self, cut: int | None = None):
        return actions.wanted_now(self.state, cut)

    def restore(self, folded: FoldedBranch) -> None:
        self.state = self.state.showing(folded)
        self.changes.clear()

    def prepare(self, summary: Summary) -> None:
        self.set(prepared=summary)

    def recall(self, handle: str):
        return look_up(handle, self.state.folded)

    def search(self, query: str, *, max_tokens: int = 1_000) -> str:
        return actions.search(self.state, query, max_tokens=max_tokens)


def shown_before(earlier: FoldedBranch, known: FoldedBranch) -> FoldedBranch:
    """All that is known now, shown as it was at an earlier time; what came since is not shown yet. A stored conversation reads this
    from its store instead.
    """
    fields = ("branch", "facts", "noted", "replies", "task", "asked", "held", "past", "numbered")
    now = {name: getattr(known, name) for name in fields}
    return structs.replace(earlier, declined=known.size, **now)
