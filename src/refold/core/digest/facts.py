"""The fact index: every message as pieces and terms, built when messages arrive.

A summary is slow if it has to read the conversation again. So each message is split once, and the statistics
of each term (its last position, how often the assistant used it, which pieces hold it) are updated; choosing
and finding pieces only adds numbers.

Reading a long imported history at once would take too long, and many histories are never queried. So its
messages wait in a queue, and every later arrival reads two messages: after as many arrivals as were queued,
the queue is empty. The first messages of every conversation wait as well, because most short conversations
are never queried. A query reads the rest of the queue first, so the index does not depend on when messages
were read.

A term is a name, a number, a word or a phrase that a later turn could refer to. Every token has a kind. A name, a
path or a number has a value of its own; a single word has little, so two neighbouring words also count as a phrase:
text in which phrases survive stays readable. Tokens are found by one regular expression whose parts cannot overlap,
so the time is linear in the text.

`Facts` is a value: indexing returns a new one and leaves the old one unchanged. The facts of one branch share
a log, as views do; reading an older value, or extending it, copies the part it needs. Two threads must not
use the same log at once.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain, groupby, islice
from math import log as ln
from math import sqrt
from operator import attrgetter
from threading import RLock
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from refold.core.digest.line_markers import is_role
from refold.core.digest.pieces import bare, head, lines, tail
from refold.core.stage import handle_of
from refold.model.message import (
    File,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    readable_text,
)

# The terms of a text.

_CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WORD = rf"[^\W{_CJK}]"
_TOKEN = re.compile(rf"([~./]{{0,12}}{_WORD}+(?:[-./@+%]{{1,4}}{_WORD}+)*|[{_CJK}]+)")
_ATOM = re.compile(r"[^\W_]+(?:_+[^\W_]+)*")
_FAR_EAST = re.compile(f"[{_CJK}]")
_LONGEST = 160
"""A longer token is a blob, not a name that a person would type again."""
_SHORTEST = 3
_REMEMBERED = 50_000
"""The terms of texts up to this many characters are cached."""
PHRASE_GAP = 6
"""Characters: tokens further apart than this are no phrase, because an indentation or a ruler is between
them."""
_STOP_WORDS = """
    the and for that this with from have has are was were you your not but can will would could should into its then than
    there here what which who when where how all any more most some such only own same too very just also about after
    before over under again once our their his her they them she does did been being
