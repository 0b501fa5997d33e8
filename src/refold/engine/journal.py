"""A conversation's memory and its store, kept in step.

One idea: memory decides, the store remembers. After every act all that is new leaves in one batch; if somebody else has written
meanwhile the batch is refused whole, and the memory is thrown away and read again, because the store is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.fold import Folded
from refold.core.view import View
from refold.engine import snapshot
from refold.engine.instructions import Instructions
from refold.engine.meaning import NOTHING, Meaning
from refold.engine.memory import Memory
from refold.engine.notes import Notes, notes_of, read_notes, restore, write_notes
from refold.engine.receipts import Change
from refold.engine.snapshot import Original
from refold.engine.standing import MOST_SINCE, Standing
from refold.engine.titles import title_of
from refold.model.errors import NotFound, StoreError
from refold.model.summary import Summary
from refold.ports import store as kept
from refold.ports.store import Batch, Compaction, Head, Session, Store, Stored, Written
from refold.text_work import run_text_act, run_text_work
from refold.wire.message import decode_message, encode_item

Clock: TypeAlias = Callable[[], float]
NewId: TypeAlias = Callable[[], str]


class Draft(Struct, frozen=True):
    """What is new in memory, as it is to be stored."""

    batch: Batch
    lasting: Notes
    standing: Standing
    secrets: frozenset[str]
    """Of the conversation: what is embedded must not hold them."""


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
        meaning: Meaning | None = None,
    ) -> None:
        self.store, self.seen, self.session = store, seen, session
        self.clock, self.new_id, self.keeps_content = clock, new_id, keeps_content
        self.meaning = meaning or Meaning()
        self.shown, self.instructions = "", Instructions()
        """The id of the change in effect, and the request that the conversation came in with."""
        self.raw: frozenset[int] = frozenset()
        """Messages that are shown as they came though they were shortened when they did: that was taken back."""
        self.model, self.learns = seen.model, ""
        """Whose provider counts here: what is measured is measured by it."""
        self.chains: dict[int, bytes] = {}
        """The hash of the history up to a message, by its number, where a client sends the history anew with every request."""
        self.claims = b""
        """The history that only this branch may hold, see `Batch.claims`."""
        self._kept, self._standing = read_notes(seen.notes).lasting, Standing()

    async def save(self, memory: Memory) -> None:
        """Keep all that is new.

        Raises:
            Conflict: somebody else has written meanwhile; nothing was kept.
            StoreError: nothing was kept, or nobody knows: load before going on.
        """
        await self.store_draft(memory, await run_text_act(memory.text_size, self.draft, memory))

    def draft(self, memory: Memory, calls: Sequence[kept.Call] = (), key: str = "") -> Draft | None:
        """All that is new, as it is to be stored; None where nothing is. `key` is what the client calls the first message of it.

        It reads all text that is held, so where that is much it is called in a thread.
        """
        self.instructions.note(memory.frame.fixed)
        # Before what holds them is let go.
        secrets = memory.secrecy.known(memory.folded) if memory.changes else NOTHING
        noted, changes = self.noted(memory), tuple(self._changes(memory))
        messages, lasting = tuple(self._messages(memory, key)), noted.lasting
        if not (messages or changes or calls or lasting != self._kept):
            return None
        standing = self._standing.after(messages)
        is_new = lasting != self._kept or bool(changes or calls) or self._is_news(noted, standing)
        chains = tuple(self.chains[one.seq] for one in messages if one.seq in self.chains)
        claims = self.claims if self.claims in chains else b""
        batch = Batch(
            at=self.clock(), messages=messages, changes=changes, calls=tuple(calls), chains=chains,
            claims=claims,
            notes=write_notes(noted) if is_new else None, title=self._title(memory),
        )  # fmt: skip
        return Draft(batch, lasting, noted.standing if is_new else standing, secrets)

    async def store_draft(self, memory: Memory, draft: Draft | None) -> None:
        """Keep what was drafted of memory.

        Raises:
            Conflict, StoreError: as `save`.
        """
        if draft is None:
            return
        changes = tuple([await self.anew(one) if one.written else one for one in draft.batch.changes])
        await self.commit(structs.replace(draft.batch, changes=changes), draft.secrets)
        self._kept, self._standing = draft.lasting, draft.standing
        opened = [change.opens for change in changes if change.opens]
        self.session = opened[-1] if opened else self.session
        made = [change.compaction.id for change in changes if change.compaction.kind != "arrival"]
        self.shown = made[-1] if made else self.shown
        memory.changes.clear()

    async def commit(self, batch: Batch, secrets: frozenset[str] = NOTHING) -> None:
        """Keep a batch, with what the sessions that it closes were about, and see where the branch is then."""
        if batch.notes is not None and self.model != self.seen.model:
            batch = structs.replace(batch, model=self.model)
        if batch.notes is not None:
            batch = structs.replace(batch, blobs=self.instructions.unkept)
        whole = await self.meaning.embedded(batch, secrets) if self.keeps_content else emptied(batch)
        self.seen = await self.store.commit(self.seen, whole)
        if whole.blobs:
            self.instructions.note_kept()

    async def load(self, memory: Memory) -> None:
        """Put memory where the store is."""
        head = await self.store.head(self.seen.owner, self.seen.conversation, self.seen.branch)
        session = await self.store.session(head.owner, head.session) if head else None
        if head is None or session is None:
            raise kept_nothing(self.seen.conversation)
        await self._check_same(head)
        notes = read_notes(head.notes)
        self.seen, self.session, self._kept = head, session, notes.lasting
        self._standing = Standing()  # it is noted anew: how full it is may follow from what others added
        if not self.keeps_content and head.next_seq == memory.folded.size:
            return  # memory is all there is
        holders = await self.store.pick(head, notes.secret) if notes.secret else []
        bodies = [one.body for one in holders if one.body]

        def restore_secrets() -> None:
            memory.secrecy.restore(notes.sensitive, notes.secret, map(decoder(memory), bodies))

        await run_text_act(sum(map(len, bodies)), restore_secrets)
        latest = await self.store.latest(head, head.next_seq)
        self.shown, self.raw = latest.id if latest else "", frozenset(await self.store.raw_arrivals(head, 0))
        await self.instructions.load(self.store, head)
        folded = await self.shown_after(memory, latest, head.next_seq)
        restore(memory, structs.replace(folded, settled=notes.settled, declined=notes.declined), notes)

    async def _check_same(self, head: Head) -> None:
        """Sessions go with their conversation only: without the one that was open here, this is another of the same name."""
        owner, known = head.owner, self.seen.session
        if head.session != known and await self.store.session(owner, known) is None:
            raise NotFound(
                f"the conversation {head.conversation[:80]!r} was deleted and begun anew",
                hint="open it again to go on with the new one",
            )

    def accept(self, memory: Memory) -> None:
        """Take what memory knows now for nothing new: it is written with the next thing that is."""
        self._kept = self.noted(memory).lasting

    async def tell(self, memory: Memory) -> None:
        """Note how full it is, where that was not known before it was done."""
        noted = self.noted(memory)
        if noted.standing != self._standing:
            await self.commit(Batch(at=self.clock(), notes=write_notes(noted)))
            self._standing = noted.standing

    def _is_news(self, noted: Notes, standing: Standing) -> bool:
        """Whether there is more to note of a conversation than follows from its messages, or these are many."""
        if noted.standing != standing or self.model != self.seen.model:
            return True
        return standing.size - read_notes(self.seen.notes).standing.size >= MOST_SINCE

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
        notes = structs.replace(self.noted(memory), declined=memory.folded.size, settled=-1)
        await self.commit(Batch(at=self.clock(), undoes=change.id, notes=write_notes(notes)))

    async def shown_at(self, memory: Memory, size: int) -> Folded:
        """The branch as it was shown when it had `size` messages."""
        return await self.shown_after(memory, await self.store.latest(self.seen, size), size)

    async def shown_after(
        self, memory: Memory, latest: Compaction | None, size: int, raw: Collection[int] | None = None
    ) -> Folded:
        """The branch as it was shown after a change, with the messages since, up to `size`; `raw` are those that are shown as
        they came though they were shortened when they did, where these are not the ones of now.
        """
        if latest and not latest.shown:
            raise not_kept()
        shown = latest.shown if latest else b""
        origin = await run_text_work(len(shown), snapshot.origin_of, shown) if latest else 0
        originals = await self.originals(memory, origin, max(size, latest.size if latest else 0), raw)
        pinned = frozenset(await self.store.pins(self.seen))
        view = memory.folded.shown
        empty = View(view.dialect, view.counter, view.key, view.continues)

        def fold() -> Folded:
            if latest:
                return snapshot.read(shown, originals, empty, decoder(memory), pinned)
            return snapshot.grown(structs.replace(Folded.of(empty), pinned=pinned), originals)

        return await run_text_work(len(shown) + sum(one.message.characters for one in originals), fold)

    async def originals(
        self, memory: Memory, first: int, last: int, raw: Collection[int] | None = None
    ) -> list[Original]:
        """Messages of the branch, each with how it was shown on arrival."""
        raw = self.raw if raw is None else raw
        found = await self.store.messages(self.seen, first, last)
        decode, secret = decoder(memory), memory.secrecy.numbers

        def read() -> list[Original]:
            return [
                structs.replace(_original(one, decode, is_raw=one.seq in raw), is_secret=one.seq in secret)
                for one in found
            ]

        return await run_text_work(sum(len(one.body) for one in found), read)

    def _title(self, memory: Memory) -> str:
        """What the conversation is called, if its first question is new; a sensitive one is not taken for the task."""
        asked = next(iter(memory.folded.task), None)
        return title_of(asked.message) if asked and asked.number >= self.seen.next_seq else ""

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
                is_findable=not is_secret,
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
            opens = self.child(session, summary.last, now)
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

    async def anew(self, change: kept.Change) -> kept.Change:
        """A change, by a name of its own: what was in effect once never changes, so that the same work done again is another
        change although it says the same.
        """
        made, which, times = change.compaction, change.compaction.id, 0
        while (known := await self.store.compaction(self.seen.owner, which)) is not None and known.number:
            times += 1
            again = f"{made.recipe}\0{times}"
            which = self.id_of(made.base, made.cut, again) if made.recipe else self.new_id()
        written = change.written and structs.replace(change.written, id=which)
        return structs.replace(change, compaction=structs.replace(made, id=which), written=written)

    def child(self, parent: Session, first: int, at: float) -> Session:
        """The session that a compaction opens after another."""
        return Session(
            id=self.new_id(),
            branch=self.seen.branch,
            first=first,
            kind="compaction",
            parent=parent.id,
            carries="summary",
            at=at,
        )

    def noted(self, memory: Memory) -> Notes:
        """What memory knows now, as far as it may be kept."""
        noted = notes_of(memory)
        return self.instructions.written(noted) if self.keeps_content else noted

    def id_of(self, session: str, cut: int, recipe: str) -> str:
        """The id of a compaction: whoever does the same work again finds it done."""
        head = self.seen
        named = "\0".join((head.owner, head.conversation, head.branch, session, str(cut), recipe))
        return sha256(named.encode()).hexdigest()[:32]


def emptied(batch: Batch) -> Batch:
    """A batch that says what happened, how much of it and when, and nothing of what was said."""
    messages = (structs.replace(one, body=b"", shown=None) for one in batch.messages)
    return structs.replace(
        batch,
        title="",
        messages=tuple(messages),
        blobs=(),
        changes=tuple(map(_emptied, batch.changes)),
        calls=tuple(structs.replace(call, receipt=b"", reply=b"") for call in batch.calls),
    )


def _emptied(change: kept.Change) -> kept.Change:
    written = change.written and _blank(change.written)
    compaction = structs.replace(change.compaction, edits=b"", shown=b"", reason="")
    return structs.replace(change, compaction=compaction, written=written)


def _blank(written: Written) -> Written:
    summary = structs.replace(written.summary, text="", carried="", read=(), modified=())
    return structs.replace(written, summary=summary, carry=b"")


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
