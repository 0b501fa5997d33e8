"""Writes the body that is sent in place of the client's: the same fields, with the messages of the window.

If nothing changed, the client's own bytes are sent. Otherwise every unchanged message is sent as the client
wrote it in this request, with its thinking and its cache marks, and only changed messages are encoded anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import DecodeError, Raw, Struct, structs
from msgspec.json import Decoder

from refold.config import Settings
from refold.config.tree import EFFORTS
from refold.core.budget import OutputRoom
from refold.core.prompt_cache import unmarked, within_limit
from refold.core.stage import handle_of
from refold.gateway.conversations import PreparedWindow, TakenRequest
from refold.gateway.request import IncomingRequest, output_in
from refold.model.errors import BudgetError, DoesNotFit, WireError
from refold.model.message import Message, Reasoning
from refold.model.window import Breakpoint, Window
from refold.wire.json_codec import FIELDS, NULL, is_null, is_object, read, word, write
from refold.wire.request import OUTPUT_FIELDS, Request, decode_message, encode_window, with_own_json
from refold.wire.sse import parse_event

MARK = b'"cache_control"'


def body_of(incoming: IncomingRequest, hosted: TakenRequest, made: PreparedWindow) -> bytes:
    """The body to send for a request.

    Raises:
        WireError: a message cannot be written in this format.
    """
    window = made.window
    if made.is_as_sent or window is None:
        return incoming.body
    is_marked = MARK in incoming.body
    if is_marked:
        window = made.bare  # the client marks its own cache prefixes: leave them to it
        most = incoming.dialect.max_breakpoints
        if window is None or (made.is_plain and not incoming.body.count(MARK) > most > 0):
            return incoming.body
    window = within_limit(_as_sent(incoming, hosted, made, window, is_marked=is_marked))
    return encode_window(_request(incoming, window), window)


def _as_sent(
    incoming: IncomingRequest, hosted: TakenRequest, made: PreparedWindow, window: Window, *, is_marked: bool
) -> Window:
    """The window with the client's own encoding of every unchanged message. Changed messages get the cache
    marks of this request, and not those that they had when they were new.
    """
    messages, marks = list[Message](), list(window.breakpoints)
    sent, history, offset = made.sent, hosted.line.history, hosted.line.offset
    known, rewritten = hosted.live.rewritten, dict[int, tuple[Message, Message]]()
    for index, (message, shown) in enumerate(zip(window.messages, sent.shown, strict=False)):
        number = sent.number(index)
        if shown.message is message and sent.is_original(message, number):
            messages.append(_client_encoding(incoming, message, history.item(number + offset)))
            continue
        pair = known.get(id(message))
        if pair is None:
            own = with_own_json(unmarked(message), incoming.dialect, sent.held_original(number))
            pair = message, own
        rewritten[id(message)] = pair
        messages.append(pair[1])
        if is_marked and MARK in bytes(history.item(number + offset)):
            marks.append(Breakpoint(window.place(index), len(message.parts) - 1, "5m", "the client's own"))
    hosted.live.rewritten = rewritten
    return structs.replace(window, messages=tuple(messages), breakpoints=tuple(marks))


def _client_encoding(incoming: IncomingRequest, message: Message, raw: Raw) -> Message:
    """A message as the client encoded it in this request."""
    if message.origin is not None and message.origin.raw == raw:
        return message
    return decode_message(raw, incoming.dialect)


def _request(incoming: IncomingRequest, window: Window) -> Request:
    """The client's request with the fields that `encode_window` needs."""
    return Request(
        incoming.dialect,
        (),
        window.fixed.system,
        window.fixed.tools,
        fields=incoming.fields,
        body=incoming.body,
    )


# Added fields
#
# The operator's settings can add usage reports in streams and a thinking budget. A field that the client
# sends itself is never changed. Every addition is named in a response header, and a stream event that exists
# only because of it does not reach the client.

USAGE, THINKING = "stream_options", "thinking"
_ITEMS = Decoder(list[Raw])
_THINKS = ("thinking", "reasoning", "reasoning_effort")
"""Fields with which clients control thinking, in all formats."""


