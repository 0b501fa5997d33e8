"""Everything a window must satisfy before it may leave.

One idea: validity is a fold. `step` takes what is known so far and one message, and gives back what is known now and the
rules that this message broke, so a conversation that grew by one message is verified by looking at one message. `finish`
adds the rules about the end, `verify_fit` those about size, `verify_edit` and `verify_fixed` those about what must not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from refold.core.content import broken_arguments, count_breakpoints, is_empty, is_only_reasoning
from refold.model.dialect import Dialect
from refold.model.message import Message, Reasoning, Role, ToolCall, ToolResult
from refold.model.window import Fixed, Violation, Window


class Batch(Struct, frozen=True, gc=False):
    """The tool calls of the latest reply, and how far they are answered."""

    open: tuple[tuple[str, int], ...] = ()
    """Calls without a result yet: id and index of the message."""
    answered: tuple[str, ...] = ()
    result_messages: int = 0


class Progress(Struct, frozen=True, gc=False):
    """What the next message needs to know about all messages before it."""

    size: int = 0
    batch: Batch = Batch()
    last: Role | None = None
    pending_reasoning: bool = False
    """The last message is nothing but reasoning and needs the rest of its reply."""
    breakpoints: int = 0

    @property
    def has_open_calls(self) -> bool:
        return bool(self.batch.open)


START = Progress()


def step(
    progress: Progress, message: Message, dialect: Dialect, first_seen: Mapping[str, int]
) -> tuple[Progress, tuple[Violation, ...]]:
    """Fold one message in. `first_seen` maps call ids to the first message that used them."""
    found: list[Violation] = []
    _check_shape(progress, message, dialect, found)
    batch = progress.batch
    if message.role == "tool":
        batch = _answer(progress, message, dialect, found)
    else:
        if batch.open and dialect.results_at_once:
            found.extend(_unanswered(batch.open))
            batch = Batch()
        if message.role == "assistant":
            if not (dialect.spreads_calls and progress.last == "assistant"):
                batch = Batch(batch.open)
            batch = _call(batch, message, progress.size, dialect, first_seen, found)
    state = Progress(
        progress.size + 1,
        batch,
        message.role,
        dialect.spreads_calls and message.role == "assistant" and is_only_reasoning(message),
        progress.breakpoints + (count_breakpoints(message) if dialect.max_breakpoints else 0),
    )
    return state, tuple(found)


def finish(progress: Progress, dialect: Dialect, *, as_request: bool) -> tuple[Violation, ...]:
    """The rules about the end. A transcript may stop anywhere; a request must be complete."""
    found: list[Violation] = []
    if progress.breakpoints > dialect.max_breakpoints > 0:
        text = f"{progress.breakpoints} cache breakpoints; {dialect.max_breakpoints} are allowed"
        found.append(Violation("too_many_breakpoints", None, text, "remove some cache_control marks"))
    if not as_request:
        return tuple(found)
    if progress.size == 0:
        found.append(Violation("no_messages", None, "there is nothing to answer", "add a user message"))
    found.extend(_unanswered(progress.batch.open))
    if progress.pending_reasoning:
        found.append(_dangling(progress.size - 1))
    elif progress.last == "assistant" and not progress.batch.open:
        text = "the last message is the assistant's own"
        found.append(Violation("ends_with_assistant", progress.size - 1, text, "end with a user message"))
    return tuple(found)


def verify(
    messages: Iterable[Message], dialect: Dialect, *, as_request: bool = False
) -> tuple[Violation, ...]:
    """All violations of a list of messages, in order."""
    progress = START
    first_seen: dict[str, int] = {}
    found: list[Violation] = []
    for message in messages:
        progress, broken = step(progress, message, dialect, first_seen)
        found.extend(broken)
        remember_calls(first_seen, message, progress.size - 1)
    return (*found, *finish(progress, dialect, as_request=as_request))


def verify_window(window: Window, *, as_request: bool = True) -> tuple[Violation, ...]:
    messages = (*window.summaries, *window.messages)
    return verify(messages, window.fixed.dialect, as_request=as_request)


def verify_fit(*, tokens: int, limit: int, size_bytes: int = 0, max_bytes: int = 0) -> tuple[Violation, ...]:
    """The rules about size; a limit of 0 bytes means that none is known."""
    found: list[Violation] = []
    if tokens > limit:
        text = f"{tokens:,} tokens do not fit into {limit:,}"
        found.append(Violation("over_tokens", None, text, "compact the conversation"))
    if size_bytes > max_bytes > 0:
        text = f"{size_bytes:,} bytes do not fit into {max_bytes:,}"
        found.append(Violation("over_bytes", None, text, "remove or shrink inline media"))
    return tuple(found)


def verify_edit(before: Message, after: Message, index: int) -> tuple[Violation, ...]:
    """Thinking leaves byte for byte or not at all: all of a message's reasoning, or none of it."""
    kept = tuple(part for part in after.parts if type(part) is Reasoning)
    original = tuple(part for part in before.parts if type(part) is Reasoning)
    if kept and kept != original:
        text = "the edit changed the assistant's thinking"
        return (Violation("altered_thinking", index, text, "drop all thinking of the message or none"),)
    return ()


def verify_fixed(before: Fixed, after: Fixed) -> tuple[Violation, ...]:
    """The client's system prompt and tools leave as they came."""
    found: list[Violation] = []
    if before.system != after.system:
        found.append(Violation("altered_system", None, "the system prompt changed"))
    if before.tools != after.tools:
        found.append(Violation("altered_tools", None, "the tool definitions changed"))
    return tuple(found)


