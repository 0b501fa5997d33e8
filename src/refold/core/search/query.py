"""The words of texts and of queries, and the query language of search: plain words, `"a phrase"`, `-word`, `in:`, `from:`, `before:`
and `after:`.

People spell in their own ways, so letters lose their case and accents, and every punctuation mark separates
words. A script without spaces is split into single characters, and a run of these in a query is searched as a
phrase. Text of a query without a space (`max_page_count`, `src/a.py`) must match as consecutive words. Words of
long runs of base64 are left out: each of them is unique, so they would fill the index, and nobody searches for them.

Every text is a valid query. What does not fit the language is taken for words, and a sign of a database's own search syntax is
punctuation. A date in plain words (`7 July 2023`, `in March`) ranks the messages of that time higher, and excludes none. Words count by their inflected forms; names in capitals, numbers, and text without a space (`src/a.py`, `3.14.2`)
count as they are written.

A word is searched together with its inflected forms, which are generated from it: `painted` stands for `paint`, `paints` and
`painting` too. A generated form that is no word matches nothing, so the rules may be generous, and no dictionary is needed. The
language of a query is taken from its stop words and its letters; without either it is English, and a word that no message has is
looked for in the forms of all the others. The rules of the eight languages are the second half of this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Literal, TypeAlias
from unicodedata import category, normalize

from msgspec import Struct, structs

# The words of a text, as they are indexed, and the phrases of a query.

Phrase: TypeAlias = tuple[str, ...]
"""Consecutive words."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u30fa\u30fc-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_MARKS = "\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
"""Signs that belong to the letter before them and that Python does not count as letters."""
_WORD = re.compile(rf"[{_UNSPACED}]|(?:[^\W_{_UNSPACED}]++|[{_MARKS}]++)++")
_PLAIN = {code: " " for code in range(128) if not chr(code).isalnum()}
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_LONGEST = 100
"""Characters. A longer word is encoded data: it would fill the index, and people do not type it."""
_STEP = 64 * 1024
"""Characters that are split at a time."""
_RUN = re.compile(r"[A-Za-z0-9+/=_-]++")
"""Characters of base64, in both of its alphabets."""
_LONGEST_RUN = 4_096
"""Characters of base64 in a row that are still words: longer than paths, keys and signatures are."""
_SIGNS, _MOST_SIGNS = "+/=_-", 1 / 16
"""The characters of base64 that are in no word. Their share is 1/32 in base64, and larger where they stand between words."""
_BLOCK = _LONGEST_RUN // 2
"""A longer run contains a whole block of this size, wherever it begins."""
MAX_QUERY = 1_000
"""Characters of a query that are read: a longer one is a text, and its beginning says what it is about. Every
message that matches is compared with all words of the query."""
MOST_PHRASES = 32
"""Limit of phrases of a query: a whole page as a query says no more than its beginning."""


def limit_query(query: str) -> str:
    """Return the part of a query that is searched for: its first `MAX_QUERY` characters, up to the end of a
    word if there is one.
    """
    if len(query) <= MAX_QUERY:
        return query
    kept = query.lstrip()[: MAX_QUERY + 1]
    if len(kept) <= MAX_QUERY or kept[-1].isspace() or len(kept.split(maxsplit=1)) == 1:
        return kept[:MAX_QUERY]
    return kept.rsplit(maxsplit=1)[0]


def words(text: str) -> list[str]:
    """Return the normalised words of a text, in order."""
    if len(text) <= _STEP:
        return _words(text)
    return [word for piece in _pieces(text) for word in _words(piece)]


def _words(text: str) -> list[str]:
    if len(text) > _LONGEST_RUN and any(
        _is_unbroken(text, at) for at in range(0, len(text) - _BLOCK, _BLOCK)
    ):
        text = _RUN.sub(_word_or_blank, text)
    # Most texts are ASCII, and this runs for every message: a table is four times as fast as a
    # pattern.
    found = text.lower().translate(_PLAIN).split() if text.isascii() else _WORD.findall(_fold(text))
    return [word for word in found if len(word) <= _LONGEST]


def _is_of_word(character: str) -> bool:
    return character.isalnum() or category(character).startswith("M")


