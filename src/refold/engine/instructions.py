"""What a conversation comes in with besides its messages: a system prompt, tools, and whatever else a request has.

One idea: it is long and hardly ever changes, so it is kept once, under its own hash, and the notes of a branch hold the hash alone.
Whoever opens the conversation without any goes on with it. What programs give or say is replaced by what they give next; what was
imported stays, because it is what was sent.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import structs

from refold.engine.notes import Notes, read_notes, write_notes
from refold.model.window import Fixed
from refold.ports.store import Head, Store
from refold.wire.request import encode_fixed


class Instructions:
    """Those of one branch, as a program that has it open knows them."""

    def __init__(self) -> None:
        self.fields, self.digest, self.is_given = b"", b"", False
        """The request that the conversation came in with, without its messages, as JSON; its hash; was it given by a program?"""
        self._kept = b""
        """The hash of what the store has."""
        self._fixed: Fixed | None = None

    @property
    def unkept(self) -> tuple[bytes, ...]:
        """What the store does not have yet."""
        return (self.fields,) if self.digest not in (b"", self._kept) else ()

    def note_kept(self) -> None:
        self._kept = self.digest

    def bring(self, fields: bytes) -> None:
        """Take in a request that was made elsewhere."""
        self._take(fields, is_given=False)

    def note(self, fixed: Fixed) -> None:
        """Take in what goes out with every request from now on."""
        if fixed is self._fixed:
            return
        self._fixed = fixed
        if (fixed.system or fixed.tools) and (self.is_given or not self.fields):
            self._take(encode_fixed(fixed), is_given=True)

    async def load(self, store: Store, head: Head) -> None:
        notes = read_notes(head.notes)
        if not notes.instructions or notes.instructions != self.digest:
            self._take(await _read(store, head, notes), is_given=notes.is_given)
        self._kept, self.is_given = notes.instructions, notes.is_given

    def written(self, notes: Notes) -> Notes:
        """Notes that say what these are."""
        return structs.replace(notes, instructions=self.digest, is_given=self.is_given)

    def _take(self, fields: bytes, *, is_given: bool) -> None:
        self.fields, self.is_given = fields, is_given
        self.digest = sha256(fields).digest() if fields else b""


async def fields_of(store: Store, head: Head) -> bytes:
    """The request that the conversation of a branch came in with, without its messages, as JSON."""
    return await _read(store, head, read_notes(head.notes))


async def inlined(store: Store, head: Head) -> Head:
    """A branch whose notes hold the instructions themselves, for where there is no store behind them."""
    notes = read_notes(head.notes)
    if not notes.instructions:
        return head
    whole = structs.replace(notes, fields=await _read(store, head, notes), instructions=b"")
    return structs.replace(head, notes=write_notes(whole))


async def _read(store: Store, head: Head, notes: Notes) -> bytes:
    # Earlier versions wrote them into the notes themselves.
    return await store.blob(head, notes.instructions) or b"" if notes.instructions else notes.fields
