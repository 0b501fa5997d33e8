"""The rules that a window must satisfy before it is sent.

Verification is incremental. `step` takes the state so far and one message, and returns the next state with
the rules that this message breaks, so a conversation that grew by one message is verified by reading one
message. `finish` adds the rules about the end, `verify_fit` those about size.

The state has two halves, so that storing it for every message is cheap: `Progress` is small and immutable;
`Calls`, the table of tool calls, exists once per sequence of messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct, structs

from refold.model.dialect import Dialect
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    holds_compaction,
)
from refold.model.window import FixedFields, Ttl, Violation, Window

# Predicates over messages and parts

_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MARK = b'"cache_control"'

_MEDIA = frozenset((Image, File))
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def is_empty(message: Message) -> bool:
    """True if the message has no content. White space is no content; reasoning is."""
    return all(map(is_blank, message.parts))


def is_blank(part: Part) -> bool:
    return type(part) is Text and (not part.text or part.text.isspace())


def is_only_reasoning(message: Message) -> bool:
    parts = message.parts
    return bool(parts) and all(type(part) is Reasoning for part in parts)


def is_directive(message: Message) -> bool:
    """True for a system or developer message without text, which only sets an option at its provider."""
    return message.role in ("system", "developer") and is_opaque(message)


def is_instruction(message: Message) -> bool:
    """True for a system or developer message with text."""
    return message.role in ("system", "developer") and not is_directive(message)


def is_opaque(message: Message) -> bool:
    return bool(message.parts) and all(type(part) is Opaque for part in message.parts)


def takes_system(message: Message) -> bool:
    """True if a system message may follow this one, in dialects with a rule for that."""
    if message.role in ("user", "tool"):
        return True
    last = message.parts[-1] if message.role == "assistant" and message.parts else None
    return type(last) is Opaque and last.kind.endswith("tool_result")


def broken_arguments(call: ToolCall, *, as_object: bool) -> bool:
    """True if a provider would refuse these arguments.

    Custom tools take plain text, so any text is valid for them. Every provider reads missing arguments as
    an empty object.
    """
    if call.kind != "function" or not call.arguments.strip():
        return False
    try:
        (_OBJECT if as_object else _ANYTHING).decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return as_object or not _is_lenient_json(call.arguments)
    return False


def _is_lenient_json(text: str) -> bool:
    """True if it is JSON except for an escaped half of a surrogate pair, which models write and providers accept
    in arguments that are text.
    """
    if "\\u" not in text:
        return False
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    """Refuse `NaN` and `Infinity`, which `json` reads although they are not JSON."""
    raise ValueError(name)


def is_call_id(call_id: str, dialect: Dialect) -> bool:
    if dialect.max_call_id and len(call_id) > dialect.max_call_id:
        return False
    return not dialect.plain_call_ids or _ID_CHARACTERS.issuperset(call_id)


def plain_call_id(call_id: str, dialect: Dialect) -> str:
    """The id in a form that the dialect accepts."""
    if dialect.plain_call_ids:
        call_id = "".join(sign if sign in _ID_CHARACTERS else "_" for sign in call_id)
    return call_id[: dialect.max_call_id] if dialect.max_call_id else call_id


def misplaced_parts(message: Message, dialect: Dialect) -> list[tuple[str, str]]:
    """The parts that the dialect does not allow at their position, each with its legal place."""
    found: list[tuple[str, str]] = []
    role, seen_other = message.role, False
    for part in message.parts:
        kind = type(part)
        if kind is ToolResult:
            if role != "tool":
                found.append(("a tool result", "in a tool message"))
            elif seen_other:
                found.append(("a tool result", "before the text of its message"))
        else:
            seen_other = True
            if (kind is ToolCall or kind is Reasoning) and role != "assistant":
                found.append(("a tool call or thinking", "in an assistant message"))
    if role == "tool" and message.parts and type(message.parts[0]) is not ToolResult and not message.results:
        found.append(("text without a tool result", "in a user message"))
    if len(message.parts) > 1:
        found += _crowded(message, dialect)
    if role == "tool" and not dialect.media_in_results and any(map(_has_media, message.parts)):
        found.append(("media", "in a user message"))
    return found


def _crowded(message: Message, dialect: Dialect) -> Iterator[tuple[str, str]]:
    if dialect.spreads_calls and len(split_items(message.parts)) > 1:
        yield "each call, result and thought", "in an item of its own"
    elif message.role == "tool" and not dialect.joint_results:
        yield "each result", "in a message of its own"


def split_items(parts: Iterable[Part]) -> list[tuple[Part, ...]]:
    """The parts of a reply for a format with one kind per item: text and media together, all others alone."""
    items: list[tuple[Part, ...]] = []
    for part in parts:
        joins = isinstance(part, Text | Image | File)
        if joins and items and isinstance(items[-1][-1], Text | Image | File):
            items[-1] = (*items[-1], part)
        else:
            items.append((part,))
    return items


def _has_media(part: Part) -> bool:
    return type(part) is ToolResult and not _MEDIA.isdisjoint(map(type, part.parts))


def breakpoints_of(part: Part) -> list[Ttl]:
    """The cache breakpoints that the client put on a block, including those inside a tool result."""
    if part.raw is None or _MARK not in bytes(part.raw):
        return []
    inner = (mark for held in part.parts for mark in breakpoints_of(held)) if type(part) is ToolResult else ()
    return [*inner, *breakpoint_in(part.raw)]


def breakpoint_in(raw: Raw) -> tuple[Ttl, ...]:
    """The breakpoint on a block or a tool definition itself, if it has one."""
    if _MARK not in bytes(raw):
        return ()
    mark = _fields_of(raw).get("cache_control", b"null")
    if bytes(mark) == b"null":
        return ()
    return ("1h",) if bytes(_fields_of(mark).get("ttl", b"")) == b'"1h"' else ("5m",)


def _fields_of(raw: bytes | Raw) -> dict[str, Raw]:
    """The fields of an object, as they are: one may be a number that Python cannot hold, such as 1e400."""
    try:
        return _OBJECT.decode(raw)
    except msgspec.ValidationError:  # it is no object
        return {}


def count_breakpoints(parts: Iterable[Part]) -> int:
    """Number of cache breakpoints that the client put on these blocks and inside them."""
    return sum(len(breakpoints_of(part)) for part in parts if part.raw is not None)


def count_fixed_breakpoints(fixed: FixedFields) -> int:
    """Number of cache breakpoints that the client put on tools and system prompt, and the automatic one at the end."""
    if not fixed.dialect.max_breakpoints:
        return 0
    tools = sum(len(breakpoint_in(tool.raw)) for tool in fixed.tools if tool.raw is not None)
    prompt = sum(count_breakpoints(message.parts) for message in fixed.system)
    return tools + prompt + (fixed.automatic is not None)


def differs_in_results(one: Message, other: Message) -> bool:
    """True if two messages differ at most in what their tool results say: `step` finds the same in both."""
    if one.role != other.role or len(one.parts) != len(other.parts):
        return False
    return all(map(_is_same_answer, one.parts, other.parts))


def _is_same_answer(part: Part, twin: Part) -> bool:
    return part is twin or (
        type(part) is ToolResult
        and type(twin) is ToolResult
        and part.call_id == twin.call_id
        and _has_media(part) == _has_media(twin)
        and breakpoints_of(part) == breakpoints_of(twin)
    )


class Progress(Struct, frozen=True, gc=False):
    """Verification state before the next message, except for the table of calls."""

    size: int = 0
    open_calls: int = 0
    """Number of calls without a result."""
    batch: int = 0
    """Index of the first message of the latest reply."""
    last_user: int = -1
    last: Role | None = None
    """Role of the last message. Messages that only set an option are skipped."""
    is_answered: bool = False
    """True once the latest reply has a result."""
    ends_opaque: bool = False
    """True if the last message ends with a part of the provider's own, which may be continued."""
    pending_reasoning: bool = False
    """True if the last message is reasoning only and needs the rest of its reply."""
    breakpoints: int = 0
    takes_system: bool = False
    """True if a system message may follow, in dialects with a rule for that."""
    compaction: int = -1
    """Index of the newest message with a provider's own compaction; -1 if there is none."""


