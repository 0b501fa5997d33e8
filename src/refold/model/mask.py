"""Masks texts that may contain a secret, for settings, errors, logs and responses.

Every surface uses these functions. They show the parts that are known to be harmless (scheme, host, port,
plain path) and hide the rest. An ambiguous text is hidden whole: in `postgresql://u:p/w@host/db` the host
is either `u` or `host`, and one of the two readings would show half of the password.
"""

from __future__ import annotations

import re

HIDDEN = "***"
SCHEMES = frozenset({"sqlite", "memory", "postgres", "postgresql", "http", "https"})
"""The schemes of stores and upstreams. In `me:secret@host` the part before the colon is a user, not a scheme."""

_SCHEME = re.compile(r"([A-Za-z]+):")
_HOST = r"(?:(?:[\w.-]|%2[Ff])*|\[[0-9A-Fa-f:.]*\])(?::[0-9]{0,5})?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
"""PostgreSQL accepts several hosts, and the folder of a socket with escaped slashes."""
_PATH = re.compile(r"(?:[\w.~+!$()*,/-]|%2[0Ff])*")
"""A path without separators of names and values (`=`, `;`, `&`) and without escapes that may spell `:` or `@`."""
_STORE_FILE = re.compile(r"(?:[/~]|\.\.?/)[^?#=]*|[^:=?#@]+\.(?:db|sqlite3?)")
"""A plain path that begins like one or has the suffix of a database."""
_PROGRAM = re.compile(r"(?:[A-Za-z]:)?[\w./+\\-]+")
_MODEL = re.compile(r"[\w.:/+*-]*")
_KEY = re.compile(r"(?i)(?:[a-z]+:)?(?:(?:sk|gsk|pk|rk|xai)[-_]|AIza)")
"""The beginnings of keys, which no model has, with or without a provider."""
_VARIABLE = re.compile(r"[A-Z0-9_]*")
_LONGEST_SCHEME = 16
_PASSWORD = re.compile(r"(?i)(pass(?:word|wd)?|pwd)(\s*=\s*)(?:'[^']*'|[^\s'\"]+)")
_ENDS = frozenset("'\"`")
"""Characters that end an address in a sentence, besides a space."""


def mask_url(url: str) -> str:
    """The URL of a store or an upstream without user, password, query and fragment: `postgresql://***@host/db?***`."""
    found = _SCHEME.match(url)
    if not url or (found and found[1] in SCHEMES and not url[found.end() :].strip("/")):
        return url
    if found is None or found[1] not in SCHEMES:
        return HIDDEN
    scheme, rest = found[1], url[found.end() :]
    if not rest.startswith("//"):
        return f"{scheme}:{HIDDEN}"
    shown = _file(rest[2:]) if scheme == "sqlite" else _server(rest[2:])
    return f"{scheme}://{shown}"


def mask_store(url: str) -> str:
    """The URL of a store, or the path of its file. A word that does not look like a path may be a misplaced
    key, and is hidden.
    """
    return url if is_store_file(url) else mask_url(url)


def is_store_file(text: str) -> bool:
    """True if a text looks like the path of a file, and not like a key or an address with a password."""
    return bool(_STORE_FILE.fullmatch(text)) and ":" not in text.rpartition("@")[0]


def is_clear_url(url: str) -> bool:
    """True if the URL has only one reading, so that the host that a driver connects to is the one that is shown."""
    shown = mask_url(url)
    return url.count("@") <= 1 and shown != HIDDEN and not shown.endswith((f"/{HIDDEN}", f":{HIDDEN}"))


def mask_command(command: str) -> str:
    """A command without its arguments: `vault ***`."""
    program, *arguments = command.split(maxsplit=1) or [""]
    if program and not _PROGRAM.fullmatch(program):
        return HIDDEN
    return f"{program} {HIDDEN}" if arguments else program


def mask_model(spec: str) -> str:
    """A model spec as `upstreams.provider` reads it, PROVIDER:MODEL or MODEL@URL, without the secrets in the URL. A key in
    the place of the model is hidden.
    """
    model, at, rest = spec.partition("@http")
    if not _MODEL.fullmatch(model) or "://" in model or _KEY.match(model):
        return HIDDEN
    return f"{model}@{mask_url(f'http{rest}')}" if at else model


def mask_variable(name: str) -> str:
    """The name of an environment variable. A name with small letters may be a key that was written in its
    place (`gsk_...`), and is hidden.
    """
    return name if _VARIABLE.fullmatch(name) else HIDDEN


def mask_values(table: dict[str, str]) -> dict[str, str]:
    """A table of headers without their values."""
    return dict.fromkeys(table, HIDDEN)


def mask_text(text: str) -> str:
    """A sentence that may quote user input: addresses in it are masked, and so is the value after `password=`."""
    return _PASSWORD.sub(rf"\1\2{HIDDEN}", "\n".join(map(_mask_line, text.split("\n"))))


def printable(text: str) -> str:
    """A text without control characters, which a terminal would execute."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _mask_line(line: str) -> str:
    """Mask the addresses in a line. A password may contain spaces and quotes, so an address extends at least
    to the last `@` of its line.
    """
    shown, done, last = list[str](), 0, line.rfind("@")
    while (mark := line.find("://", done)) >= 0:
        start = mark
        while start > max(done, mark - _LONGEST_SCHEME) and line[start - 1].isalnum():
            start -= 1
        end = max(last, mark + 3)
        while end < len(line) and not (line[end].isspace() or line[end] in _ENDS):
            end += 1
        shown += line[done:start], mask_url(line[start:end])
        done = end
    return "".join((*shown, line[done:]))


def _server(rest: str) -> str:
    """The part of a URL after `//`, if it names a host."""
    body, tail = _cut(rest)
    authority, slash, path = body.partition("/")
    user, at, hosts = authority.rpartition("@")
    if "@" in path or "@" in tail or not _HOSTS.fullmatch(hosts):
        return HIDDEN
    shown = f"{HIDDEN if user or at else ''}{at}{hosts}{slash}"
    return shown + (path if _PATH.fullmatch(path) else HIDDEN) + (f"{tail[0]}{HIDDEN}" if tail else "")


def _file(rest: str) -> str:
    """The part of a URL after `//`, if it names a file."""
    path, tail = _cut(rest)
    if ":" in path.rpartition("@")[0] or "@" in tail:
        return HIDDEN
    return path + (f"{tail[0]}{HIDDEN}" if tail else "")


def _cut(rest: str) -> tuple[str, str]:
    """A URL up to its query or fragment, and the rest with its separator."""
    end = min((at for at in (rest.find("?"), rest.find("#")) if at >= 0), default=len(rest))
    return rest[:end], rest[end:]
