"""What memory knows beside what is shown, as a store keeps it.

One idea: it is small, it belongs to a branch and not to a change, and the newest word counts. It is written with whatever else
is written, and by itself only where it says something that lasts.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, structs

from refold.core.calibrate import Calibration
from refold.core.fold import Folded
from refold.core.measure import Meter
from refold.engine.bill import Bill
from refold.engine.memory import Memory
from refold.engine.standing import Standing, standing_of
from refold.model.errors import Damaged


class Notes(Struct, frozen=True):
    """What memory knows beside what is shown."""

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
    """A program gave them, or they were said in the conversation: the next ones take their place."""
    standing: Standing = Standing()
    """How full it was, as whoever wrote this saw it."""

    @property
    def lasting(self) -> Notes:
        """What is worth a write of its own: how full a conversation is follows from the rest, and from who looks at it."""
        return structs.replace(self, standing=Standing())


def read_notes(notes: bytes) -> Notes:
    """
    Raises:
        Damaged: these are no notes.
    """
    try:
        return msgspec.msgpack.decode(notes, type=Notes) if notes else Notes()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("what was noted about a conversation cannot be read") from None


def read_standing(notes: bytes) -> Standing:
    """How full a conversation was; nothing where that cannot be read: whoever lists many is told when they open the one."""
    try:
        return read_notes(notes).standing
    except Damaged:
        return Standing()


def write_notes(notes: Notes) -> bytes:
    return msgspec.msgpack.encode(notes)


def notes_of(memory: Memory) -> Notes:
    folded = memory.folded
    return Notes(
        folded.settled,
        folded.declined,
        memory.in_vain,
        memory.flag,
        memory.limits.stated,
        memory.meter,
        memory.calibration,
        memory.bill,
        tuple(sorted(memory.secrecy.numbers)),
        tuple(sorted(memory.secrecy.holders)),
        standing=standing_of(memory),
    )


def inherited(notes: bytes, size: int) -> bytes:
    """What a fork of the first `size` messages takes over: which are sensitive, and the request that they came in with."""
    known = read_notes(notes)
    sensitive = tuple(number for number in known.sensitive if number < size)
    secret = tuple(number for number in known.secret if number < size)
    found = Notes(
        sensitive=sensitive,
        secret=secret,
        fields=known.fields,
        instructions=known.instructions,
        is_given=known.is_given,
    )
    return write_notes(found) if found != Notes() else b""


def restore(memory: Memory, folded: Folded, notes: Notes) -> None:
    """Go on from what was kept."""
    memory.restore(folded)
    memory.in_vain, memory.flag, memory.limits.stated = notes.in_vain, notes.flag, notes.limit
    memory.meter, memory.calibration, memory.bill = notes.meter, notes.calibration, notes.bill