START = Progress()


class Calls:
    """The call ids with the index of their first use, the ids that wait for a result, and those answered
    since the latest reply.
    """

    __slots__ = ("answered", "continues", "count", "first_seen", "late", "waiting")

    def __init__(self, *, continues: bool = False) -> None:
        self.continues = continues
        self.first_seen: dict[str, int] = {}
        self.waiting: dict[str, list[int]] = {}
        self.count = 0
        self.answered: set[str] = set()
        self.late: list[tuple[int, int]] = []
        """Call and result indices of results that came after another user message, which some formats allow."""

    def wait(self, call_id: str, index: int) -> None:
        self.first_seen.setdefault(call_id, index)
        self.waiting.setdefault(call_id, []).append(index)
        self.count += 1

    def give_up(self) -> None:
        """Forget the waiting calls: no result can come for them any more."""
        self.waiting, self.count = {}, 0

    def open(self) -> list[tuple[str, int]]:
        return [(call_id, index) for call_id, indices in self.waiting.items() for index in indices]

    def answer(self, call_id: str) -> int | None:
        """The index of the call that a result with this id answers; None if no call waits for it."""
        indices = self.waiting.get(call_id)
        if not indices:
            return None
        index = indices.pop(0)
        self.count -= 1
        if not indices:
            del self.waiting[call_id]
        self.answered.add(call_id)
        return index