"""
_STOP = frozenset(_STOP_WORDS.split())


class TermKind(IntEnum):
    """The kind of a term, which decides its value."""

    LITERAL = 0
    """A path, a dotted, snake or camel name, an id: a string that has to be exact in every letter."""
    NUMBER = 1
    NAME = 2
    """An abbreviation or a hyphenated word: often a name, often not."""
    PART = 3
    """A name inside a longer one, such as the method of a dotted call."""
    WORD = 4
    SMALL = 5
    """A number of one or two digits."""
    PHRASE = 6


VALUES = (1.0, 0.4, 0.3, 0.3, 0.05, 0.05, 0.03)
"""The value of a term of each kind, found by replaying transcripts. Unused numbers come back a third as
often as names. Words and phrases have a small value each, but a line of prose holds a dozen of them."""


_LITERAL, _NUMBER, _NAME, _PART, _WORD_KIND, _SMALL, _PHRASE = TermKind


split_tokens = _TOKEN.split
"""Split a text into its tokens, which are every second element, and the text around them. This takes half the time of
iterating over the matches."""


TokenTerms: TypeAlias = tuple[tuple[str, TermKind], ...]
"""The terms in one token, with their kinds."""


def read_token(token: str) -> tuple[str, bool, TokenTerms]:
    """Return a token in its normal form, whether it is a term, and the terms in it.

    An empty token ends a phrase.
    """
    if token.isalpha() and token.islower() and len(token) <= _LONGEST:  # most tokens, and the same as below
        is_term = len(token) >= _SHORTEST and token not in _STOP
        return token, is_term, ((token, _WORD_KIND),) if is_term else ()
    token = token if "/" in token[:12] else token.lstrip(".~")
    if len(token) > _LONGEST:
        return "", False, ()
    if not token.isascii() and _FAR_EAST.match(token):
        return "", False, tuple(_far_eastern(token))
    kind = kind_of(token)
    if kind is _WORD_KIND:
        token = token.lower()
        is_term = len(token) >= _SHORTEST and token not in _STOP
        return token, is_term, ((token, kind),) if is_term else ()
    is_long = kind is _LITERAL and not token.isalnum()
    return token, True, ((token, kind), *_inside(token)) if is_long else ((token, kind),)


cached_token = lru_cache(maxsize=20_000)(read_token)
"""`read_token` with a cache for as many tokens as a window may hold: conversations repeat themselves."""


class TextTerms(Struct, frozen=True, gc=False):
    """The terms of a text, each once: those of single tokens, and phrases as pairs of tokens."""

    single: frozenset[str]
    phrases: frozenset[tuple[str, str]]

    def __bool__(self) -> bool:
        return bool(self.single)


def terms(text: str) -> TextTerms:
    """Return every term of a text once, cached for texts that are read repeatedly, such as a system prompt or
    a task.
    """
    return _cached_terms(text) if len(text) <= _REMEMBERED else read_terms(text)


def single_terms(text: str) -> Iterator[tuple[str, TermKind]]:
    """Yield every term of a text that is no phrase, in order, with its kind."""
    return (found for token in split_tokens(text)[1::2] for found in cached_token(token)[2])


def read_terms(text: str) -> TextTerms:
    """Return every term of a text once."""
    parts, single, phrases = split_tokens(text), list[TokenTerms](), list[tuple[str, str]]()
    previous, gap = "", 0
    for raw, before in zip(parts[1::2], parts[::2], strict=False):
        token, is_term, own = cached_token(raw)
        single.append(own)
        gap += len(before)
        if not is_term:
            previous, gap = previous if token else "", gap + len(raw)
            continue
        if previous and gap <= PHRASE_GAP:
            phrases.append((previous, token))
        previous, gap = token, 0
    return TextTerms(frozenset([term for own in single for term, _ in own]), frozenset(phrases))


_cached_terms = lru_cache(maxsize=64)(read_terms)


def kind_of(token: str) -> TermKind:
    if token.isdigit():
        return _NUMBER if len(token) > 2 else _SMALL
    if token.isalpha():
        return _kind_of_letters(token)
    if len(token) <= _SHORTEST and "/" not in token:
        return _NUMBER if "." in token else _SMALL
    if token.replace(".", "").isdigit():
        return _NUMBER
    is_compound = "-" in token and token.islower() and token.replace("-", "").isalpha()
    return _NAME if is_compound else _LITERAL


def _kind_of_letters(token: str) -> TermKind:
    if token.islower() or token[1:].islower() or len(token) < _SHORTEST:
        return _WORD_KIND
    if token.isupper():
        return _NAME if len(token) <= 12 else _WORD_KIND
    is_cased = token.lower() != token.upper()
    return _LITERAL if is_cased and len(token) > _SHORTEST else _WORD_KIND


def _inside(token: str) -> list[tuple[str, TermKind]]:
    found = list[tuple[str, TermKind]]()
    for atom in _ATOM.findall(token):
        if len(atom) > _SHORTEST and atom != token:
            if atom.isalpha() and atom.islower():  # most of them: what `kind_of` says, without the call
                found.append((atom, _WORD_KIND))
            else:
                is_word = kind_of(atom) is _WORD_KIND
                found.append((atom.lower(), _WORD_KIND) if is_word else (atom, _PART))
    return found


def _far_eastern(run: str) -> Iterator[tuple[str, TermKind]]:
    """Yield every pair of characters of a run without spaces as a word."""
    if len(run) == 1:
        yield run, TermKind.WORD
    for at in range(min(len(run) - 1, _LONGEST)):
        yield run[at : at + 2], TermKind.WORD


# Weights: factors that make a term more or less likely to be needed again.


class Weights(Struct, frozen=True):
    age: float = 0.55
    """The odds of being used again fall with the age, in windows, to this power."""
    youngest: float = 0.25
    """Below this age, in windows, the odds do not rise further: all such terms belong to the current work."""
    used: float = 4.0
    """A term that the assistant has used n times is (1 + this × n) to the power of `habit` as likely to be
    used again."""
    habit: float = 0.65
    asked: float = 1.5
    """Factor of a term that the user has said."""
    repeated: float = 1.4
    """Factor of a term that the assistant has not used, but more than one message holds."""
    overhead: float = 10.0
    """Characters added to the length of every piece, so that the shortest ones do not win only by being
    short."""
    crowd: float = 0.2
    """When a message has taken this share of the room, its pieces are worth half: a list of a hundred ids
    would fill it."""
    own: float = 6.0
    """Factor for pieces of the assistant's words and calls: rows of data have more names, and say less about what was
    done and why. From 1 to 6, a real model gets more out of the digest, and it holds fewer single names of results."""
    cut_off: float = 0.5
    """Factor for pieces of a message that is shown in part: some of its content is visible already."""

    def standing(self, used: int, *, is_repeated: bool, is_asked: bool) -> float:
        """Return the odds that a term comes back, without its age, if the assistant has used it in `used`
        messages.
        """
        odds = float((1 + self.used * used) ** self.habit)
        if is_asked:
            odds *= self.asked
        if is_repeated and not used:
            odds *= self.repeated
        return odds


DEFAULT = Weights()


# The log of the fact index: pieces and terms by number, and the statistics of the terms.

_LITERAL_VALUE, _PHRASE_VALUE = VALUES[TermKind.LITERAL], VALUES[TermKind.PHRASE]
_PRIME = 4_294_967_291
"""Larger than the number of any term; a power of two would make keys of phrases that collide in a dictionary."""
_MOST_TEXTS = 20_000
"""Pieces whose terms are remembered while many messages are read: two megabytes."""
_NO_TERM, _END = -1, -2
"""Numbers of tokens that are no terms: one within a phrase, and one that ends it."""


class Piece(Struct, frozen=True, gc=False):
    """A quotable part of a message.

    `number` is its place in the conversation, `index` its place in the message.
    """

    number: int
    seq: int
    part: int
    index: int
    text: str
    terms: tuple[int, ...]
    promise: int
    """Value per character when it was indexed: a first estimate, used if there are too many pieces to
    evaluate them all."""
    line: int
    """The line of its part that contains it."""
    is_spaced: bool
    """True if a space separates it from the text before it on its line."""
    label: str
    """The source that a digest names: the handle of the original and the speaker, a role or a tool."""


label_of = attrgetter("label")
_terms = attrgetter("terms")


class IndexedMessage(Struct, frozen=True, gc=False):
    """One message of the index."""

    seq: int
    role: Role
    stop: int
    """The number after its last piece."""
    position: int
    """Characters of the conversation up to and including it."""


class FactLog:
    """The log that the facts of one branch share; append-only.

    Terms are numbered in the order of their first occurrence. Messages are read when somebody asks for them, so a
    reader changes the log too: threads that share it take its lock for each message.
    """

    __slots__ = (
        "_held", "_holders", "_odds", "_texts", "_tokens", "asked", "calls", "has_many", "ids", "last", "lock", "messages", "phrases", "pieces",
        "queued", "raised", "ranks", "spread", "standing", "used", "values", "waiting", "weights",
    )  # fmt: skip

    def __init__(self, weights: Weights = DEFAULT) -> None:
        self.weights = weights
        self.lock = RLock()
        self.ids: dict[str, int] = {}
        """The number of each term that is one token. The lists of numbers below are indexed by it."""
        self.phrases: dict[int, int] = {}
        """The number of each phrase, by the numbers of its two tokens (`_pair`): half the memory of its text."""
        self.calls: dict[str, str] = {}
        """The name of the tool, by the id of the call."""
        self.values: list[float] = []
        """The value of each term by its kind."""
        self.last: list[int] = []
        """The position at which each term was last said."""
        self.used: list[int] = []
        """The number of messages of the assistant that hold each term."""
        self.spread: list[int] = []
        """The number of messages that hold each term."""
        self.asked = bytearray()
        """Whether the user has said each term."""
        self.standing = array("d")
        """The value of each term times its odds of being needed again, without its age."""
        self.messages: list[IndexedMessage] = []
        self.pieces: list[Piece] = []
        self.ranks = bytearray()
        """The promise of each piece, from 0 to 255: all of them are compared here in a tenth of the time."""
        self.raised: list[tuple[int, int]] = []
        """Terms that became literals after their first occurrence, each with the number of messages before."""
        self.waiting: deque[tuple[int, Message]] = deque()
        """Queue of messages that arrived after those that are read, with their numbers."""
        self.queued = 0
        """Characters of the queued messages, of each at most `MAX_CHARACTERS`."""
        self._holders: dict[int, array[int]] = {}
        self._held = 0
        self._odds: dict[tuple[int, bool, bool], float] = {}
        self._tokens: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._texts: dict[str, tuple[int, ...]] = {}
        """The terms of the pieces read last: a third of the lines of an agent's session, and more, are there several times."""
        self.has_many = False
        """True while many messages are read: then the cache of all conversations would only be flushed."""

    def __len__(self) -> int:
        return len(self.messages) + len(self.waiting)

    @property
    def newest(self) -> int:
        """The number of the last message, read or queued; -1 if there is none."""
        if self.waiting:
            return self.waiting[-1][0]
        return self.messages[-1].seq if self.messages else -1

    def enqueue(self, seq: int, message: Message) -> None:
        """Queue a message, to be read later."""
        self.waiting.append((seq, message))
        self.queued += min(message.characters, MAX_CHARACTERS)

    def dequeue(self) -> None:
        """Remove the first message of the queue."""
        _, message = self.waiting.popleft()
        self.queued -= min(message.characters, MAX_CHARACTERS)

    def read(self, text: str) -> tuple[int, ...]:
        """Return the terms of a text, each once, and give new terms their numbers."""
        if (known := self._texts.get(text)) is not None:
            return known
        tokens, phrases, values, found = self._tokens, self.phrases, self.values, list[int]()
        parts, previous, gap = split_tokens(text), _NO_TERM, 0
        for raw, before in zip(parts[1::2], parts[::2], strict=False):
            number, own = tokens.get(raw) or self._read_token(raw)
            found += own
            gap += len(before)
            if number < 0:
                previous, gap = previous if number == _NO_TERM else _NO_TERM, gap + len(raw)
                continue
            if previous >= 0 and gap <= PHRASE_GAP:
                pair = previous * _PRIME - number
                phrase = phrases.get(pair)
                if phrase is None:
                    phrase = phrases[pair] = len(values)
                    values.append(_PHRASE_VALUE)
                found.append(phrase)
            previous, gap = number, 0
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        once = self._texts[text] = tuple(dict.fromkeys(found))
        return once

    def _read_token(self, raw: str) -> tuple[int, tuple[int, ...]]:
        """Return the number of a token, negative if it is no term, and the numbers of all terms in it."""
        token, is_term, own = (read_token if self.has_many else cached_token)(raw)
        ids, values = self.ids, self.values
        if len(own) == 1 and (term := own[0][0]) not in ids:  # by far the most frequent case
            number = ids[term] = len(values)
            values.append(VALUES[own[0][1]])
            numbers: tuple[int, ...] = (number,)
        else:
            numbers = tuple([self._number_term(term, kind) for term, kind in own])
        found = self._tokens[raw] = numbers[0] if is_term else _NO_TERM if token else _END, numbers
        return found

    def _number_term(self, term: str, kind: TermKind) -> int:
        """Return the number of a term, a new one if it has none."""
        number = self.ids.get(term)
        if number is None:
            number = self.ids[term] = len(self.values)
            self.values.append(VALUES[kind])
        elif kind is _LITERAL and self.values[number] != _LITERAL_VALUE:
            self.values[number] = _LITERAL_VALUE
            self.raised.append((number, len(self.messages)))
        return number

    def forget_tokens(self) -> None:
        """Drop the tokens and texts that were remembered while many messages were read."""
        self._tokens, self._texts = {}, {}

    def note(self, message: IndexedMessage, own: Sequence[Piece]) -> None:
        """Add a message with its pieces and update the statistics of its terms."""
        self.pieces += own
        self.ranks.extend([min(255, max(0, piece.promise - _LEAST_PROMISE)) for piece in own])
        self.messages.append(message)
        known, position, found = len(self.last), message.position, set[int]().union(*map(_terms, own))
        by_assistant, by_user = message.role == "assistant", message.role == "user"
        last, spread, used, asked, values = self.last, self.spread, self.used, self.asked, self.values
        standing, odds = self.standing, self._odds
        self._add_new_terms(position, used=by_assistant, asked=by_user)
        for term in found:
            if term < known:
                last[term] = position
                spread[term] += 1
                if by_assistant:
                    used[term] += 1
                elif by_user:
                    asked[term] = True
                case = used[term], spread[term] > 1, asked[term] > 0
                standing[term] = values[term] * (odds.get(case) or self._odds_of(*case))

    def _add_new_terms(self, position: int, *, used: bool, asked: bool) -> None:
        """Add the statistics of terms that occur for the first time: they have the last numbers."""
        new, odds = self.values[len(self.last) :], self._odds_of(int(used), False, asked)
        self.last += [position] * len(new)
        self.spread += [1] * len(new)
        self.used += [int(used)] * len(new)
        self.asked.extend([asked] * len(new))
        self.standing.extend([value * odds for value in new])

    def _odds_of(self, used: int, is_repeated: bool, is_asked: bool) -> float:
        odds = self.weights.standing(used, is_repeated=is_repeated, is_asked=is_asked)
        self._odds[used, is_repeated, is_asked] = odds
        return odds

    @property
    def holders(self) -> dict[int, array[int]]:
        """Map each term, except phrases, to the pieces that hold it; updated on access.

        Phrases are left out because a piece that holds one also holds its words.
        """
        values, holders = self.values, self._holders
        with self.lock:
            for piece in self.pieces[self._held :]:
                for term in piece.terms:
                    if values[term] != _PHRASE_VALUE:
                        if term not in holders:
                            holders[term] = array("I")
                        holders[term].append(piece.number)
            self._held = len(self.pieces)
        return holders

    def place(self, number: int) -> int:
        """Return the position in the index of the message that a piece belongs to."""
        return self.find(self.pieces[number].seq, len(self.messages))

    def find(self, seq: int, size: int) -> int:
        """Return the position of message `seq` among the first `size` messages, or its insertion point.

        The position is mostly equal to the number.
        """
        if seq < size and self.messages[seq].seq == seq:
            return seq
        return bisect_left(self.messages, seq, hi=size, key=_seq)

    def upto(self, size: int) -> FactLog:
        """Copy the log as it was after `size` messages. Messages queued here are queued in the copy."""
        log, messages = FactLog(self.weights), self.messages[:size]
        pieces = self.pieces[: messages[-1].stop if messages else 0]
        log._copy_terms(self, 1 + max(chain.from_iterable(map(_terms, pieces)), default=-1))
        log.calls, log.raised = dict(self.calls), [(term, at) for term, at in self.raised if at < size]
        for term, at in self.raised:
            if at >= size and term < len(log.values):
                log.values[term] = VALUES[TermKind.PART]
        start = 0
        for message in messages:
            log.note(message, pieces[start : message.stop])
            start = message.stop
        for seq, later in islice(self.waiting, max(0, size - len(self.messages))):
            log.enqueue(seq, later)
        return log

    def _copy_terms(self, other: FactLog, count: int) -> None:
        """Start with the first `count` terms of another log under the same numbers, with empty statistics."""
        self.ids = {term: number for term, number in other.ids.items() if number < count}
        self.phrases = {pair: number for pair, number in other.phrases.items() if number < count}
        self.values = other.values[:count]
        self.last, self.used, self.spread = [0] * count, [0] * count, [0] * count
        self.standing, self.asked = array("d", bytes(8 * count)), bytearray(count)


