"""Ranking of matches: by words (BM25 for messages, shares of their neighbours, sessions by their best messages and their whole
text), by vectors, and by both.

The rank of a message by words depends on the counts of the query's terms alone, so every store that counts the same words gives the
same order. Nothing but the owner's own messages goes into it.

A vector is kept as signed bytes, a quarter of its size, and its signs once more as bits. The bits choose the candidates: a million of
them are compared in some milliseconds. The bytes order the candidates. numpy is needed for it; it comes with every extra that makes
vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from math import hypot, isfinite
from math import log as ln
from struct import error as StructError  # noqa: N812 - the module's own name says nothing here
from struct import pack as struct_pack
from struct import unpack
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 100
"""Usual number of words in a message. Fixed, so that a message's score does not change with what others wrote."""
_NEIGHBOURS = ((-2, 0.2), (-1, 0.5), (1, 0.5), (2, 0.2))
"""For a term that a message lacks, or has less of: the share of a neighbour's score that it gets, by distance. An answer stands
beside its question, and repeats few words of it."""
_BEST = 3
"""Messages of a session that count for themselves; the second counts a half, the third a third."""
_SESSION_SATURATION = 3.0
"""That of the whole text of a session, which repeats more words than a message. Of 1.2, 2, 3 and 5, on LoCoMo."""
_SESSION_MEANING = 0.5
"""The share of meaning for sessions, where that of words is 1. Of 0.5, 0.7 and 1 the best on four conversations of LoCoMo, and on the
other three."""

_DATED = 1.0
"""What the date of a query adds to the messages and sessions of that time, where the best score by words is 1."""
_DAMPING = 10
"""How slowly the share of a list shrinks with the rank."""
_MEANING = 0.7
"""The share of the list by meaning, where that of the list by words is 1. Of 0.3, 0.5, 0.7 and 1 the one that ranks sessions of
LoCoMo best; with static vectors 0.3 finds half a percent more turns. Chosen on the set that the figures are measured on."""

MessagePlace: TypeAlias = tuple[str, int]
"""A message: its branch and its number."""


class Match(Struct, frozen=True, gc=False):
    """A message that has words of a query, with the occurrences of each term."""

    conversation: str
    branch: str
    seq: int
    length: int
    counts: tuple[int, ...]
    nearness: float = 0.0
    """How near its time is to a date of the query, from 0 to 1."""


class RankedMatch(Struct, frozen=True, gc=False):
    conversation: str
    branch: str
    seq: int
    score: float
    is_match: bool = True
    """False for a message that has none of the words, and stands beside one that has."""
    is_whole: bool = False
    """True for a message that has all of several terms itself."""


def rarity(count: int, size: int) -> float:
    """The weight of a term that `count` of `size` messages have."""
    return ln(1 + (max(size - count, 0) + 0.5) / (count + 0.5))


def rank_messages(matches: Sequence[Match], weights: Sequence[float], *, limit: int) -> list[RankedMatch]:
    """Return messages, best first: those that match, and those beside them. Of equals the later number comes first. A message that
    has all of the terms itself comes before every other.
    """
    conversations = {one.branch: one.conversation for one in matches}
    scores = _score(matches, weights)
    _add_dates(scores, matches)
    own = {(one.branch, one.seq) for one in matches}
    whole = {(one.branch, one.seq) for one in matches if len(weights) > 1 and all(one.counts)}
    for which in whole:
        scores[which] += (1 + _DATED) * sum(weights)
    # The plain numbers first: of the thousands of messages beside a match, most need no place of their own.
    least = min(nlargest(limit, (score for which, score in scores.items() if which[1] >= 0)), default=0.0)
    found = sorted(
        ((which, score) for which, score in scores.items() if score >= least and which[1] >= 0),
        key=lambda one: (one[1], one[0][1], conversations[one[0][0]], one[0][0]),
        reverse=True,
    )[:limit]
    return [
        RankedMatch(conversations[branch], branch, seq, score, (branch, seq) in own, (branch, seq) in whole)
        for (branch, seq), score in found
    ]


def _score(matches: Sequence[Match], weights: Sequence[float]) -> dict[MessagePlace, float]:
    """The scores of matches, and of the messages beside them. Each term counts once for a message, by its own occurrences or by a
    neighbour's, whichever gives more.
    """
    dampings = [_SATURATION * (1 - _LENGTH + _LENGTH * one.length / _AVERAGE) for one in matches]
    scores = {(one.branch, one.seq): 0.0 for one in matches}
    for place, weight in enumerate(weights):
        best = dict[MessagePlace, float]()
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
    return scores


