"""The journal: loads the state of a branch from the store, and commits the outcomes of actions.

A journal holds the position of its branch in the store: the head, the open session, and the change in effect.
A commit is one transaction. The store refuses all of it (Conflict) if the branch has moved since, and the
position changes only after a commit or a load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from math import inf
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.assemble import Lead, native_messages
from refold.core.digest.facts import CarriedPiece, Facts, carry, index_message, restore
from refold.core.digest.ledger import Ledger
from refold.core.digest.typed_text import is_typed, request_text
from refold.core.fold import FoldedBranch, UserRequest
from refold.core.measure import Calibration, Meter, forget_sums
from refold.core.secrets import redact
from refold.core.stage import Edit
from refold.core.view import View, ViewEntry
from refold.engine.actions import Outcome
from refold.engine.damage import ReadMessage, placeholders_in, read_run
from refold.engine.retention import PAUSE_S, believed_time
from refold.engine.search import NOTHING, Meaning
from refold.engine.state import MOST_SINCE, Bill, Change, FillLevel, SentWindow, State
from refold.model.errors import Damaged, NotFound, StoreError
from refold.model.message import Message, Role, Text, user
from refold.model.summary import Summary
from refold.model.tokens import Usage, call_cost
from refold.model.window import FixedFields
from refold.ports import records
from refold.ports.records import (
    NOT_KNOWN,
    Batch,
    BranchNews,
    Call,
    Compaction,
    Delivery,
    Head,
    NewMessages,
    Session,
    StoredMessage,
    StoredSummary,
    read_body,
    read_stored,
)
from refold.ports.store import Conversations, Store
from refold.text_work import is_long, run_text_work
from refold.wire.request import encode_fixed, encode_item

# Notes and instructions
#
# Notes are small, belong to the branch and not to a change, and the newest count. Instructions
# (system prompt, tools, and the other fields of a request) are long and hardly ever change: they
# are stored once, under their hash, and the notes hold the hash.


CALL_PRECISION_S = 60.0
"""The time of the last call is stored this precisely. It tells whether a provider's cache is cold, which takes
minutes."""


WAY_OUT = (
    "`refold export` still writes its messages, and `refold import` takes them under another name; `refold doctor` says what is"
    " damaged, and a backup has it"
)
"""For values without which a conversation cannot be opened."""
PROMPT_WAY_OUT = (
    "open it with its system prompt (`engine.conversation(name, system=...)`), which is stored in place of the damaged one;"
    " `refold export` still writes its messages, and a backup has the prompt"
)
PROMPT_MISSING = "its system prompt is missing"


class Notes(Struct, frozen=True, omit_defaults=True):
    """The small facts of a state that are stored beside its messages and snapshots. The field names are part
    of the stored format.
    """

    settled: int = -1
    declined: int = -1
    """`settled` and `declined` are as in `refold.core.fold.FoldedBranch`."""
    in_vain: int = 0
    flag: str = ""
    limit: int | None = None
    """See `Limits.own`."""
    meter: Meter = Meter()
    calibration: Calibration = Calibration()
    bill: Bill = Bill()
    sensitive: tuple[int, ...] = ()
    """The numbers of the sensitive messages."""
    secret: tuple[int, ...] = ()
    """Messages in which secrets were found, so that the secrets are also recognised in later messages."""
    fields: bytes = b""
    """The instructions in full; only earlier versions wrote this field."""
    instructions: bytes = b""
    """The hash of the request that the conversation came in with, without its messages."""
    is_given: bool = False
    """Whether a program gave the instructions, so that the next ones replace them. If not, they were
    imported."""
    standing: FillLevel = FillLevel()
    """The fill level, as the program that wrote these notes saw it."""
    called_at: float = 0.0
    """The time of the last call, see `State.called_at`."""
    outputs: tuple[int, ...] = ()
    """The outputs that the last calls asked for: they move the fold point, see `State.outputs`."""

    @property
    def lasting(self) -> Notes:
        """The notes without the fill level, and the time and outputs of the last calls. Only a difference here is worth a
        commit of its own: the level follows from the rest, and from the window of the program that reads it,
        and a reply follows the call.
        """
        return structs.replace(self, standing=FillLevel(), called_at=0.0, outputs=())


def read_notes(notes: bytes) -> Notes:
    """Decode notes.

    Raises:
        Damaged: these bytes are not notes.
    """
    try:
        return msgspec.msgpack.decode(notes, type=Notes) if notes else Notes()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("the notes of the conversation cannot be read", hint=WAY_OUT) from None


def read_edits(change: Compaction) -> tuple[Edit, ...]:
    """Decode the edits of a stored change.

    Raises:
        Damaged: these bytes are no edits, or name messages that the branch did not have at that time.
    """
    try:
        edits = msgspec.json.decode(change.edits, type=tuple[Edit, ...]) if change.edits else ()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged(f"the edits of the compaction {change.id} cannot be read") from None
    for edit in edits:
        if edit.seq >= change.size:
            raise Damaged(f"the edits of the compaction {change.id} name message {edit.seq} of {change.size}")
    return edits


def read_fill_level(notes: bytes) -> FillLevel:
    """Decode the fill level alone. It is empty if the notes are damaged: opening the conversation raises
    then, but a list must not.
    """
    try:
        return read_notes(notes).standing
    except Damaged:
        return FillLevel()


def write_notes(notes: Notes) -> bytes:
    return msgspec.msgpack.encode(notes)


def _lasting_notes(state: State) -> Notes:
    """Return the lasting notes of a state, without those about its instructions."""
    folded = state.folded
    return Notes(
        folded.settled,
        folded.declined,
        state.in_vain,
        state.flag,
        state.limits.own,
        state.meter,
        state.calibration,
        state.bill,
        tuple(sorted(state.secrecy.numbers)),
        tuple(sorted(state.secrecy.holders)),
    )


def _with_level(notes: Notes, state: State) -> Notes:
    """Return the notes with the fill level and the time of the last call."""
    return structs.replace(notes, standing=state.fill_level, called_at=state.called_at, outputs=state.outputs)


def inherited(notes: bytes, size: int) -> bytes:
    """Return the notes of a fork of the first `size` messages: the sensitive messages among them, and the
    request that the conversation came in with.
    """
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

    Instructions that a program gives replace those that a program gave before. Imported ones stay, because
    they were really sent.
    """

    fields: bytes = b""
    """As JSON."""
    digest: bytes = b""
    is_given: bool = False
    """Whether a program gave them."""
    stored: bytes = b""
    """The hash of the instructions that the store has."""
    fixed: FixedFields | None = None
    """The instructions that the program gave last."""
    damage: Damaged | None = None
    """Why the stored ones cannot be read. Then there are no fields, and `digest` is theirs still."""

    @property
    def unstored(self) -> tuple[bytes, ...]:
        """The fields, if the store does not have them yet, or only damaged ones."""
        return (self.fields,) if self.fields and self.digest != self.stored else ()

    def as_stored(self) -> Instructions:
        return structs.replace(self, stored=self.digest)

    def imported(self, fields: bytes) -> Instructions:
        """Return the instructions of a request that was made elsewhere."""
        return self.with_fields(fields, is_given=False)

    def given(self, fixed: FixedFields) -> Instructions:
        """Return the instructions that go out with every request from now on."""
        if fixed is self.fixed:
            return self
        known = structs.replace(self, fixed=fixed)
        if (fixed.system or fixed.tools) and (self.is_given or not self.fields):
            new = known.with_fields(encode_fixed(fixed), is_given=True)
            # Tools alone do not replace damaged instructions, which may have had a system prompt too.
            if self.damage is None or fixed.system or new.digest == self.digest:
                return new
        return known

    def check(self, fixed: FixedFields) -> None:
        """Refuse a request with these fields if a system prompt that is not known belongs to it.

        Raises:
            Damaged: the stored instructions cannot be read, and these do not replace them.
        """
        if self.damage is not None and (left := self.given(fixed).damage) is not None:
            raise left

    async def loaded(self, store: Store, head: Head) -> Instructions:
        """Return the instructions as the store has them."""
        notes, known = read_notes(head.notes), self
        if self.damage is not None or not notes.instructions or notes.instructions != self.digest:
            try:
                fields = await _stored_fields(store, head, notes)
            except Damaged as error:
                return Instructions(digest=notes.instructions, is_given=notes.is_given, damage=error)
            known = self.with_fields(fields, is_given=notes.is_given)
        return structs.replace(known, stored=notes.instructions, is_given=notes.is_given)

    def noted(self, notes: Notes) -> Notes:
        """Return the notes with the hash of these instructions."""
        return structs.replace(notes, instructions=self.digest, is_given=self.is_given)

    def with_fields(self, fields: bytes, *, is_given: bool) -> Instructions:
        digest = sha256(fields).digest() if fields else b""
        return structs.replace(self, fields=fields, is_given=is_given, digest=digest, damage=None)