def remember_calls(first_seen: dict[str, int], message: Message, index: int) -> None:
    """Note in `first_seen` which call ids the message brings."""
    if message.role == "assistant":
        for part in message.parts:
            if type(part) is ToolCall:
                first_seen.setdefault(part.id, index)


def _check_shape(progress: Progress, message: Message, dialect: Dialect, found: list[Violation]) -> None:
    index, role = progress.size, message.role
    if role not in dialect.roles:
        found.append(Violation("illegal_role", index, f"{dialect.name} has no role {role!r} in its messages"))
    if dialect.starts_with_user and index == 0 and role != "user":
        text = "the first message must be the user's"
        found.append(Violation("starts_without_user", 0, text, "put a user message first"))
    if progress.pending_reasoning and role != "assistant":
        found.append(_dangling(index - 1))
    if is_empty(message):
        found.append(Violation("empty_message", index, "the message says nothing", "remove it"))
    if role == "assistant":
        _check_reasoning(message, index, dialect, found)
    _check_parts(message, index, found)


def _check_reasoning(message: Message, index: int, dialect: Dialect, found: list[Violation]) -> None:
    if not dialect.signed_thinking or not message.parts:
        return
    if type(message.parts[-1]) is Reasoning:
        found.append(_dangling(index))
    for part in message.parts:
        if type(part) is Reasoning and not part.signature and not part.sealed:
            text = "thinking without its signature"
            found.append(Violation("unsigned_thinking", index, text, "send it as it came, or drop it"))


def _check_parts(message: Message, index: int, found: list[Violation]) -> None:
    seen_other = False
    for part in message.parts:
        kind = type(part)
        if kind is ToolResult:
            if message.role != "tool":
                found.append(_misplaced(index, "a tool result", "in a tool message"))
            elif seen_other:
                found.append(_misplaced(index, "a tool result", "before the text of its message"))
        else:
            seen_other = True
            if kind in (ToolCall, Reasoning) and message.role != "assistant":
                found.append(_misplaced(index, "a tool call or thinking", "in an assistant message"))


def _call(
    batch: Batch,
    message: Message,
    index: int,
    dialect: Dialect,
    first_seen: Mapping[str, int],
    found: list[Violation],
) -> Batch:
    calls = [part for part in message.parts if type(part) is ToolCall]
    if not calls:
        return batch
    known = {call_id for call_id, _ in batch.open}.union(batch.answered)
    for call in calls:
        found.extend(_call_violations(call, index, dialect, known, first_seen))
        known.add(call.id)
    added = tuple((call.id, index) for call in calls if call.id)
    return Batch((*batch.open, *added), batch.answered, batch.result_messages)


def _call_violations(
    call: ToolCall, index: int, dialect: Dialect, known: set[str], first_seen: Mapping[str, int]
) -> Iterable[Violation]:
    if not call.id:
        yield Violation("missing_call_id", index, "a tool call without an id", "give each call an id")
    elif call.id in known or (dialect.unique_call_ids and first_seen.get(call.id, index) < index):
        text = f"the call id {call.id!r} is used twice"
        yield Violation("duplicate_call_id", index, text, "rename the later one and its result")
    if broken_arguments(call, as_object=dialect.object_arguments):
        text = f"the arguments of {call.name!r} are not {'a JSON object' if dialect.object_arguments else 'JSON'}"
        yield Violation("bad_arguments", index, text, "wrap the text in a JSON object")


def _answer(progress: Progress, message: Message, dialect: Dialect, found: list[Violation]) -> Batch:
    waiting, answered = list(progress.batch.open), progress.batch.answered
    for part in message.parts:
        if type(part) is not ToolResult:
            continue
        place = next((at for at, (call_id, _) in enumerate(waiting) if call_id == part.call_id), None)
        if place is None:
            found.append(_unexpected(part, progress.size, answered))
        else:
            del waiting[place]
            answered = (*answered, part.call_id)
    if dialect.joint_results and progress.batch.result_messages and progress.last == "tool":
        text = "the results of one reply are spread over several messages"
        found.append(Violation("split_results", progress.size, text, "put them into one message"))
    return Batch(tuple(waiting), answered, progress.batch.result_messages + 1)


def _unexpected(result: ToolResult, index: int, answered: tuple[str, ...]) -> Violation:
    if not result.call_id:
        return Violation(
            "missing_call_id", index, "a tool result without a call id", "name the call it answers"
        )
    if result.call_id in answered:
        text = f"a second result for the call {result.call_id!r}"
        return Violation("duplicate_result", index, text, "keep one of them")
    text = f"the result for {result.call_id!r} does not follow its call"
    return Violation("orphan_result", index, text, "move it next to its call, or remove it")


def _unanswered(open_calls: tuple[tuple[str, int], ...]) -> Iterable[Violation]:
    for call_id, index in open_calls:
        text = f"the call {call_id!r} has no result"
        yield Violation("unanswered_call", index, text, "add its result, or remove the call")


def _dangling(index: int) -> Violation:
    text = "thinking without the rest of its reply"
    return Violation("dangling_reasoning", index, text, "drop it, or keep what followed it")


def _misplaced(index: int, what: str, where: str) -> Violation:
    return Violation("misplaced_part", index, f"{what} must stand {where}", "")
