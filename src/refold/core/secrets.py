"""Find secrets in a text, and replace them by placeholders, to keep them out of summaries, embeddings and logs.

A secret is recognised by its own form, by the name before it, or because it was found elsewhere already. Issuers of
keys give them a recognisable form: a prefix, armour, a place in a URL or a header. Hardly any other text has such a
form. For all other secrets first the name is found, as people and programs write it: `DB_PASSWORD=`, `"apiKey": `,
`--token `, `<password>`, `my password for prod is `. Then the value after it is read, to the end that its quotes or
the line set and no further than `LONGEST` characters, and judged by itself. A text may be JSON within JSON: quotes
and line breaks count with any number of backslashes before them. Patterns are linear in the text: every repetition
is bounded or over one class of characters, and none of them starts twice within the same run of characters.

A placeholder names the kind of the secret and the handle of the original, so that a reader with access to the
conversation can open it there, and a copy reveals nothing.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from string import ascii_letters, digits
from typing import TypeAlias

from msgspec import Struct, structs

from refold.core.regex_safety import matches_by_portion
from refold.core.stage import handle_of
from refold.model.message import File, Image, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

# Values: a secret, or other text in its place
#
# `password:` may be followed by a password, or by a word about it, a type, a variable, a placeholder to fill
# in. The value itself shows which it is. The clearer the name, the weaker the test: after `password =` any
# quoted text is accepted, after `token` only text that looks random. Every pattern is matched once, against
# one value of bounded length.

LONGEST = 512
"""Characters of a value: a longer secret has a form of its own, such as a key file."""
LEAST = 6
"""Characters: a shorter word without quotes is more often a name or a number than a password."""
LEAST_QUOTED = 4
LEAST_RANDOM = 16
"""Characters: generated values are at least this long; shorter letters and digits are names, versions and
ids."""

_WORDS = frozenset(
    """
    a an any array auto basic bearer blank blob bool boolean by bytes changed char clear correct custom datetime default
    denied deprecated digest disabled dynamic empty enabled encrypted env environ environment error expired external failed
    false field file forgotten from getenv global hash hashed hidden ignored in include incorrect inherit input int integer internal
    invalid is json key literal locked managed manual masked match mismatch missing must nil no none not null number object
    of off ok omit on optional or param parameter plain present private prompt protected provided public readonly redacted
    removed req request required reset revoked rotated same same-origin saved sensitive set static stdin store stored str string system
    text the this true type undefined unchanged unknown unset update updated used user valid validated value var varchar
    variable varies vault verified weak with wrong yes you your
    """.split()  # noqa: SIM905  # words read better than a list of them
)
_ABOUT = re.compile(
    r"pass|pwd|secret|token|key|cred|auth|login|session|cookie|placeholder|user|name|value|config|param|string",
    re.IGNORECASE,
)
"""A plain word that contains one of these is a name; `new_password` is a variable, and a poor password."""
_BLANK = re.compile(
    r"[*.•xX…_\-#?]{3,}|[<\[{].*|\$[({].*|#\{.*|%[A-Z_]+%|\\.*|!(?:Ref|Sub|GetAtt)\b.*"
    r"|(?:your|my|the|some|any|an?)[_\- ]?(?:[a-z]+[_\- ])*(?:pass|pwd|secret|token|key|api|cred|client|auth|value).*"
    r"|your[_\- ].*|(?:insert|replace|enter|put|paste|add|fill|change)[_\- ]?(?:me|this|it|with|your|in|here)\b.*"
    r"|changeme.*|todo.*|fixme.*|example.*|sample.*|dummy.*|placeholder.*|redacted.*|masked.*|x{4,}.*|.*\*{3}.*|\.{3}.*"
    r"|(?:arn|vault|op|ref\+[a-z]+|env|secretref|keyvault|ssm|gcp-?sm|aws-?sm):.*",
    re.IGNORECASE | re.DOTALL,
)
"""A placeholder to fill in, a mask, or a reference to the location of the value."""
_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+(?:[A-Z][a-z]*)*)(?:(?:\[|->|\.|::).*)?")
"""`$DB_PASSWORD`, `$dbPassword`. A mixture of small letters and digits is a password that begins with a
dollar sign."""
_CHAIN = re.compile(r"&{0,2}\*{0,2}[A-Za-z_]\w*(?:(?:\.|::|->|\?\.)[A-Za-z_]\w*)+!?")
"""`config.password`, `request.headers`: code that reads the value."""
_ROOTS = re.compile(
    r"(?:os|env|environ|process|self|this|cls|config|conf|cfg|settings|args|opts|options|params|props|req|request|res|response"
    r"|ctx|context|body|data|user|secrets?|vault|var|local|module|github|steps|inputs|event|app|db|session|state|form|values)"
    r"\b(?:\.|::|->|\?\.|\[|\()",
    re.IGNORECASE,
)
_CALL = re.compile(r"[A-Za-z_][\w.:]*[(\[]")
_PLAIN = re.compile(r"[^\W\d]+(?:[\-.' ][^\W\d]+)*")
"""Letters only, in any script: a word, or a name made of words."""
_TECHNICAL = re.compile(
    r"(?:sha|md|base|utf|aes|rsa|hs|rs|es|ps|ed|oauth|http|https|v|x|ipv|rfc|p|pbkdf|bcrypt|argon|scrypt|win|python|py|h|k)[\-_/.]?"
    r"\d+[A-Za-z]{0,8}(?:[\-_/.:](?:[A-Za-z]{1,12}|\d{1,4})){0,4}"
    r"|\d+(?:st|nd|rd|th|px|ms|s|m|h|d|x|kb|mb|gb|k|b|bit|bits|byte|bytes|chars?|characters|days?|hours?|minutes?|seconds?)\+?"
    r"|\d+[\-_](?:bit|byte|char|character|digit|day|hour|minute|second|word|letter|factor)s?.*|\d[\d.,:/\-+%]*",
    re.IGNORECASE,
)
"""Letters and digits that state an algorithm or a size: SHA-256, base64, 32-byte, 12.5."""
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[\w.@\-]++[/\\])++[\w.@*\-]*+|~?/[\w.\-]{0,40}")
_FILE = re.compile(r"[\w\-./]++")
_ENDINGS = (
    ".json", ".yaml", ".yml", ".env", ".txt", ".pem", ".key", ".crt", ".py", ".js", ".jsx", ".ts", ".tsx", ".toml", ".ini", ".cfg",
    ".conf", ".md", ".html", ".xml", ".properties", ".sh", ".go", ".rs", ".java", ".rb", ".php", ".sql",
)  # fmt: skip
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]{1,12}+://[^:@]*|[\w.+\-]++@[\w\-]++(?:\.[\w\-]++)+", re.IGNORECASE)
_SENTENCE = re.compile(
    r"\b(?:password|passwords|passphrase|token|secret|api key|credentials?|must|should|please|enter|your|invalid|required|is|are"
    r"|was|cannot|can't|not|do not|don't|minimum|at least|too|will be|has been|have|incorrect|wrong|missing|used|the|for|with|from|to|it|and|an?|of|that|this|be|or|in|on)\b",
    re.IGNORECASE,
)
"""Words of a sentence about a secret; a passphrase of several words contains none of them."""
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_SYMBOL = re.compile(r"[!@#$%^&*+=?~|]")
_MADE = re.compile(r"[A-Za-z0-9_\-.~+/=:%|!@]+")
_PHRASE = re.compile(r"[a-z]++(?: [a-z]++){3,23}")
_CHANGE = re.compile(r"(?<=\d)(?=[A-Za-z])|(?<=[A-Za-z])(?=\d)")
_UPPER, _LOWER = re.compile(r"[A-Z]"), re.compile(r"[a-z]")


def is_blank(value: str) -> bool:
    """Return True if there is no value: empty, masked, a placeholder, a variable, a reference, or a word
    about it.
    """
    is_variable = value.startswith("$") and _VARIABLE.fullmatch(value) is not None
    return is_variable or value.casefold() in _WORDS or _BLANK.fullmatch(value) is not None


def is_code(value: str) -> bool:
    """Return True for code that reads the value: an attribute, an item, the environment."""
    return _ROOTS.match(value) is not None or (
        _CHAIN.fullmatch(value) is not None and not _DIGIT.search(value)
    )


def is_call(value: str) -> bool:
    """Return True if the value begins with the name of a function and its parenthesis."""
    return _CALL.match(value) is not None


def is_word(value: str) -> bool:
    """Return True for letters only: a word, or a name made of words."""
    return _PLAIN.fullmatch(value) is not None


def names_itself(value: str) -> bool:
    """Return True for a word such as `new_password`, which names its content."""
    return is_word(value) and _ABOUT.search(value) is not None


def is_place(value: str) -> bool:
    """Return True for a path, a URL, a mail address or a file name."""
    is_file = value.endswith(_ENDINGS) and _FILE.fullmatch(value) is not None
    return is_file or _PATH.fullmatch(value) is not None or _ADDRESS.fullmatch(value) is not None


def is_sentence(value: str) -> bool:
    """Return True for several words that form a sentence, as in a label or an error."""
    return " " in value and _SENTENCE.search(value) is not None


def is_technical(value: str) -> bool:
    """Return True for an algorithm, a size, a version or a number."""
    return _TECHNICAL.fullmatch(value) is not None


def is_phrase(value: str) -> bool:
    """Return True for four to 24 plain words in lower case."""
    return _PHRASE.fullmatch(value) is not None


def is_password(value: str) -> bool:
    """Return True if a person would call it a password: letters with digits or symbols among them."""
    if len(value) < LEAST or is_technical(value) or is_place(value) or is_code(value):
        return False
    has_letter = _LETTER.search(value) is not None
    return has_letter and (_DIGIT.search(value) is not None or _SYMBOL.search(value[:-1]) is not None)


def is_random(value: str) -> bool:
    """Return True for a generated value: long, without blanks, with letters and digits alternating unlike in
    any name.
    """
    if len(value) < LEAST_RANDOM or not _MADE.fullmatch(value) or is_place(value):
        return False
    turns = sum(1 for _ in _CHANGE.finditer(value))
    is_mixed = len(value) >= 24 and all(kind.search(value) for kind in (_UPPER, _LOWER, _DIGIT))
    return turns >= 3 or (is_mixed and turns >= 1)


# Forms of secrets that need no name before them

_WORD = r"[A-Za-z0-9_\-]"
_ALNUM = r"[A-Za-z0-9]"
_HEX = r"[0-9a-f]"
_VENDORS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("api key", ("sk-",), rf"sk-(?:ant-|proj-|or-v1-|svcacct-|admin-|lf-)?{_WORD}{{20,250}}"),
    ("refold key", ("rf_",), rf"rf_{_HEX}{{12}}_{_HEX}{{48}}"),
    ("github token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), rf"gh[pousr]_{_ALNUM}{{30,255}}"),
    ("github token", ("github_pat_",), rf"github_pat_{_WORD}{{20,255}}"),
    ("gitlab token", ("gl",), rf"gl(?:pat|dt|rt|cbt|ptt|ft|agent|soat)-{_WORD}{{20,64}}"),
    ("slack token", ("xox", "xapp-"), rf"x(?:ox[abeoprs]|app-\d)-{_WORD}{{10,250}}"),
    (
        "slack hook",
        ("hooks.slack.com/",),
        r"(?:services|workflows)(?<=hooks\.slack\.com/.{8})[A-Za-z0-9/]{20,100}",
    ),
    ("discord hook", ("/api/webhooks/",), rf"(?<=/api/webhooks/)\d{{15,22}}/{_WORD}{{30,120}}"),
    ("aws key id", ("AKIA", "ASIA", "ABIA", "ACCA"), r"A(?:KI|SI|BI|CC)A[A-Z0-9]{16}\b"),
    ("google key", ("AIza",), rf"AIza{_WORD}{{35}}"),
    ("google key", ("ya29.", "GOCSPX-"), rf"(?:ya29\.|GOCSPX-){_WORD}{{20,500}}"),
    ("azure secret", ("8Q~",), r"[A-Za-z0-9_~.]{3}8Q~[A-Za-z0-9_~.\-]{31,40}"),
    ("azure signature", ("sig=",), r"sig=[A-Za-z0-9%+/]{30,120}={0,2}"),
    ("stripe key", ("k_live_", "k_test_"), rf"[rsp]k_(?:live|test)_{_ALNUM}{{10,247}}"),
    ("npm token", ("npm_",), rf"npm_{_ALNUM}{{36}}\b"),
    ("pypi token", ("pypi-",), rf"pypi-{_WORD}{{50,250}}"),
    ("hugging face token", ("hf_", "api_org_"), rf"(?:hf|api_org)_{_ALNUM}{{30,64}}"),
    ("telegram token", (":AA",), rf"\d{{8,10}}:AA{_WORD}{{33}}"),
    ("sendgrid key", ("SG.",), rf"SG\.{_WORD}{{16,32}}\.{_WORD}{{30,64}}"),
    ("mail key", ("key-",), rf"key-{_HEX}{{32}}\b"),
    ("mail key", ("-us",), rf"{_HEX}{{32}}-us\d{{1,2}}\b"),
    ("twilio key", ("SK",), rf"SK{_HEX}{{32}}\b"),
    ("databricks token", ("dapi",), rf"dapi{_HEX}{{32}}\b"),
    ("terraform token", (".atlasv1.",), rf"{_ALNUM}{{14}}\.atlasv1\.{_WORD}{{40,100}}"),
    ("vault token", ("hvs.", "hvb.", "hvr."), rf"hv[sbr]\.{_WORD}{{24,250}}"),
    ("age key", ("AGE-SECRET-KEY-1",), r"AGE-SECRET-KEY-1[A-Z0-9]{50,64}"),
    (
        "json web token",
        ("eyJ",),
        rf"eyJ(?:(?<![A-Za-z0-9_\-]eyJ)|(?<=\\[nrt]eyJ)){_WORD}{{8,4000}}+\.eyJ{_WORD}{{8,8000}}+(?:\.{_WORD}{{0,4000}}+){{0,3}}",
    ),
)
_PREFIXES = (
    "gsk_", "xai-", "pplx-", "r8_", "nvapi-", "tvly-", "pcsk_", "csk-", "e2b_", "jina_", "lsv2_pt_", "lsv2_sk_", "dckr_pat_",
    "ATATT3", "ATBB", "shpat_", "shpss_", "shpca_", "shppa_", "dop_v1_", "doo_v1_", "dor_v1_", "lin_api_", "ntn_", "figd_", "PMAK-",
    "NRAK-", "glsa_", "glc_", "sntrys_", "sntryu_", "dp.pt.", "dp.st.", "sbp_", "pscale_tkn_", "pscale_pw_", "pul-", "rubygems_",
    "HRKU-", "sq0atp-", "sq0csp-", "whsec_", "EAACEdEose0cBA",
)  # fmt: skip
"""Prefixes of vendors whose keys are only a prefix and a long word."""
_FORMS = (
    *((kind, hints, re.compile(form)) for kind, hints, form in _VENDORS),
    *(("api key", (prefix,), re.compile(rf"{re.escape(prefix)}{_WORD}{{20,400}}")) for prefix in _PREFIXES),
)
_SHORTEST = 15
"""Characters of the shortest form, hint included. No form holds a blank, so hints are looked for in the words
of this length only: half of a text or less."""
_PORTION = 64 * 1024
"""Characters of a long text that are split into words at a time."""
_ANY_SPACE = re.compile(r"\s")
KINDS = frozenset(
    (*(kind for kind, _, _ in _FORMS), "signature", "token", "cookie", "password", "private key", "secret")
)
"""Every kind of secret that a placeholder may name."""
_NAME_OF_WORDS = re.compile(r"[a-z0-9]{2,12}[\-_](?:[a-z]+[\-_])*[a-z]+")
_ESCAPED = re.compile(r"(?:\\[nrtbf]|%[0-9A-Fa-f]{2})$")
_EDGE = re.compile(
    r"-----?[ ]?(?:BEGIN|(?P<end>END)) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?[ ]?-----?"
    r"|Private-Lines: \d{1,3}|(?P<mac>Private-MAC: )\w{1,128}"
)
_ARMOUR = re.compile(
    r"[\s\"'`+,|>#]++|\\{1,15}[nrt]|(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{0,100}+|[A-Za-z0-9+/]{16,}+={0,2}"
    r"|[A-Za-z0-9+/=]{1,15}+(?=\s{0,9}$)"
)
"""One piece of the text between the edges of a private key; it is never empty."""
_BLOB = re.compile(r"[A-Za-z0-9+/]{16}")
_LONGEST_KEY = 20_000
"""Characters between the first and the last line of a private key: the largest in use have 13,000."""
START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
"""The beginning of a word; also after the escaped line break of a text within JSON."""
_QUOTE = r"\\{0,15}[\"'`]"
_HEADER = re.compile(
    rf"(?:{START}(?:proxy-)?authorization(?:{_QUOTE})?[ \t]{{0,3}}[:=,][ \t]{{0,3}}(?:{_QUOTE})?"
    r"(?P<scheme>(?:bearer|basic|token|digest|apikey|api-key|key|bot|negotiate|ntlm|hmac|aws4-hmac-sha256)[ \t:]{1,3})?"
    rf"|{START}(?P<bare>bearer|basic)[ \t]{{1,3}})"
    r"(?P<secret>[A-Za-z0-9_\-.~+/%:|!]{4,4000}+={0,2})",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    rf"{START}(?:(?:X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-Signature|Signature)(?:=|%3D))"
    r"(?P<secret>[A-Za-z0-9%/+_\-]{20,2000}+)"
)
_COOKIE = re.compile(
    rf"{START}(?:set-)?cookie(?:{_QUOTE})?[ \t]{{0,3}}[:=][ \t]{{0,3}}(?:{_QUOTE})?"
    r"(?P<secret>[A-Za-z0-9_.\-]{1,60}=[^\s\"'`\\;,]{8,2000}+(?:;[ ]?[A-Za-z0-9_.\-]{1,60}=[^\s\"'`\\;,]{0,2000}+){0,40})",
    re.IGNORECASE,
)
_IN_URL = re.compile(
    r"://(?:(?P<user>[^\s/:@\"'`<>]{0,200}+):)?(?P<secret>[^\s/\"'`<>]{1,300})(?=@)",
)
_FLAGGED = re.compile(
    rf"{START}(?:(?:curl|wget|https?(?=[ \t])|xh|aria2c)\b[^\n|;]{{0,400}}?[ \t](?:-u|-U|--user|--proxy-user|-a|--auth)[ \t=]{{0,2}}"
    rf"(?:{_QUOTE})?[^\s:\"'`\\]{{0,100}}:"
    r"|(?:mysql\w{0,10}|mariadb\w{0,10})\b[^\n|;]{0,200}?[ \t]-p"
    r"|(?:sshpass|docker login|podman login|az login|helm registry login|twine upload|smbclient|ldapsearch)\b[^\n|;]{0,200}?[ \t]-[pwP][ \t]{0,2}"
    r"|-pass(?:in|out)?[ \t]pass:"
    rf"|redis-cli\b[^\n|;]{{0,200}}?[ \t]-a[ \t]{{1,2}})(?:{_QUOTE})?"
    r"(?P<secret>[^\s\"'`\\]{3,200})"
)
_PIPED = re.compile(
    rf"{START}(?:echo|printf)[ \t](?:-n[ \t]|{_QUOTE}%s{_QUOTE}[ \t])?(?:{_QUOTE})?(?P<secret>[^\s\"'`\\|]{{4,200}}+)(?:{_QUOTE})?[ \t]?"
    r"\|[^\n]{0,120}?(?:--?(?:password|pass|token)-stdin|--with-token|sudo[ ]-S|chpasswd)"
)


class Secret(Struct, frozen=True):
    """A string that must not be copied: its kind and its position in the text."""

    kind: str
    start: int
    stop: int


def find_by_form(text: str, low: str) -> Iterator[Secret]:
    """Yield every secret of a text that has a form of its own; `low` is the text in lower case."""
    if "PRIVATE KEY" in text or "Private-Lines" in text:
        yield from _private_keys(text)
    words = " ".join(_long_words(text))
    hinted = [number for hint, number in _FORM_HINTS if hint in words] if words else ()
    for number in dict.fromkeys(hinted):
        kind, _, form = _FORMS[number]
        yield from (Secret(kind, *match.span()) for match in form.finditer(text) if _is_word_start(match))
    for number in dict.fromkeys([number for hint, number in _PLACE_HINTS if hint in low]):
        kind, _, pattern, holds = _PLACES[number]
        found = (match for match in pattern.finditer(text) if holds(match))
        yield from (Secret(kind, *match.span("secret")) for match in found)


def _long_words(text: str) -> list[str]:
    """Return the words that are long enough for a form. All words at once would take ten times the memory of a long text."""
    found, start = list[str](), 0
    while start < len(text):
        end = _ANY_SPACE.search(text, start + _PORTION)
        stop = end.start() if end else len(text)
        found += [word for word in text[start:stop].split() if len(word) >= _SHORTEST]
        start = stop
    return found


def _is_word_start(match: re.Match[str]) -> bool:
    """Return True if a word begins at the match and it is no name made of words.

    A word may also begin after the escaped line break of a text within JSON.
    """
    if _NAME_OF_WORDS.fullmatch(match[0]):
        return False
    before = match.string[max(0, match.start() - 3) : match.start()]
    return (
        not before or not (before[-1].isalnum() or before[-1] == "_") or _ESCAPED.search(before) is not None
    )


def _is_credential(match: re.Match[str]) -> bool:
    """Return True if the match is the credential of a header, and not a word about it."""
    secret, scheme = match["secret"].rstrip(".:,"), match["scheme"]
    if is_blank(secret):
        return False
    if match["bare"]:
        is_basic = match["bare"].casefold() == "basic"
        return len(secret) >= 16 and (secret.endswith("=") if is_basic else _is_mixed(secret))
    return len(secret) >= 8 and (_is_mixed(secret) or secret.endswith("=")) if scheme else is_random(secret)


def _is_url_password(match: re.Match[str]) -> bool:
    """Return True if the match is a password in a URL. Without a user name before it, it must look like a
    token.
    """
    secret = match["secret"]
    if match["user"] is None:
        return is_random(secret) and ":" not in secret
    return not is_blank(secret) and secret.casefold() not in (
        "password",
        "pass",
        "pwd",
        "pw",
        "secret",
        "token",
    )


def _is_mixed(value: str) -> bool:
    return is_password(value) or (value.lower() != value != value.upper())


def _private_keys(text: str) -> Iterator[Secret]:
    """Yield private keys from their first line to their last; of a key that is cut off, as far as the text
    looks like one.
    """
    begun: re.Match[str] | None = None
    ends, blob = dict[int, int](), _BLOB.search(text)
    for edge in (*_EDGE.finditer(text), None):
        if begun is not None:
            is_closed = edge is not None and edge.lastgroup and edge.start() - begun.end() <= _LONGEST_KEY
            stop = edge.end() if edge and is_closed else _armour_end(text, begun.end(), ends)
            if blob is not None and blob.start() < begun.end():
                blob = _BLOB.search(text, begun.end())
            if blob is not None and blob.end() <= stop:
                yield Secret("private key", begun.start(), stop)
        begun = edge if edge is not None and not edge.lastgroup else None


def _armour_end(text: str, start: int, ends: dict[int, int]) -> int:
    """Return the end of the armour that continues at `start`.

    `ends` caches it for all positions that were passed before.

    Several first lines may stand in text that looks like one armour; with the cache each position is read
    only once.
    """
    passed, at = list[int](), start
    while at not in ends:
        passed.append(at)
        piece = _ARMOUR.match(text, at)
        if piece is None:
            ends[at] = at
        else:
            at = piece.end()
    ends.update(dict.fromkeys(passed, ends[at]))
    return ends[at]


def _is_filled(match: re.Match[str]) -> bool:
    secret = match["secret"].rpartition("=")[2] if match.re is _COOKIE else match["secret"]
    return not is_blank(secret) and not secret.isdigit()


_PLACES: tuple[tuple[str, tuple[str, ...], re.Pattern[str], Callable[[re.Match[str]], bool]], ...] = (
    ("token", ("authorization", "bearer", "basic"), _HEADER, _is_credential),
    ("signature", ("signature", "x-amz-"), _SIGNED, _is_filled),
    ("cookie", ("cookie",), _COOKIE, _is_filled),
    ("password", ("://",), _IN_URL, _is_url_password),
    (
        "password",
        ("curl", "wget", "http ", "https ", "mysql", "mariadb", "login", "sshpass", "-pass"),
        _FLAGGED,
        _is_filled,
    ),
    ("password", ("-stdin", "--with-token", "sudo -s", "chpasswd"), _PIPED, _is_filled),
)
"""Places of secrets: kind, words without which there is none, pattern, and a check of the match."""
_FORM_HINTS = tuple((hint, number) for number, (_, hints, *_) in enumerate(_FORMS) for hint in hints)
_PLACE_HINTS = tuple((hint, number) for number, (_, hints, *_) in enumerate(_PLACES) for hint in hints)
"""All of those words in a row: a text without any of them, as most are, is searched in one pass."""


# Names of secrets, in code and in many languages.

# Names before secrets

_STRONG = (
    r"passwords?|passwd|passphrase|passcode|(?:seed|recovery|secret)[ ]phrase|mnemonic|identified[ ]by"
    r"|(?:api|access|account|auth|client|private|encryption|signing|master|license|subscription|shared|storage|webhook|secret)"
    r"[_\-. ]?key|(?:auth|access|refresh|bearer|secret|id|api|bot|session|security)[_\-. ]?token|connection[_\-. ]?string"
    r"|secrets?|credentials?|passwort|kennwort|zugangsdaten|contraseña|contrasena|mot[ ]de[ ]passe|senha|parola|wachtwoord"
    r"|hasło|haslo|lösenord|losenord|adgangskode|kodeord|passord|salasana|jelszó|heslo|şifre|lozinka|geslo|mật[ ]khẩu|kata[ ]sandi"
    r"|пароль|密码|密碼|口令|密钥|パスワード|暗証番号|비밀번호|암호|كلمة[ ](?:المرور|السر)|סיסמה|पासवर्ड|รหัสผ่าน"
    r"|api-schlüssel|clé[ ](?:api|secrète)|(?:clave|chave|chiave)[ ](?:de[ ])?(?:api|acceso|secreta)|ключ[ ]api"
)
_SHORT = r"pass|pwd|psw|pw|pin(?:[ ]code)?|mdp|creds?"
"""Names that are also the end of other words: they count only at the beginning of a word."""
_WEAK = r"tokens?|auth|(?<=_)key|(?<=[a-z])key|clave|токен|令牌|トークン|jwt"
"""Names that often mean something other than a secret: the value has to look like one."""
_LINKS = r"(?:is|was|are|to|be|(?:will|shall|should|must)[ ]be|ist|lautet|es|est|è|é|era|är|jest)(?:[ ](?:now|still|set to))?(?::|(?=[ ]))|['’]s(?=[ ])|[–—→是为為はが는은이]|-[>\-]?(?=[ ])"
_GAP = r"[ \t]{0,8}"
NAME = re.compile(
    rf"(?:(?P<strong>{_STRONG})|(?P<short>{_SHORT})|(?P<weak>{_WEAK}))(?P<suffix>[A-Za-z0-9_\-.]{{0,24}}+)"
    rf"(?:(?:{_QUOTE})?,?(?:\s|\\{{1,15}}[nrt]){{0,40}}+(?:{_QUOTE})?value(?:{_QUOTE})?{_GAP}(?P<pair>[:=])"
    rf"|(?P<call>(?:{_QUOTE})?,{_GAP}(?={_QUOTE})|\((?={_QUOTE}))"
    rf"|(?P<tag>>|</key>\s{{0,9}}<string>)"
    rf"|(?:{_QUOTE})?\]?{_GAP}(?P<sign>[?!]?:{_GAP}[A-Za-z_&][A-Za-z_&\[\]|. ]{{0,40}}+=(?!=)|[?!]?(?:=>|:=|[!=]==?|[:=：＝]))"
    rf"|(?P<cell>(?:\*\*|__|`)?[ \t]{{1,40}}\|[ \t]|[ ]\((?!{_QUOTE}))"
    rf"|(?P<link>(?:[ ](?:for|of|on|at|in|from|von|für|de|del|du|pour|para|per|voor)(?:[ ][^\s:=]{{1,40}}){{1,4}}?)?"
    rf"[ ]{{0,2}}(?:{_LINKS}))"
    rf"|(?P<space>[ \t]))"
    rf"{_GAP}(?P<block>[|>][+\-]?{_GAP}(?:\r?\n|\\{{1,15}}n)[ \t]{{1,20}}|\r?\n[ \t]{{0,20}}(?=\S))?",
    re.IGNORECASE,
)
_ANCHORS = (
    "pass", "secret", "token", "key", "auth", "cred", "pwd", "psw", "pw", "pin", "mdp", "jwt", "phrase", "mnemonic", "identified by",
    "connection", "kennwort", "zugangsdaten", "contrase", "mot de", "senha", "parola", "wachtwoord", "haslo", "losenord",
    "adgangskode", "kodeord", "salasana", "heslo", "lozinka", "geslo", "kata sandi", "clave", "chave", "chiave",
)  # fmt: skip
_FOREIGN_ANCHORS = (
    "hasło", "lösenord", "jelszó", "şifre", "mật khẩu", "парол", "密码", "密碼", "口令", "密钥", "パスワード", "暗証番号", "비밀번호", "암호",
    "كلمة", "סיסמה", "पासवर्ड", "รหัสผ่าน", "schlüssel", "clé ", "ключ", "токен", "令牌", "トークン",
)  # fmt: skip
"""A substring of every name, to find names quickly: most texts have none."""
_COMPOUND = re.compile(
    r"(?:api|access|account|auth|client|private|encryption|signing|master|license|subscription|shared|storage|webhook|secret"
    r"|refresh|bearer|session|security|seed|recovery|(?<![A-Za-z])(?:id|bot))[_\-. ]?$",
    re.IGNORECASE,
)
_SUFFIX = re.compile(
    r"(?:[_\-.]?(?:access|secret|key|base|value|val|b64|text|plain|string|str|prod(?:uction)?|dev|devel(?:opment)?"
    r"|test(?:ing)?|stag(?:e|ing)|live|root|admin|user|db|old|new|current|default|confirm(?:ation)?|again|repeat|s|[0-9]))*",
    re.IGNORECASE,
)
"""Suffixes that do not change the meaning of a name: `password_prod`, unlike `password_length`."""
_COUNTED = re.compile(
    r"(?:next|page|prev(?:ious)?|continuation|sync|cursor|pad|eos|bos|sep|cls|mask|unk|special|stop|start|end|first|last|max|min|num"
    r"|total|prompt|completion|input|output|cached|cache|sort|primary|foreign|partition|public|idempotency|csrf|xsrf)"
    r"(?:[_\-. ]?page)?[_\-. ]?$",
    re.IGNORECASE,
)
"""Prefixes of `token` and `key` that mean no secret: pages, special tokens of a model, columns."""
_SPOKEN = re.compile(
    r"pass|pin|pw|ps|kenn|mdp|identified|contra|mot|senha|parola|wacht|has|l.sen|adgang|kode|salas|jelsz|heslo|şifre|loz|ges"
    r"|m.t |kata|пароль|密[码碼]|口|パ|暗|비|암|كلمة|סיסמה|पा|รหัส",
    re.IGNORECASE,
)
"""Names of secrets that people type: the value may be short, or a number."""
_WALLET = re.compile(r"seed|recovery|secret[ ]phrase|mnemonic", re.IGNORECASE)


def name_positions(text: str, low: str) -> list[int]:
    """Return the positions at which names may begin, in order."""
    found = set[int]()
    # One letter is found much faster than a word, and most texts that are not ASCII have only a few others.
    foreign = () if text.isascii() else [one for one in _FOREIGN_ANCHORS if max(one) in low]
    for anchor in [one for one in (*_ANCHORS, *foreign) if one in low]:
        at = low.find(anchor)
        while at >= 0:
            before = (
                _COMPOUND.search(text[max(0, at - 14) : at]) if anchor in ("key", "token", "phrase") else None
            )
            found.add(at - len(before[0]) if before else at)
            at = low.find(anchor, at + len(anchor))
    return sorted(found)


def is_spoken(match: re.Match[str]) -> bool:
    """Return True for secrets that people type, which may be four digits."""
    return _SPOKEN.match(match["strong"] or match["short"] or "") is not None


def is_wallet(match: re.Match[str]) -> bool:
    """Return True for the list of words that opens a wallet."""
    return _WALLET.match(match["strong"] or "") is not None


def is_weak(match: re.Match[str]) -> bool:
    """Return True if the name also has other meanings."""
    suffix = match["suffix"]
    return match["weak"] is not None or (suffix != "" and _SUFFIX.fullmatch(suffix) is None)


def is_counted(match: re.Match[str], prefix: str) -> bool:
    """Return True for a page, a column or a special token of a model, which is no secret."""
    return match["weak"] is not None and _COUNTED.search(prefix) is not None


# Values before and after names.

_Q = r"\\{0,15}[\"'`]"
_PREFIX = f"{ascii_letters}{digits}_-."
"""Characters of a name."""
_OPENING = re.compile(r"[bBrRuUfFL@]{0,2}(?P<quote>\"{3}|'{3}|\\{0,15}[\"'`]|[“‘«„「])")
_CLOSING = {"“": "”", "‘": "’", "«": "»", "„": "“", "「": "」"}
_BARE = re.compile(rf"(?:[^\s\"'`,;<>(){{}}\[\]\\]|\\(?![nrt\"'`\\])){{1,{LONGEST}}}+")
_PRINTED = re.compile(r"[!-~]{1,64}+")
"""A value in a text without spaces between words: it ends at the first character of another script."""
_MORE = re.compile(rf"[^\s\"'`<>\\]{{0,{LONGEST}}}")
_LINE = re.compile(rf"[^\r\n\\\"'`]{{1,{LONGEST}}}+")
_TAG = re.compile(rf"[^<\r\n]{{1,{LONGEST}}}+(?=<)")
_LEADING = re.compile(
    r"(?:^|[\r\n]|\\[nr]|[\"'`])[ \t]*(?:[-*>+#]{1,3}[ \t]*)?(?:(?:export|set|setx|env|arg|declare)[ \t]+)?[A-Za-z0-9_\-.]*$",
    re.IGNORECASE,
)
_BLANKS = re.compile(r"[ \t]*+")
_LINE_OVER = re.compile(r"$|[\r\n]|\\[nr]|[\"'`]")
_CELL_OVER = re.compile(r"\)|[!?]{0,3}[ \t]{0,40}\|")
"""The end of a value in parentheses, or in the next cell of a table."""
_CHANGED = re.compile(
    rf"[ ](?:[^\s:=]{{1,40}}[ ]){{0,4}}?from[ ](?:{_Q})?(?P<secret>[^\s\"'`]{{{LEAST},64}}?)(?:{_Q})?[ ](?:in)?to[ ]"
)
"""The previous value in a sentence such as "the password was changed from this to that"."""
_LOGIN = re.compile(
    rf"{START}(?:log[ ]?in|sign[ ]?in|credentials?|creds)(?:[ ](?:as|with|is|are|using|user))?[ :]{{1,3}}(?:{_Q})?"
    rf"[\w.@\-]{{1,60}}(?:{_Q})?[ ]?[/:|,][ ]?(?:{_Q})?(?P<secret>[^\s\"'`,;/]{{6,64}})",
    re.IGNORECASE,
)
_LOGIN_HINTS = ("login", "log in", "signin", "sign in", "credential", "creds", "İ", "ı", "ſ")
"""A login begins with one of these words; the letters are other forms of i and s, which the pattern takes for the same.
Looking for all of them takes a tenth of the time of the pattern."""
_LONGEST_LOGIN = 512
"""Characters; the longest match has half as many."""
_REVERSED = re.compile(
    r"[ ](?:as|is|ist|als)[ ](?:the|my|our|your|its|das|mein)[ ](?:[\w\-]{1,20}[ ]){0,2}$", re.IGNORECASE
)
_FIRST_ARGUMENT = re.compile(r"\([\s\\nrt]{0,8}[\"'`][#.\[\w= ]{0,20}$")
_LAST_WORD = re.compile(r"[^\s\"'`*]{1,64}$")
_MARKS = re.compile(r"[!?]{0,3}")
_CLOSERS = ".,;:)]}>*"
_TRAILING = f"{_CLOSERS}!?"


class _Value(Struct, frozen=True):
    start: int
    text: str
    is_quoted: bool
    is_query: bool = False
    """True if it is one of several parameters in a URL."""

    @property
    def secret(self) -> Secret:
        return Secret("secret", self.start, self.start + len(self.text))


def find_by_name(text: str, low: str) -> Iterator[Secret]:
    """Yield every secret of a text that follows its name; `low` is the text in lower case."""
    done = 0
    for start in name_positions(text, low):
        match = NAME.match(text, start) if start >= done else None
        yield from _replaced_values(match) if match else ()
        found = _secret_after_name(match) if match else None
        if found is not None:
            done = found.stop
            yield found
        elif (before := _secret_before_name(text, start)) is not None:
            yield before
    if ("log" in low or "sign" in low or "cred" in low) and any(hint in low for hint in _LOGIN_HINTS):
        for login in matches_by_portion(_LOGIN, text, longest=_LONGEST_LOGIN):
            if is_password(login["secret"]) and any(map(str.isdigit, login["secret"])):
                yield Secret("secret", *login.span("secret"))


def _replaced_values(match: re.Match[str]) -> Iterator[Secret]:
    """Yield the value that is replaced by another: `change the password from hunter22 to hunter33`."""
    found = _CHANGED.match(match.string, match.end("suffix"))
    if (
        found is not None
        and not is_weak(match)
        and is_password(found["secret"])
        and not is_blank(found["secret"])
    ):
        yield Secret("secret", *found.span("secret"))


def _secret_before_name(text: str, start: int) -> Secret | None:
    """Return the secret before a name: `hunter22 is my password`."""
    is_after_blank = text.startswith(" ", start - 1) if start else False
    link = _REVERSED.search(text[max(0, start - 60) : start]) if is_after_blank else None
    if link is None:
        return None
    stop = start - len(link[0])
    word = _LAST_WORD.search(text[max(0, stop - 64) : stop])
    is_found = word is not None and is_password(word[0]) and not is_blank(word[0])
    return Secret("secret", stop - len(word[0]), stop) if word and is_found else None


def _secret_after_name(match: re.Match[str]) -> Secret | None:
    """Return the value after a name, if it is a secret."""
    prefix = _prefix(match.string, match.start())
    value = _read_value(match, prefix) if _is_name(match, prefix) else None
    if value is None or len(value.text) < LEAST_QUOTED or is_blank(value.text):
        return _phrase_secret(match, value) if value and match["strong"] else None
    if not value.is_quoted and _is_function_result(match, prefix, value):
        return None
    if is_weak(match):
        return value.secret if is_random(value.text) and not is_counted(match, prefix) else None
    if match["short"] and not _fits_short_name(match, prefix, value):
        return None
    if value.is_quoted:
        return value.secret if _is_quoted_secret(match, value.text) else None
    if _is_bare_secret(match, prefix, value):
        return _extend_value(match, value).secret
    return _phrase_secret(match, value)


def _prefix(text: str, start: int) -> str:
    """Return the beginning of the name, before the word that was found."""
    before = text[max(0, start - 40) : start]
    prefix = before[len(before.rstrip(_PREFIX)) :]
    is_escape = (
        start > len(prefix) and text[start - len(prefix) - 1] == "\\" and prefix[:1] in ("n", "r", "t")
    )
    return prefix[1:] if is_escape else prefix


def _is_name(match: re.Match[str], prefix: str) -> bool:
    """Return True if the match is a name, and not the end of another word, such as `bypass`."""
    start, own = match.start() - len(prefix), match["strong"] or match["short"] or match["weak"]
    if match["tag"] == ">" and match.string[max(0, start - 1) : start] != "<":
        return False
    if match["call"] and not _is_argument(match, start):
        return False
    if not prefix or not prefix[-1].isalpha() or own.casefold().startswith(("passw", "passp", "secret")):
        return True
    return own[0].isupper() and (prefix[-1].islower() or prefix.isupper())


def _fits_short_name(match: re.Match[str], prefix: str, value: _Value) -> bool:
    """Return True if the value fits a short name: a pin is a number; a lone `pass` is mostly a test result,
    unless quoted.
    """
    own = match["short"].casefold()
    if own.startswith("pin"):
        return value.text.isdigit() and len(value.text) <= 12
    is_keyword = own == "pass" and not prefix
    return not is_keyword or (value.is_quoted and match["space"] is None and match["link"] is None)


def _is_argument(match: re.Match[str], start: int) -> bool:
    """Return True if the name is the first of two quoted arguments, or a function that takes a password."""
    if "," not in match["call"]:
        return is_spoken(match)
    before = match.string[max(0, start - 30) : start]
    return _FIRST_ARGUMENT.search(before) is not None


def _read_value(match: re.Match[str], prefix: str) -> _Value | None:
    """Return the value after a name, up to the end of its quotes, its tag or its characters."""
    text, at, start = match.string, match.end(), match.start() - len(prefix)
    if match["tag"]:
        tagged = _TAG.match(text, at)
        return _Value(at, tagged[0].rstrip(), is_quoted=True) if tagged else None
    opening = _OPENING.match(text, at)
    if opening is not None:
        start = opening.end()
        stop = _closing(text, start, opening["quote"])
        if stop >= 0:
            return _Value(start, text[start:stop], is_quoted=True)
        at = start
    is_ascii = match["link"] is not None and not match["link"].isascii()
    bare = (_MORE if _is_shell_setting(match, prefix) else _PRINTED if is_ascii else _BARE).match(text, at)
    if bare is None:
        return None
    if text[max(0, start - 1) : start] in ("?", "&"):
        return _Value(at, re.split("[&#]", bare[0], maxsplit=1)[0], is_quoted=False, is_query=True)
    return _Value(at, bare[0].rstrip(_TRAILING), is_quoted=False)


def _closing(text: str, start: int, quote: str) -> int:
    """Return the end of a quoted value; -1 if the quote does not close on its line."""
    end, stop = _CLOSING.get(quote, quote), min(len(text), start + LONGEST)
    at = text.find(end, start, stop)
    while at > start and text[at - 1] == "\\":
        at = text.find(end, at + 1, stop)
    is_one_line = len(quote) == 3 or at < 0 or not re.search(r"[\r\n]", text[start:at])
    return at if is_one_line else -1


def _is_quoted_secret(match: re.Match[str], value: str) -> bool:
    """Return True if a quoted value is a secret: after a clear name it is, unless it is a text about it."""
    if (match["space"] or match["link"]) and not is_spoken(match):
        return match["link"] is not None and is_password(value)
    is_told = is_sentence(value) and not is_wallet(match)
    return not (names_itself(value) or is_told or is_place(value) or is_code(value))


def _is_function_result(match: re.Match[str], prefix: str, value: _Value) -> bool:
    """Return True if a function returns the value.

    In a shell setting, parentheses are part of the value, unless only a plain name precedes them.
    """
    stop = value.start + len(value.text)
    is_plain = not _is_shell_setting(match, prefix) or not any(map(str.isdigit, value.text.partition("(")[0]))
    return is_plain and is_call(match.string[value.start : stop + 1])


def _is_bare_secret(match: re.Match[str], prefix: str, value: _Value) -> bool:
    """Return True if an unquoted value is a secret and not code or prose: by its characters, or because it is
    alone on its line.
    """
    said, stop = value.text, value.start + len(value.text)
    if said.isdigit():
        return is_spoken(match) and match["space"] is None
    if match["cell"]:
        has_digit = any(map(str.isdigit, said))
        return has_digit and _CELL_OVER.match(match.string, stop) is not None and is_password(said)
    if match["link"] or match["space"] or (match["block"] or "|")[0] not in "|>":
        is_likely = match["space"] is None or prefix.startswith("--") or any(map(str.isdigit, said))
        return is_likely and is_password(said)
    if is_code(said) or is_place(said):
        return False
    if is_word(said):
        return len(said) >= LEAST and not names_itself(said) and _is_alone_on_line(match, prefix, stop)
    return len(said) >= LEAST and not is_technical(said)


def _is_alone_on_line(match: re.Match[str], prefix: str, stop: int) -> bool:
    """Return True for `NAME=value` as in a shell, or a line with nothing but the name and the value."""
    text = match.string
    if _is_shell_setting(match, prefix):
        return True
    is_first = _LEADING.search(text[max(0, match.start() - 60) : match.start()]) is not None
    return is_first and _is_line_over(text, stop) and "_" not in text[match.end() : stop]


def _is_line_over(text: str, at: int) -> bool:
    """Return True if only blanks follow on the line, or in the quotes around it."""
    blanks = _BLANKS.match(text, at)
    return _LINE_OVER.match(text, blanks.end() if blanks else at) is not None


def _is_shell_setting(match: re.Match[str], prefix: str) -> bool:
    """Return True for `NAME=value` as in a shell."""
    name = prefix + match.string[match.start() : match.end("suffix")]
    return name.isupper() and match["sign"] == "=" and match.end() == match.end("sign")


def _phrase_secret(match: re.Match[str], value: _Value) -> Secret | None:
    """Return a secret of several words without quotes, such as those of a wallet."""
    is_asked = (match["sign"] or match["link"]) and (is_wallet(match) or is_spoken(match))
    line = _LINE.match(match.string, value.start) if is_asked else None
    said = line[0].rstrip(f"{_TRAILING} ") if line else ""
    is_found = is_phrase(said) and (is_wallet(match) or not is_sentence(said))
    return Secret("secret", value.start, value.start + len(said)) if is_found else None


def _extend_value(match: re.Match[str], value: _Value) -> _Value:
    """Extend an unquoted value to its real end.

    On a line of its own it may contain any punctuation; inside a sentence it ends before punctuation.
    """
    text, stop = match.string, value.start + len(value.text)
    if value.is_query:
        return value
    is_first = _LEADING.search(text[max(0, match.start() - 60) : match.start()]) is not None
    more = (_MORE if is_first else _MARKS).match(text, stop)
    rest = more[0].rstrip(_CLOSERS) if more else ""
    return structs.replace(value, text=value.text + rest)


# Search a text for many phrases at once, with the Aho-Corasick algorithm. The time is linear in the
# text for any number of phrases.


class PhraseIndex:
    """A trie of all phrases.

    Each node links to the longest proper suffix of its text that is also a prefix of a phrase.

    Most nodes have one child, which has the next number: then only its letter is stored, some 20 bytes for
    each.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._letter = [""]
        """The letter that leads from each node to the node with the next number; empty if there is none."""
        self._others: dict[int, dict[str, int]] = {}
        """Further children of a node, by letter."""
        self._longest = array("I", [0])
        """The length of the longest phrase that ends at each node; zero if there is none."""
        for phrase in phrases:
            self._add(phrase)
        self._link = self._suffix_links()

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of phrases in a text: for every end, the longest phrase."""
        next_letter, others, link, longest, node = self._letter, self._others, self._link, self._longest, 0
        for stop, letter in enumerate(text, 1):
            while True:  # `_child`, without a call for every letter
                if next_letter[node] == letter:
                    node += 1
                    break
                if node in others and (child := others[node].get(letter, 0)):
                    node = child
                    break
                if not node:
                    break
                node = link[node]
            if longest[node]:
                yield stop - longest[node], stop

    def _child(self, node: int, letter: str) -> int:
        """Return the child of a node for a letter; zero if there is none."""
        if self._letter[node] == letter:
            return node + 1
        return self._others[node].get(letter, 0) if node in self._others else 0

    def _add(self, phrase: str) -> None:
        node = depth = 0
        while depth < len(phrase) and (child := self._child(node, phrase[depth])):
            node, depth = child, depth + 1
        for letter in phrase[depth:]:
            new = len(self._letter)
            if new == node + 1:
                self._letter[node] = letter
            else:
                self._others.setdefault(node, {})[letter] = new
            self._letter.append("")
            self._longest.append(0)
            node = new
        self._longest[node] = len(phrase)

    def _suffix_links(self) -> array[int]:
        link = array("I", bytes(4 * len(self._letter)))
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for letter, child in self._children(node):
                end = link[node]
                while end and not self._child(end, letter):
                    end = link[end]
                link[child] = self._child(end, letter) if node else 0
                self._longest[child] = self._longest[child] or self._longest[link[child]]
                waiting.append(child)
        return link

    def _children(self, node: int) -> Iterator[tuple[str, int]]:
        if self._letter[node]:
            yield self._letter[node], node + 1
        yield from self._others.get(node, {}).items()


Inner: TypeAlias = Text | Image | File | Opaque
LEAST_KNOWN = 8
"""Characters: a shorter value occurs in too many places by chance to be removed everywhere."""
_MAX_PASSES = 16
"""Limit of passes over a text, each of which may expose further secrets. Ordinary texts need three at
most; if this many are not enough, the whole text is replaced."""
_FEW = 16
"""Up to this many known values are searched one by one, which is faster than all at once for a small
number."""
_PLACEHOLDER = re.compile(rf"\[(?:(?:{'|'.join(sorted(KINDS))})(?: in #m\d{{1,9}})?|withheld: #m\d{{1,9}})\]")
_NEAR, _WINDOW = 4_096, 16_384
"""Characters between a change and a secret that it exposed: a name, its value and what stands around them have 2,000 at
most. A window around a change is wider, so that no such secret is at its edge."""
_LONG_SECRETS = (
    "private key", "private-lines", "eyj", "cookie", "authorization", "bearer", "basic", "signature", "x-amz-",
)  # fmt: skip
"""Words of secrets that may be longer: a text with one of them is searched as a whole. In lower case."""
_ESCAPE = re.compile(r"\\{1,15}+u(?!00[01]|0022|005[cC]|[dD][89a-fA-F])([0-9a-fA-F]{4})")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/]{8,}")


def find_secrets(text: str, known: Collection[str] = ()) -> tuple[Secret, ...]:
    """Return every secret in a text, in order and without overlap; `known` are values that were found
    elsewhere.
    """
    found = tuple(_find(text, known))
    return tuple(_merge_overlaps(found, text)) if found else ()


def _find(text: str, known: Collection[str]) -> Iterator[Secret]:
    """Yield every secret in a text; they may overlap."""
    low = _lowered(text)
    yield from find_by_form(text, low)
    yield from find_by_name(text, low)
    yield from _find_known(text, known)


def _lowered(text: str) -> str:
    """Return the text in lower case with unchanged positions: a few letters become two in lower case, and
    stay.
    """
    low = text.lower()
    is_under = len(low) == len(text)
    return low if is_under else "".join(one if len(one.lower()) > 1 else one.lower() for one in text)


def _unescaped(text: str) -> str:
    r"""Decode `\uXXXX` escapes of JSON within a text: `\u043f` hides a name, and `\u003d` a sign.

    It is the same JSON as before, at any depth: quotes, backslashes and control characters stay escaped.
    """
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\\u" in text else text


def redact(text: str, place: str = "", known: Collection[str] = ()) -> str:
    """Return the text with a placeholder for every secret; `place` is the handle of the original, if there is
    one.

    A replacement may expose further text that looks like a secret, so the search repeats until it finds
    nothing: redacting twice changes nothing more. Only the neighbourhood of the last replacements is searched
    again.
    """
    where = f" in {place}" if place else ""
    changes: Sequence[tuple[int, int]] | None = None
    for _ in range(_MAX_PASSES):
        searched, found = _search(text, known, changes)
        if not found:
            return text
        is_same = _unescaped(searched) == searched
        text, changes = _replace(searched, found, where)
        changes = changes if is_same else None
    return f"[secret{where}]" if _search(text, known, changes)[1] else text


def holds_secret(text: str, known: Collection[str] = ()) -> bool:
    """Return True if `redact` would change the text. The search ends at the first secret."""
    plain = _unescaped(text)
    texts = (text,) if plain == text else (plain, text)
    return any(True for one in texts for _ in _around_placeholders(_find(one, known), one))


def _search(
    text: str, known: Collection[str], changes: Sequence[tuple[int, int]] | None = None
) -> tuple[str, tuple[Secret, ...]]:
    """Return the text without escapes and its secrets; if it has none, the text as it is and those in it.

    `changes` are the places at which the text changed since it was searched last.
    """
    plain = _unescaped(text)
    if plain != text:
        found = find_secrets(plain, known)
        return (plain, found) if found else (text, find_secrets(text, known))
    return text, find_secrets(text, known) if changes is None else _find_near(text, known, changes)


def _replace(text: str, found: Iterable[Secret], where: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with a placeholder for each secret, and the positions of the placeholders."""
    parts, places, at, size = list[str](), list[tuple[int, int]](), 0, 0
    for secret in found:
        placeholder = f"[{secret.kind}{where}]"
        parts += [text[at : secret.start], placeholder]
        size += secret.start - at + len(placeholder)
        places.append((size - len(placeholder), size))
        at = secret.stop
    return "".join((*parts, text[at:])), places