async def fields_of(store: Store, head: Head) -> bytes:
    """Return the request that the conversation of a branch came in with, without its messages, as JSON.

    Raises:
        Damaged: it is missing, or its bytes have changed.
    """
    return await _stored_fields(store, head, read_notes(head.notes))


async def with_inlined_instructions(store: Store, head: Head) -> Head:
    """Return the head with the instructions inside its notes, for an archive that has no store behind it."""
    notes = read_notes(head.notes)
    if not notes.instructions:
        return head
    whole = structs.replace(notes, fields=await _stored_fields(store, head, notes), instructions=b"")
    return structs.replace(head, notes=write_notes(whole))


async def _stored_fields(store: Conversations, head: Head, notes: Notes) -> bytes:
    if not notes.instructions:
        return notes.fields  # earlier versions wrote them into the notes themselves
    found = await read_instructions(store, head, notes.instructions, hint=PROMPT_WAY_OUT)
    if found is None and await store.head(head.owner, head.conversation, head.branch) is None:
        raise conversation_gone(head.conversation)
    if found is None:
        raise Damaged(PROMPT_MISSING, conversation=head.conversation, hint=PROMPT_WAY_OUT)
    return found


async def read_instructions(
    store: Conversations, head: Head, digest: bytes, *, hint: str = ""
) -> bytes | None:
    """Return the fields of a request of the conversation by their hash; None if the store does not have them.

    Raises:
        Damaged: their bytes have changed.
    """
    found = await store.blob(head, digest)
    if found is not None and sha256(found).digest() != digest:
        what = "the bytes of a system prompt have changed"
        raise Damaged(what, conversation=head.conversation, hint=hint)
    return found


# Snapshots: the shown form of a branch, encoded for the store

VERSIONS = 1, 2
"""In the second, a long message of the task may be named by its number alone."""
UNREADABLE = "the snapshot of the conversation cannot be read"


class Encode(Protocol):
    """Writes a message as JSON. `original` is the message that it was made from, if that is at hand."""

    def __call__(self, message: Message, original: Message | None = None, /) -> Raw: ...


Decode = Callable[[bytes], Message]


class Original(Struct, frozen=True):
    """A message of the branch, and its form when it arrived. A secret one is not indexed."""

    number: int
    message: Message
    shown: Message
    is_secret: bool = False
    is_damaged: bool = False
    """Whether both messages are a placeholder."""


class _StoredLead(Struct, frozen=True):
    """The summaries as they are sent: role and text of each message, or a block in the system prompt."""

    messages: tuple[tuple[Role, str], ...]
    block: str
    tokens: int
    native: int = 0
    """How many messages of a provider's own compaction stand before these; the summaries hold them."""


class _Snapshot(Struct, frozen=True):
    """The stored form of a `FoldedBranch`. Its field names are part of the format."""

    version: int
    size: int
    origin: int
    told: int
    replies: int
    edited: tuple[int, ...]
    replaced: dict[int, bytes]
    """Encoded messages by their place in `edited`: those that are not shown as they came, or whose originals
    are not loaded any more."""
    summaries: tuple[Summary, ...]
    numbered: int
    lead: _StoredLead
    settled: int
    declined: int
    pinned: tuple[int, ...]
    ledger: Ledger
    carried: tuple[CarriedPiece, ...]
    task: tuple[int, bytes] | None
    """The first message of the task. Its bytes are empty if it is long and among the originals that are loaded with the snapshot."""
    more: tuple[tuple[int, bytes], ...] = ()
    """The messages of the task after its first."""
    task_replies: int = -1
    """The number of replies before the task; -1 if not known."""
    asked: tuple[int, bytes] | None = None
    """The newest message of the user in the open turn. Earlier versions joined all of them in it."""
    pruned: int = 0
    asked_earlier: tuple[tuple[int, bytes], ...] = ()
    """The messages of the open turn before `asked`, oldest first."""


