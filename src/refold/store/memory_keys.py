"""Keys and settings in memory: the part of `MemoryStore` that knows no conversations.

One idea: they lie on the owner's shelf like everything else. Only a key is looked for on every shelf, since whose it is is the
question.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from refold.model.errors import Conflict
from refold.ports.store import ClientKey
from refold.store.shelf import Shelf


class MemoryKeys:
    """Who may use the gateway, and what an owner has set there."""

    _shelves: dict[str, Shelf]

    def _all_keys(self) -> Iterator[ClientKey]:
        return (key for shelf in self._shelves.values() for key in shelf.client_keys.values())

    async def add_key(self, key: ClientKey) -> None:
        if await self.find_key_owner(key.id):
            raise Conflict("A key of this id is there already.")
        self._shelves.setdefault(key.owner, Shelf()).client_keys[key.id] = key

    async def find_key_owner(self, which: str) -> ClientKey | None:
        return next((key for key in self._all_keys() if key.id == which), None)

    async def has_keys(self) -> bool:
        return any(self._all_keys())

    async def keys(self, owner: str) -> list[ClientKey]:
        shelf = self._shelves.get(owner)
        return list(shelf.client_keys.values()) if shelf else []

    async def revoke_key(self, owner: str, which: str, at: float) -> bool:
        shelf = self._shelves.get(owner)
        key = shelf.client_keys.get(which) if shelf else None
        if shelf is None or key is None or key.revoked_at is not None:
            return False
        shelf.client_keys[which] = structs.replace(key, revoked_at=at)
        return True

    async def setting(self, owner: str, key: str) -> bytes | None:
        shelf = self._shelves.get(owner)
        return shelf.settings.get(key) if shelf else None

    async def put_setting(self, owner: str, key: str, value: bytes | None, at: float) -> None:  # noqa: ARG002
        if value is not None:
            self._shelves.setdefault(owner, Shelf()).settings[key] = value
        elif owner in self._shelves:
            self._shelves[owner].settings.pop(key, None)