def _find_near(text: str, known: Collection[str], changes: Sequence[tuple[int, int]]) -> tuple[Secret, ...]:
    """Return the secrets of a text that was searched before it changed at some places.

    A secret that was not found then is near a change. The windows are wider than that, and what is found at the
    edge of a window is dropped: there a text may look like a secret only because it is cut off. A known value that
    was not found then holds a part of a placeholder.
    """
    known, low = [value for value in known if "[" in value or "]" in value], text.lower()
    is_long = any(word in low for word in _LONG_SECRETS) or any(len(value) > _NEAR for value in known)
    if is_long or len(text) <= _WINDOW:
        return find_secrets(text, known)
    found, start, stop = list[Secret](), 0, 0
    for first, last in (*changes, (len(text) + 2 * _WINDOW, 0)):
        if first - _WINDOW > stop:
            edge = start + _NEAR if start else 0, stop - _NEAR if stop < len(text) else stop
            for one in find_secrets(text[start:stop], known) if stop else ():
                if edge[0] <= one.start + start and one.stop + start <= edge[1]:
                    found.append(Secret(one.kind, one.start + start, one.stop + start))
            start = max(0, first - _WINDOW)
        stop = min(len(text), last + _WINDOW)
    return tuple(found)


def texts_of(message: Message) -> Iterator[str]:
    """Yield all texts in a message that could hold a secret."""
    return (text for part in message.parts for text in _texts(part))


