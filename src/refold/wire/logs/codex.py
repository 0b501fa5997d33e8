"""Codex logs: a rollout file, one record per line, each with a kind and a payload.

The items of the Responses format are in it as they were sent and received; all other records describe
them. Events repeat the items' content, except for two: the tokens of a call, and the user's return to an
earlier turn. After a compaction the file continues and keeps the earlier items, so the compaction's record
is only a mark.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw, Struct, structs
from msgspec.json import Decoder

from refold.model.dialect import RESPONSES
from refold.model.tokens import Usage
from refold.wire.json_codec import FIELDS, NULL, read
from refold.wire.logs import AgentLog, LogEntry, read_records

AGENT = "codex"
_KINDS = frozenset({b'"session_meta"', b'"response_item"', b'"event_msg"', b'"turn_context"', b'"compacted"'})
_MARKS = frozenset(
    {"additional_tools", "compaction", "compaction_summary", "compaction_trigger", "context_compaction"}
    | {"ghost_snapshot", "other"}
)
"""Items that are no messages: compactions, snapshots of files, lists of tools."""


class _Record(Struct, gc=False):
    type: str
    timestamp: str | None = None
    payload: Raw = NULL


class _Item(Struct, gc=False):
    type: str | None = None
    role: str | None = None

    @property
    def is_reply(self) -> bool:
        kind = self.type or ""
        return self.role == "assistant" or kind == "reasoning" or kind.endswith("_call")


class _Instructions(Struct, gc=False):
    text: str | None = None


class _Meta(Struct, gc=False):
    id: str | None = None
    base_instructions: _Instructions | None = None


class _Turn(Struct, gc=False):
    model: str | None = None


class _Tokens(Struct, gc=False):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0

    def usage(self) -> Usage:
        """The usage of a call. The reported input includes the tokens read from the cache."""
        read_again = min(self.cached_input_tokens, self.input_tokens)
        fresh = self.input_tokens - read_again
        return Usage(fresh, read_again, 0, self.output_tokens, self.reasoning_output_tokens)


class _Info(Struct, gc=False):
    last_token_usage: _Tokens | None = None


class _Event(Struct, gc=False):
    type: str | None = None
    info: _Info | None = None
    num_turns: int = 0
    item: _Item | None = None

    @property
    def is_prompt(self) -> bool:
        """True for an event of a user message. Older and newer files record it differently."""
        item = self.item.type if self.item else ""
        return self.type == "user_message" or (self.type == "item_completed" and item == "UserMessage")


_RECORD = Decoder(_Record)
_ITEM = Decoder(_Item)
_META = Decoder(_Meta)
_TURN = Decoder(_Turn)
_EVENT = Decoder(_Event)


def recognises(fields: Mapping[str, Raw]) -> bool:
    """True for a line of such a log."""
    return "payload" in fields and bytes(fields.get("type", NULL)) in _KINDS


def read_log(text: bytes) -> AgentLog:
    rollout = _Rollout()
    for record in read_records(_RECORD, text):
        rollout.take(record)
    entries = tuple(rollout.entries)
    return AgentLog(AGENT, RESPONSES, entries, rollout.id, rollout.model, rollout.instructions)


class _Rollout:
    """State while the lines of the file are read."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.id = self.model = self.instructions = ""
        self._turns: list[int] = []
        """Index at which each turn begins."""
        self._reply: int | None = None
        """The last item that the model wrote: the next report of tokens belongs to its call."""

    def take(self, record: _Record) -> None:
        if record.type == "response_item":
            self._take_item(record)
        elif record.type == "event_msg":
            self._take_event(read(_EVENT, record.payload, "payload"))
        elif record.type == "turn_context":
            self.model = read(_TURN, record.payload, "payload").model or self.model
        elif record.type == "session_meta" and not self.id:
            meta = read(_META, record.payload, "payload")
            self.id = meta.id or ""
            self.instructions = (meta.base_instructions and meta.base_instructions.text) or ""

    def _take_item(self, record: _Record) -> None:
        item = read(_ITEM, record.payload, "payload")
        if item.type in _MARKS:
            return
        if item.is_reply:
            self._reply = len(self.entries)
        fields = read(FIELDS, record.payload, "payload")
        self.entries.append(LogEntry({**fields}, record.timestamp))

    def _take_event(self, event: _Event) -> None:
        if event.is_prompt:
            self._begin_turn()
        elif event.type == "thread_rolled_back" and event.num_turns > 0:
            self._roll_back(event.num_turns)
        elif event.type == "token_count" and event.info and event.info.last_token_usage:
            self._report(event.info.last_token_usage.usage())

    def _begin_turn(self) -> None:
        """Start a turn. The event of a prompt comes just before its item is written, or just after."""
        end = len(self.entries)
        is_there = end > 0 and self.entries[-1].item.get("role") == Raw(b'"user"')
        start = end - 1 if is_there else end
        if not self._turns or start > self._turns[-1]:
            self._turns.append(start)

    def _roll_back(self, turns: int) -> None:
        dropped = self._turns[-turns:]
        del self._turns[-turns:]
        if dropped:
            del self.entries[dropped[0] :]
        self._reply = None

    def _report(self, usage: Usage) -> None:
        if self._reply is not None and usage.prompt:
            self.entries[self._reply] = structs.replace(self.entries[self._reply], usage=usage)
