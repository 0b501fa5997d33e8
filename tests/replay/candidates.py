"""Candidates with every ability, to see that each is noticed."""

from __future__ import annotations

from refold.model.errors import DoesNotFit
from refold.model.message import Message, user
from refold.replay.candidate import DropToHalf, NoLimit
from refold.replay.facts import spoken_text


class Diary(DropToHalf):
    """Drops to half, leaves a note with a handle and one number of its own invention, and can look things up."""

    name = "diary"
    handle = r"\[recall:[0-9a-f]+\]"

    def start(self, system, tools, window, counter):
        super().start(system, tools, window, counter)
        self.everything: list[Message] = []
        self.calls: list[tuple[int, int]] = []
        self.dropped = 0

    def add(self, message):
        super().add(message)
        self.everything.append(message)

    def context(self):
        context = super().context()
        dropped = len(self.everything) - len(self.body)
        if dropped > self.dropped:
            self.dropped = dropped
            self.calls.append((1_200, 80))
        if not self.dropped:
            return context
        note = user("What came before is in [recall:00ffab1234] and cost 424242 in all.")
        return self.within_window((note, *context[len(self.system) :]))

    def recall(self, query, max_tokens):
        wanted = set(query.lower().split())
        ranked = sorted(
            self.everything, key=lambda message: -len(wanted & set(spoken_text(message).lower().split()))
        )
        return "\n".join(spoken_text(message) for message in ranked[:8])[: 4 * max_tokens]

    def model_calls(self):
        calls, self.calls = self.calls, []
        return calls


class Refuses(NoLimit):
    """Says that nothing can be sent as soon as the window is full."""

    name = "refuses"

    def context(self):
        if self.used > self.window:
            raise DoesNotFit
        return super().context()


class Breaks(NoLimit):
    name = "breaks"

    def context(self):
        return 1 / 0


class Talkative(NoLimit):
    """Recalls far more than it was asked for."""

    name = "talkative"

    def context(self):
        return (*self.system, user("go on"))

    def recall(self, query, max_tokens):
        return "\n".join(spoken_text(message) for message in self.body)
