"""What is shown of a branch, as a store keeps it.

One idea: after every change to what is shown, what is shown is written down whole: which originals stand there as they came,
which otherwise, and after which summaries. Read again with the messages since, it gives the same bytes to the provider, and
nothing before the last summary has to be read for it, however long the conversation is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from refold.core.assemble import Lead
from refold.core.digest.facts import Carried, Facts, carry, index_message, restore
from refold.core.digest.ledger import Ledger
from refold.core.digest.typed_text import is_typed
from refold.core.folded import Asked, Folded
from refold.core.view import View
from refold.model.errors import Damaged, StoreError
from refold.model.message import Message, Role, Text
from refold.model.summary import Summary

VERSION = 1

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
        asked=Asked(state.asked[0], decode(state.asked[1])) if state.asked else None,
        held=frozenset(one.number for one in known if one.is_secret),
    )
    return grown(folded, held[len(known) :])


def _task(state: _State, decode: Decode) -> Iterator[Asked]:
    for number, body in (*([state.task] if state.task else []), *state.more):
        message = decode(body)
        yield Asked(number, message, state.task_replies, is_typed(message))


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
        raise Damaged("what was shown of the conversation cannot be read") from None
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
