"""Search in memory, without an index: every text is scanned.

Each word is between two spaces, so a word is counted by searching for it with its spaces, and a phrase is a longer such text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from refold.core.search_terms import Phrase, fragments, phrases, words
from refold.ports.records import Head, SearchHit
from refold.stores.search_terms import weigh, worth

_GAP = "  "


def prepare(text: str) -> str:
    """The searchable form of a text."""
    return _spell(words(text))


def search(texts: Mapping[Head, Sequence[str]], query: str, limit: int) -> list[SearchHit]:
    """Messages of branches that match all parts of a query; if there are none, those that match some of them."""
    wanted = phrases(query)
    hits = list(_match(texts, dict.fromkeys(wanted, 1.0), len(wanted)))
    if not hits:
        parts = fragments(wanted)
        counts = [len(list(_match(texts, {part: 1.0}, 1))) for part in parts]
        hits = list(_match(texts, weigh(parts, counts), 1))
    return sorted(hits, key=lambda hit: (-hit.score, -hit.seq))[:limit]


def _match(
    texts: Mapping[Head, Sequence[str]], weighed: Mapping[Phrase, float], needed: int
) -> Iterator[SearchHit]:
    spelt, weights = [_spell(phrase) for phrase in weighed], list(weighed.values())
    for head, held in texts.items():
        for seq, text in enumerate(held, head.base_seq):
            counts = [text.count(phrase) for phrase in spelt]
            if weights and sum(map(bool, counts)) >= needed:
                score = worth(counts, weights, text.count(_GAP) + 1)
                yield SearchHit(conversation=head.conversation, branch=head.branch, seq=seq, score=score)


def _spell(phrase: Sequence[str]) -> str:
    return f" {_GAP.join(phrase)} "