def _seq(message: IndexedMessage) -> int:
    return message.seq


def _pair(first: int, second: int) -> int:
    """Return the key of a phrase of two terms. A difference, because Python gives a sum a third more memory."""
    return first * _PRIME - second


# The index: messages are added, queued and read.

MAX_CHARACTERS = 80_000
"""Limit of indexed characters of one message, three quarters from its beginning and one from its end. The
rest stays in the branch and can be recalled by handle; indexing all of a printed log file would block for
half a second."""
MAX_PIECES = 2_000
"""Limit of indexed pieces of one message: lines may be very short."""
LONG_QUEUE = 1_000_000
"""Characters of queued messages that are indexed up to `MAX_CHARACTERS` each: the newest quarter of a million tokens. If more
arrive at once, those before them are indexed up to `MAX_EARLY_CHARACTERS`: the index takes eight times the memory of its text,
and a minute of work for 60 MB."""
MAX_EARLY_CHARACTERS = 1_000
"""As `MAX_CHARACTERS`, for messages before a long queue: most are shorter, apart from tool results."""
PORTION = 2
"""Messages that are read per arrival: the new one, and one of the queue. So the queue shrinks, and
arrivals take about twice as long until it is empty."""
MANY = 64
"""Messages that are read at once with a cache of their own."""
SHORT = 16
"""Messages of a conversation before any is read: this index would be two thirds of the memory of a short
conversation."""
_KNOWN = 0.25
"""Factor of a term that was said before: another piece may hold it."""
_USED = 2.8
"""The assistant reuses terms that it has used about three times as often as terms that only a tool has
said."""
_CROWD = 100
"""A piece among this many of one message has a third less promise, among four times as many less than
half."""
_PROMISES = 8
"""Promises are whole numbers with this many steps per factor of e: fine enough for sorting, and fast to
count."""
_LEAST_PROMISE = -166
"""The promise of a piece without any term is -165, and none comes near 89."""
_SHARED = tuple(range(-256, 0))
"""One object for each promise, at its own index: an object for each piece would be a tenth of the memory of the index."""
_SHORTEST_PART = 40
"""Characters of each part of a message with very many parts."""
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")
_LONGEST_PIECE = 400
"""A longer piece is a blob without a place to break it; a digest never quotes it."""


