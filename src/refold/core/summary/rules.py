"""The user's rules: sentences that say how things are to be done, found by their form and kept word for word.

One idea: a rule in other words is another rule. So sentences that order, forbid or limit something are taken as they stand,
and so is every point of a list that its heading calls rules. Code is no rule, whatever its comments say, and neither is a
question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_RULE = 400
"""Characters of one rule: a longer sentence is a text, and no rule to follow word for word."""
_MIN_WORDS = 3
_ORDER = re.compile(
    r"\b(?:always|never|must|mustn['’]t|make sure|be sure|ensure|avoid|prefer|remember to|from now on|at all times"
    r"|under no circumstances|no more than|at most|at least|only use|use only|only (?:if|when|after)|required to"
    r"|not allowed|should(?: not|n['’]t| never| only)|(?:want|need|expect) you to|(?:may|can) (?:only|never|not))\b"
    r"|(?:^|[.!?,:;(*—-] ?|\b(?:please|you|but|and|so|then) )(?:do not|don['’]t)\b|必须|不要|禁止|务必|请勿",
    re.IGNORECASE,
)
"""An order, a ban or a limit. "I don't know" states a fact, so the negation counts only where an order can begin."""
_HEADING = re.compile(
    r"(?:#+ |\*\*)?[^.!?]{0,60}\b(?:rules|constraints|requirements|guidelines|conventions|restrictions)\b[^.!?]{0,60}$",
    re.IGNORECASE,
)
_POINT = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+(?=\S)")
_BULLET = re.compile(r"^[\s>*•-]*(?:\d+[.)]\s+)?")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_QUOTED = re.compile(r"`[^`]*`")
_CODE_START = re.compile(r"\s*(?:#|//|/\*|\"\"\"|'''|>>>|\d+[:\t|])")
_CODE_MARKS = frozenset("{}[]()<>=;|\\")
_MAX_MARKS = 0.05
"""A line with more marks of code than this is code; a rule may name a call or an operator."""
_WRAPPED = 60
"""A line at least this long that ends in the middle of a sentence goes on in the next one."""
_FAR_EAST = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def rules(text: str) -> Iterator[str]:
    """The sentences of a user's text that state a rule, in their order."""
    in_list = False
    for line in _unwrapped(text):
        is_point = _POINT.match(line) is not None
        in_list = in_list and (is_point or not line.strip())
        if is_point and in_list and not _is_code(line):
            yield from (point for point in [_bare(line)] if len(point) <= MAX_RULE)
        elif _ORDER.search(line) and not _is_code(line):
            yield from filter(_is_rule, map(_bare, _SENTENCE.split(line)))
        in_list = in_list or (_HEADING.match(line.strip()) is not None and not is_point)


def _unwrapped(text: str) -> Iterator[str]:
    """The lines of a text; a sentence that was broken by hand is one line again."""
    held = _Unwrapped("")
    for line in text.splitlines():
        said = line.strip()
        if said[:1].islower() and held.goes_on:
            held.add(said)
        else:
            if held.length:
                yield " ".join(held.parts)
            held = _Unwrapped(line.rstrip())
    if held.length:
        yield " ".join(held.parts)


class _Unwrapped:
    """Lines that are one line, and how much of it is code, kept up to date as it grows: reading it all again for each line
    would take time that grows with the square of a text.
    """

    def __init__(self, line: str) -> None:
        self.parts, self.length = [line], len(line)
        self._is_comment = _CODE_START.match(line) is not None
        self._marks = self._size = 0
        self._quoted: tuple[int, int] | None = None
        """The same of what stands behind a backtick that is not closed yet: if it will be, it counts for nothing."""
        self._count(line)

    def add(self, line: str) -> None:
        self.parts.append(line)
        self.length += len(line) + 1
        self._count(f" {line}")

    def _count(self, line: str) -> None:
        for at, piece in enumerate(line.split("`")):
            marks, size = sum(map(_CODE_MARKS.__contains__, piece)), len(piece)
            if at:
                self._quoted = None if self._quoted else (0, 1)
            if self._quoted:
                self._quoted = self._quoted[0] + marks, self._quoted[1] + size
            else:
                self._marks, self._size = self._marks + marks, self._size + size

    @property
    def goes_on(self) -> bool:
        """Is it broken in the middle of a sentence, and no code?"""
        is_broken = self.length >= _WRAPPED and self.parts[-1][-1:].isalnum()
        if not is_broken or self._is_comment:
            return False
        marks, size = self._quoted or (0, 0)
        return self._marks + marks <= _MAX_MARKS * (self._size + size)


def _is_rule(sentence: str) -> bool:
    if len(sentence) > MAX_RULE or sentence.endswith(("?", "？")) or not _ORDER.search(sentence):
        return False
    return len(sentence.split(maxsplit=_MIN_WORDS)) >= _MIN_WORDS or _FAR_EAST.search(sentence) is not None


def _bare(sentence: str) -> str:
    return _BULLET.sub("", sentence).strip()


def _is_code(line: str) -> bool:
    if _CODE_START.match(line):
        return True
    said = _QUOTED.sub("", line)
    return sum(map(_CODE_MARKS.__contains__, said)) > _MAX_MARKS * len(said)
