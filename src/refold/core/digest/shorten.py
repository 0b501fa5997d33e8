"""Shorten one message to whole lines: its beginning, its end, and the lines in between that hold new terms.

The lines that stay are copied from the original character for character, indentation and line ends included,
since clients look for such lines in their files. A mark replaces each omitted passage; the first and the last
mark name the handle of the original. Only a very long line is cut inside, also if it has no blanks. A
shortened message is still valid: results keep their call, and arguments stay JSON.

The time is linear in the text: pieces and rules are searched in its first and last `SEARCHED` characters
only.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from operator import is_
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.digest.extract import CHARACTERS_PER_TOKEN, TermValues, choose
from refold.core.digest.facts import Facts, Piece, term_ids
from refold.core.digest.pieces import ends, head, is_safe, tail
from refold.core.secrets import find_secrets
from refold.core.stage import handle_of
from refold.core.stages.parts import HANDLE_MARK, excerpt, stub_result
from refold.model.message import (
    File,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    characters,
)
from refold.model.tokens import TokenCounter

# Cut positions. `pieces` cuts at lines, at white space and between punctuation marks. A list of
# numbers without blanks, base64, hexadecimal, encoded URLs, paths of pictures and scripts without
# blanks have no such position. A run that is longer than any name is cut all the same, at the best
# position near the limit: after the end of an item, otherwise after a word or a number, otherwise
# between two visible characters. A string that looks like a secret is never cut in two: it is left
# out completely, unless it is so long that it is data. The time is linear in the limit, and at most
# twice `MAX_SECRET` characters around a cut are searched for secrets.

LONGEST_NAME = 240
"""Runs of up to this many characters without a cut position are kept whole: a longer run is no name and no
number. A cut moves no further than this."""
MAX_SECRET = 4_096
"""Characters: a longer string is data, not a secret."""
_ITEM_ENDS = frozenset(",;|&\0\x1c\x1d\x1e\x1f，、；")
_ESCAPES = frozenset("%\\")
_LEADING_VOWELS = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")
"""Vowels of Thai and Lao that are written before the consonant that they belong to."""
_VIRAMA = 9
"""The combining class of signs that join a consonant to the next one."""


def beginning(text: str, limit: int) -> str:
    """Return the longest beginning of at most `limit` characters that ends at a good position, or inside a
    run that has none.
    """
    found = head(text, limit)
    is_line = text[len(found) : len(found) + 1] == "\n" and len(found) > limit // 2
    if is_line or limit - len(found) <= LONGEST_NAME:
        return found
    at = _best_place(text, range(limit, limit - LONGEST_NAME, -1))
    return text[: _secret_around(text, at)[0]]


def ending(text: str, limit: int) -> str:
    """Return the longest ending of at most `limit` characters that starts at a good position, or inside a run
    that has none.
    """
    found = tail(text, limit)
    is_line = text[-len(found) - 1 : -len(found)] == "\n" and len(found) > limit // 2
    if is_line or limit - len(found) <= LONGEST_NAME:
        return found
    start = len(text) - limit
    at = _best_place(text, range(start, start + LONGEST_NAME))
    return text[_secret_around(text, at)[1] :]


def _best_place(text: str, places: range) -> int:
    """Return the first of the positions with the best kind of cut.

    The positions do not include the ends of the text.
    """
    ways: Iterable[Callable[[str, int], bool]] = (_ends_item, _ends_word, _ends_character)
    return next((at for is_good in ways for at in places if is_good(text, at)), places[0])


def _ends_item(text: str, at: int) -> bool:
    return text[at - 1] in _ITEM_ENDS and _ends_character(text, at)


def _ends_word(text: str, at: int) -> bool:
    """Return True if a cut before `at` leaves words, numbers and escapes whole."""
    left, right = text[at - 1], text[at]
    if is_safe(text, at):
        return True
    if left in _ESCAPES or (left.isalnum() and right.isalnum()):
        return False
    is_number = (left in ".+-" and right.isdigit()) or (left.isalnum() and right in ".+-")
    return not is_number and _ends_character(text, at)


def _ends_character(text: str, at: int) -> bool:
    """Return True if a cut before `at` does not split a character as people see it."""
    left, right = text[at - 1], text[at]
    if unicodedata.category(right) in ("Mn", "Mc", "Me", "Cs", "Cf") or unicodedata.category(left) == "Cf":
        return False
    is_modifier = "\U0001f3fb" <= right <= "\U0001f3ff" or "\U0001f1e6" <= right <= "\U0001f1ff"
    return not is_modifier and left not in _LEADING_VOWELS and unicodedata.combining(left) != _VIRAMA


def _secret_around(text: str, at: int) -> tuple[int, int]:
    """Return the start and end of the secret that a cut before `at` would split; twice `at` if there
    is none.
    """
    first = max(0, at - MAX_SECRET)
    for secret in find_secrets(text[first : at + MAX_SECRET]):
        start, stop = first + secret.start, first + secret.stop
        if start < at < stop:
            return (start, stop) if stop - start <= MAX_SECRET else (at, at)
    return at, at


# Shortening of one message.

BEGINNING = 0.25
"""Share of the room for the beginning of a text."""
ENDING = 0.15
"""Share for its end, where outputs report their result."""
RULES = 0.3
"""Share for sentences that have to stay, filled before other lines are chosen from the middle."""
LONG_LINE = 240
"""Characters: a line up to this length is kept whole or not at all; of a longer line only the piece with
new terms is kept."""
GAP = "[…]"
"""The mark for gaps between the first and the last, which name the handle."""
_GAP_COST = len(GAP) + 2
"""Characters of a mark with its line ends. A shorter gap is not worth a mark: its text is kept."""
SEARCHED = 96 * 1024
"""Characters at each end of a text that are searched for pieces and rules: the index and the rules cover
no more of it."""
_MAX_MISSES = 200
"""After this many pieces that are not found, the search ends: the text is not the one they were taken
from."""
_WORD = re.compile(r"\S+")
_ATTEMPTS = 8
_SAFETY_FACTOR = 0.9
_SMALLEST = 24
"""Strings in arguments are not cut below this length: they are flags and names."""

Span: TypeAlias = tuple[int, int]
"""The characters of a text from the first number up to, not including, the second."""


class ShortenSource(Struct, frozen=True):
    """The part of a message that is shortened, with its context."""

    facts: Facts
    seq: int
    part: int
    window: int
    """In tokens: the unit of age."""
    covered: AbstractSet[int] = frozenset()
    """Terms that are visible elsewhere in the window."""
    several: bool = False
    """True if the message has more than one part."""
    must: tuple[str, ...] = ()
    """Sentences that stay whole if possible: the user's rules."""
    stated: tuple[Span, ...] = ()
    """The lines of the part that hold those sentences, in order."""
    places: tuple[tuple[Piece, Span], ...] = ()
    """The indexed pieces of the part in order, each with its span in the text."""

    @property
    def mark(self) -> str:
        return f"[… {handle_of(self.seq, self.part + 1 if self.several else None)} …]"


