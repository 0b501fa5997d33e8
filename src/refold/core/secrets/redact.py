"""Replace secrets by placeholders, to keep them out of summaries, embeddings and logs.

A placeholder names the kind of the secret and the handle of the original, so that a reader with access to the
conversation can open it there, and a copy reveals nothing. A secret is recognised by its own form or by
the name before it (`detection`), or because it was found elsewhere already.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from refold.core.secrets.detection import KINDS, Secret, find_by_form, find_by_name, is_password, is_random
from refold.core.stage import handle_of
from refold.model.message import File, Image, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

# Search a text for many phrases at once, with the Aho-Corasick algorithm. The time is linear in the
# text for any number of phrases.


class PhraseIndex:
    """A trie of all phrases.

    Each node links to the longest proper suffix of its text that is also a prefix of a phrase.

    Most nodes have one child, which has the next number: then only its letter is stored, some 20 bytes for
    each.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._letter = [""]
        """The letter that leads from each node to the node with the next number; empty if there is none."""
        self._others: dict[int, dict[str, int]] = {}
        """Further children of a node, by letter."""
        self._longest = array("I", [0])
        """The length of the longest phrase that ends at each node; zero if there is none."""
        for phrase in phrases:
            self._add(phrase)
        self._link = self._suffix_links()

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of phrases in a text: for every end, the longest phrase."""
        next_letter, others, link, longest, node = self._letter, self._others, self._link, self._longest, 0
        for stop, letter in enumerate(text, 1):
            while True:  # `_child`, without a call for every letter
                if next_letter[node] == letter:
                    node += 1
                    break
                if node in others and (child := others[node].get(letter, 0)):
                    node = child
                    break
                if not node:
                    break
                node = link[node]
            if longest[node]:
                yield stop - longest[node], stop

    def _child(self, node: int, letter: str) -> int:
        """Return the child of a node for a letter; zero if there is none."""
        if self._letter[node] == letter:
            return node + 1
        return self._others[node].get(letter, 0) if node in self._others else 0

    def _add(self, phrase: str) -> None:
        node = depth = 0
        while depth < len(phrase) and (child := self._child(node, phrase[depth])):
            node, depth = child, depth + 1
        for letter in phrase[depth:]:
            new = len(self._letter)
            if new == node + 1:
                self._letter[node] = letter
            else:
                self._others.setdefault(node, {})[letter] = new
            self._letter.append("")
            self._longest.append(0)
            node = new
        self._longest[node] = len(phrase)

    def _suffix_links(self) -> array[int]:
        link = array("I", bytes(4 * len(self._letter)))
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for letter, child in self._children(node):
                end = link[node]
                while end and not self._child(end, letter):
                    end = link[end]
                link[child] = self._child(end, letter) if node else 0
                self._longest[child] = self._longest[child] or self._longest[link[child]]
                waiting.append(child)
        return link

    def _children(self, node: int) -> Iterator[tuple[str, int]]:
        if self._letter[node]:
            yield self._letter[node], node + 1
        yield from self._others.get(node, {}).items()


Inner: TypeAlias = Text | Image | File | Opaque
LEAST_KNOWN = 8
"""Characters: a shorter value occurs in too many places by chance to be removed everywhere."""
_MAX_PASSES = 16
"""Limit of passes over a text, each of which may expose further secrets. Ordinary texts need three at
most; if this many are not enough, the whole text is replaced."""
_FEW = 16
"""Up to this many known values are searched one by one, which is faster than all at once for a small
number."""
_PLACEHOLDER = re.compile(rf"\[(?:(?:{'|'.join(sorted(KINDS))})(?: in #m\d{{1,9}})?|withheld: #m\d{{1,9}})\]")
_NEAR, _WINDOW = 4_096, 16_384
"""Characters between a change and a secret that it exposed: a name, its value and what stands around them have 2,000 at
most. A window around a change is wider, so that no such secret is at its edge."""
_LONG_SECRETS = (
    "private key", "private-lines", "eyj", "cookie", "authorization", "bearer", "basic", "signature", "x-amz-",
)  # fmt: skip
"""Words of secrets that may be longer: a text with one of them is searched as a whole. In lower case."""
_ESCAPE = re.compile(r"\\{1,15}+u(?!00[01]|0022|005[cC]|[dD][89a-fA-F])([0-9a-fA-F]{4})")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/]{8,}")


def find_secrets(text: str, known: Collection[str] = ()) -> tuple[Secret, ...]:
    """Return every secret in a text, in order and without overlap; `known` are values that were found
    elsewhere.
    """
    found = tuple(_find(text, known))
    return tuple(_merge_overlaps(found, text)) if found else ()


def _find(text: str, known: Collection[str]) -> Iterator[Secret]:
    """Yield every secret in a text; they may overlap."""
    low = _lowered(text)
    yield from find_by_form(text, low)
    yield from find_by_name(text, low)
    yield from _find_known(text, known)


def _lowered(text: str) -> str:
    """Return the text in lower case with unchanged positions: a few letters become two in lower case, and
    stay.
    """
    low = text.lower()
    is_under = len(low) == len(text)
    return low if is_under else "".join(one if len(one.lower()) > 1 else one.lower() for one in text)


def _unescaped(text: str) -> str:
    r"""Decode `\uXXXX` escapes of JSON within a text: `\u043f` hides a name, and `\u003d` a sign.

    It is the same JSON as before, at any depth: quotes, backslashes and control characters stay escaped.
    """
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\\u" in text else text


def redact(text: str, place: str = "", known: Collection[str] = ()) -> str:
    """Return the text with a placeholder for every secret; `place` is the handle of the original, if there is
    one.

    A replacement may expose further text that looks like a secret, so the search repeats until it finds
    nothing: redacting twice changes nothing more. Only the neighbourhood of the last replacements is searched
    again.
    """
    where = f" in {place}" if place else ""
    changes: Sequence[tuple[int, int]] | None = None
    for _ in range(_MAX_PASSES):
        searched, found = _search(text, known, changes)
        if not found:
            return text
        is_same = _unescaped(searched) == searched
        text, changes = _replace(searched, found, where)
        changes = changes if is_same else None
    return f"[secret{where}]" if _search(text, known, changes)[1] else text


def holds_secret(text: str, known: Collection[str] = ()) -> bool:
    """Return True if `redact` would change the text. The search ends at the first secret."""
    plain = _unescaped(text)
    texts = (text,) if plain == text else (plain, text)
    return any(True for one in texts for _ in _around_placeholders(_find(one, known), one))


def _search(
    text: str, known: Collection[str], changes: Sequence[tuple[int, int]] | None = None
) -> tuple[str, tuple[Secret, ...]]:
    """Return the text without escapes and its secrets; if it has none, the text as it is and those in it.

    `changes` are the places at which the text changed since it was searched last.
    """
    plain = _unescaped(text)
    if plain != text:
        found = find_secrets(plain, known)
        return (plain, found) if found else (text, find_secrets(text, known))
    return text, find_secrets(text, known) if changes is None else _find_near(text, known, changes)


def _replace(text: str, found: Iterable[Secret], where: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with a placeholder for each secret, and the positions of the placeholders."""
    parts, places, at, size = list[str](), list[tuple[int, int]](), 0, 0
    for secret in found:
        placeholder = f"[{secret.kind}{where}]"
        parts += [text[at : secret.start], placeholder]
        size += secret.start - at + len(placeholder)
        places.append((size - len(placeholder), size))
        at = secret.stop
    return "".join((*parts, text[at:])), places