def _is_unbroken(text: str, start: int) -> bool:
    """True if a block of a text has no blank, so that it may be in a long run. In prose the first blank is near."""
    return text.find(" ", start, start + _BLOCK) < 0 and text.find("\n", start, start + _BLOCK) < 0


def _word_or_blank(run: re.Match[str]) -> str:
    """Return a blank in place of a long run of base64, and words with signs between them, or a line of signs, as they are."""
    found = run[0]
    if len(found) <= _LONGEST_RUN:
        return found
    return found if sum(map(found.count, _SIGNS)) > len(found) * _MOST_SIGNS else " "


def _pieces(text: str) -> Iterator[str]:
    """Split a long text: one call over megabytes would hold the interpreter's lock for half a second. It is split
    before a blank, or before another character that is in no word, or, inside of data without any, anywhere.
    """
    start = 0
    while len(text) - start > _STEP:
        end = start + _STEP
        stop = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
        if stop < 0:
            nearest = range(end, end - _LONGEST, -1)
            stop = next((at for at in nearest if not _is_of_word(text[at])), end)
        yield text[start:stop]
        start = stop
    yield text[start:]


def words_by_piece(text: str) -> Iterator[list[str]]:
    """Yield the words of a text piece by piece: a list of all words would take ten times the memory of a long text."""
    return map(_words, _pieces(text))


def spaced(text: str) -> str:
    """Return a text in the form in which it is indexed."""
    if len(text) <= _STEP:
        return " ".join(_words(text))
    pieces = [words for some in words_by_piece(text) if (words := " ".join(some))]
    del text
    return " ".join(pieces)


def phrases(query: str) -> list[Phrase]:
    """Return the phrases of a query, each once: words that were written without a space form one phrase."""
    found = (tuple(words(chunk)) for chunk in limit_query(query).split())
    return list(dict.fromkeys(phrase for phrase in found if phrase))[:MOST_PHRASES]


def fragments(wanted: Sequence[Phrase]) -> list[Phrase]:
    """Return the smallest useful parts of phrases: a word, or two neighbours if words are single
    characters.
    """
    parts = (part for phrase in wanted for part in _parts(phrase))
    return list(dict.fromkeys(parts))[:MOST_PHRASES]


def _fold(text: str) -> str:
    # Decomposed twice: lower-case letters can have accents that their capitals did not have.
    apart = normalize("NFKD", normalize("NFKD", text).casefold())
    return normalize("NFC", _ACCENTS.sub("", apart))


def _parts(phrase: Phrase) -> list[Phrase]:
    """Return the words of a phrase, and its runs of single characters as pairs of neighbours."""
    unspaced = [_IS_UNSPACED.match(word) is not None for word in phrase]
    parts: list[Phrase] = [(word,) for word, single in zip(phrase, unspaced, strict=True) if not single]
    pairs = [pair for pair, both in zip(pairwise(phrase), pairwise(unspaced), strict=True) if all(both)]
    if not pairs and not parts:
        return [phrase]
    return parts + pairs


# The query language: fields, dates and terms.

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


# The languages: inflected forms, stop words, months and typing errors.

Language: TypeAlias = Literal["en", "de", "fr", "es", "pt", "it", "nl", "ru"]


