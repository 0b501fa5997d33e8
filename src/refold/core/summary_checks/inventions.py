"""Find names, numbers and handles in a summary that its sources do not contain.

An exact name must occur letter by letter in the text that the model was shown, as a whole or as a whole part
of a longer name: `src/login.py` contains `login.py`, `ORD-99123` does not contain `ORD-9912`. Case may
differ, and numbers and dates may be written in another form.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from unicodedata import normalize

from msgspec import Struct

from refold.core.shown import HANDLE_PATTERN
from refold.core.summary_checks.headings import is_heading, lines_of
from refold.core.summary_checks.names import (
    JOINTS,
    TOKEN,
    Claim,
    Number,
    Numbers,
    claims,
    find_days,
    find_numbers,
    is_small,
    numbers_of,
)

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
    escaped = (line for line in told.splitlines() if "\\" in line)
    told = "\n".join((told, *(_ESCAPED.sub(_unescaped, line) for line in escaped)))
    found = set(_HANDLE.findall(told))
    handles = frozenset(found | {handle.partition(".")[0] for handle in found})
    told = f"{told}\n{_HANDLE.sub(' ', asked)}"
    names = frozenset(map(_folded, set(TOKEN.findall(told))))
    return KnownNames(handles, names, numbers_of(told))


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
