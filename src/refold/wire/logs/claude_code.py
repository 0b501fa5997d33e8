"""Claude Code logs: one record per line, linked to its parent record.

The order of the file is the conversation; the links are used only to find reverted prompts. Links alone
are not enough: results of parallel calls are siblings of which only one is continued, and some parents
were never written. So a record is skipped only for a reason: it belongs to a sub-agent, to the client
itself (a compaction's summary, an error shown as a reply), or to a prompt that the user replaced.

A reply is spread over lines, one block each, with one id; results may stand between them. Here it becomes
one message again, and so do the results of its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import ANTHROPIC
from refold.wire.json_codec import NULL, kind_of, read, read_content, write
from refold.wire.logs import AgentLog, LogEntry, read_records
from refold.wire.reply import decode_usage

AGENT = "claude-code"
_UNLINKED = frozenset({b'"summary"', b'"file-history-snapshot"', b'"file-history-delta"'})
"""Kinds of records that do not name their session."""
_OWN_AGENTS = ("acompact-", "aprompt_suggestion-")
"""Sub-agents that the client runs on the whole conversation for its own purposes."""
_SYNTHETIC = "<synthetic>"
"""The model name of replies that the client wrote itself."""


class _Message(Struct, gc=False):
    id: str | None = None
    model: str | None = None
    content: Raw = NULL
    usage: Raw = NULL


class _Attachment(Struct, gc=False):
    type: str | None = None
    prompt: Raw = NULL


class _Record(Struct, rename="camel"):
    type: str
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    timestamp: str | None = None
    is_sidechain: bool | None = False
    is_meta: bool | None = False
    is_compact_summary: bool | None = False
    is_api_error_message: bool | None = False
    message: Raw = NULL
    attachment: Raw = NULL

    @property
    def parent(self) -> str | None:
        return self.parent_uuid or self.logical_parent_uuid


class _Said(Struct, frozen=True):
    """The content of a record: a block of a reply, results, or the user's text."""

    record: _Record
    role: str
    message: _Message
    blocks: tuple[Raw, ...]
    holds_results: bool


_RECORD = Decoder(_Record)
_MESSAGE: Decoder[_Message | None] = Decoder(_Message | None)
_ATTACHMENT: Decoder[_Attachment | None] = Decoder(_Attachment | None)


def recognises(fields: Mapping[str, Raw]) -> bool:
    """True for a line of such a log."""
    return "type" in fields and ("sessionId" in fields or bytes(fields["type"]) in _UNLINKED)


def read_log(text: bytes) -> AgentLog:
    records = _without_copies(read_records(_RECORD, text))
    own = [record for record in records if not record.is_sidechain]
    said = _records_with_content(own)
    if not said:
        own = _of_agent(records)
        said = _records_with_content(own)
    gone = _reverted_records(own, said)
    kept = [one for one in said.values() if one.record.uuid not in gone]
    models = [one.message.model for one in kept if one.message.model]
    return AgentLog(AGENT, ANTHROPIC, _entries(kept), _name(own), models[-1] if models else "")


def _without_copies(records: Iterable[_Record]) -> list[_Record]:
    """The records without duplicates: a resumed session may hold its own beginning twice."""
    found: dict[str | int, _Record] = {}
    for at, record in enumerate(records):
        found.setdefault(record.uuid or at, record)
    return list(found.values())


def _of_agent(records: Sequence[_Record]) -> list[_Record]:
    """The records of a sub-agent's own log, in which every record is a side chain."""
    return [record for record in records if not (record.agent_id or "").startswith(_OWN_AGENTS)]


def _name(records: Sequence[_Record]) -> str:
    """The name of the session. A resumed session holds the messages before it under the older name, so the
    last one counts.
    """
    last = next((record for record in reversed(records) if record.session_id), None)
    if last is None:
        return ""
    return f"{last.session_id}/{last.agent_id}" if last.is_sidechain else last.session_id or ""


def _records_with_content(records: Iterable[_Record]) -> dict[str | int, _Said]:
    """The records that the model wrote or was sent, by their names."""
    found = ((record.uuid or at, _reading(record)) for at, record in enumerate(records))
    return {name: said for name, said in found if said is not None}


def _reading(record: _Record) -> _Said | None:
    message = _message_of(record)
    if message is None or message.model == _SYNTHETIC:
        return None
    content = read_content(message.content, "message.content")
    if isinstance(content, str):
        content = [write({"type": "text", "text": content})] if content else []
    if not content:
        return None
    holds_results = any(kind_of(block) == "tool_result" for block in content)
    role = "assistant" if record.type == "assistant" else "user"
    return _Said(record, role, message, tuple(content), holds_results)


def _message_of(record: _Record) -> _Message | None:
    """The message in a record. A prompt that was queued while the model worked is an attachment."""
    if record.is_compact_summary or record.is_api_error_message:
        return None
    if record.type in ("user", "assistant"):
        return read(_MESSAGE, record.message, "message")
    if record.type != "attachment":
        return None
    attached = read(_ATTACHMENT, record.attachment, "attachment")
    is_prompt = attached is not None and attached.type == "queued_command"
    return _Message(content=attached.prompt) if attached and is_prompt else None


def _reverted_records(records: Sequence[_Record], said: Mapping[str | int, _Said]) -> set[str]:
    """The prompts that the user replaced, and all records that followed from them."""
    retracted = _replaced_prompts(records, said)
    gone: set[str] = set()
    for record in records:
        if record.uuid and (record.uuid in retracted or record.parent in gone):
            gone.add(record.uuid)
    return gone


def _replaced_prompts(records: Sequence[_Record], said: Mapping[str | int, _Said]) -> set[str]:
    """Prompts that follow the same message as a later prompt."""
    known = {record.uuid: record for record in records if record.uuid}
    latest: dict[str, str] = {}
    found: set[str] = set()
    for record in known.values():
        if record.uuid is None or not _is_prompt(said.get(record.uuid)):
            continue
        before = _before(record, known, said)
        if before in latest:
            found.add(latest[before])
        if before:
            latest[before] = record.uuid
    return found


def _is_prompt(said: _Said | None) -> bool:
    return said is not None and said.record.type == "user" and not (said.record.is_meta or said.holds_results)


def _before(record: _Record, known: Mapping[str, _Record], said: Mapping[str | int, _Said]) -> str | None:
    """The message that a record follows; records without a message are skipped."""
    name, seen = record.parent, {record.uuid}
    while name and name in known and name not in said and name not in seen:
        seen.add(name)
        name = known[name].parent
    return name


class _Whole:
    """A message assembled from several records."""

    def __init__(self, first: _Said) -> None:
        self.first = self.last = first
        self.blocks = list(first.blocks)

    def take(self, more: _Said) -> None:
        self.last = more
        self.blocks += [block for block in more.blocks if block not in self.blocks]

    def entry(self) -> LogEntry:
        usage = decode_usage(self.last.message.usage, ANTHROPIC) if self.first.role == "assistant" else None
        return LogEntry({"role": self.first.role, "content": self.blocks}, self.last.record.timestamp, usage)


def _entries(kept: Iterable[_Said]) -> tuple[LogEntry, ...]:
    wholes: list[_Whole] = []
    replies: dict[str, _Whole] = {}
    for said in kept:
        name = said.message.id if said.role == "assistant" else None
        whole = replies.get(name) if name else None
        if said.holds_results and wholes and wholes[-1].first.holds_results:
            whole = wholes[-1]
        if whole is not None:
            whole.take(said)
            continue
        wholes.append(_Whole(said))
        if name:
            replies[name] = wholes[-1]
    return tuple(whole.entry() for whole in wholes)
