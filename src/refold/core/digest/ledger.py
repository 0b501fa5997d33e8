"""The ledger: facts that are carried from summary to summary mechanically, not by a model.

Files, rules, errors, decisions, open tasks, ids and numbers are found by their form in each message, and are
never paraphrased and never dropped by chance. A file that was read and later modified counts as modified; a
rule stays as the user wrote it; an error stays until its call is made again. Of ids and numbers, those that
the user said rank first, then those that were said last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest

from msgspec import Struct

from refold.core.digest.identifiers import identifiers, names_in
from refold.core.digest.pieces import head
from refold.core.digest.rules import rules
from refold.core.digest.typed_text import typed_passages
from refold.core.digest.word_match import contains_word
from refold.core.tool_failures import MAX_LINE, stated_errors
from refold.core.tool_kinds import COMMON_TOOLS, ToolKinds, call_key, file_accesses
from refold.model.message import Message, ToolCall

MAX_ENTRIES = 12
"""Limit of carried errors, decisions and tasks: older ones are finished, or in the digest."""
MAX_IDS = 24
"""Limit of carried ids and numbers of each source: more than a summary has room for."""
MAX_RULES = 100
"""More rules than a user states. Of a longer list, the oldest half and the newest half of this number are
kept: the first rules of a user apply to everything after them, and no amount of later text may displace
them."""
MAX_FILES = 1_000
"""Limit of carried files of each kind, far more than any summary has room for. Of a longer list, the
oldest half and the newest half of this number are kept."""
MAX_MESSAGE_RULES = 25
"""Limit of rules that one message may add: no message can fill more than a fourth of the list."""
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")
_DECISION = re.compile(
    r"\b(?:decided|decision|going with|go with|will use|instead of|switch(?:ed|ing)? to|chose|settled on)\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"\s*+(?:[-*]|\d+\.)?+\s*+(?:\[ \]|TODO:?|Next(?: steps?)?:|Remaining:)\s*+(?=\S)")
_DONE = re.compile(r"\s*+(?:[-*]|\d+\.)?+\s*+\[[xX]\]\s*+(?=\S)")


class Ledger(Struct, frozen=True):
    """Facts found in messages. Every list is in the order of first mention, without repeats."""

    read: tuple[str, ...] = ()
    """Files that were read and never modified."""
    modified: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Sentences of the user that state a rule, word for word."""
    errors: tuple[str, ...] = ()
    error_calls: tuple[str, ...] = ()
    """The key of the call behind each error, in the same order; empty if it is not known."""
    called: tuple[str, ...] = ()
    """Keys of the calls whose results were read: their earlier errors are out of date. Not carried on."""
    decisions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """Tasks that were named and not ticked off."""
    done: tuple[str, ...] = ()
    """Tasks that were ticked off: they close those named before."""
    given: tuple[str, ...] = ()
    """Ids and numbers that the user said, with the words around them."""
    seen: tuple[str, ...] = ()
    """Ids in replies and results, with the words around them. A repeated one counts as new."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids and numbers, the least important first."""
        return self.seen + self.given


EMPTY = Ledger()


def ledger_of(messages: Iterable[Message], tools: ToolKinds = COMMON_TOOLS) -> Ledger:
    """Return the entries that some messages add to the ledger."""
    found, calls = EMPTY, dict[str, ToolCall]()
    for message in messages:
        found = merge(found, entries(message, tools, calls=calls))
        calls |= {call.id: call for call in message.calls}
    return found


def entries(
    message: Message,
    tools: ToolKinds = COMMON_TOOLS,
    *,
    is_task: bool = False,
    calls: Mapping[str, ToolCall] = {},
) -> Ledger:
    """Return the entries that one message adds to the ledger.

    Files count by the calls of the assistant, regardless of the result; rules count by text that a user typed
    into a message, also beside tool results and never inside of one. A user message before the first reply of
    the assistant `is_task`. `calls` holds the calls that the message answers, by their ids: the content of a
    file that was read states no error and no id.
    """
    match message.role:
        case "user":
            return Ledger(
                rules=typed_rules(message, is_task=is_task), given=_typed_ids(message, is_task=is_task)
            )
        case "assistant":
            touched = [access for call in message.calls for access in file_accesses(call, tools)]
            modified = _unique(access.path for access in touched if access.kind == "write")
            read = _unique(access.path for access in touched if access.kind == "read")
            lines = message.text.splitlines()
            return Ledger(
                read=_without(read, modified),
                modified=modified,
                decisions=_unique(_shorten_entry(found) for found in _decisions(message.text)),
                tasks=_unique(
                    _shorten_entry(line[mark.end() :]) for line in lines if (mark := _OPEN.match(line))
                ),
                done=_unique(
                    _shorten_entry(line[mark.end() :]) for line in lines if (mark := _DONE.match(line))
                ),
                seen=identifiers(message.text, by_user=False),
            )
        case "tool":
            return _result_entries(message, tools, calls)
        case _:
            return EMPTY