class Additions(Struct, frozen=True):
    """The fields to add to a request, by name, and the reason for which thinking is not among them."""

    fields: dict[str, Raw] = {}
    without_thinking: str = ""
    """Why the thinking that the settings ask for was not added; empty if it was, or if they ask for none."""


def read_by_additions(incoming: IncomingRequest, settings: Settings) -> int:
    """Bytes that `additions_of` reads: the options of a stream, and all messages if it has to decide about thinking."""
    decides = settings.compaction.thinking is not None and not _says_thinking(incoming)
    return len(incoming.body) if decides else len(bytes(incoming.fields.get(USAGE, NULL)))


def _says_thinking(incoming: IncomingRequest) -> bool:
    """True if the client itself controls thinking."""
    return any(not is_null(incoming.fields.get(name, NULL)) for name in _THINKS)


def additions_of(incoming: IncomingRequest, settings: Settings) -> Additions:
    """The fields to add to a request."""
    wanted, found, problem = settings.compaction, dict[str, Raw](), ""
    if wanted.include_usage and incoming.is_stream and incoming.dialect.name == "chat":
        found |= _with_usage(incoming)
    if wanted.thinking is not None and not _says_thinking(incoming):
        problem = _thinking_problem(incoming, wanted.thinking)
        found |= {} if problem else _thinking(incoming, wanted.thinking)
    return Additions(found, problem)


def _thinking_problem(incoming: IncomingRequest, tokens: int) -> str:
    """Why the provider would refuse this request with thinking; empty if it would not."""
    if incoming.dialect.name != "anthropic":
        return ""
    room = incoming.max_output or 0
    if tokens >= room:
        return f"max_tokens {room} leaves no room beside {tokens}"
    try:
        items = _ITEMS.decode(incoming.array or b"[]")
        newest_first = (decode_message(raw, incoming.dialect) for raw in reversed(items))
        is_unthought = _is_in_unthought_loop(newest_first)
    except (DecodeError, WireError):
        return ""  # the provider judges the messages
    return "a tool loop goes on that began without it" if is_unthought else ""


def _is_in_unthought_loop(newest_first: Iterable[Message]) -> bool:
    """True if the messages end in a tool loop whose first assistant message does not begin with thinking.
    Anthropic refuses thinking there.
    """
    first: Message | None = None
    for message in newest_first:
        if message.role == "assistant":
            first = message
        elif message.role == "user" and not message.results:
            break
    return first is not None and not (first.parts and isinstance(first.parts[0], Reasoning))


def without_thoughts(incoming: IncomingRequest, made: PreparedWindow) -> dict[str, Raw]:
    """The field that turns thinking off, if the window has lost the thoughts of the tool loop in progress."""
    if made.window is None or made.is_plain or not thinking_budget(incoming.fields):
        return {}
    is_unthought = _is_in_unthought_loop(reversed(made.window.messages))
    return {THINKING: write({"type": "disabled"})} if is_unthought else {}


def _with_usage(incoming: IncomingRequest) -> dict[str, Raw]:
    raw = incoming.fields.get(USAGE, NULL)
    options = read(FIELDS, raw) if is_object(raw) else {}
    if "include_usage" in options or not (is_null(raw) or is_object(raw)):
        return {}
    return {USAGE: write({**options, "include_usage": True})}


def _thinking(incoming: IncomingRequest, tokens: int) -> dict[str, Raw]:
    """The thinking field of the format; a format with named levels gets the nearest one."""
    if incoming.dialect.name == "anthropic":
        return {THINKING: write({"type": "enabled", "budget_tokens": tokens})}
    effort = min(EFFORTS, key=lambda name: abs(EFFORTS[name] - tokens))
    if incoming.dialect.name == "responses":
        return {"reasoning": write({"effort": effort})}
    return {"reasoning_effort": write(effort)}


