"""Builds the window of a request: the only module that does.

History holds neither the system prompt nor summaries. Both are added here, in the order that the dialect
requires, so that the gateway and the library build the same request.

    placed as    Chat                           Responses                 Anthropic
    user         a user message first           likewise                  likewise
    assistant    an assistant message first     likewise                  likewise, after a bridge of the user's
    system       after the system message       after `instructions`      one more block of `system`

A server that wants the two sides in turn gets a summary of the user's as the first part of the user message that
follows it, and a bridge before one of the assistant's.

A summary is untrusted data: it stands between fences, and a fence inside of its text is broken.

A provider ignores everything before its own compaction. So this compaction comes first, and a summary that
is a message follows it and the results of its calls; if these are blocks of a user message, the summary is
one more block of it.

A compaction that Refold asked the provider for stands in place of the summaries that it covers, before all
messages, if the request goes to the model that made it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Raw, Struct, structs

from refold.core.digest.pieces import head
from refold.core.policy import Policy
from refold.core.stage import handle_of
from refold.core.verify import (
    count_fixed_breakpoints,
    is_instruction,
    is_refused,
    takes_system,
    verify,
    verify_window,
)
from refold.core.view import View
from refold.model.dialect import Dialect
from refold.model.message import (
    Message,
    Opaque,
    Origin,
    Text,
    assistant,
    holds_compaction,
    must_come_first,
    opening_span,
    user,
)
from refold.model.summary import NativeCompaction, NativeItem, Summary
from refold.model.tokens import TokenCounter
from refold.model.window import FixedFields, Tool, Violation, Window

BRIDGE = "Continue from the context below."
"""First message if the dialect requires a user message first and the conversation does not begin with one."""
CONTINUE = "continue"
"""The user message between a summary and a reply that are both the assistant's, and after a reply that comes
last in a format that refuses it."""
RECALL = "recall"
_PREFIXED_RECALL = re.compile(r"(?i)(?:mcp[_.:/-]+)?refold[_.:/-]+recall")
"""The recall tool with a client's prefix, such as `mcp__refold__recall` in Claude Code and `refold_recall` in opencode."""
_TO_WIDE = 0xFEE0
"""Distance from a character to its full-width form."""
ANCESTORS = "## Before that"
ANCESTOR_CHARACTERS = 240
"""Characters of each older summary: enough to see its subject, and its handle opens the rest."""


class Lead(Struct, frozen=True):
    """Summaries in the form in which they are sent: messages before the history, or a block after the system prompt."""

    messages: tuple[Message, ...] = ()
    block: str = ""
    tokens: int = 0
    is_native: bool = False
    """True if they begin with a compaction that the provider made on request."""

    @property
    def is_whole(self) -> bool:
        """True if that compaction stands alone, without a text of ours after it."""
        return self.is_native and not self.ends_with_user

    @property
    def ends_with_user(self) -> bool:
        return bool(self.messages) and self.messages[-1].role == "user"

    @property
    def ends_with_assistant(self) -> bool:
        return bool(self.messages) and self.messages[-1].role == "assistant"


NO_LEAD = Lead()


def lead_of(
    summaries: Sequence[Summary],
    policy: Policy,
    dialect: Dialect,
    counter: TokenCounter,
    room: int,
    fixed: FixedFields | None = None,
) -> Lead:
    """Summaries in the form in which they are sent: the newest in full, older ones as one line each within `room` tokens.

    A block is counted as it will stand after the system prompt of `fixed`. The tools of `fixed` decide
    whether the frame text may mention recall.
    """
    if not summaries:
        return NO_LEAD
    fixed = fixed or FixedFields(dialect)
    can_recall = has_recall(fixed.tools)
    if own := own_compaction(summaries, fixed):
        native, later = own
        messages = native_messages(native)
        told = (native.since, lineage(later, counter, room) if later else "")
        if text := "\n".join(filter(None, told)):
            messages = (*messages, user(framed(text, policy, summaries[-1], can_recall=can_recall)))
        return Lead(messages, tokens=sum(map(counter.message, messages)), is_native=True)
    text = framed(lineage(summaries, counter, room), policy, summaries[-1], can_recall=can_recall)
    if policy.placement == "system":
        joined = Window(fixed, (), block=text).system
        taken = sum(map(counter.message, joined)) - sum(map(counter.message, fixed.system))
        return Lead(block=text, tokens=max(0, taken))
    message = assistant(text) if policy.placement == "assistant" else user(text)
    is_bridged = dialect.starts_with_user and message.role != "user"
    messages = (user(BRIDGE), message) if is_bridged else (message,)
    return Lead(messages, tokens=sum(map(counter.message, messages)))


