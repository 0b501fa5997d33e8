"""Worst cases of a regular expression, made from its own automaton.

A text reaches a loop by the shortest path, repeats a word that leads back into it, and ends with a character
that the loop does not read. Words are single letters, first those that most of the loop's states can read,
and the shortest paths through each edge of the loop. For a search, the path to the loop is repeated as well,
so that the pattern seems to begin again and again.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from refold.core.regex_safety import Automaton, Edge, loops

MOST_LETTERS = 2
MOST_CYCLES = 2
MOST_LOOPS = 6
"""Loops of one pattern that are used, spread over all: long alternations have hundreds that differ in a word."""
ENDS = ("\0", "")


def pumped(automaton: Automaton, size: int) -> Iterator[str]:
    """Texts of about this many characters, each once."""
    found = dict[str, None]()
    groups = loops(automaton.edges)
    step = max(1, len(groups) // MOST_LOOPS)
    for group in groups[::step]:
        before = _way(automaton, 0, group[0])
        for word in _words(automaton, group):
            pump = word * max(1, size // len(word))
            ends = ENDS[:1] if automaton.use == "search" else ENDS
            found |= dict.fromkeys(before + pump + end for end in ends)
            if automaton.use == "search" and before:
                again = before + word
                found[again * max(1, size // len(again))] = None
    if not groups:
        spelled = _way(automaton, 0, len(automaton.reads) - 1) or "a"
        found[spelled * max(1, size // len(spelled))] = None
    yield from found


def _words(automaton: Automaton, group: Sequence[int]) -> Iterator[str]:
    alphabet, inside = automaton.alphabet, set(group)
    readers = {
        letter: sum(automaton.reads[state] >> at & 1 for state in group)
        for at, letter in enumerate(alphabet.samples)
    }
    letters = sorted((letter for letter in readers if readers[letter]), key=lambda letter: -readers[letter])
    words = letters[:MOST_LETTERS]
    edges = [(state, edge) for state in group for edge in automaton.edges[state] if edge.state in inside]
    for state, edge in edges[:: max(1, len(edges) // MOST_CYCLES)]:
        words.append(alphabet.sample(edge.reads) + _way(automaton, edge.state, state, inside))
    yield from dict.fromkeys(words)


def _way(automaton: Automaton, start: int, stop: int, inside: set[int] | None = None) -> str:
    """The shortest text that leads from one state to another."""
    came: dict[int, tuple[int, Edge]] = {}
    waiting = deque([start])
    seen = {start}
    while waiting and stop not in came and start != stop:
        state = waiting.popleft()
        for edge in automaton.edges[state]:
            if edge.state not in seen and (inside is None or edge.state in inside):
                seen.add(edge.state)
                came[edge.state] = state, edge
                waiting.append(edge.state)
    said, state = "", stop
    while state != start and state in came:
        state, edge = came[state]
        said = automaton.alphabet.sample(edge.reads) + said
    return said
