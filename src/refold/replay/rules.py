"""Rules: sentences in which a user says how things are to be done.

One idea: a rule is worth nothing in other words. "Never touch the migrations" that survives as "migrations were discussed"
is lost, so a rule counts as kept only where its sentence stands in the context letter for letter.
"""

from __future__ import annotations

import re

_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_BULLET = re.compile(r"^[\s>#*•-]*(?:\d+[.)]\s+)?")
_RULE = re.compile(
    r"\b(?:always|never|must|mustn't|make sure|be sure|ensure|avoid|from now on|remember to|"
    r"under no circumstances|at all times|no more than|at most|at least|only (?:if|when|use|after)|"
    r"(?:i|we) (?:want|prefer|need) you to|you (?:should|may|can) (?:not|only|never))\b"
    r"|(?:^|[,:;(*] ?|\b(?:please|you|but|and) )(?:do not|don't)\b",
    re.IGNORECASE,
)
"""An order, a ban or a limit. "I don't know" states a fact, so the negation counts only where an order can begin."""
MIN_WORDS = 3
MAX_CHARACTERS = 400
"""A sentence that goes on for longer is a pasted document."""


def rules(text: str) -> tuple[str, ...]:
    """The sentences of a user's text that state a rule, each as it stands there."""
    sentences = (_BULLET.sub("", sentence).strip() for sentence in _ENDS.split(text))
    return tuple(dict.fromkeys(sentence for sentence in sentences if _is_rule(sentence)))


def _is_rule(sentence: str) -> bool:
    if len(sentence) > MAX_CHARACTERS or sentence.endswith("?"):
        return False
    return len(sentence.split(maxsplit=MIN_WORDS)) >= MIN_WORDS and _RULE.search(sentence) is not None
