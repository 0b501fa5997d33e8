"""The store in memory, which ends with the program.

Every method reads and changes an owner's tables without awaiting, so tasks never interleave inside it; only the words of a long text
are split in a thread, before that. Each owner has separate tables, so no query can reach the data of another owner. This store is the
reference for the databases: one contract suite runs over all stores.

A batch is applied to a copy-on-write layer over the tables. The layer is written to the tables only when the whole batch succeeded,
so an error leaves them unchanged. This is the reference for a transaction of the databases.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial, reduce
from hashlib import sha256
from heapq import nlargest
from operator import add
from typing import Any, TypeVar

from msgspec import Struct, structs

from refold.core.search.query import Phrase, Query, Term, parse_query, spaced
from refold.core.search.rank import Match, MessagePlace
from refold.model.errors import Conflict, HeldElsewhere, NotFound, StoreError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.records import (
    NEWEST_BLOBS,
    Batch,
    BranchNews,
    Call,
    CallKind,
    CallSum,
    ClientKey,
    CommandEntry,
    Compaction,
    CompactionKind,
    CompactionState,
    CompactionSum,
    CountedOutcome,
    Embedding,
    FailingBranch,
    Head,
    HistoryPlace,
    Idle,
    InheritedState,
    InstalledCompaction,
    LatestHead,
    LearntValue,
    Listed,
    Outline,
    QueuedEntry,
    SearchHit,
    Session,
    SessionHit,
    StoredMessage,
    StoredSummary,
    TurnBlock,
    TurnCodes,
    TurnGap,
    copied_compaction,
    copied_raw_arrivals,
    counted,
    day_of,
)
from refold.stores.search import (
    CONSIDERED,
    DatedMessage,
    FoundMatches,
    Nearest,
    find_matches,
    find_messages,
    find_newest,
    rank_found,
    said,
)
from refold.text_work import run_text_work

T = TypeVar("T")

# The tables of one owner, and their search

# Search in memory, without an index: the words of every text are looked through.


def prepare(text: str) -> str:
    """The searchable form of a text."""
    return spaced(text)


class _Texts:
    """The matches of one search in texts in memory. The methods are those of `MatchSource`."""

    def __init__(
        self,
        texts: Mapping[Head, Sequence[str]],
        query: Query,
        is_wanted: Callable[[Head, int], bool],
        is_spoken: Callable[[Head, int], bool],
        nearness: Callable[[Head, int], float],
        stored_at: Callable[[Head, int], float],
    ) -> None:
        self._query, self._is_wanted, self._is_spoken, self._nearness = query, is_wanted, is_spoken, nearness
        self._stored_at = stored_at
        self._texts, self._held = texts, dict[tuple[str, int], tuple[Head, list[str]]]()
        wanted = {word for term in query.terms for phrase in term.phrases for word in phrase}
        self._read(wanted)

    def _read(self, wanted: AbstractSet[str]) -> None:
        """Split the texts that have one of the words."""
        for head, texts in self._texts.items():
            for seq, text in enumerate(texts, head.base_seq):
                if (head.branch, seq) not in self._held and not wanted.isdisjoint(words := text.split(" ")):
                    self._held[head.branch, seq] = head, words

    def count(self, terms: Sequence[Term]) -> Generator[Any, Any, list[int]]:
        yield from ()
        wanted = {word for term in terms for phrase in term.phrases for word in phrase}
        self._read(wanted)
        return [sum(self._is_match(words, [term]) for _, words in self._held.values()) for term in terms]

    def size(self) -> Generator[Any, Any, int]:
        yield from ()
        return sum(map(len, self._texts.values()))

    def find(self, chosen: Sequence[Term], others: Sequence[Term]) -> Generator[Any, Any, list[Match]]:
        yield from ()
        return [
            Match(
                head.conversation,
                branch,
                seq,
                len(words),
                tuple(_occurrences(words, one) for one in (*chosen, *others)),
                self._nearness(head, seq),
            )
            for (branch, seq), (head, words) in sorted(self._held.items(), key=lambda one: -one[0][1])
            if self._is_match(words, chosen) and self._is_wanted(head, seq)
        ]

    def newest(
        self, spans: Sequence[tuple[float, float]], limit: int
    ) -> Generator[Any, Any, list[DatedMessage]]:
        yield from ()
        found = [
            DatedMessage(at, seq, head.conversation, head.branch)
            for head, texts in self._texts.items()
            for seq, text in enumerate(texts, head.base_seq)
            if any(after <= (at := self._stored_at(head, seq)) < before for after, before in spans)
            and text
            and self._is_wanted(head, seq)
            and not self._is_excluded(text.split(" "))
        ]
        return nlargest(limit, found)

    def findable(self, places: Sequence[MessagePlace]) -> Generator[Any, Any, set[MessagePlace]]:
        yield from ()
        heads = {head.branch: head for head in self._texts}
        return {
            (branch, seq)
            for branch, seq in places
            if (head := heads.get(branch)) is not None
            and 0 <= seq - head.base_seq < len(self._texts[head])
            and self._texts[head][seq - head.base_seq]
            and self._is_wanted(head, seq)
            and self._is_spoken(head, seq)
        }

    def _is_match(self, words: list[str], terms: Sequence[Term]) -> bool:
        return (
            any(_occurrences(words, term) for term in terms)
            and all(_times(words, phrase) for phrase in self._query.required)
            and not self._is_excluded(words)
        )

    def _is_excluded(self, words: list[str]) -> bool:
        return any(_times(words, phrase) for phrase in self._query.excluded)


def _occurrences(words: list[str], term: Term) -> int:
    return sum(_times(words, phrase) for phrase in term.phrases)


def _times(words: list[str], phrase: Phrase) -> int:
    count = words.count(phrase[0])
    if len(phrase) == 1 or not count:
        return count
    size = len(phrase)
    return sum(tuple(words[at : at + size]) == phrase for at, word in enumerate(words) if word == phrase[0])


def _at_once(steps: Generator[Any, Any, T]) -> T:
    """The result of steps that wait for nothing."""
    try:
        next(steps)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError


HAS_ENDED = ("installed", "failed", "superseded", "undone")
EVERYTHING = 1 << 62
"""A number above the number of every message."""


class ConversationRow(Struct, frozen=True, kw_only=True):
    """A conversation, without its branches."""

    id: str
    title: str
    at: float
    updated_at: float


class OwnerTables:
    """All rows of one owner. Each dictionary is in the order of insertion."""

    def __init__(self) -> None:
        self.conversations: dict[str, ConversationRow] = {}
        self.heads: dict[str, Head] = {}
        self.messages: dict[str, list[StoredMessage]] = {}
        self.texts: dict[str, list[str]] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.sessions: dict[str, Session] = {}
        self.compactions: dict[str, Compaction] = {}
        self.summaries: dict[str, StoredSummary] = {}
        self.embeddings: dict[str, dict[str, Embedding]] = {}
        self.turns: dict[int, TurnBlock] = {}
        self.last_turn = 0
        self.calls: dict[str, Call] = {}
        self.replies: dict[str, bytes] = {}
        self.call_days: dict[tuple[object, ...], CallSum] = {}
        self.compaction_days: dict[tuple[object, ...], CompactionSum] = {}
        self.chains: dict[bytes, set[tuple[str, int]]] = {}
        self.pins: set[tuple[str, int]] = set()
        self.blobs: dict[tuple[str, bytes], bytes] = {}
        self.queue: dict[str, QueuedEntry] = {}
        self.commands: dict[str, CommandEntry] = {}
        self.leases: dict[str, tuple[str, float]] = {}
        self.cached: dict[str, Summary | None] = {}
        self.learnt: dict[tuple[str, str], bytes] = {}
        self.learnt_at: dict[tuple[str, str], float] = {}
        self.client_keys: dict[str, ClientKey] = {}
        self.settings: dict[str, bytes] = {}

    def head(self, conversation: str, branch: str) -> Head:
        """The head of a branch.

        Raises:
            NotFound: there is no such branch.
        """
        head = self.heads.get(branch)
        if head is None or head.conversation != conversation:
            raise NotFound("there is no such branch")
        return head

    def idle_since(self, before: float, keep: Sequence[str]) -> list[ConversationRow]:
        """Conversations that were not used since a time, oldest first, except those to keep."""
        old = [one for one in self.conversations.values() if one.updated_at < before and one.id not in keep]
        return sorted(old, key=lambda one: one.updated_at)

    def line(self, head: Head | None, last: int = EVERYTHING) -> Iterator[tuple[str, int, int]]:
        """The branches that hold the messages of one before `last`, itself first, with the range of each."""
        while head is not None:
            yield head.branch, head.base_seq, last
            last = min(last, head.base_seq)
            head = self.heads.get(head.base)

    def message_range(self, head: Head, first: int, last: int) -> list[StoredMessage]:
        parts = [
            self.messages.get(branch, [])[max(first - begins, 0) : max(ends - begins, 0)]
            for branch, begins, ends in self.line(head, last)
        ]
        return [message for part in reversed(parts) for message in part]

    def key_of(self, head: Head, key: str) -> int | None:
        """The number of the message that was sent with a key."""
        found = ((self.keys.get((branch, key)), ends) for branch, _, ends in self.line(head))
        return next((seq for seq, ends in found if seq is not None and seq < ends), None)

    def last_number(self, branch: str) -> int:
        """The number of the newest change of a branch."""
        return max((row.number for row in self.compactions.values() if row.branch == branch), default=0)

    def known(self, head: Head, size: int) -> Iterator[list[Compaction]]:
        """The changes of a branch up to a size, then those of its base before the fork, and so on."""
        number = EVERYTHING
        for branch, _, ends in self.line(head, size):
            rows = [row for row in self.compactions.values() if row.branch == branch]
            yield [row for row in rows if 0 < row.number <= number and row.size <= ends]
            # A change of the base at the same size but after the fork does not count: the numbers decide, not the sizes.
            number = self.heads[branch].base_number if branch in self.heads else 0

    def latest(self, head: Head, size: int, before: int = EVERYTHING) -> Compaction | None:
        for rows in self.known(head, size):
            shown = [row for row in rows if row.state == "installed" and row.kind != "arrival"]
            shown = [row for row in shown if row.branch != head.branch or row.number < before]
            if shown:
                return max(shown, key=lambda row: row.number)
        return None

    def summary(self, head: Head, number: int) -> StoredSummary | None:
        for rows in self.known(head, EVERYTHING):
            named = [row for row in rows if row.id in self.summaries]
            named = [row for row in named if self.summaries[row.id].summary.number == number]
            if named:
                best = max(named, key=lambda row: (row.state == "installed", row.number))
                return self.summaries[best.id]
        return None

    def failed(self, branch: str) -> list[Compaction]:
        return [row for row in self.compactions.values() if row.branch == branch and row.state == "failed"]

    def raw(self, head: Head) -> list[int]:
        """Messages that were shortened on arrival and are shown in full again."""
        rows = [row for row in self.compactions.values() if row.branch == head.branch]
        return sorted(row.cut for row in rows if row.kind == "arrival" and row.state == "undone")

    def shown_by(self, trunk: Head, head: Head) -> InheritedState:
        """The change in effect on the base at the position of a fork."""
        latest = self.latest(trunk, head.base_seq)
        shown = copied_compaction(latest, self.summaries.get(latest.id), head) if latest else None
        return InheritedState(shown, tuple(self.raw(trunk)))

    def inherit(self, head: Head, inherited: InheritedState) -> None:
        """Copy the inherited changes to a fork."""
        self.compactions |= {row.id: row for row in copied_raw_arrivals(inherited.raw, head)}
        if inherited.shown is None:
            return
        row = structs.replace(inherited.shown.compaction, number=1, state="installed")
        self.compactions[row.id] = row
        if (written := inherited.shown.written) is not None:
            self.summaries[written.id] = written

    def places(self, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        order = {branch: index for index, branch in enumerate(self.heads)}
        found = [
            HistoryPlace(one, head.conversation, branch, size, head.next_seq, head.format)
            for one in hashes
            for branch, size in self.chains.get(one, ())
            for head in (self.heads[branch],)
        ]
        return sorted(found, key=lambda at: (at.size == at.length, order[at.branch], at.size), reverse=True)

    def is_held_elsewhere(self, history: bytes, size: int, head: Head) -> bool:
        """True if another branch of the same format has this history of `size` messages."""
        holders = {branch for branch, held in self.chains.get(history, ()) if held == size}
        return any(self.heads[branch].format == head.format for branch in holders - {head.branch})

    def keep_call(self, call: Call) -> None:
        """Store a call, once, and add it to the sums of its day."""
        if call.branch in self.heads and call.id not in self.calls:
            self.calls[call.id] = structs.replace(call, reply=b"")
            if call.reply:
                self.replies[call.id] = call.reply
            _add_call(self.call_days, call, day=day_of(call.at))

    def count(self, row: Compaction, outcome: CountedOutcome) -> None:
        """Add a compaction to the sums of its day."""
        written = self.summaries.get(row.id)
        added = counted(row, written.summary.author if written else "", outcome)
        if added is not None:
            key = added.day, added.kind, added.reason, added.author, added.outcome
            known = self.compaction_days.get(key, structs.replace(added, count=0, before=0, after=0))
            self.compaction_days[key] = structs.replace(
                known,
                count=known.count + 1,
                before=known.before + added.before,
                after=known.after + added.after,
            )

    def embed(self, embeddings: Sequence[Embedding]) -> int:
        fitting = [one for one in embeddings if _is_of(one, self.sessions.get(one.session))]
        for one in fitting:
            self.embeddings.setdefault(one.session, {})[one.name] = one
        return len(fitting)

    def begin(self, head: Head, session: Session, past: int = 0) -> Head:
        """Create a branch without rows of its own; `past` is the number of changes of its base."""
        head = structs.replace(
            head, next_seq=head.base_seq, base_number=past, epoch=0, revision=0, session=session.id
        )
        self.heads[head.branch] = head
        self.messages[head.branch], self.texts[head.branch] = [], []
        self.sessions[session.id] = _fresh(head, session)
        return head

    def latest_head(self, conversation: str) -> Head | None:
        """The branch that was used last: that has the newest message, or was forked after it."""
        heads = [head for head in self.heads.values() if head.conversation == conversation]
        return max(reversed(heads), key=self._used_at, default=None)

    def _used_at(self, head: Head) -> float:
        newest = self.messages[head.branch][-1:]
        return newest[0].at if newest else self.sessions[head.session].at

    def list_up(self, begun: ConversationRow) -> Listed:
        """A conversation with its totals, for a list."""
        heads = {head.branch: head for head in self.heads.values() if head.conversation == begun.id}
        last = self.latest_head(begun.id)
        assert last is not None
        calls = [call for call in self.calls.values() if call.branch in heads]
        summarised = [
            row
            for row in self.compactions.values()
            if row.branch in heads and (row.state, row.kind) == ("installed", "summarise")
        ]
        return Listed(
            id=begun.id,
            branch=last.branch,
            title=begun.title,
            model=last.model,
            format=last.format,
            messages=sum(len(self.messages[branch]) for branch in heads),
            compactions=len(summarised),
            sessions=sum(row.branch in heads and row.state == "live" for row in self.sessions.values()),
            branches=len(heads),
            usage=reduce(add, (call.usage for call in calls), Usage()),
            dollars=sum(call.dollars for call in calls),
            estimated=sum(call.is_estimated for call in calls),
            at=begun.at,
            updated_at=begun.updated_at,
        )

    def list_latest(self, begun: ConversationRow, ordinal: int) -> LatestHead:
        head = self.latest_head(begun.id)
        assert head is not None
        own = {one.branch for one in self.heads.values() if one.conversation == begun.id}
        return LatestHead(
            ordinal=ordinal,
            title=begun.title,
            at=begun.at,
            updated_at=begun.updated_at,
            branches=len(own),
            compactions=sum(
                row.branch in own and (row.state, row.kind) == ("installed", "summarise")
                for row in self.compactions.values()
            ),
            head=head,
        )

    def embedded_up_to(self, name: str) -> dict[str, int]:
        """The number of the first message of each branch that an embedder has not seen."""
        done = {one: head.base_seq for one, head in self.heads.items()}
        for block in self.turns.values():
            if block.name == name:
                done[block.branch] = max(done[block.branch], block.last)
        return done

    def delete(self, conversation: str) -> None:
        """Delete a conversation. The cache of summaries does not record conversations, so all of it is deleted."""
        gone = {head.branch for head in self.heads.values() if head.conversation == conversation}
        mine = {key for key, compaction in self.compactions.items() if compaction.branch in gone}
        mine |= {session.summary for session in self.sessions.values() if session.branch in gone}
        del self.conversations[conversation]
        for branch in gone:
            del self.heads[branch], self.messages[branch], self.texts[branch]
        self.sessions = {key: row for key, row in self.sessions.items() if row.branch not in gone}
        self.embeddings = {key: kept for key, kept in self.embeddings.items() if key in self.sessions}
        self.turns = {key: row for key, row in self.turns.items() if row.branch not in gone}
        self.compactions = {key: row for key, row in self.compactions.items() if row.branch not in gone}
        self.calls = {key: row for key, row in self.calls.items() if row.branch not in gone}
        self.replies = {key: body for key, body in self.replies.items() if key in self.calls}
        for places in self.chains.values():
            places -= {place for place in places if place[0] in gone}
        self.keys = {key: seq for key, seq in self.keys.items() if key[0] not in gone}
        self.summaries = {key: written for key, written in self.summaries.items() if key not in mine}
        self.pins = {pin for pin in self.pins if pin[0] not in gone}
        self.blobs = {key: body for key, body in self.blobs.items() if key[0] != conversation}
        self.learnt = {
            (topic, key): value
            for (topic, key), value in self.learnt.items()
            if not (topic.startswith("recall_") and key.endswith(f" {conversation}"))
        }
        self.queue = {key: row for key, row in self.queue.items() if row.branch not in gone}
        self.commands = {key: row for key, row in self.commands.items() if row.branch not in gone}
        self.leases = {branch: held for branch, held in self.leases.items() if branch not in gone}
        self.cached.clear()

    def forget_blobs(self, conversation: str) -> None:
        """Delete the blobs of a conversation that no branch uses, apart from the newest."""
        notes = [head.notes for head in self.heads.values() if head.conversation == conversation]
        own = [key for key in self.blobs if key[0] == conversation]
        for key in own[:-NEWEST_BLOBS]:
            if not any(key[1] in one for one in notes):
                del self.blobs[key]


class PendingCommit:
    """A branch during the commit of a batch."""

    def __init__(self, tables: OwnerTables, seen: Head) -> None:
        self.head = tables.head(seen.conversation, seen.branch)
        # Sessions are deleted only with their conversation: if the open one is missing, this is a new one of the same name.
        if seen.session not in tables.sessions:
            raise NotFound("the conversation was deleted, and begun anew")
        if self.head.place != seen.place:
            raise Conflict
        self._tables = tables
        self._messages: list[StoredMessage] = []
        self._sessions = ChainMap[str, Session]({}, tables.sessions)
        self._compactions = ChainMap[str, Compaction]({}, tables.compactions)
        self._summaries = ChainMap[str, StoredSummary]({}, tables.summaries)
        self._calls: tuple[Call, ...] = ()
        self._ended: list[tuple[Compaction, CountedOutcome]] = []
        self._chains: tuple[bytes, ...] = ()
        self._blobs: tuple[bytes, ...] = ()
        self._embeddings: tuple[Embedding, ...] = ()
        self._taken: tuple[str, ...] = ()
        self._learnt: tuple[LearntValue, ...] = ()
        self._pins: tuple[int, ...] = ()
        self._unpins: tuple[int, ...] = ()
        self._reopened = ""

    def take(self, batch: Batch) -> None:
        if batch.claims:
            size = self.head.next_seq + batch.chains.index(batch.claims) + 1
            if self._tables.is_held_elsewhere(batch.claims, size, self.head):
                raise HeldElsewhere
        for message in batch.messages:
            self._append(message)
        if not set(batch.takes) <= set(self._tables.queue):
            raise NotFound("a queued message has left the queue", hint="another program has stored it")
        self._taken = batch.takes
        if batch.undoes:
            self._undo(batch.undoes)
        for change in batch.changes:
            self._install(change, batch.at)
        if batch.opens is not None:
            self._begin(batch.opens, batch.opens.first, batch.at)
        self._calls, self._learnt = batch.calls, batch.learnt
        self._pins, self._unpins = batch.pins, batch.unpins
        self._chains, self._embeddings, self._blobs = batch.chains, batch.embeddings, batch.blobs
        notes = self.head.notes if batch.notes is None else batch.notes
        model = self.head.model if batch.model is None else batch.model
        revision = self.head.revision + batch.revises
        self.head = structs.replace(self.head, notes=notes, model=model, revision=revision)

    def apply(self, texts: Sequence[str], at: float, title: str = "") -> Head:
        """Write the layer to the tables; `texts` are the searchable texts of the messages."""
        tables, head = self._tables, self.head
        tables.messages[head.branch] += [
            structs.replace(message, is_findable=True) for message in self._messages
        ]
        tables.texts[head.branch] += texts
        tables.keys |= {(head.branch, message.key): message.seq for message in self._messages if message.key}
        tables.sessions.update(self._sessions.maps[0])
        tables.embeddings.pop(self._reopened, None)
        tables.embed(self._embeddings)
        tables.compactions.update(self._compactions.maps[0])
        tables.summaries.update(self._summaries.maps[0])
        for row, outcome in self._ended:
            tables.count(row, outcome)
        for call in self._calls:
            tables.keep_call(call)
        for size, one in enumerate(self._chains, head.next_seq - len(self._chains) + 1):
            tables.chains.setdefault(one, set()).add((head.branch, size))
        tables.blobs |= {(head.conversation, sha256(body).digest()): body for body in self._blobs}
        tables.learnt |= {(one.topic, one.key): one.value for one in self._learnt}
        tables.pins |= {(head.branch, seq) for seq in self._pins}
        tables.pins -= {(head.branch, seq) for seq in self._unpins}
        for which in self._taken:
            del tables.queue[which]
        tables.heads[head.branch] = head
        if self._blobs:
            tables.forget_blobs(head.conversation)
        conversation = tables.conversations[head.conversation]
        tables.conversations[head.conversation] = structs.replace(
            conversation,
            updated_at=at if at >= conversation.updated_at + 1 else conversation.updated_at,
            title=conversation.title or title,
        )
        return head

    def _append(self, message: StoredMessage) -> None:
        if message.seq != self.head.next_seq:
            raise StoreError("messages of a batch must be numbered without a gap")
        if message.key and self._has_key(message.key):
            raise Conflict("a message with this key is there already")
        self._messages.append(message)
        self.head = structs.replace(self.head, next_seq=message.seq + 1)

    def _has_key(self, key: str) -> bool:
        known = self._tables.key_of(self.head, key)
        return known is not None or any(message.key == key for message in self._messages)

    def _install(self, change: InstalledCompaction, at: float) -> None:
        compaction, opens = change.compaction, change.opens
        known = self._compactions.get(compaction.id)
        if known is not None and (known.number or known.branch != self.head.branch):
            raise Conflict("this compaction was installed already")
        if change.written is not None:
            self._summaries[change.written.id] = change.written
        closed = self._sessions.get(change.summarises)
        if closed is not None and closed.last is not None and change.written is not None:
            self._sessions[closed.id] = structs.replace(closed, summary=change.written.id)
        if opens is not None:
            closing = change.written.id if change.written and compaction.kind == "summarise" else ""
            self._begin(opens, compaction.cut, at, closing)
        self._compactions[compaction.id] = structs.replace(
            compaction, number=self._next_number(), state="installed", session=opens.id if opens else ""
        )
        self._ended.append((compaction, "installed"))
        if opens is None and compaction.kind != "arrival":
            self.head = structs.replace(self.head, epoch=self.head.epoch + 1)

    def _next_number(self) -> int:
        installed = [row.number for row in self._compactions.maps[0].values()]
        return 1 + max([self._tables.last_number(self.head.branch), *installed])

    def _begin(self, session: Session, first: int, at: float, summary: str = "") -> None:
        """Close the open session before a message, and open the next one there."""
        current = self._sessions[self.head.session]
        if session.first != first or not current.first <= first <= self.head.next_seq:
            raise StoreError("a session must begin where the one before it is closed")
        if session.id in self._sessions or _has_live_child(self._sessions, session):
            raise Conflict("another session has followed the same one")
        self._sessions[current.id] = structs.replace(
            current,
            last=first,
            closed_at=at,
            summary=summary or current.summary,
            tokens=sum(message.tokens for message in self._own(current.first, first)),
        )
        self._sessions[session.id] = _fresh(self.head, session)
        self.head = structs.replace(self.head, session=session.id, epoch=self.head.epoch + 1)

    def _own(self, first: int, last: int) -> list[StoredMessage]:
        begins, branch = self.head.base_seq, self.head.branch
        return [*self._tables.messages[branch], *self._messages][first - begins : last - begins]

    def _undo(self, which: str) -> None:
        compaction = self._compactions.get(which)
        if compaction is None or compaction.branch != self.head.branch or compaction.state != "installed":
            raise NotFound("there is no such compaction to take back")
        if compaction.session:
            self._reopen(self._sessions[compaction.session])
            child, branch = compaction.session, compaction.branch
            for row in [*self._compactions.values()]:
                is_within = row.base == child and row.branch == branch
                if is_within and row.state == "installed" and row.kind != "arrival":
                    self._compactions[row.id] = structs.replace(row, state="undone")
                    self._ended.append((row, "undone"))
        self._ended.append((compaction, "undone"))
        self._compactions[which] = structs.replace(compaction, state="undone")
        self.head = structs.replace(self.head, epoch=self.head.epoch + 1)

    def _reopen(self, child: Session) -> None:
        if child.id != self.head.session:
            raise Conflict("a later session has begun since")
        parent = self._sessions.get(child.parent)
        if parent is None or parent.branch != self.head.branch:
            raise StoreError("the session before this one is not on the branch")
        self._sessions[child.id] = structs.replace(child, state="undone", last=self.head.next_seq)
        self._sessions[parent.id] = structs.replace(parent, last=None, closed_at=None, summary="", tokens=0)
        self.head = structs.replace(self.head, session=parent.id)
        self._reopened = parent.id


def _is_of(embedding: Embedding, session: Session | None) -> bool:
    """True if the session is closed, and this is the vector of its summary."""
    return session is not None and session.last is not None and session.summary == embedding.summary


def _fresh(head: Head, session: Session) -> Session:
    """A session in its initial state."""
    return structs.replace(session, branch=head.branch, last=None, state="live", closed_at=None)


def _has_live_child(sessions: Mapping[str, Session], session: Session) -> bool:
    return session.kind == "compaction" and any(
        other.kind == "compaction" and other.state == "live" and other.parent == session.parent
        for other in sessions.values()
    )


def searched(messages: Sequence[StoredMessage]) -> list[str]:
    """The searchable texts of messages."""
    return [prepare(said(one.format, one.body) if one.is_findable else "") for one in messages]


class MemoryStore:
    """A store in memory; its data is lost when it is closed."""

    def __init__(self) -> None:
        self._owners: dict[str, OwnerTables] = {}

    def _tables(self, owner: str) -> OwnerTables:
        """The owner's tables, or empty ones."""
        return self._owners.get(owner) or OwnerTables()

    @classmethod
    def with_conversation(cls, head: Head, session: Session) -> MemoryStore:
        """A store with one conversation that has no messages yet."""
        store = cls()
        store._begin(head, session)
        return store

    async def create(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        return self._begin(head, session, title=title, at=at)

    def _begin(self, head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Head:
        tables = self._owners.setdefault(head.owner, OwnerTables())
        if head.branch in tables.heads:
            return tables.head(head.conversation, head.branch)
        if session.id in tables.sessions:
            raise Conflict("a session of this name is there already")
        begun = ConversationRow(id=head.conversation, title=title, at=at, updated_at=at)
        tables.conversations.setdefault(head.conversation, begun)
        return tables.begin(structs.replace(head, base="", base_seq=0), session)

    async def fork(
        self,
        base: Head,
        at_seq: int,
        head: Head,
        session: Session,
        inherited: InheritedState | None = None,
    ) -> Head:
        tables = self._tables(base.owner)
        trunk = tables.head(base.conversation, base.branch)
        if not 0 <= at_seq <= trunk.next_seq:
            raise NotFound("the branch has no such message to fork at")
        if head.branch in tables.heads or session.id in tables.sessions:
            raise Conflict("a branch or a session of this name is there already")
        fresh = structs.replace(
            head, owner=base.owner, conversation=base.conversation, base=base.branch, base_seq=at_seq
        )
        tables.pins |= {
            (head.branch, seq) for branch, seq in tables.pins if branch == base.branch and seq < at_seq
        }
        past = tables.last_number(base.branch) if inherited is None else head.base_number
        begun = tables.begin(fresh, session, past)
        tables.inherit(begun, inherited or tables.shown_by(trunk, begun))
        return begun

    async def head(self, owner: str, conversation: str, branch: str = "") -> Head | None:
        if branch:
            found = self._tables(owner).heads.get(branch)
            return found if found is not None and found.conversation == conversation else None
        return self._tables(owner).latest_head(conversation)

    async def news(self, seen: Head) -> BranchNews | None:
        head = await self.head(seen.owner, seen.conversation, seen.branch)
        if head is None:
            return None
        is_longer = (head.session, head.epoch) == (seen.session, seen.epoch)
        first = seen.next_seq if is_longer else head.next_seq
        messages = self._tables(head.owner).message_range(head, first, head.next_seq)
        unfinished = await self.unfinished(head.owner, head.branch)
        return BranchNews(head, tuple(messages), bool(await self.pins(head)), bool(unfinished))

    async def outline(self, owner: str, conversation: str, changes: int | None = None) -> Outline:
        tables = self._tables(owner)
        heads = {one.branch: one for one in tables.heads.values() if one.conversation == conversation}
        sessions = [one for one in tables.sessions.values() if one.branch in heads]
        made = list[Compaction]()
        for head in heads:
            own = [one for one in tables.compactions.values() if one.branch == head]
            made += own if changes is None else own[max(0, len(own) - changes) :]
        return Outline(
            tuple(heads.values()), tuple(sessions), tuple(structs.replace(one, shown=b"") for one in made)
        )

    async def commit(self, seen: Head, batch: Batch) -> Head:
        texts = await run_text_work(batch.text_size, searched, batch.messages)
        pending = PendingCommit(self._tables(seen.owner), seen)
        pending.take(batch)
        return pending.apply(texts, batch.at, batch.title)

    async def messages(
        self, head: Head, first: int = 0, last: int | None = None, limit: int | None = None
    ) -> list[StoredMessage]:
        ends = EVERYTHING if last is None else last
        return self._tables(head.owner).message_range(head, first, ends)[:limit]

    async def pick(self, head: Head, seqs: Sequence[int]) -> list[StoredMessage]:
        tables = self._tables(head.owner)
        found = [tables.message_range(head, seq, seq + 1) for seq in sorted(set(seqs))]
        return [message for one in found for message in one]

    async def blob(self, head: Head, digest: bytes) -> bytes | None:
        return self._tables(head.owner).blobs.get((head.conversation, digest))

    async def find_key(self, head: Head, key: str) -> int | None:
        return self._tables(head.owner).key_of(head, key)

    async def sessions(self, owner: str, conversation: str = "", limit: int = 1_000) -> list[Session]:
        tables = self._tables(owner)
        return _newest(
            limit,
            tables.sessions.values(),
            lambda row: conversation in {"", tables.heads[row.branch].conversation},
        )

    async def session(self, owner: str, which: str) -> Session | None:
        return self._tables(owner).sessions.get(which)

    async def find_sessions(self, owner: str, prefix: str, limit: int = 10) -> list[tuple[str, Session]]:
        tables = self._tables(owner)
        rows = [row for row in tables.sessions.values() if row.id.startswith(prefix) and row.state == "live"]
        rows.sort(key=lambda row: row.id)
        return [(tables.heads[row.branch].conversation, row) for row in rows[:limit]]

    async def holding(self, owner: str, places: Sequence[tuple[str, int]]) -> list[Session]:
        tables = self._tables(owner)
        return [row for branch, seq in places for row in tables.sessions.values() if _holds(row, branch, seq)]

    async def compactions(self, owner: str, branch: str, limit: int = 1_000) -> list[Compaction]:
        rows = self._tables(owner).compactions.values()
        return [
            structs.replace(row, shown=b"") for row in _newest(limit, rows, lambda row: row.branch == branch)
        ]

    async def compaction(self, owner: str, which: str) -> Compaction | None:
        return self._tables(owner).compactions.get(which)

    async def last_change(
        self, owner: str, session: str, kinds: Sequence[CompactionKind] = ()
    ) -> Compaction | None:
        rows = [
            row
            for row in self._tables(owner).compactions.values()
            if row.state == "installed" and (row.session or row.base) == session
            if not kinds or row.kind in kinds
        ]
        return max(rows, key=lambda row: row.number, default=None)

    async def count_summarised(self, owner: str, branch: str) -> int:
        rows = self._tables(owner).compactions.values()
        return sum(
            row.branch == branch and row.state == "installed" and row.kind == "summarise" for row in rows
        )

    async def latest(
        self, head: Head, size: int | None = None, *, before: int | None = None
    ) -> Compaction | None:
        return self._tables(head.owner).latest(
            head, EVERYTHING if size is None else size, EVERYTHING if before is None else before
        )

    async def raw_arrivals(self, head: Head, first: int) -> list[int]:
        return [seq for seq in self._tables(head.owner).raw(head) if seq >= first]

    async def written(self, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
        known = self._tables(owner).summaries
        return [known[which] for which in ids if which in known]

    async def summary(self, head: Head, number: int) -> StoredSummary | None:
        return self._tables(head.owner).summary(head, number)

    async def attach_summary(
        self,
        owner: str,
        session: str,
        written: StoredSummary,
        embedding: Embedding | None = None,
        *,
        replaces: str = "",
    ) -> bool:
        tables = self._tables(owner)
        row = tables.sessions.get(session)
        if row is None or row.last is None or row.summary != replaces:
            return False
        tables.summaries.setdefault(written.id, written)
        tables.sessions[session] = structs.replace(row, summary=written.id)
        vectors = tables.embeddings.get(session, {})
        vectors |= {name: structs.replace(one, summary=written.id) for name, one in vectors.items()}
        tables.embed([embedding] if embedding else [])
        return True

    async def embed(self, owner: str, embeddings: Sequence[Embedding]) -> int:
        return self._tables(owner).embed(embeddings)

    async def embeddings(self, owner: str, sessions: Sequence[str]) -> list[Embedding]:
        known = self._tables(owner).embeddings
        return [one for which in sessions for _, one in sorted(known.get(which, {}).items())]

    async def unembedded(self, owner: str, name: str, limit: int = 100) -> list[Session]:
        tables = self._tables(owner)
        closed = [row for row in tables.sessions.values() if row.state == "live" and row.last is not None]
        lacking = [row for row in closed if row.summary and name not in tables.embeddings.get(row.id, {})]
        return lacking[::-1][:limit]

    async def nearest(
        self,
        owner: str,
        name: str,
        vector: bytes,
        *,
        conversation: str = "",
        limit: int = 20,
        least: float = -1.0,
    ) -> list[tuple[str, Session]]:
        tables, found = self._tables(owner), Nearest[tuple[str, Session]](vector, limit, least)
        kept = [(row, tables.embeddings.get(row.id, {}).get(name)) for row in tables.sessions.values()]
        named = [(tables.heads[row.branch].conversation, row, one.vector) for row, one in kept if one]
        found.take(((place, row), one) for place, row, one in named if conversation in {"", place})
        return found.best

    async def turn_gaps(self, owner: str, name: str, limit: int = 100) -> list[TurnGap]:
        tables = self._tables(owner)
        done = tables.embedded_up_to(name)
        gaps = [
            TurnGap(head.conversation, one, done[one], head.next_seq) for one, head in tables.heads.items()
        ]
        return [gap for gap in reversed(gaps) if gap.first < gap.last][:limit]

    async def turn_messages(self, owner: str, gap: TurnGap) -> list[StoredMessage]:
        tables = self._tables(owner)
        head = tables.heads.get(gap.branch)
        if head is None:
            return []
        begins, texts = head.base_seq, tables.texts[gap.branch]
        own = zip(tables.messages[gap.branch], texts, strict=True)
        part = list(own)[gap.first - begins : gap.last - begins]
        return [one for one, text in part if text and one.role in {"user", "assistant"}]

    async def put_turns(self, owner: str, block: TurnBlock) -> bool:
        tables = self._tables(owner)
        if tables.embedded_up_to(block.name).get(block.branch) != block.first:
            return False
        tables.last_turn += 1
        tables.turns[tables.last_turn] = block
        return True

    async def turn_codes(
        self, owner: str, name: str, *, conversation: str = "", after: int = 0, limit: int = 1_000
    ) -> list[TurnCodes]:
        tables = self._tables(owner)
        found = [
            TurnCodes(which, tables.heads[one.branch].conversation, one.branch, one.seqs, one.codes)
            for which, one in tables.turns.items()
            if which > after and one.name == name
        ]
        return [one for one in found if conversation in {"", one.conversation}][:limit]

    async def turn_vectors(
        self, owner: str, places: Sequence[tuple[int, int]], size: int
    ) -> dict[tuple[int, int], bytes]:
        known = self._tables(owner).turns
        return {
            (which, at): known[which].vectors[at * size : (at + 1) * size]
            for which, at in places
            if which in known
        }

    async def calls(self, owner: str, conversation: str, limit: int = 1_000) -> list[Call]:
        tables = self._tables(owner)
        return _newest(
            limit, tables.calls.values(), lambda row: tables.heads[row.branch].conversation == conversation
        )

    async def calls_before(self, owner: str, conversation: str, call: str) -> int:
        calls = [one.id for one in await self.calls(owner, conversation, EVERYTHING)]
        return calls.index(call) if call in calls else 0

    async def reply_to(self, owner: str, call: str) -> bytes:
        return self._tables(owner).replies.get(call, b"")

    async def newest_replies(self, owner: str, places: Sequence[tuple[str, str, int]]) -> dict[str, bytes]:
        found, replies = dict[str, bytes](), self._tables(owner).replies
        for conversation, branch, size in places:
            calls = await self.calls(owner, conversation, 100)
            own = [one for one in calls if (one.branch, one.kind, one.size) == (branch, "reply", size)]
            if own and own[-1].id in replies:
                found[branch] = replies[own[-1].id]
        return found

    async def places(self, owner: str, hashes: Sequence[bytes]) -> list[HistoryPlace]:
        return self._tables(owner).places(hashes)

    async def conversation_calls(self, owner: str, since: float = 0.0) -> list[CallSum]:
        tables, found = self._tables(owner), dict[tuple[object, ...], CallSum]()
        for call in tables.calls.values():
            if call.at >= since:
                _add_call(found, call, conversation=tables.heads[call.branch].conversation)
        return [found[key] for key in sorted(found)]

    async def call_days(self, owner: str, first: int = 0) -> list[CallSum]:
        days = self._tables(owner).call_days
        return [days[key] for key in sorted(days) if days[key].day >= first]

    async def compaction_days(self, owner: str, first: int = 0) -> list[CompactionSum]:
        days = self._tables(owner).compaction_days
        return [days[key] for key in sorted(days) if days[key].day >= first]

    async def uncounted(self, owner: str) -> tuple[int, int]:  # noqa: ARG002 - it has no rows of earlier versions
        return 0, 0

    async def backfill(self, owner: str, limit: int) -> tuple[int, int]:  # noqa: ARG002 - likewise
        return 0, 0

    async def spent(self, owner: str, conversation: str, kind: CallKind) -> float:
        calls = await self.calls(owner, conversation, EVERYTHING)
        return sum((call.dollars for call in calls if call.kind == kind), 0.0)

    async def spent_each(self, owner: str, conversations: Sequence[str], kind: CallKind) -> dict[str, float]:
        found = dict[str, float]()
        for name in conversations:
            calls = [one for one in await self.calls(owner, name, EVERYTHING) if one.kind == kind]
            found |= {name: sum(one.dollars for one in calls)} if calls else {}
        return found

    async def conversations(self, owner: str, *, limit: int = 50, words: str = "") -> list[Listed]:
        tables, wanted = self._tables(owner), words.casefold().split()
        found = [
            begun
            for begun in reversed(tables.conversations.values())
            if all(word in f"{begun.id}\n{begun.title}".casefold() for word in wanted)
        ]
        found.sort(key=lambda begun: begun.updated_at, reverse=True)
        return [tables.list_up(begun) for begun in found[:limit]]

    async def latest_heads(
        self, owner: str, *, limit: int = 50, words: str = "", before: tuple[float, int] | None = None
    ) -> list[LatestHead]:
        tables, wanted = self._tables(owner), words.casefold().split()
        found = [
            (begun.updated_at, ordinal, begun)
            for ordinal, begun in enumerate(tables.conversations.values(), 1)
            if all(word in f"{begun.id}\n{begun.title}".casefold() for word in wanted)
        ]
        found.sort(key=lambda one: one[:2], reverse=True)
        chosen = [one for one in found if before is None or one[:2] < before][:limit]
        return [tables.list_latest(begun, ordinal) for _, ordinal, begun in chosen]

    async def tokens_since(self, owner: str, places: Sequence[tuple[str, int]]) -> dict[str, int]:
        messages = self._tables(owner).messages
        return {
            branch: sum(one.tokens for one in messages.get(branch, ()) if one.seq >= first)
            for branch, first in places
        }

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[SearchHit]:
        parsed = parse_query(query)
        source = self._source(owner, parsed, conversation, branch)
        return (
            []
            if source is None
            else await run_text_work(source[1], lambda: _at_once(find_messages(parsed, source[0](), limit)))
        )

    async def search_sessions(
        self, owner: str, query: str, *, conversation: str = "", limit: int = 20
    ) -> list[SessionHit]:
        parsed, tables = parse_query(query), self._tables(owner)
        source = self._source(owner, parsed, conversation, None)
        if source is None:
            return []

        def find() -> tuple[FoundMatches, list[DatedMessage]]:
            texts = source[0]()
            return _at_once(find_matches(parsed, texts)), _at_once(find_newest(parsed, texts, CONSIDERED))

        found, newest = await run_text_work(source[1], find)
        live = dict[str, list[Session]]()
        for one in tables.sessions.values():
            if one.state == "live":
                live.setdefault(one.branch, []).append(one)
        places = {one.branch: one.conversation for one in found.matches}
        places |= {one.branch: one.conversation for one in newest}
        ranked = [(tables.sessions[which], score) for which, score in rank_found(found, newest, live)]
        return [
            SessionHit(conversation=places[one.branch], session=one, score=score)
            for one, score in ranked[:limit]
        ]

    def _source(
        self, owner: str, query: Query, conversation: str, branch: Head | None
    ) -> tuple[Callable[[], _Texts], int] | None:
        """The texts that a query is about, and how many characters they have."""
        if not query.looks_in(conversation):
            return None
        place, tables = conversation or query.conversation, self._tables(owner)
        ends = {link: end for link, _, end in tables.line(branch)} or dict.fromkeys(tables.heads, EVERYTHING)
        heads = [tables.heads[link] for link in ends if link in tables.heads]
        held = {
            head: tables.texts[head.branch][: ends[head.branch] - head.base_seq]
            for head in heads
            if place in {"", head.conversation}
        }
        messages = {head.branch: tables.messages[head.branch] for head in held}

        def is_wanted(head: Head, seq: int) -> bool:
            one = messages[head.branch][seq - head.base_seq]
            return query.after <= one.at < query.before and query.role in {"", one.role}

        def is_spoken(head: Head, seq: int) -> bool:
            return messages[head.branch][seq - head.base_seq].role in {"user", "assistant"}

        def nearness(head: Head, seq: int) -> float:
            return query.nearness(stored_at(head, seq))

        def stored_at(head: Head, seq: int) -> float:
            return messages[head.branch][seq - head.base_seq].at

        size = sum(len(text) for texts in held.values() for text in texts)
        return partial(_Texts, held, query, is_wanted, is_spoken, nearness, stored_at), size

    async def plan(self, owner: str, compaction: Compaction) -> Compaction:
        tables = self._tables(owner)
        if compaction.id not in tables.compactions and compaction.branch not in tables.heads:
            raise NotFound("there is no such branch")
        planned = structs.replace(compaction, state="planned", number=0)
        return tables.compactions.setdefault(compaction.id, planned)

    async def claim(
        self,
        owner: str,
        which: str,
        holder: str,
        *,
        now: float,
        until: float,
    ) -> Compaction | None:
        tables = self._tables(owner)
        row = tables.compactions.get(which)
        if row is None or row.state in HAS_ENDED or (row.holder and row.until > now):
            return None
        state: CompactionState = "summarised" if row.state == "summarised" else "running"
        row = structs.replace(row, state=state, holder=holder, until=until, attempts=row.attempts + 1)
        tables.compactions[which] = row
        return row

    async def beat(self, owner: str, which: str, holder: str, until: float) -> bool:
        tables = self._tables(owner)
        row = _held(tables, which, holder)
        if row is None:
            return False
        tables.compactions[which] = structs.replace(row, until=until)
        return True

    async def reply(self, owner: str, which: str, holder: str, written: StoredSummary, *calls: Call) -> bool:
        tables = self._tables(owner)
        for call in calls:
            tables.keep_call(call)
        row = tables.compactions.get(which)
        if row is None or row.state in HAS_ENDED:
            return False
        if row.state == "summarised":
            return row.holder == holder
        tables.summaries[written.id] = written
        tables.compactions[which] = structs.replace(row, state="summarised")
        for one in tables.failed(row.branch):
            tables.compactions[one.id] = structs.replace(one, state="superseded")
        return True

    async def give_up(
        self,
        owner: str,
        which: str,
        holder: str,
        state: CompactionState,
        error: str = "",
    ) -> bool:
        tables = self._tables(owner)
        row = _held(tables, which, holder)
        if row is None:
            return False
        tables.compactions[which] = structs.replace(row, state=state, error=error, holder="", until=0.0)
        if state == "failed" or state == "superseded":  # noqa: PLR1714 - mypy narrows this form only
            tables.count(row, state)
        return True

    async def failures(self, owner: str, branch: str) -> tuple[int, float]:
        rows = self._tables(owner).failed(branch)
        return len(rows), max((row.at for row in rows), default=0.0)

    async def failing(self, owner: str) -> list[FailingBranch]:
        tables = self._tables(owner)
        found = [
            FailingBranch(head.conversation, head.branch, len(rows), max(row.at for row in rows))
            for head in tables.heads.values()
            if (rows := tables.failed(head.branch))
        ]
        return sorted(found, key=lambda one: (-one.at, one.conversation, one.branch))

    async def unfinished(self, owner: str, branch: str = "") -> list[Compaction]:
        rows = self._tables(owner).compactions.values()
        return [row for row in rows if row.state not in HAS_ENDED and branch in {"", row.branch}]

    async def forget_plans(self, owner: str, before: float) -> int:
        tables = self._tables(owner)
        old = [
            row.id
            for row in tables.compactions.values()
            if row.state == "planned"
            and not row.holder
            and row.at < before
            and row.id not in tables.summaries
        ]
        for which in old:
            del tables.compactions[which]
        return len(old)

    async def cached(self, owner: str, key: str) -> Summary | None:
        return self._tables(owner).cached.get(key)

    async def reserve(self, owner: str, key: str, at: float) -> None:  # noqa: ARG002
        self._owners.setdefault(owner, OwnerTables()).cached.setdefault(key, None)

    async def cache(self, owner: str, key: str, summary: Summary, at: float) -> None:  # noqa: ARG002
        if key in (room := self._tables(owner).cached):
            room[key] = summary

    async def learnt(self, owner: str, topic: str, key: str) -> bytes | None:
        return self._tables(owner).learnt.get((topic, key))

    async def all_learnt(self, owner: str, topic: str) -> list[tuple[str, bytes]]:
        known = self._tables(owner).learnt
        return sorted((key, value) for (one, key), value in known.items() if one == topic)

    async def forget(self, owner: str, topic: str, key: str) -> bool:
        return self._tables(owner).learnt.pop((topic, key), None) is not None

    async def forget_oldest(self, owner: str, topic: str, kept: int) -> int:
        tables = self._tables(owner)
        own = [place for place in tables.learnt if place[0] == topic]
        own.sort(key=lambda place: tables.learnt_at.get(place, 0.0))
        oldest = own[: max(0, len(own) - kept)]
        for place in oldest:
            del tables.learnt[place]
        tables.learnt_at = {place: at for place, at in tables.learnt_at.items() if place in tables.learnt}
        return len(oldest)

    async def learn(self, owner: str, topic: str, key: str, value: bytes, at: float) -> None:
        tables = self._owners.setdefault(owner, OwnerTables())
        tables.learnt[topic, key], tables.learnt_at[topic, key] = value, at

    async def swap_learnt(
        self,
        owner: str,
        topic: str,
        key: str,
        seen: bytes | None,
        value: bytes,
        at: float,  # noqa: ARG002
    ) -> bool:
        if self._tables(owner).learnt.get((topic, key)) != seen:
            return False
        self._owners.setdefault(owner, OwnerTables()).learnt[topic, key] = value
        return True

    def _all_keys(self) -> Iterator[ClientKey]:
        return (key for tables in self._owners.values() for key in tables.client_keys.values())

    async def add_key(self, key: ClientKey) -> None:
        if await self.find_key_owner(key.id):
            raise Conflict("a key of this id is there already")
        self._owners.setdefault(key.owner, OwnerTables()).client_keys[key.id] = key

    async def find_key_owner(self, which: str) -> ClientKey | None:
        return next((key for key in self._all_keys() if key.id == which), None)

    async def has_keys(self) -> bool:
        return any(self._all_keys())

    async def keys(self, owner: str) -> list[ClientKey]:
        tables = self._owners.get(owner)
        return list(tables.client_keys.values()) if tables else []

    async def revoke_key(self, owner: str, which: str, at: float) -> bool:
        tables = self._owners.get(owner)
        key = tables.client_keys.get(which) if tables else None
        if tables is None or key is None or key.revoked_at is not None:
            return False
        tables.client_keys[which] = structs.replace(key, revoked_at=at)
        return True

    async def setting(self, owner: str, key: str) -> bytes | None:
        tables = self._owners.get(owner)
        return tables.settings.get(key) if tables else None

    async def put_setting(self, owner: str, key: str, value: bytes | None, at: float) -> None:  # noqa: ARG002
        if value is not None:
            self._owners.setdefault(owner, OwnerTables()).settings[key] = value
        elif owner in self._owners:
            self._owners[owner].settings.pop(key, None)

    async def enqueue(self, head: Head, entry: QueuedEntry) -> None:
        tables = self._tables(head.owner)
        branch = tables.head(head.conversation, head.branch).branch
        tables.queue.setdefault(entry.id, structs.replace(entry, branch=branch, is_begun=False))

    async def queued(self, owner: str, branch: str) -> list[QueuedEntry]:
        return [row for row in self._tables(owner).queue.values() if row.branch == branch]

    async def begin_command(self, owner: str, which: str) -> bool:
        queue = self._tables(owner).queue
        if which in queue:
            queue[which] = structs.replace(queue[which], is_begun=True)
        return which in queue

    async def keep_command(self, owner: str, entry: CommandEntry) -> None:
        tables = self._tables(owner)
        if entry.branch not in tables.heads:
            raise NotFound("there is no such branch")
        tables.queue.pop(entry.id, None)
        tables.commands.setdefault(entry.id, entry)

    async def commands(self, owner: str, branch: str) -> list[CommandEntry]:
        return [row for row in self._tables(owner).commands.values() if row.branch == branch]

    async def lease(
        self, owner: str, branch: str, holder: str, *, now: float, until: float, ended: str = ""
    ) -> str | None:
        tables = self._tables(owner)
        if branch not in tables.heads:
            raise NotFound("there is no such branch")
        before, ends = tables.leases.get(branch, ("", now))
        if before not in (holder, ended) and ends > now:
            return None
        tables.leases[branch] = holder, until
        return before

    async def lease_holder(self, owner: str, branch: str) -> str:
        return self._tables(owner).leases.get(branch, ("", 0.0))[0]

    async def release(self, owner: str, branch: str, holder: str) -> None:
        leases = self._tables(owner).leases
        if leases.get(branch, ("", 0.0))[0] == holder:
            del leases[branch]

    async def damaged(self, head: Head) -> list[int]:  # noqa: ARG002 - frozen values cannot change
        return []

    async def damaged_values(self, head: Head) -> list[str]:  # noqa: ARG002 - frozen values cannot change
        return []

    async def pins(self, head: Head) -> list[int]:
        return sorted(seq for branch, seq in self._tables(head.owner).pins if branch == head.branch)

    async def fault(self) -> str:
        return ""

    async def owners(self) -> list[str]:
        return sorted(self._owners)

    async def delete(self, owner: str, conversation: str = "") -> int:
        tables = self._tables(owner)
        if not conversation:
            self._owners.pop(owner, None)
            return len(tables.conversations)
        if conversation not in tables.conversations:
            return 0
        tables.delete(conversation)
        return 1

    async def expire(
        self, owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None
    ) -> int:
        tables = self._tables(owner)
        old = tables.idle_since(before, keep)[:limit]
        for one in old:
            tables.delete(one.id)
        return len(old)

    async def idle(self, owner: str, before: float, keep: Sequence[str] = ()) -> Idle:
        tables = self._tables(owner)
        old = [one.updated_at for one in tables.idle_since(before, keep)]
        last_used = max((one.updated_at for one in tables.conversations.values()), default=0.0)
        ends = (old[0], old[-1]) if old else (0.0, 0.0)
        return Idle(len(tables.conversations), last_used, len(old), *ends)

    async def close(self) -> None:
        self._owners.clear()


def _held(tables: OwnerTables, which: str, holder: str) -> Compaction | None:
    """A compaction that has not ended, if this holder has its lease."""
    row = tables.compactions.get(which)
    return row if row and row.holder == holder and row.state not in HAS_ENDED else None


def _add_call(
    sums: dict[tuple[object, ...], CallSum], call: Call, *, day: int = 0, conversation: str = ""
) -> None:
    key = day, conversation, call.kind, call.model, call.upstream, call.is_estimated
    empty = CallSum(
        day=day, conversation=conversation, kind=call.kind, model=call.model, upstream=call.upstream,
        is_estimated=call.is_estimated,
    )  # fmt: skip
    sums[key] = sums.get(key, empty).plus(call)


def _holds(row: Session, branch: str, seq: int) -> bool:
    return row.branch == branch and row.state == "live" and row.holds(seq)


def _newest(limit: int, rows: Iterable[T], wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
    """The last rows, oldest first."""
    found = [row for row in rows if wanted(row)]
    return found[max(len(found) - limit, 0) :]