def shorten(
    facts: Facts,
    message: Message,
    seq: int,
    *,
    limit: int,
    window: int,
    counter: TokenCounter,
    covered: AbstractSet[int] = frozenset(),
    must: Iterable[str] = (),
) -> Message:
    """Return the message in about `limit` tokens; the same object if it fits or cannot be shortened.

    Small parts stay whole: only parts longer than a fair share are cut. The sentences in `must` stay if
    possible.
    """
    tokens = counter.message(message)
    if tokens <= limit:
        return message
    room = sum(map(_length, message.parts)) * limit / tokens
    sources = _sources(message, ShortenSource(facts, seq, 0, window, covered, must=tuple(must)))
    short = message
    for _ in range(_ATTEMPTS):
        cap = fair_share([_length(part) for part, _ in sources], int(room))
        short = message.with_parts(tuple(_shorten_part(part, source, cap) for part, source in sources))
        size = counter.message(short)
        if size <= limit:
            break
        room *= _SAFETY_FACTOR * limit / size
    return short


def _sources(message: Message, source: ShortenSource) -> list[tuple[Part, ShortenSource]]:
    """Return every part with its source.

    Reasoning, which is sent unchanged or not at all, has no place of its own.
    """
    found, place, pieces = list[tuple[Part, ShortenSource]](), 0, defaultdict[int, list[Piece]](list)
    several = sum(type(part) is not Reasoning for part in message.parts) > 1
    for piece in source.facts.pieces(source.seq, source.seq + 1):
        pieces[piece.part].append(piece)
    for part in message.parts:
        own = structs.replace(source, part=place, several=several)
        found.append(
            (part, _with_spans(part.text, own, pieces[place]) if isinstance(part, Text | ToolResult) else own)
        )
        place += type(part) is not Reasoning
    return found


