"""Which words of a text are names that work only letter by letter.

One idea: a word claims to be such a name by its form: an underscore, inner capitals, digits between letters, the slashes of a
path, the dots of a file or a host. Ordinary language has such forms too (`e.g.`, `and/or`, `E-Mail`, `10-minute`), and those
claim nothing. A plain compound such as `billing-gateway` is a name only where it is used as one: in code, or after the word
for what it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from refold.core.summary.numbers import ORDINAL, is_unit
from refold.core.summary.whole import CJK

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
"""Parts of compounds that are words of every day: read-only, follow-up, end-to-end, long-running."""
_STANDARDS = (
    "github gitlab javascript typescript powershell websocket websockets macos ios ipados iphone ipad "
    "latex devops oauth node.js next.js vue.js react.js three.js d3.js asp.net vb.net utf-8 utf8 utf-16 "
    "ascii-8bit ipv4 ipv6 base64 base-64 sha256 sha-256 sha-1 sha1 sha512 sha-512 md5 oauth2 oauth2.0 "
    "http/1.1 http/2 http/3 http2 mp3 mp4 x86 x86-64 x86_64 amd64 arm64 i18n l10n a11y k8s e2e p50 p90 "
    "p95 p99 iso-8601 iso8601 rfc3339 b2b b2c covid-19 tcp/ip ci/cd n/a i/o c++ ctrl-c saas paas iaas "
    "mlops gmbh todos"
)
_EVERYDAY = frozenset(_STANDARDS.split())
"""Names of standards and of kinds of files that everybody uses for them: they say nothing about this conversation."""
_SHORT_ENDINGS = "py js ts go rs rb cs md sh cc hh pl kt mk so db ml vb tf ps1 css sql"
_ENDINGS = frozenset(_SHORT_ENDINGS.split())
"""Endings of files so short that the name looks like an abbreviation."""
_BEFORE_YEARS = "mid pre post early late top ca anno since sub non re anti ex über vor nach"
_PREFIXES = frozenset(_BEFORE_YEARS.split())
_COUNTED = re.compile(r"\d+(?:\.\d+)*(?:-[^\W\d_]+)+")
_RANGE = re.compile(r"\d+(?:\.\d+)?(?:[-/+]\d+(?:\.\d+)?)+")
_MEASURED = re.compile(r"\d+\.\d+([^\W\d_]+)")
"""A size with its unit: 3.5s, 2.5GB."""
_SPAN = re.compile(r"([^\W\d_]{1,12})\d{1,9}-\1\d{1,9}")
"""From one id to another: WP14-WP20."""
_STEP = re.compile(r"[^\W\d_]{3,12}-?\d{1,2}")
_STEP_WORDS = (
    "step phase part option item task stage day week version chapter level tier schritt teil tag woche étape"
)
_STEPS = frozenset(_STEP_WORDS.split())


class Claim(Struct, frozen=True):
    """A word that claims to be a name."""

    name: str
    is_pair: bool = False
    """It may as well be two words of which either is meant: a path only where its first part begins other paths."""


def claims(text: str) -> Iterator[Claim]:
    """Every word of a line that claims to be a name."""
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
    """A word of letters: inner capitals make it a name, capitals alone only where it is used as one or cannot be spoken."""
    if word.islower() or word[1:].islower() or word.lower() == word.upper():
        return False
    if not word.isupper():
        return len(word) > 3 and not _PLURAL.fullmatch(word)
    is_odd = len(word) > 5 and _UNSPEAKABLE.search(_DIGRAPHS.sub("N", word)) is not None
    return word.isascii() and len(word) > 4 and (is_named or is_odd)


def _is_coded(token: str) -> bool:
    """A word with digits or underscores: a name, unless it is a number with an ending, or a step."""
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
    """A range, a number before a word, a year after one, a step: only their numbers can be checked."""
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
    """e.g., i.e., z.B., a.k.a., Ph.D.: letters by ones and twos."""
    is_short = all(len(part) <= 2 for part in parts)
    return is_short and (len(parts[-1]) == 1 or parts[-1].lower() not in _ENDINGS)
