"""What a conversation keeps to itself: messages that are sensitive, and secrets that were found in it.

One idea: a message is sensitive because somebody said so when it was added, or because a pattern matches it. It stays in the
branch, is sent to the conversation's own model and can be recalled by its handle. It is not indexed, leaves nothing in the
ledger and is not taken for the task, so that no digest, no search and no summary that is made from these can tell it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from refold.core.fold import Folded
from refold.core.patterns import ambiguity
from refold.core.summary.long_texts import searchable
from refold.core.summary.redact import texts_of, values_of
from refold.model.errors import ConfigError
from refold.model.message import Message
from refold.model.window import Window


class Secrecy:
    """The secrets of one conversation. `numbers` are its sensitive messages.

    Raises:
        ConfigError: a pattern is no regular expression.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [
            _compiled(pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        ]
        self.numbers: frozenset[int] = frozenset()
        self.holders: frozenset[int] = frozenset()
        """Messages in which secrets were found: not sensitive as a whole."""
        self.is_prompt_marked = False
        self._known: frozenset[str] = frozenset()
        self._searched = 0
        self._found: dict[int, tuple[Message, frozenset[str]]] = {}
        """What was found in each message that was searched. Copies share it: whoever writes a summary searches in another thread,
        and what both find is the same."""

    def take(self, folded: Folded, message: Message, *, is_marked: bool, later: bool = False) -> Folded:
        """One more original; a sensitive one is neither indexed nor put into the ledger, another one maybe `later`."""
        if not is_marked and not self.matches(message):
            return folded.take(message, later=later)
        self.numbers |= {folded.size}
        return folded.hold(message)

    def restore(self, numbers: Iterable[int], holders: Iterable[int], told: Iterable[Message]) -> None:
        """Go on with what was marked and found before; `told` are the holders themselves. What is held is searched again."""
        self.numbers, self.holders, self._searched = frozenset(numbers), frozenset(holders), 0
        self._found = {}
        self._known = frozenset().union(*(values_of(searchable(one)) for one in told))

    def matches(self, message: Message) -> bool:
        """Does any of the patterns match anything in it?"""
        return bool(self._patterns) and any(
            pattern.search(text) for text in texts_of(message) for pattern in self._patterns
        )

    def covers(self, window: Window, first: int, last: int) -> bool:
        """Is anything sensitive in a window of the messages `first` up to, not including, `last`?"""
        is_among = any(first <= number < last for number in self.numbers)
        told = (*window.system, *window.summaries, *window.messages[: window.opening])
        return is_among or self.is_prompt_marked or any(map(self.matches, told))

    def known(self, folded: Folded) -> frozenset[str]:
        """The secrets of all that was said so far, wherever they may stand; each message is searched once."""
        first = max(self._searched, folded.origin)
        originals = enumerate(folded.originals(first, folded.size), first)
        found = {number: values for number, message in originals if (values := self._values(number, message))}
        if found:
            self._known, self.holders = self._known.union(*found.values()), self.holders.union(found)
        self._searched = folded.size
        return self._known

    def _values(self, number: int, message: Message) -> frozenset[str]:
        searched = self._found.get(number)
        if searched is None or searched[0] is not message:
            searched = self._found[number] = message, values_of(searchable(message))
        return searched[1]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        # What `re` says quotes the pattern, which is as private as what it is to hide.
        position = getattr(error, "pos", None)
        told = "" if position is None else f" (at character {position + 1})"
        raise ConfigError(
            f"a pattern for sensitive messages is no regular expression{told}",
            hint=r"give texts such as r'(?i)\bsalary\b', and escape what is meant letter for letter with re.escape",
        ) from None
    if ambiguity(compiled):
        raise ConfigError(
            "a pattern for sensitive messages could take for ever on some text",
            hint="it can read one text in several ways: write .{0,200} for .*, and no repetition inside of another",
        )
    return compiled