def own_compaction(
    summaries: Sequence[Summary], fixed: FixedFields
) -> tuple[NativeCompaction, Sequence[Summary]] | None:
    """The newest compaction that the asked model made itself, and the summaries after it; None if there is none."""
    for at in reversed(range(len(summaries))):
        native = summaries[at].native
        if native and native.goes_to(fixed.dialect.name, fixed.model, fixed.upstream, fixed.server):
            return native, summaries[at + 1 :]
    return None


def native_messages(native: NativeCompaction) -> tuple[Message, ...]:
    """The messages of a provider's own compaction, as they are sent back."""
    return tuple(_native_message(item, native) for item in native.items)


def _native_message(item: NativeItem, native: NativeCompaction) -> Message:
    raw = Raw(item.raw.encode())
    part = Text(item.text) if item.text else Opaque("compaction", raw=raw)
    whole = Raw(b'{"role":"assistant","content":[' + raw + b"]}") if native.dialect == "anthropic" else raw
    return Message(item.role, (part,), Origin(native.dialect, whole))


def has_recall(tools: Sequence[Tool]) -> bool:
    """True if the model has a tool to open handles: the library's, or the one of our MCP server, which clients prefix."""
    return any(tool.name == RECALL or _PREFIXED_RECALL.fullmatch(tool.name) for tool in tools)


def framed(text: str, policy: Policy, summary: Summary, *, can_recall: bool) -> str:
    """The summary inside the policy's frame text, with any imitation of the closing text broken."""
    texts = policy.texts
    opening = texts.opening.replace("{recall}", texts.recall if can_recall else "")
    opening = opening.replace("{handles}", covered_handles(summary))
    if texts.fence:
        text = f"<{texts.fence}>\n{_without(f'</{texts.fence}', text)}\n</{texts.fence}>"
    elif end := texts.closing.strip():
        text = _without(end, text)
    return f"{opening}{text}{texts.closing}"


def _without(end: str, text: str) -> str:
    """Break every copy of the end marker inside the text, so that a model cannot mistake it for the end.

    Case, width and blanks are ignored in the search; a dot is inserted after the first character.
    """
    return _imitation_of(end).sub(lambda found: f"{found[0][0]}·{found[0][1:]}", text)


@lru_cache(maxsize=16)
def _imitation_of(end: str) -> re.Pattern[str]:
    """Pattern for an end marker in any case and width: every policy has one of its own, for all summaries."""
    return re.compile(r"\s{0,4}".join(_in_any_width(one) for one in end if not one.isspace()), re.IGNORECASE)


def _in_any_width(character: str) -> str:
    """Pattern for a character or its full-width form."""
    wide = chr(ord(character) + _TO_WIDE) if "!" <= character <= "~" else ""
    return f"[{re.escape(character)}{wide}]"


def covered_handles(summary: Summary) -> str:
    """The handles of the messages that a summary covers."""
    ranges = [(handle_of(first), handle_of(max(first, end - 1))) for first, end in summary.ranges]
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in ranges)


def lineage(summaries: Sequence[Summary], counter: TokenCounter, room: int) -> str:
    """The newest summary, then one line for each older one, newest first, within `room` tokens."""
    *older, parent = summaries
    lines: list[str] = []
    for summary in reversed(older):
        said = " ".join(head(summary.own_text, ANCESTOR_CHARACTERS).split())
        line = f"{summary_handle(summary.number)} {said} …"
        room -= counter.text(line)
        if room < 0:
            break
        lines.append(line)
    return "\n".join((parent.text, ANCESTORS, *lines)) if lines else parent.text


def summary_handle(number: int) -> str:
    """The handle by which `recall` returns an older summary in full."""
    return f"#s{number}"


