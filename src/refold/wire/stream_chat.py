"""Streams of Chat Completions: every chunk holds what is new of one message.

One idea: a delta is a message with most of it left out. Deltas are laid over one another, field by field: texts grow,
numbers and names are set, and the elements of a list are found again by their index, or by their id where a server numbers
all calls alike. Fields that only one server knows come along that way.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.wire.delta import CallDelta, Delta, Pieces, ReasoningDelta, TextDelta
from refold.wire.error import answer_error
from refold.wire.patch import Fields
from refold.wire.reading import NULL, is_null, read, too_many, word
from refold.wire.sse import Event

_DONE = b"[DONE]"
_WHOLE = frozenset({"id", "type", "role", "name", "format", "signature"})
"""Texts that come in one piece; some servers repeat them in every chunk."""
_LISTS = ("reasoning_details", "thinking_blocks")
_THOUGHTS = ("reasoning_content", "reasoning")
_SAID = ("text", "summary", "thinking")
_MAX_DEPTH = 6
"""Deeper than anything that grows: `tool_calls[0].function.arguments`."""

MAX_ELEMENTS = 512
"""Calls of one reply, or pieces of its thinking: several times what any tool loop asks for at once."""

Growing = dict[str, object]


class _Choice(Struct, gc=False):
    index: int | None = None
    delta: dict[str, object] | None = None
    finish_reason: Raw = NULL
    error: Raw = NULL


class _Chunk(Struct, gc=False):
    id: Raw = NULL
    model: Raw = NULL
    usage: Raw = NULL
    error: Raw = NULL
    choices: list[_Choice] | None = None


_CHUNK = Decoder(_Chunk)


class ChatFold:
    def __init__(self) -> None:
        self.is_whole = self.is_over = self.is_failed = False
        self._head: Fields = {}
        self._message: Growing = {"role": "assistant"}
        self._calls: list[Growing] = []
        self._finish = ""

    def take(self, event: Event) -> list[Delta]:
        if event.data.strip() == _DONE:
            self.is_whole = self.is_over = True
            return []
        chunk = read(_CHUNK, event.data)
        choice = next((choice for choice in chunk.choices or () if not choice.index), None)
        if not is_null(chunk.error) or (choice is not None and not is_null(choice.error)):
            self.is_failed = True
        elif choice is None and is_null(chunk.usage):
            self.is_failed = answer_error(event.data).is_error
        if self.is_failed:
            return []
        self._note(chunk)
        return self._hear(choice) if choice is not None else []

    def _note(self, chunk: _Chunk) -> None:
        """What is said of the whole reply; of several usage reports the last is complete."""
        for key, raw in (("id", chunk.id), ("model", chunk.model), ("usage", chunk.usage)):
            if not is_null(raw):
                self._head[key] = raw.copy()

    def _hear(self, choice: _Choice) -> list[Delta]:
        finish = word(choice.finish_reason)
        if finish:
            self._finish, self.is_whole = finish, True
        delta = choice.delta or {}
        deltas = [*_thoughts(delta), *_said(delta)]
        calls = delta.pop("tool_calls", None)
        calls = calls if isinstance(calls, list) else []
        deltas += [self._call(call) for call in calls if isinstance(call, dict)]
        _lay_over(self._message, {key: value for key, value in delta.items() if key != "role"})
        return deltas

    def _call(self, call: Growing) -> CallDelta:
        slot = _slot(self._calls, call)
        _lay_over(slot, call)
        spoken = call.get("function") or call.get("custom")
        spoken = spoken if isinstance(spoken, dict) else {}
        written = spoken.get("arguments", spoken.get("input"))
        if isinstance(written, dict):  # some servers send the object itself
            written = msgspec.json.encode(written).decode()
        at = next(index for index, known in enumerate(self._calls) if known is slot)
        return CallDelta(at, _text(call.get("id")), _text(spoken.get("name")), _text(written))

    def body(self) -> bytes:
        calls = [{key: call[key] for key in call if key != "index"} for call in self._calls]
        message = {**self._message, "tool_calls": calls} if calls else self._message
        choice = {"index": 0, "message": message, "finish_reason": self._finish or None}
        return msgspec.json.encode({**self._head, "choices": [choice]}, enc_hook=str)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _thoughts(delta: Growing) -> list[Delta]:
    """What is new of the reasoning; servers send one thought under several names at once."""
    texts = [_text(delta.get(name)) for name in _THOUGHTS]
    for name in _LISTS:
        listed = delta.get(name)
        pieces = [piece for piece in listed if isinstance(piece, dict)] if isinstance(listed, list) else []
        texts.append("".join(_text(piece.get(key)) for piece in pieces for key in _SAID))
    text = next(filter(None, texts), "")
    return [ReasoningDelta(text)] if text else []


def _said(delta: Growing) -> list[Delta]:
    content = delta.get("content")
    if isinstance(content, list):  # blocks: what they say counts
        blocks = [block for block in content if isinstance(block, dict)]
        content = delta["content"] = "".join(_text(block.get("text")) for block in blocks)
        refused = "".join(_text(block.get("refusal")) for block in blocks)
        delta |= {"refusal": refused} if refused else {}
    texts = (_text(content), _text(delta.get("refusal")))
    return [TextDelta(text) for text in texts if text]


def _lay_over(held: Growing, delta: Growing, depth: int = _MAX_DEPTH) -> None:
    for key, value in delta.items():
        known = held.get(key)
        if value is None:
            held.setdefault(key, None)
        elif isinstance(value, str):
            _lay_text(held, key, value)
        elif isinstance(value, list) and key in _LISTS:
            held[key] = _laid_list(known if isinstance(known, list) else [], value, depth)
        elif isinstance(value, list) and isinstance(known, list):
            known.extend(value)
        elif isinstance(value, dict) and depth:
            held[key] = known = known if isinstance(known, dict) else {}
            _lay_over(known, value, depth - 1)
        else:
            held[key] = value


def _lay_text(held: Growing, key: str, value: str) -> None:
    known = held.get(key)
    if key in _WHOLE:
        held[key] = known or value if key != "signature" else value or known
    elif isinstance(known, Pieces):
        known.add(value)
    else:
        held[key] = Pieces(value)


def _laid_list(held: list[Growing], delta: list[object], depth: int) -> list[Growing]:
    for item in delta:
        if isinstance(item, dict):
            _lay_over(_slot(held, item), item, depth - 1)
    return held


def _slot(held: list[Growing], item: Growing) -> Growing:
    """The element that an item goes on with, or a new one."""
    index = item.get("index")
    for known in reversed(held):
        if known.get("index") == index and _goes_on(known, item):
            return known
        if index is None and not item.get("id"):
            break  # without a number only the last can be meant
    if len(held) >= MAX_ELEMENTS:
        raise too_many("calls or thoughts", MAX_ELEMENTS)
    new: Growing = {}
    held.append(new)
    return new


def _goes_on(known: Growing, item: Growing) -> bool:
    """Is it the same element? A signature closes a thought that has no number."""
    if item.get("index") is None and known.get("signature"):
        return False
    return all(not item.get(key) or known.get(key) in (None, "", item[key]) for key in ("id", "type"))
