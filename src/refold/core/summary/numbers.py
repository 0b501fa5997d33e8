"""Numbers and dates, however they are written.

One idea: `1,234`, `1.234` and `1234` are one number, `2024-05-01` and `May 1, 2024` one day, `1500 ms` and `1.5 s` one time. So
a number is compared by what it may mean, and rounding one that was said says nothing new. Numbers of one or two digits are
counts, steps and list marks: they claim nothing that could be checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from msgspec import Struct

_SPACES = "\u0020\u00a0\u2009\u202f"
_WRITTEN = re.compile(rf"(?<![\d])\d{{1,3}}(?:[{_SPACES}]\d{{3}})+(?![\d])(?:[.,]\d+)?|\d+(?:[.,'’_]\d+)*")
_UNIT = (
    r"[ \u00a0]?(?:%|‰|°|(?:[kKMGTµmn]i?)?(?:[Bb](?:ytes?|its?|ps)?|s|Hz|W|V|g|m|l)|[kKMGT]|ms|min|mins|minutes?|h|hrs?|hours?|secs?"
    r"|seconds?|days?|Tagen?|Std|Stunden?|Minuten?|Sekunden?|heures?|secondes?|jours?|horas?|minutos?|segundos?|días?|ore|minuti"
    r"|secondi|giorni|dias?|секунд\w?|минут\w?|час\w{0,2}|thousand|millions?|billions?|Mio|Mrd|tokens?)(?![^\W\d_])"
    r"|[ \u00a0]?(?:毫秒|秒|分钟|分鐘|分|小时|小時|時間|天|日間|万|萬|億|亿|千|초|분|시간|만|억)"
)
_HAS_UNIT = re.compile(_UNIT)
ORDINAL = re.compile(r"(?:st|nd|rd|th|er|ère|re|e|ème|eme|º|ª|°|o|a|te[rns]?|de)(?![^\W\d_])")
_LONGEST = 40
"""Characters: whatever has more digits is an id, and is compared as it stands."""
_FINEST = 8
"""Digits after the point up to which roundings are told apart."""
_UNITS = (1_000, 1_000**2, 1_000**3, 1_024, 1_024**2, 60, 60**2)
_SCALES = (*(Fraction(n) for n in (*_UNITS, 10**4, 10**8)), *(Fraction(1, n) for n in _UNITS))
"""Between units of one kind: bytes, seconds, and the tens of thousands in which the East counts."""
_PERCENT = (Fraction(1, 100), Fraction(100))
_MONTHS = (
    "january jan januar jänner janvier enero ene janeiro gennaio января январь", "february feb februar février fév febrero fevereiro febbraio февраля февраль",
    "march mar märz mars marzo março marzo марта март", "april apr avril abril abr aprile апреля апрель", "may mai mayo maio maggio мая май",
    "june jun juni juin junio junho giugno июня июнь", "july jul juli juillet julio julho luglio июля июль", "august aug août agosto ago августа август",
    "september sep sept septembre septiembre setembro settembre сентября сентябрь", "october oct oktober okt octobre octubre outubro ottobre октября октябрь",
    "november nov novembre noviembre novembro ноября ноябрь", "december dec dezember dez décembre diciembre dic dezembro dicembre декабря декабрь",
)  # fmt: skip
_MONTH_OF = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_NUMERIC_DATE = re.compile(
    r"(?<![\d.])(?:(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4}))(?!\d)"
)
_DAY_MONTH = re.compile(
    r"(?<!\d)(\d{1,2})(?:st|nd|rd|th|er|º|\.)?\s{1,2}(?:of |de )?([^\W\d_]{3,10}+)(?:\.|,)?(?:\s(?:del? )?(\d{4}))?(?!\d)"
)
_MONTH_DAY = re.compile(
    r"(?<![^\W\d_])([^\W\d_]{3,10}+)\.?\s{1,2}(\d{1,2})(?:st|nd|rd|th)?(?:,?\s(\d{4}))?(?!\d)"
)
_FAR_EASTERN_DATE = re.compile(r"(?:(\d{4})\s?[年년]\s?)?(\d{1,2})\s?[月월]\s?(\d{1,2})\s?[日일号號]")


class Day(Struct, frozen=True):
    month: int
    day: int
    year: int = 0
    """Zero where none is said."""


class Number(Struct, frozen=True):
    """A number of a text: how it is written, where, and the unit that follows, if one does."""

    written: str
    start: int
    stop: int
    unit: str = ""


class Numbers(Struct, frozen=True):
    """All that a text says in digits."""

    values: frozenset[str]
    quantities: frozenset[str]
    """Those before a unit: they may be said in another one."""
    days: frozenset[Day]

    def holds(self, number: Number) -> bool:
        readings = set(_readings(number.written))
        if readings & self.values:
            return True
        scales = _PERCENT if "%" in number.unit else _SCALES
        return bool(number.unit) and any(
            scaled in self.quantities or (len(scaled) > 2 and scaled in self.values)
            for reading in readings
            for scaled in _scaled(reading, scales)
        )

    def has_day(self, day: Day) -> bool:
        """Was this day said, with its year, or its year elsewhere?"""
        return day in self.days or (Day(day.month, day.day) in self.days and str(day.year) in self.values)


def numbers_of(text: str) -> Numbers:
    values, quantities = set[str](), set[str]()
    for written, has_unit, is_list in {_kind(text, number) for number in find_numbers(text)}:
        readings = {*_readings(written), *_parts(written, is_list=is_list)}
        values |= readings
        quantities |= readings if has_unit else set()
        if not _is_grouped(re.split(r"\D", written)):
            values |= {rounded for reading in readings for rounded in _roundings(reading)}
    return Numbers(frozenset(values), frozenset(quantities), frozenset(day for day, _, _ in find_days(text)))


def _kind(text: str, number: Number) -> tuple[str, bool, bool]:
    """What decides how a number may be read: how it is written, whether a unit follows, whether it may be several."""
    is_list = text[number.start - 1 : number.start] in ("[", "(") or any(map(str.isspace, number.written))
    return number.written, bool(number.unit), is_list


def find_numbers(text: str) -> Iterator[Number]:
    """Every run of digits that can be read as one number."""
    for match in _WRITTEN.finditer(text):
        unit = _HAS_UNIT.match(text, match.end())
        yield Number(match[0], *match.span(), unit[0] if unit else "")


def find_days(text: str) -> Iterator[tuple[Day, int, int]]:
    """Every date, and where it stands. One in digits may mean two days."""
    for match in _NUMERIC_DATE.finditer(text):
        year, _, month, day, first, _, second, last = match.groups()
        pairs = (
            [(int(month), int(day), year)]
            if year
            else [(int(first), int(second), last), (int(second), int(first), last)]
        )
        for one, other, named in pairs:
            if _is_day(one, other):
                yield Day(one, other, int(named)), *match.span()
    for match in _FAR_EASTERN_DATE.finditer(text):
        if _is_day(int(match[2]), int(match[3])):
            yield Day(int(match[2]), int(match[3]), int(match[1] or 0)), *match.span()
    for pattern, month_at, day_at in ((_DAY_MONTH, 2, 1), (_MONTH_DAY, 1, 2)):
        for match in pattern.finditer(text):
            number = _MONTH_OF.get(match[month_at].lower(), 0)
            if _is_day(number, int(match[day_at])):
                yield Day(number, int(match[day_at]), int(match[3] or 0)), *match.span()


def is_small(number: Number) -> bool:
    """Too short to be checked: a count, a step, a mark in a list, a rounded size. A bare `3.9` may be a version."""
    is_version = "." in number.written and not number.unit
    return sum(map(str.isdigit, number.written)) <= 2 and not is_version


def is_unit(text: str) -> bool:
    return _HAS_UNIT.fullmatch(text) is not None


def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def _readings(written: str) -> Iterator[str]:
    """What a written number may mean: whole, with a point, or as it stands."""
    groups, marks = re.split(r"\D", written), re.findall(r"\D", written)
    yield ".".join(groups) if marks else groups[0].lstrip("0") or "0"
    if len(written) > _LONGEST or not marks:
        return
    if _is_grouped(groups):
        yield "".join(groups).lstrip("0") or "0"
    if marks[-1] in ".," and marks.count(marks[-1]) == 1 and all(len(group) == 3 for group in groups[1:-1]):
        whole, rest = "".join(groups[:-1]).lstrip("0") or "0", groups[-1].rstrip("0")
        yield f"{whole}.{rest}" if rest else whole


def _is_grouped(groups: list[str]) -> bool:
    """Thousands and thousands of thousands, whatever mark stands between them."""
    return len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])


def _parts(written: str, *, is_list: bool) -> Iterator[str]:
    """What else may be said by it: the members of a list without spaces, the beginning of a version."""
    groups = re.split(r"\D", written)
    if is_list or any(len(group) > 3 for group in groups[1:]):
        yield from (group.lstrip("0") or "0" for group in groups)
    if written.count(".") > 1:
        yield from _readings(".".join(groups[:2]))


def _roundings(reading: str) -> Iterator[str]:
    whole, point, rest = reading.partition(".")
    if not point or "." in rest or len(reading) > _LONGEST:
        return
    value = Fraction(int(whole + rest), 10 ** len(rest))
    for digits in range(min(len(rest), _FINEST)):
        for shift in (Fraction(1, 2), Fraction(0)):
            yield _shown(Fraction(int(value * 10**digits + shift), 10**digits))


def _scaled(reading: str, scales: tuple[Fraction, ...]) -> Iterator[str]:
    whole, _, rest = reading.partition(".")
    if "." in rest or len(reading) > _LONGEST:
        return
    value = Fraction(int(whole + rest), 10 ** len(rest))
    for scale in scales:
        yield _shown(value * scale)


def _shown(value: Fraction) -> str:
    """The value with up to nine digits after the point; what needs more was not said this way."""
    whole, rest = divmod(value, 1)
    if not rest:
        return str(whole)
    digits = str(int(rest * 10**9)).zfill(9).rstrip("0")
    return f"{whole}.{digits}"