def write_snapshot(folded: FoldedBranch, encode: Encode, *, in_words: bool = False) -> bytes:
    """Encode the branch as it is shown now. Compactions that are shown as text for another provider are
    written in their original form, unless `in_words` asks for exactly what was sent.
    """
    origin = max(folded.origin, folded.summaries[-1].last if folded.summaries else 0)
    carried, summaries = _carried_facts(folded, origin)
    task = [(one.number, _encode_task(one, folded, origin, encode)) for one in folded.task]
    asked = [(one.number, _view(encode(one.message))) for one in folded.asked_before(origin)]
    state = _Snapshot(
        version=VERSIONS[not all(body for _, body in task)],
        size=folded.size,
        origin=origin,
        told=folded.told + folded.branch.tokens_before(origin - folded.origin),
        replies=folded.replies,
        edited=folded.edited
        + tuple(range(folded.base, folded.base + len(folded.shown) - len(folded.edited))),
        replaced=_encode_replaced(folded, origin, encode, {} if in_words else folded.made),
        summaries=summaries,
        numbered=folded.numbered + len(folded.past),
        lead=_encode_lead(folded.lead, folded.summaries),
        settled=folded.settled,
        declined=folded.declined,
        pinned=tuple(folded.pinned),
        ledger=folded.ledger,
        carried=carried,
        task=task[0] if task else None,
        more=tuple(task[1:]),
        task_replies=folded.task[0].replies if task else -1,
        asked=asked[-1] if asked else None,
        pruned=folded.pruned,
        asked_earlier=tuple(asked[:-1]),
    )
    return msgspec.msgpack.encode(state)


def origin_of(snapshot: bytes) -> int:
    """Return the number of the first original that `read_snapshot` needs."""
    return _decode(snapshot).origin


def summaries_in(snapshot: bytes) -> tuple[Summary, ...]:
    """Return the summaries that stood before the shown messages."""
    return _decode(snapshot).summaries


def read_snapshot(
    snapshot: bytes,
    originals: Iterable[Original],
    empty: FoldedBranch,
    decode: Decode,
    pinned: frozenset[int],
) -> FoldedBranch:
    """Decode a branch. `originals` are the messages from `origin_of` on, those after the snapshot included."""
    state, held = _decode(snapshot), list(originals)
    if held and held[0].number != state.origin:
        raise StoreError(
            f"the snapshot needs messages from {state.origin} on, but the first is {held[0].number}",
            hint="run `refold doctor`",
        )
    known = held[: state.size - state.origin]
    branch = empty.branch.extend(one.message for one in known)
    entries = {one.number: entry for one, entry in zip(known, branch, strict=True)}
    shown = list(_shown_messages(state, entries, decode))
    folded = structs.replace(
        FoldedBranch.of(branch, empty.tools),
        shown=empty.branch.extend([message for message, _ in shown], [tokens for _, tokens in shown]),
        edited=state.edited,
        base=state.size,
        summaries=state.summaries,
        numbered=state.numbered,
        lead=_decode_lead(state.lead, state.summaries),
        settled=state.settled,
        declined=state.declined,
        pruned=state.pruned,
        pinned=pinned,
        facts=_read_facts(state, known),
        replies=state.replies,
        origin=state.origin,
        told=state.told,
        task=tuple(_read_task(state, entries, decode)),
        asked=tuple(_read_asked(state, decode)),
        held=frozenset(one.number for one in known if one.is_secret),
    )
    return append_originals(folded.with_ledger(state.ledger), held[len(known) :])


def _encode_task(task: UserRequest, folded: FoldedBranch, origin: int, encode: Encode) -> bytes:
    """Encode a message of the task; empty if it is long and need not be stored once more."""
    is_loaded = task.number >= origin and folded.is_original(task.message, task.number)
    return b"" if is_loaded and is_long(task.message.characters) else _view(encode(task.message))


def _read_task(state: _Snapshot, originals: Mapping[int, ViewEntry], decode: Decode) -> Iterator[UserRequest]:
    for number, body in (*([state.task] if state.task else []), *state.more):
        if not body and number not in originals:
            raise _missing(number)
        message = decode(body) if body else originals[number].message
        yield UserRequest(number, message, state.task_replies, is_typed(message))


def _read_asked(state: _Snapshot, decode: Decode) -> Iterator[UserRequest]:
    for number, body in (*state.asked_earlier, *([state.asked] if state.asked else [])):
        yield UserRequest(number, decode(body))


def _shown_messages(
    state: _Snapshot, originals: Mapping[int, ViewEntry], decode: Decode
) -> Iterator[tuple[Message, int | None]]:
    """Yield the messages of the window: decoded ones, or originals in memory with their tokens."""
    for place, number in enumerate(state.edited):
        if place in state.replaced:
            yield decode(state.replaced[place]), None
        elif number in originals:
            yield originals[number].message, originals[number].tokens
        else:
            raise _missing(number)


def _missing(number: int) -> StoreError:
    return StoreError(f"message {number} is missing", hint="run `refold doctor`")


def append_originals(folded: FoldedBranch, originals: Iterable[Original]) -> FoldedBranch:
    """Return the branch with more originals, each shown as it was when it arrived."""
    for one in originals:
        taken = folded.hold(one.message) if one.is_secret else folded.take(one.message, later=True)
        folded = taken.display(one.shown)
    return folded


