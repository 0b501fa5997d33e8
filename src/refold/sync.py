"""Conversations for scripts and notebooks: the library without `await`.

One idea: messages go in as a program has them, and what comes out are the fields of a request:

    talk = refold.sync.Conversation("gpt-4o-mini", system="You fix bugs.", tools=tools)
    talk.add("Why does the build fail?")
    reply = client.chat.completions.create(model="gpt-4o-mini", **talk.context())
    talk.record(reply.usage)
    talk.add(reply.choices[0].message)

Nothing that was added is ever changed or forgotten; only what `context` gives is made to fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from refold.compose import Prompt, Settings, dollars_for, open_memory
from refold.core.policy import Policy
from refold.engine.bill import Bill
from refold.engine.events import Listener
from refold.engine.lookup import is_handle, retrieve
from refold.engine.output_warning import warn_of_little_room
from refold.engine.receipts import Receipt
from refold.engine.refusal import read_refusal
from refold.engine.spelling import Spelling
from refold.engine.telling import Telling
from refold.model.errors import ConfigError, NotFound
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCounter
from refold.model.window import Fixed, Window
from refold.recall import MAX_TOKENS, BlockingTalk, most_tokens, read_arguments, room, tell
from refold.wire.plain import plain_message, read_message, read_usage

if TYPE_CHECKING:
    from refold.blocking import Engine

__all__ = ["Conversation", "Engine"]


class Conversation:
    """One chat and its context window. Not for use from several threads at once.

    `format` is the shape of your messages: "chat", "responses" or "anthropic". `on_event` is called with everything that is
    done to the context; see `refold.engine.events`.
    """

    def __init__(  # every setting has a default
        self,
        model: str = "",
        *,
        system: Prompt = None,
        tools: Sequence[object] = (),
        format: str = "chat",  # noqa: A002  # the word users know
        preset: str = "refold",
        policy: Policy | None = None,
        window: int | None = None,
        max_output: int | None = None,
        thinking_budget: int = 0,
        limit: int = 0,
        counter: TokenCounter | None = None,
        sensitive: Sequence[str] = (),
        on_event: Listener | None = None,
    ) -> None:
        settings = Settings(
            model=model, window=window, max_output=max_output, thinking_budget=thinking_budget, limit=limit,
            format=format, preset=preset, policy=policy, counter=counter, sensitive=sensitive,
        )  # fmt: skip
        self.memory, self.window = open_memory(settings, system, tools)
        """The engine's own state, and how large the window is and why."""
        self.memory.telling = Telling(on_event, dollars_for)
        self._tools = [*tools]
        self._spelling = Spelling()

    def add(self, *messages: object, sensitive: bool = False) -> None:
        """Add what was said: dictionaries, messages of an SDK, or a string for what the user says.

        System messages at the very beginning are taken for the system prompt. What is `sensitive` is sent to your model as
        ever and can be recalled by its handle, and stays out of every summary.

        Raises:
            WireError: a value is no message of this format.
        """
        dialect = self.memory.frame.fixed.dialect
        said = [read_message(value, dialect) for value in messages]
        while said and said[0].role in ("system", "developer") and not self.memory.folded.size:
            self.memory.instruct(_with_prompt(self.memory.frame.fixed, said.pop(0)))
            self.memory.secrecy.is_prompt_marked |= sensitive
        self.memory.add(*said, sensitive=sensitive)

    def context(self) -> dict[str, Any]:
        """The fields of the next request: its messages, system prompt and tools.

        The dictionaries of messages are given out again with the next context: do not change them. Ask for `max_output` tokens
        with it: where instructions and output leave messages little room, that is less than the conversation was made with.

        Raises:
            DoesNotFit: nothing more can be taken away, and it is still too much.
            InvalidWindow: the messages cannot be sent, such as a call that waits for its result.
        """
        warn_of_little_room(self.memory)
        return self.fields(self.memory.context())

    @property
    def max_output(self) -> int:
        """How many tokens of output to ask for with the last context: as many as the conversation was made with, or fewer where
        the request would not have fitted otherwise.
        """
        return self.memory.output

    def record(self, usage: object) -> None:
        """Take in what the provider reported: a reply's `usage`, or the whole reply. None is fine too."""
        self.memory.record(read_usage(usage, self.memory.frame.fixed.dialect))

    def compact(self) -> dict[str, Any]:
        """Compact now, whatever the thresholds say, and give the fields of the next request."""
        return self.fields(self.memory.compact())

    def undo(self) -> bool:
        """Take back the last thing that was done to the context; False where there is none."""
        return self.memory.undo()

    def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """The original behind a handle such as `#m12`, or else passages of everything ever said that fit the words.

        Raises:
            NotFound: nothing has this handle.
        """
        try:
            found = retrieve(what, self.memory.folded)
        except NotFound:
            if is_handle(what):
                raise
            return self.memory.search(what, max_tokens=max_tokens)
        if isinstance(found, Summary):
            return found.text
        return plain_message(found, self.memory.frame.fixed.dialect)

    def recover(self, error: object) -> dict[str, Any]:
        """The fields of a smaller request, after a provider has refused the last one as too long.

        `error` is what an SDK raised, or the body of the answer.

        Raises:
            RecoverySpent: the error is no overflow, or nothing smaller can be sent.
        """
        return self.fields(self.memory.recover(*read_refusal(error)))

    def instruct(self, fixed: Fixed) -> None:
        """Go on with another system prompt and other tools; the format stays.

        Raises:
            BudgetError: they leave no room for a conversation.
        """
        self.memory.instruct(fixed)
        self._tools = [msgspec.json.decode(tool.raw) for tool in fixed.tools if tool.raw is not None]

    def fields(self, window: Window) -> dict[str, Any]:
        """A window as the fields of a request."""
        tools = {"tools": self._tools} if self._tools else {}
        return {**self._spelling.fields(window), **tools}

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """Everything that was done on its own, with the reason."""
        return tuple(self.memory.receipts)

    @property
    def measurement(self) -> Measurement:
        """The size of the window, region by region."""
        return self.memory.measurement

    @property
    def bill(self) -> Bill:
        """What was spent, and what was saved, by the reports so far."""
        return self.memory.bill


def answer_recall(
    talk: BlockingTalk, arguments: str | Mapping[str, object], *, max_tokens: int = MAX_TOKENS
) -> str:
    """What a model gets for a call of the recall tool; see `refold.recall.answer_recall`."""
    try:
        asked, most = read_arguments(arguments), most_tokens(talk.memory, max_tokens)
        return tell(asked, talk.recall(asked.what, max_tokens=room(most)), talk.memory, max_tokens=most)
    except (ConfigError, NotFound) as error:
        return f"error: {error}"


def _with_prompt(fixed: Fixed, message: Message) -> Fixed:
    """One more system message; where a format has a single system prompt, one more part of it."""
    if fixed.dialect.name != "anthropic":
        return structs.replace(fixed, system=(*fixed.system, message))
    before = fixed.system[0] if fixed.system else Message("system", ())
    return structs.replace(fixed, system=(before.with_parts((*before.parts, *message.bare().parts)),))


def __getattr__(name: str) -> object:
    """`Engine` needs a loop and a store; most scripts need neither."""
    if name == "Engine":
        return import_module("refold.blocking").Engine
    raise AttributeError(f"module 'refold.sync' has no attribute {name!r}")
