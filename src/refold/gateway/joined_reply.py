"""Joins the answers of several calls into one reply for the client, without the calls of the recall tool.

The provider's answers are the rounds of one reply: each but the last ends with calls of the recall tool, which
the gateway answers itself. The client gets the texts, the thinking and its own calls of all rounds, numbered as in
one answer, with the usage of all rounds. As long as no round has called the tool, nothing is changed.

The functions of this module do no I/O. They exist for bodies (`join_bodies`), for streams (`JoinedStream`) and for
messages (`shown_parts`), and the three agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from refold.model.dialect import Dialect
from refold.model.message import DialectName, Message, Part, Text, ToolCall
from refold.wire.sse import UNREADABLE, EventSplitter, parse_event

Json = dict[str, Any]

BETWEEN = "\n\n"
"""Separates the texts of two rounds where the format has one text for the whole reply."""
_RESPONSES_OPENING = ("response.created", "response.queued", "response.in_progress")
_RESPONSES_END = ("response.completed", "response.incomplete")


def add_usage(one: Any, other: Any) -> Any:
    """The sum of two usage reports of one format: numbers are added, of other values the second is taken."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: add_usage(one.get(key), value) for key, value in other.items()}}
    is_number = [isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)]
    if all(is_number):
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    return one if other is None else other


def shown_parts(rounds: Sequence[Sequence[Message]], name: str, dialect: Dialect) -> tuple[Part, ...]:
    """The parts of the reply that the client gets: those of all rounds, without the calls of the tool `name`."""
    parts = [part for messages in rounds for message in messages for part in message.parts]
    shown = [part for part in parts if not (isinstance(part, ToolCall) and part.name == name)]
    if dialect.name != "chat":
        return tuple(shown)
    texts = ["".join(message.text for message in messages) for messages in rounds]
    text = BETWEEN.join(filter(None, texts))
    return (*([Text(text)] if text else []), *(part for part in shown if not isinstance(part, Text)))


# Answers that are not streamed


def join_bodies(bodies: Sequence[bytes], name: str, dialect: Dialect) -> bytes:
    """The answers of all rounds as one, without the calls of the tool `name`.

    Raises:
        msgspec.DecodeError, TypeError, KeyError: an answer cannot be read.
    """
    answers: list[Json] = [msgspec.json.decode(body) for body in bodies]
    joined = _JOIN[dialect.name](answers, name)
    usages = [answer["usage"] for answer in answers if isinstance(answer.get("usage"), dict)]
    if usages:
        total = usages[0]
        for usage in usages[1:]:
            total = add_usage(total, usage)
        joined["usage"] = total
    return msgspec.json.encode(joined)


def _join_chat(answers: list[Json], name: str) -> Json:
    choices = [answer["choices"][0] for answer in answers]
    messages: list[Json] = [choice["message"] for choice in choices]
    last = {**messages[-1]}
    for field in ("content", "reasoning_content", "reasoning"):
        said = [text for message in messages if isinstance(text := message.get(field), str) and text]
        if said:
            last[field] = (BETWEEN if field == "content" else "").join(said)
    own = [call for call in last.get("tool_calls") or () if _called(call) != name]
    if own:
        last["tool_calls"] = own
    else:
        last.pop("tool_calls", None)
        last["content"] = last.get("content") or ""
    choice = {**choices[-1], "message": last}
    if choice.get("finish_reason") == "tool_calls" and not own:
        choice["finish_reason"] = "stop"
    return {**answers[-1], "id": answers[0].get("id"), "choices": [choice]}


def _called(call: Json) -> str:
    spoken = call.get("function")
    return str(spoken.get("name") or "") if isinstance(spoken, dict) else ""


def _join_anthropic(answers: list[Json], name: str) -> Json:
    blocks = [block for answer in answers for block in answer["content"] if not _is_recall(block, name)]
    joined = {**answers[-1], "id": answers[0].get("id"), "content": blocks}
    return _with_stop_reason(joined, has_calls=any(block.get("type") == "tool_use" for block in blocks))