def _add_dates(scores: dict[MessagePlace, float], matches: Sequence[Match]) -> None:
    """Add to the scores of matches that are near a date, and of messages beside them, which were stored at about that time."""
    near = {(one.branch, one.seq): one.nearness for one in matches}
    if not any(near.values()):
        return
    beside = dict[MessagePlace, float]()
    for (branch, seq), nearness in near.items():
        for distance, _ in _NEIGHBOURS if nearness else ():
            place = branch, seq + distance
            beside[place] = max(beside.get(place, 0.0), nearness)
    most = max(scores.values(), default=0.0)
    for place, nearness in (beside | near).items():
        if nearness and place in scores:
            scores[place] += _DATED * most * nearness


def rank_sessions(
    matches: Sequence[Match], weights: Sequence[float], holders: Sequence[str]
) -> list[tuple[str, float]]:
    """Return session ids with their scores, best first; `holders` names the session of each match.

    Half of a score is for the whole text of a session, which covers the terms; the other half is for its best messages. A session of
    the time that the query names is ranked higher.
    """
    counts, messages, dated = dict[str, list[int]](), dict[str, list[float]](), dict[str, float]()
    scores = _score(matches, weights)
    for match, holder in zip(matches, holders, strict=True):
        summed = counts.setdefault(holder, [0] * len(weights))
        for place, count in enumerate(match.counts):
            summed[place] += count
        messages.setdefault(holder, []).append(scores[match.branch, match.seq])
        dated[holder] = max(dated.get(holder, 0.0), match.nearness)
    rarities = [
        rarity(sum(bool(one[place]) for one in counts.values()), len(counts)) for place in range(len(weights))
    ]
    whole = {
        holder: sum(
            rare * count / (count + _SESSION_SATURATION)
            for rare, count in zip(rarities, summed, strict=True)
            if count
        )
        for holder, summed in counts.items()
    }
    best = _sum_best(messages)
    most_whole, most_best = max(whole.values(), default=1.0) or 1.0, max(best.values(), default=1.0) or 1.0
    scored = [
        (holder, (whole[holder] / most_whole + best[holder] / most_best) / 2 + _DATED * dated[holder])
        for holder in counts
    ]
    return sorted(scored, key=lambda one: (-one[1], one[0]))


def fuse(
    by_words: Sequence[MessagePlace], by_meaning: Sequence[MessagePlace], whole: Collection[MessagePlace] = ()
) -> list[tuple[MessagePlace, float]]:
    """Merge two ranked lists of messages by reciprocal rank, best first. Of equals, the one that was found by words comes first.
    `whole` are messages that have all of the words: they come before every other.
    """
    shares = dict.fromkeys(whole, 1.0)
    for found, share in ((by_words, 1.0), (by_meaning, _MEANING)):
        for rank, place in enumerate(found):
            shares[place] = shares.get(place, 0.0) + share / (_DAMPING + rank)
    return sorted(shares.items(), key=lambda one: -one[1])


def follow(
    ranked: Sequence[tuple[MessagePlace, float]], others: Sequence[MessagePlace]
) -> list[tuple[MessagePlace, float]]:
    """The ranked messages, then those of the others that are not among them, with lower scores than any."""
    known, least = {place for place, _ in ranked}, ranked[-1][1] if ranked else 1.0
    new = [place for place in others if place not in known]
    return [*ranked, *((place, least / (1 + rank)) for rank, place in enumerate(new, 1))]


def fuse_sessions(by_words: Mapping[str, float], near: Sequence[tuple[str, float]]) -> list[str]:
    """Merge sessions, given with their scores by words, with those of the nearest messages, each given with its cosine; best first.

    Unlike those of messages, the scores themselves are added, each list's best as 1: a few sessions far before the others are more
    than places in a list.
    """
    held, floor = dict[str, list[float]](), min((score for _, score in near), default=0.0)
    for session, score in near:
        held.setdefault(session, []).append(score - floor)
    scores = dict[str, float]()
    for found, share in ((by_words, 1.0), (_sum_best(held), _SESSION_MEANING)):
        most = max(found.values(), default=1.0) or 1.0
        for session, score in found.items():
            scores[session] = scores.get(session, 0.0) + share * score / most
    return sorted(scores, key=lambda one: -scores[one])