class Facts(Struct, frozen=True, eq=False):
    """The index of the first `size` messages."""

    size: int = 0
    shared: FactLog = field(default_factory=FactLog)

    @property
    def known(self) -> FactLog:
        """The shared log, after reading these messages. It may contain later messages too."""
        catch_up(self.shared, self.size)
        return self.shared

    @property
    def log(self) -> FactLog:
        """A log of exactly these messages: the shared log, or a copy if that has later messages."""
        log = self.known
        with log.lock:
            return log if len(log.messages) == self.size else log.upto(self.size)

    @property
    def position(self) -> int:
        return self.known.messages[self.size - 1].position if self.size else 0

    @property
    def queued_characters(self) -> int:
        """Characters of the queued message that is read with the next arrival."""
        with self.shared.lock:
            waiting = self.shared.waiting
            return min(waiting[0][1].characters, MAX_CHARACTERS) if waiting else 0

    def find(self, seq: int) -> int:
        """Return the position of message `seq` in the index, or its insertion point."""
        return self.known.find(seq, self.size)

    def pieces(self, first: int, last: int) -> Sequence[Piece]:
        """Return the pieces of the messages `first` up to, not including, `last`."""
        numbers = self.numbers(first, last)
        return self.known.pieces[numbers.start : numbers.stop] if numbers else ()

    def numbers(self, first: int, last: int) -> range:
        """Return the numbers of the pieces of the messages `first` up to, not including, `last`."""
        log, size = self.known, self.size
        start, stop = log.find(first, size), log.find(last, size)
        begin = log.messages[start - 1].stop if start else 0
        return range(begin, log.messages[stop - 1].stop) if stop > start else range(0)

    def numbers_of(self, seqs: Iterable[int]) -> list[range]:
        """Return the numbers of the pieces of each of these messages."""
        log, size, found = self.known, self.size, list[range]()
        messages = log.messages
        for seq in seqs:
            at = log.find(seq, size)
            if at < size and messages[at].seq == seq:
                found.append(range(messages[at - 1].stop if at else 0, messages[at].stop))
        return found