def _find_near(text: str, known: Collection[str], changes: Sequence[tuple[int, int]]) -> tuple[Secret, ...]:
    """Return the secrets of a text that was searched before it changed at some places.

    A secret that was not found then is near a change. The windows are wider than that, and what is found at the
    edge of a window is dropped: there a text may look like a secret only because it is cut off. A known value that
    was not found then holds a part of a placeholder.
    """
    known, low = [value for value in known if "[" in value or "]" in value], text.lower()
    is_long = any(word in low for word in _LONG_SECRETS) or any(len(value) > _NEAR for value in known)
    if is_long or len(text) <= _WINDOW:
        return find_secrets(text, known)
    found, start, stop = list[Secret](), 0, 0
    for first, last in (*changes, (len(text) + 2 * _WINDOW, 0)):
        if first - _WINDOW > stop:
            edge = start + _NEAR if start else 0, stop - _NEAR if stop < len(text) else stop
            for one in find_secrets(text[start:stop], known) if stop else ():
                if edge[0] <= one.start + start and one.stop + start <= edge[1]:
                    found.append(Secret(one.kind, one.start + start, one.stop + start))
            start = max(0, first - _WINDOW)
        stop = min(len(text), last + _WINDOW)
    return tuple(found)


def texts_of(message: Message) -> Iterator[str]:
    """Yield all texts in a message that could hold a secret."""
    return (text for part in message.parts for text in _texts(part))


def values_of(message: Message) -> frozenset[str]:
    """Return the secrets of a message in a form that can be recognised in other texts, a private key line by
    line.
    """
    texts = map(_unescaped, texts_of(message))
    found = (text[one.start : one.stop] for text in texts for one in find_secrets(text))
    lines = (line for value in found for line in (_KEY_LINE.findall(value) if "KEY" in value else (value,)))
    return frozenset(one for one in lines if len(one) >= LEAST_KNOWN and (is_password(one) or is_random(one)))


def redact_message(
    message: Message, number: int, hidden: Collection[int] = (), known: Collection[str] = ()
) -> Message:
    """Return a message without its secrets; of a `hidden` message only its handle is left."""
    handle = handle_of(number)
    if number in hidden:
        return Message(message.role, tuple(_hide_part(part, handle) for part in message.parts))
    parts = tuple(_redact_part(part, handle, known) for part in message.parts)
    return message if parts == message.parts else Message(message.role, parts)


