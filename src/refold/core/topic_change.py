"""Recognises that a conversation has moved to another topic, by the vectors of its turns.

The distance of some turns to a topic is one less the mean cosine between them and the topic's turns, divided by the mean cosine of
the topic's turns with each other. So it is 0 for turns that are as like the topic as its own, and about 1 for unrelated ones, for short
texts as for long ones, whose cosines differ much.

A turn that is far from the topic may be the first of a new one; the turns after it must stay away, and the question after them too. A turn
that comes near again ends a digression: the topic goes on. A recognised change begins the next topic, so it is not recognised a
second time. numpy is needed; it comes with the extra that makes the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from refold.core.policy import TopicChange

TURN_TEXT, QUESTION_TEXT = 700, 300
"""Characters of a turn and of the question that begins the next one, from which vectors are made: enough to show the subject, and less than
a millisecond for both."""
LEAST_LIKENESS = 0.02
"""Mean cosine of turns that have no topic in common."""


class NewTopic(Struct, frozen=True):
    """A recognised change of topic."""

    first: int
    """The number of the first message of the new topic."""
    at: int
    """The number of the user's message with which the change was certain."""
    distance: float
    """Of the turns of the new topic to the topic before."""


class FarTurn(Struct, frozen=True):
    """A turn that is far from the topic: the number of its first message, and its vector."""

    first: int
    vector: bytes


class TopicTrack(Struct, frozen=True):
    """The topic of a conversation, as far as its messages were read."""

    read: int = 0
    """The number of the next message to read."""
    turn: int = -1
    """The number of the first message of the turn in progress; below 0 if there is none."""
    topic: bytes = b""
    """The sum of the vectors of the topic's turns."""
    turns: int = 0
    """How many turns that are."""
    away: tuple[FarTurn, ...] = ()
    """The turns since, if they are far from the topic."""
    change: NewTopic | None = None
    """The last change of topic that was recognised."""

    def end_turn(self, vector: bytes, rule: TopicChange) -> TopicTrack:
        """Return the track with one more turn, which began at `turn`. A turn without a vector says nothing about the topic."""
        if not vector:
            return structs.replace(self, turn=-1)
        far = FarTurn(self.turn, vector)
        ended = structs.replace(self, turn=-1)
        if self.away:
            if self._distance([vector]) > rule.near:
                return structs.replace(ended, away=(*self.away, far))
        elif self.turns >= rule.min_turns and self._distance([vector]) >= rule.distance:
            return structs.replace(ended, away=(far,))
        vectors = [one.vector for one in self.away] + [vector]
        return structs.replace(
            ended, topic=_sum([self.topic, *vectors]), turns=self.turns + len(vectors), away=()
        )

    def ask(self, number: int, vector: bytes, rule: TopicChange) -> TopicTrack:
        """Return the track with the question that begins a turn. The topic has changed if enough turns before were far from it, all
        together too, and the question does not return to it.
        """
        asked = structs.replace(self, turn=number)
        vectors = [one.vector for one in self.away]
        if len(vectors) < rule.turns or (vector and self._distance([vector]) < rule.distance):
            return asked
        distance = self._distance(vectors)
        if distance < rule.distance:
            return asked
        change = NewTopic(self.away[0].first, number, round(distance, 2))
        return structs.replace(asked, topic=_sum(vectors), turns=len(vectors), away=(), change=change)

    def _distance(self, vectors: Sequence[bytes]) -> float:
        import numpy as np

        topic, others, size = (
            np.frombuffer(self.topic, "<f4"),
            np.frombuffer(_sum(vectors), "<f4"),
            self.turns,
        )
        # The vectors have length one: the square of their sum is the sum of the cosines of all pairs.
        within = (float(topic @ topic) - size) / (size * (size - 1))
        between = float(topic @ others) / (size * len(vectors))
        return 1 - between / max(within, LEAST_LIKENESS)


def _sum(vectors: Sequence[bytes]) -> bytes:
    import numpy as np

    found = [np.frombuffer(one, "<f4") for one in vectors if one]
    return bytes(np.sum(found, axis=0, dtype="<f4").tobytes())
