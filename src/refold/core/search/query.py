"""The query language of search: plain words, `"a phrase"`, `-word`, `in:`, `from:`, `before:` and `after:`.

Every text is a valid query. What does not fit the language is taken for words, and a sign of a database's own search syntax is
punctuation. Words count by their inflected forms; names in capitals, numbers, and text without a space (`src/a.py`, `3.14.2`)
count as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import inf

from msgspec import Struct

from refold.core.search.terms import MOST_PHRASES, Phrase, fragments, limit_query, words
from refold.core.search.word_forms import (
    Language,
    forms_of,
    is_stop_word,
    language_of,
    words_one_edit_away,
)

TYPO_WEIGHT = 0.6
"""Weight of a word that was found only with a typing error: it may be another word."""
_TOKEN = re.compile(r'-?(?:in:)?"[^"]*"|\S+')
_QUOTES = str.maketrans("“”„«»", '"""""', "\u200b\ufeff")
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2}))?(?:-([0-9]{1,2}))?")
_EXCLUDED = re.compile(r"-[^\W\d_]{3,}+")
"""A word of three letters or more: `-m` and `-rf` are options of a command that somebody looks for."""
_ENDS = ".,;:!?…)]}>'’"
_EPOCH_DAYS = 719_162
"""Days from the beginning of the year 1 to 1970."""
_ROLES = frozenset({"user", "assistant", "tool", "system", "developer"})


class Term(Struct, frozen=True):
    """What is counted as one: a word in all its forms, or a phrase."""

    phrases: tuple[Phrase, ...]
    weight: float = 1.0
    language: Language = "en"

    def alternatives(self) -> tuple[Term, ...]:
        """The terms to look for instead where nothing matches: the parts of a phrase, or a word with a typing error."""
        first = self.phrases[0]
        if len(first) == 1:
            near = words_one_edit_away(first[0])
            return (Term(tuple((word,) for word in near), TYPO_WEIGHT, self.language),) if near else ()
        parts = [part for part in fragments([first]) if part != first]
        wanted = [part for part in parts if len(part) > 1 or not is_stop_word(part[0], self.language)]
        return tuple(_inflected(part, self.language) for part in wanted)


class Query(Struct, frozen=True):
    """A parsed query. Without terms it matches nothing."""

    terms: tuple[Term, ...] = ()
    required: tuple[Phrase, ...] = ()
    """Phrases in quotes: every message that is found has all of them."""
    excluded: tuple[Phrase, ...] = ()
    conversation: str = ""
    role: str = ""
    after: float = -inf
    before: float = inf
    """Seconds since the epoch. `after` is included."""

    @property
    def is_dated(self) -> bool:
        return self.after > -inf or self.before < inf

    @property
    def has_fields(self) -> bool:
        """Whether it is more than words."""
        return self.is_dated or bool(self.required or self.excluded or self.conversation or self.role)

    @property
    def takes_neighbours(self) -> bool:
        """Whether a message beside a match is found although it has none of the words. An answer often repeats none of its
        question; whoever gives a word or two wants the messages that hold them.
        """
        return len(self.terms) >= 3 and not self.required

    def phrases(self) -> Iterator[Phrase]:
        for term in self.terms:
            yield from term.phrases


def parse_query(text: str) -> Query:
    """Parse what somebody typed. Stop words are left out, unless there is nothing else."""
    tokens = _TOKEN.findall(limit_query(text.translate(_QUOTES)))
    language = language_of(text, [word for token in tokens for word in words(token)])
    wanted, stop_words, required, excluded = list[Term](), list[Term](), list[Phrase](), list[Phrase]()
    conversation, role, after, before = "", "", -inf, inf
    minus = list[str]()
    for place, token in enumerate(tokens):
        field, _, value = token.partition(":")
        if field == "in" and value.strip('"'):
            conversation = value.strip('"')
        elif field == "from" and value in _ROLES:
            role = value
        elif field in {"before", "after"} and (at := _moment(value)) is not None:
            after, before = (at, before) if field == "after" else (after, at)
        elif token.startswith('"') and token.endswith('"') and len(token) > 1:
            if phrase := tuple(words(token)):
                required.append(phrase)
                wanted.append(Term((phrase,), language=language))
        elif _is_excluded(token):
            minus.append(token[1:])
        elif term := _read_word(token, language, is_first=not place):
            (stop_words if _is_stop(term.phrases[0], language) else wanted).append(term)
    if not wanted and not stop_words:  # nothing to take words away from: a minus sign is punctuation then
        wanted = [term for one in minus if (term := _read_word(one, language, is_first=True))]
        minus = []
    excluded = [phrase for one in minus if (phrase := tuple(words(one)))]
    return Query(
        _distinct(wanted or stop_words),
        tuple(dict.fromkeys(required)),
        tuple(excluded),
        conversation,
        role,
        after,
        before,
    )