def values_of(message: Message) -> frozenset[str]:
    """Return the secrets of a message in a form that can be recognised in other texts, a private key line by
    line.
    """
    texts = map(_unescaped, texts_of(message))
    found = (text[one.start : one.stop] for text in texts for one in find_secrets(text))
    lines = (line for value in found for line in (_KEY_LINE.findall(value) if "KEY" in value else (value,)))
    return frozenset(one for one in lines if len(one) >= LEAST_KNOWN and (is_password(one) or is_random(one)))


def redact_message(
    message: Message, number: int, hidden: Collection[int] = (), known: Collection[str] = ()
) -> Message:
    """Return a message without its secrets; of a `hidden` message only its handle is left."""
    handle = handle_of(number)
    if number in hidden:
        return Message(message.role, tuple(_hide_part(part, handle) for part in message.parts))
    parts = tuple(_redact_part(part, handle, known) for part in message.parts)
    return message if parts == message.parts else Message(message.role, parts)


def is_clean(message: Message, known: Collection[str] = ()) -> bool:
    """Return True if no text of the message, provider-specific fields included, looks like a secret."""
    raw = bytes(message.origin.raw).decode("utf-8", "replace") if message.origin else ""
    for part in message.parts:
        if isinstance(part, Reasoning):
            raw = raw.replace(part.signature or "\0", "").replace(part.sealed or "\0", "")
    return not any(holds_secret(text, known) for text in (*texts_of(message), raw))


