"""The sections of a summary around the digest: the user's rules and later messages, ids and numbers, the files,
errors, decisions and open tasks.

Every section has one heading, at most once, and a share of the room. If it does not fit, the oldest errors,
decisions and files are left out, the rules in the middle, and the oldest messages that change no task. The number of omitted entries is not stated: it
would be the only number in the summary that is not in the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from refold.core.digest.ledger import Ledger, are_stated, from_both_ends, most_telling
from refold.core.digest.line_markers import quoted_line
from refold.core.digest.terms import contains_word
from refold.core.tool_use import COMMON_TOOLS, ToolKinds, file_accesses
from refold.model.message import Message, Role, visible

RULES = "## Rules the user gave"
SAID = "## The user said later"
MODIFIED = "## Files modified"
READ = "## Files read"
ERRORS = "## Errors"
DECISIONS = "## Decisions"
TASKS = "## Open tasks"
IDS = "## Ids and numbers"
TITLES = (RULES, SAID, IDS, MODIFIED, READ, ERRORS, DECISIONS, TASKS)
_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
_COMPACTED = "[Compacted messages: "
_TURN = "[This turn so far: "


RULES_SHARE = 0.20
"""Share of the room for messages: rules are the last entries to lose."""
SAID_SHARE, LEAST_SAID = 0.08, 1 / 8
"""The user's later messages are few, and each may change the task. In a small room the list may take as much as one
entry needs, up to the second share."""
FILES_SHARE = 0.04
"""Paths are long; the newest few dozen are the ones still worked on."""
NOTES_SHARE = 0.03
"""Errors, decisions and tasks, each a third: the digest also quotes the important ones."""
IDS_SHARE = 0.012
"""A few in a window of 8,000 tokens; the digest quotes more of them."""
LEAST_LIST, MAX_LEAST = 240, 1 / 16
"""Characters for ids, errors, decisions and tasks each, even if their share is less, and the share of the room that
this may be: one error of a compiler, with its place, takes about so much."""


class KeptText(Struct, frozen=True):
    """The messages that stay beside a summary, as far as they make an entry of the ledger superfluous."""

    user: str = ""
    words: str = ""
    """The same text as one line."""
    replies: str = ""
    results: str = ""
    modified: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    @classmethod
    def of(cls, messages: Iterable[Message], tools: ToolKinds = COMMON_TOOLS, *texts: str) -> KeptText:
        """The messages that stay, and other `texts` with the user's words."""
        said = list(texts)
        replies: list[str] = []
        results: list[str] = []
        touched: dict[str, set[str]] = {"write": set(), "read": set()}
        for message in messages:
            if message.role == "user":
                said.append(message.text)
            elif message.role == "assistant":
                replies.append(message.text)
            results += [result.text for result in message.results]
            for access in (access for call in message.calls for access in file_accesses(call, tools)):
                touched[access.kind].add(access.path)
        spoken = "\n".join(said)
        return cls(
            spoken,
            " ".join(spoken.split()),
            "\n".join(replies),
            "\n".join(results),
            frozenset(touched["write"]),
            frozenset(touched["read"]),
        )

    def shows(self, title: str, entry: str) -> bool:
        """Return True if the messages show an entry: a file by a call that does the same with it, an error by
        the result that states it, and everything else by the words of its speaker.
        """
        if title in (MODIFIED, READ):
            return entry in (self.modified if title == MODIFIED else self.read)
        if title == ERRORS:
            return entry in self.results
        if title in (DECISIONS, TASKS):
            return entry in self.replies
        if title == SAID:
            return entry in self.words or entry in self.user
        texts = (self.user, self.replies, self.results) if title == IDS else (self.user,)
        return any(is_shown(title, entry, text) for text in texts)


NOTHING_BESIDE = KeptText()


