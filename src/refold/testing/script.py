"""The script: what is answered next.

One idea: an answer is a value, or a function of the request that gives one. A list of them is used up from the front; what
comes after its end is said by `otherwise`. Without that the script is over, and a request too many is an error that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias

from refold.testing.faults import Answer, Refuse
from refold.testing.received import Received
from refold.testing.reply import Say, as_say, say

Function: TypeAlias = Callable[[Received], "str | Answer | Awaitable[str | Answer]"]
Scripted: TypeAlias = str | Answer | Function

GIVEN_UP = 410
"""The status of what is the script's own fault: clients do not try again after it."""


class Script:
    def __init__(self, answers: list[Scripted], otherwise: Scripted | None) -> None:
        self.answers = answers
        """What is still to come; append to it, or change it as you like."""
        self.otherwise = otherwise

    async def next(self, received: Received) -> Answer:
        """The answer to a request."""
        scripted = self.answers.pop(0) if self.answers else self.otherwise
        if scripted is None:
            message = f"The script is over: it has no answer to request {received.number}."
            return Refuse(GIVEN_UP, message, "script_over")
        found = scripted(received) if callable(scripted) else scripted
        answer = await found if isawaitable(found) else found
        return as_say(answer) if isinstance(answer, str) else answer


def echo(received: Received) -> Say:
    """Say what the user said last."""
    return say(received.text)


def overloaded(received: Received) -> Refuse:
    """The provider has no room: a 529 from Anthropic, a 503 from others."""
    return Refuse(529 if received.dialect.name == "anthropic" else 503)
