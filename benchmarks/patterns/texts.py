"""Texts that are hard to scan, in any length.

Each repeats one unit: text that a loop reads without finding its end, text that looks like the beginning of a
match again and again, or text that must be remembered until the end.
"""

from collections.abc import Callable, Iterator


def _repeat(unit: str, before: str = "", after: str = "") -> Callable[[int], str]:
    def text(size: int) -> str:
        return before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after

    return text


def _numbered(unit: str) -> Callable[[int], str]:
    """A unit that differs each time: `{}` stands for its number."""

    def text(size: int) -> str:
        count = max(1, size // len(unit.replace("{}", "12345")))
        return "".join(unit.replace("{}", str(number + 10_000)) for number in range(count))

    return text


def _nested(size: int) -> str:
    r"""Escapes within escapes: decoding one of them makes the next one readable, `\\..u0075003d`."""
    depth = max(1, size // 19)
    return "password" + "\\" * (15 * depth + 1) + "u" + "0075" * depth + "003dhunter22x"


def _reversed_nested(size: int) -> str:
    """The same with a secret that becomes visible each time."""
    unit = "token" + "\\" * 16 + "u0075003d" + "a1B2c3D4e5F6g7H8 "
    return unit * max(1, size // len(unit))


WRAPPED = "the service writes a line of its log that is as long as a terminal is wide and goes\n"
UNITS: dict[str, str] = {
    "underscores": "a_", "digits": "1", "letters": "a", "capitals": "A", "blanks": " ", "tabs": "\t", "lines": "\n",
    "blank lines": " \n", "short lines": "a\n", "wrapped lines": WRAPPED, "words": "word ", "sentences": "This is one. ",
    "brackets": "[", "braces": "{", "closing brackets": "]", "pairs of brackets": "[]", "angle brackets": "<", "tags": "<a>",
    "double quotes": '"', "single quotes": "'", "backticks": "`", "spaced backticks": "` ", "backslashes": "\\",
    "escaped quotes": '\\"', "escaped lines": "\\n", "hashes": "#", "headings": "# a\n", "fences": "```\n", "stars": "*",
    "bullets": "- ", "points": "- a\n", "numbers": "1. ", "open tasks": "- [ ] a b\n", "done tasks": "- [x] a b\n",
    "dots": ".", "dashes": "-", "slashes": "/", "path": "a/", "dotted": "a.", "commas": "1,", "thousands": "1 111 ", "dates": "2024-01-02-",
    "spoken dates": "1 may ", "equals": "=", "colons": ":", "pipes": "|", "table": "| a ", "percent": "%41", "handles": "#m1 ", "placeholders": "[secret] ",
    "open placeholders": "[secret in #m1", "markers": "<transcript ", "camel": "aA", "mixed": "a1", "hex": "0f", "base64": "QUJD", "base64 lines": "QUJD" * 16 + "\n",
    "word and sign": "a-", "email": "a@", "addresses": "https://a:", "users": "https://u:p@h ", "headers": "Authorization: Bearer ", "cookies": "cookie: a=b; ",
    "signatures": "Signature=", "commands": "curl -u a ", "pipes of commands": "echo aaaa1 | ", "logins": "login as a / ", "names": "password", "spaced names": "password ",
    "set names": "password=", "quoted names": 'password="', "asked names": "password: ", "long names": "password1", "suffixed names": "password_prod",
    "tokens": "token=a1b2c3d4e5f6g7h8 ", "named tags": "<password>", "wallets": "seed phrase: a ", "keys": "sk-aaaaaaaaaa", "web tokens": "eyJ", "web token parts": "eyJaaaaaaaa.", "key edges": "-----BEGIN PRIVATE KEY-----\n",
    "key comments": "Comment: Private-Lines: 1\n", "inline key comments": "Comment: Private-Lines: 1 ", "key lines": "Private-Lines: 1\nQUJDQUJDQUJDQUJD\n", "escaped names": "p\\u0061ssword=",
    "chinese": "密", "chinese names": "密码", "japanese": "パスワードは", "korean": "비밀번호 ", "cyrillic": "пароль", "accents": "é", "combining": "e\u0301", "marks": "\u0301", "zero width": "\u200b",
    "emoji": "😀", "flags": "🇩", "family": "👩\u200d", "thai": "รหัสผ่าน", "wide digits": "１", "arabic digits": "١", "ligature": "ﷺ", "dotted capital": "İ", "surrogates": "\ud800", "nul": "\0", "returns": "\r",
    "separators": "\u2028", "rules": "Always do it. ", "rule lines": "You must never do that\n", "decisions": "decided ", "handles in brackets": "[User #m1] ", "speakers": "User: I am\n", "json": '{"a":', "json list": "[1,", "json strings": '"a",',
    "code": "x = f(a[1], {b: c});\n", "comments": "// a\n", "diff": "+ a\n- b\n", "patches": "*** Update File: a\n", "errors": "Error: a\n", "sse": "data: {}\n\n", "html": "<p>a</p>", "thinking": "<think>", "calls": '<tool_call>{"name": "a"}',
}  # fmt: skip
"""The unit of each text."""
TEXTS: dict[str, Callable[[int], str]] = {
    **{name: _repeat(unit) for name, unit in UNITS.items()},
    "a quoted name": _repeat("a_", 'Why is password = "', '1" refused?'),
    "a name with digits": _repeat("1", "password", "z="),
    "a line of names": _repeat("password=", "", "hunter22!x\n"),
    "a bare value": _repeat("a1", "password: ", ""),
    "a value and blanks": _repeat(" ", "password: hunter22x"),
    "markers": _repeat("\n\n[refold: older messages are summarised; sent 1 of 2 tokens]"),
    "markers in a line": _repeat("[refold: older messages are summarised; sent 1 of 2 tokens].", "\n"),
    "nested escapes": _nested,
    "secrets in escapes": _reversed_nested,
    "passwords": _numbered('password = "x{}Yz!"\n'),
    "same beginnings": _numbered('password = "hunter22hunter22hunter22a{}b"\n'),
    "files": _numbered("src/file_{}.py "),
    "open and done": _numbered("- [ ] task {}\n- [x] other {}\n"),
    "different rules": _numbered("Always write {} lines of it.\n"),
    "different words": _numbered("word{} "),
    "different headings": _numbered("## heading {}\n"),
    "different numbers": _numbered("1{}.5 ms, "),
    "an open string": _repeat('\\"', '{"messages": [{"content": "'),
    "an open key": _repeat("QUJD", "-----BEGIN PRIVATE KEY-----\n"),
    "a long word": _repeat("a", "", "!"),
    "a signed word": _repeat("a.b-c+", "", "@"),
    "camel and underscore": _repeat("A", "aa", "_"),
}


def texts(size: int) -> Iterator[tuple[str, str]]:
    """Every text, by name, in about this many characters."""
    for name, text in TEXTS.items():
        yield name, text(size)