def index_message(facts: Facts, message: Message, seq: int, *, later: bool = False) -> Facts:
    """Return the facts with one more message.

    The time is linear in the text that is read, and bounded by `MAX_CHARACTERS` for each message. With
    `later` the message is only queued, as for each of many messages that arrive at once.

    Raises:
        ValueError: the message is older than one that is indexed already.
    """
    facts = queue_messages(facts, (message,), seq)
    if not later and facts.size > SHORT:
        catch_up(facts.shared, len(facts.shared.messages) + PORTION)
    return facts


def queue_messages(facts: Facts, messages: Sequence[Message], first: int) -> Facts:
    """Return the facts with more messages, the first of which has the number `first`. They are read later.

    Raises:
        ValueError: they are older than one that is indexed already.
    """
    with facts.shared.lock:
        log = facts.shared if len(facts.shared) == facts.size else facts.shared.upto(facts.size)
        if log.newest >= first:
            raise ValueError(f"message {first} comes after {log.newest}: messages are indexed in order")
        for seq, message in enumerate(messages, first):
            log.enqueue(seq, message)
    return Facts(facts.size + len(messages), log)


def catch_up(log: FactLog, size: int) -> None:
    """Read queued messages until the first `size` messages are read."""
    if len(log.messages) >= size:
        return
    log.has_many = size - len(log.messages) > MANY
    while len(log.messages) < size:
        with log.lock:  # for one message: an arrival does not wait until all are read
            if len(log.messages) >= size or not log.waiting:
                break
            found = _index_entry(log, *log.waiting[0])
            log.dequeue()  # only now: an interrupted read leaves it in the queue
            log.note(*found)
    log.forget_tokens()