def _result_entries(message: Message, tools: ToolKinds, calls: Mapping[str, ToolCall]) -> Ledger:
    errors, seen, called = dict[str, str](), list[str](), list[str]()
    for result in message.results:
        call = calls.get(result.call_id)
        is_content = call is not None and any(access.kind == "read" for access in file_accesses(call, tools))
        key = call_key(call, tools) if call else ""
        called += [key] if key else []
        errors |= dict.fromkeys(stated_errors(result, is_content=is_content), key)
        seen += () if is_content else identifiers(result.text, by_user=False)
    return Ledger(
        rules=typed_rules(message),
        errors=tuple(errors),
        error_calls=tuple(errors.values()),
        called=tuple(called),
        given=_typed_ids(message),
        seen=tuple(seen),
    )


def typed_rules(message: Message, *, is_task: bool = False) -> tuple[str, ...]:
    """Return the rules that a user typed into a message, in order."""
    if next(rules(message.text), None) is None:
        return ()  # the usual case: finding the typed text would be wasted
    found = (rule for stretch in typed_passages(message, is_task=is_task) for rule in rules(stretch))
    return tuple(islice(dict.fromkeys(found), MAX_MESSAGE_RULES))


def _typed_ids(message: Message, *, is_task: bool = False) -> tuple[str, ...]:
    """Return the ids and numbers that a user typed into a message."""
    if not identifiers(message.text, by_user=True):
        return ()  # finding the typed text would be wasted
    return identifiers("\n".join(typed_passages(message, is_task=is_task)), by_user=True)


def merge(earlier: Ledger, later: Ledger) -> Ledger:
    """Return one ledger with the entries of both."""
    if later == EMPTY:
        return earlier
    modified, read = (
        _merge_entries(earlier.modified, later.modified),
        _merge_entries(earlier.read, later.read),
    )
    if read is not earlier.read or modified is not earlier.modified:
        modified = _oldest_and_newest(modified, MAX_FILES)
        read = _oldest_and_newest(_without(read, modified), MAX_FILES)
    tasks = (*_without(earlier.tasks, later.done), *_without(later.tasks, later.done))
    errors = _merge_errors(earlier, later)
    return Ledger(
        read=read,
        modified=modified,
        rules=_oldest_and_newest(_merge_entries(earlier.rules, later.rules), MAX_RULES),
        errors=tuple(errors),
        error_calls=tuple(errors.values()),
        decisions=_newest((*earlier.decisions, *later.decisions)),
        tasks=_newest(tasks),
        done=_newest((*earlier.done, *later.done)),
        given=_merge_ids(earlier.given, later.given, keeps_oldest=True),
        seen=_merge_ids(earlier.seen, later.seen),
    )


def _merge_errors(earlier: Ledger, later: Ledger) -> dict[str, str]:
    """Return the newest errors with the keys of their calls, without those of calls that were made again."""
    again = frozenset(later.called)
    old = zip_longest(earlier.errors, earlier.error_calls[: len(earlier.errors)], fillvalue="")
    found = {line: key for line, key in old if not key or key not in again}
    for line, key in zip_longest(later.errors, later.error_calls[: len(later.errors)], fillvalue=""):
        found.pop(line, None)  # a repeated one counts as new
        found[line] = key
    return dict(islice(found.items(), max(0, len(found) - MAX_ENTRIES), None))


def _merge_ids(
    earlier: tuple[str, ...], later: tuple[str, ...], *, keeps_oldest: bool = False
) -> tuple[str, ...]:
    """Return the entries of both lists, within `MAX_IDS`. An entry about known ids only is not added: it moves
    the known entry to the end of the list instead.
    """
    if not later:
        return earlier
    found = list(earlier)
    for entry in later:
        names = names_in(entry, by_user=keeps_oldest)
        holders = [one for one in found if any(contains_word(one, name) for name in names)]
        if not all(any(contains_word(one, name) for one in holders) for name in names):
            found.append(entry)
        elif not keeps_oldest:
            found.remove(holders[0])
            found.append(holders[0])
    return _oldest_and_newest(tuple(found), MAX_IDS) if keeps_oldest else tuple(found[-MAX_IDS:])


def _merge_entries(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    """Return both lists without repeats; mostly nothing is new, and the earlier one is returned itself."""
    new = _without(later, earlier)
    return earlier + new if new else earlier


def _without(found: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    known = frozenset(others if found else ())
    return tuple(entry for entry in found if entry not in known)


def _oldest_and_newest(entries: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return the oldest and the newest entries, `most` in total."""
    half = most // 2
    return entries if len(entries) <= most else entries[: most - half] + entries[-half:]


def from_both_ends(count: int) -> Iterator[int]:
    """Yield the positions of a list alternately from its ends: the newest, the oldest, the newest but one,
    and so on.
    """
    for at in range((count + 1) // 2):
        yield count - 1 - at
        if at < count - 1 - at:
            yield at


def _decisions(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if _DECISION.search(line):
            yield from (sentence for sentence in _SENTENCE.split(line) if _DECISION.search(sentence))


def _shorten_entry(text: str) -> str:
    return head(" ".join(head(text, 4 * MAX_LINE).split()), MAX_LINE)


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry for entry in found if entry))


def _newest(found: Iterable[str]) -> tuple[str, ...]:
    """Return the newest entries; a repeated entry counts as new."""
    last_first = tuple(dict.fromkeys(reversed(tuple(entry for entry in found if entry))))
    return tuple(reversed(last_first[:MAX_ENTRIES]))
