"""Keys with which clients use a gateway: made here, read here, compared here.

One idea: a key is `rf_<id>_<secret>`. The id is public and finds the row, the secret is 192 random bits, and what is kept is the
SHA-256 of the whole. No slow hash: those make guessing a password dear, and here there is nothing to guess; all that one would
do is let strangers keep the gateway busy with wrong keys. Whoever reads the database learns no key from it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from hashlib import sha256

from refold.model.errors import ConfigError
from refold.ports.store import ClientKey

ID_BYTES = 6
"""Enough that two keys never meet by chance, and short enough to be read out: `refold keys revoke` takes it."""
SECRET_BYTES = 24
"""192 bits: nobody finds them by trying."""
MAX_NAME = 200
"""Characters of an owner's name or a key's: as for the name of a conversation."""

KEY = re.compile(r"rf_([0-9a-f]{12})_[0-9a-f]{48}")
_NO_DIGEST = bytes(32)
"""What a key that nobody has is compared with: no text has this digest, and finding that out takes as long as with any other."""


def mint(
    owner: str,
    *,
    name: str = "",
    at: float,
    admin: bool = False,
    random: Callable[[int], str] = secrets.token_hex,
) -> tuple[str, ClientKey]:
    """A new key, and what is kept of it. The key itself is nowhere else: whoever loses it makes another. An admin key is a key of
    its owner like any other, and shows the operations' settings as well.

    Raises:
        ConfigError: these cannot be names.
    """
    for text, what in ((owner, "an owner"), (name or "-", "a key")):
        if not text or len(text) > MAX_NAME or not text.isprintable():
            raise ConfigError(
                f"this cannot be the name of {what}", hint=f"use 1 to {MAX_NAME} printable characters"
            )
    which = random(ID_BYTES)
    text = f"rf_{which}_{random(SECRET_BYTES)}"
    return text, ClientKey(owner=owner, id=which, digest=digest_of(text), name=name, at=at, admin=admin)


def id_of(text: str) -> str | None:
    """The public part of a key; None where the text is none."""
    found = KEY.fullmatch(text)
    return found[1] if found else None


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


def opens(text: str, kept: ClientKey | None) -> bool:
    """Is this the key that was kept? Takes the same time for a wrong one and for one that nobody has."""
    is_same = hmac.compare_digest(digest_of(text), kept.digest if kept else _NO_DIGEST)
    return is_same and kept is not None
