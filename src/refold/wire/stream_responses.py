"""Streams of the Responses format: everything that happens is an event, and the last one holds the whole reply.

One idea: take the provider's own last word. Only where a server leaves the items out of it, the items that were finished on
the way are the reply.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.wire.delta import CallDelta, Delta, ReasoningDelta, TextDelta
from refold.wire.error import answer_error
from refold.wire.patch import Fields, write
from refold.wire.reading import FIELDS, NULL, is_null, read
from refold.wire.sse import Event

_LAST = ("response.completed", "response.incomplete", "response.cancelled", "response.done")
_FAILED = ("error", "response.failed")
_TEXT = ("response.output_text.delta", "response.refusal.delta")
_THOUGHT = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_CALLS = ("function_call", "custom_tool_call")
_NO_ITEMS = (b"[]", b"null")


class _Event(Struct, gc=False):
    type: str = ""
    output_index: int = 0
    response: Raw = NULL
    item: Raw = NULL
    delta: Raw = NULL


class _Item(Struct, gc=False):
    type: str | None = None
    call_id: str | None = None
    name: str | None = None


_EVENT = Decoder(_Event)
_ITEM = Decoder(_Item)
_STRING = Decoder(str)


class ResponsesFold:
    def __init__(self) -> None:
        self.is_whole = self.is_over = self.is_failed = False
        self._last: dict[str, Raw] = {}
        self._items: dict[int, Raw] = {}
        self._calls: dict[int, int] = {}
        """Which call of the reply an item is."""

    def take(self, event: Event) -> list[Delta]:
        said = read(_EVENT, event.data) if event.data.strip() != b"[DONE]" else _Event()
        if said.type in _FAILED:
            self.is_failed = True
        elif said.type in _LAST:
            self._last = read(FIELDS, said.response, "response")
            self.is_whole = self.is_over = True
        elif said.type == "response.output_item.added":
            return self._open(said)
        elif said.type == "response.output_item.done" and not is_null(said.item):
            self._items[said.output_index] = said.item.copy()
        elif not said.type:
            self.is_failed = answer_error(event.data).is_error
        return self._piece(said)

    def _open(self, said: _Event) -> list[Delta]:
        item = read(_ITEM, said.item, "item")
        if item.type not in _CALLS:
            return []
        at = self._calls[said.output_index] = len(self._calls)
        return [CallDelta(at, item.call_id or "", item.name or "")]

    def _piece(self, said: _Event) -> list[Delta]:
        is_said, is_thought = said.type in _TEXT, said.type in _THOUGHT
        if not (is_said or is_thought or said.type in _ARGUMENTS):
            return []
        text = read(_STRING, said.delta, "delta")
        if not text:
            return []
        if is_said or is_thought:
            return [TextDelta(text) if is_said else ReasoningDelta(text)]
        call = self._calls.setdefault(said.output_index, len(self._calls))
        return [CallDelta(call, arguments=text)]

    def body(self) -> bytes:
        fields: Fields = {**self._last}
        if bytes(self._last.get("output", NULL)) in _NO_ITEMS:
            fields["output"] = [self._items[index] for index in sorted(self._items)]
        return bytes(write(fields))