def _with_spans(text: str, source: ShortenSource, pieces: Sequence[Piece]) -> ShortenSource:
    """Return the source with the spans of its pieces and of the sentences that have to stay."""
    words = _SqueezedText(text)
    stated = words.spans(source.must)
    places = words.spans([piece.text for piece in pieces])
    return structs.replace(
        source,
        stated=tuple(_line_around(text, span) for span in stated if span),
        places=tuple((piece, span) for piece, span in zip(pieces, places, strict=False) if span),
    )


def _searched(text: str) -> tuple[Span, ...]:
    size = len(text)
    return ((0, size),) if size <= 2 * SEARCHED else ((0, SEARCHED), (size - SEARCHED, size))


class _SqueezedText:
    """The searched words of a text with single spaces between them, and where each word stands in the text."""

    def __init__(self, text: str) -> None:
        self._places = array("q")
        for start, stop in _searched(text):
            self._places.extend([found.start() for found in _WORD.finditer(text, start, stop)])
        words = [word for start, stop in _searched(text) for word in _WORD.findall(text, start, stop)]
        self._text = " ".join(words)
        self._starts = array("q", accumulate([len(word) + 1 for word in words], initial=0))

    def spans(self, wanted: Sequence[str]) -> list[Span | None]:
        """Return the spans in the text of sentences or pieces that were taken from it in this order; None for one that is
        not found. After too many misses the rest is not searched.
        """
        found, after, misses = list[Span | None](), 0, 0
        for one in wanted:
            said = " ".join(one.split())
            at = self._text.find(said, after) if said else -1
            if at >= 0:
                after = at + len(said)
                found.append((self._original(at), self._original(after - 1) + 1))
            elif misses < _MAX_MISSES:
                misses += 1
                found.append(None)
            else:
                break
        return found

    def _original(self, at: int) -> int:
        word = bisect_right(self._starts, at) - 1
        return self._places[word] + at - self._starts[word]


