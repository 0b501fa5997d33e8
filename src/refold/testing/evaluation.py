"""An adapter for evaluations: a conversation behind four plain functions with a stable interface.

    adapter = EvaluationAdapter(preset="refold")
    adapter.start(system, tools, window)      a new conversation; the window limits all that is sent
    adapter.add(message)                      one Chat Completions message, in order, also real replies
    adapter.context() -> messages             the messages to send now, system messages first
    adapter.recall(query, max_tokens) -> str  passages of the conversation that match the words

It is a `refold.sync.Conversation` in memory, with the digest as its summariser, so that evaluations measure
the same code that users run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from refold.core.presets import PRESETS
from refold.model.errors import ConfigError
from refold.model.tokens import Share, TokenCounter
from refold.sync import Conversation


class EvaluationAdapter:
    """One way to keep a conversation inside a window; `start` begins a new conversation. Without the preset's
    reserve the messages may fill the window, as in `refold replay --output 0 --reserve 0`.
    """

    def __init__(
        self,
        preset: str = "refold",
        *,
        model: str = "",
        counter: TokenCounter | None = None,
        keeps_reserve: bool = True,
    ) -> None:
        self.name = preset
        self._model, self._counter = model, counter
        self._keeps_reserve = keeps_reserve
        self._chat: Conversation | None = None

    def start(
        self, system: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, window: int
    ) -> None:
        """
        Raises:
            ConfigError: there is no such preset, or the system prompt is no list of messages.
            BudgetError: system prompt and tools leave no room in the window.
        """
        if isinstance(system, str | Mapping):
            raise ConfigError(
                "the system prompt must be a list of messages",
                hint='such as [{"role": "system", "content": "Be brief."}], or [] for none',
            )
        policy = None if self._keeps_reserve else PRESETS.get(self.name)
        self._chat = Conversation(
            self._model,
            tools=tools or (),
            preset=self.name,
            policy=policy and structs.replace(policy, reserve=Share(0.0)),
            window=window,
            max_output=0,
            counter=self._counter,
        )
        self._chat.add(*system)

    def add(self, message: Mapping[str, Any]) -> None:
        self._started.add(message)

    def context(self) -> list[dict[str, Any]]:
        """
        Raises:
            WindowError: nothing can be sent.
        """
        messages: list[dict[str, Any]] = self._started.context()["messages"]
        return messages

    def recall(self, query: str, max_tokens: int) -> str:
        return self._started.search(query, max_tokens=max_tokens)

    @property
    def _started(self) -> Conversation:
        if self._chat is None:
            raise ConfigError("no conversation was started", hint="call start() first")
        return self._chat
