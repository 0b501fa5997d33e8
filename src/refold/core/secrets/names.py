"""Find secrets by the name before them, as people and programs write it.

`DB_PASSWORD=`, `"apiKey": `, `--token `, `<password>`, `my password for prod is ` all name the next value.
First the name is found, then the value after it is read to the end that its quotes or the line set, then
`values` decides whether it is a secret. A text may be JSON within JSON: quotes and line breaks count with any
number of backslashes before them.

Reading a value looks at no more than `LONGEST` characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct, structs

from refold.core.secrets.forms import START, Secret
from refold.core.secrets.values import (
    LEAST,
    LEAST_QUOTED,
    LONGEST,
    is_blank,
    is_call,
    is_code,
    is_password,
    is_phrase,
    is_place,
    is_random,
    is_sentence,
    is_technical,
    is_word,
    names_itself,
)

# Names of secrets, in code and in many languages.

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
_QUOTE = r"\\{0,15}[\"'`]"
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
    anchors = _ANCHORS if text.isascii() else (*_ANCHORS, *_FOREIGN_ANCHORS)
    for anchor in [one for one in anchors if one in low]:
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
    return match["weak"] is not None or _SUFFIX.fullmatch(match["suffix"]) is None


def is_counted(match: re.Match[str], prefix: str) -> bool:
    """Return True for a page, a column or a special token of a model, which is no secret."""
    return match["weak"] is not None and _COUNTED.search(prefix) is not None


# Values before and after names.

_Q = r"\\{0,15}[\"'`]"
_PREFIX = re.compile(r"[A-Za-z0-9_\-.]{0,40}\Z")
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
    if "log" in low or "sign" in low or "cred" in low:
        for login in _LOGIN.finditer(text):
            if is_password(login["secret"]) and any(map(str.isdigit, login["secret"])):
                yield Secret("secret", *login.span("secret"))


def _replaced_values(match: re.Match[str]) -> Iterator[Secret]:
    """Yield the value that is replaced by another: `change the password from hunter22 to hunter33`."""
    found = _CHANGED.match(match.string, match.end("suffix")) if not is_weak(match) else None
    if found is not None and is_password(found["secret"]) and not is_blank(found["secret"]):
        yield Secret("secret", *found.span("secret"))


def _secret_before_name(text: str, start: int) -> Secret | None:
    """Return the secret before a name: `hunter22 is my password`."""
    link = _REVERSED.search(text[max(0, start - 60) : start])
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
    found = _PREFIX.search(text[max(0, start - 40) : start])
    prefix = found[0] if found else ""
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
    if is_code(said) or is_place(said):
        return False
    if said.isdigit():
        return is_spoken(match) and match["space"] is None
    if match["cell"]:
        return (
            is_password(said)
            and any(map(str.isdigit, said))
            and _CELL_OVER.match(match.string, stop) is not None
        )
    if match["link"] or match["space"] or (match["block"] or "|")[0] not in "|>":
        has_digit = any(map(str.isdigit, said))
        return is_password(said) and (has_digit or match["space"] is None or prefix.startswith("--"))
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