def _redact_part(part: Part, handle: str, known: Collection[str]) -> Part:
    match part:
        case ToolCall():
            name, arguments = redact(part.name, handle, known), redact(part.arguments, handle, known)
            is_same = (name, arguments) == (part.name, part.arguments)
            return part if is_same else ToolCall(part.id, name, arguments, part.kind)
        case ToolResult():
            inner = tuple(_redact_inner(one, handle, known) for one in part.parts)
            return part if inner == part.parts else ToolResult(part.call_id, inner, part.is_error, part.kind)
        case Reasoning():
            return Text(_withheld_note(handle)) if holds_secret(part.text, known) else part
        case _:
            return _redact_inner(part, handle, known)


def _redact_inner(part: Inner, handle: str, known: Collection[str]) -> Inner:
    """Return a part without its secrets.

    A part that cannot be rewritten, such as a URL or a provider's block, is replaced.
    """
    if isinstance(part, Text):
        text = redact(part.text, handle, known)
        return part if text == part.text else Text(text)
    is_clean_inside = not any(holds_secret(text, known) for text in _texts(part))
    if is_clean_inside or not isinstance(part, File) or not part.text:
        return part if is_clean_inside else Text(_withheld_note(handle))
    return File(name=redact(part.name, handle, known), text=redact(part.text, handle, known))


