"""Keep secrets out of summaries, embeddings and logs.

One idea: a secret is known by its form: a vendor's prefix, a private key's armour, a word such as `password` before it. What
is found is replaced by a placeholder that says what it was and where the original is, so that whoever may see the
conversation can open it there, and nobody else learns it from a copy.

Patterns are linear in the text: every repetition is bounded or over one class of characters, and no two of them meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct, structs

from refold.core.stages.shown import handle_of
from refold.model.message import File, Image, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

Inner: TypeAlias = Text | Image | File | Opaque
_WORD = r"[A-Za-z0-9_\-]"
_VENDORS = (
    ("api key", rf"\bsk-(?:ant-|proj-|or-v1-|svcacct-|admin-)?{_WORD}{{20,200}}"),
    ("github token", rf"\b(?:gh[pousr]_[A-Za-z0-9]{{30,255}}|github_pat_{_WORD}{{20,255}})"),
    ("gitlab token", rf"\bglpat-{_WORD}{{20,64}}"),
    ("slack token", rf"\bxox[abeoprs]-{_WORD}{{10,250}}"),
    ("aws key id", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("google key", rf"\bAIza{_WORD}{{35}}"),
    ("stripe key", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{10,247}"),
    ("npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("pypi token", rf"\bpypi-{_WORD}{{50,250}}"),
    ("hugging face token", r"\bhf_[A-Za-z0-9]{30,64}"),
    ("telegram token", r"\b\d{8,10}:AA[A-Za-z0-9_\-]{33}"),
    ("groq key", r"\bgsk_[A-Za-z0-9]{40,64}"),
    ("sendgrid key", rf"\bSG\.{_WORD}{{16,32}}\.{_WORD}{{30,64}}"),
    ("json web token", rf"\beyJ{_WORD}{{8,2000}}\.eyJ{_WORD}{{8,4000}}\.{_WORD}{{8,1000}}"),
)
_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_HEADER = re.compile(
    r"(?P<before>\b(?:authorization|proxy-authorization)[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:bearer|basic|token)\s{1,3})"
    r"(?P<secret>[A-Za-z0-9_\-.~+/]{8,4000}={0,2})",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?P<before>(?<![A-Za-z0-9])(?:[A-Za-z0-9]{1,40}[_\-]){0,4}"
    r"(?:password|passwd|passphrase|pwd|secret|api[_\-]?key|access[_\-]?key|auth[_\-]?token|access[_\-]?token"
    r"|refresh[_\-]?token|client[_\-]?secret|private[_\-]?key|credentials?|connection[_\-]?string)"
    r"[\"']?\s{0,3}(?:=>|:=|[:=])\s{0,3}[\"']?)"
    r"(?P<secret>[^\s\"'`,;<>(){}\[\]]{6,400})",
    re.IGNORECASE,
)
_IN_URL = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+.\-]{1,20}://[^\s/:@\"']{1,200}:)(?P<secret>[^\s/@\"']{3,200})(?=@)"
)
_TOLD = re.compile(
    r"(?P<before>\b(?:password|passphrase|pin|api key|token) (?:is|was|to)[: ]{1,3}[\"'`]?)"
    r"(?P<secret>(?=[^\s\"'`,;]{0,60}[0-9$&!#%*+=@])[^\s\"'`,;\[\]]{6,200})",
    re.IGNORECASE,
)
_VENDOR = re.compile("|".join(f"(?P<v{number}>{pattern})" for number, (_, pattern) in enumerate(_VENDORS)))
_HARMLESS = re.compile(
    r"(?:\$|%|<|\{|\*{3}|x{4}|\.{3}|true\b|false\b|null\b|none\b|undefined\b|your|example|changeme|placeholder|redacted"
    r"|os\.|env\.|process\.|self\.|this\.|config\.|settings\.|getenv|input\()",
    re.IGNORECASE,
)
"""What stands where a secret would, and is none: a variable, a blank to fill in, a call that fetches it."""


class Secret(Struct, frozen=True):
    """Something that must not be copied: what it is, and where in the text it was."""

    kind: str
    start: int
    stop: int


def find_secrets(text: str) -> tuple[Secret, ...]:
    """Every secret in a text, in order, none within another."""
    found = list(_armoured(text))
    found += [Secret(_vendor(match), *match.span()) for match in _VENDOR.finditer(text)]
    for kind, pattern in (("token", _HEADER), ("password", _IN_URL), ("secret", _NAMED), ("secret", _TOLD)):
        found += [
            Secret(kind, *match.span("secret"))
            for match in pattern.finditer(text)
            if not _HARMLESS.match(match["secret"])
        ]
    return tuple(_apart(found))


def redact(text: str, place: str = "") -> str:
    """The text with a placeholder for every secret; `place` is the handle of the original, where there is one."""
    where = f" in {place}" if place else ""
    parts, at = list[str](), 0
    for secret in find_secrets(text):
        parts += [text[at : secret.start], f"[{secret.kind}{where}]"]
        at = secret.stop
    return "".join((*parts, text[at:]))


def redact_message(message: Message, number: int, hidden: Iterable[int] = ()) -> Message:
    """A message without its secrets; one that is `hidden` says nothing but where it is."""
    handle = handle_of(number)
    if number in frozenset(hidden):
        return Message(message.role, tuple(_hidden(part, handle) for part in message.parts))
    parts = tuple(_clean(part, handle) for part in message.parts)
    return message if parts == message.parts else Message(message.role, parts)


def _clean(part: Part, handle: str) -> Part:
    match part:
        case Text():
            return _inner(part, handle)
        case ToolCall():
            arguments = redact(part.arguments, handle)
            return part if arguments == part.arguments else ToolCall(part.id, part.name, arguments, part.kind)
        case ToolResult():
            inner = tuple(_inner(one, handle) for one in part.parts)
            return part if inner == part.parts else ToolResult(part.call_id, inner, part.is_error, part.kind)
        case File():
            return _inner(part, handle)
        case Reasoning():
            return part if not find_secrets(part.text) else Text(f"[withheld: {handle}]")
        case _:
            return part


def _inner(part: Inner, handle: str) -> Inner:
    if not isinstance(part, Text | File):
        return part
    text = redact(part.text, handle)
    return part if text == part.text else structs.replace(part, raw=None, text=text)


def _hidden(part: Part, handle: str) -> Part:
    """What is left of a part that somebody marked as sensitive: its place in the conversation."""
    note = Text(f"[withheld: {handle}]")
    match part:
        case ToolCall():
            return ToolCall(part.id, part.name, "{}", part.kind)
        case ToolResult():
            return ToolResult(part.call_id, (note,), part.is_error, part.kind)
        case _:
            return note


def _armoured(text: str) -> Iterable[Secret]:
    """Private keys from their first line to their last; one without a last line goes to the end of the text."""
    at = 0
    while begin := _BEGIN.search(text, at):
        end = _END.search(text, begin.end())
        at = end.end() if end else len(text)
        yield Secret("private key", begin.start(), at)


def _vendor(match: re.Match[str]) -> str:
    return _VENDORS[int((match.lastgroup or "v0")[1:])][0]


def _apart(found: list[Secret]) -> Iterable[Secret]:
    """The secrets in order; where two overlap, the one that begins first, and the longer of two that begin together."""
    stop = 0
    for secret in sorted(found, key=lambda one: (one.start, -one.stop)):
        if secret.start >= stop:
            yield secret
            stop = secret.stop
