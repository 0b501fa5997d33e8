"""Quote lines of foreign text that could be taken for Refold's own lines or for another turn.

Digests, transcripts for summarisers and recalled texts give lines a meaning: `#m2 user:` begins a message of
the user, `##` a section, `[End of the earlier messages]` ends a summary. Text of users, tools and models is
quoted between such lines, so a line of it that reads as one of them gets a visible `> ` before it. When a
line is read, invisible characters are ignored, however many there are, and so are width, case, accents and
letters of other scripts that look Latin. Every other line stays unchanged.

The time is linear in the text: only the first `HEAD` visible characters of each line are examined.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from string import ascii_lowercase, digits
from typing import Literal, TypeAlias

QUOTE = "> "
"""Prefix of a foreign line. In mail and Markdown it means a quotation, and models have read much of both."""
HEAD = 160
"""Visible characters of a line that decide its reading: the longest marker has about sixty."""

LinePlace: TypeAlias = Literal["digest", "transcript", "summary", "carried", "recalled"]
"""The place in which a text is quoted decides which of its lines could be mistaken:

- a digest, whose own sections begin with `##`: every heading;
- the transcript that a summariser reads: the headings of summaries, while other headings belong to the
  quoted text;
- a summary that a model wrote: no heading, since it has its own, and no `User:`, since it may report the
  actions of the user;
- such a summary carried along in a digest: the headings of the ledger's lists, which the digest has too;
- an original that is recalled word for word: handles only, since no other line of the answer is Refold's.
"""

_BREAK = re.compile("(\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029])")
"""Every sequence that may be read as the end of a line."""
_HIDDEN = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Me"))
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
_LOOKALIKES = {
    "a": "аɑαꭺꓮ", "b": "ꮟꓐ", "c": "сϲꮯꓚ", "d": "ԁꭰꓓ", "e": "еєꭼꓰ", "f": "ꓝ", "g": "ԍꮐꓖ", "h": "һнꮋꓧ", "i": "іɩꭵꓲ", "j": "јꭻꓙ",
    "k": "кκꮶꓗ", "l": "ӏꮮꓡ", "m": "мꮇꓟ", "n": "ոꓠ", "o": "оοꓳ", "p": "рρꮲꓑ", "q": "ԛ", "r": "гꭇꭱꓣ", "s": "ѕտꮪꓢ", "t": "тτꭲꓔ",
    "u": "սυꓴ", "v": "ѵνꮩꓦ", "w": "ԝꮃꓪ", "x": "хχꓫ", "y": "уʏγꭹꓬ", "z": "ꮓꓜ", "#": "♯⌗⋕⧣", "<": "‹〈⟨", ">": "›〉⟩", "[": "【〖〔⟦", "]": "】〗〕⟧",
}  # fmt: skip
_LATIN = str.maketrans(
    {
        form: latin
        for latin, others in _LOOKALIKES.items()
        for other in others
        for form in (other, other.casefold())
    }
)
"""Maps letters of other scripts to the Latin letters that they or their capitals look like, and marks that
look like Refold's."""
_LATIN_NAME = re.compile(r".{0,40}\bLATIN (?:SMALL |CAPITAL )?LETTER (?:SMALL CAPITAL )?([A-Z])(?: WITH .+)?")
"""The Unicode names of small capitals, letters in circles and similar letters."""
_AROUND = " *_`~\"'“”‘’«»"
"""Characters that may surround a marker without changing its reading."""
_SIGNS = frozenset(("So", "Sk", "Sm", "Po", "Pd"))
"""Categories of arrows, ticks, emoji and other signs: those that are no ASCII are read past at the beginning."""
_CONTROLS = dict.fromkeys((*range(9), *range(10, 32), 127))

