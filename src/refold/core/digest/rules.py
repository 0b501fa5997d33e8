"""The user's rules: sentences that state how work has to be done, found by their form and kept word for word.

A paraphrased rule is a different rule, so sentences that order, forbid or limit something are copied
unchanged, and so is every item of a list whose heading calls it rules. Code, including its comments, is no
rule, and neither is a question. An order between quotation marks or inline tags is quoted and not given,
though a rule may contain a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_RULE = 400
"""Characters of one rule: a longer sentence is a text, and no rule to follow word for word."""
_MIN_WORDS = 3
_START = r"(?:^|[.!?,:;(*—-] ?|\b(?:please|pls|plz|you|but|and|so|then) )"
"""Positions at which an order can begin."""
_ORDER = re.compile(
    r"\b(?:always|never|must|mustn['’]t|make sure|be sure|ensure|avoid|prefer|remember to|from (?:now|here) on|at all times"
    r"|under no circumstances|no more than|at most|at least|only use|use only|only (?:if|when|after)|required to"
    r"|not allowed|should(?: not|n['’]t| never| only)|(?:want|need|expect|i['’]d like|would like) you to|(?:may|can) (?:only|never|not)|ask me (?:before|first)"
    r"|niemals|auf keinen fall|(?:bitte|du musst) immer|darfst (?:nicht|kein\w{0,3})|en ningún caso|en aucun cas|in nessun caso"
    r"|ab (?:jetzt|sofort)|von (?:jetzt|nun) an|vanaf nu|à partir de maintenant|a partir de ahora|de ahora en adelante|d['’]ora in poi|de agora em diante"
    r"|ни в коем случае|нельзя|nie wolno|asla|कभी मत|أبدا)\b"
    rf"|{_START}(?:(?:do not|don['’]?t)\b|stop \w{{2,20}}ing\b|only (?:edit|change|touch|modify|work)\b|use [^.,;:!?]{{1,60}}, not\b"
    r"|leave [^.,;:!?]{1,60} alone\b|(?:nunca|jamás|siempre|sempre|nigdy nie|zawsze|никогда не|всегда|immer|nooit|altijd)\b"
    r"|(?:antworte|schreibe|verwende|benutze|ändere|lösche|raak|gebruik|wijzig|verander|verwijder|schrijf|antwoord)\b(?! (?:ich|wir|ik|we)\b)"
    r"[^,;:!?]{0,60} (?:immer|nie|nicht|keine?n?|nooit|altijd|niet|geen)\b"
    r"|ne \w{2,20} (?:jamais|pas|rien)\b|non \w{2,20}re mai\b|не \w{2,20}(?:й|йте|ите)\b"
    r"|(?!(?:yo|él|ella|io|eu|je|il|on|ich|es|ik) )\w{3,20} (?:toujours|siempre|sempre|nunca|jamais)\b)"
    "|必须|不要|禁止|务必|请勿|绝对不|絕對不|不得|不准|絶対に|しないでください|必ず|절대|하지 마|반드시",
    re.IGNORECASE,
)
"""An order, a ban or a limit. "I don't know" states a fact, so a negation counts only at a position at
which an order can begin, and so do words of other languages that also occur in statements of facts."""
_ORDER_AS_QUESTION = re.compile(
    r"(?:can|could|will|would) you (?:please )?(?:(?:make sure|ensure)(?: that)? you (?:never|always|do not|don['’]t)|never)\b",
    re.IGNORECASE,
)
"""A question that is an order."""
_HEADING = re.compile(
    r"(?:#+ |\*\*)?[^.!?]{0,60}\b(?:rules|constraints|requirements|guidelines|conventions|restrictions)\b[^.!?]{0,60}$",
    re.IGNORECASE,
)
_POINT = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+(?=\S)")
_BULLET = re.compile(r"^[\s>*•-]*(?:\d+[.)]\s+)?")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_QUOTED = re.compile(r"`[^`]*`")
_QUOTATION = re.compile(
    "“[^“”]*+”?|„[^„“”]*+[“”]?|«[^«»]*+»?|「[^「」]*+」?|『[^『』]*+』?"
    r"|(?<![\w\"])\"(?=\w)[^\"]*+\"?|<!--(?:[^-]|-(?!->))*+|<([a-z][\w-]{0,30}+)(?:\s[^<>]{0,200}+)?>[^<>]*+</"
    r"|\[quote\b[^\]]{0,80}\][^\[]*+|\[(?:image|file|photo|video|audio|attachment):[^\]]*+|\s//\s.*+"
    r"|\b(?:WARN|ERROR|INFO|DEBUG|FATAL)\b.*+|\b[Ee]rror [A-Z]{1,4}[0-9]{2,5}:.*+"
)
"""A quotation within a line: between quotation marks, tags or brackets, a comment after code, or the text
after a log level. An unclosed quotation continues to the end of the line."""
_EMPHASIS = re.compile(r"</?(?:b|i|u|em|strong)>", re.IGNORECASE)
_HIDDEN = "\x1a"
_CODE_START = re.compile(
    r"\s*(?:#|//|/\*|\"\"\"|'''|>>>|\d+[:\t|]|;;|-- |REM |@echo|%%|\[\^?[\w-]{1,20}+\]:)"
)
_CODE_MARKS = frozenset("{}[]()<>=;|\\")
_MAX_MARKS = 0.05
"""A line with a higher share of code characters than this is code; a rule may name a call or an operator."""
_WRAPPED = 60
"""A line at least this long that ends in the middle of a sentence continues on the next line."""
_FAR_EAST = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def rules(text: str) -> Iterator[str]:
    """Yield the sentences of a user's text that state a rule, in order."""
    in_list = False
    for line in _join_wrapped(_EMPHASIS.sub("", text)):
        is_point = _POINT.match(line) is not None
        in_list = in_list and (is_point or not line.strip())
        if is_point and in_list and not _is_code(line):
            yield from (point for point in [_strip_bullet(line)] if len(point) <= MAX_RULE)
        elif _ORDER.search(line) and not _is_code(line):
            yield from filter(_is_rule, map(_strip_bullet, sentences(line)))
        in_list = in_list or (_HEADING.match(line.strip()) is not None and not is_point)


def sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line. A quotation belongs to the sentence that contains it."""
    masked, start = _mask_quotations(line), 0
    for found in _SENTENCE.finditer(masked):
        yield line[start : found.start()]
        start = found.end()
    yield line[start:]


def stated(text: str) -> Iterator[str]:
    """Yield the lines and sentences of a user's text that are neither code nor only a quotation."""
    for line in (*text.splitlines(), *_join_wrapped(text)):
        if not _is_code(line):
            units = (line, *sentences(line))
            yield from (unit for unit in units if any(map(str.isalnum, _mask_quotations(unit))))


def _mask_quotations(line: str) -> str:
    """Return the line with every quotation masked by the same number of other characters."""
    return _QUOTATION.sub(lambda found: _HIDDEN * len(found[0]), line)


def _join_wrapped(text: str) -> Iterator[str]:
    """Yield the lines of a text; a sentence that was wrapped by hand becomes one line again."""
    held = _WrappedLine("")
    for line in text.splitlines():
        said = line.strip()
        if said[:1].islower() and held.goes_on:
            held.add(said)
        else:
            if held.length:
                yield " ".join(held.parts)
            held = _WrappedLine(line.rstrip())
    if held.length:
        yield " ".join(held.parts)


class _WrappedLine:
    """Consecutive lines that are one wrapped line, with running counts of code characters.

    Counting from the start for each added line would take quadratic time.
    """

    def __init__(self, line: str) -> None:
        self.parts, self.length = [line], len(line)
        self._is_comment = _CODE_START.match(line) is not None
        self._marks = self._size = 0
        self._quoted: tuple[int, int] | None = None
        """The same counts since an unclosed backtick: they are dropped when it is closed."""
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
        """True if the line is broken in the middle of a sentence and is not code."""
        is_broken = self.length >= _WRAPPED and self.parts[-1][-1:].isalnum()
        if not is_broken or self._is_comment:
            return False
        marks, size = self._quoted or (0, 0)
        return self._marks + marks <= _MAX_MARKS * (self._size + size)


def _is_rule(sentence: str) -> bool:
    if len(sentence) > MAX_RULE or not _ORDER.search(_mask_quotations(sentence)):
        return False
    if sentence.endswith(("?", "？")) and not _ORDER_AS_QUESTION.match(sentence):
        return False
    return len(sentence.split(maxsplit=_MIN_WORDS)) >= _MIN_WORDS or _FAR_EAST.search(sentence) is not None


def _strip_bullet(sentence: str) -> str:
    return _BULLET.sub("", sentence).strip()


def _is_code(line: str) -> bool:
    if _CODE_START.match(line):
        return True
    said = _QUOTED.sub("", line)
    return sum(map(_CODE_MARKS.__contains__, said)) > _MAX_MARKS * len(said)