def step(
    progress: Progress, calls: Calls, message: Message, dialect: Dialect
) -> tuple[Progress, tuple[Violation, ...]]:
    """Verify one more message. Updates `calls` in place."""
    found: list[Violation] = []
    index, role = progress.size, message.role
    if dialect.system_follows_user and is_directive(message):
        return structs.replace(progress, size=index + 1), ()
    _check_shape(progress, message, dialect, found)
    batch, is_answered = progress.batch, progress.is_answered
    if role == "tool":
        _answer(progress, calls, message, dialect, found)
        is_answered = True
    else:
        if calls.waiting and dialect.results_at_once:
            found.extend(_unanswered(calls.open()))
            calls.give_up()
        if role == "assistant":
            if not (dialect.spreads_calls and progress.last == "assistant"):
                batch, is_answered, calls.answered = index, False, set()
            _call(calls, message, index, dialect, found)
    state = Progress(
        index + 1,
        calls.count,
        batch,
        index if role == "user" else progress.last_user,
        role,
        is_answered,
        bool(message.parts) and type(message.parts[-1]) is Opaque,
        dialect.spreads_calls and role == "assistant" and is_only_reasoning(message),
        progress.breakpoints + (count_breakpoints(message.parts) if dialect.max_breakpoints else 0),
        dialect.system_follows_user and takes_system(message),
        index if holds_compaction(message) else progress.compaction,
    )
    return state, tuple(found)


def finish(
    progress: Progress,
    open_calls: Iterable[tuple[str, int]],
    dialect: Dialect,
    *,
    as_request: bool,
    fixed_breakpoints: int = 0,
) -> tuple[Violation, ...]:
    """The rules about the end. A transcript may stop anywhere; a request must be complete."""
    found: list[Violation] = []
    marks = progress.breakpoints + fixed_breakpoints
    if marks > dialect.max_breakpoints > 0:
        text = f"{marks} cache breakpoints; {dialect.max_breakpoints} are allowed"
        found.append(Violation("too_many_breakpoints", None, text, "remove some cache_control marks"))
    if not as_request:
        return tuple(found)
    if progress.size == 0:
        found.append(Violation("no_messages", None, "there is nothing to answer", "add a user message"))
    found.extend(_unanswered(open_calls))
    if progress.pending_reasoning:
        found.append(_dangling(progress.size - 1))
    elif dialect.refuses_prefill and _is_prefill(progress):
        text = "the last message is the assistant's own"
        found.append(Violation("ends_with_assistant", progress.size - 1, text, "end with a user message"))
    return tuple(found)


