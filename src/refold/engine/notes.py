"""What is stored of a branch beside its messages and what is shown of them: notes, and the instructions it came in with.

Notes are small, belong to the branch and not to a change, and the newest count. Instructions (system prompt, tools, and the other
fields of a request) are long and hardly ever change: they are stored once, under their hash, and the notes hold the hash.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Struct, structs

from refold.core.measure import Calibration, Meter
from refold.engine.state import Bill, FillLevel, State
from refold.model.errors import Damaged
from refold.model.window import Fixed
from refold.ports.store import Head, Store
from refold.wire.request import encode_fixed


class Notes(Struct, frozen=True):
    """What a state knows beside what is shown."""

    settled: int = -1
    declined: int = -1
    in_vain: int = 0
    flag: str = ""
    limit: int | None = None
    meter: Meter = Meter()
    calibration: Calibration = Calibration()
    bill: Bill = Bill()
    sensitive: tuple[int, ...] = ()
    secret: tuple[int, ...] = ()
    """Messages in which secrets were found, so that they are known wherever they are repeated."""
    fields: bytes = b""
    """As `instructions`, in full: earlier versions wrote it here."""
    instructions: bytes = b""
    """The hash of the request that the conversation came in with, without its messages."""
    is_given: bool = False
    """Were they given by a program, or said in the conversation? Then the next ones take their place."""
    standing: FillLevel = FillLevel()
    """How full the conversation was, as the program that wrote this saw it."""

    @property
    def lasting(self) -> Notes:
        """What is worth a commit of its own: the fill level follows from the rest, and from the window of the program that looks."""
        return structs.replace(self, standing=FillLevel())


def read_notes(notes: bytes) -> Notes:
    """
    Raises:
        Damaged: these are no notes.
    """
    try:
        return msgspec.msgpack.decode(notes, type=Notes) if notes else Notes()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("what was noted about a conversation cannot be read") from None


def read_fill_level(notes: bytes) -> FillLevel:
    """How full a conversation was; empty where the notes are damaged: opening the conversation raises then, and a list must not."""
    try:
        return read_notes(notes).standing
    except Damaged:
        return FillLevel()


def write_notes(notes: Notes) -> bytes:
    return msgspec.msgpack.encode(notes)


def notes_of(state: State) -> Notes:
    folded = state.folded
    return Notes(
        folded.settled,
        folded.declined,
        state.in_vain,
        state.flag,
        state.limits.stated,
        state.meter,
        state.calibration,
        state.bill,
        tuple(sorted(state.secrecy.numbers)),
        tuple(sorted(state.secrecy.holders)),
        standing=state.fill_level,
    )


def inherited(notes: bytes, size: int) -> bytes:
    """What a fork of the first `size` messages takes over: which are sensitive, and the request that they came in with."""
    known = read_notes(notes)
    found = Notes(
        sensitive=tuple(number for number in known.sensitive if number < size),
        secret=tuple(number for number in known.secret if number < size),
        fields=known.fields,
        instructions=known.instructions,
        is_given=known.is_given,
    )
    return write_notes(found) if found != Notes() else b""


class Instructions(Struct, frozen=True):
    """The request that a branch came in with, without its messages.

    What a program gives takes the place of what a program gave before. Imported instructions stay: they are what was sent.
    """

    fields: bytes = b""
    """As JSON."""
    digest: bytes = b""
    is_given: bool = False
    """Were they given by a program?"""
    stored: bytes = b""
    """The hash of what the store has."""
    fixed: Fixed | None = None
    """The instructions of the program that were taken in last."""

    @property
    def unstored(self) -> tuple[bytes, ...]:
        """What the store does not have yet."""
        return (self.fields,) if self.digest not in (b"", self.stored) else ()

    def as_stored(self) -> Instructions:
        return structs.replace(self, stored=self.digest)

    def imported(self, fields: bytes) -> Instructions:
        """With a request that was made elsewhere."""
        return self.with_fields(fields, is_given=False)

    def given(self, fixed: Fixed) -> Instructions:
        """With what goes out with every request from now on."""
        if fixed is self.fixed:
            return self
        known = structs.replace(self, fixed=fixed)
        if (fixed.system or fixed.tools) and (self.is_given or not self.fields):
            return known.with_fields(encode_fixed(fixed), is_given=True)
        return known

    async def loaded(self, store: Store, head: Head) -> Instructions:
        """As the store has them."""
        notes, known = read_notes(head.notes), self
        if not notes.instructions or notes.instructions != self.digest:
            known = self.with_fields(await _stored_fields(store, head, notes), is_given=notes.is_given)
        return structs.replace(known, stored=notes.instructions, is_given=notes.is_given)

    def noted(self, notes: Notes) -> Notes:
        """Notes that say what these are."""
        return structs.replace(notes, instructions=self.digest, is_given=self.is_given)

    def with_fields(self, fields: bytes, *, is_given: bool) -> Instructions:
        digest = sha256(fields).digest() if fields else b""
        return structs.replace(self, fields=fields, is_given=is_given, digest=digest)


async def fields_of(store: Store, head: Head) -> bytes:
    """The request that the conversation of a branch came in with, without its messages, as JSON."""
    return await _stored_fields(store, head, read_notes(head.notes))


async def inlined(store: Store, head: Head) -> Head:
    """A branch whose notes hold the instructions themselves, for an archive that has no store behind it."""
    notes = read_notes(head.notes)
    if not notes.instructions:
        return head
    whole = structs.replace(notes, fields=await _stored_fields(store, head, notes), instructions=b"")
    return structs.replace(head, notes=write_notes(whole))


async def _stored_fields(store: Store, head: Head, notes: Notes) -> bytes:
    # Earlier versions wrote them into the notes themselves.
    return await store.blob(head, notes.instructions) or b"" if notes.instructions else notes.fields