def _index_entry(log: FactLog, seq: int, message: Message) -> tuple[IndexedMessage, Sequence[Piece]]:
    """Build the index entry and the pieces of the next message of a log."""
    parts = [part for part in message.parts if type(part) is not Reasoning]
    for part in parts:
        if type(part) is ToolCall:
            log.calls[part.id] = part.name
    said = [(_label(part, message, seq, place, log), text_of(part)) for place, part in enumerate(parts, 1)]
    before = log.messages[-1].position if log.messages else 0
    most = MAX_CHARACTERS if log.queued <= LONG_QUEUE else MAX_EARLY_CHARACTERS
    own = list(_pieces_of(said, seq, log, most, used=message.role == "assistant"))
    position = before + sum(len(text) for _, text in said)
    return IndexedMessage(seq, message.role, len(log.pieces) + len(own), position), own


def term_ids(log: FactLog, text: str) -> set[int]:
    """Return the terms of a text that are in the index."""
    ids, phrases, said = log.ids, log.phrases, terms(text)
    found = {ids[term] for term in said.single if term in ids}
    pairs = [_pair(ids[one], ids[other]) for one, other in said.phrases if one in ids and other in ids]
    found.update([phrases[pair] for pair in pairs if pair in phrases])
    return found


def text_of(part: Part) -> str:
    """Return the quotable text of a part; the arguments of a call become `key: value` lines."""
    match part:
        case Text() | ToolResult() | File():
            return part.text
        case ToolCall():
            return f"{part.name} {_arguments(part.arguments)}"
        case Opaque():
            return readable_text(part)
        case _:
            return ""


