"""A conversation's memory and its store, kept in step.

One idea: memory decides, the store remembers. After every act all that is new leaves in one batch; if somebody else has written
meanwhile the batch is refused whole, and the memory is thrown away and read again, because the store is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.calibrate import Calibration
from refold.core.fold import Folded
from refold.core.measure import Meter
from refold.core.summary.facts import text_of
from refold.core.view import View
from refold.engine import snapshot
from refold.engine.bill import Bill
from refold.engine.memory import Memory
from refold.engine.receipts import Change
from refold.engine.snapshot import Original
from refold.model.errors import StoreError
from refold.model.message import Message, Reasoning
from refold.model.summary import Summary
from refold.model.window import Fixed
from refold.ports import store as kept
from refold.ports.store import Batch, Compaction, Head, Session, Store, Stored, Written
from refold.wire.message import decode_message, encode_item
from refold.wire.request import Request, encode_request

Clock: TypeAlias = Callable[[], float]
NewId: TypeAlias = Callable[[], str]


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
    """The request that the conversation came in with, without its messages, as JSON."""


class Journal:
    """One branch in a store. `seen` is where it was when memory was last in step with it."""

    def __init__(
        self,
        store: Store,
        seen: Head,
        session: Session,
        clock: Clock,
        new_id: NewId,
        *,
        keeps_content: bool = True,
    ) -> None:
        self.store, self.seen, self.session = store, seen, session
        self.clock, self.new_id, self.keeps_content = clock, new_id, keeps_content
        self.shown, self.fields = "", b""
        """The id of the change in effect, and the request that the conversation came in with."""
        self._notes = seen.notes
        self._fixed: Fixed | None = None
        self._is_said = False
        """The system prompt was said in the conversation, and not given with a request."""

    async def save(self, memory: Memory, calls: Sequence[kept.Call] = (), key: str = "") -> None:
        """Keep all that is new; `key` is what the client calls the first message of it.

        Raises:
            Conflict: somebody else has written meanwhile; nothing was kept.
            StoreError: nothing was kept, or nobody knows: load before going on.
        """
        if memory.frame.fixed is not self._fixed and (self._is_said or not self.fields):
            self.fields, self._is_said = prompt_fields(memory.frame.fixed), True
        self._fixed = memory.frame.fixed
        if memory.changes:
            memory.secrecy.known(memory.folded)  # before what holds them is let go
        notes, changes = msgspec.msgpack.encode(self._noted(memory)), tuple(self._changes(memory))
        messages = tuple(self._messages(memory, key))
        if not (messages or changes or calls or notes != self._notes):
            return
        batch = Batch(at=self.clock(), messages=messages, changes=changes, calls=tuple(calls), notes=notes)
        await self.commit(batch)
        self._notes = notes
        opened = [change.opens for change in changes if change.opens]
        self.session = opened[-1] if opened else self.session
        made = [change.compaction.id for change in changes if change.compaction.kind != "arrival"]
        self.shown = made[-1] if made else self.shown
        memory.changes.clear()

    async def commit(self, batch: Batch) -> None:
        """Keep a batch, and see where the branch is then."""
        self.seen = await self.store.commit(self.seen, batch if self.keeps_content else emptied(batch))

    async def load(self, memory: Memory) -> None:
        """Put memory where the store is."""
        head = await self.store.head(self.seen.owner, self.seen.conversation, self.seen.branch)
        session = await self.store.session(head.owner, head.session) if head else None
        if head is None or session is None:
            raise kept_nothing(self.seen.conversation)
        self.seen, self.session, self._notes = head, session, head.notes
        self._fixed = memory.frame.fixed
        if not self.keeps_content and head.next_seq == memory.folded.size:
            return  # memory is all there is
        notes = msgspec.msgpack.decode(head.notes, type=Notes) if head.notes else Notes()
        holders = await self.store.pick(head, notes.secret) if notes.secret else []
        told = [decoder(memory)(one.body) for one in holders if one.body]
        memory.secrecy.restore(notes.sensitive, notes.secret, told)
        latest = await self.store.latest(head, head.next_seq)
        self.shown, self.fields = latest.id if latest else "", notes.fields
        folded = await self.shown_after(memory, latest, head.next_seq)
        restore(memory, structs.replace(folded, settled=notes.settled, declined=notes.declined), notes)

    def storable(self, written: Written) -> Written:
        """A summary as it may be kept."""
        return written if self.keeps_content else _blank(written)

    def check_content(self) -> None:
        """
        Raises:
            StoreError: nothing that was said is kept, so nothing can be shown again.
        """
        if not self.keeps_content:
            raise not_kept()

    async def undo(self, memory: Memory, change: Compaction) -> None:
        """Take a change back: until something new is said, none is made unasked. Load afterwards."""
        self.check_content()
        notes = structs.replace(self._noted(memory), declined=memory.folded.size, settled=-1)
        await self.commit(Batch(at=self.clock(), undoes=change.id, notes=msgspec.msgpack.encode(notes)))

    async def shown_at(self, memory: Memory, size: int) -> Folded:
        """The branch as it was shown when it had `size` messages."""
        return await self.shown_after(memory, await self.store.latest(self.seen, size), size)

    async def shown_after(self, memory: Memory, latest: Compaction | None, size: int) -> Folded:
        """The branch as it was shown after a change, with the messages since, up to `size`."""
        if latest and not latest.shown:
            raise not_kept()
        origin = snapshot.origin_of(latest.shown) if latest else 0
        originals = await self.originals(memory, origin, max(size, latest.size if latest else 0))
        pinned = frozenset(await self.store.pins(self.seen))
        view = memory.folded.shown
        empty = View(view.dialect, view.counter, view.key, view.continues)
        if latest:
            return snapshot.read(latest.shown, originals, empty, decoder(memory), pinned)
        folded = structs.replace(Folded.of(empty), pinned=pinned)
        return snapshot.grown(folded, originals)

    async def originals(self, memory: Memory, first: int, last: int) -> list[Original]:
        """Messages of the branch, each with how it was shown on arrival."""
        raw = frozenset(await self.store.raw_arrivals(self.seen, first))
        found = await self.store.messages(self.seen, first, last)
        decode, secret = decoder(memory), memory.secrecy.numbers
        return [
            structs.replace(_original(one, decode, is_raw=one.seq in raw), is_secret=one.seq in secret)
            for one in found
        ]

    def _messages(self, memory: Memory, key: str) -> Iterable[Stored]:
        folded, encode, now = memory.folded, encoder(memory), self.clock()
        arrived = {change.after.size - 1: change.after for change in memory.changes if change.raw}
        for number in range(self.seen.next_seq, folded.size):
            entry, is_secret = folded.original(number), number in memory.secrecy.numbers
            shown = arrived[number].shown.last if number in arrived else None
            yield Stored(
                seq=number,
                role=entry.message.role,
                format=self.seen.format,
                body=encode(entry.message),
                text="" if is_secret else said(entry.message),
                shown=encode(shown.message) if shown else None,
                tokens=entry.tokens,
                key=key if number == self.seen.next_seq else "",
                at=now,
            )

    def _changes(self, memory: Memory) -> Iterable[kept.Change]:
        session = self.session
        for change in memory.changes:
            made = self._change(change, session, memory)
            session = made.opens or session
            yield made

    def _change(self, change: Change, session: Session, memory: Memory) -> kept.Change:
        summary, now = None if change.raw else _new_summary(change), self.clock()
        if summary is None or summary.last <= session.first:
            which, opens = (summary.id if summary else "") or self.new_id(), None
        else:
            which = summary.id or self.id_of(
                session.id, summary.last, summary.recipe or memory.frame.policy.name
            )
            opens = self._child(session, summary.last, now)
        compaction = Compaction(
            id=which,
            branch=self.seen.branch,
            kind="arrival" if change.raw else "summarise" if opens else "reduce",
            base=session.id,
            session=opens.id if opens else "",
            cut=change.after.size - 1 if change.raw else summary.last if summary else 0,
            size=change.after.size,
            reason=change.receipt.reason,
            recipe=summary.recipe or memory.frame.policy.name if summary else "",
            before=change.receipt.before,
            after=change.receipt.after,
            edits=msgspec.json.encode(change.receipt.edits),
            shown=b"" if change.raw else snapshot.write(change.after, encoder(memory)),
            at=now,
        )
        written = Written(id=which, summary=structs.replace(summary, reserve=()), at=now) if summary else None
        return kept.Change(compaction, written, opens)

    def _child(self, parent: Session, first: int, at: float) -> Session:
        return Session(
            id=self.new_id(),
            branch=self.seen.branch,
            first=first,
            kind="compaction",
            parent=parent.id,
            carries="summary",
            at=at,
        )

    def _noted(self, memory: Memory) -> Notes:
        return structs.replace(notes_of(memory), fields=self.fields if self.keeps_content else b"")

    def id_of(self, session: str, cut: int, recipe: str) -> str:
        """The id of a compaction: whoever does the same work again finds it done."""
        head = self.seen
        named = "\0".join((head.owner, head.conversation, head.branch, session, str(cut), recipe))
        return sha256(named.encode()).hexdigest()[:32]


def prompt_fields(fixed: Fixed) -> bytes:
    """A system prompt that was said in the conversation, as a request has it: it serves wherever no other is given."""
    return encode_request(Request(fixed.dialect, ()), (), system=fixed.system) if fixed.system else b""


def emptied(batch: Batch) -> Batch:
    """A batch that says what happened, how much of it and when, and nothing of what was said."""
    messages = (structs.replace(one, body=b"", text="", shown=None) for one in batch.messages)
    return structs.replace(
        batch,
        messages=tuple(messages),
        changes=tuple(map(_emptied, batch.changes)),
        calls=tuple(structs.replace(call, receipt=b"") for call in batch.calls),
    )


def _emptied(change: kept.Change) -> kept.Change:
    written = change.written and _blank(change.written)
    compaction = structs.replace(change.compaction, edits=b"", shown=b"", reason="")
    return structs.replace(change, compaction=compaction, written=written)


def _blank(written: Written) -> Written:
    summary = structs.replace(written.summary, text="", carried="", read=(), modified=())
    return structs.replace(written, summary=summary, carry=b"")


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
    )


def inherited(notes: bytes, size: int) -> bytes:
    """What a fork of the first `size` messages takes over: which are sensitive, and the request that they came in with."""
    known = msgspec.msgpack.decode(notes, type=Notes) if notes else Notes()
    sensitive = tuple(number for number in known.sensitive if number < size)
    secret = tuple(number for number in known.secret if number < size)
    found = Notes(sensitive=sensitive, secret=secret, fields=known.fields)
    return msgspec.msgpack.encode(found) if found != Notes() else b""


def restore(memory: Memory, folded: Folded, notes: Notes) -> None:
    """Go on from what was kept."""
    memory.restore(folded)
    memory.in_vain, memory.flag, memory.limits.stated = notes.in_vain, notes.flag, notes.limit
    memory.meter, memory.calibration, memory.bill = notes.meter, notes.calibration, notes.bill


def said(message: Message) -> str:
    """What search finds of a message."""
    return "\n".join(text_of(part) for part in message.parts if not isinstance(part, Reasoning))


def kept_nothing(conversation: str) -> StoreError:
    return StoreError(
        f"the conversation {conversation[:80]!r} is gone", hint="it was deleted while it was in use"
    )


def not_kept() -> StoreError:
    return StoreError(
        "what was said in this conversation was not kept",
        hint="it was stored without content; begin another one",
    )


def _new_summary(change: Change) -> Summary | None:
    before, after = change.before.summaries, change.after.summaries
    return after[-1] if after and (not before or after[-1] is not before[-1]) else None


def _original(one: Stored, decode: snapshot.Decode, *, is_raw: bool) -> Original:
    if not one.body:
        raise not_kept()
    message = decode(one.body)
    shown = message if one.shown is None or is_raw else decode(one.shown)
    return Original(one.seq, message, shown)


def encoder(memory: Memory) -> snapshot.Encode:
    dialect = memory.frame.fixed.dialect
    return lambda message: bytes(encode_item(message, dialect))


def decoder(memory: Memory) -> snapshot.Decode:
    dialect = memory.frame.fixed.dialect
    return lambda body: decode_message(body, dialect)
