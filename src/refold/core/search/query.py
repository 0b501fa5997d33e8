"""The query language of search: plain words, `"a phrase"`, `-word`, `in:`, `from:`, `before:` and `after:`.

Every text is a valid query. What does not fit the language is taken for words, and a sign of a database's own search syntax is
punctuation. A date in plain words (`7 July 2023`, `in March`) ranks the messages of that time higher, and excludes none. Words count by their inflected forms; names in capitals, numbers, and text without a space (`src/a.py`, `3.14.2`)
count as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf

from msgspec import Struct, structs

from refold.core.search.terms import MOST_PHRASES, Phrase, fragments, limit_query, words
from refold.core.search.word_forms import (
    MONTHS,
    SHORT_MONTHS,
    Language,
    forms_in_other_languages,
    forms_of,
    is_before_month,
    is_clear_month,
    is_stop_word,
    language_of,
    month_names,
    words_one_edit_away,
)

TYPO_WEIGHT = 0.6
"""Weight of a word that was found only with a typing error: it may be another word."""
_TOKEN = re.compile(r'-?(?:in:)?"[^"]*"|\S+')
_QUOTES = str.maketrans("“”„«»", '"""""', "\u200b\ufeff")
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2}))?(?:-([0-9]{1,2}))?")
_LIKE_DATE = re.compile(r"[0-9]{4}(?:[-/.][0-9]|\Z)|[0-9]{1,2}[-/.][0-9]")
"""What is meant for a date after `before:` or `after:`."""
_MOST_TOLD = 40
"""Characters of a field that are repeated to whoever wrote it."""
_EXCLUDED = re.compile(r"-[^\W\d_]{3,}+")
"""A word of three letters or more: `-m` and `-rf` are options of a command that somebody looks for."""
_ENDS = ".,;:!?…)]}>'’"
_DAY_NUMBER = re.compile(r"([1-9]|0[1-9]|[12][0-9]|3[01])(?:st|nd|rd|th|er|º)?", re.ASCII)
_YEAR_NUMBER = re.compile("[12][0-9]{3}", re.ASCII)
_EPOCH_DAYS = 719_162
"""Days from the beginning of the year 1 to 1970."""
_DAY, _YEAR = 86_400.0, 31_556_952
"""Seconds."""
_NO_NAME = re.compile("[\x00\ud800-\udfff]")
"""Characters that no database stores: no conversation has them in its name."""
_ROLES = frozenset({"user", "assistant", "tool", "system", "developer"})


class Term(Struct, frozen=True):
    """What is counted as one: a word in all its forms, or a phrase."""

    phrases: tuple[Phrase, ...]
    weight: float = 1.0
    language: Language = "en"
    is_date: bool = False
    is_guess: bool = False
    """Whether the query does not show of which language it is."""

    def alternatives(self) -> tuple[Term, ...]:
        """The terms to look for instead where nothing matches: the parts of a phrase; a word in the forms of other languages, or with a
        typing error. Part of a date is another date.
        """
        if self.is_date:
            return ()
        first = self.phrases[0]
        if len(first) == 1:
            forms = forms_in_other_languages(first[0], self.language) if self.is_guess else ()
            near = dict.fromkeys((*forms, *words_one_edit_away(first[0])))
            return (Term(tuple((word,) for word in near), TYPO_WEIGHT, self.language),) if near else ()
        parts = [part for part in fragments([first]) if part != first]
        wanted = [part for part in parts if len(part) > 1 or not is_stop_word(part[0], self.language)]
        return tuple(_inflected(part, self.language) for part in wanted)