def _pieces_of(
    said: Sequence[tuple[str, str]], seq: int, log: FactLog, most: int, *, used: bool
) -> Iterator[Piece]:
    """Yield the pieces of a message from the labels and texts of its parts, of `most` characters."""
    parts = enumerate(said)
    found = [(part, line, raw) for part, (_, text) in parts for line, raw in _bounded(text, most, len(said))]
    factor = (_USED if used else 1.0) / sqrt(1 + len(found) / _CROWD)
    number, values, known_share = len(log.pieces), log.values, 2 * _KNOWN if used else _KNOWN
    before, place = "", (-1, -1)
    for index, (part, line, raw) in enumerate(found):
        is_first, place = (part, line) != place, (part, line)
        text, is_spaced, before = (
            bare(raw, is_first=is_first),
            raw.startswith(" ") or before.endswith(" "),
            raw,
        )
        if len(text) <= _LONGEST_PIECE:
            known, own = len(values), log.read(text)
            worth = sum([values[term] if term >= known else known_share * values[term] for term in own])
            promise = int(_PROMISES * ln(1e-9 + factor * worth / (len(text) + 10)))
            promise = _SHARED[promise] if -len(_SHARED) <= promise < 0 else promise
            yield Piece(number, seq, part, index, text, own, promise, line, is_spaced, said[part][0])
            number += 1