def with_fields(body: bytes, added: dict[str, Raw]) -> bytes:
    """A body with fields added or replaced."""
    return msgspec.json.encode({**FIELDS.decode(body), **added}) if added else body


def is_only_usage(event: bytes) -> bool:
    """True if an event of a Chat stream holds the usage and no choices. A client that did not ask for it may
    fail on it.
    """
    if b'"usage"' not in event:
        return False
    parsed = parse_event(event)
    if parsed is None:
        return False
    try:
        fields = read(FIELDS, parsed.data)
    except WireError:
        return False
    is_empty = bytes(fields.get("choices", NULL)).replace(b" ", b"") == b"[]"
    return is_empty and not is_null(fields.get("usage", NULL))


# Output limit
#
# A lower limit is written into the same fields that the client used. A client that states no limit gets no
# field.

_log = logging.getLogger("refold.gateway")
_NUMBER = Decoder(int)


def thinking_budget(fields: Mapping[str, Raw]) -> int:
    """The thinking budget of a request in Anthropic's format, in tokens; 0 if it is missing or thinking is
    disabled.
    """
    raw = fields.get("thinking", NULL)
    if not is_object(raw):
        return 0
    try:
        thinking = FIELDS.decode(raw)
        is_off = word(thinking.get("type", NULL)) == "disabled"
        return 0 if is_off else max(0, _NUMBER.decode(thinking.get("budget_tokens", NULL)))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def lowered_fields(incoming: IncomingRequest, made: PreparedWindow) -> dict[str, Raw]:
    """The fields of a request that ask for more output than its window allows, with the allowed output."""
    output = made.window.output if made.window else None
    if output is None:
        return {}
    stated = {name: output_in(incoming.fields, name) for name in OUTPUT_FIELDS}
    return {name: write(output) for name, count in stated.items() if count is not None and count > output}


def output_header(incoming: IncomingRequest, made: PreparedWindow) -> str:
    """The original and the lowered output limit, for a header."""
    output = made.window.output if made.window else None
    return f"{incoming.max_output}->{output}"


def cut_unread(made: PreparedWindow) -> str:
    """The messages after the newest reply that were cut, because they alone did not fit, for a header: `#m8 5100->1200`."""
    sent, cut = made.sent, list[str]()
    index = len(sent.shown) if made.window else 0
    while index > 0 and (entry := sent.shown[index - 1]).message.role != "assistant":
        index -= 1
        number = sent.number(index)
        whole = sent.original(number) if sent.origin <= number < sent.size else None
        if whole is not None and entry.tokens < whole.tokens:
            cut.append(f"{handle_of(number)} {whole.tokens}->{entry.tokens}")
    return ", ".join(reversed(cut))


def room_to_warn_of(hosted: TakenRequest) -> OutputRoom | None:
    """The room that the first request of a branch leaves for messages, if it is small; also logs a warning
    for the operator.
    """
    room = hosted.live.conversation.state.tight_room if hosted.is_first else None
    if room is not None:
        _log.warning("%s", room.warning)
    return room


def room_header(room: OutputRoom) -> str:
    """The room for messages as a calculation, for a header."""
    rest = room.window - room.instructions - room.asked
    most = f", at most {room.left} by the model's input of {room.max_input}" if room.left < rest else ""
    return f"window {room.window} - instructions {room.instructions} - output {room.asked} = {rest} for messages{most}"


def check_fits(hosted: TakenRequest) -> None:
    """Refuse a request that neither fits after compaction nor without it. Not refused, because the provider
    must decide: requests with a learned or assumed window, requests over a configured limit but within the model's
    window, and requests with compactions made by a provider, whose size is unknown.

    Raises:
        DoesNotFit: its hint shows how the window is divided.
    """
    problem, state = hosted.made.problem, hosted.live.conversation.state
    if not isinstance(problem, DoesNotFit | BudgetError) or hosted.compactions:
        return
    room, messages = state.room, hosted.made.sent.whole
    fits = messages <= room.left
    if fits or state.frame.budget.source in ("learned", "default"):
        return
    raise DoesNotFit(problem.message, hint=problem.hint)
