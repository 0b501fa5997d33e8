"""The parts of a summary around the digest: the task, the user's rules, the files, and what the ledger holds besides.

One idea: every section has one heading, at most once, and a share of the room. What does not fit is left out: the oldest errors,
decisions and files, and of the rules those in the middle; nothing is said about how much was left out, since such a number would
be the only one in the summary that nobody ever said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from refold.core.digest.ledger import Ledger, from_both_ends
from refold.core.digest.line_markers import visible
from refold.core.digest.word_match import says
from refold.model.message import Message, Role

RULES = "## Rules the user gave"
MODIFIED = "## Files modified"
READ = "## Files read"
ERRORS = "## Errors"
DECISIONS = "## Decisions"
TASKS = "## Open tasks"
TITLES = (RULES, MODIFIED, READ, ERRORS, DECISIONS, TASKS)
_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
_COMPACTED = "Compacted messages: "


RULES_SHARE = 0.20
"""Of the room for messages: rules are the last thing to lose."""
FILES_SHARE = 0.04
"""Paths are long; the newest few dozen are the ones still worked on."""
NOTES_SHARE = 0.03
"""Errors, decisions and tasks, each a third: the digest quotes them too where they matter."""


def sections(ledger: Ledger, room: int, *, shown: str = "") -> str:
    """The ledger as text for a room of so many characters. What `shown` holds already is not said again."""
    files, notes = int(room * FILES_SHARE), int(room * NOTES_SHARE) // 3
    parts = (
        _section(RULES, ledger.rules, int(room * RULES_SHARE), shown),
        _section(MODIFIED, ledger.modified, files * 2 // 3, shown),
        _section(READ, ledger.read, files // 3, shown),
        _section(ERRORS, ledger.errors, notes, shown),
        _section(DECISIONS, ledger.decisions, notes, shown),
        _section(TASKS, ledger.tasks, notes, shown),
    )
    return "\n".join(part for part in parts if part)


def rules_section(rules: Sequence[str], room: int, *, shown: str = "") -> str:
    """The user's rules alone, in at most `room` characters."""
    return _section(RULES, rules, room, shown)


def mechanical(
    messages: Iterable[Message], ledger: Ledger, *, previous: str = "", room: int | None = None
) -> str:
    """A summary that needs no model and no index: who said how much, which files, and all of the previous summary.

    `ledger` covers all cycles so far; what an earlier mechanical summary said of it is not repeated. Its lists take no more
    than `room` characters, half of them for rules, and as many as they need where there is no limit.
    """
    counts = Counter(message.role for message in messages)
    said = ", ".join(f"{counts[role]} {role}" for role in _ROLES if counts[role])
    whole = sum(len(entry) + 40 for entry in (*ledger.rules, *ledger.modified, *ledger.read))
    most = 4 * whole if room is None else room
    lists = (
        _section(RULES, ledger.rules, most // 2, ""),
        _section(MODIFIED, ledger.modified, most // 4, ""),
        _section(READ, ledger.read, most // 4, ""),
    )
    parts = (f"[{_COMPACTED}{said}]", *lists, without_lists(previous))
    return "\n".join(part for part in parts if part)


def _section(title: str, entries: Sequence[str], room: int, shown: str) -> str:
    """The newest entries that fit, and of rules the oldest too, in their order."""
    kept: dict[int, str] = {}
    room -= len(title) + 1
    for at in from_both_ends(len(entries)) if title == RULES else reversed(range(len(entries))):
        entry = entries[at]
        if len(entry) + 3 <= room and not says(shown, entry):
            room -= len(entry) + 3
            kept[at] = f"- {one_line(entry)}"
    return "\n".join((title, *(kept[at] for at in sorted(kept)))) if kept else ""


def one_line(entry: str) -> str:
    """An entry on a line of its own: a path may hold line ends, and the next line would be nobody's."""
    return visible(" ".join(entry.splitlines()).strip())


def without_lists(text: str) -> str:
    """A text without lists under the ledger's headings: those are written anew from the ledger itself."""
    return "\n".join(_kept_lines(text.splitlines())).strip()


def _kept_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a summary that are not the ledger's: its lists are written anew."""
    in_list = False
    for line in lines:
        if line in (MODIFIED, READ, RULES):
            in_list = True
        elif not (in_list and line.startswith("- ")):
            in_list = False
            if not line.startswith(f"[{_COMPACTED}"):
                yield line
