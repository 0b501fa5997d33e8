"""Ranking of matches: BM25 for messages, shares of their neighbours, and sessions by their best messages and their whole text.

The rank of a message depends on the counts of the query's terms alone, so every store that counts the same words gives the same
order. Nothing but the owner's own messages goes into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from math import log as ln
from typing import TypeAlias

from msgspec import Struct

_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 100
"""Usual number of words in a message. Fixed, so that a message's score does not change with what others wrote."""
_NEIGHBOURS = ((-2, 0.2), (-1, 0.5), (1, 0.5), (2, 0.2))
"""For a term that a message lacks, or has less of: the share of a neighbour's score that it gets, by distance. An answer stands
beside its question, and repeats few words of it."""
_BEST = 3
"""Messages of a session that count for themselves; the second counts a half, the third a third."""

Place: TypeAlias = tuple[str, int]
"""A message: its branch and its number."""


class Match(Struct, frozen=True, gc=False):
    """A message that has words of a query, with the occurrences of each term."""

    conversation: str
    branch: str
    seq: int
    length: int
    counts: tuple[int, ...]


class Ranked(Struct, frozen=True, gc=False):
    conversation: str
    branch: str
    seq: int
    score: float
    is_match: bool = True
    """False for a message that has none of the words, and stands beside one that has."""


def rarity(count: int, size: int) -> float:
    """The weight of a term that `count` of `size` messages have."""
    return ln(1 + (max(size - count, 0) + 0.5) / (count + 0.5))


def rank_messages(
    matches: Sequence[Match], weights: Sequence[float], *, limit: int, is_whole_first: bool = True
) -> list[Ranked]:
    """Return messages, best first: those that match, and those beside them. Of equals the later number comes first.

    Each term counts once for a message, by its own occurrences or by a neighbour's, whichever gives more. With `is_whole_first`, a
    message that has all of the terms itself comes before every other.
    """
    conversations = {one.branch: one.conversation for one in matches}
    dampings = [_SATURATION * (1 - _LENGTH + _LENGTH * one.length / _AVERAGE) for one in matches]
    scores = {(one.branch, one.seq): 0.0 for one in matches}
    for place, weight in enumerate(weights):
        best = dict[Place, float]()
        for match, damping in zip(matches, dampings, strict=True):
            count = match.counts[place]
            if not count:
                continue
            branch, seq, share = match.branch, match.seq, weight * count / (count + damping)
            if share > best.get((branch, seq), 0.0):
                best[branch, seq] = share
            for distance, part in _NEIGHBOURS:
                beside = branch, seq + distance
                if part * share > best.get(beside, 0.0):
                    best[beside] = part * share
        for which, share in best.items():
            scores[which] = scores.get(which, 0.0) + share
    own = {(one.branch, one.seq) for one in matches}
    for one in matches if is_whole_first and len(weights) > 1 else ():
        if all(one.counts):
            scores[one.branch, one.seq] += sum(weights)
    found = nlargest(
        limit,
        ((which, score) for which, score in scores.items() if which[1] >= 0),
        key=lambda one: (one[1], one[0][1], conversations[one[0][0]], one[0][0]),
    )
    return [
        Ranked(conversations[branch], branch, seq, score, (branch, seq) in own)
        for (branch, seq), score in found
    ]


def rank_sessions(
    matches: Sequence[Match], weights: Sequence[float], holders: Sequence[str]
) -> list[tuple[str, float]]:
    """Return session ids with their scores, best first; `holders` names the session of each match.

    Half of a score is for the whole text of a session, which covers the terms; the other half is for its best messages.
    """
    counts, messages = dict[str, list[int]](), dict[str, list[float]]()
    best_first = rank_messages(matches, weights, limit=5 * len(matches), is_whole_first=False)
    ranked = {(one.branch, one.seq): one.score for one in best_first}
    for match, holder in zip(matches, holders, strict=True):
        summed = counts.setdefault(holder, [0] * len(weights))
        for place, count in enumerate(match.counts):
            summed[place] += count
        messages.setdefault(holder, []).append(ranked.get((match.branch, match.seq), 0.0))
    rarities = [
        rarity(sum(bool(one[place]) for one in counts.values()), len(counts)) for place in range(len(weights))
    ]
    whole = {
        holder: sum(
            rare * count / (count + _SATURATION)
            for rare, count in zip(rarities, summed, strict=True)
            if count
        )
        for holder, summed in counts.items()
    }
    best = {
        holder: sum(score / place for place, score in enumerate(nlargest(_BEST, scores), 1))
        for holder, scores in messages.items()
    }
    most_whole, most_best = max(whole.values(), default=1.0) or 1.0, max(best.values(), default=1.0) or 1.0
    scored = [(holder, whole[holder] / most_whole + best[holder] / most_best) for holder in counts]
    return sorted(scored, key=lambda one: (-one[1], one[0]))
