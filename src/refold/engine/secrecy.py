"""What a conversation keeps to itself: messages that are sensitive, and secrets that were found in it.

A message is sensitive because it was marked when it was added, or because a pattern matches it. It stays in the branch, is sent to
the conversation's own model and can be recalled by its handle. It is not indexed, leaves nothing in the ledger and is not taken for
the task, so no digest, no search and no summary that is made from these holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from refold.core.digest.shorten import searchable
from refold.core.folded import Folded
from refold.core.regex_safety import ambiguity
from refold.core.secrets.redact import texts_of, values_of
from refold.model.errors import ConfigError
from refold.model.message import Message
from refold.model.window import Window


class Secrecy(Struct, frozen=True):
    """The secrets of one conversation."""

    patterns: tuple[re.Pattern[str], ...] = ()
    numbers: frozenset[int] = frozenset()
    """The sensitive messages."""
    holders: frozenset[int] = frozenset()
    """Messages in which secrets were found: not sensitive as a whole."""
    is_prompt_marked: bool = False
    known: frozenset[str] = frozenset()
    """The secrets of the first `searched` messages."""
    searched: int = 0
    found: dict[int, tuple[Message, frozenset[str]]] = {}
    """A cache of what was found in each message. Values of one conversation share it: a summary is written in another thread, and
    the result of a search is the same in both."""

    @classmethod
    def of(cls, patterns: Sequence[str] = ()) -> Secrecy:
        """
        Raises:
            ConfigError: a pattern is no regular expression.
        """
        return cls(tuple(map(_compiled, [patterns] if isinstance(patterns, str) else patterns)))

    def take(
        self, folded: Folded, message: Message, *, is_marked: bool, later: bool = False
    ) -> tuple[Secrecy, Folded]:
        """With one more original; a sensitive one is neither indexed nor put into the ledger, another one maybe `later`."""
        if not is_marked and not self.matches(message):
            return self, folded.take(message, later=later)
        return structs.replace(self, numbers=self.numbers | {folded.size}), folded.hold(message)

    def restored(self, numbers: Iterable[int], holders: Iterable[int], told: Iterable[Message]) -> Secrecy:
        """With what was marked and found before; `told` are the messages of the holders. The messages that are held are searched again."""
        known = frozenset[str]().union(*(values_of(searchable(one)) for one in told))
        return structs.replace(
            self, numbers=frozenset(numbers), holders=frozenset(holders), known=known, searched=0, found={}
        )

    def matches(self, message: Message) -> bool:
        """Does any of the patterns match anything in it?"""
        return bool(self.patterns) and any(
            pattern.search(text) for text in texts_of(message) for pattern in self.patterns
        )

    def covers(self, window: Window, first: int, last: int) -> bool:
        """Is anything sensitive in a window of the messages `first` up to, not including, `last`?"""
        is_among = any(first <= number < last for number in self.numbers)
        told = (*window.system, *window.summaries, *window.messages[: window.opening])
        return is_among or self.is_prompt_marked or any(map(self.matches, told))

    def search(self, folded: Folded) -> Secrecy:
        """With the secrets of all messages so far as `known`; each message is searched once."""
        first = max(self.searched, folded.origin)
        if first >= folded.size:
            return self
        originals = enumerate(folded.originals(first, folded.size), first)
        found = {number: values for number, message in originals if (values := self._values(number, message))}
        return structs.replace(
            self,
            known=self.known.union(*found.values()),
            holders=self.holders.union(found),
            searched=folded.size,
        )

    def _values(self, number: int, message: Message) -> frozenset[str]:
        searched = self.found.get(number)
        if searched is None or searched[0] is not message:
            searched = self.found[number] = message, values_of(searchable(message))
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