def _bounded(text: str, most: int, parts: int) -> list[tuple[int, str]]:
    """Return the pieces of a text with their line numbers; of a very long text, those of its beginning and
    end.
    """
    most = max(_SHORTEST_PART, most // parts)
    if len(text) > most:
        text = f"{head(text, most * 3 // 4)}\n{tail(text, most // 4)}"
    found = [(number, piece) for number, line in enumerate(lines(text)) for piece in line]
    count = max(1, MAX_PIECES // parts)
    if len(found) <= count:
        return found
    return [*found[: count - count // 4], *found[len(found) - count // 4 :]]


def _label(part: Part, message: Message, seq: int, place: int, log: FactLog) -> str:
    """Return the label of a part.

    A reply and its calls share one label. Each tool result has its own, with the name of the tool, and so
    does a file: the user who attached a document did not say its text.
    """
    is_one = all(type(other) is Reasoning or other is part for other in message.parts)
    handle = handle_of(seq, None if is_one else place)
    match part:
        case ToolResult():
            return f"{handle} {_tool_name(log.calls.get(part.call_id, ''))}:"
        case File():
            return f"{handle} file:"
        case _:
            return f"{handle_of(seq)} {message.role}:"


def _tool_name(name: str) -> str:
    """Return the name of a tool, or `tool` if the name could be taken for a role: any provider of tools may
    choose such a name.
    """
    is_plain = _TOOL_NAME.fullmatch(name) is not None and not is_role(name)
    return name if is_plain else "tool"


def _arguments(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
        first, *rest = [*_lines("", value)] or [""]
        change = _first_change(value)
        return "\n".join((f"{first} {change}" if change else first, *rest))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


_EDITS = (
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("oldText", "newText"),
    ("old_text", "new_text"),
    ("search", "replace"),
)
"""The arguments with which the common tools name a text and the text that replaces it."""
_CHANGE = 60
"""Characters of the short form of an edit."""


def _first_change(arguments: object) -> str:
    """Return the first line that an edit adds, with `+`, or takes away, with `-`; empty for other calls. It stands
    beside the name of the file, which alone says little.
    """
    if not isinstance(arguments, dict):
        return ""
    for before, after in _EDITS:
        old, new = arguments.get(before), arguments.get(after)
        if isinstance(old, str) and isinstance(new, str):
            gone, come = old.splitlines(), new.splitlines()
            known = frozenset(gone)
            added = next((line for line in come if line.strip() and line not in known), "")
            left = added or next((line for line in gone if line.strip() and line not in come), "")
            said = head(" ".join(left.split()), _CHANGE)
            return f"{'+' if added else '-'} {said}" if said else ""
    return ""


def _lines(key: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _lines(str(name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _lines(key, inner)
    else:
        said = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield f"{key}: {said}" if key else said


# Carried pieces: the pieces that the next digest may choose from, kept after the original messages
# are no longer in memory.


class CarriedPiece(Struct, frozen=True, array_like=True):
    """A piece without its terms, which are read from its text again."""

    seq: int
    role: Role
    position: int
    """Characters of the conversation up to and including its message."""
    part: int
    index: int
    line: int
    promise: int
    is_spaced: bool
    label: str
    text: str


def carry(facts: Facts, numbers: Iterable[int], upto: int) -> tuple[tuple[CarriedPiece, ...], dict[int, int]]:
    """Return the pieces of these numbers in the order of the conversation, and a map from number to place in
    the result.

    Only pieces of messages before `upto` are carried: later messages are in memory anyway.
    """
    known = set(numbers)
    if not known:
        return (), {}  # without reading the queue
    pieces = facts.known.pieces
    kept = sorted(number for number in known if number < len(pieces) and pieces[number].seq < upto)
    places = {number: place for place, number in enumerate(kept)}
    found = tuple(_carried(facts, pieces[number]) for number in kept)
    return found, places


def _carried(facts: Facts, piece: Piece) -> CarriedPiece:
    message = facts.known.messages[facts.find(piece.seq)]
    return CarriedPiece(
        piece.seq,
        message.role,
        message.position,
        piece.part,
        piece.index,
        piece.line,
        piece.promise,
        piece.is_spaced,
        piece.label,
        piece.text,
    )


def restore(carried: Sequence[CarriedPiece]) -> Facts:
    """Build an index from carried pieces, numbered in their order."""
    log = FactLog()
    for seq, group in groupby(carried, key=lambda one: one.seq):
        own = list(group)
        pieces = [_piece(one, len(log.pieces) + place, log) for place, one in enumerate(own)]
        log.note(IndexedMessage(seq, own[0].role, len(log.pieces) + len(pieces), own[0].position), pieces)
    log.forget_tokens()
    return Facts(len(log.messages), log)


def _piece(one: CarriedPiece, number: int, log: FactLog) -> Piece:
    return Piece(
        number,
        one.seq,
        one.part,
        one.index,
        one.text,
        log.read(one.text),
        one.promise,
        one.line,
        one.is_spaced,
        one.label,
    )