def _is_stop(phrase: Phrase, language: Language) -> bool:
    """Whether every word is a stop word, or two of them are one such as `don't`."""
    return all(is_stop_word(word, language) for word in phrase) or (len(phrase) == 2 and phrase[1] == "t")


def _is_excluded(token: str) -> bool:
    return _EXCLUDED.fullmatch(token) is not None or (
        token.startswith('-"') and token.endswith('"') and len(token) > 3
    )


def _read_word(token: str, language: Language, *, is_first: bool) -> Term | None:
    """Read text without a space: a word with its forms, or several words that stand side by side."""
    bare = token.strip("\"'‘’(<[{").rstrip(_ENDS)
    bare = bare.removesuffix("'s").removesuffix("’s")
    phrase = tuple(words(bare))
    if not phrase:
        return None
    is_name = not is_first and language != "de" and bare[:1].isupper() and not bare.isupper()
    if is_name or len(phrase) > 1:
        return Term((phrase,), language=language)
    return _inflected(phrase, language)


def _inflected(phrase: Phrase, language: Language) -> Term:
    if len(phrase) > 1:
        return Term((phrase,), language=language)
    return Term(tuple((form,) for form in forms_of(phrase[0], language)), language=language)


def _distinct(terms: list[Term]) -> tuple[Term, ...]:
    """The terms without repetitions: a form that two of them have counts for the first."""
    seen, kept = set[Phrase](), list[Term]()
    for term in terms:
        own = tuple(phrase for phrase in term.phrases if phrase not in seen)
        if own and term.phrases[0] not in seen:
            kept.append(Term(own, term.weight, term.language))
            seen.update(own)
    return tuple(kept[:MOST_PHRASES])


def _moment(date: str) -> float | None:
    """The beginning of a year, a month or a day, in UTC; None for what is no date."""
    found = _DATE.fullmatch(date)
    if found is None:
        return None
    year, month, day = (int(one or 1) for one in found.groups())
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if is_leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (1 <= month <= len(lengths) and 1 <= day <= lengths[month - 1]):
        return None
    before = year - 1
    leaps = before // 4 - before // 100 + before // 400
    return (365 * before + leaps + sum(lengths[: month - 1]) + day - 1 - _EPOCH_DAYS) * 86_400.0


_PIECE = re.compile(r"[^\W_]+")


def mark_words(text: str, query: Query) -> list[tuple[int, int]]:
    """Return where a text has words of a query, as pairs of offsets, in order; words with a typing error if it has no others."""
    wanted = {word for phrase in query.phrases() for word in phrase}
    found = _marks(text, wanted)
    if not found:
        instead = [other for term in query.terms for other in term.alternatives()]
        found = _marks(text, {word for term in instead for phrase in term.phrases for word in phrase})
    return found


def spelt_words(texts: Iterable[str], query: Query) -> str:
    """Return the words of a query as texts spell them, each once; the query's own words if the texts have none."""
    found = dict.fromkeys(text[start:end] for text in texts for start, end in mark_words(text, query))
    return " ".join(list(found)[:MOST_PHRASES] or [" ".join(term.phrases[0]) for term in query.terms])


def _marks(text: str, wanted: set[str]) -> list[tuple[int, int]]:
    found = list[tuple[int, int]]()
    for piece in _PIECE.finditer(text):
        held = (
            [piece[0].lower()] if piece[0].isascii() else words(piece[0])
        )  # nearly all words of nearly all texts
        if len(held) == 1 and held[0] in wanted:
            found.append(piece.span())
        elif len(held) > 1:  # a script without spaces
            places = [
                at for at, sign in enumerate(piece[0], piece.start()) if wanted.intersection(words(sign))
            ]
            for at in places:
                if found and found[-1][1] == at:
                    found[-1] = found[-1][0], at + 1
                else:
                    found.append((at, at + 1))
    return found