def _texts(part: Part) -> Iterator[str]:
    match part:
        case Text() | Reasoning():
            yield part.text
        case ToolCall():
            yield from (part.name, part.arguments)
        case ToolResult():
            for inner in part.parts:
                yield from _texts(inner)
        case File():
            yield from (part.name, part.text, part.url, _decoded(part.data))
        case Image():
            yield part.url if not part.url.startswith("data:") else ""
        case Opaque():
            yield bytes(part.raw).decode("utf-8", "replace") if part.raw else ""


def _decoded(data: str) -> str:
    """Return the text of a file that came as base64; empty if it is no text."""
    try:
        return b64decode(data).decode("utf-8")
    except ValueError:
        return ""


def _hide_part(part: Part, handle: str) -> Part:
    """Return the remainder of a part that was marked as sensitive: its place in the conversation."""
    match part:
        case ToolCall():
            return ToolCall(part.id, redact(part.name, handle), "{}", part.kind)
        case ToolResult():
            return ToolResult(part.call_id, (Text(_withheld_note(handle)),), part.is_error, part.kind)
        case _:
            return Text(_withheld_note(handle))


def _withheld_note(handle: str) -> str:
    return f"[withheld: {handle}]"


def _find_known(text: str, known: Collection[str]) -> Iterator[Secret]:
    """Yield the positions of values that were found elsewhere."""
    if len(known) > _FEW:
        spans = _index(frozenset(known)).spans(text)
        yield from (Secret("secret", start, stop) for start, stop in spans)
        return
    for value in known:
        at = text.find(value)
        while at >= 0:
            yield Secret("secret", at, at + len(value))
            at = text.find(value, at + len(value))


