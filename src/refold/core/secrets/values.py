"""Distinguish the value of a secret from other text in its place.

`password:` may be followed by a password, or by a word about it, a type, a variable, a placeholder to fill
in. The value itself shows which it is. The clearer the name, the weaker the test: after `password =` any
quoted text is accepted, after `token` only text that looks random.

Every pattern here is matched once, against one value of bounded length.
"""

from __future__ import annotations

import re

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
_CHANGE = re.compile(r"(?<=\d)(?=[A-Za-z])|(?<=[A-Za-z])(?=\d)")
_UPPER, _LOWER = re.compile(r"[A-Z]"), re.compile(r"[a-z]")


def is_blank(value: str) -> bool:
    """Return True if there is no value: empty, masked, a placeholder, a variable, a reference, or a word
    about it.
    """
    is_variable = _VARIABLE.fullmatch(value) is not None
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
    words = value.split(" ")
    is_plain = all(word.isascii() and word.isalpha() and word.islower() for word in words)
    return 4 <= len(words) <= 24 and is_plain


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
