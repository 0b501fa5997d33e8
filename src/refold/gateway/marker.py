"""The visible marker: one line at the end of a reply which says that older messages were summarised.

Few clients show response headers, so people see nothing of a compaction. The setting `notify.marker` adds a line to the
first reply in words after one; it is off by default, and a reply with tool calls or in a format that the client prescribes never
gets it. Clients send the line back with the reply, as part of their history: `without_markers` removes it from every
request, before the request is recognised and sent, so that neither the store nor a model ever sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName
from refold.wire.json_codec import FIELDS, ITEMS, NULL, is_null, is_object, kind_of
from refold.wire.sse import UNREADABLE, EventSplitter, parse_event

SIGN = b"[refold: older messages are summarised; sent "
"""The beginning of every marker. A request without it is not read for markers; a search for so long a text takes
a third of the time of one for its first word."""
_MARKER = re.compile(
    r"\[refold: older messages are summarised; sent [0-9,]{1,20} of [0-9,]{1,20} tokens\]", re.ASCII
)
_TEXTS = ("text", "output_text")
_STRUCTURED = ("response_format", "output_format", "output_config", "text")
"""Fields with which clients prescribe the format of a reply."""
_CALLS = ("tool_calls", "function_call")
"""Fields of an assistant's message that say something without content."""


class _Role(Struct):
    role: str = ""


_ROLE = msgspec.json.Decoder(_Role)


def marker_text(sent: int, whole: int) -> str:
    """The line for a reply: how much of the history was sent."""
    return f"\n\n[refold: older messages are summarised; sent {sent:,} of {whole:,} tokens]"


def without_markers(body: bytes, messages_key: str) -> bytes:
    """A request without the markers in the assistant's messages. Messages without one keep their bytes; a message that
    consists of markers is left out, because providers refuse empty ones.
    """
    if SIGN not in body:
        return body
    try:
        fields = FIELDS.decode(body)
        items = ITEMS.decode(fields.get(messages_key, NULL))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    clean = [_without(item) for item in items]
    if all(one is item for one, item in zip(clean, items, strict=True)):
        return body
    rest = [bytes(one) for one in clean if one is not None]
    fields[messages_key] = Raw(b"[" + b",".join(rest) + b"]")
    return msgspec.json.encode(fields)


def _without(item: Raw) -> Raw | None:
    """A message without markers; the same object if it has none, and None if it consists of them."""
    raw = bytes(item)
    if SIGN not in raw or not is_object(item):
        return item
    try:
        if _ROLE.decode(raw).role != "assistant":
            return item
        fields = FIELDS.decode(raw)
        content = fields.get("content", NULL)
        clean = _clean_list(content) if bytes(content).startswith(b"[") else _clean_string(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WireError):
        return item
    if clean is content:
        return item
    if clean is None and not any(not is_null(fields.get(name, NULL)) for name in _CALLS):
        return None
    fields["content"] = Raw(b'""') if clean is None else clean
    return Raw(msgspec.json.encode(fields))


def _clean_string(raw: Raw) -> Raw | None:
    """A JSON string without markers; the same object if it has none, and None if nothing else is in it."""
    if not bytes(raw).startswith(b'"'):
        return raw
    text = msgspec.json.decode(raw, type=str)
    clean = without_marker_lines(text)
    if clean == text:
        return raw
    return Raw(msgspec.json.encode(clean)) if clean.strip() else None


def _clean_list(raw: Raw) -> Raw | None:
    """The same for a list of blocks: a block of text that consists of markers is left out."""
    blocks, clean = ITEMS.decode(raw), list[Raw]()
    is_changed = False
    for block in blocks:
        if SIGN not in bytes(block) or not is_object(block) or kind_of(block) not in _TEXTS:
            clean.append(block)
            continue
        fields = FIELDS.decode(block)
        text = fields.get("text", NULL)
        said = _clean_string(text)
        is_changed = is_changed or said is not text
        if said is text:
            clean.append(block)
        elif said is not None:
            clean.append(Raw(msgspec.json.encode({**fields, "text": said})))
    if not is_changed:
        return raw
    return Raw(b"[" + b",".join(map(bytes, clean)) + b"]") if clean else None


