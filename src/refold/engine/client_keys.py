"""The keys with which clients use a gateway: how they are made, parsed and compared.

A key is `rf_<id>_<secret>`. The id is public and finds the row, the secret is 192 random bits, and the store keeps the SHA-256 of the
whole, so the database tells no key. No slow hash: it makes guessing a password expensive, and 192 random bits cannot be guessed; it
would only let strangers keep the gateway busy with wrong keys.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from hashlib import sha256

from refold.model.errors import ConfigError
from refold.ports.records import ClientKey

ID_BYTES = 6
"""Enough that two keys never meet by chance, and short enough to be read out: `refold keys revoke` takes it."""
SECRET_BYTES = 24
"""192 bits: out of reach of guessing."""
MAX_NAME = 200
"""Characters of an owner's name or a key's: as for the name of a conversation."""

KEY = re.compile(r"rf_([0-9a-f]{12})_[0-9a-f]{48}")
_NO_DIGEST = bytes(32)
"""The digest that an unknown key is compared with: no text has it, and the comparison takes as long as any other."""


def mint(
    owner: str,
    *,
    name: str = "",
    at: float,
    admin: bool = False,
    random: Callable[[int], str] = secrets.token_hex,
) -> tuple[str, ClientKey]:
    """A new key, and the row that is stored of it. The key itself is stored nowhere. An admin key is a key of its owner like any
    other, and shows the operations' settings as well.

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
    """The public part of a key; None where the text is no key."""
    found = KEY.fullmatch(text)
    return found[1] if found else None


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


def opens(text: str, kept: ClientKey | None) -> bool:
    """Is this the key of that row? Takes the same time for a wrong key and for an unknown one."""
    is_same = hmac.compare_digest(digest_of(text), kept.digest if kept else _NO_DIGEST)
    return is_same and kept is not None
