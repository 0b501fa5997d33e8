"""The journal: reads a conversation's state from the store, and commits what actions did.

A journal knows where its branch is in the store: the head, the open session, and the change in effect. A commit is one transaction,
refused as a whole (Conflict) where the branch has moved since; the journal's position changes only after a commit or a load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.assemble import Lead
from refold.core.digest.facts import Carried, Facts, carry, index_message, restore
from refold.core.digest.ledger import Ledger
from refold.core.digest.typed_text import is_typed
from refold.core.fold import Folded, UserRequest
from refold.core.measure import Calibration, Meter, forget_sums
from refold.core.secrets.redact import redact
from refold.core.view import View
from refold.engine.actions import Outcome
from refold.engine.session_search import NOTHING, Meaning
from refold.engine.state import MOST_SINCE, Bill, Change, FillLevel, State
from refold.model.errors import Damaged, NotFound, StoreError
from refold.model.message import Message, Role, Text
from refold.model.summary import Summary
from refold.model.window import Fixed
from refold.ports import records
from refold.ports.records import Batch, Call, Compaction, Head, Session, StoredMessage, StoredSummary
from refold.ports.store import Conversations, Store
from refold.ports.stored_messages import read_body, read_stored, read_with_shown
from refold.text_work import run_text_work
from refold.wire.message import encode_item
from refold.wire.request import encode_fixed

# What is stored of a branch beside its messages and what is shown of them: notes, and the
# instructions it came in with. Notes are small, belong to the branch and not to a change, and the
# newest count. Instructions (system prompt, tools, and the other fields of a request) are long and
# hardly ever change: they are stored once, under their hash, and the notes hold the hash.


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

    async def loaded(self, store: Conversations, head: Head) -> Instructions:
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


async def fields_of(store: Conversations, head: Head) -> bytes:
    """The request that the conversation of a branch came in with, without its messages, as JSON."""
    return await _stored_fields(store, head, read_notes(head.notes))


async def inlined(store: Conversations, head: Head) -> Head:
    """A branch whose notes hold the instructions themselves, for an archive that has no store behind it."""
    notes = read_notes(head.notes)
    if not notes.instructions:
        return head
    whole = structs.replace(notes, fields=await _stored_fields(store, head, notes), instructions=b"")
    return structs.replace(head, notes=write_notes(whole))


async def _stored_fields(store: Conversations, head: Head, notes: Notes) -> bytes:
    # Earlier versions wrote them into the notes themselves.
    return await store.blob(head, notes.instructions) or b"" if notes.instructions else notes.fields


# What is shown of a branch, as a store keeps it.

VERSION = 1
UNREADABLE = "what was shown of the conversation cannot be read"

Encode = Callable[[Message], bytes]
Decode = Callable[[bytes], Message]


class Original(Struct, frozen=True):
    """A message of the branch, and how it was shown when it arrived. Of a secret one nothing is noted."""

    number: int
    message: Message
    shown: Message
    is_secret: bool = False


class _Lead(Struct, frozen=True):
    """The summaries as they are sent: who says it, and what."""

    messages: tuple[tuple[Role, str], ...]
    block: str
    tokens: int


class _State(Struct, frozen=True):
    version: int
    size: int
    origin: int
    told: int
    replies: int
    edited: tuple[int, ...]
    replaced: dict[int, bytes]
    """Those of the edited that are not shown as they came, or not held any more, by their place."""
    summaries: tuple[Summary, ...]
    numbered: int
    lead: _Lead
    settled: int
    declined: int
    pinned: tuple[int, ...]
    ledger: Ledger
    carried: tuple[Carried, ...]
    task: tuple[int, bytes] | None
    more: tuple[tuple[int, bytes], ...] = ()
    """The messages of the task after its first."""
    task_replies: int = -1
    """How many replies came before the task; -1 where that is not known."""
    asked: tuple[int, bytes] | None = None


def write(folded: Folded, encode: Encode, *, in_words: bool = False) -> bytes:
    """A branch as it is shown now. Compactions that are shown in words for another provider are written as they were made, unless
    what was sent is to be known, `in_words`.
    """
    origin = max(folded.origin, folded.summaries[-1].last if folded.summaries else 0)
    carried, summaries = _carried(folded, origin)
    task, asked = [(one.number, encode(one.message)) for one in folded.task], folded.question_before(origin)
    state = _State(
        version=VERSION,
        size=folded.size,
        origin=origin,
        told=folded.told + folded.branch.tokens_before(origin - folded.origin),
        replies=folded.replies,
        edited=folded.edited
        + tuple(range(folded.base, folded.base + len(folded.shown) - len(folded.edited))),
        replaced=_replaced(folded, origin, encode, {} if in_words else folded.made),
        summaries=summaries,
        numbered=folded.numbered + len(folded.past),
        lead=_lead(folded.lead),
        settled=folded.settled,
        declined=folded.declined,
        pinned=tuple(folded.pinned),
        ledger=folded.ledger,
        carried=carried,
        task=task[0] if task else None,
        more=tuple(task[1:]),
        task_replies=folded.task[0].replies if task else -1,
        asked=(asked.number, encode(asked.message)) if asked else None,
    )
    return msgspec.msgpack.encode(state)


def origin_of(snapshot: bytes) -> int:
    """The number of the first original that has to be read with it."""
    return _read(snapshot).origin


def summaries_in(snapshot: bytes) -> tuple[Summary, ...]:
    """The summaries that stood before what was shown."""
    return _read(snapshot).summaries


def read(
    snapshot: bytes, originals: Iterable[Original], empty: View, decode: Decode, pinned: frozenset[int]
) -> Folded:
    """The branch as it was shown, with the originals from `origin_of` on, those that came since included."""
    state, held = _read(snapshot), list(originals)
    if held and held[0].number != state.origin:
        raise StoreError(f"messages from {state.origin} on are needed, and {held[0].number} came first")
    known = held[: state.size - state.origin]
    folded = structs.replace(
        Folded.of(empty.extend(one.message for one in known)),
        shown=empty.extend(_shown(state, known, decode)),
        edited=state.edited,
        base=state.size,
        summaries=state.summaries,
        numbered=state.numbered,
        lead=_led(state.lead),
        settled=state.settled,
        declined=state.declined,
        pinned=pinned,
        facts=_facts(state, known),
        ledger=state.ledger,
        replies=state.replies,
        origin=state.origin,
        told=state.told,
        task=tuple(_task(state, decode)),
        asked=UserRequest(state.asked[0], decode(state.asked[1])) if state.asked else None,
        held=frozenset(one.number for one in known if one.is_secret),
    )
    return grown(folded, held[len(known) :])


def _task(state: _State, decode: Decode) -> Iterator[UserRequest]:
    for number, body in (*([state.task] if state.task else []), *state.more):
        message = decode(body)
        yield UserRequest(number, message, state.task_replies, is_typed(message))


def _shown(state: _State, known: Sequence[Original], decode: Decode) -> Iterator[Message]:
    """What stood in the window, the originals among it being those that are held."""
    messages = {one.number: one.message for one in known}
    for place, number in enumerate(state.edited):
        if place not in state.replaced and number not in messages:
            raise StoreError(f"message {number} is missing", hint="run `refold doctor`")
        yield decode(state.replaced[place]) if place in state.replaced else messages[number]


def grown(folded: Folded, originals: Iterable[Original]) -> Folded:
    """A branch with more originals, each shown as it was when it arrived."""
    for one in originals:
        taken = folded.hold(one.message) if one.is_secret else folded.take(one.message, later=True)
        folded = taken.display(one.shown)
    return folded


def _read(snapshot: bytes) -> _State:
    try:
        state = msgspec.msgpack.decode(snapshot, type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged(UNREADABLE) from None
    if state.version != VERSION:
        raise StoreError(f"it was written by another version ({state.version})", hint="update Refold")
    return state


def _replaced(folded: Folded, origin: int, encode: Encode, made: Mapping[int, Message]) -> dict[int, bytes]:
    """What is shown otherwise than it came, or came before what will be held."""
    found = dict[int, bytes]()
    for place, entry in enumerate(folded.shown):
        number = folded.number(place)
        message = made.get(number, entry.message)
        if number < origin or not folded.is_original(message, number):
            found[place] = encode(message)
    return found


def _carried(folded: Folded, origin: int) -> tuple[tuple[Carried, ...], tuple[Summary, ...]]:
    """What the next summary may be made of although its originals are not held, and the summaries, which then name what they
    had to choose from by its place: what the newest one kept for later, and all of what is shown of an earlier session.
    """
    reserve = folded.summaries[-1].reserve if folded.summaries else ()
    shown = [number for number in map(folded.number, range(len(folded.shown))) if number < origin]
    own = (piece.number for number in shown for piece in folded.facts.pieces(number, number + 1))
    carried, places = carry(folded.facts, (*reserve, *own), origin)
    summaries = [structs.replace(one, reserve=()) for one in folded.summaries]
    if summaries:
        known = tuple(places[number] for number in reserve if number in places)
        summaries[-1] = structs.replace(summaries[-1], reserve=known)
    return carried, tuple(summaries)


def _lead(lead: Lead) -> _Lead:
    return _Lead(tuple((message.role, message.text) for message in lead.messages), lead.block, lead.tokens)


def _led(lead: _Lead) -> Lead:
    messages = tuple(Message(role, (Text(text),)) for role, text in lead.messages)
    return Lead(messages, lead.block, lead.tokens)


def _facts(state: _State, known: Sequence[Original]) -> Facts:
    facts = restore(state.carried)
    for one in known:
        facts = facts if one.is_secret else index_message(facts, one.message, one.number, later=True)
    return facts


Clock: TypeAlias = Callable[[], float]
NewId: TypeAlias = Callable[[], str]

CALIBRATION, LIMIT = "calibration", "limit"
"""Topics under which is stored what was learnt about a model."""
WORTH_STORING = 0.01
"""By how much a ratio must have changed: a commit with every call would cost more than it tells."""
MAX_TITLE = 60
"""Characters: what a line of a list has room for beside the numbers."""
_TITLE_SOURCE, _TITLE_LINE = 4_000, 4 * MAX_TITLE
"""Characters of the first question that are looked at, and of those, once white space is gone: few of them cannot be printed."""


class CommitDraft(Struct, frozen=True):
    """A commit before it is made."""

    state: State
    """The state that it stores."""
    batch: Batch
    notes: Notes
    fill_level: FillLevel
    instructions: Instructions
    secrets: frozenset[str]
    """Of the conversation: what is embedded must not hold them."""


class Journal:
    """One branch in a store."""

    def __init__(
        self,
        store: Store,
        head: Head,
        session: Session,
        clock: Clock,
        new_id: NewId,
        *,
        keeps_content: bool = True,
        meaning: Meaning | None = None,
        model: str = "",
        learns: str = "",
    ) -> None:
        self.store, self.head, self.session = store, head, session
        self.clock, self.new_id, self.keeps_content = clock, new_id, keeps_content
        self.meaning = meaning or Meaning()
        self.model = model or head.model
        """The model that counts here: what is measured is measured by its provider."""
        self.learns = learns or self.model
        """The name under which is stored what its calls teach: the same model may have another window elsewhere."""
        self.change = ""
        """The id of the change in effect."""
        self.raw: frozenset[int] = frozenset()
        """Messages that are shown as they came though they were shortened on arrival: that was undone."""
        self.instructions = Instructions()
        self._notes, self._fill_level = read_notes(head.notes).lasting, FillLevel()

    # Commits

    def draft(
        self,
        done: Outcome,
        *,
        calls: Sequence[Call] = (),
        key: str = "",
        chains: Sequence[bytes] = (),
        claims: bytes = b"",
    ) -> CommitDraft | None:
        """What an action did, as a commit; None where there is nothing to store. `key` is the client's name for its first message,
        `chains` are the hashes of the history up to each new message, and `claims` is the hash that no other branch may hold.

        It reads all text that is held, so where that is much it is called in a thread.
        """
        state, instructions = done.state, self.instructions.given(done.state.frame.fixed)
        secrets = NOTHING
        if done.changes:
            state = structs.replace(state, secrecy=state.secrecy.search(state.folded))
            done, secrets = structs.replace(done, state=state), state.secrecy.known
        noted = instructions.noted(notes_of(state)) if self.keeps_content else notes_of(state)
        changes, messages = tuple(self._changes(done)), tuple(self._messages(done, key))
        notes = noted.lasting
        if not (messages or changes or calls or notes != self._notes):
            return None
        fill_level = self._fill_level.after(messages)
        is_news = notes != self._notes or bool(changes or calls) or self._is_news(noted, fill_level)
        chains = tuple(chains[: len(messages)])
        batch = Batch(
            at=self.clock(),
            messages=messages,
            changes=changes,
            calls=tuple(calls),
            chains=chains,
            claims=claims if claims in chains else b"",
            notes=write_notes(noted) if is_news else None,
            title=self._title(state),
        )
        return CommitDraft(
            state, batch, notes, noted.standing if is_news else fill_level, instructions, secrets
        )

    async def commit_draft(self, draft: CommitDraft) -> None:
        """
        Raises:
            Conflict: another program has written meanwhile; nothing was stored.
            StoreError: nothing was stored, or the outcome is not known.
        """
        changes: tuple[records.InstalledCompaction, ...] = ()
        for one in draft.batch.changes:
            changes = (*changes, await self.renamed(one, *changes) if one.written else one)
        batch = structs.replace(draft.batch, changes=changes)
        await self.commit(batch, draft.secrets, draft.instructions)
        self._notes, self._fill_level = draft.notes, draft.fill_level
        opened = [change.opens for change in changes if change.opens]
        self.session = opened[-1] if opened else self.session
        made = [change.compaction.id for change in changes if change.compaction.kind != "arrival"]
        self.change = made[-1] if made else self.change

    async def commit(
        self, batch: Batch, secrets: frozenset[str] = NOTHING, instructions: Instructions | None = None
    ) -> None:
        """Store a batch, with the vectors of the sessions that it closes."""
        instructions = instructions or self.instructions
        if batch.notes is not None and self.model != self.head.model:
            batch = structs.replace(batch, model=self.model)
        if batch.notes is not None:
            batch = structs.replace(batch, blobs=instructions.unstored)
        whole = await self.meaning.embedded(batch, secrets) if self.keeps_content else emptied(batch)
        self.head = await self.store.commit(self.head, whole)
        self.instructions = instructions.as_stored() if whole.blobs else instructions

    async def undo(self, state: State, change: Compaction) -> None:
        """Take a change back: until something new is said, none is made unasked. Load afterwards."""
        self.check_content()
        notes = structs.replace(self.notes_of(state), declined=state.size, settled=-1)
        await self.commit(Batch(at=self.clock(), undoes=change.id, notes=write_notes(notes)))

    async def store_pin(self, state: State, number: int, *, on: bool) -> None:
        """Pin a message, or unpin it. The notes are stored anew, so that other programs load what is pinned."""
        await self.store.pin(self.head, number, on=on)
        await self.commit(Batch(at=self.clock(), notes=write_notes(self.notes_of(state))))

    async def store_fill_level(self, state: State) -> None:
        """Store how full the conversation is, where that is not stored yet."""
        noted = self.notes_of(state)
        if noted.standing != self._fill_level:
            await self.commit(Batch(at=self.clock(), notes=write_notes(noted)))
            self._fill_level = noted.standing

    async def has_key(self, key: str) -> bool:
        """Was a message stored under this name of the client's?"""
        return await self.store.find_key(self.head, key) is not None

    async def current_head(self) -> Head | None:
        """Where the branch is in the store now."""
        return await self.store.head(self.head.owner, self.head.conversation, self.head.branch)

    def _is_news(self, noted: Notes, fill_level: FillLevel) -> bool:
        """Is there more to note of a conversation than follows from its messages, or are these many?"""
        if noted.standing != fill_level or self.model != self.head.model:
            return True
        return fill_level.size - read_notes(self.head.notes).standing.size >= MOST_SINCE

    # Reads

    async def load(self, state: State, *, is_first: bool = False) -> State:
        """The state as the store has it. Frame, patterns and receipts are those of the state that is given."""
        head = await self.current_head()
        session = await self.store.session(head.owner, head.session) if head else None
        if head is None or session is None:
            raise conversation_gone(self.head.conversation)
        await self._check_same(head)
        notes = read_notes(head.notes)
        self.head, self.session, self._notes = head, session, notes.lasting
        self._fill_level = FillLevel()  # it is noted anew: how full it is may follow from what others added
        if self.keeps_content or head.next_seq != state.size:  # else the state is all there is
            state = await self._read(state, notes)
        return await self._measured_here(state, is_first=is_first)

    async def _read(self, state: State, notes: Notes) -> State:
        head, before = self.head, state
        holders = await self.store.pick(head, notes.secret) if notes.secret else []
        secrecy = await run_text_work(
            sum(len(one.body) for one in holders),
            lambda: state.secrecy.restored(
                notes.sensitive,
                notes.secret,
                [message for one in holders if (message := read_stored(one, head)) is not None],
            ),
        )
        state = structs.replace(state, secrecy=secrecy)
        latest = await self.store.latest(head, head.next_seq)
        self.change = latest.id if latest else ""
        self.raw = frozenset(await self.store.raw_arrivals(head, 0))
        self.instructions = await self.instructions.loaded(self.store, head)
        folded = await self.shown_after(state, latest, head.next_seq)
        folded = structs.replace(folded, settled=notes.settled, declined=notes.declined)
        state = structs.replace(
            state.showing(folded),
            in_vain=notes.in_vain,
            flag=notes.flag,
            limits=structs.replace(state.limits, stated=notes.limit),
            meter=notes.meter,
            calibration=notes.calibration,
            bill=notes.bill,
        )
        if head.notes and head.model == self.model:
            return state
        # What another model measured says nothing here.
        return structs.replace(
            state,
            meter=structs.replace(state.meter, anchor=before.meter.anchor, ratio=before.meter.ratio),
            calibration=before.calibration,
            limits=structs.replace(state.limits, stated=before.limits.stated),
        )

    async def _measured_here(self, state: State, *, is_first: bool) -> State:
        """Where another model wrote last, begin with what is known about this one. That another model is used is stored with the next
        commit: a program that only reads must not make others reload.
        """
        if self.head.notes and self.head.model == self.model:
            return state
        state = await self.with_learnt(state) if is_first else state
        self._notes = self.notes_of(state).lasting
        return state

    async def with_learnt(self, state: State) -> State:
        """The state with what other conversations have learnt about the model."""
        owner = self.head.owner
        if not self.learns:
            return state
        if known := await self.store.learnt(owner, CALIBRATION, self.learns):
            calibration = forget_sums(msgspec.msgpack.decode(known, type=Calibration))
            state = structs.replace(state, calibration=calibration)
        if limit := await self.store.learnt(owner, LIMIT, self.learns):
            stated = msgspec.msgpack.decode(limit, type=int)
            state = structs.replace(state, limits=structs.replace(state.limits, stated=stated))
        return state

    async def store_learnt(self, before: State, after: State) -> None:
        """Store what a call has taught about the model, where it is news."""
        owner, now = self.head.owner, self.clock()
        if not self.learns:
            return
        if abs(after.calibration.ratio - before.calibration.ratio) > WORTH_STORING:
            learnt = msgspec.msgpack.encode(after.calibration)
            await self.store.learn(owner, CALIBRATION, self.learns, learnt, now)
        stated = after.limits.stated
        if after.limits.is_of_model and stated is not None and stated != before.limits.stated:
            await self.store.learn(owner, LIMIT, self.learns, msgspec.msgpack.encode(stated), now)

    async def _check_same(self, head: Head) -> None:
        """Sessions go with their conversation only: without the one that was open here, this is another of the same name."""
        owner, known = head.owner, self.head.session
        if head.session != known and await self.store.session(owner, known) is None:
            raise NotFound(
                f"the conversation {head.conversation[:80]!r} was deleted and begun anew",
                hint="open it again to go on with the new one",
            )

    def storable(self, written: StoredSummary) -> StoredSummary:
        """A summary as it may be stored."""
        return written if self.keeps_content else _blank(written)

    def check_content(self) -> None:
        """
        Raises:
            StoreError: no content is stored, so nothing can be shown again.
        """
        if not self.keeps_content:
            raise not_kept()

    async def shown_at(self, state: State, size: int) -> Folded:
        """The branch as it was shown when it had `size` messages."""
        return await self.shown_after(state, await self.store.latest(self.head, size), size)

    async def shown_after(
        self, state: State, latest: Compaction | None, size: int, raw: Collection[int] | None = None
    ) -> Folded:
        """The branch as it was shown after a change, with the messages since, up to `size`; `raw` are those that are shown as
        they came though they were shortened on arrival, where these are not the ones of now.
        """
        if latest and not latest.shown:
            raise not_kept()
        shown = latest.shown if latest else b""
        origin = await run_text_work(len(shown), origin_of, shown) if latest else 0
        originals = await self.originals(state, origin, max(size, latest.size if latest else 0), raw)
        pinned = frozenset(await self.store.pins(self.head))
        empty = emptied_view(state.folded.shown)

        def fold() -> Folded:
            if latest:
                return read(shown, originals, empty, self._decoder(state), pinned)
            return grown(structs.replace(Folded.of(empty), pinned=pinned), originals)

        return await run_text_work(len(shown) + sum(one.message.characters for one in originals), fold)

    def _decoder(self, state: State) -> Decode:
        """Reads the messages inside a snapshot."""
        conversation, wire_format = self.head.conversation, state.frame.fixed.dialect.name

        def decode(body: bytes) -> Message:
            try:
                return read_body(body, wire_format)
            except Damaged:
                raise Damaged(UNREADABLE, conversation=conversation) from None

        return decode

    async def originals(
        self, state: State, first: int, last: int, raw: Collection[int] | None = None
    ) -> list[Original]:
        """Messages of the branch, each with how it was shown on arrival."""
        raw = self.raw if raw is None else raw
        found = await self.store.messages(self.head, first, last)
        head, secret = self.head, state.secrecy.numbers

        def read() -> list[Original]:
            return [
                structs.replace(_original(one, head, is_raw=one.seq in raw), is_secret=one.seq in secret)
                for one in found
            ]

        return await run_text_work(sum(len(one.body) for one in found), read)

    async def with_originals(self, state: State, folded: Folded, first: int = 0) -> Folded:
        """A branch with its messages from the number `first` on: after a restart a state begins where the shown summaries end."""
        if folded.origin <= first:
            return folded
        earlier = await self.originals(state, first, folded.origin)
        empty = emptied_view(folded.shown)
        messages = (*(one.message for one in earlier), *folded.branch.messages())
        branch = await run_text_work(sum(one.characters for one in messages), empty.extend, messages)
        held = folded.held | {one.number for one in earlier if one.is_secret}
        return structs.replace(folded, branch=branch, origin=first, told=0, held=held)

    def _title(self, state: State) -> str:
        """What the conversation is called, if its first question is new; a sensitive one is not taken for the task."""
        asked = next(iter(state.folded.task), None)
        return title_of(asked.message) if asked and asked.number >= self.head.next_seq else ""

    def _messages(self, done: Outcome, key: str) -> Iterable[StoredMessage]:
        state, now = done.state, self.clock()
        folded, encode = state.folded, encoder(state)
        arrived = {change.after.size - 1: change.after for change in done.changes if change.raw}
        for number in range(self.head.next_seq, folded.size):
            entry, is_secret = folded.original(number), number in state.secrecy.numbers
            shown = arrived[number].shown.last if number in arrived else None
            yield StoredMessage(
                seq=number,
                role=entry.message.role,
                format=self.head.format,
                body=encode(entry.message),
                is_findable=not is_secret,
                shown=encode(shown.message) if shown else None,
                tokens=entry.tokens,
                key=key if number == self.head.next_seq else "",
                at=now,
            )

    def _changes(self, done: Outcome) -> Iterable[records.InstalledCompaction]:
        session = self.session
        for change in done.changes:
            made = self._change(change, session, done.state)
            session = made.opens or session
            yield made

    def _change(self, change: Change, session: Session, state: State) -> records.InstalledCompaction:
        summary, now = None if change.raw else _new_summary(change), self.clock()
        policy = state.frame.policy.name
        if summary is None or summary.last <= session.first:
            which, opens = (summary.id if summary else "") or self.new_id(), None
        else:
            which = summary.id or self.id_of(session.id, summary.last, summary.recipe or policy)
            opens = self.child(session, summary.last, now)
        compaction = Compaction(
            id=which,
            branch=self.head.branch,
            kind="arrival" if change.raw else "summarise" if opens else "reduce",
            base=session.id,
            session=opens.id if opens else "",
            cut=change.after.size - 1 if change.raw else summary.last if summary else 0,
            size=change.after.size,
            reason=change.receipt.reason,
            recipe=summary.recipe or policy if summary else "",
            before=change.receipt.before,
            after=change.receipt.after,
            edits=msgspec.json.encode(change.receipt.edits),
            shown=b"" if change.raw else write(change.after, encoder(state)),
            at=now,
        )
        written = (
            StoredSummary(id=which, summary=structs.replace(summary, reserve=()), at=now) if summary else None
        )
        return records.InstalledCompaction(compaction, written, opens)

    async def renamed(
        self, change: records.InstalledCompaction, *others: records.InstalledCompaction
    ) -> records.InstalledCompaction:
        """A change under an id that no other has, be it stored or one of the `others` of the same batch: the same work done again is
        another change, and stored ones never change.
        """
        made, which, times = change.compaction, change.compaction.id, 0
        taken = {other.compaction.id for other in others}
        while which in taken or await self._is_stored(which):
            times += 1
            again = f"{made.recipe}\0{times}"
            which = self.id_of(made.base, made.cut, again) if made.recipe else self.new_id()
        written = change.written and structs.replace(change.written, id=which)
        return structs.replace(change, compaction=structs.replace(made, id=which), written=written)

    async def _is_stored(self, which: str) -> bool:
        """Was a change of this id ever in effect?"""
        known = await self.store.compaction(self.head.owner, which)
        return known is not None and bool(known.number)

    def child(self, parent: Session, first: int, at: float) -> Session:
        """The session that a compaction opens after another."""
        return Session(
            id=self.new_id(),
            branch=self.head.branch,
            first=first,
            kind="compaction",
            parent=parent.id,
            carries="summary",
            at=at,
        )

    def notes_of(self, state: State) -> Notes:
        """What a state knows, as far as it may be stored."""
        noted = notes_of(state)
        return self.instructions.noted(noted) if self.keeps_content else noted

    def id_of(self, session: str, cut: int, recipe: str) -> str:
        """The id of a compaction: the same work has the same id, so it is found where it was done already."""
        head = self.head
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