def without_marker_lines(text: str) -> str:
    """An assistant's text without the markers at its end. Clients join replies: a marker further up is the end of a
    reply if it is a paragraph of its own, as the gateway writes it, or follows another one. Linear in the text.
    """
    found = [one.span() for one in _MARKER.finditer(text)]
    if not found:
        return text
    starts = [*(start for start, _ in found[1:]), len(text)]
    is_last = [not text[end:start].strip() for (_, end), start in zip(found, starts, strict=True)]
    first_of_tail = len(found)
    while first_of_tail and is_last[first_of_tail - 1]:
        first_of_tail -= 1
    kept, at, is_removed = list[str](), 0, True
    for index, (start, end) in enumerate(found):
        gap = text[at:start]
        said = gap.rstrip()
        breaks = gap[len(said) :].replace("\r\n", "\n").replace("\r", "\n").count("\n")
        needed = 1 if index >= first_of_tail else 2
        is_line = is_removed if not said else breaks >= needed and gap[-1] in "\r\n"
        follows = text[end : end + 1]
        is_end = is_last[index] or follows in "\r\n" or follows.isalnum()
        is_removed = is_line and is_end
        kept.append(_without_breaks(gap) if is_removed else text[at:end])
        at = end
    return "".join([*kept, text[at:]])


def _without_breaks(text: str) -> str:
    """A text without the blank line that a marker begins with. Clients may send CRLF back, or only one line break."""
    for _ in range(2):
        text = text.removesuffix("\n").removesuffix("\r")
    return text


def is_structured(fields: Mapping[str, Raw]) -> bool:
    """True if the client prescribes the format of the reply, so that a line of text would break it."""
    for name in _STRUCTURED:
        raw = fields.get(name, NULL)
        if is_object(raw):
            found = msgspec.json.decode(raw)
            kind = found.get("format", found)
            if isinstance(kind, dict) and kind.get("type", "text") != "text":
                return True
    return False


# Replies that are not streamed


def mark_reply(body: bytes, dialect: Dialect, text: str) -> bytes:
    """A reply with the marker after its last text; unchanged if it has calls, no text, or cannot be read."""
    try:
        reply = msgspec.json.decode(body)
        is_marked = isinstance(reply, dict) and _MARK[dialect.name](reply, text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, TypeError):
        return body
    return msgspec.json.encode(reply) if is_marked else body


def _mark_chat(reply: dict[str, Any], text: str) -> bool:
    choices = reply.get("choices") or []
    message = choices[0]["message"] if len(choices) == 1 else {}
    is_said = isinstance(message.get("content"), str) and message["content"].strip()
    if not is_said or message.get("tool_calls") or choices[0].get("finish_reason") != "stop":
        return False
    message["content"] += text
    return True


def _mark_anthropic(reply: dict[str, Any], text: str) -> bool:
    blocks = reply.get("content") or []
    is_over = reply.get("stop_reason") == "end_turn" and blocks and blocks[-1].get("type") == "text"
    if not is_over or not (blocks[-1].get("text") or "").strip():
        return False
    blocks[-1]["text"] += text
    return True


def _mark_responses(reply: dict[str, Any], text: str) -> bool:
    items = reply.get("output") or []
    is_over = reply.get("status") == "completed" and items and items[-1].get("type") == "message"
    return (
        bool(is_over)
        and all(one.get("type") in ("message", "reasoning") for one in items)
        and _mark_item(items[-1], text)
    )


def _mark_item(item: dict[str, Any], text: str) -> bool:
    parts = item.get("content") or []
    if not parts or parts[-1].get("type") != "output_text" or not (parts[-1].get("text") or "").strip():
        return False
    parts[-1]["text"] += text
    return True


_MARK: dict[DialectName, Callable[[dict[str, Any], str], bool]] = {
    "chat": _mark_chat,
    "anthropic": _mark_anthropic,
    "responses": _mark_responses,
}


# Streams


