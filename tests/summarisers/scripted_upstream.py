"""A model that answers from a script, and something for it to summarise. tests/e2e asks models over HTTP."""

from __future__ import annotations

from msgspec import structs

from refold.core.prompts import Passage
from refold.model.message import Message, Text
from refold.model.tokens import Usage
from refold.ports.models import SummaryTask
from refold.summarisers import SummaryWriter
from refold.wire.reply import Reply
from tests.engine.conversations import agent_turn

GOOD = "## Goal\nAnswer question 0 and the others.\n## Progress\n### Done\nRead src/f0.py and answered."


def said(text: str, finish: str = "stop", *parts) -> Reply:
    return Reply(
        (Message("assistant", (Text(text), *parts) if text else parts),), Usage(100, output=20), finish
    )


class Scripted:
    """An upstream that answers from a list, and remembers what it was asked."""

    def __init__(self, *answers, model="small") -> None:
        self.model, self.answers, self.asked = model, list(answers), []

    async def ask(self, ask):
        self.asked.append(ask)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = answer(ask) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Reply) else said(answer)

    @property
    def questions(self) -> list[str]:
        return [ask.messages[-1].text for ask in self.asked]


def writer(upstream, window=100_000) -> SummaryWriter:
    return SummaryWriter(upstream, window, lambda text: len(text) // 4)


def task(turns=6, **changes) -> SummaryTask:
    messages = [message for number in range(turns) for message in agent_turn(number)]
    passages = tuple(Passage(number, message) for number, message in enumerate(messages))
    return structs.replace(SummaryTask(passages, 0, len(passages), 600), **changes)