def _decode(snapshot: bytes) -> _Snapshot:
    try:
        state = msgspec.msgpack.decode(snapshot, type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged(UNREADABLE, hint=WAY_OUT) from None
    if state.version not in VERSIONS:
        raise StoreError(
            f"the snapshot was written by another version ({state.version})", hint="update Refold"
        )
    return state


def _encode_replaced(
    folded: FoldedBranch, origin: int, encode: Encode, made: Mapping[int, Message]
) -> dict[int, bytes]:
    """Encode the messages that are not shown as they came, or that are older than `origin`."""
    found = dict[int, bytes]()
    for place, entry in enumerate(folded.shown):
        number = folded.number(place)
        message = made.get(number, entry.message)
        if number < origin or not folded.is_original(message, number):
            found[place] = _view(encode(message, folded.held_original(number)))
    return found


def _view(raw: Raw) -> bytes:
    """The bytes of a message, not copied: only for the encoder of a snapshot."""
    return memoryview(raw)  # type: ignore[return-value]


def _carried_facts(folded: FoldedBranch, origin: int) -> tuple[tuple[CarriedPiece, ...], tuple[Summary, ...]]:
    """Return the facts that the next summary may use although their originals are not loaded, and the
    summaries with `reserve` pointing into them. Carried are the reserve of the newest summary, and all facts
    of messages that are still shown from an earlier session.
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


def _encode_lead(lead: Lead, summaries: Sequence[Summary]) -> _StoredLead:
    own = len(_native_in(summaries)) if lead.is_native else 0
    texts = tuple((message.role, message.text) for message in lead.messages[own:])
    return _StoredLead(texts, lead.block, lead.tokens, own)


def _decode_lead(lead: _StoredLead, summaries: Sequence[Summary]) -> Lead:
    messages = tuple(Message(role, (Text(text),)) for role, text in lead.messages)
    own = _native_in(summaries) if lead.native else ()
    return Lead((*own, *messages), lead.block, lead.tokens, is_native=bool(own))


def _native_in(summaries: Sequence[Summary]) -> tuple[Message, ...]:
    """Return the messages of the newest compaction of a provider's own."""
    return next((native_messages(one.native) for one in reversed(summaries) if one.native), ())


def _read_facts(state: _Snapshot, known: Sequence[Original]) -> Facts:
    facts = restore(state.carried)
    for one in known:
        facts = facts if one.is_secret else index_message(facts, one.message, one.number, later=True)
    return facts


# The journal

Clock: TypeAlias = Callable[[], float]
NewId: TypeAlias = Callable[[], str]

CALIBRATION, WINDOW = "calibration", "window"
"""Topics under which facts about a model are stored."""
LEARNED_S = 7 * 86_400.0
"""Time that a learned window is used: servers are restarted with other windows, and hosted models change."""
WORTH_STORING = 0.01
"""The least change of a ratio that is stored: a write with every call would cost more than it is worth."""
MAX_TITLE = 60
"""Characters: the room of a line in a list beside the numbers."""
_TITLE_SOURCE, _TITLE_LINE = 4_000, 4 * MAX_TITLE
"""Characters of the first question that are read, and of those that are left once white space is collapsed;
few of them are not printable."""


class LearnedWindow(Struct, frozen=True):
    """The window of a model that a provider stated when it refused a request as too long."""

    model: str
    """The model; behind the gateway with its upstream, as `MODEL@UPSTREAM`."""
    window: int
    at: float
    """When it was learnt."""

    @property
    def until(self) -> float:
        """When it is no longer used."""
        return self.at + LEARNED_S


def read_learned(model: str, value: bytes) -> LearnedWindow | None:
    """Decode a learned window; None if it cannot be read."""
    try:
        return LearnedWindow(model, *msgspec.msgpack.decode(value, type=tuple[int, float]))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class CommitDraft(Struct, frozen=True):
    """A commit that was prepared but not made yet."""

    state: State
    """The state that it stores."""
    batch: Batch
    notes: Notes
    noted: Notes
    """The same with the fill level and the time of the last call, as they are stored if the batch has notes."""
    fill_level: FillLevel
    instructions: Instructions
    secrets: frozenset[str]
    """The secrets of the conversation: an embedded text must not contain them."""


class ReplacedCompaction(Struct, frozen=True):
    """A compaction that is undone by the commit that installs another one in its place."""

    id: str
    session: Session
    """The session that is open without it."""


class KnownTime:
    """The time that the store of one owner knows: a use is never stored as earlier than this, whatever the clock
    says. It is read from the row of the retention, so it is 0 where nothing is ever deleted.
    """

    def __init__(self, store: Store, owner: str, clock: Callable[[], float]) -> None:
        self._store, self._owner, self._clock = store, owner, clock
        self._at, self._read_at = 0.0, -inf

    async def not_before(self, moment: float) -> float:
        """Return this moment, or the time that the store knows if that is later."""
        # The row is read once an hour, and again when the clock was set back.
        if not 0 <= self._clock() - self._read_at < PAUSE_S:
            self._read_at = self._clock()
            with suppress(StoreError):  # the write that follows may succeed, or says itself what failed
                self._at = await believed_time(self._store, self._owner)
        return max(moment, self._at)


class Journal:
    """One branch in a store: its position, its reads and its commits."""

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
        known_time: KnownTime | None = None,
        refuses_damage: bool = False,
    ) -> None:
        self.store, self.head, self.session = store, head, session
        self.refuses_damage = refuses_damage
        """Whether a load raises `Damaged` for a message that cannot be read: a client that sends its whole history has
        that message, and no placeholder must stand for it."""
        self.damaged: dict[int, Damaged] = {}
        """The messages that could not be read since the last whole load, by number."""
        self.shown_damage: tuple[int, ...] = ()
        """Those that a placeholder is shown for, at the last load."""
        self._known_time = known_time or KnownTime(store, head.owner, clock)
        self.clock, self.new_id, self.keeps_content = clock, new_id, keeps_content
        self.meaning = meaning or Meaning()
        self.model = model or head.model
        """The model of this program. Token counts and limits are those of its provider."""
        self.learns = learns or self.model
        """The name under which calibration and limits are stored: the same model may have another window
        elsewhere."""
        self.change = ""
        """The id of the change in effect."""
        self.raw: frozenset[int] = frozenset()
        """Messages that are shown as they came, because shortening them on arrival was undone."""
        self.has_unfinished = True
        """False if the last load found no summary job that has not come to an end."""
        self.instructions = Instructions()
        self._decoded = head.notes, read_notes(head.notes)
        """The notes of a head, and what they say."""
        self._notes, self._fill_level = self._decoded[1].lasting, FillLevel()

    # Commits

    def draft(
        self,
        done: Outcome,
        *,
        calls: Sequence[Call] = (),
        key: str = "",
        chains: Sequence[bytes] = (),
        claims: bytes = b"",
        takes: Sequence[str] = (),
        replaces: ReplacedCompaction | None = None,
        before: State | None = None,
    ) -> CommitDraft | None:
        """Prepare the commit of an outcome; None if there is nothing to store. Call it in a thread if there
        is much text: it reads all of it.

        Args:
            done: the outcome of an action.
            calls: calls to store with it.
            key: the client's idempotency key for the first new message.
            chains: the hashes of the history up to each new message.
            claims: the hash that no other branch may hold.
            takes: the ids of queued messages that the new messages are.
            replaces: the compaction that is undone by the same commit; the outcome is one of the state without it.
            before: the state before the calls, if what they have taught is stored with them.
        """
        state, instructions, secrets = done.state, self.instructions, NOTHING
        if done.imported:
            instructions = instructions.imported(done.imported)
        instructions = instructions.given(state.frame.fixed)
        if done.changes:
            state = structs.replace(state, secrecy=state.secrecy.search(state.folded))
            done, secrets = structs.replace(done, state=state), state.secrecy.known
        notes = self._lasting_notes(state, instructions)
        session = replaces.session if replaces else self.session
        changes, messages = tuple(self._changes(done, session)), self._messages(done, key)
        # Given anew, damaged instructions are stored again, although the notes say the same of them.
        is_changed = notes != self._notes or (self.keeps_content and bool(instructions.unstored))
        if not (messages or changes or calls or takes or is_changed):
            return None
        unread = messages.rows if isinstance(messages, NewMessages) else messages
        noted, fill_level = _with_level(notes, state), self._fill_level.after(unread)
        is_news = is_changed or bool(changes or calls) or self._is_news(noted, fill_level)
        chains = tuple(chains[: len(messages)])
        batch = Batch(
            at=self.clock(),
            messages=messages,
            undoes=replaces.id if replaces else "",
            changes=changes,
            calls=tuple(calls),
            chains=chains,
            claims=claims if claims in chains else b"",
            takes=tuple(takes),
            notes=write_notes(noted) if is_news else None,
            title=self._title(state),
            learnt=tuple(self._learnt(before, state)) if before is not None else (),
        )
        return CommitDraft(
            state, batch, notes, noted, noted.standing if is_news else fill_level, instructions, secrets
        )

    def sent_now(self, state: State) -> SentWindow:
        """Return the data to store about the last window. If that was a view for one call only, this encodes all
        of it.
        """
        only = b"" if state.is_sent_as_shown else write_snapshot(state.sent, encoder(state), in_words=True)
        raw = tuple(sorted(number for number in self.raw if number >= state.folded.base))
        window, sizes = state.frame.budget.window, state.call_size(state.sent)
        digest = self.instructions.digest if self.keeps_content else None
        return SentWindow(state.sent.size, self.change, only, state.window_edits, raw, window, sizes, digest)

    def reported_call(
        self,
        state: State,
        usage: Usage,
        sent: SentWindow,
        *,
        call_id: str = "",
        reply: bytes = b"",
        is_estimated: bool = False,
        delivery: Delivery = NOT_KNOWN,
    ) -> Call:
        """Return the row of a call with its usage, by the provider's report or estimated, and the data about its window."""
        prices = state.frame.prices
        unsent, saved = state.savings(usage)
        if sent.instructions is None and self.keeps_content:
            sent = structs.replace(sent, instructions=self.instructions.digest)
        return Call(
            id=call_id or self.new_id(),
            reply=reply,
            branch=self.head.branch,
            session=self.session.id,
            usage=usage,
            size=sent.size,
            model=self.model,
            receipt=msgspec.json.encode(sent),
            dollars=call_cost(usage, prices) if prices else 0.0,
            at=self.clock(),
            unsent=unsent,
            saved=saved,
            is_estimated=is_estimated,
            upstream=delivery.upstream,
            recoveries=delivery.recoveries,
            added_ms=delivery.added_ms,
        )

    async def commit_draft(self, draft: CommitDraft) -> None:
        """Commit a draft, and advance the journal's position.

        Raises:
            Conflict: another program committed first; nothing was stored.
            StoreError: nothing was stored, or the outcome is not known.
        """
        changes: tuple[records.InstalledCompaction, ...] = ()
        for one in draft.batch.changes:
            changes = (*changes, await self.renamed(one, *changes) if one.written else one)
        batch = structs.replace(draft.batch, changes=changes) if changes else draft.batch
        await self.commit(batch, draft.secrets, draft.instructions)
        self._notes, self._fill_level = draft.notes, draft.fill_level
        if batch.notes is not None:
            self._decoded = batch.notes, draft.noted
        opened = [change.opens for change in changes if change.opens]
        self.session = opened[-1] if opened else self.session
        made = [change.compaction.id for change in changes if change.compaction.kind != "arrival"]
        self.change = made[-1] if made else self.change

    async def commit(
        self, batch: Batch, secrets: frozenset[str] = NOTHING, instructions: Instructions | None = None
    ) -> None:
        """Commit a batch, with the vectors of the sessions that it closes."""
        instructions = instructions or self.instructions
        if batch.notes is not None and self.model != self.head.model:
            batch = structs.replace(batch, model=self.model)
        if batch.notes is not None and instructions.unstored:
            batch = structs.replace(batch, blobs=instructions.unstored)
        whole = batch if self.keeps_content else without_content(batch)
        if whole.changes and self.keeps_content:
            whole = await self.meaning.embedded(batch, secrets)
        at = await self._known_time.not_before(whole.at)
        whole = whole if at == whole.at else structs.replace(whole, at=at)
        self.head = await self.store.commit(self.head, whole)
        if self.meaning.turns is not None and self.keeps_content:
            self.meaning.turns.note(len(whole.messages))
        self.instructions = instructions.as_stored() if whole.blobs else instructions

    async def without(self, state: State, change: Compaction) -> tuple[State, ReplacedCompaction]:
        """Return the state as it would be if the last compaction and every change since had not been made. Messages
        that were shortened on arrival stay short: they were never shown whole.

        Raises:
            Damaged: a message that the compaction took out cannot be read, and its summary may still hold what was said.
        """
        self.check_content()
        latest = await self.store.latest(self.head, self.head.next_seq, before=change.number)
        folded = await self.shown_after(state, latest, self.head.next_seq)
        if lost := [number for number in self.damaged_in(folded) if number < change.cut]:
            raise self.damaged[lost[0]]
        session = await self.store.session(self.head.owner, change.base)
        if session is None:
            raise conversation_gone(self.head.conversation)
        folded = structs.replace(folded, settled=-1, declined=state.size)
        return state.showing(folded), ReplacedCompaction(change.id, session)

    async def undo(self, state: State, change: Compaction) -> None:
        """Undo a change. Until a message is added, no automatic change follows. The caller loads afterwards.

        A message that cannot be read is shown by a placeholder again; the summary of it stays stored.

        Raises:
            Damaged: the snapshot before the change cannot be read; nothing was undone.
        """
        self.check_content()
        # Once it is committed, the branch could not be opened any more: check before that the load will succeed.
        raw = self.raw | {change.cut} if change.kind == "arrival" else self.raw
        before = change.number if change.kind != "arrival" else None
        latest = await self.store.latest(self.head, self.head.next_seq, before=before)
        await self.shown_after(state, latest, self.head.next_seq, raw)
        notes = structs.replace(self.notes_of(state), declined=state.size, settled=-1)
        await self.commit(Batch(at=self.clock(), undoes=change.id, notes=write_notes(notes)))

    async def store_pin(self, state: State, number: int, *, on: bool) -> None:
        """Pin or unpin a message. The notes are stored again, so that other programs see the branch move and
        reload the pins.
        """
        pins, unpins = ((number,), ()) if on else ((), (number,))
        notes = write_notes(self.notes_of(state))
        await self.commit(Batch(at=self.clock(), notes=notes, pins=pins, unpins=unpins))

    async def store_fill_level(self, state: State) -> None:
        """Store the fill level if it differs from the stored one."""
        noted = self.notes_of(state)
        if noted.standing != self._fill_level:
            await self.commit(Batch(at=self.clock(), notes=write_notes(noted)))
            self._fill_level = noted.standing

    async def has_key(self, key: str) -> bool:
        """Whether a message was stored under this idempotency key."""
        return await self.store.find_key(self.head, key) is not None

    async def current_head(self) -> Head | None:
        """Return the head of the branch as the store has it now."""
        return await self.store.head(self.head.owner, self.head.conversation, self.head.branch)

    def _is_news(self, noted: Notes, fill_level: FillLevel) -> bool:
        """Whether the notes have to be stored: the fill level does not follow from the stored messages, or
        following it would mean to read many of them, or the stored time of the last call is too old, or
        another output moves the fold point.
        """
        if noted.standing != fill_level or self.model != self.head.model:
            return True
        if self._decoded[0] != self.head.notes:
            self._decoded = self.head.notes, read_notes(self.head.notes)
        stored = self._decoded[1]
        if noted.called_at - stored.called_at >= CALL_PRECISION_S:
            return True
        if max(noted.outputs, default=0) != max(stored.outputs, default=0):
            return True
        return fill_level.size - stored.standing.size >= MOST_SINCE

    # Reads

    async def load(self, state: State, *, is_first: bool = False, held: Head | None = None) -> State:
        """Return the state as the store has it. Frame, patterns and receipts are taken from the given state.

        `held` is the head at which the given state was read or committed: if nothing but messages and notes came
        since, only these are read, and added to the state.
        """
        news = await self.store.news(held) if held else None
        head = news.head if news else None if held else await self.current_head()
        is_same = head is not None and head.session == self.session.id
        session = (
            self.session if is_same else await self.store.session(head.owner, head.session) if head else None
        )
        if head is None or session is None:
            raise conversation_gone(self.head.conversation)
        await self._check_same(head)
        notes = read_notes(head.notes)
        self.head, self.session, self._notes = head, session, notes.lasting
        self._fill_level = FillLevel()  # stored anew, because other programs may have added messages
        if self.keeps_content or head.next_seq != state.size:
            state = await self._read(state, notes, held, news)
        else:  # the state in memory is the only copy of the messages
            pinned = frozenset(await self.store.pins(head) if news is None or news.has_pins else ())
            if pinned != state.folded.pinned:
                state = structs.replace(state, folded=structs.replace(state.folded, pinned=pinned))
        self.has_unfinished = news is None or news.has_unfinished
        state = await self._measured_here(state, is_first=is_first)
        return await self.with_learned_window(state) if is_first else state

    async def _read(self, state: State, notes: Notes, held: Head | None, news: BranchNews | None) -> State:
        head, before = self.head, state
        self.instructions = await self.instructions.loaded(self.store, head)
        is_longer = bool(held and news and not self.damaged and _is_extension(state, held, head, notes))
        if is_longer and held and news:
            state = await self._extended(state, held, notes, news)
        if not is_longer or self.damaged:  # the counterparts of a damaged message may be earlier ones
            state = await self._read_whole(before, notes)
        if self.refuses_damage and self.damaged:
            raise self.damaged[min(self.damaged)]
        folded = structs.replace(state.folded, settled=notes.settled, declined=notes.declined)
        state = structs.replace(
            state.showing(folded),
            in_vain=notes.in_vain,
            flag=notes.flag,
            limits=structs.replace(state.limits, own=notes.limit),
            meter=notes.meter,
            bill=notes.bill,
            called_at=max(state.called_at, notes.called_at),
            outputs=notes.outputs or state.outputs,
        ).with_calibration(notes.calibration)
        if head.notes and head.model == self.model:
            return state
        # The measurements of another model do not apply here.
        return structs.replace(
            state,
            meter=structs.replace(state.meter, anchor=before.meter.anchor, ratio=before.meter.ratio),
            limits=structs.replace(state.limits, own=before.limits.own),
        ).with_calibration(before.calibration)

    async def _extended(self, state: State, held: Head, notes: Notes, news: BranchNews) -> State:
        """Return the state with the messages that were added since `held`, and with the pins."""
        head, numbers = self.head, frozenset(notes.sensitive)
        state = structs.replace(state, secrecy=structs.replace(state.secrecy, numbers=numbers))
        folded = state.folded
        if head.revision != held.revision:  # a pin is stored with the notes
            pinned = await self.store.pins(head) if news.has_pins else ()
            folded = structs.replace(folded, pinned=frozenset(pinned))
        if news.messages:
            added = await self._originals_of(state, news.messages)
            size = sum(one.message.characters for one in added)
            folded = await run_text_work(size, append_originals, folded, added)
        return structs.replace(state, folded=folded)

    async def _read_whole(self, state: State, notes: Notes) -> State:
        """Return the state with the branch and its secrets as the store has them."""
        head = self.head
        self.damaged = {}
        holders = await self.store.pick(head, notes.secret) if notes.secret else []
        secrecy = await run_text_work(
            sum(len(one.body) for one in holders),
            lambda: state.secrecy.restored(
                notes.sensitive,
                notes.secret,
                [message for one in holders if (message := _holder(one, head)) is not None],
            ),
        )
        state = structs.replace(state, secrecy=secrecy)
        latest = await self.store.latest(head, head.next_seq)
        self.change = latest.id if latest else ""
        self.raw = frozenset(await self.store.raw_arrivals(head, 0))
        folded = await self.shown_after(state, latest, head.next_seq)
        carried = [number for number in placeholders_in(folded) if number < folded.origin]
        for one in read_run(await self.store.pick(head, carried), head) if carried else ():
            if one is not None and one.damage is not None:
                self.damaged[one.number] = one.damage
        self.shown_damage = self.damaged_in(folded)
        return structs.replace(state, folded=folded)

    def damaged_in(self, folded: FoldedBranch) -> tuple[int, ...]:
        """Return the numbers of the damaged messages that a placeholder is shown for."""
        return tuple(one for one in placeholders_in(folded) if one in self.damaged) if self.damaged else ()

    async def load_without_messages(self, state: State) -> State:
        """Return a state from which windows of the past can be rebuilt: no message of the present one is read."""
        head = await self.current_head()
        if head is None:
            raise conversation_gone(self.head.conversation)
        await self._check_same(head)
        self.head, self.raw = head, frozenset(await self.store.raw_arrivals(head, 0))
        return self.without_messages(state)

    def without_messages(self, state: State) -> State:
        """Return the state of a branch that is not loaded: it holds no message, and knows which are sensitive."""
        notes = read_notes(self.head.notes)
        folded = structs.replace(FoldedBranch.of(empty_view(state.folded.shown)), origin=self.head.next_seq)
        secrecy = state.secrecy.restored(notes.sensitive, notes.secret, ())
        return structs.replace(state.showing(folded), secrecy=secrecy)

    async def _measured_here(self, state: State, *, is_first: bool) -> State:
        """If another model wrote last, start from the facts known about this model. The change of model is
        stored with the next commit: a program that only reads must not make others reload.
        """
        if self.head.notes and self.head.model == self.model:
            return state
        state = await self._with_calibration(state) if is_first else state
        self._notes = self._lasting_notes(state, self.instructions)
        return state

    async def with_learnt(self, state: State) -> State:
        """Return the state of an empty branch with the calibration and the window that other conversations
        learnt about the model.
        """
        return await self.with_learned_window(await self._with_calibration(state))

    async def _with_calibration(self, state: State) -> State:
        if not self.learns:
            return state
        if known := await self.store.learnt(self.head.owner, CALIBRATION, self.learns):
            calibration = forget_sums(msgspec.msgpack.decode(known, type=Calibration))
            state = state.with_calibration(calibration)
        return state

    async def with_learned_window(self, state: State) -> State:
        """Return the state with the window that a refusal taught any conversation with this model, as the store
        has it now.
        """
        if not self.learns:
            return state
        known = await self.store.learnt(self.head.owner, WINDOW, self.learns)
        found = read_learned(self.learns, known) if known else None
        window = found.window if found and self.clock() < found.until else None
        return state.with_limits(structs.replace(state.limits, learned=window))

    async def store_learnt(self, before: State, after: State) -> None:
        """Store the calibration and the window that a call has taught, if they changed."""
        for one in self._learnt(before, after):
            await self.store.learn(self.head.owner, one.topic, one.key, one.value, self.clock())
        await self.forget_window(before, after)

    async def forget_window(self, before: State, after: State) -> None:
        """Delete the learned window, if a call has shown that the model has another one."""
        if self.learns and after.limits.learned is None and before.limits.learned is not None:
            await self.store.forget(self.head.owner, WINDOW, self.learns)

    def _learnt(self, before: State, after: State) -> Iterable[records.LearntValue]:
        """Return the calibration and the window, if they changed."""
        if not self.learns:
            return
        if abs(after.calibration.ratio - before.calibration.ratio) > WORTH_STORING:
            ratio = msgspec.msgpack.encode(after.calibration)
            yield records.LearntValue(CALIBRATION, self.learns, ratio)
        window = after.limits.learned
        if window is not None and window != before.limits.learned:
            learned = msgspec.msgpack.encode((window, self.clock()))
            yield records.LearntValue(WINDOW, self.learns, learned)

    async def _check_same(self, head: Head) -> None:
        """Refuse a conversation that was deleted and begun again under the same name. Sessions are deleted
        with their conversation, so the session that was open here must still exist.
        """
        owner, known = head.owner, self.head.session
        if head.session != known and await self.store.session(owner, known) is None:
            raise NotFound(
                f"the conversation {head.conversation[:80]!r} was deleted and begun anew",
                hint="open it again to go on with the new one",
            )

    def storable(self, written: StoredSummary) -> StoredSummary:
        """Return a summary in the form that may be stored."""
        return written if self.keeps_content else _blank_summary(written)

    def check_content(self) -> None:
        """Refuse an act that needs stored content.

        Raises:
            StoreError: no content is stored, so nothing can be shown again.
        """
        if not self.keeps_content:
            raise _content_not_stored()

    async def shown_at(self, state: State, size: int) -> FoldedBranch:
        """Return the branch as it was shown when it had `size` messages."""
        return await self.shown_after(state, await self.store.latest(self.head, size), size)

    async def shown_after(
        self, state: State, latest: Compaction | None, size: int, raw: Collection[int] | None = None
    ) -> FoldedBranch:
        """Return the branch as it was shown after a change, with the messages since, up to `size`. `raw` are
        the messages that were shown as they came although they were shortened on arrival; by default the
        present ones.
        """
        if latest and not latest.shown:
            raise _content_not_stored()
        shown = latest.shown if latest else b""
        origin = await run_text_work(len(shown), origin_of, shown) if latest else 0
        originals = await self.originals(state, origin, max(size, latest.size if latest else 0), raw)
        pinned = frozenset(await self.store.pins(self.head))
        empty = FoldedBranch.of(empty_view(state.folded.shown), state.frame.policy.file_tools)

        def fold() -> FoldedBranch:
            if latest:
                folded = read_snapshot(shown, originals, empty, self._decoder(state), pinned)
            else:
                folded = append_originals(structs.replace(empty, pinned=pinned), originals)
            is_changed = folded.shown.dialect.signed_thinking and any(one.is_damaged for one in originals)
            # Signed reasoning is bound to what was said before it.
            return folded.show(folded.items.items) if is_changed else folded

        return await run_text_work(len(shown) + sum(one.message.characters for one in originals), fold)

    def _decoder(self, state: State) -> Decode:
        """Reads the messages inside a snapshot."""
        conversation, wire_format = self.head.conversation, state.frame.fixed.dialect.name

        def decode(body: bytes) -> Message:
            try:
                return read_body(body, wire_format)
            except Damaged:
                raise Damaged(UNREADABLE, conversation=conversation, hint=WAY_OUT) from None

        return decode

    async def originals(
        self, state: State, first: int, last: int, raw: Collection[int] | None = None
    ) -> list[Original]:
        """Return messages of the branch, each with its form on arrival."""
        return await self._originals_of(state, await self.store.messages(self.head, first, last), raw)

    async def _originals_of(
        self, state: State, found: Sequence[StoredMessage], raw: Collection[int] | None = None
    ) -> list[Original]:
        raw = self.raw if raw is None else raw
        head, secret = self.head, state.secrecy.numbers

        def read() -> list[ReadMessage | None]:
            return read_run(found, head)

        originals = list[Original]()
        for one in await run_text_work(sum(len(one.body) for one in found), read):
            if one is None:
                raise _content_not_stored()
            if one.damage is not None:
                self.damaged[one.number] = one.damage
            shown = one.message if one.number in raw else one.shown
            is_secret, is_damaged = one.number in secret, one.damage is not None
            originals.append(Original(one.number, one.message, shown, is_secret, is_damaged))
        return originals

    async def with_originals(self, state: State, folded: FoldedBranch, first: int = 0) -> FoldedBranch:
        """Return the branch with its messages from number `first` on. After a restart, a state only holds the
        messages after its summaries.
        """
        if folded.origin <= first:
            return folded
        earlier = await self.originals(state, first, folded.origin)
        empty = empty_view(folded.shown)
        messages = (*(one.message for one in earlier), *folded.branch.messages())
        branch = await run_text_work(sum(one.characters for one in messages), empty.extend, messages)
        held = folded.held | {one.number for one in earlier if one.is_secret}
        return structs.replace(folded, branch=branch, origin=first, told=0, held=held)

    async def with_unread(self, state: State, folded: FoldedBranch) -> FoldedBranch:
        """Return the branch with the messages behind its newest summary that no model has read."""
        newest = folded.summaries[-1] if folded.summaries else None
        if newest is None or newest.last < folded.origin:
            return folded  # in a resumed session, messages of other sessions lie between
        return await self.with_originals(state, folded, newest.read_until)

    def _title(self, state: State) -> str:
        """Return the title of the conversation if its first question is new. A sensitive question is not
        taken for the task, so it gives no title, and neither does a text that a program wrote.
        """
        asked = next(iter(state.folded.task), None)
        is_new = asked is not None and asked.is_typed and asked.number >= self.head.next_seq
        return title_of(asked.message) if asked and is_new else ""

    def _messages(self, done: Outcome, key: str) -> Sequence[StoredMessage]:
        state, now = done.state, self.clock()
        if state.folded.size == self.head.next_seq:
            return ()
        folded, encode, dialect = state.folded, encoder(state), state.frame.fixed.dialect
        arrived = {change.after.size - 1: change.after for change in done.changes if change.raw}
        entries = [folded.original(number) for number in range(self.head.next_seq, folded.size)]
        bodies = [encode_item(entry.message, dialect) for entry in entries]
        is_large, rows = is_long(sum(map(len, bodies))), list[StoredMessage]()
        for number, (entry, body) in enumerate(zip(entries, bodies, strict=True), self.head.next_seq):
            shown = arrived[number].shown.last if number in arrived else None
            row = StoredMessage(
                seq=number,
                role=entry.message.role,
                format=self.head.format,
                body=b"" if is_large else bytes(body),
                is_findable=number not in state.secrecy.numbers,
                shown=bytes(encode(shown.message)) if shown else None,
                tokens=entry.tokens,
                key=key if number == self.head.next_seq else "",
                at=now,
            )
            rows.append(row)
        return NewMessages(rows, bodies, [one.message for one in entries]) if is_large else tuple(rows)

    def _changes(self, done: Outcome, session: Session) -> Iterable[records.InstalledCompaction]:
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
            moment=change.moment,
            recipe=summary.recipe or policy if summary else "",
            before=change.receipt.before,
            after=change.receipt.after,
            edits=msgspec.json.encode(change.receipt.edits),
            shown=b"" if change.raw else write_snapshot(change.after, encoder(state)),
            at=now,
        )
        written = (
            StoredSummary(id=which, summary=structs.replace(summary, reserve=()), at=now) if summary else None
        )
        is_switch = summary is not None and opens is None and summary.last == session.first
        summarises = session.parent if is_switch and session.kind == "compaction" else ""
        return records.InstalledCompaction(compaction, written, opens, summarises)

    async def renamed(
        self, change: records.InstalledCompaction, *others: records.InstalledCompaction
    ) -> records.InstalledCompaction:
        """Return a change under an id that no stored change and no other change of the batch has. The same
        work done again is another change, and stored ones never change.
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
        """Whether a change with this id was ever in effect."""
        known = await self.store.compaction(self.head.owner, which)
        return known is not None and bool(known.number)

    def child(self, parent: Session, first: int, at: float) -> Session:
        """Return the session that a compaction opens after another."""
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
        """Return the notes of a state in the form that may be stored."""
        return _with_level(self._lasting_notes(state, self.instructions), state)

    def _lasting_notes(self, state: State, instructions: Instructions) -> Notes:
        notes = _lasting_notes(state)
        return instructions.noted(notes) if self.keeps_content else notes

    def id_of(self, session: str, cut: int, recipe: str) -> str:
        """Return the id of a compaction. The same work has the same id, so that stored work is found again."""
        head = self.head
        named = "\0".join((head.owner, head.conversation, head.branch, session, str(cut), recipe))
        return sha256(named.encode()).hexdigest()[:32]


def _is_extension(state: State, held: Head, head: Head, notes: Notes) -> bool:
    """Whether a branch has only got messages and notes since `held`, at which the state was read: no session began, the
    messages were not shown otherwise, and the same ones of them are sensitive and hold secrets.
    """
    is_longer = (held.session, held.epoch) == (head.session, head.epoch) and held.next_seq <= head.next_seq
    secrecy = state.secrecy
    is_as_secret = secrecy.holders == frozenset(notes.secret) and secrecy.numbers == {
        number for number in notes.sensitive if number < held.next_seq
    }
    return is_longer and state.size == held.next_seq and is_as_secret


def without_content(batch: Batch) -> Batch:
    """Return a batch without content: numbers, times and kinds only."""
    messages = (structs.replace(one, body=b"", shown=None) for one in batch.messages)
    return structs.replace(
        batch,
        title="",
        messages=tuple(messages),
        blobs=(),
        changes=tuple(map(_blank_change, batch.changes)),
        calls=tuple(structs.replace(call, receipt=b"", reply=b"") for call in batch.calls),
    )


def _blank_change(change: records.InstalledCompaction) -> records.InstalledCompaction:
    written = change.written and _blank_summary(change.written)
    compaction = structs.replace(change.compaction, edits=b"", shown=b"", reason="")
    return structs.replace(change, compaction=compaction, written=written)


def _blank_summary(written: StoredSummary) -> StoredSummary:
    summary = structs.replace(written.summary, text="", carried="", read=(), modified=(), native=None)
    return structs.replace(written, summary=summary, carry=b"")


def conversation_gone(conversation: str) -> NotFound:
    return NotFound(
        f"the conversation {conversation[:80]!r} is gone", hint="it was deleted while it was in use"
    )


def _content_not_stored() -> StoreError:
    return StoreError(
        "the content of this conversation is not stored",
        hint="it was begun without content; begin another one",
    )


def _new_summary(change: Change) -> Summary | None:
    before, after = change.before.summaries, change.after.summaries
    return after[-1] if after and (not before or after[-1] is not before[-1]) else None


def _holder(one: StoredMessage, head: Head) -> Message | None:
    """A message that holds secrets. Of a damaged one, the bytes that are left may still have them: they are searched, and
    shown nowhere.
    """
    try:
        return read_stored(one, head)
    except Damaged:
        return user(one.body.decode("utf-8", "replace"))


def encoder(state: State) -> Encode:
    dialect = state.frame.fixed.dialect
    return lambda message, original=None: encode_item(message, dialect, original)


def sent_once(state: State, folded: FoldedBranch, marks: tuple[Edit, ...] = ()) -> SentWindow:
    """Return the data to store about a window that was made for one call only, and that left no trace in the
    branch.
    """
    only = write_snapshot(folded, encoder(state), in_words=True)
    window, sizes = state.frame.budget.window, state.call_size(folded)
    return SentWindow(folded.size, only=only, marks=marks, window=window, sizes=sizes)


def empty_view(view: View) -> View:
    """Return a view of the same kind without messages."""
    return View(view.dialect, view.counter, view.key, view.continues)


def title_of(message: Message) -> str:
    """Return the first words of a question on one line, without secrets and without the blocks that programs
    add to it; empty if it has none.
    """
    text = redact(request_text(message)[:_TITLE_SOURCE])
    line = " ".join(text.split())[:_TITLE_LINE]
    line = line if line.isprintable() else "".join(filter(str.isprintable, line))
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 3].rstrip(' .,;:')}..."