def verify(
    messages: Iterable[Message],
    dialect: Dialect,
    *,
    as_request: bool = False,
    continues: bool = False,
    fixed_breakpoints: int = 0,
) -> tuple[Violation, ...]:
    """All violations of a list of messages.

    With `continues`, the provider holds earlier messages, so a result may answer a call outside of the
    list.
    """
    progress, calls = START, Calls(continues=continues)
    found: list[Violation] = []
    for message in messages:
        progress, broken = step(progress, calls, message, dialect)
        found.extend(broken)
    ending = finish(
        progress, calls.open(), dialect, as_request=as_request, fixed_breakpoints=fixed_breakpoints
    )
    return (*found, *ending)


def is_refused(found: Violation, dialect: Dialect) -> bool:
    """False for a violation that the provider of the format accepts, although some servers of the format refuse it:
    an empty message, and arguments that are no JSON, in formats in which arguments are text.
    """
    if found.rule == "empty_message":
        return dialect.refuses_blank_text
    return found.rule != "bad_arguments" or dialect.object_arguments


def verify_window(
    window: Window, *, as_request: bool = True, continues: bool = False
) -> tuple[Violation, ...]:
    """All violations of a window: its summaries and messages, and the cache breakpoints of its system prompt and tools.

    The client's own breakpoints and those of the window count together.
    """
    return verify(
        window.sent,
        window.fixed.dialect,
        as_request=as_request,
        continues=continues,
        fixed_breakpoints=count_fixed_breakpoints(window.fixed) + len(window.breakpoints),
    )


def verify_fit(*, tokens: int, limit: int, size_bytes: int = 0, max_bytes: int = 0) -> tuple[Violation, ...]:
    """The rules about size. A limit of 0 bytes means that no limit is known."""
    found: list[Violation] = []
    if tokens > limit:
        text = f"{tokens:,} tokens do not fit into {limit:,}"
        found.append(Violation("over_tokens", None, text, "compact the conversation"))
    if size_bytes > max_bytes > 0:
        text = f"{size_bytes:,} bytes do not fit into {max_bytes:,}"
        found.append(Violation("over_bytes", None, text, "remove or shrink inline media"))
    return tuple(found)


def _check_shape(progress: Progress, message: Message, dialect: Dialect, found: list[Violation]) -> None:
    index, role = progress.size, message.role
    if role not in dialect.roles:
        text = f"{dialect.name} has no role {role!r} in its messages"
        found.append(Violation("illegal_role", index, text, "send it as the system prompt"))
    is_placed = dialect.system_follows_user and role == "system"
    if dialect.system_follows_user:
        _check_system(progress, role, found)
    is_first = dialect.starts_with_user and progress.last is None
    if is_first and not (role == "user" or is_placed or holds_compaction(message)):
        text = "the first message must be the user's"
        found.append(Violation("starts_without_user", index, text, "put a user message first"))
    if progress.pending_reasoning and role != "assistant":
        found.append(_dangling(index - 1))
    if is_empty(message):
        found.append(Violation("empty_message", index, "the message says nothing", "remove it"))
    elif dialect.refuses_blank_text and any(map(is_blank, message.parts)):
        found.append(Violation("blank_text", index, "a text block without a word in it", "remove the block"))
    if role == "assistant" and dialect.signed_thinking:
        _check_thinking(message, index, found)
    for part, place in misplaced_parts(message, dialect):
        hint = f"put it {place}"
        found.append(Violation("misplaced_part", index, f"{part} must stand {place}", hint))


