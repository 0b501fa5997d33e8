"""The text that every summary has, regardless of its author: the user's requests in front, and sections under headings.

A summary replaces the beginning of a conversation, so it must contain the task, whether a model, a digest, a mechanical summary or a
function of the user's wrote it. The requests are lines at its beginning; rules, files, errors and decisions are sections, which
`sections` writes and `split_section` finds again in a model's text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, structs

from refold.core.digest.ledger import Ledger, are_stated, from_both_ends, most_telling
from refold.core.digest.line_markers import quoted_line, quoted_lines
from refold.core.digest.pieces import contains_separate_word, contains_word
from refold.core.digest.shorten import MAX_LEDGER, fair_share, with_ends
from refold.core.digest.typed_text import is_client_summary, request_text
from refold.core.fold import FoldedBranch, UserRequest
from refold.core.stage import Item, handle_of
from refold.core.stages.parts import Mark, truncate
from refold.core.tool_use import COMMON_TOOLS, ToolKinds, file_accesses
from refold.model.message import Message, Role, visible
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter, share_of

# The user's requests
#
# The summary needs the task, the question of a turn that continues after the covered messages, the user's later additions to it, and
# a summary of everything before it that the client itself had made. Each is one line (`Task #m0: …`, `Question #m40: …`) at the
# beginning of the summary, unless the message itself is shown or the summary already contains its words. A text that is longer than
# its share of the room keeps its beginning and its end, with the handle that opens the rest.

TASK_SHARE = 0.10
"""Share of the room for the task: all user messages before the first reply together."""
LEAST_TASK, MOST_OF_SMALL, FRAME = 160, 0.3, 40
"""Tokens for the task in a small room, and the share of the room without the frame of a summary that they may take:
most tasks are no longer than a paragraph, and nothing in a summary is worth more."""
QUESTION_LINE_SHARE = 0.10
"""Share of the room for the open question: all its messages together."""
MAX_ROOM = 32_000
"""Tokens: shares refer to a room of at most this size, because longer texts are not read."""
SUMMARY_SHARE = 0.25
"""Share of the room for a summary that the client itself had made: it stands for a whole conversation."""
TASK, QUESTION, SUMMARY = "Task", "Question", "Summary"
_REQUEST = re.compile(rf"^(?:{TASK}|{QUESTION}|{SUMMARY}) #m[0-9]+: ", re.MULTILINE)
"""The beginning of a request. No line of a request looks like one: they are quoted."""
_MARK = Mark("\n[… {handle} …]\n")
_CHARACTERS_PER_TOKEN = 4
_SHORTER = 0.8
"""Factor by which a text is shortened in every attempt to make it fit."""

Shorten: TypeAlias = Callable[[UserRequest, str, int], str]
"""Shortens the text of a message to a number of tokens."""


def request_lines(
    folded: FoldedBranch,
    shown: Sequence[Item],
    last: int,
    room: int,
    *,
    counter: TokenCounter,
    shorten: Shorten | None = None,
    more: int = 0,
) -> tuple[str, ...]:
    """The lines that a summary of the messages numbered below `last` must contain, beside the messages that are `shown`.

    `room` is the room for messages in tokens; the task may take `more` tokens than its share of it. Only the originals of the conversation are read, so this can
    run in another thread than the indexing, unless `shorten` reads the index.
    """
    room = min(room, MAX_ROOM)
    cut = shorten or (lambda asked, text, limit: keep_ends(asked.number, text, limit, counter))
    covered = [one for one in folded.task if one.number < last]
    numbers = {one.number for one in covered}
    task = [one for one in covered if not is_client_summary(one.message)]
    told = [one for one in covered if is_client_summary(one.message)]
    questions = [one for one in folded.questions_before(last) if one.number not in numbers]
    most = (
        max(share_of(TASK_SHARE, room), min(LEAST_TASK, share_of(MOST_OF_SMALL, max(0, room - FRAME)))) + more
    )
    most_told = share_of(SUMMARY_SHARE, room)
    shares = (
        (TASK, task, most),
        (SUMMARY, told, most_told),
        (QUESTION, questions, share_of(QUESTION_LINE_SHARE, room)),
    )
    lines = [
        _line(label, one, limit, cut)
        for label, asked, most in shares
        for one, limit in zip(asked, _limits(asked, most, counter), strict=True)
        if not _is_shown(one, shown, limit)
    ]
    return tuple(filter(None, lines))


def with_requests(summary: Summary, lines: Sequence[str], counter: TokenCounter) -> Summary:
    """The summary with the missing lines at the front."""
    opening = missing_lines(summary.text, lines)
    if not opening:
        return summary
    tokens = summary.tokens + counter.text(opening)
    return structs.replace(
        summary, text=f"{opening}{summary.text}", tokens=tokens, requests=len(opening) + summary.requests
    )


def without_questions(summary: Summary, counter: TokenCounter) -> Summary:
    """The summary without the questions at its front, for one that is made to cover more messages: a question may
    have been answered in them. `with_requests` adds those that are still open.
    """
    opening = summary.text[: summary.requests]
    starts = [0, *(found.start() for found in _REQUEST.finditer(opening)), len(opening)]
    entries = [opening[start:end] for start, end in pairwise(starts)]
    closed = [entry for entry in entries if entry.startswith(f"{QUESTION} ")]
    if not closed:
        return summary
    kept = "".join(entry for entry in entries if entry not in closed)
    tokens = max(0, summary.tokens - sum(map(counter.text, closed)))
    return structs.replace(summary, text=f"{kept}{summary.own_text}", tokens=tokens, requests=len(kept))


def missing_lines(text: str, lines: Sequence[str]) -> str:
    """The lines that a text does not contain, each with a line end."""
    plain = _plain(text)
    return "".join(f"{line}\n" for line in lines if not _holds(text, plain, line))


def _holds(text: str, plain: str, line: str) -> bool:
    """True if the text contains the line, in any length, or its words."""
    label, _, said = line.partition(": ")
    return (
        text.startswith(f"{label}: ") or f"\n{label}: " in text or contains_separate_word(plain, _plain(said))
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _line(label: str, asked: UserRequest, limit: int, shorten: Shorten) -> str:
    handle, said = handle_of(asked.number), shorten(asked, _quoted_request(asked), limit).strip()
    return f"{label} {handle}: {said}" if said and said != _MARK.spell(handle=handle).strip() else ""


def _quoted_request(asked: UserRequest) -> str:
    """The request of a message, quoted so that none of its lines looks like one of ours."""
    mark, message = _MARK.spell(handle=handle_of(asked.number)).strip(), with_ends(asked.message, MAX_LEDGER)
    said = request_text(message, mark) or visible(message.text)
    return quoted_lines(said, own=handle_of(asked.number))


def _limits(asked: Sequence[UserRequest], most: int, counter: TokenCounter) -> list[int]:
    """Limit of each message within `most` tokens: short ones are whole, and the longer ones share the rest."""
    if len(asked) < 2:
        return [most] * len(asked)
    return [fair_share([counter.text(_quoted_request(one)) for one in asked], most)] * len(asked)


def _is_shown(asked: UserRequest, shown: Sequence[Item], limit: int) -> bool:
    """True if a message is shown in full, or at least as much of it as a line would hold."""
    item = next((item for item in shown if item.seq == asked.number), None)
    if item is None:
        return False
    is_long = item.tokens >= limit and not item.message.results  # beside a result, the text may be short
    return is_long or item.message is asked.message or _typed_text(item.message) == _typed_text(asked.message)


def _typed_text(message: Message) -> str:
    return request_text(with_ends(message, MAX_LEDGER))


def keep_ends(number: int, text: str, limit: int, counter: TokenCounter) -> str:
    """The beginning and the end of a message's text, in at most `limit` tokens."""
    length, handle = len(text), handle_of(number)
    short = text
    while counter.text(short) > limit and length > len(_MARK.text):
        length = min(limit * _CHARACTERS_PER_TOKEN, int(length * _SHORTER))
        short = truncate(text, length, _MARK, handle)
    return short


