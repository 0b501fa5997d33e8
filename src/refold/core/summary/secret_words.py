"""The words that announce a secret, in code and in many languages.

One idea: some names mean a secret whatever follows (`password`), some mean much else too (`token`, `key`), and what a name
means can change with what stands before it (`api_key`, `next_page_token`) or after it (`password_prod`, `password_length`).
Names are found by what they have in common, since most texts have none; only there is the whole pattern tried.

The pattern is linear: all of its repetitions are bounded, and it is tried once for each place.
"""

from __future__ import annotations

import re

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
"""Names that are also the end of other words: they count where a word begins."""
_WEAK = r"tokens?|auth|(?<=_)key|(?<=[a-z])key|clave|токен|令牌|トークン|jwt"
"""Names of much that is no secret: what follows has to look like one."""
_LINKS = r"(?:is|was|are|to|be|(?:will|shall|should|must)[ ]be|ist|lautet|es|est|è|é|era|är|jest)(?:[ ](?:now|still|set to))?(?::|(?=[ ]))|['’]s(?=[ ])|[–—→是为為はが는은이]|-[>\-]?(?=[ ])"
_Q = r"\\{0,15}[\"'`]"
_GAP = r"[ \t]{0,8}"
NAME = re.compile(
    rf"(?:(?P<strong>{_STRONG})|(?P<short>{_SHORT})|(?P<weak>{_WEAK}))(?P<suffix>[A-Za-z0-9_\-.]{{0,24}}+)"
    rf"(?:(?:{_Q})?,?(?:\s|\\{{1,15}}[nrt]){{0,40}}+(?:{_Q})?value(?:{_Q})?{_GAP}(?P<pair>[:=])"
    rf"|(?P<call>(?:{_Q})?,{_GAP}(?={_Q})|\((?={_Q}))"
    rf"|(?P<tag>>|</key>\s{{0,9}}<string>)"
    rf"|(?:{_Q})?\]?{_GAP}(?P<sign>[?!]?:{_GAP}[A-Za-z_&][A-Za-z_&\[\]|. ]{{0,40}}+=(?!=)|[?!]?(?:=>|:=|[!=]==?|[:=：＝]))"
    rf"|(?P<cell>(?:\*\*|__|`)?[ \t]{{1,40}}\|[ \t]|[ ]\((?!{_Q}))"
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
"""What every name holds, to find names quickly: most texts have none."""
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
"""What may follow a name without changing what it names: `password_prod`, unlike `password_length`."""
_COUNTED = re.compile(
    r"(?:next|page|prev(?:ious)?|continuation|sync|cursor|pad|eos|bos|sep|cls|mask|unk|special|stop|start|end|first|last|max|min|num"
    r"|total|prompt|completion|input|output|cached|cache|sort|primary|foreign|partition|public|idempotency|csrf|xsrf)"
    r"(?:[_\-. ]?page)?[_\-. ]?$",
    re.IGNORECASE,
)
"""Before `token` and `key`: pages, special words of a model, columns."""
_SPOKEN = re.compile(
    r"pass|pin|pw|ps|kenn|mdp|identified|contra|mot|senha|parola|wacht|has|l.sen|adgang|kode|salas|jelsz|heslo|şifre|loz|ges"
    r"|m.t |kata|пароль|密[码碼]|口|パ|暗|비|암|كلمة|סיסמה|पा|รหัส",
    re.IGNORECASE,
)
"""What people type, and not what a machine made: it may be short, or a number."""
_WALLET = re.compile(r"seed|recovery|secret[ ]phrase|mnemonic", re.IGNORECASE)


def starts(text: str, low: str) -> list[int]:
    """Where names may begin, in order."""
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
    """Is it something people type, which may be four digits?"""
    return _SPOKEN.match(match["strong"] or match["short"] or "") is not None


def is_wallet(match: re.Match[str]) -> bool:
    """Is it the list of words that opens a wallet?"""
    return _WALLET.match(match["strong"] or "") is not None


def is_weak(match: re.Match[str]) -> bool:
    """Does the name mean other things as well?"""
    return match["weak"] is not None or _SUFFIX.fullmatch(match["suffix"]) is None


def is_counted(match: re.Match[str], prefix: str) -> bool:
    """Is it a page, a column or a special word of a model, and no secret?"""
    return match["weak"] is not None and _COUNTED.search(prefix) is not None