def _is_recall(block: Json, name: str) -> bool:
    return block.get("type") in ("tool_use", "function_call") and block.get("name") == name


def _with_stop_reason(delta: Json, *, has_calls: bool) -> Json:
    is_left = delta.get("stop_reason") == "tool_use" and not has_calls
    return {**delta, "stop_reason": "end_turn"} if is_left else delta


def _join_responses(answers: list[Json], name: str) -> Json:
    items = [item for answer in answers for item in answer["output"] if not _is_recall(item, name)]
    return {**answers[-1], "output": items}


_JOIN: dict[DialectName, Callable[[list[Json], str], Json]] = {
    "chat": _join_chat,
    "anthropic": _join_anthropic,
    "responses": _join_responses,
}


# Streams


class JoinedStream:
    """Passes the streams of the rounds on as one stream. `feed` takes the bytes of the current round; `next_round`
    says that another one follows; `end` returns the last events, which are held back after a call of the tool.

    If an event cannot be read, the rest of the stream is passed on as it comes, and `is_readable` is False.
    """

    def __init__(self, dialect: Dialect, name: str) -> None:
        self._splitter, self._name, self._dialect = EventSplitter(), name, dialect.name
        self.is_readable = True
        self.has_recalls = False
        """True if the current round has called the tool. Its last events are held back then."""
        self._rounds = 1
        self._is_changed = False
        """True from the first event on that the client does not get as it came."""
        self._is_rewritten = False
        """True if the newest event did not pass as it came."""
        self._held: list[Json] = []
        self._usage: Json = {}
        """The usage of the earlier rounds."""
        self._usage_now: Json = {}
        """The usage at the beginning of the current round, which Anthropic reports apart."""
        self._hidden: set[int] = set()
        """Numbers of the current round's blocks, items or calls that the client does not get."""
        self._base = self._shown = 0
        """The number of blocks, items or calls that the client got, before this round and by now."""
        self._places: dict[int, int] = {}
        """The client's number of each of the current round's."""
        self._number = 0
        """The number of the next event, in a format that numbers its events."""
        self._id: object = None
        self._has_text = self._has_text_now = False
        self._last_call = -1
        self._has_calls = False
        self._items: list[Json] = []
        self._items_now: list[Json] = []
        """Items of a Responses reply that the client got: of the earlier rounds, and of this one."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client."""
        return b"".join(self._take(event) for event in self._splitter.feed(chunk))

    def rest(self) -> bytes:
        """The incomplete event at the end of a stream."""
        return self._splitter.take_pending()

    def next_round(self) -> None:
        """Go on with the stream of the next call; the end of the last one is dropped."""
        self._usage = add_usage(self._usage, self._usage_of_round())
        for fields in self._held:
            self._items += self._round_items(fields["response"]) if "response" in fields else []
        self._items_now = []
        self._held, self._splitter = [], EventSplitter()
        self._hidden, self._places, self._base = set(), {}, self._shown
        self._has_text, self._has_text_now = self._has_text or self._has_text_now, False
        self.has_recalls, self._is_changed, self._last_call, self._has_calls = False, True, -1, False
        self._rounds += 1

    def end(self) -> bytes:
        """The last events of the reply, if they were held back."""
        held, self._held = self._held, []
        return b"".join(self._end(fields) for fields in held)

    @property
    def next_number(self) -> int:
        """The number of the next event in a Responses stream."""
        return self._number

    def _take(self, event: bytes) -> bytes:
        if event.strip(b"\r\n"):
            passed = self._take_event(event)
            self._is_rewritten = passed is not event
            return passed
        return b"" if self._is_rewritten else event  # the end of a line end that came in two chunks

    def _take_event(self, event: bytes) -> bytes:
        parsed = parse_event(event) if self.is_readable else None
        if parsed is None:
            return event
        if parsed.data.strip() == b"[DONE]":
            if self.has_recalls:
                self._held.append({"done": True})
                return b""
            return event
        try:
            fields = msgspec.json.decode(parsed.data)
            take = {"chat": self._chat, "anthropic": self._anthropic, "responses": self._responses}
            return take[self._dialect](event, fields)
        except UNREADABLE:
            self.is_readable = False
            return event

    def _end(self, fields: Json) -> bytes:
        if "done" in fields:
            return b"data: [DONE]\n\n"
        if self._dialect == "chat":
            return self._chat_end(fields)
        if self._dialect == "anthropic":
            return self._anthropic_end(fields)
        return self._responses_end(fields)

    def _usage_of_round(self) -> Json:
        """The usage of a round by its last events; a later report replaces an earlier one."""
        usage = self._usage_now
        for fields in self._held:
            usage = {**usage, **_known(fields.get("response", fields).get("usage"))}
        return usage

    def _with_usage(self, fields: Json) -> Json:
        if self._usage and isinstance(fields.get("usage"), dict):
            return {**fields, "usage": add_usage(self._usage, fields["usage"])}
        return fields

    # Chat Completions

    def _chat(self, event: bytes, fields: Json) -> bytes:
        if self._id is None:
            self._id = fields.get("id")
        choices = fields.get("choices") or []
        if not choices:
            if self.has_recalls and isinstance(fields.get("usage"), dict):
                self._held.append(fields)
                return b""
            return self._chat_end(fields) if self._is_changed and "error" not in fields else event
        (choice,) = choices
        delta: Json = choice.get("delta") or {}
        calls, finish = delta.get("tool_calls"), choice.get("finish_reason")
        if calls:
            own = [self._numbered(call) for call in calls if not self._is_hidden_call(call)]
            delta = {**delta, "tool_calls": own} if own else _without(delta, "tool_calls")
            self._has_calls = self._has_calls or bool(own)
            self._is_changed = self._is_changed or self.has_recalls
        said = delta.get("content")
        if not self._is_changed:
            self._has_text_now = self._has_text_now or bool(said)
            return event
        if said and self._rounds > 1 and self._has_text and not self._has_text_now:
            delta = {**delta, "content": BETWEEN + said}
        self._has_text_now = self._has_text_now or bool(said)
        if self._rounds > 1:
            delta = _without(delta, "role")
        if self.has_recalls and finish:
            self._held.append({**fields, "choices": [{**choice, "delta": {}}]})
            fields, finish = _without(fields, "usage"), None
        if not (any(delta.values()) or finish):
            return b""
        return self._chat_end({**fields, "choices": [{**choice, "delta": delta, "finish_reason": finish}]})

    def _is_hidden_call(self, call: Json) -> bool:
        at = self._call_number(call)
        if _called(call) == self._name:
            self._hidden.add(at)
            self.has_recalls = True
        return at in self._hidden

    def _call_number(self, call: Json) -> int:
        """The provider's number of a call; servers that give none send the calls one after the other."""
        at = call.get("index")
        if at is None:
            at = self._last_call + 1 if _called(call) else max(0, self._last_call)
        self._last_call = int(at)
        return self._last_call

    def _numbered(self, call: Json) -> Json:
        at = self._last_call
        if at not in self._places:
            self._places[at] = self._shown
            self._shown += 1
        return {**call, "index": self._places[at]} if "index" in call else call

    def _chat_end(self, fields: Json) -> bytes:
        choices = [{**choice} for choice in fields.get("choices") or ()]
        for choice in choices:
            if choice.get("finish_reason") == "tool_calls" and not self._has_calls:
                choice["finish_reason"] = "stop"
        own = {**fields, "id": self._id} if "id" in fields else fields
        return _event(self._with_usage({**own, "choices": choices}))

    # Anthropic Messages

    def _anthropic(self, event: bytes, fields: Json) -> bytes:
        kind = fields["type"]
        if kind == "message_start":
            self._usage_now = _known(fields["message"].get("usage"))
            return event if self._rounds == 1 else b""
        if kind == "content_block_start" and _is_recall(fields["content_block"], self._name):
            self._hidden.add(fields["index"])
            self.has_recalls = self._is_changed = True
            return b""
        if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            return self._placed(event, fields, "index", fields.get("content_block") or {})
        if kind in ("message_delta", "message_stop") and self._is_changed:
            if self.has_recalls:
                self._held.append(fields)
                return b""
            return self._anthropic_end(fields)
        return event

    def _placed(self, event: bytes, fields: Json, key: str, opened: Json) -> bytes:
        """An event of a block or an item with the client's number; empty if the client does not get it."""
        at = fields[key]
        if at in self._hidden:
            return b""
        if at not in self._places:
            self._places[at] = self._shown
            self._shown += 1
        if opened.get("type") == "tool_use":
            self._has_calls = True
        if not self._is_changed:
            return event
        return _event({**fields, key: self._places[at]}, fields["type"])

    def _anthropic_end(self, fields: Json) -> bytes:
        if fields["type"] == "message_delta":
            delta = _with_stop_reason(fields["delta"], has_calls=self._has_calls)
            usage = {**self._usage_now, **_known(fields.get("usage"))} if self._usage else fields.get("usage")
            fields = self._with_usage({**fields, "delta": delta, "usage": usage})
        return _event(fields, fields["type"])

    # Responses

    def _responses(self, event: bytes, fields: Json) -> bytes:
        kind = fields["type"]
        if kind in _RESPONSES_OPENING:
            self._id = self._id or fields["response"].get("id")
            if self._rounds > 1:
                return b""
        if kind == "response.output_item.added" and _is_recall(fields["item"], self._name):
            self._hidden.add(fields["output_index"])
            self.has_recalls = self._is_changed = True
            return b""
        if "output_index" in fields:
            if fields["output_index"] not in self._hidden and kind == "response.output_item.done":
                self._items_now.append(fields["item"])
            return self._renumbered(event, fields)
        if kind in _RESPONSES_END and self._is_changed:
            if self.has_recalls:
                self._held.append(fields)
                return b""
            return self._responses_end(fields)
        if self._is_changed:
            return self._sequenced(fields)
        self._number = fields.get("sequence_number", -1) + 1
        return event

    def _round_items(self, response: Json) -> list[Json]:
        """The items of the current round; some servers send them only with the whole reply."""
        listed = response.get("output") or []
        return self._items_now or [item for item in listed if not _is_recall(item, self._name)]

    def _renumbered(self, event: bytes, fields: Json) -> bytes:
        passed = self._placed(event, fields, "output_index", {})
        if not passed:
            return b""
        if self._is_changed:
            return self._sequenced({**fields, "output_index": self._places[fields["output_index"]]})
        self._number = fields.get("sequence_number", -1) + 1
        return passed

    def _sequenced(self, fields: Json) -> bytes:
        if isinstance(response := fields.get("response"), dict) and self._id:
            fields = {**fields, "response": {**response, "id": self._id}}
        if "sequence_number" in fields:
            fields = {**fields, "sequence_number": self._number}
            self._number += 1
        return _event(fields, fields["type"])

    def _responses_end(self, fields: Json) -> bytes:
        output = [*self._items, *self._round_items(fields["response"])]
        response = self._with_usage({**fields["response"], "output": output})
        return self._sequenced({**fields, "response": response})


def _known(usage: Mapping[str, Any] | None) -> Json:
    return {key: value for key, value in (usage or {}).items() if value is not None}


def _without(fields: Json, dropped: str) -> Json:
    return {name: value for name, value in fields.items() if name != dropped}


def _event(fields: Json, name: str = "") -> bytes:
    head = b"event: %s\n" % name.encode() if name else b""
    return head + b"data: %s\n\n" % msgspec.json.encode(fields)