# The sections around a digest
#
# Every section has one heading, at most once, and a share of the room. If it does not fit, the oldest errors, decisions and files are
# left out, the rules in the middle, and the oldest messages that change no task. The number of omitted entries is not stated: it would
# be the only number in the summary that is not in the conversation.

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


# Headings, and the lines under each
#
# A heading names a section, so it may occur once; a smaller one once under its parent. A line of code that begins with the same mark
# is no heading.

_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_NO_CONTENT = re.compile(
    r"(?:there (?:is|was) )?(?:no|n/?a|none|nil|null|nothing|empty|ok(?:ay)?|done|todo|tbd|unavailable|unknown|not (?:available|applicable))"
    r"(?: (?:yet|so far|here|available|to report))?"
    r"|(?:(?:there is )?no |the )?(?:summary|checkpoint)(?: (?:is |was )?(?:not |un)?available| (?:is )?empty| complete| provided| follows)?"
    r"|here(?:['’]s| is) (?:the|your|a|my)(?: \w{1,16}){0,2} (?:checkpoint|summary)"
    "|无|無|没有|暂无|不适用|完成|好的|keine?|nichts|entfällt|fertig|aucune?|rien|ningun[oa]|nada|nenhum[a]?|nessun[oa]?|niente|нет|ничего|готово"
    "|なし|ありません|없음|없습니다",
    re.IGNORECASE,
)
"""Lines that state that there is nothing to say, and lines that only announce a text."""
_AROUND = " \t*_-•>#.,:;!?()[]{}<>\"'`…。：！"
_TOP = 2
"""Headings down to this level are top sections; deeper ones belong to the section that contains them."""


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield every line, and whether it is code between fences."""
    if "```" not in text and "~~~" not in text:
        yield from ((line, False) for line in text.splitlines())
        return
    fence = ""
    for line in text.splitlines():
        after = _fence(line, fence)
        yield line, bool(fence or after)
        fence = after


def is_open(text: str) -> bool:
    """Return True if the text ends in code with an unclosed fence."""
    fence = ""
    for line in text.splitlines():
        fence = _fence(line, fence)
    return bool(fence)


def _fence(line: str, fence: str) -> str:
    """Return the fence that is open after a line; empty if there is none."""
    if "```" not in line and "~~~" not in line:
        return fence  # as for most lines, without the pattern
    mark = _FENCE.match(line)
    if mark is None:
        return fence
    if not fence:
        return mark[1][:3]
    return "" if mark[1].startswith(fence) else fence


def is_heading(line: str) -> bool:
    return _HEADING.match(line) is not None


def says_something(text: str) -> bool:
    """Return True if a text has more than white space, rulers, headings, and words such as "none"."""
    return any(
        any(map(str.isalnum, line)) and (is_code or not (is_heading(line) or _has_no_content(line)))
        for line, is_code in lines_of(text)
    )


def _has_no_content(line: str) -> bool:
    return _NO_CONTENT.fullmatch(line.strip(_AROUND)) is not None


def count_repeated(text: str) -> int:
    """Return the number of headings that occur more than once."""
    has_code = "```" in text or "~~~" in text
    if not has_code:  # as in most summaries: no other line matters
        text = "\n".join([line for line in text.splitlines() if line.startswith(("##", "# ", "#\t"))])
    return sum(count > 1 for count in Counter(path for path, _ in _sections(text) if path).values())


def headings_once(text: str) -> str:
    """Return the text with the lines under a repeated heading moved under its first occurrence."""
    if not count_repeated(text):
        return text
    parts: dict[tuple[str, ...], list[str]] = {(): []}
    for path, lines in _sections(text):
        parts.setdefault(path, lines[:1] if path else []).extend(lines[1:] if path else lines)
    order = {path: number for number, path in enumerate(parts)}
    by_parent = sorted(parts, key=lambda path: [order[path[: size + 1]] for size in range(len(path))])
    return "\n".join(line for path in by_parent for line in parts[path]).strip()


def section_span(text: str, title: str) -> tuple[int, int] | None:
    """Return the first line and the end of the section under a heading, without the heading and empty last
    lines.
    """
    lines, wanted, start = text.splitlines(), _identity(title), None
    for number, (line, is_code) in enumerate(lines_of(text)):
        if is_code or not is_heading(line):
            continue
        if start is not None:
            return start, _trim_blank_end(lines, start, number)
        start = number + 1 if _identity(line) == wanted else None
    return None if start is None else (start, _trim_blank_end(lines, start, len(lines)))


def split_section(text: str, title: str) -> tuple[str, str]:
    """Split a text into the rest and the section under a heading, with the heading and its smaller ones."""
    wanted = _identity(title)
    rest, own = list[str](), list[str]()
    for path, lines in _sections(text):
        (own if path[:1] == (wanted,) else rest).extend(lines)
    return "\n".join(rest).strip(), "\n".join(own).strip()


def _trim_blank_end(lines: Sequence[str], start: int, stop: int) -> int:
    while stop > start and not lines[stop - 1].strip():
        stop -= 1
    return stop


def _sections(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the path of each heading, its parents included, with its lines; first the lines before all
    headings.
    """
    path: tuple[str, ...] = ()
    levels: list[int] = []
    held: list[str] = []
    for line, is_code in lines_of(text):
        if is_code or not line.startswith("#") or not (match := _HEADING.match(line)):
            held.append(line)
            continue
        yield path, held
        level = max(_TOP, len(match[1]))
        while levels and levels[-1] >= level:
            levels.pop()
        path, levels, held = (*path[: len(levels)], _identity(line)), [*levels, level], [line]
    yield path, held


def _identity(line: str) -> str:
    """Return the key by which two headings are equal: level and words, without case and markup."""
    marks = len(line) - len(line.lstrip("#"))
    words = " ".join(line.strip("#*_: \t").split()).casefold()
    return f"{max(_TOP, marks)} {words}"