class Date(Struct, frozen=True):
    """A month or a day that a query names."""

    month: int
    year: int = 0
    """0 for any year."""
    day: int = 0
    """0 for the whole month."""

    def nearness(self, at: float) -> float:
        """1 for a moment of this date, less in the week after it, otherwise 0. What happens on a day is often told a few days later."""
        about = 1970 + int(at // _YEAR)
        return max(
            self._nearness(at, year) for year in ((self.year,) if self.year else range(about - 1, about + 2))
        )

    def span(self, year: int) -> tuple[float, float]:
        """The beginning of this date in a year, and its end, in UTC."""
        start = _start(year, self.month, self.day or 1)
        return start, start + _DAY if self.day else _start(year + self.month // 12, self.month % 12 + 1, 1)

    def _nearness(self, at: float, year: int) -> float:
        start, stop = self.span(year)
        # A day earlier: the date of a person may begin before that of UTC.
        return 0.0 if at < start - _DAY or at >= stop + 7 * _DAY else 1 - max(0.0, at - stop) / (14 * _DAY)


class Query(Struct, frozen=True):
    """A parsed query. Without terms and fields it matches nothing."""

    terms: tuple[Term, ...] = ()
    required: tuple[Phrase, ...] = ()
    """Phrases in quotes: every message that is found has all of them."""
    excluded: tuple[Phrase, ...] = ()
    conversation: str = ""
    role: str = ""
    after: float = -inf
    before: float = inf
    """Seconds since the epoch. `after` is included."""
    dates: tuple[Date, ...] = ()
    impossible: tuple[str, ...] = ()
    """Fields with a date that there is not, such as `after:2026-13`. They restrict nothing, and are no words."""

    def nearness(self, at: float) -> float:
        """How near a moment is to the dates of the query, from 0 to 1."""
        return max((date.nearness(at) for date in self.dates), default=0.0)

    @property
    def is_dated(self) -> bool:
        return self.after > -inf or self.before < inf

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """The times, each from and before a moment, of which a query without words of its own lists the messages; none for other
        queries. Such a query has fields alone, or a date with its year.
        """
        if not all(term.is_date for term in self.terms):
            return ()
        dated = [date.span(date.year) for date in self.dates if date.year]
        if not self.terms and self.has_fields:
            return ((self.after, self.before),)
        return tuple((max(start, self.after), min(stop, self.before)) for start, stop in dated)

    @property
    def has_fields(self) -> bool:
        """Whether it is more than words."""
        return self.has_conditions or bool(self.conversation)

    @property
    def has_conditions(self) -> bool:
        """Whether a message has to be of a time or a speaker, or to have or lack a phrase."""
        return self.is_dated or bool(self.required or self.excluded or self.role)

    @property
    def takes_neighbours(self) -> bool:
        """Whether a message beside a match is found although it has none of the words. An answer often repeats none of its
        question; whoever gives a word or two wants the messages that hold them, and a phrase or a minus sign is a condition.
        """
        return len(self.terms) >= 3 and not (self.required or self.excluded)

    def looks_in(self, conversation: str) -> bool:
        """Whether it has something to look for in a conversation, or in all of them if the name is empty. It has not if it names another
        one, or what can be no name.
        """
        named = self.conversation
        is_here = not conversation or named in {"", conversation}
        return bool(self.terms or self.spans) and is_here and not _NO_NAME.search(named)

    def phrases(self) -> Iterator[Phrase]:
        for term in self.terms:
            yield from term.phrases


def parse_query(text: str) -> Query:
    """Parse what somebody typed. Stop words are left out, unless there is nothing else."""
    return _parse(limit_query(text.translate(_QUOTES)))


@lru_cache(maxsize=16)  # one search parses its query again for every message that it shows
def _parse(text: str) -> Query:
    tokens = _TOKEN.findall(text)
    language, is_known = language_of(text, [word for token in tokens for word in words(token)])
    stop_words, required, excluded = list[Term](), list[Phrase](), list[Phrase]()
    conversation, role, after, before = "", "", -inf, inf
    minus, impossible = list[str](), list[str]()
    dates, wanted, tokens = _read_dates(tokens, language)
    for place, token in enumerate(tokens):
        field, _, value = token.partition(":")
        if field == "in" and value.strip('"'):
            conversation = value.strip('"')
            continue
        if field == "from" and value in _ROLES:
            role = value
            continue
        if field in {"before", "after"} and (at := _moment(value)) is not None:
            after, before = (at, before) if field == "after" else (after, at)
            continue
        if field in {"before", "after"} and _LIKE_DATE.match(value):
            impossible.append(token)
            continue
        if token.startswith('"') and token.endswith('"') and len(token) > 1:
            if phrase := tuple(words(token)):
                required.append(phrase)
                wanted.append(Term((phrase,), language=language))
        elif _is_excluded(token):
            minus.append(token[1:])
        elif term := _read_word(token, language, is_first=not place):
            (stop_words if _is_stop(term.phrases[0], language) else wanted).append(term)
    excluded = [phrase for one in minus if (phrase := tuple(words(one)))]
    terms = _distinct(_with_years(wanted, dates) or stop_words)
    return Query(
        terms if is_known else tuple(structs.replace(term, is_guess=True) for term in terms),
        tuple(dict.fromkeys(required)),
        tuple(excluded),
        conversation,
        role,
        after,
        before,
        dates,
        tuple(dict.fromkeys(impossible)),
    )


def tell_mistakes(text: str) -> str:
    """Say which fields of a query restrict nothing although they look like it; empty if there are none."""
    found = parse_query(text).impossible
    if not found:
        return ""
    named = ", ".join(one[:_MOST_TOLD].encode("utf-8", "replace").decode() for one in found[:3])
    return f"{named}: there is no such date, so it restricts nothing; dates look like 2026, 2026-05 or 2026-05-31"


def _read_dates(tokens: list[str], language: Language) -> tuple[tuple[Date, ...], list[Term], list[str]]:
    """The dates that a query names in plain words, each with a term, for a message may name the date too; and the other tokens, with
    an empty one in the place of a date's.
    """
    held = [tuple(words(token)) if ":" not in token and '"' not in token else () for token in tokens]
    plain = [one[0] if len(one) == 1 else "" for one in held]
    dates, terms, others = list[Date](), list[Term](), [*tokens]
    for at, token in enumerate(tokens):
        iso = _DATE.fullmatch(token.rstrip(_ENDS))
        if iso:
            year, month, day = (int(one or 0) for one in iso.groups())
            date, first, last = Date(month, year, day), at, at
        else:
            date, first, last = _read_date(plain, at)
        if (
            not (1 <= date.month <= 12 and date.day <= _length(date.year or 2000, date.month))
            or not others[first]
        ):
            continue
        written = tuple(word for part in held[first : last + 1] for word in part)
        named = [one for one in month_names(date.month, language) if date.day or is_clear_month(one)]
        names = [] if iso else [plain[at], *named]
        months = [(name, str(date.day)) if date.day else (name,) for name in names]
        phrases = dict.fromkeys([written, *(one for month in months for one in (month, month[::-1]))])
        dates.append(date)
        terms.append(Term(tuple(phrases), language=language, is_date=True))
        others[first : last + 1] = [""] * (last + 1 - first)
    return tuple(dates), terms, others


def _read_date(plain: list[str], at: int) -> tuple[Date, int, int]:
    """The date around the name of a month, and its first and last place; without a month if there is none. A month alone is a date
    after `in` or a word like it: `may` and `march` are also other words.
    """
    name = plain[at]
    month, first, last, day, year = MONTHS.get(name) or SHORT_MONTHS.get(name, 0), at, at, 0, 0
    is_joined = at > 0 and is_before_month(plain[at - 1])
    if at and (day := _day(plain[at - 1])):
        first = at - 1
    elif at > 1 and is_joined and (day := _day(plain[at - 2])):
        first = at - 2  # `7th of July`
    elif at + 1 < len(plain) and (day := _day(plain[at + 1])):
        last = at + 1
    after = last + 2 if last + 1 < len(plain) and is_before_month(plain[last + 1]) else last + 1
    if after < len(plain) and _YEAR_NUMBER.fullmatch(plain[after]):
        year, last = int(plain[after]), after
    is_date = day or year or is_joined if name in MONTHS or is_clear_month(name) else day and year
    return Date(month if is_date else 0, year, day), first, last


def _with_years(terms: list[Term], dates: tuple[Date, ...]) -> list[Term]:
    """The terms. If dates are the whole query, which lists what was said then, the name of a month counts only with the year:
    messages of all times have `may`.
    """
    if not all(term.is_date for term in terms):
        return terms
    years = [(str(date.year),) if date.year else () for date in dates]
    return [
        structs.replace(
            term,
            phrases=tuple(dict.fromkeys((*one, *year) if len(one) == 1 else one for one in term.phrases)),
        )
        for term, year in zip(terms, years, strict=True)
    ]


def _day(word: str) -> int:
    """The day of a month that a word is; 0 if it is none."""
    found = _DAY_NUMBER.fullmatch(word)
    return int(found[1]) if found and int(found[1]) <= 31 else 0


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
            kept.append(structs.replace(term, phrases=own))
            seen.update(own)
    return tuple(kept[:MOST_PHRASES])


def _moment(date: str) -> float | None:
    """The beginning of a year, a month or a day, in UTC; None for what is no date."""
    found = _DATE.fullmatch(date)
    if found is None:
        return None
    year, month, day = (int(one or 1) for one in found.groups())
    return _start(year, month, day) if 1 <= month <= 12 and 1 <= day <= _length(year, month) else None


def _start(year: int, month: int, day: int) -> float:
    """The beginning of a day, in UTC."""
    before = year - 1
    leaps = before // 4 - before // 100 + before // 400
    days = sum(_length(year, one) for one in range(1, month)) + day - 1
    return (365 * before + leaps + days - _EPOCH_DAYS) * _DAY


def _length(year: int, month: int) -> int:
    """The days of a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in {4, 6, 9, 11} else 31


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