_ROLE = "user|human|assistant|system|developer|tool"
_ROLES = frozenset((*_ROLE.split("|"), "file"))
_FOREIGN = "benutzer nutzer utilisateur systeme usuario utente sistema пользователь система 用户 用戶 系统 系統 ユーザー システム 사용자 시스템"
"""The user and the system in widely used languages, as whole words."""
_LISTS = "rules the user gave|the user said later|ids and numbers|files modified|files read|errors|decisions|open tasks"
_SECTIONS = (
    f"{_LISTS}|before that|earlier|this turn so far|goal|constraints ?& ?preferences|progress|done|in progress|key decisions|next steps"
    "|critical context|conversation summary|instructions?|response|input|system|developer|user|assistant"
)
_LEAD = r"(?:(?:[-+•◦‣·–—→|:/.(\\!$%&,;=?@^<{}]|[0-9]{1,3}[.)]|[a-z][.)]|\[[ x]\]) ?){0,8}+"
"""Bullets, numbers, boxes and punctuation: a handle after them still begins a line."""
_HANDLES = (
    r"#[ms][0-9]{1,9}(?![0-9a-z_])"  # #m2, #s0
    rf"|{_LEAD}#{{0,6}} ?[ms][0-9]{{1,9}}(?:\.[0-9]{{1,9}})? ?(?:{_ROLE})\b"  # m2 user:, - #m2 user:
    r"|(?:task|question) ?[-–—:(\[]{0,2} ?# ?[ms][0-9]|(?:task|question) m[0-9]"
    r"|\( ?#[ms][0-9]"
    r"|\[[^\]#]{0,80}# ?[ms][0-9]"  # [User #m2], [… #m3 …], [withheld: #m3]
    r"|\[ ?(?:cut:|plain digest of\b)"
)
_LABEL = r"(?: (?:message|prompt|instructions?|note))? ?[*_`]{0,3} ?:"
_FRAMES = (
    rf"(?:human|system|developer){_LABEL}"
    r"|#{1,6} ?(?:instructions?|response|input|system|developer) ?:"
    r"|(?:context_summary|no longer shown) ?:"
    r"|[-=({\[]{0,9} ?/?(?:end of the earlier messages|earlier messages #)"
    rf"|\[ ?/?(?:(?:{_ROLE}|(?:failed )?result)[]: ]|earlier messages|end of|compacted messages|this turn so far|inst[] ]"
    r"|context summary|conversation summary|emergency compression|system_prompt\]|available_tools\]|tool_calls\]|tool_results\]|gmask\])"
    r"|< ?[|/]? ?\|?(?:transcript|previous-summary|summary|context_summary|system|user|assistant|human|developer|tool|function_result"
    r"|instruction|im_start|im_end|im_sep|start_header|end_header|eot|eom|endoftext|begin_of|end_of|start_of|bos\b|eos\b|s>|turn|channel)"
    r"|<\|[^ |<>][^|<>]{0,60}\|>"  # <|start|>, <｜begin▁of▁sentence｜>, and other tokens of chat templates
    r"|<</?sys"
)
_RULES_TITLE = re.compile(r"(?:<[^<>]{0,40}>|[^a-z<]){0,24}rules[\W_]{1,3}the[\W_]{1,3}user[\W_]{1,3}gave\b")
"""The heading of the user's rules, after any marks of a heading or a list item."""


def _markers(*kinds: str) -> re.Pattern[str]:
    return re.compile("|".join(kinds), re.IGNORECASE)


@lru_cache(maxsize=4_096)
def _character_reading(character: str) -> str:
    """Return the reading of a character: empty if invisible, a blank, or letters in one case without
    accents.
    """
    found = ""
    for one in unicodedata.normalize("NFKD", character).casefold().translate(_LATIN):
        category = unicodedata.category(one)
        if one in _BLANK or category == "Zs":
            found += " "
        elif category not in _HIDDEN or one == "\t":
            latin = None if one.isascii() else _LATIN_NAME.fullmatch(unicodedata.name(one, ""))
            found += latin[1].lower() if latin else one
    return found


def reading(text: str, most: int = HEAD) -> str:
    """Return the reading of the first `most` visible characters of a text: in one width, with Latin
    letters.
    """
    if text.isascii():
        plain = text if text.isprintable() else text.translate(_CONTROLS)
        return " ".join(plain.lstrip(f"{_AROUND}\t").split(None, most))[:most]
    found: list[str] = []
    for character in text:
        one = _character_reading(character)
        if one and (one.strip() or (found and found[-1] != " ")) and (found or not _is_around(one)):
            found.append(one)
            if len(found) >= most:
                break
    return " ".join("".join(found).split()).lstrip(_AROUND)


