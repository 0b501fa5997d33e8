"""Find secrets by their own form, without a name before them.

Issuers of keys give them a recognisable form: a prefix, armour, a place in a URL or a header. Hardly any
other text has such a form.

Patterns are linear in the text: every repetition is bounded or over one class of characters, and none of them
starts twice within the same run of characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from refold.core.secrets.values import is_blank, is_password, is_random

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
    for number in dict.fromkeys([number for hint, number in _FORM_HINTS if hint in text]):
        kind, _, form = _FORMS[number]
        yield from (Secret(kind, *match.span()) for match in form.finditer(text) if _is_word_start(match))
    for number in dict.fromkeys([number for hint, number in _PLACE_HINTS if hint in low]):
        kind, _, pattern, holds = _PLACES[number]
        found = (match for match in pattern.finditer(text) if holds(match))
        yield from (Secret(kind, *match.span("secret")) for match in found)


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
