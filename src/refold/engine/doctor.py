"""The doctor: checks that every message of a stored conversation is there once, unchanged and reachable.

The rules that make loss impossible can be checked from outside, on any store, at any time, while other
programs write: mutable rows are read in one transaction, and the rest never changes once it is stored. The
same checks run in every test that kills a process or cuts a connection, and in `refold doctor`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import get_args

from msgspec import Struct

from refold.engine.journal import PROMPT_MISSING, read_edits, read_notes, summaries_in
from refold.model.dialect import DIALECTS
from refold.model.errors import Damaged, StoreError
from refold.model.message import Message, Role
from refold.ports.records import Compaction, Head, Outline, Session, StoredMessage, read_stored
from refold.ports.store import Store
from refold.text_work import run_text_work

PAGE = 1_000
"""Messages that are read at once, so that a long conversation is not held in memory."""
ROLES = frozenset(get_args(Role))
RESTORE = "restore it from a backup"

RULES = {
    "I-1": "every message belongs to exactly one session",
    "I-2": "the sessions of a branch follow one another without gap or overlap",
    "I-3": "messages are numbered without a gap",
    "I-4": "a message never changes",
    "I-5": "sessions form one line, and the open one is its end",
    "I-6": "a compaction has one summary, and opened one session",
    "I-7": "a summary covers all messages that left the window, up to its cut",
    "I-8": "no cut parts a call from its result",
    "I-9": "no compaction is stuck",
    "I-10": "every stored value can be read",
    "I-11": "a stored value is as it was written",
}


class Finding(Struct, frozen=True):
    """One violation of a rule."""

    rule: str
    conversation: str
    branch: str
    what: str
    hint: str = ""


class _BranchRows(Struct, frozen=True):
    """The rows of one branch."""

    head: Head
    sessions: tuple[Session, ...]
    """Those of the whole conversation."""
    compactions: tuple[Compaction, ...]
    summaries: dict[str, int | None]
    """For each summary id, the message it covers up to; None if it cannot be read."""

    @property
    def live(self) -> list[Session]:
        """The sessions in effect, in the order of the branch; an empty session comes before the one that
        begins at the same message.
        """
        own = (one for one in self.sessions if one.state == "live" and one.branch == self.head.branch)
        return sorted(own, key=lambda one: (one.first, one.last is None, one.last or 0))

    def finding(self, rule: str, what: str, hint: str = "") -> Finding:
        return Finding(rule, self.head.conversation, self.head.branch, what, hint)


async def examine(store: Store, owner: str, conversation: str, now: float) -> list[Finding]:
    """Return every violation in a conversation; empty if it is sound."""
    first = {(one.rule, one.branch) for one in await _examine_once(store, owner, conversation, now)}
    # A conversation that is deleted during the check seems to have lost its messages. A second check tells.
    again = await _examine_once(store, owner, conversation, now) if first else []
    return [one for one in again if (one.rule, one.branch) in first]


async def _examine_once(store: Store, owner: str, conversation: str, now: float) -> list[Finding]:
    outline = await store.outline(owner, conversation)
    found: list[Finding] = []
    for head in outline.heads:
        found += await _examine(store, await _branch_rows(store, head, outline), now)
    return found


async def _branch_rows(store: Store, head: Head, outline: Outline) -> _BranchRows:
    made = tuple(one for one in outline.changes if one.branch == head.branch)
    named = [one.id for one in made if one.state == "installed" and one.kind != "arrival"]
    named += [one.summary for one in outline.sessions if one.branch == head.branch and one.summary]
    summaries = dict[str, int | None]()
    for which in dict.fromkeys(named):
        try:
            summaries |= {one.id: one.summary.last for one in await store.written(head.owner, [which])}
        except Damaged:
            summaries[which] = None
    return _BranchRows(head, outline.sessions, made, summaries)


async def _examine(store: Store, case: _BranchRows, now: float) -> list[Finding]:
    messages = await _check_messages(store, case)
    damaged = [
        case.finding("I-4", f"the bytes of message {number} have changed", RESTORE)
        for number in await store.damaged(case.head)
    ]
    damaged += [
        case.finding("I-11", f"the bytes of {what} have changed", RESTORE)
        for what in await store.damaged_values(case.head)
    ]
    shown = [one async for one in _check_snapshots(store, case)]
    shown += [one async for one in _check_instructions(store, case)]
    rows = [
        *_check_partition(case),
        *_check_line(case),
        *_check_compactions(case),
        *_check_jobs(case, now),
        *_check_readable(case),
    ]
    return [*rows, *messages, *damaged, *shown]


def _check_partition(case: _BranchRows) -> Iterator[Finding]:
    """I-1 and I-2: the live ranges are a partition of the branch."""
    live, head = case.live, case.head
    if not live:
        yield case.finding("I-1", "the branch has no session")
        return
    if live[0].first != head.base_seq:
        yield case.finding("I-1", f"messages before {live[0].first} belong to no session")
    for before, after in pairwise(live):
        if before.last is None or before.last > after.first:
            yield case.finding("I-2", f"two sessions hold message {after.first}")
        elif before.last < after.first:
            yield case.finding("I-2", f"messages {before.last} to {after.first - 1} belong to no session")
    if live[-1].last is not None:
        yield case.finding("I-1", f"messages from {live[-1].last} on belong to no session")


async def _check_messages(store: Store, case: _BranchRows) -> list[Finding]:
    """I-3, I-8 and I-10, in one pass."""
    head, found = case.head, list[Finding]()
    pairs, expected = _Pairs([one.first for one in case.live if one.kind == "compaction"]), 0
    while page := await store.messages(head, expected, head.next_seq, PAGE):
        read = await run_text_work(sum(len(one.body) for one in page), _read, page, head)
        for one, message in zip(page, read, strict=True):
            if one.seq != expected:
                found.append(case.finding("I-3", f"message {expected} is missing"))
            expected = one.seq + 1
            fault = message.what if isinstance(message, Damaged) else _check_role(one, message)
            if not isinstance(message, Damaged):
                pairs.look(one.seq, message)
            if fault and one.seq >= head.base_seq:  # earlier messages are reported with the base branch
                found.append(case.finding("I-10", fault, RESTORE))
    if expected != head.next_seq:
        found.append(case.finding("I-3", f"{head.next_seq} messages were counted, {expected} are there"))
    found += [one async for one in _check_end(store, case)]
    parted = (case.finding("I-8", f"the cut at {cut} parts a call from its result") for cut in pairs.parted)
    return [*found, *parted]


async def _check_end(store: Store, case: _BranchRows) -> AsyncIterator[Finding]:
    """I-3: messages after the last, unless they were added since."""
    head = case.head
    for one in await store.messages(head, head.next_seq, None, 1):
        now = await store.head(head.owner, head.conversation, head.branch)
        if now is not None and now.next_seq <= one.seq:
            yield case.finding("I-3", f"{now.next_seq} messages were counted, and message {one.seq} is there")


def _read(page: Sequence[StoredMessage], head: Head) -> list[Message | Damaged | None]:
    return [_message_of(one, head) for one in page]


def _message_of(one: StoredMessage, head: Head) -> Message | Damaged | None:
    if head.format not in DIALECTS:
        return None  # reported once for the branch, not for each message
    try:
        return read_stored(one, head)
    except Damaged as error:
        return error


def _check_role(one: StoredMessage, message: Message | None) -> str:
    """Return the fault of the role that is stored beside a message; empty if there is none."""
    if message is not None and message.role != one.role:
        return f"message {one.seq} is stored with another role than its own"
    return "" if one.role in ROLES else f"message {one.seq} is stored with a role that is not known"


class _Pairs:
    """Follows calls across cuts, within one turn. A result that comes after the user's next message was late
    anyway.
    """

    def __init__(self, cuts: Sequence[int]) -> None:
        self._cuts, self._open, self.parted = sorted(cuts), dict[str, int](), set[int]()

    def look(self, seq: int, message: Message | None) -> None:
        if message is None:
            return
        if message.role == "user":
            self._open.clear()
        for result in message.results:
            called = self._open.pop(result.call_id, None)
            if called is not None:
                self.parted |= {cut for cut in self._cuts if called < cut <= seq}
        for call in message.calls:
            self._open[call.id] = seq


def _check_line(case: _BranchRows) -> Iterator[Finding]:
    """I-5: the sessions form one line, with the open session at its end."""
    head, by_id = case.head, {one.id: one for one in case.sessions}
    children = [one for one in case.live if one.kind == "compaction"]
    parents = [one.parent for one in children]
    for twice in {one for one in parents if parents.count(one) > 1}:
        yield case.finding("I-5", f"two sessions follow the session {twice}")
    for child in children:
        parent = by_id.get(child.parent)
        if parent is None or parent.first > child.first:
            yield case.finding("I-5", f"the session {child.id} follows none that came before it")
    open_ones = [one.id for one in case.live if one.last is None]
    if open_ones != [head.session]:
        yield case.finding("I-5", "the open session is not the current session of the branch")
    if head.epoch < len(children):
        yield case.finding("I-5", f"{len(children)} sessions were opened, and only {head.epoch} are counted")


def _check_compactions(case: _BranchRows) -> Iterator[Finding]:
    """I-6 and I-7: every compaction that took effect has its summary and its session."""
    by_id = {one.id: one for one in case.live}
    installed = [one for one in case.compactions if one.state == "installed" and one.kind == "summarise"]
    opened = [one.session for one in installed]
    for twice in {one for one in opened if opened.count(one) > 1}:
        yield case.finding("I-6", f"two compactions opened the session {twice}")
    for one in installed:
        session, covers = by_id.get(one.session), case.summaries.get(one.id)
        if session is None:
            yield case.finding("I-6", f"the compaction {one.id} opened no session")
        elif one.id not in case.summaries:
            yield case.finding("I-6", f"the compaction {one.id} has no summary")
        elif covers is not None and not covers == one.cut == session.first:
            yield case.finding(
                "I-7", f"the summary of {one.id} covers up to {covers}, the cut is at {one.cut}"
            )


def _check_jobs(case: _BranchRows, now: float) -> Iterator[Finding]:
    """I-9: jobs whose lease has expired."""
    for one in case.compactions:
        if one.state == "running" and one.until < now:
            yield case.finding(
                "I-9", f"no program works on the compaction {one.id}", "opening the conversation ends it"
            )


def _check_readable(case: _BranchRows) -> Iterator[Finding]:
    """I-10: the data that is needed to open the branch, to resume its sessions and to explain its changes."""
    if case.head.format not in DIALECTS:
        yield case.finding("I-10", "it is in a format that is not known", RESTORE)
    try:
        read_notes(case.head.notes)
    except Damaged as error:
        yield case.finding("I-10", error.message, RESTORE)
    for which in (which for which, covers in case.summaries.items() if covers is None):
        yield case.finding("I-10", f"the summary {which} cannot be read", RESTORE)
    for change in case.compactions:
        try:
            read_edits(change)
        except Damaged as error:
            yield case.finding("I-10", error.what, RESTORE)
    made = {one.id for one in case.compactions}
    for one in case.live:
        if one.summary and one.summary not in made and one.summary not in case.summaries:
            yield case.finding("I-10", f"the summary of the session {one.id} is gone", RESTORE)


async def _check_instructions(store: Store, case: _BranchRows) -> AsyncIterator[Finding]:
    """I-10: the system prompt and the tools that the notes name. Whether their bytes have changed is another rule."""
    with suppress(Damaged):
        digest = read_notes(case.head.notes).instructions
        if digest and await store.blob(case.head, digest) is None:
            yield case.finding("I-10", PROMPT_MISSING, RESTORE)


async def _check_snapshots(store: Store, case: _BranchRows) -> AsyncIterator[Finding]:
    """I-10: the snapshot of each change. They are read one at a time, because they may be long."""
    for one in case.compactions:
        found = await store.compaction(case.head.owner, one.id) if one.number else None
        try:
            if found is not None and found.shown:
                summaries_in(found.shown)
        except StoreError as error:
            hint = RESTORE if isinstance(error, Damaged) else error.hint
            yield case.finding("I-10", f"the snapshot of the compaction {one.id} cannot be read", hint)