def _check_system(progress: Progress, role: Role, found: list[Violation]) -> None:
    if progress.last == "system" and role != "assistant":
        text = "a system message must be the last one or stand before an assistant message"
        hint = "move it behind the user message that follows it, or join two that stand in a row"
        found.append(Violation("system_without_reply", progress.size - 1, text, hint))
    if role == "system" and not progress.takes_system:
        text = "a system message must follow a user message"
        hint = "move it behind the next user message, or into the system prompt"
        found.append(Violation("system_without_user", progress.size, text, hint))


def _check_thinking(message: Message, index: int, found: list[Violation]) -> None:
    if message.parts and type(message.parts[-1]) is Reasoning:
        found.append(_dangling(index))
    for part in message.parts:
        if type(part) is Reasoning and not part.signature and not part.sealed:
            text = "thinking without its signature"
            found.append(Violation("unsigned_thinking", index, text, "send it as it came, or drop it"))


def _call(calls: Calls, message: Message, index: int, dialect: Dialect, found: list[Violation]) -> None:
    for part in message.parts:
        if type(part) is ToolCall:
            found.extend(_call_violations(part, index, dialect, calls))
            if part.id:
                calls.wait(part.id, index)


def _call_violations(call: ToolCall, index: int, dialect: Dialect, calls: Calls) -> Iterable[Violation]:
    if not call.id:
        yield Violation("missing_call_id", index, "a tool call without an id", "give each call an id")
    elif not is_call_id(call.id, dialect):
        text = f"{dialect.name} does not take the call id {call.id[:80]!r}"
        yield Violation("bad_call_id", index, text, "rename the call and its result")
    if call.id and (
        call.id in calls.waiting or call.id in calls.answered or _is_reused(call, dialect, calls)
    ):
        text = f"the call id {call.id[:80]!r} is used twice"
        yield Violation("duplicate_call_id", index, text, "rename the later one and its result")
    if broken_arguments(call, as_object=dialect.object_arguments):
        text = f"the arguments of {call.name!r} are not {'a JSON object' if dialect.object_arguments else 'JSON'}"
        yield Violation("bad_arguments", index, text, "wrap the text in a JSON object")


def _is_reused(call: ToolCall, dialect: Dialect, calls: Calls) -> bool:
    return dialect.unique_call_ids and call.id in calls.first_seen


def _answer(
    progress: Progress, calls: Calls, message: Message, dialect: Dialect, found: list[Violation]
) -> None:
    for part in message.parts:
        if type(part) is not ToolResult:
            continue
        call = calls.answer(part.call_id)
        if call is None:
            found.extend(_unexpected(part, progress.size, calls))
        elif call < progress.last_user:
            calls.late.append((call, progress.size))
    if dialect.joint_results and progress.is_answered and progress.last == "tool":
        text = "the results of one reply are spread over several messages"
        found.append(Violation("split_results", progress.size, text, "put them into one message"))


def _unexpected(result: ToolResult, index: int, calls: Calls) -> Iterable[Violation]:
    if not result.call_id:
        text = "a tool result without a call id"
        yield Violation("missing_call_id", index, text, "name the call it answers")
    elif result.call_id in calls.answered:
        text = f"a second result for the call {result.call_id[:80]!r}"
        yield Violation("duplicate_result", index, text, "keep one of them")
    elif not calls.continues:
        text = f"the result for {result.call_id[:80]!r} does not follow its call"
        yield Violation("orphan_result", index, text, "move it next to its call, or remove it")


def _unanswered(open_calls: Iterable[tuple[str, int]]) -> Iterable[Violation]:
    for call_id, index in open_calls:
        text = f"the call {call_id[:80]!r} has no result"
        yield Violation("unanswered_call", index, text, "add its result, or remove the call")


def _dangling(index: int) -> Violation:
    text = "thinking without the rest of its reply"
    return Violation("dangling_reasoning", index, text, "drop it, or keep what followed it")


def _is_prefill(progress: Progress) -> bool:
    return progress.last == "assistant" and not progress.open_calls and not progress.ends_opaque
