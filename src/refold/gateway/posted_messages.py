"""Compacts a list of messages that a client posts to `/refold/compact`. Nothing of it is stored.

The messages are added as they are, without the automatic compactions of a conversation that grows, and then
compacted once. Messages that break a rule of their format are repaired as in a conversation. No store keeps
what a repair leaves out here, so the answer lists every repair.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from refold.config.sizes import MAX_TOKENS, MIN_WINDOW
from refold.config.tree import Amount, Window
from refold.core.assemble import assemble
from refold.core.fold import REASON as BROKEN
from refold.core.fold import violations_to_mend
from refold.engine import actions
from refold.engine.actions import Outcome
from refold.engine.conversation import Conversation, take_prompt
from refold.engine.state import State
from refold.engine.summary_authors import SummaryAuthor
from refold.model.errors import ConfigError, InvalidWindow, WireError
from refold.model.message import Message
from refold.text_work import run_text_work
from refold.wire.sdk import RequestFields, read_message, text_in

NOTHING_GAINED = "nothing was changed: a compaction would not make it smaller"
_FIELD = re.compile(r"field `([^`]{1,40})", re.ASCII)
_PLACE = re.compile(r" - at `\$\.([a-z_]{1,20})", re.ASCII)
_SIZES = {"window": MIN_WINDOW, "max_output": 1, "keep": 0}
"""The smallest value of each field that counts tokens."""


class PostedMessages(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to compact without storing them, and the settings to compact them with."""

    model: str
    messages: list[dict[str, Any]] = []
    input: list[dict[str, Any]] = []
    """The messages in the format "responses"."""
    format: Literal["chat", "responses", "anthropic"] = "chat"
    system: str | list[dict[str, Any]] = ""
    """The system prompt, in the formats that have a field for it."""
    tools: list[dict[str, Any]] = []
    preset: str = ""
    window: Window | None = None
    max_output: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    keep: Amount | None = None
    focus: str = ""

    @property
    def posted(self) -> list[dict[str, Any]]:
        return self.messages or self.input


class MessageRepair(Struct, frozen=True):
    """One repair of a posted message. `after` is 0 if all of it was left out."""

    index: int
    """The place in the posted list."""
    rule: str
    problem: str
    before: int
    after: int
    """Tokens."""


def read_posted(raw: bytes) -> PostedMessages:
    """
    Raises:
        ConfigError: the body is no JSON object with these fields; the error names the field.
    """
    try:
        return msgspec.json.decode(raw or b"{}", type=PostedMessages)
    except msgspec.DecodeError as error:
        raise _unreadable(str(error)) from None


def _unreadable(reason: str) -> ConfigError:
    """Name the field that msgspec complains about, without its value."""
    known = f"the fields are: {', '.join(PostedMessages.__struct_fields__)}"
    field, place = _FIELD.search(reason), _PLACE.search(reason)
    if field is not None:
        is_missing = "missing" in reason
        return ConfigError(
            f"{field[1]} is missing" if is_missing else f"there is no field {field[1]!r}", hint=known
        )
    if place is None:
        return ConfigError("the body is not a JSON object", hint=known)
    name = place[1]
    if name in _SIZES:
        hint = f"give a whole number of tokens, {_SIZES[name]:,} to {MAX_TOKENS:,}"
        return ConfigError(f"{name} is not a number of tokens in its range", hint=hint)
    if name == "format":
        return ConfigError("format is not a known one", hint="chat, responses or anthropic")
    return ConfigError(f"{name} is of another type", hint="see docs/gateway.md")


async def compact_posted(talk: Conversation, asked: PostedMessages, note: str) -> msgspec.Raw:
    """Add the messages to an empty conversation, compact it, and return the answer as JSON.

    Raises:
        WireError: a value is not a message of its format.
        DoesNotFit: the rest is still too large.
    """
    before = await _load(talk, asked.posted)
    with suppress(InvalidWindow):  # the messages are compacted even if no call can follow them
        await talk.compact(focus=asked.focus, keep=asked.keep)
    status, after = await talk.status(), talk.state
    size = before.frame.instructions + before.folded.whole

    def write() -> msgspec.Raw:
        repairs = _repairs(before, after, len(asked.posted) - before.size)
        answer: dict[str, object] = {"before": size, "after": status.tokens, "summary": status.summary}
        notes = [note] if note else []
        if repairs or status.tokens < size:
            window = assemble(after.frame.fixed, after.folded.shown.messages(), after.folded.lead)
            fields = RequestFields().fields(window)
        else:
            fields = {"input" if asked.format == "responses" else "messages": asked.posted}
            fields |= {"system": asked.system} if asked.system else {}
            answer |= {"after": size, "summary": SummaryAuthor()}
            notes.append(NOTHING_GAINED)
        answer |= {"repairs": repairs} if repairs else {}
        answer |= {"note": "; ".join(notes)} if notes else {}
        return msgspec.Raw(msgspec.json.encode({**fields, **answer}))

    return await run_text_work(after.text_size, write)


async def _load(talk: Conversation, posted: Sequence[dict[str, Any]]) -> State:
    """Add the messages without a compaction on the way, and return the state."""

    def load(state: State) -> Outcome:
        dialect, messages = state.frame.fixed.dialect, list[Message]()
        for at, value in enumerate(posted):
            try:
                messages.append(read_message(value, dialect))
            except WireError as error:
                place = f"{dialect.messages_key}[{at}]"
                raise WireError(error.message, place=place, hint=error.hint) from None
        state, added = take_prompt(state, messages)
        return actions.load(state, added)

    return (await talk.apply(load, text_size=text_in(posted))).state


def _repairs(before: State, after: State, offset: int) -> list[MessageRepair]:
    """List the repairs by the places of the messages in the posted list; `offset` messages of it went into the
    system prompt.
    """
    shown = {item.seq: item.tokens for item in after.folded.items.items}
    edits = {
        edit.seq: edit
        for one in after.receipts
        if one.reason == BROKEN
        for edit in one.edits
        if shown.get(edit.seq) != edit.before  # else it was left out of a request only, such as an open call
    }
    items, repairs = before.folded.items.items, list[MessageRepair]()
    for found in violations_to_mend(before.folded):
        if found.index is not None:
            item = items[found.index]
            left = edits[item.seq].after if item.seq in edits else item.tokens
            place = item.seq + offset
            repairs.append(MessageRepair(place, found.rule, found.message, item.tokens, left))
    named = {one.index for one in repairs}
    repairs += [
        MessageRepair(edit.seq + offset, "", BROKEN, edit.before, edit.after)
        for edit in edits.values()
        if edit.seq + offset not in named
    ]
    return sorted(repairs, key=lambda one: one.index)
