"""Search a text for many phrases at once, with the Aho-Corasick algorithm.

The time is linear in the text for any number of phrases.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator


class PhraseIndex:
    """A trie of all phrases.

    Each node links to the longest proper suffix of its text that is also a prefix of a phrase.

    Most nodes have one child, which has the next number: then only its letter is stored, some 20 bytes for
    each.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._letter = [""]
        """The letter that leads from each node to the node with the next number; empty if there is none."""
        self._others: dict[int, dict[str, int]] = {}
        """Further children of a node, by letter."""
        self._longest = array("I", [0])
        """The length of the longest phrase that ends at each node; zero if there is none."""
        for phrase in phrases:
            self._add(phrase)
        self._link = self._suffix_links()

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of phrases in a text: for every end, the longest phrase."""
        child_of, link, longest, node = self._child, self._link, self._longest, 0
        for stop, letter in enumerate(text, 1):
            while not (child := child_of(node, letter)) and node:
                node = link[node]
            node = child
            if longest[node]:
                yield stop - longest[node], stop

    def _child(self, node: int, letter: str) -> int:
        """Return the child of a node for a letter; zero if there is none."""
        if self._letter[node] == letter:
            return node + 1
        return self._others[node].get(letter, 0) if node in self._others else 0

    def _add(self, phrase: str) -> None:
        node = depth = 0
        while depth < len(phrase) and (child := self._child(node, phrase[depth])):
            node, depth = child, depth + 1
        for letter in phrase[depth:]:
            new = len(self._letter)
            if new == node + 1:
                self._letter[node] = letter
            else:
                self._others.setdefault(node, {})[letter] = new
            self._letter.append("")
            self._longest.append(0)
            node = new
        self._longest[node] = len(phrase)

    def _suffix_links(self) -> array[int]:
        link = array("I", bytes(4 * len(self._letter)))
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for letter, child in self._children(node):
                end = link[node]
                while end and not self._child(end, letter):
                    end = link[end]
                link[child] = self._child(end, letter) if node else 0
                self._longest[child] = self._longest[child] or self._longest[link[child]]
                waiting.append(child)
        return link

    def _children(self, node: int) -> Iterator[tuple[str, int]]:
        if self._letter[node]:
            yield self._letter[node], node + 1
        yield from self._others.get(node, {}).items()