def is_clean(message: Message, known: Collection[str] = ()) -> bool:
    """Return True if no text of the message, provider-specific fields included, looks like a secret."""
    raw = bytes(message.origin.raw).decode("utf-8", "replace") if message.origin else ""
    for part in message.parts:
        if isinstance(part, Reasoning):
            raw = raw.replace(part.signature or "\0", "").replace(part.sealed or "\0", "")
    return not any(holds_secret(text, known) for text in (*texts_of(message), raw))


def _redact_part(part: Part, handle: str, known: Collection[str]) -> Part:
    match part:
        case ToolCall():
            name, arguments = redact(part.name, handle, known), redact(part.arguments, handle, known)
            is_same = (name, arguments) == (part.name, part.arguments)
            return part if is_same else ToolCall(part.id, name, arguments, part.kind)
        case ToolResult():
            inner = tuple(_redact_inner(one, handle, known) for one in part.parts)
            return part if inner == part.parts else ToolResult(part.call_id, inner, part.is_error, part.kind)
        case Reasoning():
            return Text(_withheld_note(handle)) if holds_secret(part.text, known) else part
        case _:
            return _redact_inner(part, handle, known)


def _redact_inner(part: Inner, handle: str, known: Collection[str]) -> Inner:
    """Return a part without its secrets.

    A part that cannot be rewritten, such as a URL or a provider's block, is replaced.
    """
    if isinstance(part, Text):
        text = redact(part.text, handle, known)
        return part if text == part.text else Text(text)
    is_clean_inside = not any(holds_secret(text, known) for text in _texts(part))
    if is_clean_inside or not isinstance(part, File) or not part.text:
        return part if is_clean_inside else Text(_withheld_note(handle))
    return File(name=redact(part.name, handle, known), text=redact(part.text, handle, known))


def _texts(part: Part) -> Iterator[str]:
    match part:
        case Text() | Reasoning():
            yield part.text
        case ToolCall():
            yield from (part.name, part.arguments)
        case ToolResult():
            for inner in part.parts:
                yield from _texts(inner)
        case File():
            yield from (part.name, part.text, part.url, _decoded(part.data))
        case Image():
            yield part.url if not part.url.startswith("data:") else ""
        case Opaque():
            yield bytes(part.raw).decode("utf-8", "replace") if part.raw else ""


def _decoded(data: str) -> str:
    """Return the text of a file that came as base64; empty if it is no text."""
    try:
        return b64decode(data).decode("utf-8")
    except ValueError:
        return ""


def _hide_part(part: Part, handle: str) -> Part:
    """Return the remainder of a part that was marked as sensitive: its place in the conversation."""
    match part:
        case ToolCall():
            return ToolCall(part.id, redact(part.name, handle), "{}", part.kind)
        case ToolResult():
            return ToolResult(part.call_id, (Text(_withheld_note(handle)),), part.is_error, part.kind)
        case _:
            return Text(_withheld_note(handle))


def _withheld_note(handle: str) -> str:
    return f"[withheld: {handle}]"


def _find_known(text: str, known: Collection[str]) -> Iterator[Secret]:
    """Yield the positions of values that were found elsewhere."""
    if len(known) > _FEW:
        spans = _index(frozenset(known)).spans(text)
        yield from (Secret("secret", start, stop) for start, stop in spans)
        return
    for value in known:
        at = text.find(value)
        while at >= 0:
            yield Secret("secret", at, at + len(value))
            at = text.find(value, at + len(value))


@lru_cache(maxsize=8)
def _index(known: frozenset[str]) -> PhraseIndex:
    """Return a cached index: the same values are searched in every message of a conversation."""
    return PhraseIndex(known)


def _merge_overlaps(found: Iterable[Secret], text: str) -> Iterator[Secret]:
    """Merge overlapping secrets under the kind of the first.

    A placeholder is covered completely or not at all.
    """
    last: Secret | None = None
    for secret in sorted(_around_placeholders(found, text), key=lambda one: (one.start, -one.stop)):
        if last is not None and secret.start < last.stop:
            last = Secret(last.kind, last.start, max(last.stop, secret.stop))
            continue
        if last is not None:
            yield last
        last = secret
    if last is not None:
        yield last


def _around_placeholders(found: Iterable[Secret], text: str) -> Iterator[Secret]:
    spans = [match.span() for match in _PLACEHOLDER.finditer(text)]
    starts = [start for start, _ in spans]
    for secret in found:
        first = (
            spans[bisect_right(starts, secret.start) - 1] if starts and starts[0] <= secret.start else (0, 0)
        )
        last = (
            spans[bisect_right(starts, secret.stop - 1) - 1] if starts and starts[0] < secret.stop else (0, 0)
        )
        if secret.stop > first[1] or secret.start < first[0]:
            start = first[0] if secret.start < first[1] else secret.start
            yield Secret(secret.kind, start, max(secret.stop, last[1]))
