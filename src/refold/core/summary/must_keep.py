"""See to it that a summary keeps what must not get lost.

One idea: whatever a model writes, the ledger's facts stand in the result word for word, each once, under one heading, as far
as the summary has tokens for them. Facts that the model kept itself stay where it put them. Rules and changed files come
first; each kind has a share of the room before any takes what the others leave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from refold.core.summary.chunks import Count
from refold.core.summary.headings import headings_once, under
from refold.core.summary.ledger import Ledger, from_both_ends
from refold.core.summary.prompts import Passage, defused
from refold.core.summary.sections import DECISIONS, ERRORS, MODIFIED, READ, RULES, TASKS, one_line
from refold.core.summary.typed_text import typed
from refold.core.summary.whole import says

_ORDER = (RULES, MODIFIED, READ, ERRORS, DECISIONS, TASKS)
"""How they stand in a text."""
_SHARES = {RULES: 0.45, MODIFIED: 0.25, TASKS: 0.1, ERRORS: 0.1, DECISIONS: 0.1, READ: 0.0}
"""Which comes first, and what share of the room it is sure of: what was only read can be read again."""
_SLACK = 2
"""Tokens by which a line may cost more in its place than by itself."""
_POINT = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+(?=\S)")
_SHORTEST_RULE = 12
"""Characters: something shorter may stand in any text by chance."""


class _Page:
    """A text that is being filled with facts, up to so many tokens."""

    def __init__(self, text: str, most: int, count: Count) -> None:
        self.text, self.most, self.count = text, most, count
        self.used, self.is_exact = count(text), True
        self.added: dict[str, dict[int, str]] = {}
        """The lines under each heading, by their places in the ledger."""
        self.shown = text

    def whole(self, title: str = "", line: str = "") -> str:
        """The text with all that was added, and one line more."""
        text, joint = self.text, "\n\n" if self.text else ""
        for name in _ORDER:
            added = self.added.get(name, {})
            lines = [*(added[at] for at in sorted(added)), *([line] if name == title else [])]
            if lines and (place := under(text, name)):
                text = _inserted(text, place[1], lines)
            elif lines:
                text, joint = "\n".join((f"{text}{joint}{name}", *lines)), "\n"
        return text

    def fill(self, title: str, lines: Sequence[str], limit: int) -> None:
        """Add the newest lines that the text does not say yet, and of rules the oldest too, while there is room."""
        for at in from_both_ends(len(lines)) if title == RULES else reversed(range(len(lines))):
            line = lines[at]
            if not says(self.shown, line[2:]) and self._fits(title, line, min(limit, self.most)):
                self.added.setdefault(title, {})[at] = line
                self.shown = f"{self.shown}\n{line}"

    def _fits(self, title: str, line: str, limit: int) -> bool:
        is_new = title not in self.added and under(self.text, title) is None
        cost = self.count(f"\n{line}") + (self.count(f"\n{title}") if is_new else 0)
        if self.used + cost + _SLACK <= limit:
            self.used, self.is_exact = self.used + cost + _SLACK, False
            return True
        if not self.is_exact:
            self.used, self.is_exact = self.count(self.whole()), True
        if self.used + cost - _SLACK > limit:
            return False
        tokens = self.count(self.whole(title, line))
        self.used = tokens if tokens <= limit else self.used
        return tokens <= limit

    def trimmed(self) -> str:
        """The whole, within its tokens also where lines cost more together than one by one."""
        text = self.whole()
        for name in reversed(tuple(_SHARES)):
            while (added := self.added.get(name)) and self.count(text) > self.most:
                places = sorted(added)
                del added[places[len(places) // 2] if name == RULES else places[0]]
                text = self.whole()
        return text


def with_facts(text: str, ledger: Ledger, *, most: int, count: Count, said: str = "") -> str:
    """The text with those facts of the ledger that it does not hold, within `most` tokens.

    `said` is what the user typed (`typed_by_user`): a rule that stands there may stand in the text.
    """
    facts = fact_lines(ledger)
    page = _Page(_with_own_lists(text, facts, said), most, count)
    room = most - page.used
    for title, share in _SHARES.items():
        page.fill(title, facts[title], page.used + int(room * share))
    for title in _SHARES:
        page.fill(title, facts[title], most)
    return page.trimmed()


def typed_by_user(passages: Sequence[Passage], previous: str = "") -> str:
    """What the user typed in some passages, and the rules that an earlier summary names as the user's."""
    first = passages[0].number if passages else 0
    replies = (passage.number for passage in passages if passage.message.role == "assistant")
    reply = next(replies, 0 if first else len(passages))
    said = (
        "\n".join(typed(passage.message, is_task=not first and passage.number < reply))
        for passage in passages
        if passage.message.role == "user"
    )
    place = under(previous, RULES)
    listed = previous.splitlines()[place[0] : place[1]] if place else ()
    return "\n".join((*said, *listed))


def fact_lines(ledger: Ledger) -> dict[str, list[str]]:
    """The ledger's facts as points of a list, under the heading of each kind."""
    found = {
        RULES: ledger.rules,
        MODIFIED: ledger.modified,
        READ: ledger.read,
        ERRORS: ledger.errors,
        DECISIONS: ledger.decisions,
        TASKS: ledger.tasks,
    }
    return {title: _lines(entries) for title, entries in found.items()}


def _lines(entries: Iterable[str]) -> list[str]:
    """Each on a line of its own, with nothing in it that could be taken for a mark of ours."""
    return [f"- {defused(said)}" for entry in entries if (said := one_line(entry))]


def _inserted(text: str, at: int, lines: Sequence[str]) -> str:
    whole = text.splitlines()
    return "\n".join((*whole[:at], *lines, *whole[at:]))


def _with_own_lists(text: str, facts: dict[str, list[str]], said: str) -> str:
    """The text, in which no rule stands under our heading that nobody gave, and no changed file among those only read."""
    rules, modified, read = ([line[2:] for line in facts[title]] for title in (RULES, MODIFIED, READ))
    heard = _plain("\n".join((said, *rules))) if under(text, RULES) else ""
    text = _without_points(text, RULES, lambda point: not _is_given(point, rules, heard))
    return _without_points(
        text, READ, lambda point: point not in read and any(says(point, path) for path in modified)
    )


def _without_points(text: str, title: str, is_wrong: Callable[[str], bool]) -> str:
    """The text without some points of the list under a heading, and without the heading if nothing is left."""
    place = under(text, title)
    if place is None:
        return text
    start, stop = place
    lines = text.splitlines()
    points = ((line, _POINT.match(line)) for line in lines[start:stop])
    kept = [line for line, mark in points if not (mark and is_wrong(line[mark.end() :]))]
    if len(kept) == stop - start:
        return text
    is_left = any(line.strip() for line in kept)
    rest = (*lines[:start], *kept) if is_left else lines[: start - 1]
    return headings_once("\n".join((*rest, *lines[stop:])).strip())


def _is_given(point: str, rules: Iterable[str], heard: str) -> bool:
    plain = _plain(point)
    is_heard = len(plain) >= _SHORTEST_RULE and plain in heard
    return is_heard or any(says(point, rule) for rule in rules)


def _plain(text: str) -> str:
    """A text without what is put around its words."""
    return " ".join(text.casefold().replace("*", "").replace("`", "").split()).strip("\"'“”«».。 ")