def _sum_best(held: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The scores of sessions by those of their best messages: the second counts a half, the third a third."""
    return {
        session: sum(score / place for place, score in enumerate(nlargest(_BEST, scores), 1))
        for session, scores in held.items()
    }


# Vectors of messages: the text that one is made of, its small form, and the nearest of many.

_CHARACTERS_BEFORE = 200
"""Characters of the message before that belong to the text of a message: an answer alone often names no subject."""
_MAX_CHARACTERS = 2_000
"""Characters of a message that are read: its beginning shows its subject. Both were chosen with the static vectors, on LoCoMo and BEAM; the
sentence model was tried with 300 and 1,000."""


def window_text(before: str, text: str) -> str:
    """The text of a message as it is embedded: after the end of the message before it."""
    return f"{before[-_CHARACTERS_BEFORE:]}\n{text[:_MAX_CHARACTERS]}" if before else text[:_MAX_CHARACTERS]


_EMBED_HINT = (
    "`embed` returns one vector for each text: little-endian 32-bit floats as bytes, or a sequence of numbers"
)


def read_vectors(found: object, count: int) -> list[bytes]:
    """The vectors that an embedder gave for `count` texts, as bytes of 32-bit floats; a sequence of numbers is brought to length one.

    Raises:
        ConfigError: they are no vectors, or not as many, or of several dimensions.
    """
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise ConfigError("the embedder gave no list of vectors", hint=_EMBED_HINT)
    vectors = [_read_vector(one) for one in found]
    if len(vectors) != count:
        raise ConfigError(f"the embedder gave {len(vectors)} vectors for {count} texts", hint=_EMBED_HINT)
    sizes = sorted({len(one) // 4 for one in vectors if one})
    if len(sizes) > 1:
        raise ConfigError(
            f"the embedder gave vectors of {sizes[0]} and of {sizes[-1]} numbers",
            hint="all vectors of an embedder have one dimension; another model is an embedder of another name",
        )
    return vectors


def _read_vector(one: object) -> bytes:
    try:
        if isinstance(one, bytes | bytearray | memoryview):
            packed = bytes(one)
            numbers = unpack(f"<{len(packed) // 4}f", packed)
        else:
            given = [float(number) for number in one]  # type: ignore[attr-defined]
            length = hypot(*given)
            numbers = tuple(number / length for number in given) if length else ()
            packed = struct_pack(f"<{len(numbers)}f", *numbers)
    except (TypeError, ValueError, OverflowError, StructError):
        raise ConfigError(
            f"the embedder gave a {type(one).__name__} for a vector", hint=_EMBED_HINT
        ) from None
    if not all(map(isfinite, numbers)):
        raise ConfigError("the embedder gave a vector with a number that is not finite", hint=_EMBED_HINT)
    return packed


def pack(vectors: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The signs of some vectors as bits, and the vectors as signed bytes, each one after another."""
    import numpy as np

    if not vectors:
        return b"", b""
    table = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), -1)
    most = np.abs(table).max(axis=1, keepdims=True)
    small = np.round(table / np.maximum(most, 1e-9) * 127).astype(np.int8)
    return np.packbits(table > 0, axis=1).tobytes(), small.tobytes()


def code_rows(codes: bytes, count: int) -> NDArray[Any]:
    """The signs of `count` vectors, one in a row; column by column in memory, as `nearest_of` reads them."""
    import numpy as np

    rows = np.frombuffer(codes, np.uint8).reshape(count, -1)
    return np.asfortranarray(rows.view(np.uint64) if rows.shape[1] % 8 == 0 else rows)


def nearest_of(vector: bytes, tables: Sequence[NDArray[Any]], limit: int) -> list[tuple[int, int]]:
    """The rows of some tables that have most signs in common with a vector, as pairs of table and row, best first. Of equals, the
    earlier one.
    """
    import numpy as np

    if not tables:
        return []
    own = np.packbits(np.frombuffer(vector, "<f4") > 0)
    table, row, differ = (np.empty(0, kind) for kind in (np.intp, np.intp, np.uint16))
    for at, rows in enumerate(tables):
        counts = _count_differing(own.view(rows.dtype), rows)
        if len(differ) == limit:  # a later row comes after an earlier one that is as near
            places = np.flatnonzero(counts < differ[-1])
        elif len(counts) > limit:
            places = np.flatnonzero(counts <= np.partition(counts, limit - 1)[limit - 1])
        else:
            places = np.arange(len(counts))
        table = np.concatenate((table, np.full(len(places), at)))
        row, differ = np.concatenate((row, places)), np.concatenate((differ, counts[places]))
        best = np.lexsort((row, table, differ))[:limit]
        table, row, differ = table[best], row[best], differ[best]
    return list(zip(table.tolist(), row.tolist(), strict=True))


_ROWS_AT_A_TIME = 16_384
"""Rows that are compared at a time: what is computed for them stays in the cache of a core."""


def _count_differing(own: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """How many signs of each row differ."""
    import numpy as np

    differ = np.zeros(len(rows), np.uint16)
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
        part = differ[start : start + _ROWS_AT_A_TIME]
        for column in range(rows.shape[1]):
            part += np.bitwise_count(rows[start : start + _ROWS_AT_A_TIME, column] ^ own[column])
    return differ


def cosines(vector: bytes, packed: Sequence[bytes]) -> list[float]:
    """The cosine of each packed vector and a vector of length one."""
    import numpy as np

    if not packed:
        return []
    table = np.frombuffer(b"".join(packed), np.int8).reshape(len(packed), -1).astype(np.float32)
    lengths = np.linalg.norm(table, axis=1)
    return [float(one) for one in table @ np.frombuffer(vector, "<f4") / np.maximum(lengths, 1e-9)]
