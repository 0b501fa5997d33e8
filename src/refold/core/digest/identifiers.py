"""Ids and numbers with the words around them.

An order number or an amount is a single word of a conversation, and the conversation cannot go on without
it. Two sources are read: the user's text, in which every id and every number of some size counts, and the
text of replies and results, in which only ids of a strict form and labelled ones count, because results are
full of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from refold.core.digest.pieces import ends, is_safe
from refold.core.digest.terms import contains_word

MAX_SEARCHED = 4_000
"""Characters of a message that are searched, three quarters from its beginning and one quarter from its end."""
MAX_PER_TEXT = 4
"""Limit of entries of one text: a list of orders must not displace all others."""
_BEFORE = 30
_AFTER = 30
"""Characters quoted before and after an id: a few words."""
_WHOLE_LINE = 80
_CODE = re.compile(r"-[0-9]{2,12}(?:-[A-Z0-9]{1,12}){0,3}(?![\w-])")
"""The rest of `ORD-99123` and `INV-2024-0017`. Each pattern begins with the rarest part of an id, so that a
search skips most of a text; the part before it is matched backwards."""
_CODE_START = re.compile(r"(?<![\w.@/#-])[A-Z][A-Z0-9]{1,9}(?:-[A-Z]{1,6})?\Z")
_TOKEN = re.compile(r"_(?=[A-Za-z0-9]{0,9}[0-9])[A-Za-z0-9]{10,40}(?![\w-])")
"""The rest of `ch_3NqF5eLkdIwHu7ix`."""
_TOKEN_START = re.compile(r"(?<![\w.@/#-])[a-z]{2,8}\Z")
_UUID = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![\w-])")
_UUID_START = re.compile(r"(?<![\w.@/#-])[0-9a-f]{8}\Z")
_FORMS = ((_CODE, _CODE_START), (_TOKEN, _TOKEN_START), (_UUID, _UUID_START))
_LONGEST_START = 20
_LABELLED = re.compile(r"[:=#]\s{0,3}[\"'#]?(?=[A-Za-z-]{0,12}[0-9])([A-Za-z0-9-]{4,40})(?![\w.-])")
_LABEL = re.compile(r"(?<![a-z])(?:id|number|code|reference|ref|no\.)[\"']?\s{0,3}\Z", re.IGNORECASE)
"""`order_id: 99123`, `Confirmation code: XK7P2Q`."""
_NUMBER = re.compile(r"(?<![\w.,:/@-])[#$€£¥]?[0-9][0-9.,:/-]*+(?![\w@])")
_UNITS = re.compile(
    r"\s?(?:%|€|£|\$|¥|(?:percent|eur|usd|gbp|chf|euros?|dollars?|k|kg|km|gb|mb|ms)\b)", re.IGNORECASE
)
_STANDARDS = (
    "UTF-16 UTF-32 ISO-8601 ISO-8859-1 SHA-256 SHA-384 SHA-512 AES-128 AES-256 BASE-64 COVID-19 X86-64"
)
_EVERYDAY = frozenset(_STANDARDS.split())
"""Names of standards in common use."""


def identifiers(text: str, *, by_user: bool) -> tuple[str, ...]:
    """Return the ids and numbers of a text, each with the words around it, at most `MAX_PER_TEXT`.

    A reply or a result with more ids is a list, and is known by its first.
    """
    text = ends(text, MAX_SEARCHED)
    spans: dict[str, tuple[int, int]] = {}
    for start, stop in _spans(text, by_user=by_user):
        spans.setdefault(text[start:stop], (start, stop))
        if len(spans) > MAX_PER_TEXT:
            break
    most = MAX_PER_TEXT if by_user or len(spans) <= MAX_PER_TEXT else 1
    found: list[str] = []
    for name, (start, stop) in islice(spans.items(), most):
        if not any(contains_word(entry, name) for entry in found):
            found.append(_words_around(text, start, stop))
    return tuple(found)


def are_stated(entry: str, text: str) -> bool:
    """Return True if a text contains every id and number of an entry."""
    return all(contains_word(text, name) for name in names_in(entry, by_user=True))


def names_in(entry: str, *, by_user: bool) -> list[str]:
    """Return the ids of an entry, and its numbers if `by_user`; the whole entry if it has none."""
    return [entry[start:stop] for start, stop in _spans(entry, by_user=by_user)] or [entry]


def _spans(text: str, *, by_user: bool) -> Iterator[tuple[int, int]]:
    """Yield the places of ids, and then those of numbers if a user said them."""
    for rest, beginning in _FORMS:
        for match in rest.finditer(text):
            found = beginning.search(text, max(0, match.start() - _LONGEST_START), match.start())
            if found and text[found.start() : match.end()] not in _EVERYDAY:
                yield found.start(), match.end()
    for match in _LABELLED.finditer(text):
        if _LABEL.search(text, max(0, match.start() - _LONGEST_START), match.start()):
            yield match.span(1)
    if by_user:
        for match in _NUMBER.finditer(text):
            number = match[0].rstrip(".,:/-")
            stop = match.start() + len(number)
            if sum(map(str.isdigit, number)) > 2 or number[0] in "$€£¥" or _UNITS.match(text, stop):
                yield match.start(), stop


def _words_around(text: str, start: int, stop: int) -> str:
    """Return the line of an id if it is short, or the words next to the id."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", stop)
    last = len(text) if last < 0 else last
    if last - first > _WHOLE_LINE:
        left, right = max(first, start - _BEFORE), min(last, stop + _AFTER)
        while first < left < start and not is_safe(text, left):
            left += 1
        while stop < right < last and not is_safe(text, right):
            right -= 1
        first, last = left, right
    return " ".join(text[first:last].split())
