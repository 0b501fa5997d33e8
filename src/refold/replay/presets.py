"""Presets as candidates: the engine itself, asked for a context before every recorded reply.

A preset with a model and one without differ only in the author of the summaries. A model's summary is
available at once, as in a conversation in which it was requested in time; if the model fails, the same digest
is used as without a model.
"""

from __future__ import annotations

from functools import partial

from msgspec import structs

from refold.core import extractive_summary
from refold.core.fold import FoldedBranch
from refold.core.plan import SummaryRequest
from refold.core.plan_inputs import Frame
from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.core.stage import HANDLE_PATTERN
from refold.engine import actions
from refold.engine.state import Receipt, State
from refold.engine.summary_source import task_of
from refold.model.dialect import CHAT
from refold.model.errors import ConfigError
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Budget, Prices, Share, TokenCounter, Tokens
from refold.model.window import FixedFields, Tool
from refold.replay.candidate import WHOLE_WINDOW, CandidateChange, CandidateMaker, ReplayBudget, WritingCost
from refold.replay.cost import ANTHROPIC
from refold.replay.summarisers import BlockingAuthor, OpenSummarisers, ReplaySummarisers

_PRICES = Prices(ANTHROPIC.input, ANTHROPIC.output, ANTHROPIC.cache_read, ANTHROPIC.cache_write)
"""The prices that the replay bills by."""


class PresetCandidate:
    """A conversation in memory under one preset, with the extractive summariser. Tools take nothing of the
    window.
    """

    handle = HANDLE_PATTERN

    def __init__(self, preset: str) -> None:
        self.name = self._preset = preset
        self._kept_free = WHOLE_WINDOW

    def leave(self, budget: ReplayBudget) -> None:
        self._kept_free = budget

    @property
    def output(self) -> int:
        return self._state.output

    def start(
        self,
        system: tuple[Message, ...],
        tools: tuple[Tool, ...],  # noqa: ARG002  # tools cost nothing in a replay
        window: int,
        counter: TokenCounter,
    ) -> None:
        fixed, policy, free = FixedFields(CHAT, system), PRESETS[self._preset], self._kept_free
        budget = Budget(
            window=window, max_output=free.output_in(window), is_output_stated=free.output is not None
        )
        if free.reserve is not None:
            budget = structs.replace(budget, reserve=Tokens(free.reserve))
            policy = structs.replace(policy, reserve=Share(0.0))
        self._state = State.begin(fixed, budget, policy, counter, prices=_PRICES, summarise=self._summarise)
        self._reported = 0

    def add(self, message: Message) -> None:
        self._state = actions.add(self._state, [message]).state

    def context(self) -> tuple[Message, ...]:
        done = actions.context(self._state)
        self._state, window = done.state, done.sendable
        return (*window.system, *window.sent)

    def recall(self, query: str, max_tokens: int) -> str:
        return actions.search(self._state, query, max_tokens=max_tokens)

    def changes(self) -> list[CandidateChange]:
        new = self._state.receipts[self._reported :]
        self._reported += len(new)
        return [CandidateChange(made.decision, self._reason(made), made.before, made.after) for made in new]

    def _reason(self, made: Receipt) -> str:
        return made.reason

    def _summarise(self, request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary | None:
        return extractive_summary.summarise(request, folded, frame)


class WrittenCandidate(PresetCandidate):
    """A preset with a model that writes the summaries."""

    def __init__(self, preset: str, author: BlockingAuthor, recipe: Recipe) -> None:
        super().__init__(preset)
        self.name = f"{preset} + {author.name}"
        self._author, self._recipe, self._writing = author, recipe, WritingCost()

    def writing(self) -> WritingCost:
        found, self._writing = self._writing, WritingCost()
        return found

    def _reason(self, made: Receipt) -> str:
        if made.summary is None:
            return made.reason
        author = "by the model" if made.summary.kind == "model" else "the model failed, a digest serves"
        return f"{made.reason}; {author}"

    def _summarise(self, request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary | None:
        task = task_of(request, folded, frame, sent=self._state.window)
        written = self._author.write(task, self._recipe)
        self._writing += written.writing
        return written.summary or super()._summarise(request, folded, frame)


def candidates(presets: tuple[str, ...], opened: OpenSummarisers | None = None) -> list[CandidateMaker]:
    """Makers for presets by name, each with each of the opened summarisers; without any, with the digest.

    Raises:
        ConfigError: there is no preset with this name.
    """
    for name in presets:
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}", hint=f"choose from: {', '.join(PRESETS)}")
    if opened is None:
        return [partial(PresetCandidate, name) for name in presets]
    return [_maker(name, author, opened.order) for name in presets for author in opened.authors]


def _maker(preset: str, author: BlockingAuthor | None, order: ReplaySummarisers) -> CandidateMaker:
    if author is None:
        return partial(PresetCandidate, preset)
    return partial(WrittenCandidate, preset, author, order.recipe_of(PRESETS[preset].recipe))