class _Rules(Struct, frozen=True):
    stop_words: frozenset[str]
    """Normalised, as `terms.words` gives them: without case and accents."""
    endings: frozenset[str] = frozenset()
    """Endings that words take on and off; empty for English, which has rules of its own."""
    letters: frozenset[str] = frozenset()
    """Letters that few other languages use."""
    irregular: tuple[frozenset[str], ...] = ()
    plurals: tuple[tuple[str, str], ...] = ()
    """Endings of a singular and of its plural that replace each other."""
    shortest: int = 4
    """Letters of a stem at least."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENGLISH_STOP = _set(
    """
    a about after again all also am an and any are aren as at be because been before being but by can could couldn d did didn do
    does doesn doing during each for from had hadn has hasn have haven having he her here hers herself him himself his how
    i if in into is isn it its itself just ll m many me might more most much must my myself no nor not now of off on one
    only or other our ours ourselves out over own please re regarding s same shall she should shouldn so some such t tell than that the their
    theirs them themselves then there these they this those through to too under until up upon ve very was wasn we were weren what
    when where which while who whom whose why will with would wouldn you your yours yourself yourselves
    """
)
_ENGLISH_IRREGULAR = tuple(
    map(
        _set,
        """
        go goes went gone going|buy buys bought buying|take takes took taken taking|make makes made making|get gets got gotten getting
        see sees saw seen seeing|run runs ran running|write writes wrote written writing|win wins won winning|teach teaches taught
        child children|feel feels felt feeling|meet meets met meeting|begin begins began begun beginning|eat eats ate eaten eating
        give gives gave given giving|find finds found finding|lose loses lost losing|say says said saying|tell tells told telling
        think thinks thought thinking|leave leaves left leaving|keep keeps kept keeping|hear hears heard hearing|spend spends spent
        swim swims swam swum swimming|drive drives drove driven driving|sing sings sang sung singing|speak speaks spoke spoken speaking
        break breaks broke broken breaking|choose chooses chose chosen choosing|fall falls fell fallen falling|know knows knew known
        grow grows grew grown growing|draw draws drew drawn drawing|man men|woman women|person people persons|foot feet|tooth teeth
        mouse mice|wife wives|life lives|knife knives|half halves|shelf shelves|come comes came coming|become becomes became becoming
        bring brings brought bringing|build builds built building|catch catches caught catching|cut cuts cutting|fly flies flew flown
        forget forgets forgot forgotten forgetting|hold holds held holding|lead leads led leading|pay pays paid paying|put puts putting
        ride rides rode ridden riding|rise rises rose risen rising|sell sells sold selling|send sends sent sending|set sets setting
        show shows showed shown showing|sit sits sat sitting|sleep sleeps slept sleeping|stand stands stood standing
        steal steals stole stolen stealing|throw throws threw thrown throwing|understand understands understood|wake wakes woke woken
        wear wears wore worn wearing|fight fights fought fighting|hide hides hid hidden hiding|hurt hurts hurting|lie lies lay lain lying
        read reads reading|good better best|bad worse worst|index indices indexes|analysis analyses|crisis crises|datum data
        """.replace("\n", "|").split("|"),
    )
)
_RULES: dict[Language, _Rules] = {
    "en": _Rules(
        _ENGLISH_STOP,
        irregular=tuple(one for one in _ENGLISH_IRREGULAR if one),
        plurals=(
            ("lf", "lves"),
            ("af", "aves"),
            ("arf", "arves"),
            ("ief", "ieves"),
            ("ife", "ives"),
            ("man", "men"),
        ),
    ),
    "de": _Rules(
        _set(
            """
            ab aber alle als also am an auch auf aus bei beim bin bis bist da damit dann das dass dein deine dem den der des dich die
            dies diese dieser dieses dir doch du durch ein eine einem einen einer eines er es euch euer fur habe haben hat hatte hatten
            hier hinter ich ihm ihn ihnen ihr ihre im in ins ist ja jede jeder jedes kann kein keine mal man mein meine mich mir mit
            nach nicht noch nun nur ob oder ohne schon sehr sein seine sich sie sind so soll uber um und uns unser unter vom von vor
            wann war waren warum was weil welche welcher welches wenn wer werden wie wieder wir wird wo wohin wurde zu zum zur zwischen
            """
        ),
        _set("e en er es em n s st t te ten test tet et end ende enden ung ungen in innen"),
        _set("ä ö ü ß"),
    ),
    "fr": _Rules(
        _set(
            """
            a ai au aux avec avait avez avons c ce ces cet cette ceux chez comme comment d dans de des dont du elle elles en est et
            etait etaient ete etre eu fait il ils j je l la le les leur leurs lui m ma mais me meme mes moi mon n ne nos notre nous on
            ont ou par pas pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se ses si son sont sur t ta te tes
            toi ton tu un une vos votre vous y
            """
        ),
        _set(
            "s x e es ee ees er ez ait ais aient ant ante ants ent ons a ai as i ie is it ir iront era eront re eur eurs"
        ),
        _set("è ê ç œ à ù û î"),
        plurals=(("al", "aux"), ("ail", "aux")),
    ),
    "es": _Rules(
        _set(
            """
            a al ante aqui asi aun bajo cada como con cual cuales cuando cuanto de del desde donde dos e el ella ellas ellos en entre
            era eran es esa esas ese eso esos esta estaba estan estas este esto estos fue fueron ha habia han hasta hay la las le les
            lo los mas me mi mis muy nada ni no nos nosotros o os otra otro para pero por porque que quien quienes se ser si sin
            sobre son su sus tambien te tiene tu tus u un una uno unos y ya yo
            """
        ),
        _set(
            "s es o a os as e ar er ir ado ada ados adas ido ida idos idas ando iendo aba aban ia ian io aron ieron amos emos imos an en ara"
        ),
        _set("ñ ¿ ¡"),
    ),
    "pt": _Rules(
        _set(
            """
            a ao aos as ate com como da das de dela dele deles do dos e ela elas ele eles em entre era essa esse esta estao estava este
            eu foi foram ha isso isto ja la lhe mais mas me mesmo meu minha muito na nao nas nem no nos nossa nosso num numa o onde os
            ou para pela pelo por porque qual quando que quem sao se sem ser seu seus so sobre sua suas tambem te tem tinha um uma voce
            voces
            """
        ),
        _set(
            "s es o a os as e ar er ir ado ada ados adas ido ida idos idas ando endo indo ava avam ia iam ou eu iu aram eram iram amos emos imos am em ao oes"
        ),
        _set("ã õ"),
    ),
    "it": _Rules(
        _set(
            """
            a ad ai al alla alle allo anche c che chi ci come con cosa cui da dal dalla dei del della delle dello di dove e ed era
            erano fra gli ha hai hanno ho i il in io l la le lei li lo loro lui ma mi mia mio ne nei nel nella noi non nostro o per
            perche piu quale quali quando quanto quella quello questa questo sei si sia sono su sua sul sulla suo ti tra tu un una uno
            vi voi
            """
        ),
        _set(
            "o a i e are ere ire ato ata ati ate uto uta uti ute ito ita iti ite ando endo ava avano eva evano iva ano ono iamo erebbe"
        ),
        frozenset(),
    ),
    "nl": _Rules(
        _set(
            """
            aan al alles als altijd andere ben bij daar dan dat de der deze die dit doen door dus een en er ge geen had heb hebben heeft
            hem het hier hij hoe hun iets ik in is ja je kan kon maar me meer men met mij mijn moet na naar niet niets nog nu of om
            ons ook op over reeds te tegen toch toen tot u uit uw van veel voor waar waren was wat we welke werd wie wij wil worden zal
            ze zelf zich zij zijn zo zonder
            """
        ),
        _set("e en s es t te ten de den d er ers end ende ing ingen je jes"),
        frozenset(),
    ),
    "ru": _Rules(
        _set(
            """
            а без более бы был была были было быть в вам вас весь во вот все всего всех вы где да даже для до его ее если есть еще же
            за здесь и из или им их к как какая какие какои ко когда кто куда ли мне мы на над надо наш не него нее нет ни них но о об
            он она они оно от по под почему при про с со так также там те тем то того тоже тои только том ты у уже хотя чего чеи чем
            что чтобы эта эти это этои этом этот я
            """
        ),
        _set(
            "а я ы и у ю е о ь ои еи ом ем ам ям ами ями ах ях ов ев ыи ии ая яя ое ее ые ие ого его ому ему ым им ых их ую юю"
            " ть ти л ла ло ли ет ит ут ют ат ят ешь ишь ал ала али ил ила или"
        ),
        frozenset(),
        shortest=3,  # `нов` of `новая`, `дом` of `дома`
    ),
}
_MONTH_NAMES: tuple[tuple[Language, str], ...] = (
    ("en", "january february march april may june july august september october november december"),
    ("de", "januar februar marz april mai juni juli august september oktober november dezember"),
    ("fr", "janvier fevrier mars avril mai juin juillet aout septembre octobre novembre decembre"),
    ("es", "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"),
    ("pt", "janeiro fevereiro marco abril maio junho julho agosto setembro outubro novembro dezembro"),
    ("it", "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"),
    ("nl", "januari februari maart april mei juni juli augustus september oktober november december"),
    ("ru", "январь февраль март апрель маи июнь июль август сентябрь октябрь ноябрь декабрь"),
    ("ru", "января февраля марта апреля мая июня июля августа сентября октября ноября декабря"),
    ("ru", "январе феврале марте апреле мае июне июле августе сентябре октябре ноябре декабре"),
)
_SHORT_NAMES: tuple[tuple[Language, str], ...] = (
    ("en", "jan feb mar apr - jun jul aug sep oct nov dec"),
    ("en", "- - - - - - - - sept - - -"),
    ("de", "jan feb mar apr - jun jul aug sep okt nov dez"),
    ("de", "- - mrz - - - - - sept - - -"),
    ("fr", "janv fevr - avr - - juil - sept oct nov dec"),
    ("fr", "- fev - - - - - - - - - -"),
    ("es", "ene feb mar abr - jun jul ago sep oct nov dic"),
    ("es", "- - - - - - - - sept - - -"),
    ("pt", "jan fev mar abr - jun jul ago set out nov dez"),
    ("it", "gen feb mar apr mag giu lug ago set ott nov dic"),
    ("it", "- - - - - - - - sett - - -"),
    ("nl", "jan feb mrt apr - jun jul aug sep okt nov dec"),
    ("nl", "- - - - - - - - sept - - -"),
    ("ru", "янв фев мар апр - июн июл авг сен окт ноя дек"),
    ("ru", "- февр - - - - - - сент - нояб -"),
)
"""Without the point. `may`, `mai` and `mei` are whole names."""
MONTHS: dict[str, int] = {
    name: month for _, names in _MONTH_NAMES for month, name in enumerate(names.split(), 1)
}
SHORT_MONTHS: dict[str, int] = {
    name: month for _, names in _SHORT_NAMES for month, name in enumerate(names.split(), 1) if name != "-"
}
_OTHER_WORDS = _set("gen mar mag set sett out ago")
"""Short names that are words or names of their own: `3 out of 5`, `a year ago`."""
_BEFORE_MONTH = _set(
    "in of by during since last next early late mid until till before after around im en de em nel a di del в с до"
)
"""Words before a month that is a date, and between its parts."""
_CYRILLIC = re.compile("[\u0430-\u045f]")
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "абвгдежзиклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρσςτυφχψω")
SHORTEST_TYPO = 5
"""Letters of a word in which a typing error is looked for: shorter words are one letter away from many others (`bike`, `bake`)."""
LONGEST_TYPO = 24
_SHORTEST_STEM = 3
_SHORTEST_PLURAL = 2
"""Letters before an ending that a plural replaces: `calf`, `cheval`."""
_VOWELS = "aeiou"


def language_of(query: str, words: Sequence[str]) -> tuple[Language, bool]:
    """Return the language of a query, and whether it shows: most of its stop words are of it, or it has letters of it."""
    lower, held = set(query.casefold()), set(words)
    if _CYRILLIC.search(query.casefold()):
        return "ru", True
    best, most = "en", 0.0
    for name, rules in _RULES.items():
        # Of languages with equally many, the first: English, then by the number of speakers who would type such a query.
        share = len(held & rules.stop_words) + (0.5 if lower & rules.letters else 0.0)
        if share > most:
            best, most = name, share
    return best, most > 0  # type: ignore[return-value]


def is_stop_word(word: str, language: Language) -> bool:
    return word in _RULES[language].stop_words


def is_before_month(word: str) -> bool:
    return word in _BEFORE_MONTH


def is_clear_month(word: str) -> bool:
    """Whether the name of a month is hardly anything else."""
    return word not in _OTHER_WORDS


def month_names(month: int, language: Language) -> list[str]:
    """The names of a month in a language, whole and short."""
    rows = (names.split() for spoken, names in (*_MONTH_NAMES, *_SHORT_NAMES) if spoken == language)
    return [names[month - 1] for names in rows if names[month - 1] != "-"]


@lru_cache(maxsize=4_096)
def forms_of(word: str, language: Language) -> tuple[str, ...]:
    """Return a normalised word and its other forms, the word first. Numbers and very short words have none."""
    if len(word) < _SHORTEST_STEM or not word.isalpha():
        return (word,)
    rules = _RULES[language]
    if language == "en":
        found = set(_english_forms(word)) if word.isascii() else set()
    else:
        found = _forms_by_endings(word, rules)
        if language == "de":
            found |= {form for inner in _without_ge(word) for form in _forms_by_endings(inner, rules)}
    for one, many in rules.plurals:
        for ending, other in ((one, many), (many, one)):
            if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_PLURAL:
                found.add(word.removesuffix(ending) + other)
    for group in rules.irregular:
        if word in group:
            found |= group
    return (word, *sorted(found - {word} - rules.stop_words))


@lru_cache(maxsize=256)
def forms_in_other_languages(word: str, language: Language) -> tuple[str, ...]:
    """Return the forms of a word in all languages but one, without the word itself. One word does not say of which language it is."""
    found = {form for other in _RULES if other != language for form in forms_of(word, other)}
    return tuple(sorted(found - {word}))


def _forms_by_endings(word: str, rules: _Rules) -> set[str]:
    """Every form of the stem: the word without its longest ending."""
    held = [one for one in rules.endings if word.endswith(one) and len(word) - len(one) >= rules.shortest]
    stems = {word, word.removesuffix(max(held, key=len))} if held else {word}
    return {stem + ending for stem in stems for ending in ("", *rules.endings)}


def _without_ge(word: str) -> list[str]:
    """The stem of a German participle: `gemalt` is a form of `malen`."""
    if not word.startswith("ge") or len(word) < _SHORTEST_STEM + 4:
        return []
    return [word[2 : -len(end)] for end in ("t", "en") if word.endswith(end)]


def _english_forms(word: str) -> Iterable[str]:
    for stem in _english_stems(word):
        yield from (stem, f"{stem}s")
        if stem.endswith("e"):
            yield from (f"{stem}d", f"{stem[:-1]}ing", f"{stem[:-1]}ings", f"{stem}r", f"{stem}rs")
        else:
            yield from (f"{stem}ed", f"{stem}ing", f"{stem}ings", f"{stem}er", f"{stem}ers")
        if stem.endswith(("s", "x", "z", "ch", "sh", "o")):
            yield f"{stem}es"
        if stem.endswith("y") and stem[-2:-1] not in _VOWELS:
            yield from (f"{stem[:-1]}ies", f"{stem[:-1]}ied", f"{stem[:-1]}ier")
        if _doubles(stem):
            yield from (f"{stem}{stem[-1]}ing", f"{stem}{stem[-1]}ed", f"{stem}{stem[-1]}er")


def _english_stems(word: str) -> set[str]:
    """The word itself, and what may be left of it without an ending."""
    stems = {word}
    if word.endswith("ies") and len(word) > _SHORTEST_STEM + 1:
        stems.add(f"{word[:-3]}y")
    if word.endswith("es") and len(word) > _SHORTEST_STEM + 1:
        stems |= {word[:-2], word[:-1]}
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        stems.add(word[:-1])
    for ending in ("ing", "ings", "ed", "er", "ers"):
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            if len(stem) < _SHORTEST_STEM or not set(stem) & set("aeiouy"):
                continue
            stems |= {stem, f"{stem}e"}
            if stem[-1] == stem[-2]:
                stems.add(stem[:-1])
            if stem.endswith("i"):
                stems.add(f"{stem[:-1]}y")
    return {stem for stem in stems if len(stem) >= _SHORTEST_STEM and set(stem) & set("aeiouy")} | {word}


def _doubles(stem: str) -> bool:
    """Whether the last consonant is written twice before an ending, as in `running`."""
    return (
        len(stem) >= _SHORTEST_STEM
        and stem[-1] not in f"{_VOWELS}wxy"
        and stem[-2] in _VOWELS
        and stem[-3] not in _VOWELS
    )


@lru_cache(maxsize=32)
def words_one_edit_away(word: str) -> tuple[str, ...]:
    """Return what a word becomes by one typing error: a letter too many, too few, wrong, or two in the wrong order. The first letter
    is taken for right: errors there are rare, and other words many. None for words that are short, or not of one alphabet: a number
    is right or it is another number.
    """
    alphabet = next((one for one in _ALPHABETS if set(word) <= set(one)), "")
    if not alphabet or not SHORTEST_TYPO <= len(word) <= LONGEST_TYPO:
        return ()
    cuts = [(word[:at], word[at:]) for at in range(1, len(word) + 1)]
    found = {head + tail[1:] for head, tail in cuts if tail}
    found |= {head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1}
    found |= {head + letter + tail[1:] for head, tail in cuts if tail for letter in alphabet}
    found |= {head + letter + tail for head, tail in cuts for letter in alphabet}
    return tuple(sorted(found - {word}))
