"""Find the words of a text that claim to be exact names.

The form of a word makes the claim: an underscore, inner capitals, digits between letters, the slashes of a
path, the dots of a file or a host. Ordinary language has such forms too (`e.g.`, `and/or`, `E-Mail`,
`10-minute`), which claim nothing. A plain compound such as `billing-gateway` is a name only if it is used as
one: in code, or after the word for its kind. Numbers and dates are compared by value, in all their spellings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from msgspec import Struct

from refold.core.digest.terms import CJK

# Numbers and dates, in all their spellings.

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
"""Characters: a longer number is an id, and is compared unchanged."""
_FINEST = 8
"""Digits after the point up to which roundings are distinguished."""
_UNITS = (1_000, 1_000**2, 1_000**3, 1_024, 1_024**2, 60, 60**2)
_SCALES = (*(Fraction(n) for n in (*_UNITS, 10**4, 10**8)), *(Fraction(1, n) for n in _UNITS))
"""Factors between units of one kind: bytes, seconds, and the units of ten thousand and a hundred million
of East Asian languages."""
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
    """Zero if no year is given."""


class Number(Struct, frozen=True):
    """A number of a text: its spelling, its position, and the unit that follows, if there is one."""

    written: str
    start: int
    stop: int
    unit: str = ""


class Numbers(Struct, frozen=True):
    """All numbers and dates of a text."""

    values: frozenset[str]
    quantities: frozenset[str]
    """Values before a unit: they may be given in another unit."""
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
        """Return True if the text has this day with its year, or the day alone and the year elsewhere
        in it.
        """
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
    """Return the properties that decide how a number may be read: its spelling, a following unit, and whether
    it may be a list.
    """
    is_list = text[number.start - 1 : number.start] in ("[", "(") or any(map(str.isspace, number.written))
    return number.written, bool(number.unit), is_list


def find_numbers(text: str) -> Iterator[Number]:
    """Yield every run of digits that can be read as one number."""
    for match in _WRITTEN.finditer(text):
        unit = _HAS_UNIT.match(text, match.end())
        yield Number(match[0], *match.span(), unit[0] if unit else "")


def find_days(text: str) -> Iterator[tuple[Day, int, int]]:
    """Yield every date with its start and end. A date in digits may mean two days."""
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
    """Return True for a number too short to be checked: a count, a step, a list mark, a rounded size.

    A bare `3.9` may be a version.
    """
    is_version = "." in number.written and not number.unit
    return sum(map(str.isdigit, number.written)) <= 2 and not is_version


def is_unit(text: str) -> bool:
    return _HAS_UNIT.fullmatch(text) is not None


def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def _readings(written: str) -> Iterator[str]:
    """Yield the possible values of a written number: unchanged, as a whole number, and with a decimal
    point.
    """
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
    """Return True for groups of thousands, with any mark between them."""
    return len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])


def _parts(written: str, *, is_list: bool) -> Iterator[str]:
    """Yield further numbers in it: the members of a list without spaces, the beginning of a version."""
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
    """Return the value with up to nine digits after the point; a value that needs more is not written this
    way.
    """
    whole, rest = divmod(value, 1)
    if not rest:
        return str(whole)
    digits = str(int(rest * 10**9)).zfill(9).rstrip("0")
    return f"{whole}.{digits}"


# Names.

_WORD = rf"[^\W{CJK}]"
TOKEN = re.compile(rf"{_WORD}+(?:[-./@+%\\]{{1,4}}{_WORD}+)*")
JOINTS = re.compile(r"[-./@+%\\]+")
_CODE = re.compile(r"`([^`\n]{1,160})`")
_PLURAL = re.compile(r"[A-Z]{2,}(?:s|en|e)?|\w+Innen")
_UNSPEAKABLE = re.compile(r"[B-DF-HJ-NP-TV-XZ]{4}")
_DIGRAPHS = re.compile("SCH|CH|CK|TH|PH|SH|NG|GH|WH|ST|TS|TZ|SS|LL|MM|NN|RR|TT|PP|FF")
_NAMED = re.compile(
    r"(?:\b(?:services?|hosts?|servers?|cluster|databases?|db|containers?|pods?|queues?|topics?|buckets?|branch|packages?|modules?"
    r"|tables?|repo|repository|namespace|instances?|machine|node|deployment|named|called|dienst|datenbank|rechner|tabelle|paket"
    r"|serveur|hôte|conteneur|paquet|servicio|servidor|contenedor|paquete|serviço|pacote|servizio|server|сервис|сервер|хост|база)"
    r"|服务|主机|服务器|数据库|サービス|ホスト|サーバー?|서비스|서버|호스트)[ :]{0,2}[\"'`“«„]?$",
    re.IGNORECASE,
)
_PART_WORDS = (
    "a an and as at all any by back back-end cross down end ever ex face first for free front full half "
    "hand hard high how in key like line long low mid mode more multi new no non not of off old on one "
    "only open or out over own per plain post pre re read ready real run safe self semi short side single "
    "so soft sub super test three time to top two type un under up use user via way well wide with work "
    "write zero based built check close date fail follow help in-place level load log made"
)
_EVERYDAY_PARTS = frozenset(_PART_WORDS.split())
"""Parts of compounds that are common words: read-only, follow-up, end-to-end, long-running."""
_STANDARDS = (
    "github gitlab javascript typescript powershell websocket websockets macos ios ipados iphone ipad "
    "latex devops oauth node.js next.js vue.js react.js three.js d3.js asp.net vb.net utf-8 utf8 utf-16 "
    "ascii-8bit ipv4 ipv6 base64 base-64 sha256 sha-256 sha-1 sha1 sha512 sha-512 md5 oauth2 oauth2.0 "
    "http/1.1 http/2 http/3 http2 mp3 mp4 x86 x86-64 x86_64 amd64 arm64 i18n l10n a11y k8s e2e p50 p90 "
    "p95 p99 iso-8601 iso8601 rfc3339 b2b b2c covid-19 tcp/ip ci/cd n/a i/o c++ ctrl-c saas paas iaas "
    "mlops gmbh todos"
)
_EVERYDAY = frozenset(_STANDARDS.split())
"""Names of standards and file types in common use: they are no facts of this conversation."""
_SHORT_ENDINGS = "py js ts go rs rb cs md sh cc hh pl kt mk so db ml vb tf ps1 css sql"
_ENDINGS = frozenset(_SHORT_ENDINGS.split())
"""File extensions that are so short that the name looks like an abbreviation."""
_BEFORE_YEARS = "mid pre post early late top ca anno since sub non re anti ex über vor nach"
_PREFIXES = frozenset(_BEFORE_YEARS.split())
_COUNTED = re.compile(r"\d+(?:\.\d+)*(?:-[^\W\d_]+)+")
_RANGE = re.compile(r"\d+(?:\.\d+)?(?:[-/+]\d+(?:\.\d+)?)+")
_MEASURED = re.compile(r"\d+\.\d+([^\W\d_]+)")
"""A size with its unit: 3.5s, 2.5GB."""
_SPAN = re.compile(r"([^\W\d_]{1,12})\d{1,9}-\1\d{1,9}")
"""A range of ids: WP14-WP20."""
_STEP = re.compile(r"[^\W\d_]{3,12}-?\d{1,2}")
_STEP_WORDS = (
    "step phase part option item task stage day week version chapter level tier schritt teil tag woche étape"
)
_STEPS = frozenset(_STEP_WORDS.split())


class Claim(Struct, frozen=True):
    """A word that claims to be a name."""

    name: str
    is_pair: bool = False
    """True if it may also be two alternative words: then it is a path only if its first part begins other
    paths."""


def claims(text: str) -> Iterator[Claim]:
    """Yield every word of a line that claims to be a name."""
    alone = {match.start(1) for match in _CODE.finditer(text) if TOKEN.fullmatch(match[1])}
    for match in TOKEN.finditer(text):
        token, start = match[0].strip("_"), match.start()
        is_path = start in alone or text[max(0, start - 1) : start] in ("/", "\\", "~")
        is_plain = token.islower() and token.isalpha()
        is_named = not is_plain and (
            start in alone or _NAMED.search(text, max(0, start - 24), start) is not None
        )
        yield from _claims(token, is_path=is_path, is_named=is_named)


def _claims(token: str, *, is_path: bool, is_named: bool) -> Iterator[Claim]:
    if not token or token.casefold() in _EVERYDAY:
        return
    if token.replace("_", "").isalnum():
        is_name = _is_name(token, is_named=is_named) if token.isalpha() else _is_coded(token)
        yield from [Claim(token)] if is_name else []
    elif not _is_counted(token):
        yield from _compound(token, is_path=is_path, is_named=is_named)


def _is_name(word: str, *, is_named: bool) -> bool:
    """Return True if a word of letters is a name: with inner capitals, or all capitals if used as a name or
    unpronounceable.
    """
    if word.islower() or word[1:].islower() or word.lower() == word.upper():
        return False
    if not word.isupper():
        return len(word) > 3 and not _PLURAL.fullmatch(word)
    is_odd = len(word) > 5 and _UNSPEAKABLE.search(_DIGRAPHS.sub("N", word)) is not None
    return word.isascii() and len(word) > 4 and (is_named or is_odd)


def _is_coded(token: str) -> bool:
    """Return True if a word with digits or underscores is a name, not a number with an ending or a step."""
    if token.isdigit() or ("_" not in token and len(token) <= 3):
        return False
    ending = token.lstrip("0123456789")
    digits = len(token) - len(ending)
    is_counted = 0 < digits <= 2 and ending.isalpha() and ending.islower()
    is_number = digits > 0 and (is_unit(ending) or ORDINAL.fullmatch(ending) is not None)
    return not is_number and not is_counted and not _is_step(token)


def _is_step(token: str) -> bool:
    return _STEP.fullmatch(token) is not None and token.rstrip("0123456789-").casefold() in _STEPS


def _is_counted(token: str) -> bool:
    """Return True for a range, a number before a word, a year after one, or a step: only their numbers can be
    checked.
    """
    before, _, after = token.partition("-")
    is_year = before.casefold() in _PREFIXES and after.isdigit()
    return (
        token.replace(".", "").isdigit()
        or is_year
        or _is_step(token)
        or _RANGE.fullmatch(token) is not None
        or _COUNTED.fullmatch(token) is not None
        or _is_measured(token)
    )


def _is_measured(token: str) -> bool:
    found = _MEASURED.fullmatch(token)
    return found is not None and is_unit(found[1])


def _compound(token: str, *, is_path: bool, is_named: bool) -> Iterator[Claim]:
    parts, joints = JOINTS.split(token), set(JOINTS.findall(token))
    if _SPAN.fullmatch(token):
        yield from (claim for part in parts for claim in _claims(part, is_path=False, is_named=False))
    elif "@" in joints:
        yield Claim(token)
    elif not all(map(str.isalpha, parts)):
        yield from [] if _is_small(parts) else [Claim(token)]
    elif "." in joints:
        yield from [] if joints == {"."} and _is_abbreviation(parts) else [Claim(token)]
    elif joints <= {"/", "\\"}:
        yield Claim(token, is_pair=not is_path)
    elif is_named and joints == {"-"} and _EVERYDAY_PARTS.isdisjoint(map(str.casefold, parts)):
        yield Claim(token)
    else:
        yield from (claim for part in parts for claim in _claims(part, is_path=False, is_named=False))


def _is_small(parts: list[str]) -> bool:
    return all((part.isdigit() and len(part) <= 2) or (part.isalpha() and len(part) == 1) for part in parts)


def _is_abbreviation(parts: list[str]) -> bool:
    """Return True for e.g., i.e., z.B., a.k.a., Ph.D.: parts of one or two letters."""
    is_short = all(len(part) <= 2 for part in parts)
    return is_short and (len(parts[-1]) == 1 or parts[-1].lower() not in _ENDINGS)