def assemble(fixed: FixedFields, messages: tuple[Message, ...], lead: Lead = NO_LEAD) -> Window:
    """Build the window: the client's system prompt and tools unchanged, then summaries, then messages. A
    provider's own compaction comes before all of them.
    """
    opening = opening_span(messages) if lead.messages else 0
    summaries, before = lead.messages, tuple[Message, ...]()
    if opening and messages[opening - 1].role == "tool" and lead.ends_with_user:
        results = messages[opening - 1]
        told = tuple(part for message in summaries for part in message.parts)
        messages = (
            *messages[: opening - 1],
            results.with_parts((*results.parts, *told)),
            *messages[opening:],
        )
        summaries = ()
    if fixed.dialect.alternates and lead.messages and not opening:
        messages, summaries = _in_turn(messages, summaries)
        before = (user(BRIDGE),) if summaries and summaries[0].role == "assistant" else ()
    if opening < len(messages) and needs_bridge(messages[opening], fixed.dialect, lead):
        is_between = lead.ends_with_assistant and not is_instruction(messages[opening])
        summaries = (*summaries, user(CONTINUE if is_between else BRIDGE))
    if messages and is_led_in(messages[0], fixed.dialect, lead):
        before = (user(BRIDGE),)
    return Window(fixed, messages, summaries, lead.block, opening=opening, before=before)


def _in_turn(
    messages: tuple[Message, ...], summaries: tuple[Message, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The messages and summaries with a summary of the user's as the first part of a user message that follows it,
    for a server that refuses two messages of one side in a row.
    """
    at = next((at for at, one in enumerate(messages) if not is_instruction(one)), len(messages))
    if at == len(messages) or messages[at].role != "user" or summaries[-1].role != "user":
        return messages, summaries
    told = tuple(part for message in summaries for part in message.parts)
    joint = messages[at].with_parts((*told, *messages[at].parts))
    return (*messages[:at], joint, *messages[at + 1 :]), ()


def needs_bridge(first: Message, dialect: Dialect, lead: Lead = NO_LEAD) -> bool:
    """True if a user message must be inserted before the first message after the summaries.

    Some servers of every format require the user to speak first, except before a provider's own
    compaction, and refuse two messages of the assistant in a row. Nothing stands between a compaction that the provider
    made on request and the messages after it: thoughts in them stay valid. But the client's own messages are sent as they came,
    whoever speaks first, unless the dialect itself refuses that. Later instructions may stand before that user message,
    unless the dialect requires every system message to follow one of the user's.
    """
    if dialect.system_follows_user and is_instruction(first):
        return not lead.ends_with_user
    if lead.is_native or not (lead.tokens or dialect.starts_with_user or dialect.alternates):
        return False
    is_led = bool(lead.messages) and not lead.ends_with_assistant
    return not is_led and first.role in ("assistant", "tool") and not holds_compaction(first)


def with_last_word(window: Window) -> Window:
    """The window with a user message at its end, if the format refuses a reply there."""
    last = window.sent[-1] if window.sent else None
    if not window.fixed.dialect.refuses_prefill or last is None or last.role != "assistant":
        return window
    return structs.replace(window, after=(user(CONTINUE),))


def is_led_in(first: Message, dialect: Dialect, lead: Lead) -> bool:
    """True if a user message must be inserted before a provider's own compaction: the messages before it have
    been summarised. Nothing may stand before one that was made on request.
    """
    is_due = dialect.starts_with_user and lead.tokens > 0 and holds_compaction(first)
    return is_due and not must_come_first(first)


def broken_rules(window: Window, shown: View) -> tuple[Violation, ...]:
    """Violations of a window with the messages of a view. Only the part before those messages is verified again."""
    if not len(shown):
        return verify_window(window)
    marks = count_fixed_breakpoints(window.fixed) + len(window.breakpoints)
    own = shown.violations(as_request=True, fixed_breakpoints=marks)
    if any(found.rule == "too_many_breakpoints" for found in own):
        return verify_window(window)
    refused = (found for found in own if is_refused(found, window.fixed.dialect))
    left = tuple(_moved(found, window) for found in refused if not _is_solved(found, window))
    lead = (*window.before, *window.summaries)
    return (*verify(lead, window.fixed.dialect), *left) if lead else left


def _is_solved(found: Violation, window: Window) -> bool:
    """True if the messages that assembly inserted before the message solve the violation."""
    if found.rule == "ends_with_assistant":
        return bool(window.after)
    if found.index is None or not (place := window.place(found.index)):
        return False
    if found.rule == "starts_without_user":
        return True
    is_first = found.index == window.opening
    return is_first and found.rule == "system_without_user" and takes_system(window.sent[place - 1])


def _moved(found: Violation, window: Window) -> Violation:
    return found if found.index is None else structs.replace(found, index=window.place(found.index))