def fair_share(lengths: Sequence[int], room: int) -> int:
    """Return the cap under which all lengths together fit into the room; shorter ones stay whole."""
    left = room
    for count, length in zip(range(len(lengths), 0, -1), sorted(lengths), strict=True):
        if length * count > left:
            return max(0, left // count)
        left -= length
    return max(lengths, default=0)


def source_excerpt(text: str, source: ShortenSource, limit: int) -> str:
    """Return a text in at most `limit` characters: its beginning, the lines of its middle with new terms, and
    its end.

    Room that the middle does not need goes to the beginning.
    """
    if len(text) <= limit:
        return text
    mark = source.mark
    room = limit - 2 * (len(mark) + 2)
    if room < _SMALLEST:
        return mark
    begin, end = beginning(text, int(room * BEGINNING)), ending(text, int(room * ENDING))
    middle, left = (len(begin), len(text) - len(end)), room - len(begin) - len(end)
    stated = _select_fitting(source.stated, middle, min(left, int(room * RULES)))
    left -= _cost(stated)
    shown = "\n".join((begin, *(text[start:stop] for start, stop in stated), end))
    news = _select_fitting(_informative_lines(text, source, shown, left), middle, left)
    begin = beginning(text, len(begin) + left - _cost(news))
    return _join_spans(text, [(0, len(begin)), *sorted({*stated, *news}), (middle[1], len(text))], mark)


def _informative_lines(text: str, source: ShortenSource, shown: str, room: int) -> Iterator[Span]:
    """Yield the lines that add most to the visible part of the text, best first."""
    facts, places = source.facts, {piece.number: span for piece, span in source.places}
    seen = source.covered | term_ids(facts.log, shown)
    worth = TermValues(facts, source.window * CHARACTERS_PER_TOKEN)
    for piece in choose((piece for piece, _ in source.places), worth, seen, room).chosen:
        yield _line_around(text, places[piece.number])


def _line_around(text: str, span: Span) -> Span:
    """Return the whole lines that contain a span; the span itself if they are very long."""
    low, high = max(0, span[0] - LONG_LINE), min(len(text), span[1] + LONG_LINE)
    start, stop = text.rfind("\n", low, span[0]) + 1 or low, text.find("\n", span[1], high)
    stop = high if stop < 0 else stop
    return (start, stop) if stop - start <= LONG_LINE else span


def _select_fitting(wanted: Iterable[Span], middle: Span, room: int) -> list[Span]:
    """Return as many of the spans as fit, in the given order of preference, clipped to the middle."""
    kept = dict[Span, None]()
    for start, stop in wanted:
        span = max(start, middle[0]), min(stop, middle[1])
        if span[0] < span[1] and span not in kept and _cost([span]) <= room:
            room -= _cost([span])
            kept[span] = None
    return list(kept)


def _cost(spans: Iterable[Span]) -> int:
    return sum(stop - start + _GAP_COST for start, stop in spans)


def _join_spans(text: str, spans: Sequence[Span], mark: str) -> str:
    """Join the spans of a text, which may overlap, with a mark in each gap; between two lines the mark has a
    line of its own.
    """
    merged = [spans[0]]
    for start, stop in spans[1:]:
        if start - merged[-1][1] <= _GAP_COST:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    said, last = [text[slice(*merged[0])]], len(merged) - 1
    for at, (start, stop) in enumerate(merged[1:], 1):
        before = merged[at - 1][1]
        line_end = "\n" if before and text[before] == "\n" else ""
        line_start = "\n" if start < len(text) and text[start - 1] == "\n" else ""
        said.append(f"{line_end}{mark if at in (1, last) else GAP}{line_start}{text[start:stop]}")
    return "".join(said)


def _shorten_part(part: Part, source: ShortenSource, cap: int) -> Part:
    if _length(part) <= cap:
        return part
    match part:
        case Text():
            return structs.replace(part, text=source_excerpt(part.text, source, cap))
        case ToolResult():
            media = tuple(inner for inner in part.parts if type(inner) is not Text)
            stub = stub_result(part, source_excerpt(part.text, source, cap))
            return structs.replace(stub, parts=(*stub.parts, *media))
        case ToolCall():
            return structs.replace(part, arguments=_short_arguments(part, source, cap))
        case _:
            return part


def _length(part: Part) -> int:
    match part:
        case Text() | ToolResult():
            return len(part.text)
        case ToolCall():
            return len(part.arguments)
        case _:
            return 0


def _short_arguments(call: ToolCall, source: ShortenSource, cap: int) -> str:
    """Return arguments of about `cap` characters; JSON stays JSON, with the same keys as far as they fit."""
    if call.kind != "function":
        return source_excerpt(call.arguments, source, cap)
    try:
        value: object = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        value = {"text": call.arguments}
    lengths = list(_strings(value))
    frame = max(0, len(call.arguments) - sum(lengths))
    share = fair_share(lengths, max(0, cap - frame))
    short = _dump(_shortened(value, source, max(_SMALLEST, share)))
    return short if len(short) <= max(cap, 2 * _SMALLEST) else _dump({"text": source.mark})


def _strings(value: object) -> Iterable[int]:
    if isinstance(value, str):
        yield len(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _shortened(value: object, source: ShortenSource, cap: int) -> object:
    if isinstance(value, str):
        return source_excerpt(value, source, cap)
    if isinstance(value, dict):
        return {key: _shortened(inner, source, cap) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner, source, cap) for inner in value]
    return value


def _dump(value: object) -> str:
    return msgspec.json.encode(value).decode()


# Bounds on long texts. Searching for rules and secrets, and checking a summary against its sources,
# take a quarter of a second to a second and a half per megabyte. So each of these reads a fixed
# number of characters: the beginning and the end of a longer text. The bound is a number of
# characters and never a time, so the same text gives the same result on every machine. A text that
# is too long for a summariser is replaced by its plain digest: a line that states its length, its
# first and last lines, and the handle that opens all of it.

MAX_LEDGER = 128 * 1024
"""Characters of one text that are searched for rules, decisions and tasks, about 30 ms: twenty times a
long typed message."""
MAX_SEARCHED = 1024 * 1024
"""Characters of one text that are searched for secrets, about a quarter of a second: all that is given to
a summariser."""
MAX_TEXT = 1024 * 1024
"""Characters of one text that is given to a summariser, about 250,000 tokens: more than most models read
at once."""
MAX_SOURCE = 4 * 1024 * 1024
"""Characters of all sources of one summary, about a million tokens: as much as the largest windows hold.
Beyond it the longest texts are given as plain digests, as long as the room allows."""
DIGEST = 16_000
"""Characters of the plain digest of a text that is too long by itself: enough to show the kind, the
beginning and the end of a log or a file."""
_MARGIN = 64 * 1024
"""Characters around the ends of a text that are searched for secrets before the digest is cut out of them:
longer than the longest key, so that no half of a key is left."""

Clean = Callable[[str], str]
"""Removes secrets from a text."""


def with_ends(message: Message, most: int) -> Message:
    """Return the message with at most `most` characters of its own text, long texts reduced to their ends.

    Calls, results and media stay unchanged.
    """
    said = [len(part.text) for part in message.parts if isinstance(part, Text)]
    if sum(said) <= most:
        return message
    cap = fair_share(said, most)
    parts = (Text(ends(part.text, cap)) if isinstance(part, Text) else part for part in message.parts)
    return Message(message.role, tuple(parts))


def searchable(message: Message) -> Message:
    """Return the message as it is searched for secrets: long texts reduced to their ends, other long data
    removed.
    """

    def cut(part: Part) -> Part:
        match part:
            case Text():
                return Text(ends(part.text, MAX_SEARCHED))
            case Reasoning():
                return Reasoning(ends(part.text, MAX_SEARCHED))
            case ToolCall():
                return structs.replace(part, raw=None, arguments=ends(part.arguments, MAX_SEARCHED))
            case File():
                return File(name=part.name, text=ends(part.text, MAX_SEARCHED))
            case _:
                return Text("")

    return _replace_long_parts(message, MAX_SEARCHED, cut)


def source_bound(messages: Iterable[Message]) -> int:
    """Return the length up to which each text of these messages can be given to a summariser in full."""
    lengths = (characters(part) for message in messages for part in _transcript_parts(message))
    given = [length if length <= MAX_TEXT else DIGEST for length in lengths]
    return MAX_TEXT if sum(given) <= MAX_SOURCE else fair_share(given, MAX_SOURCE)


def count_long(message: Message, most: int) -> int:
    """Return the number of texts of a message that are longer than `most`."""
    return sum(characters(part) > most for part in _transcript_parts(message))


def is_short(message: Message) -> bool:
    """Return True if a message, and the JSON that it came from, is no longer than one text may be."""
    return max(message.characters, len(message.origin.raw) if message.origin else 0) <= MAX_TEXT


def digested(message: Message, most: int, handle: str, clean: Clean) -> Message:
    """Return the message with a plain digest for each longer text.

    Longer parts that are no text, such as media, are only named.
    """

    def digest(text: str) -> str:
        return plain_digest(text, min(most, DIGEST) if len(text) > MAX_TEXT else most, handle, clean)

    def cut(part: Part) -> Part:
        match part:
            case Text():
                return Text(digest(part.text))
            case ToolCall() if part.kind == "function":
                told = digest(part.arguments).encode("utf-8", "replace").decode()
                arguments = msgspec.json.encode({"text": told}).decode()
                return ToolCall(part.id, part.name, arguments)
            case ToolCall():
                return ToolCall(part.id, part.name, digest(part.arguments), part.kind)
            case File():
                return (
                    File(name=part.name, text=digest(part.text)) if part.text else Text(f"(file {part.name})")
                )
            case Reasoning():
                return Text("")  # reasoning is never shown
            case Opaque():
                return Text(f"({part.kind})")
            case _:
                return Text("(image)")

    return _replace_long_parts(message, most, cut)


def plain_digest(text: str, most: int, handle: str, clean: Clean) -> str:
    """Return the first and last lines of a text, in about `most` characters, marked as such and without
    secrets.
    """
    last, mark = most // 4, HANDLE_MARK.spell(handle=handle)
    head, tail = clean(text[: most - last + _MARGIN]), clean(text[-last - _MARGIN :])
    shown = excerpt(f"{head}{mark}{tail}", most - last, last, mark, whole_words=True)
    return f"[plain digest of {len(text):,} characters: the first and the last lines]\n{shown}"


def _transcript_parts(message: Message) -> Iterator[Part]:
    """Yield the parts whose text a transcript shows."""
    for part in message.parts:
        if isinstance(part, ToolResult):
            yield from (inner for inner in part.parts if isinstance(inner, Text))
        elif isinstance(part, Text | ToolCall):
            yield part


def _replace_long_parts(message: Message, most: int, change: Callable[[Part], Part]) -> Message:
    """Return the message with its long parts replaced and without the JSON it came from; itself if all parts
    are short.
    """
    if message.characters <= most:
        return message
    parts = [_replace_long_part(part, most, change) for part in message.parts]
    if all(map(is_, parts, message.parts)):
        return message
    return Message(message.role, tuple(parts))


def _replace_long_part(part: Part, most: int, change: Callable[[Part], Part]) -> Part:
    if characters(part) <= most:
        return part
    if not isinstance(part, ToolResult):
        return change(part)
    parts = [inner if characters(inner) <= most else change(inner) for inner in part.parts]
    return ToolResult(part.call_id, tuple(parts), part.is_error, part.kind)  # type: ignore[arg-type]