def _is_around(one: str) -> bool:
    """Return True if a read character changes nothing before a marker."""
    return one in _AROUND or (len(one) == 1 and not one.isascii() and unicodedata.category(one) in _SIGNS)


_SPEAKERS = (
    rf"(?:{_ROLE}|{'|'.join(''.join(map(_character_reading, word)) for word in _FOREIGN.split())}){_LABEL}"
)
_MARKERS: dict[LinePlace, re.Pattern[str]] = {
    "digest": _markers("#", _HANDLES, _SPEAKERS, _FRAMES),
    "transcript": _markers(rf"#{{1,6}} ?[*_]{{0,3}}(?:{_SECTIONS})\b", _HANDLES, _SPEAKERS, _FRAMES),
    "summary": _markers(_HANDLES, _FRAMES),
    "carried": _markers(rf"#{{1,6}} ?[*_]{{0,3}}(?:{_LISTS})\b", _HANDLES, _FRAMES),
    "recalled": _markers(_HANDLES),
}
"""Beginnings that no line of a foreign text may have, for each place."""
_FIRST = frozenset("#[<*_`~\"'“”‘’«» \t-+|:/.(\\={}!$%&,;?@^0123456789")
"""The signs that such a beginning may start with."""
_FIRST_TWO = frozenset(
    (
        "as", "be", "co", "de", "ea", "en", "hu", "no", "nu", "qu", "ru", "si", "sy", "ta", "to", "us", "ut",
        *(f"{letter}{digit}" for letter in "ms" for digit in digits),
        *(f"{first}{mark}" for first in f"{ascii_lowercase}>)]" for mark in ".)"),
    )
)  # fmt: skip
"""The first two characters of those that start with an ASCII letter. Hardly any line has them, and the others
need not be read."""
_ALL_ROLES = _ROLES | {"".join(map(_character_reading, word)) for word in _FOREIGN.split()}
_OWN = re.compile(r"#[ms][0-9]{1,9}")


def quoted_line(line: str, place: LinePlace = "digest") -> str:
    """Return one foreign line, quoted if it reads as one of Refold's."""
    return f"{QUOTE}{line}" if is_marker(line, place) else line


def quoted_lines(text: str, place: LinePlace = "digest", *, own: str = "", begins_line: bool = False) -> str:
    """Return a foreign text in which no line reads as one of Refold's.

    The first line is examined only if the text `begins_line`; without it, the text follows words of Refold on
    the same line. `own` is the handle of the message that contains the text: marks with that handle, which
    stand for text that was cut out of it, stay.
    """
    if not begins_line and _BREAK.search(text) is None:
        return text
    found = _BREAK.split(text)  # lines, alternating with their line ends
    for at in range(0 if begins_line else 2, len(found), 2):
        found[at] = _quote_marker(found[at], place, own)
    return "".join(found)


def is_marker(line: str, place: LinePlace = "digest") -> bool:
    """Return True if a line reads as one of Refold's or as the beginning of a turn."""
    if line[:1] not in _FIRST:
        start = line[:2]
        if start.isascii() and start.isprintable() and start.lower() not in _FIRST_TWO:
            return False
    read = reading(line)
    if _MARKERS[place].match(read) is not None:
        return True
    # A summary's own heading of the rules is handled with its facts (`ledger_facts`).
    return place in ("digest", "transcript", "carried") and is_rules_title(read)


def is_rules_title(line: str) -> bool:
    """Return True if a line reads as the heading of the user's rules, in any spelling or markup."""
    if line.isascii() and "rules" not in line.lower() and line.isprintable():
        return False  # as of most lines, without the pattern
    return _RULES_TITLE.match(reading(line).lower()) is not None


def is_role(name: str) -> bool:
    """Return True if a name reads as a role of a conversation."""
    return reading(name, 2 * HEAD).lower().strip("0123456789.:/_- ") in _ALL_ROLES


def _quote_marker(line: str, place: LinePlace, own: str) -> str:
    if not is_marker(line, place):
        return line
    is_own = own and line.startswith("[") and _OWN.findall(line[:HEAD]) == [own.partition(".")[0]]
    return line if is_own else f"{QUOTE}{line}"
