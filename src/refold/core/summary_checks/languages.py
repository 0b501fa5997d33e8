"""Detect the languages of a text.

Letters identify a script, and common small words identify the languages that share the Latin script. Code,
paths, names and headings are equal in every language and are ignored. A conversation may have several
languages; a summary in any of them is valid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from refold.core.summary_checks.headings import is_heading, lines_of

_MAX_READ = 40_000
"""Characters that are read, half from the beginning and half from the end: enough for detection."""
_MIN_LETTERS = 20
"""Fewer letters do not identify a script."""
_MIN_SCRIPT_SHARE = 0.25
"""Minimum share of the letters: a script with less does not count as one of the conversation's."""
_MIN_EXPECTED_SHARE = 0.10
"""Minimum share of a summary's letters in scripts of the conversation: foreign words may be most of a
technical text."""
_MIN_WORDS = 10
"""At least this many small words identify a language, if they are also the share `_DENSITY` of all words."""
_DENSITY = 0.12
_MUCH_MORE = 4
"""A text is in another language if it has more than this many times as many small words of it."""
_CJK_WEIGHT = 3
"""A Chinese character counts as much as three letters."""
_SCRIPTS = {
    "han": re.compile("[\u3400-\u9fff]"),
    "kana": re.compile("[\u3040-\u30ff]"),
    "korean": re.compile("[\uac00-\ud7af]"),
    "cyrillic": re.compile("[\u0400-\u04ff]"),
    "greek": re.compile("[\u0370-\u03ff]"),
    "arabic": re.compile("[\u0600-\u06ff]"),
    "hebrew": re.compile("[\u0590-\u05ff]"),
    "devanagari": re.compile("[\u0900-\u097f]"),
    "thai": re.compile("[\u0e00-\u0e7f]"),
    "latin": re.compile("[A-Za-z\u00c0-\u024f]"),
}
_HEAVY = frozenset({"han", "kana", "korean"})
_CODE = re.compile(r"`[^`\n]{0,400}`")
_NAME = re.compile(r"[^\s、，。；：！？「」“”（）\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_WORD = re.compile(r"[^\W\d_]+")
_NOT_A_WORD = re.compile(
    r"\w[/\\_@=<>{}.:]\w|[/\\@_=<>{}\[\]|]|\w\(|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]|^[A-Z]{2}"
)
_SMALL_WORDS = {
    "english": "the and to that for with this are be have it on by not from which has been were should will would when but or of",
    "german": "der die das und ist nicht mit ein eine einen auf für von zu den dem sich auch wird werden wurde noch nach bei aus "
    "ich sind soll oder wenn",
    "french": "le les des et est une pour dans sur pas avec que qui du au il ne par ce cette sont été mais ou nous aux doit",
    "spanish": "el los las y una para con por que se del es no su lo como más pero está fue al sin son este esta debe hay",
    "portuguese": "o os um uma para com por que não se do da dos das em no na é mas como mais foi ao são está este deve pelo",
    "italian": "il gli di che è un una per con non si del della nel alla sono ma come più ha le dei questo deve anche stato",
}
_LANGUAGE_OF: dict[str, tuple[str, ...]] = {
    word: tuple(name for name, words in _SMALL_WORDS.items() if word in words.split())
    for word in " ".join(_SMALL_WORDS.values()).split()
}


def is_other_language(text: str, said: Iterable[str]) -> bool:
    """Return True if the text is in a language that neither side used.

    Each of `said` is the text of one side.
    """
    plain, known = _plain(text), [_plain(part) for part in said]
    expected = {script for part in known for script in scripts_of(part)}
    found = _letters_of(plain)
    if not expected or sum(found.values()) < _MIN_LETTERS:
        return False
    if sum(found[script] for script in expected) < _MIN_EXPECTED_SHARE * sum(found.values()):
        return True
    return _is_other_latin(plain, known) if scripts_of(plain) == {"latin"} else _is_other_han(plain, known)


def scripts_of(text: str) -> set[str]:
    """Return the scripts of a substantial part of a text; empty if it has too few letters."""
    found = _letters_of(text)
    total = sum(found.values())
    return (
        {name for name, count in found.items() if count >= _MIN_SCRIPT_SHARE * total}
        if total >= _MIN_LETTERS
        else set()
    )


def latin_languages(text: str) -> Counter[str]:
    """Return the number of small words of each language; empty if there are too few for detection."""
    words = [word.casefold() for word in _WORD.findall(text)]
    found = Counter(name for word in words for name in _LANGUAGE_OF.get(word, ()))
    least = max(_MIN_WORDS, _DENSITY * len(words))
    return found if found and max(found.values()) >= least else Counter()


def _is_other_latin(text: str, known: Iterable[str]) -> bool:
    expected = {name for part in known for name in _likely_languages(latin_languages(part))}
    found = latin_languages(text)
    if not expected or not found:
        return False
    return _MUCH_MORE * max(found[name] for name in expected) < max(found.values())


def _likely_languages(found: Counter[str]) -> set[str]:
    most = max(found.values(), default=0)
    return {name for name, count in found.items() if _MUCH_MORE * count >= most}


def _is_other_han(text: str, known: Iterable[str]) -> bool:
    """Return True if a text is Chinese and not Japanese as expected, or the reverse: only Japanese
    has kana.
    """
    shared = {"han", "kana"}
    expected = {_has_kana(part) for part in known if scripts_of(part) and scripts_of(part) <= shared}
    return bool(expected) and scripts_of(text) <= shared and _has_kana(text) not in expected


def _has_kana(text: str) -> bool:
    found = _letters_of(text)
    return found["kana"] >= _MIN_EXPECTED_SHARE * (found["han"] + found["kana"])


def _letters_of(text: str) -> Counter[str]:
    counts = {name: len(pattern.findall(text)) for name, pattern in _SCRIPTS.items()}
    return Counter(
        {name: count * (_CJK_WEIGHT if name in _HEAVY else 1) for name, count in counts.items() if count}
    )


def _plain(text: str) -> str:
    """Return the words of a text, without headings, code, names and paths."""
    text = text if len(text) <= _MAX_READ else f"{text[: _MAX_READ // 2]}\n{text[-_MAX_READ // 2 :]}"
    prose = "\n".join(line for line, is_code in lines_of(text) if not is_code and not is_heading(line))
    return _NAME.sub(_drop_names, _CODE.sub(" ", prose))


def _drop_names(match: re.Match[str]) -> str:
    return " " if _NOT_A_WORD.search(match[0]) else match[0]