class MarkedStream:
    """Writes the marker into a stream of events. The last events of a text are held back until it is clear that no
    call follows; if anything cannot be read, all further events are passed on as they come.
    """

    def __init__(self, dialect: Dialect, text: str) -> None:
        self._splitter, self._text, self._name = EventSplitter(), text, dialect.name
        self._held = list[bytes]()
        self._is_done = self._is_written = False
        self._has_text = False
        self._shift = 0
        """Events that were added to a stream whose events are numbered."""

    @property
    def is_written(self) -> bool:
        return self._is_written

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client."""
        return b"".join(self._take(event) for event in self._splitter.feed(chunk))

    def rest(self) -> bytes:
        """The remaining bytes, after the stream has ended."""
        held, self._held = self._held, []
        return b"".join(held) + self._splitter.take_pending()

    def _take(self, event: bytes) -> bytes:
        parsed = None if self._is_done and not self._shift else parse_event(event)
        if parsed is None or parsed.data == b"[DONE]":
            return self._flushed(event)
        try:
            fields = msgspec.json.decode(parsed.data)
            take = {
                "chat": self._take_chat,
                "anthropic": self._take_anthropic,
                "responses": self._take_responses,
            }
            return take[self._name](event, fields)
        except UNREADABLE:
            self._is_done = True
            return self._flushed(event)

    def _flushed(self, event: bytes) -> bytes:
        if self._held and not event.strip(b"\r\n"):
            self._held.append(event)  # a blank line after an event that is held back
            return b""
        held, self._held = self._held, []
        return b"".join(held) + event

    def _give_up(self, event: bytes) -> bytes:
        self._is_done = True
        return self._flushed(event)

    def _take_chat(self, event: bytes, fields: dict[str, Any]) -> bytes:
        choices = fields.get("choices") or []
        if self._is_done or not choices:
            return event
        (choice,) = choices
        delta = choice.get("delta") or {}
        if delta.get("tool_calls") or delta.get("function_call"):
            return self._give_up(event)
        self._has_text = self._has_text or bool((delta.get("content") or "").strip())
        if not choice.get("finish_reason"):
            return event
        self._is_done = True
        if choice["finish_reason"] != "stop" or not self._has_text:
            return event
        self._is_written = True
        if delta.get("content"):
            delta["content"] += self._text
            return _event(fields)
        said = {**choice, "delta": {"content": self._text}, "finish_reason": None}
        return (
            _event({**{name: value for name, value in fields.items() if name != "usage"}, "choices": [said]})
            + event
        )

    def _take_anthropic(self, event: bytes, fields: dict[str, Any]) -> bytes:
        kind = fields["type"]
        if self._is_done or kind == "ping":
            return event
        if kind == "content_block_start":
            self._has_text = False
            self._add(fields["content_block"])
            return self._flushed(event)
        if kind == "content_block_delta":
            self._add(fields["delta"])
            return self._flushed(event)
        if kind == "content_block_stop" and self._has_text:
            self._held.append(event)
            self._index = fields["index"]
            return b""
        if kind == "message_delta":
            self._is_done = True
            if self._held and fields["delta"].get("stop_reason") == "end_turn":
                self._is_written = True
                delta = {"type": "text_delta", "text": self._text}
                added = {"type": "content_block_delta", "index": self._index, "delta": delta}
                return _event(added, "content_block_delta") + self._flushed(event)
            return self._flushed(event)
        return self._flushed(event)

    def _add(self, piece: dict[str, Any]) -> None:
        """Note the words of the block in progress: a reply without any gets no marker."""
        is_text = piece["type"] in ("text", "text_delta")
        self._has_text = self._has_text or (is_text and bool(piece["text"].strip()))

    def _take_responses(self, event: bytes, fields: dict[str, Any]) -> bytes:
        kind = fields["type"]
        if self._is_done:
            return self._shifted(event, fields)
        if kind == "response.output_item.added" and fields["item"]["type"] not in ("message", "reasoning"):
            return self._give_up(event)
        if kind in ("response.output_item.added", "response.failed", "response.incomplete"):
            return self._flushed(event)
        if kind == "response.output_text.done" or self._held:
            self._held.append(event)
            return self._end_responses(fields) if kind == "response.completed" else b""
        return event

    def _end_responses(self, fields: dict[str, Any]) -> bytes:
        """The events from the end of the last text on, with the marker in each that repeats the text."""
        self._is_done = True
        if not _mark_responses(fields["response"], self._text):
            return self._flushed(b"")
        self._is_written = True
        found, held, self._held = list[bytes](), self._held[:-1], []
        for event in held:
            parsed = parse_event(event)
            own: dict[str, Any] = msgspec.json.decode(parsed.data) if parsed else {}
            kind = own.get("type")
            if kind == "response.output_text.done":
                keys = ("item_id", "output_index", "content_index", "sequence_number")
                said = {key: own[key] for key in keys if key in own}
                delta = {"type": "response.output_text.delta", **said, "delta": self._text, "logprobs": []}
                found.append(_event(delta, "response.output_text.delta"))
                self._shift = 1
                own["text"] += self._text
            elif kind == "response.content_part.done":
                own["part"]["text"] += self._text
            elif kind == "response.output_item.done":
                _mark_item(own["item"], self._text)
            found.append(self._shifted(event, own) if own else event)
        return b"".join([*found, self._shifted(b"", fields)])

    def _shifted(self, event: bytes, fields: dict[str, Any]) -> bytes:
        """An event with its number in a stream that has more events now."""
        if not self._shift:
            return event
        if "sequence_number" in fields:
            fields["sequence_number"] += self._shift
        return _event(fields, fields["type"])


def _event(fields: dict[str, Any], name: str = "") -> bytes:
    head = b"event: %s\n" % name.encode() if name else b""
    return head + b"data: %s\n\n" % msgspec.json.encode(fields)
