"""Whose provider key a call leaves with: the client's own, or the one that the gateway has for the upstream.

A call carries one of the two and never both. `pass_key` of the upstream says whether the client's key may go there at all; the
gateway's own key is used where it may not, or where the client sent none. The client's key was sent for one upstream, the one
that the request is first meant for (`home`): it goes to no other host unless the settings of that host say `pass_key = true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_plus

from refold.gateway.targets import Target

KEYS = frozenset(("authorization", "x-api-key", "api-key", "x-goog-api-key"))
"""Headers in which providers take a key."""
ACCOUNT = frozenset(("openai-organization", "openai-project"))
"""Headers that choose an account of the key's holder. They mean nothing, or the wrong account, beside another key."""
REROUTES = frozenset(
    ("x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url")
)
"""Headers by which some servers take another method or path than the request's own. Beside a key that is not the client's, only
what was looked at is asked for."""
QUERY_KEYS = frozenset(("key", "api_key", "api-key", "apikey", "access_token"))
"""Fields of a query in which some providers take a key."""


_CLIENTS_ONLY = KEYS | ACCOUNT | REROUTES
_SECRET_WORDS = ("key", "token", "secret", "auth", "cookie", "password", "credential", "signature")
"""What the names of headers and query fields in which a secret may stand have in common. Beside another key than the client's all of
them are left out, also those that stand for something else: a host that the client's key is not for needs none of them."""
_SECRET_FIELDS = frozenset(("sig", "code", "sid"))
"""Further fields of a query, as some clouds call them."""


class Credentials:
    """The provider key that a client sent with one request, if any, and the upstream that it was sent for."""

    def __init__(self, headers: Sequence[tuple[str, str]], query: str, home: Target | None) -> None:
        self.headers = headers
        self._query, self._home = query, home
        named = any(name in KEYS and _is_key(value) for name, value in headers)
        self.is_sent = named or any(_is_key_field(field) for field in query.split("&"))

    def go_to(self, target: Target) -> bool:
        """Does a call to this upstream carry the client's own key?"""
        if not (self.is_sent and target.passes_key):
            return False
        home = self._home
        is_meant = home is not None and (target is home or target.origin == home.origin)
        return is_meant or target.passes_key_as_fallback

    @property
    def request_id(self) -> str:
        """The id that the client wants for its request, of which some servers make those of their answers."""
        return next((value.strip() for name, value in self.headers if name == "x-request-id"), "")

    def headers_for(self, target: Target) -> list[tuple[str, str]]:
        """The client's headers; where another key is used, without what belongs to the client's own."""
        if self.go_to(target):
            return [*self.headers]
        return [one for one in self.headers if not (one[0] in _CLIENTS_ONLY or may_hold_secret(one[0]))]

    def query_for(self, target: Target) -> str:
        """Likewise the query."""
        if not self._query or self.go_to(target):
            return self._query
        return "&".join(field for field in self._query.split("&") if not _may_be_secret_field(field))


def may_hold_secret(name: str) -> bool:
    """Does the name of a header or of a query field say that a secret may stand in it?"""
    return any(word in name.lower() for word in _SECRET_WORDS)


def _is_key(value: str) -> bool:
    """`Authorization: Bearer` without anything after it is what an SDK sends for an empty key."""
    return value.strip().lower() not in ("", "bearer", "basic")


def _may_be_secret_field(field: str) -> bool:
    # Some servers part fields at a semicolon too.
    names = [unquote_plus(one.partition("=")[0]).lower() for one in field.split(";")]
    return any(may_hold_secret(name) or name in _SECRET_FIELDS for name in names)


def _is_key_field(field: str) -> bool:
    name, _, value = field.partition("=")
    return bool(value) and unquote_plus(name).lower() in QUERY_KEYS
