"""Find names, numbers and handles in a summary that its sources do not contain.

An exact name must occur letter by letter in the text that the model was shown, as a whole or as a whole part
of a longer name: `src/login.py` contains `login.py`, `ORD-99123` does not contain `ORD-9912`. Case may
differ, and numbers and dates may be written in another form.

The form of a word makes the claim to be an exact name: an underscore, inner capitals, digits between letters,
the slashes of a path, the dots of a file or a host. Ordinary language has such forms too (`e.g.`, `and/or`,
`E-Mail`, `10-minute`), which claim nothing. A plain compound such as `billing-gateway` is a name only if it is
used as one: in code, or after the word for its kind. Numbers and dates are compared by value.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from unicodedata import normalize

from msgspec import Struct

from refold.core.digest.pieces import CJK
from refold.core.regex_safety import matches_by_portion
from refold.core.stage import HANDLE_PATTERN
from refold.core.summary_text import is_heading, lines_of

# Exact names, numbers and dates in a text

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


_LONGEST_DATE = 64
"""Characters; the longest match of these patterns has half as many."""
_PORTION = 64 * 1024
"""Characters of a long text in which tokens are searched at a time."""


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
    for match in matches_by_portion(_NUMERIC_DATE, text, longest=_LONGEST_DATE):
        year, _, month, day, first, _, second, last = match.groups()
        pairs = (
            [(int(month), int(day), year)]
            if year
            else [(int(first), int(second), last), (int(second), int(first), last)]
        )
        for one, other, named in pairs:
            if _is_day(one, other):
                yield Day(one, other, int(named)), *match.span()
    for match in matches_by_portion(_FAR_EASTERN_DATE, text, longest=_LONGEST_DATE):
        if _is_day(int(match[2]), int(match[3])):
            yield Day(int(match[2]), int(match[3]), int(match[1] or 0)), *match.span()
    for pattern, month_at, day_at in ((_DAY_MONTH, 2, 1), (_MONTH_DAY, 1, 2)):
        for match in matches_by_portion(pattern, text, longest=_LONGEST_DATE):
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
_NAME_ENDINGS = frozenset(_SHORT_ENDINGS.split())
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
    return is_short and (len(parts[-1]) == 1 or parts[-1].lower() not in _NAME_ENDINGS)


_HANDLE = re.compile(rf"{HANDLE_PATTERN}(?![\w])")
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrtbf])")
_LIST_MARK = re.compile(
    r"\s*(?:#{1,6}\s+)?(?:[-*•>]\s+)*(?:\*\*)?(?:\d{1,3}[.)]|\d{1,2}(?:\.\d{1,2})+[.)]?)(?=\s)"
)
_MARKER = re.compile(r"\s*(?:(?:[-*•>]|\d+[.)])\s+)*")
_SENTENCE_END = re.compile(
    r"(?<![.\s(]\w\.)(?<=[.!?])(\s+)(?=[^\W\d_a-zß-ÿа-я]|[\"'“«(`*])|(?<=[。！？])()(?=\S)"
)
_APPROXIMATELY = re.compile(
    r"(?:[~≈<>≤≥]|\b(?:about|around|roughly|approximately|over|under|nearly|almost|some|ca\.|circa|etwa|rund|ungefähr|fast|environ"
    r"|près de|unos|unas|casi|cerca de|quase|quasi|около|примерно|почти)|约|大约|近|約|およそ|약)\s?$",
    re.IGNORECASE,
)
_ENDINGS = (
    "based related like style specific compatible only bound level side wide safe aware driven free ready "
    "enabled type basiert basierte basierten bezogen ähnlich artig kompatibel spezifisch seitig ошибка "
    "файл сервис"
)
_SUFFIXES = frozenset(_ENDINGS.split())
_ALIASES = {"postgresql": "postgres", "mongodb": "mongo"}
_JOINTS = ("-", "/", ".", "@", "+")
_COUNT = re.compile(r"/\d{1,2}$|(?<=\d)-\d{1,2}$")
"""The number of arguments of a function, or the last number of a range of ids."""
_VERSION = re.compile(r"v\d[\d.]{0,40}")
_VERSIONED = re.compile(r"([a-z]{2,20})[-/]?(\d{1,4}(?:\.\d{1,4}){1,3})")
_HASH = re.compile(r"[0-9a-f]{7,64}")
_SHORTEST_HASH = 20
_MOST_PARTS = 24
"""Only this many slashes of a path are tried as the end of a directory: no path that people write is
deeper."""


class KnownNames(Struct, frozen=True):
    """The names, numbers and handles of the sources, for lookup."""

    handles: frozenset[str]
    names: frozenset[str]
    """Lower case."""
    numbers: Numbers


class _Unit(Struct, frozen=True):
    """A sentence, or a whole line of code, of a table or of a heading, with the names it claims."""

    text: str
    line: int
    claims: tuple[Claim, ...]
    others: tuple[str, ...]
    """Handles, numbers and dates that are not known."""


def known_of(*shown: str, asked: str = "") -> KnownNames:
    """Collect the names that a summary may use: all that the model was shown, and those of its instructions,
    except handles.
    """
    told = normalize("NFKC", "\n".join(shown))
    if "\\" in told:
        escaped = (line for line in told.splitlines() if "\\" in line)
        told = "\n".join((told, *(_ESCAPED.sub(_unescaped, line) for line in escaped)))
    found = set(_HANDLE.findall(told))
    handles = frozenset(found | {handle.partition(".")[0] for handle in found})
    told = f"{told}\n{_HANDLE.sub(' ', asked)}"
    return KnownNames(handles, frozenset(map(_folded, _tokens_of(told))), numbers_of(told))


def _tokens_of(text: str) -> set[str]:
    """Return the tokens of a text, each once. Some lines at a time: a list of them all would take ten times the memory of a long
    text.
    """
    found, start = set[str](), 0
    while start < len(text):
        end = text.find("\n", start + _PORTION)
        stop = end if end >= 0 else len(text)
        found.update(TOKEN.findall(text, start, stop))
        start = stop
    return found


def invented(text: str, known: KnownNames) -> tuple[str, ...]:
    """Return the names, numbers and handles of a text that are not known, each once."""
    found = (term for _, terms in _sentences_with_inventions(text, known) for term in terms)
    return tuple(dict.fromkeys(found))


def without_inventions(text: str, known: KnownNames) -> str:
    """Return the text without the sentences that hold an invention."""
    kept: dict[int, list[str]] = {}
    for unit, terms in _sentences_with_inventions(text, known):
        kept.setdefault(unit.line, []).extend([] if terms else [unit.text])
    whole = (_rebuild_line(line, kept.get(number, [line])) for number, line in enumerate(text.splitlines()))
    return "\n".join(line for line in whole if line is not None).strip()


def _sentences_with_inventions(text: str, known: KnownNames) -> Iterator[tuple[_Unit, tuple[str, ...]]]:
    """Yield each sentence with its inventions."""
    units = list(_units(text, known))
    unknown = _unknown_claims((claim for unit in units for claim in unit.claims), known)
    for unit in units:
        yield unit, (*unit.others, *(claim.name for claim in unit.claims if claim in unknown))


def _rebuild_line(line: str, sentences: list[str]) -> str | None:
    """Return a line with its remaining sentences and its list mark; None if nothing is left."""
    rest = "".join(sentences)
    if rest == line:
        return line
    mark = _MARKER.match(line)
    start = mark[0] if mark and not rest.startswith(mark[0]) else ""
    left = rest[0 if start or not mark else mark.end() :]
    return f"{start}{rest.rstrip()}" if any(map(str.isalnum, left)) else None


def _units(text: str, known: KnownNames) -> Iterator[_Unit]:
    for number, (line, is_code) in enumerate(lines_of(text)):
        is_whole = is_code or is_heading(line) or line.lstrip().startswith("|")
        start = True
        for sentence in [line] if is_whole else _sentences(line):
            yield _unit(sentence, number, known, is_start=start)
            start = False


def _sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line; joined, they are the line."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(line)), len(line)]
    yield from (line[begin:end] for begin, end in pairwise(cuts))


def _unit(sentence: str, line: int, known: KnownNames, *, is_start: bool) -> _Unit:
    said = normalize("NFKC", sentence)
    mark = _LIST_MARK.match(said) if is_start else None
    said = said[mark.end() :] if mark else said
    others = [handle for handle in _HANDLE.findall(said) if handle not in known.handles]
    said = _HANDLE.sub(" ", said)
    said, days = _without_days(said, known)
    others += days
    others += [number.written for number in _checkable_numbers(said) if not _is_known_number(number, known)]
    return _Unit(sentence, line, tuple(claims(said)), tuple(others))


def _without_days(said: str, known: KnownNames) -> tuple[str, list[str]]:
    """Return a sentence with blanks for its dates, and the dates that are not known.

    A date in digits may mean two days.
    """
    found: dict[tuple[int, int], bool] = {}
    for day, start, stop in find_days(said):
        is_checked = bool(day.year)
        found[start, stop] = found.get((start, stop), False) or not is_checked or known.numbers.has_day(day)
    wrong = [said[start:stop] for (start, stop), is_known in found.items() if not is_known]
    parts, at = list[str](), 0
    for start, stop in sorted(found):
        parts += [said[at:start], " "]
        at = max(at, stop)
    return "".join((*parts, said[at:])), [day for day in wrong if _folded(day) not in known.names]


def _checkable_numbers(said: str) -> Iterator[Number]:
    """Yield the numbers of a sentence that are no part of a name and long enough to be checked."""
    for number in find_numbers(said):
        if not is_small(number) and not _is_in_name(said, number) and not _is_approximate(said, number):
            yield number


def _is_in_name(said: str, number: Number) -> bool:
    """Return True if the number is a part of a word, which is compared as a whole."""
    before, after = said[max(0, number.start - 2) : number.start], said[number.stop : number.stop + 2]
    is_end = _is_letter(before[-1:]) or (before[-1:] in _JOINTS and _is_letter(before[:1]))
    is_begin = _is_letter(after[:1]) and not number.unit
    return is_end or is_begin or (after[:1] in ("/", ".", "@") and _is_letter(after[1:]))


def _is_letter(character: str) -> bool:
    return character == "_" or (character.isalpha() and character < "\u2e80")


def _is_approximate(said: str, number: Number) -> bool:
    digits = "".join(filter(str.isdigit, number.written)).strip("0")
    return (
        len(digits) <= 2 and _APPROXIMATELY.search(said[max(0, number.start - 16) : number.start]) is not None
    )


def _is_known_number(number: Number, known: KnownNames) -> bool:
    if known.numbers.holds(number):
        return True
    groups = number.written.split()
    apart = [Number(group, number.start, number.stop) for group in groups] if len(groups) > 1 else []
    return bool(apart) and all(is_small(one) or known.numbers.holds(one) for one in apart)


def _unknown_claims(found: Iterable[Claim], known: KnownNames) -> frozenset[Claim]:
    """Return the claims that are neither known nor a whole part of a known name."""
    forms = {claim: _forms(claim.name) for claim in found}
    left = {claim: own for claim, own in forms.items() if known.names.isdisjoint(own)}
    parts = _known_parts({form for own in left.values() for form in own}, known)
    roots = {said.partition("/")[0] for said in known.names if "/" in said and "." in said} if left else set()
    hashes = sorted(said for said in known.names if len(said) >= _SHORTEST_HASH) if left else []
    return frozenset(
        claim
        for claim, own in left.items()
        if parts.isdisjoint(own)
        and not (claim.is_pair and _folded(claim.name).partition("/")[0] not in roots)
        and not any(_is_made_of_known(form, known) or _begins_hash(form, hashes) for form in own)
    )


def _folded(token: str) -> str:
    return token.strip("_").casefold().replace("\\", "/")


def _forms(name: str) -> frozenset[str]:
    """Return a name in lower case, and its forms without a grammatical ending."""
    name = _folded(name)
    head, _, tail = name.rpartition("-")
    found = {name, _ALIASES.get(name, name)}
    found |= {name[:-1]} if name.endswith("s") and len(name) > 4 else set()
    found |= {name[1:]} if _VERSION.fullmatch(name) else set()
    found |= {_COUNT.sub("", name)} if _COUNT.search(name) else set()
    return frozenset(found | ({head} if head and tail in _SUFFIXES else set()))


def _known_parts(wanted: set[str], known: KnownNames) -> set[str]:
    """Return the wanted names that are whole parts of a known name."""
    found = set[str]()
    sizes = {len(JOINTS.split(name)) for name in wanted}
    if not wanted:
        return found
    for said in known.names:
        ends = [match.span() for match in JOINTS.finditer(said)] if not said.isalnum() else []
        starts, stops = [0, *(end for _, end in ends)], [*(begin for begin, _ in ends), len(said)]
        for size in sizes if len(starts) > 1 else ():
            for at in range(min(len(starts) - size + 1, 200)):
                piece = said[starts[at] : stops[at + size - 1]]
                if piece in wanted:
                    found.add(piece)
    return found


def _is_made_of_known(name: str, known: KnownNames) -> bool:
    """Return True for a full path if its directory and relative path are known, and for a product with a
    known version.
    """
    version = _VERSIONED.fullmatch(name)
    if version and version[1] in known.names:
        return known.numbers.holds(Number(version[2], 0, 0))
    cuts = [at for at, character in enumerate(name) if character == "/"][:_MOST_PARTS]
    return any(name[:at] in known.names and name[at + 1 :] in known.names and "." in name[at:] for at in cuts)


def _begins_hash(name: str, known: list[str]) -> bool:
    """Return True for the first digits of a known long hash, as tools show it."""
    if not _HASH.fullmatch(name):
        return False
    at = bisect_left(known, name)
    return at < len(known) and known[at].startswith(name) and _HASH.match(known[at]) is not None


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else " "