def _emptied(change: records.InstalledCompaction) -> records.InstalledCompaction:
    written = change.written and _blank(change.written)
    compaction = structs.replace(change.compaction, edits=b"", shown=b"", reason="")
    return structs.replace(change, compaction=compaction, written=written)


def _blank(written: StoredSummary) -> StoredSummary:
    summary = structs.replace(written.summary, text="", carried="", read=(), modified=())
    return structs.replace(written, summary=summary, carry=b"")


def conversation_gone(conversation: str) -> StoreError:
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


def _original(one: StoredMessage, head: Head, *, is_raw: bool) -> Original:
    both = read_with_shown(one, head)
    if both is None:
        raise not_kept()
    message, shown = both
    return Original(one.seq, message, message if is_raw else shown)


def encoder(state: State) -> Encode:
    dialect = state.frame.fixed.dialect
    return lambda message: bytes(encode_item(message, dialect))


def emptied_view(view: View) -> View:
    """A view of the same kind without messages."""
    return View(view.dialect, view.counter, view.key, view.continues)


def title_of(message: Message) -> str:
    """The first words of a question on one line, without secrets; empty where it has none."""
    said = redact(message.text[:_TITLE_SOURCE])
    line = "".join(char for char in " ".join(said.split())[:_TITLE_LINE] if char.isprintable())
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 3].rstrip()}..."