@lru_cache(maxsize=8)
def _index(known: frozenset[str]) -> PhraseIndex:
    """Return a cached index: the same values are searched in every message of a conversation."""
    return PhraseIndex(known)


def _merge_overlaps(found: Iterable[Secret], text: str) -> Iterator[Secret]:
    """Merge overlapping secrets under the kind of the first.

    A placeholder is covered completely or not at all.
    """
    last: Secret | None = None
    for secret in sorted(_around_placeholders(found, text), key=lambda one: (one.start, -one.stop)):
        if last is not None and secret.start < last.stop:
            last = Secret(last.kind, last.start, max(last.stop, secret.stop))
            continue
        if last is not None:
            yield last
        last = secret
    if last is not None:
        yield last


def _around_placeholders(found: Iterable[Secret], text: str) -> Iterator[Secret]:
    spans = [match.span() for match in _PLACEHOLDER.finditer(text)]
    starts = [start for start, _ in spans]
    for secret in found:
        first = (
            spans[bisect_right(starts, secret.start) - 1] if starts and starts[0] <= secret.start else (0, 0)
        )
        last = (
            spans[bisect_right(starts, secret.stop - 1) - 1] if starts and starts[0] < secret.stop else (0, 0)
        )
        if secret.stop > first[1] or secret.start < first[0]:
            start = first[0] if secret.start < first[1] else secret.start
            yield Secret(secret.kind, start, max(secret.stop, last[1]))
