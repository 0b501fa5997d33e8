"""pi logs: a header, then one entry per line, each with its parent entry.

The entries are a tree, and the conversation is the path from its root to the last entry. Entries on that
path that are no messages (changes of the model, labels, compactions) are skipped. Texts that pi sends to
the model in the user's name (a command the user ran, a branch that was left) are user messages here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import CHAT
from refold.model.tokens import Usage
from refold.wire.json_codec import NULL, Fields, Json, is_null, read, read_content, text_of
from refold.wire.logs import AgentLog, LogEntry, read_records

AGENT = "pi"
_UNSENT = ("aborted", "error")
"""Stop reasons of replies that pi does not send again."""


class _Tokens(Struct, gc=False, rename="camel"):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class _Message(Struct, rename="camel"):
    role: str
    content: Raw = NULL
    model: str | None = None
    stop_reason: str | None = None
    usage: _Tokens | None = None
    tool_call_id: str | None = None
    command: str | None = None
    output: str | None = None
    exclude_from_context: bool | None = None


class _Record(Struct, rename="camel"):
    type: str
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    message: _Message | None = None
    content: Raw = NULL
    summary: str | None = None


class _Block(Struct):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Raw = Raw(b"{}")
    data: str | None = None
    mime_type: str | None = None

    def __post_init__(self) -> None:
        self.text, self.thinking = self.text or "", self.thinking or ""


_RECORD = Decoder(_Record)
_BLOCK = Decoder(_Block)


def recognises(fields: Mapping[str, Raw]) -> bool:
    """True for a line of such a log."""
    return bytes(fields.get("type", NULL)) == b'"session"' and "cwd" in fields


def read_log(text: bytes) -> AgentLog:
    header, *records = read_records(_RECORD, text)
    way = _without_unsent(_path_to_last(records))
    models = [record.message.model for record in way if record.message and record.message.model]
    entries = tuple(entry for record in way if (entry := _entry(record)) is not None)
    return AgentLog(AGENT, CHAT, entries, header.id or "", models[-1] if models else "")


def _path_to_last(records: Sequence[_Record]) -> list[_Record]:
    """The path from the root to the last entry. The first version of the format had no tree."""
    known = {record.id: record for record in records if record.id}
    if not known:
        return list(records)
    way: dict[str, _Record] = {}
    name: str | None = next(reversed(known))
    while name in known and name not in way:
        way[name] = known[name]
        name = known[name].parent_id
    return list(way.values())[::-1]


def _without_unsent(way: Sequence[_Record]) -> list[_Record]:
    """The records that pi sends again: without failed replies and without the results of their calls."""
    unsent = [record.message for record in way if record.message and _is_unsent(record)]
    calls = {block.id for message in unsent for block in _blocks(message.content) if block.id}
    kept = (record for record in way if not _is_unsent(record))
    return [record for record in kept if not (record.message and record.message.tool_call_id in calls)]


def _is_unsent(record: _Record) -> bool:
    message = record.message
    return message is not None and (message.stop_reason in _UNSENT or message.exclude_from_context is True)


def _entry(record: _Record) -> LogEntry | None:
    if record.type == "custom_message":
        return LogEntry(_user(record.content), record.timestamp)
    if record.type == "branch_summary" and record.summary:
        return LogEntry({"role": "user", "content": record.summary}, record.timestamp)
    if record.type != "message" or record.message is None:
        return None
    item = _item(record.message)
    return LogEntry(item, record.timestamp, _usage(record.message)) if item else None


def _item(message: _Message) -> Fields | None:
    match message.role:
        case "assistant":
            return _assistant(_blocks(message.content))
        case "toolResult":
            return {
                "role": "tool",
                "tool_call_id": message.tool_call_id,
                "content": _result_text(message.content),
            }
        case "bashExecution":
            return {"role": "user", "content": f"$ {message.command or ''}\n{message.output or ''}"}
        case "branchSummary" | "compactionSummary":
            return None
        case _:
            return _user(message.content)


def _assistant(blocks: Sequence[_Block]) -> Fields | None:
    item: Fields = {"role": "assistant", "content": _joined(block.text for block in blocks)}
    thoughts = _joined(block.thinking for block in blocks)
    calls = [_call(block) for block in blocks if block.type == "toolCall"]
    if thoughts:
        item["reasoning_content"] = thoughts
    if calls:
        item["tool_calls"] = calls
    return item if item["content"] or calls else None


def _call(block: _Block) -> Json:
    function: Json = {"name": block.name, "arguments": text_of(block.arguments)}
    return {"id": block.id, "type": "function", "function": function}


def _joined(texts: Iterable[str | None]) -> str:
    return "\n".join(filter(None, texts))


def _result_text(content: Raw) -> str:
    """A result as text. Images in it become a word, because results of this format cannot hold images."""
    return _joined(block.text or f"[{block.type}]" for block in _blocks(content))


def _user(content: Raw) -> Fields:
    return {"role": "user", "content": [_block(block) for block in _blocks(content)]}


def _block(block: _Block) -> Json:
    if block.type == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
    return {"type": "text", "text": block.text}


def _blocks(content: Raw) -> list[_Block]:
    if is_null(content):
        return []
    found = read_content(content, "message.content")
    if isinstance(found, str):
        return [_Block("text", found)]
    return [read(_BLOCK, raw, "message.content") for raw in found or ()]


def _usage(message: _Message) -> Usage | None:
    found = message.usage
    if message.role != "assistant" or found is None:
        return None
    usage = Usage(found.input, found.cache_read, found.cache_write, found.output)
    return usage if usage.prompt else None
