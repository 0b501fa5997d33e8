"""The headings of a summary and the lines under each.

A heading names a section, so it may occur once; a smaller one once under its parent. A line of code that
begins with the same mark is no heading.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_NO_CONTENT = re.compile(
    r"(?:there (?:is|was) )?(?:no|n/?a|none|nil|null|nothing|empty|ok(?:ay)?|done|todo|tbd|unavailable|unknown|not (?:available|applicable))"
    r"(?: (?:yet|so far|here|available|to report))?"
    r"|(?:(?:there is )?no |the )?(?:summary|checkpoint)(?: (?:is |was )?(?:not |un)?available| (?:is )?empty| complete| provided| follows)?"
    r"|here(?:['’]s| is) (?:the|your|a|my)(?: \w{1,16}){0,2} (?:checkpoint|summary)"
    "|无|無|没有|暂无|不适用|完成|好的|keine?|nichts|entfällt|fertig|aucune?|rien|ningun[oa]|nada|nenhum[a]?|nessun[oa]?|niente|нет|ничего|готово"
    "|なし|ありません|없음|없습니다",
    re.IGNORECASE,
)
"""Lines that state that there is nothing to say, and lines that only announce a text."""
_AROUND = " \t*_-•>#.,:;!?()[]{}<>\"'`…。：！"
_TOP = 2
"""Headings down to this level are top sections; deeper ones belong to the section that contains them."""


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield every line, and whether it is code between fences."""
    if "```" not in text and "~~~" not in text:
        yield from ((line, False) for line in text.splitlines())
        return
    fence = ""
    for line in text.splitlines():
        after = _fence(line, fence)
        yield line, bool(fence or after)
        fence = after


def is_open(text: str) -> bool:
    """Return True if the text ends in code with an unclosed fence."""
    fence = ""
    for line in text.splitlines():
        fence = _fence(line, fence)
    return bool(fence)


def _fence(line: str, fence: str) -> str:
    """Return the fence that is open after a line; empty if there is none."""
    if "```" not in line and "~~~" not in line:
        return fence  # as for most lines, without the pattern
    mark = _FENCE.match(line)
    if mark is None:
        return fence
    if not fence:
        return mark[1][:3]
    return "" if mark[1].startswith(fence) else fence


def is_heading(line: str) -> bool:
    return _HEADING.match(line) is not None


def says_something(text: str) -> bool:
    """Return True if a text has more than white space, rulers, headings, and words such as "none"."""
    return any(
        any(map(str.isalnum, line)) and (is_code or not (is_heading(line) or _has_no_content(line)))
        for line, is_code in lines_of(text)
    )


def _has_no_content(line: str) -> bool:
    return _NO_CONTENT.fullmatch(line.strip(_AROUND)) is not None


def count_repeated(text: str) -> int:
    """Return the number of headings that occur more than once."""
    has_code = "```" in text or "~~~" in text
    if not has_code:  # as in most summaries: no other line matters
        text = "\n".join([line for line in text.splitlines() if line.startswith(("##", "# ", "#\t"))])
    return sum(count > 1 for count in Counter(path for path, _ in _sections(text) if path).values())


def headings_once(text: str) -> str:
    """Return the text with the lines under a repeated heading moved under its first occurrence."""
    if not count_repeated(text):
        return text
    parts: dict[tuple[str, ...], list[str]] = {(): []}
    for path, lines in _sections(text):
        parts.setdefault(path, lines[:1] if path else []).extend(lines[1:] if path else lines)
    order = {path: number for number, path in enumerate(parts)}
    by_parent = sorted(parts, key=lambda path: [order[path[: size + 1]] for size in range(len(path))])
    return "\n".join(line for path in by_parent for line in parts[path]).strip()


def section_span(text: str, title: str) -> tuple[int, int] | None:
    """Return the first line and the end of the section under a heading, without the heading and empty last
    lines.
    """
    lines, wanted, start = text.splitlines(), _identity(title), None
    for number, (line, is_code) in enumerate(lines_of(text)):
        if is_code or not is_heading(line):
            continue
        if start is not None:
            return start, _trim_blank_end(lines, start, number)
        start = number + 1 if _identity(line) == wanted else None
    return None if start is None else (start, _trim_blank_end(lines, start, len(lines)))


def split_section(text: str, title: str) -> tuple[str, str]:
    """Split a text into the rest and the section under a heading, with the heading and its smaller ones."""
    wanted = _identity(title)
    rest, own = list[str](), list[str]()
    for path, lines in _sections(text):
        (own if path[:1] == (wanted,) else rest).extend(lines)
    return "\n".join(rest).strip(), "\n".join(own).strip()


def _trim_blank_end(lines: Sequence[str], start: int, stop: int) -> int:
    while stop > start and not lines[stop - 1].strip():
        stop -= 1
    return stop


def _sections(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the path of each heading, its parents included, with its lines; first the lines before all
    headings.
    """
    path: tuple[str, ...] = ()
    levels: list[int] = []
    held: list[str] = []
    for line, is_code in lines_of(text):
        if is_code or not line.startswith("#") or not (match := _HEADING.match(line)):
            held.append(line)
            continue
        yield path, held
        level = max(_TOP, len(match[1]))
        while levels and levels[-1] >= level:
            levels.pop()
        path, levels, held = (*path[: len(levels)], _identity(line)), [*levels, level], [line]
    yield path, held


def _identity(line: str) -> str:
    """Return the key by which two headings are equal: level and words, without case and markup."""
    marks = len(line) - len(line.lstrip("#"))
    words = " ".join(line.strip("#*_: \t").split()).casefold()
    return f"{max(_TOP, marks)} {words}"
