"""The sections of a summary around the digest: the user's rules, ids and numbers, the files, errors, decisions
and open tasks.

Every section has one heading, at most once, and a share of the room. If it does not fit, the oldest errors,
decisions and files are left out, and the rules in the middle. The number of omitted entries is not stated: it
would be the only number in the summary that is not in the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from refold.core.digest.ledger import Ledger, are_stated, from_both_ends
from refold.core.digest.line_markers import quoted_line
from refold.core.digest.terms import contains_word
from refold.model.message import Message, Role, visible

RULES = "## Rules the user gave"
MODIFIED = "## Files modified"
READ = "## Files read"
ERRORS = "## Errors"
DECISIONS = "## Decisions"
TASKS = "## Open tasks"
IDS = "## Ids and numbers"
TITLES = (RULES, IDS, MODIFIED, READ, ERRORS, DECISIONS, TASKS)
_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
_COMPACTED = "[Compacted messages: "
_TURN = "[This turn so far: "


RULES_SHARE = 0.20
"""Share of the room for messages: rules are the last entries to lose."""
FILES_SHARE = 0.04
"""Paths are long; the newest few dozen are the ones still worked on."""
NOTES_SHARE = 0.03
"""Errors, decisions and tasks, each a third: the digest also quotes the important ones."""
IDS_SHARE = 0.012
"""A few in a window of 8,000 tokens; the digest quotes more of them."""
LEAST_LIST, MAX_LEAST = 240, 1 / 16
"""Characters for ids, errors, decisions and tasks each, even if their share is less, and the share of the room that
this may be: one error of a compiler, with its place, takes about so much."""


def sections(ledger: Ledger, room: int, *, shown: str = "") -> str:
    """Return the ledger as text for a room of this many characters.

    Entries that `shown` contains are not repeated.
    """
    least = min(LEAST_LIST, int(room * MAX_LEAST))
    files, notes = int(room * FILES_SHARE), max(int(room * NOTES_SHARE) // 3, least)
    parts = (
        _section(RULES, ledger.rules, int(room * RULES_SHARE), shown),
        _section(IDS, ledger.ids, max(int(room * IDS_SHARE), least), shown),
        _section(MODIFIED, ledger.modified, files * 2 // 3, shown),
        _section(READ, ledger.read, files // 3, shown),
        _section(ERRORS, ledger.errors, notes, shown),
        _section(DECISIONS, ledger.decisions, notes, shown),
        _section(TASKS, ledger.tasks, notes, shown),
    )
    return "\n".join(part for part in parts if part)


def rules_section(rules: Sequence[str], room: int, *, shown: str = "") -> str:
    """Return the user's rules alone, in at most `room` characters."""
    return _section(RULES, rules, room, shown)


def mechanical(
    messages: Iterable[Message],
    ledger: Ledger,
    *,
    turn: Iterable[Message] = (),
    previous: str = "",
    room: int | None = None,
) -> str:
    """Build a summary without a model or an index: the number of messages per role, the files, and the whole
    previous summary. The first part of a split turn, `turn`, is counted apart from the messages before it.

    `ledger` covers all cycles so far; its lists in an earlier mechanical summary are not repeated. The lists
    take at most `room` characters, half of them for rules, and as many as they need if there is no limit.
    """
    whole = sum(len(entry) + 40 for entry in (*ledger.rules, *ledger.modified, *ledger.read))
    most = 4 * whole if room is None else room
    lists = (
        _section(RULES, ledger.rules, most // 2, ""),
        _section(MODIFIED, ledger.modified, most // 4, ""),
        _section(READ, ledger.read, most // 4, ""),
    )
    counts = (_count_roles(_COMPACTED, messages), _count_roles(_TURN, turn))
    return "\n".join(part for part in (*counts, *lists, without_lists(previous)) if part)


def _count_roles(opening: str, messages: Iterable[Message]) -> str:
    counts = Counter(message.role for message in messages)
    said = ", ".join(f"{counts[role]} {role}" for role in _ROLES if counts[role])
    return f"{opening}{said}]" if said else ""


def _section(title: str, entries: Sequence[str], room: int, shown: str) -> str:
    """Return the newest entries that fit, and of rules the oldest too, in order."""
    kept: dict[int, str] = {}
    room -= len(title) + 1
    for at in from_both_ends(len(entries)) if title == RULES else reversed(range(len(entries))):
        entry = entries[at]
        if len(entry) + 3 > room or is_shown(title, entry, shown):
            continue
        line = f"- {one_line(entry)}"
        if len(line) < room:
            room -= len(line) + 1
            kept[at] = line
    return "\n".join((title, *(kept[at] for at in sorted(kept)))) if kept else ""


def is_shown(title: str, entry: str, shown: str) -> bool:
    """Return True if a text contains an entry: word for word, or its ids and numbers."""
    return contains_word(shown, entry) or (title == IDS and are_stated(entry, shown))


def one_line(entry: str) -> str:
    """Return an entry as one line: a path may hold line ends, and its second line would have no heading or
    bullet. An entry that could be taken for a heading, a handle or a label of Refold is quoted.
    """
    return quoted_line(visible(" ".join(entry.splitlines()).strip()))


def without_lists(text: str) -> str:
    """Return a text without the lists under the ledger's headings: the caller writes them again from the
    ledger.
    """
    return "\n".join(_kept_lines(text.splitlines())).strip()


def _kept_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a summary that do not belong to the ledger's lists."""
    in_list = False
    for line in lines:
        if line in (MODIFIED, READ, RULES):
            in_list = True
        elif not (in_list and line.startswith("- ")):
            in_list = False
            if not line.startswith((_COMPACTED, _TURN)):
                yield line