def sections(
    ledger: Ledger, room: int, *, beside: KeptText = NOTHING_BESIDE, rules_room: int | None = None
) -> str:
    """Return the ledger as text for a room of this many characters, without the entries that are shown `beside` it.
    The rules take at most `rules_room` characters; without a number, their share.
    """
    least = min(LEAST_LIST, int(room * MAX_LEAST))
    files, notes = int(room * FILES_SHARE), max(int(room * NOTES_SHARE) // 3, least)
    line = min(LEAST_LIST + len(SAID), int(room * LEAST_SAID))
    most = int(room * RULES_SHARE) if rules_room is None else rules_room
    rules = _section(RULES, ledger.rules, most, beside)
    told = structs.replace(beside, words=f"{beside.words}\n{rules}")
    said = _section(SAID, ledger.said, max(int(room * SAID_SHARE), line), told)
    parts = (
        rules,
        said,
        _section(
            IDS,
            ledger.ids,
            max(int(room * IDS_SHARE), least),
            structs.replace(beside, user=f"{beside.user}\n{said}"),
        ),
        _section(MODIFIED, ledger.modified, files * 2 // 3, beside),
        _section(READ, ledger.read, files // 3, beside),
        _section(ERRORS, ledger.errors, notes, beside),
        _section(DECISIONS, ledger.decisions, notes, beside),
        _section(TASKS, ledger.tasks, notes, beside),
    )
    return "\n".join(part for part in parts if part)


def without_shown(ledger: Ledger, beside: KeptText) -> Ledger:
    """Return the ledger without the ids, notes and words of the user that the messages beside a summary show. Rules, files
    and errors stay.
    """

    def left(title: str, entries: Sequence[str]) -> tuple[str, ...]:
        return tuple(entry for entry in entries if not beside.shows(title, entry))

    return structs.replace(
        ledger,
        said=left(SAID, ledger.said),
        given=left(IDS, ledger.given),
        seen=left(IDS, ledger.seen),
        decisions=left(DECISIONS, ledger.decisions),
        tasks=left(TASKS, ledger.tasks),
    )


def rules_section(rules: Sequence[str], room: int, *, shown: str = "") -> str:
    """Return the user's rules alone, in at most `room` characters."""
    return _section(RULES, rules, room, KeptText(shown))


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
        _section(RULES, ledger.rules, most // 2),
        _section(MODIFIED, ledger.modified, most // 4),
        _section(READ, ledger.read, most // 4),
    )
    counts = (_count_roles(_COMPACTED, messages), _count_roles(_TURN, turn))
    return "\n".join(part for part in (*counts, *lists, without_lists(previous)) if part)


def _count_roles(opening: str, messages: Iterable[Message]) -> str:
    counts = Counter(message.role for message in messages)
    said = ", ".join(f"{counts[role]} {role}" for role in _ROLES if counts[role])
    return f"{opening}{said}]" if said else ""


def _section(title: str, entries: Sequence[str], room: int, beside: KeptText = NOTHING_BESIDE) -> str:
    """Return the most important entries that fit, in order."""
    kept: dict[int, str] = {}
    room -= len(title) + 1
    for at in in_order_of_weight(title, entries):
        entry = entries[at]
        if len(entry) + 3 > room or beside.shows(title, entry):
            continue
        line = f"- {one_line(entry)}"
        if len(line) < room:
            room -= len(line) + 1
            kept[at] = line
    return "\n".join((title, *(kept[at] for at in sorted(kept)))) if kept else ""


def in_order_of_weight(title: str, entries: Sequence[str]) -> Iterable[int]:
    """Return the places of a list's entries, the most important first: mostly the newest, of rules the oldest too,
    and of the user's messages those that change the task.
    """
    if title == SAID:
        return most_telling(entries)
    return from_both_ends(len(entries)) if title == RULES else reversed(range(len(entries)))


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
        if line in (MODIFIED, READ, RULES, SAID):
            in_list = True
        elif not (in_list and line.startswith("- ")):
            in_list = False
            if not line.startswith((_COMPACTED, _TURN)):
                yield line
