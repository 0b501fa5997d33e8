"""Search for messages and for sessions, by words and by meaning: the ranking behind `search`, `recall`, the recall tool and MCP.

Vectors of messages are made after the messages are stored: in the background when enough of them wait and none is added, and before
a search. They are stored in blocks, one for a run of messages of a branch. A search keeps the signs of all vectors in memory and reads the vectors
of the candidates from the store, so a deleted message is not found even if its signs are still in memory.

A session is found by its id, by its messages, and by the meaning of its summary. Messages and summaries give two ranked lists of the
same sessions, and their scores cannot be compared. So the lists are merged by rank: each list gives a session a share that shrinks with
its rank, and a session in both lists rises above one that is in only one.

No embedder is given a secret. A secret is often recognised only where it is introduced ("password=..."), and said again without that. So
a text is searched for the secrets of its branch (`KnownSecrets`), those of tool results and sensitive messages included, and not only for
what looks like one by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from refold.core.digest.shorten import searchable
from refold.core.search.query import Query, parse_query
from refold.core.search.rank import (
    MessagePlace,
    code_rows,
    cosines,
    follow,
    fuse,
    fuse_sessions,
    nearest_of,
    pack,
    read_vectors,
    window_text,
)
from refold.core.secrets import holds_secret, redact, values_of
from refold.engine.damage import readable_summaries
from refold.model.errors import ConfigError, Damaged, RefoldError, StoreError, UpstreamError
from refold.model.message import user
from refold.ports.models import Embedder
from refold.ports.records import (
    Batch,
    Embedding,
    Head,
    SearchHit,
    Session,
    SessionHit,
    StoredMessage,
    StoredSummary,
    TurnBlock,
    TurnCodes,
    TurnGap,
    read_body,
)
from refold.ports.store import Store
from refold.text_work import run_text_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger("refold")

T = TypeVar("T")
U = TypeVar("U")

TOGETHER = 32
"""New messages that are embedded together, in the background: one transaction for so many costs an append next to nothing."""
IDLE_S = 3.0
"""Time without a new message after which those that wait are embedded: a request that is being answered comes first."""
MOST_DELAY_S = 60.0
"""Longest time that messages wait for such a moment, in a process that is never idle."""
RESTS = 9.0
"""How many times as long as it worked the background work rests after each block: it takes a tenth of one core, until a search
waits for it."""
PAGE = 64
"""Most messages of a block: as many texts as every provider takes in one request."""
WORDS_PATIENCE_S = 2.0
"""Longest time that a search waits for the vector of its words: four times what a provider usually takes."""
LOCAL_PATIENCE_S = 30.0
"""That for an embedder of this package on this machine: it never hangs, and loads its files for the first text."""
SEARCH_PATIENCE_S = 3.0
"""Longest time that a search waits for the vectors of the newest messages. It goes on without them."""
PAUSE_S = 60.0
"""Time after such a wait was in vain in which no search waits again."""
PATIENCE_S = 60.0
"""Timeout for the vectors of one block, in the background."""
FUSED = 100
"""Messages of each list, by words and by meaning, that are merged."""
CANDIDATES = 400
"""Messages that are chosen by the signs of their vectors."""
OVERLAP = 20
"""Block ids that are read again: PostgreSQL may commit a lower id after a higher one."""
MOST_BYTES = 64_000_000
"""Signs that stay in memory, of the conversations that were searched last: 32 bytes for a message with the static vectors, so those of
two million. Of more messages the oldest are found by their words alone."""
GAPS = 100
MOST_LIKE = 5
"""Messages that follow those with words of the query because they are the nearest, though not near enough to be merged."""
LIKE_SHARE = 0.6
"""Least share of the cosine of the best of them that such a message has. Of fourteen paraphrases that share no word with their message, static vectors
put twelve among the messages above it."""
LEAST_LIKE = 0.1
"""Least cosine of such a message. Words that are none (`qwrtzp lkjh`) stay below it in a small store."""


class UnboundedEmbedder:
    """An embedder of the user's own that has no `least`: nothing is left out."""

    least = -1.0

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.least_message: float = getattr(embedder, "least_message", self.least)

    @property
    def name(self) -> str:
        return self._embedder.name

    async def embed(self, texts: Sequence[str]) -> Sequence[bytes | Sequence[float]]:
        return await self._embedder.embed(texts)


class QueryVectors:
    """The vectors of search words. An embedder that does not answer in time is left alone for a while: searches go by words then."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._last: tuple[str, bytes] = "", b""
        self._paused_until_s = 0.0

    @property
    def problem(self) -> str:
        """Why searches go by words alone for now; empty if they do not."""
        is_paused = monotonic() < self._paused_until_s
        return (
            "the embedder did not answer in time, so searches go by words alone for a while"
            if is_paused
            else ""
        )

    async def vector(self, words: str) -> bytes:
        """Return the vector of search words; empty if the embedder fails or is left alone."""
        words = valid_text(words)
        if self.problem:
            return b""
        if words != self._last[0]:  # a search for sessions asks twice
            try:
                is_local = getattr(self._embedder, "is_local", False)
                async with asyncio.timeout(LOCAL_PATIENCE_S if is_local else WORDS_PATIENCE_S):
                    found = await self._embedder.embed([words])
                self._last = words, read_vectors(found, 1)[0]
            except Exception as error:  # noqa: BLE001 - an embedder may raise anything; the search goes on by words
                self._tell(error)
                return b""
        return self._last[1]

    def _tell(self, error: Exception) -> None:
        later = "The next one tries again"
        if isinstance(error, TimeoutError):
            self._paused_until_s = monotonic() + PAUSE_S
            later = f"So do those of the next {PAUSE_S:.0f} seconds"
        _log.warning("this search goes by words and not by meaning (%s). %s", name_failure(error), later)


class TurnVectors:
    """The vectors of one owner's messages, by one embedder."""

    def __init__(self, store: Store, owner: str, embedder: Embedder) -> None:
        self._store, self._owner, self._embedder = store, owner, embedder
        self.secrets = KnownSecrets(store, owner)
        self.queries = QueryVectors(embedder)
        self._hasty_until_s = 0.0
        self._waiting = 0
        self._noted_s = 0.0
        self._task: asyncio.Task[int] | None = None
        self._lock = asyncio.Lock()
        self._hurry = asyncio.Event()
        self._scopes: dict[str, _Scope] = {}

    def note(self, messages: int) -> None:
        """Count stored messages. When there are enough, they are embedded in the background, as soon as no more are added."""
        self._waiting += messages
        self._noted_s = asyncio.get_running_loop().time()
        if self._waiting >= TOGETHER:
            self.begin_when_idle()

    def begin_when_idle(self) -> None:
        """Embed what waits in the background, when no message was added for a while, and with rests."""
        if self._task is None or self._task.done():
            self._waiting = 0
            self._task = asyncio.create_task(self._catch_up_when_idle())

    def begin(self) -> asyncio.Task[int]:
        """Embed what waits in the background, now and without rests."""
        self._hurry.set()
        if self._task is None or self._task.done():
            self._waiting = 0
            self._task = asyncio.create_task(self.catch_up())
        return self._task

    async def catch_up(self, *, is_asked: bool = False) -> int:
        """Embed the messages that have no vector, without rests, and return how many messages were seen. A failure of the embedder
        leaves them for the next time.

        Raises:
            ConfigError: somebody asked for it, and the embedder gives no vectors that can be used.
            UpstreamError: somebody asked for it, and the embedder failed.
            StoreError: somebody asked for it, and the store failed.
        """
        self._hurry.set()
        async with self._lock:
            self._hurry.set()
            return await self._embed_gaps(is_asked=is_asked)

    async def _catch_up_when_idle(self) -> int:
        clock = asyncio.get_running_loop().time
        latest_s = clock() + MOST_DELAY_S
        while (rest_s := min(self._noted_s + IDLE_S, latest_s) - clock()) > 0 and not self._hurry.is_set():
            await self._rest(rest_s)
        async with self._lock:
            return await self._embed_gaps()

    async def _rest(self, seconds: float) -> None:
        """Wait. A search that waits for the vectors ends the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _embed_gaps(self, *, is_asked: bool = False) -> int:
        seen, clock = 0, asyncio.get_running_loop().time
        try:
            tried = frozenset[TurnGap]()
            while gaps := await self._store.turn_gaps(self._owner, self._embedder.name, GAPS):
                if tried == (tried := frozenset(gaps)):
                    break  # nobody has stored anything
                # In another order than other processes, which have the same work to do.
                for gap in random.sample(gaps, len(gaps)):
                    known = await self.secrets.of(gap.conversation, gap.branch, gap.last)
                    while gap.first < gap.last:
                        last, begun_s = min(gap.last, gap.first + PAGE), clock()
                        stored = await self._embed(structs.replace(gap, last=last), known)
                        if not stored:
                            break  # another process was first: the gaps are read again
                        seen += stored
                        gap = structs.replace(gap, first=last)
                        await self._rest(RESTS * (clock() - begun_s))
                    if gap.first < gap.last:
                        break
        except Exception as error:
            if is_asked and isinstance(error, RefoldError):
                raise
            if is_asked:
                raise UpstreamError(
                    f"the embedder failed ({type(error).__name__})",
                    hint="what has a vector already is kept; messages without one are found by their words",
                ) from error
            # An embedder may raise anything; the messages wait for the next time.
            # A store that fails, or was closed, tells the one who adds messages.
            level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
            _log.log(
                level,
                "messages without a vector (%s). They are found by their words meanwhile",
                name_failure(error),
            )
        finally:
            self._hurry.clear()
        return seen

    async def close(self) -> None:
        """Stop the background work. What was not embedded is embedded the next time."""
        task, self._task = self._task, None
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait({task})

    async def _embed(self, gap: TurnGap, known: Collection[str]) -> int:
        """Embed the messages of a gap without the `known` secrets, and return how many messages it has; 0 if another program was
        first.
        """
        wider = structs.replace(gap, first=max(0, gap.first - 1))
        rows = await self._store.turn_messages(self._owner, wider)
        texts = await run_text_work(sum(len(row.body) for row in rows), _window_texts, rows, gap.first, known)
        async with asyncio.timeout(PATIENCE_S):
            found = await self._embedder.embed([text for _, text in texts]) if texts else []
        vectors = read_vectors(found, len(texts))
        kept = [(seq, vector) for (seq, _), vector in zip(texts, vectors, strict=True) if vector]
        codes, small = await asyncio.to_thread(pack, [vector for _, vector in kept])
        block = TurnBlock(
            branch=gap.branch, name=self._embedder.name, first=gap.first, last=gap.last,
            seqs=tuple(seq for seq, _ in kept), codes=codes, vectors=small,
        )  # fmt: skip
        return gap.last - gap.first if await self._store.put_turns(self._owner, block) else 0

    async def nearest(
        self, words: str, *, conversation: str, line: dict[str, int], limit: int = FUSED
    ) -> NearestMessages:
        """The messages that are nearest to some words; `line` restricts them to branches, each up to a number. None if the embedder
        fails.
        """
        vector = await self.queries.vector(words)
        if not vector:
            return NearestMessages()
        await self._wait_for_newest()
        scope = await self._read_codes(conversation)
        found = await run_text_work(scope.size, scope.nearest, vector, line)
        size = len(vector) // 4
        near = await self._store.turn_vectors(self._owner, [place for place, _, _ in found], size)
        kept = [one for one in found if len(near.get(one[0], b"")) == size]
        scores = cosines(vector, [near[place] for place, _, _ in kept])
        scored = sorted(zip(scores, kept, strict=True), key=lambda one: (-one[0], one[1][0]))[:limit]
        least = float(getattr(self._embedder, "least_message", self._embedder.least))
        messages = [(score, NearMessage(name, place, score)) for score, (_, name, place) in scored]
        return NearestMessages(
            [one for score, one in messages if score >= least],
            [one for score, one in messages if least > score >= LEAST_LIKE],
        )

    async def _wait_for_newest(self) -> None:
        """Wait for the vectors of the newest messages, unless a search did so in vain a moment ago."""
        is_patient = monotonic() >= self._hasty_until_s
        _, missing = await asyncio.wait({self.begin()}, timeout=SEARCH_PATIENCE_S if is_patient else 0.0)
        if missing and is_patient:
            self._hasty_until_s = monotonic() + PAUSE_S

    async def _read_codes(self, conversation: str) -> _Scope:
        """The signs of all vectors of a conversation, or of all; only what is new is read."""
        scope = self._scopes.pop(conversation, None) or _Scope()
        while page := await self._store.turn_codes(
            self._owner,
            self._embedder.name,
            conversation=conversation,
            after=scope.read_from(),
            limit=1_000 + OVERLAP,
        ):
            if not scope.take(page):
                break
        self._scopes[conversation] = scope  # the last one used
        while len(self._scopes) > 1 and sum(one.size for one in self._scopes.values()) > MOST_BYTES:
            del self._scopes[next(iter(self._scopes))]
        return scope


class NearMessage(Struct, frozen=True):
    """A message that is near to a query, with the cosine of their vectors."""

    conversation: str
    place: MessagePlace
    score: float


class NearestMessages(Struct, frozen=True):
    """The messages that are nearest to a query, each list best first."""

    near: Sequence[NearMessage] = ()
    """Near enough to be merged with the messages that have words of the query."""
    like: Sequence[NearMessage] = ()
    """Others, of which a few follow where the words find too little."""

    def likest(self, known: Collection[MessagePlace] = ()) -> list[NearMessage]:
        """The few to show beside those that are known: the best, and what is nearly as near."""
        others = [one for one in (*self.near, *self.like) if one.place not in known][:MOST_LIKE]
        return [one for one in others if one.score >= LIKE_SHARE * others[0].score]


class _Rows(Struct, frozen=True):
    """The signs of some blocks in one table."""

    rows: NDArray[Any]
    blocks: tuple[TurnCodes, ...]
    starts: tuple[int, ...]
    """The row of the first vector of each block."""


class _Scope:
    """The signs of the vectors that one search may look at."""

    def __init__(self) -> None:
        self._parts: list[_Rows] = []
        self._known: set[int] = set()
        self._last = 0

    @property
    def size(self) -> int:
        """A measure of the work: bytes."""
        return sum(part.rows.nbytes for part in self._parts)

    def read_from(self) -> int:
        return max(0, self._last - OVERLAP)

    def take(self, page: Sequence[TurnCodes]) -> bool:
        """Add blocks; False if all of them were known."""
        new = [one for one in page if one.id not in self._known]
        if not new:
            return False
        self._known.update(one.id for one in new)
        self._last = max(self._last, *(one.id for one in page))
        # The blocks of the last part are put together with the new ones, so that there are few parts.
        small = self._parts.pop().blocks if self._parts and len(self._parts[-1].blocks) < _PART else ()
        # An embedder may have changed its dimension under one name: vectors of another size are not compared.
        of_size = dict[int, list[TurnCodes]]()
        for one in (*small, *new):
            if one.seqs:
                of_size.setdefault(len(one.codes) // len(one.seqs), []).append(one)
        self._parts.extend(map(_table, of_size.values()))
        while self.size > MOST_BYTES and len(self._parts) > 1:
            del self._parts[0]
        return True

    def nearest(self, vector: bytes, line: dict[str, int]) -> list[tuple[tuple[int, int], str, MessagePlace]]:
        """The messages with the most signs in common: block and position, conversation, branch and number."""
        from bisect import bisect_right

        size = (len(vector) // 4 + 7) // 8
        parts = [part for part in self._parts if part.rows.shape[1] * part.rows.itemsize == size]
        limit = CANDIDATES * (5 if line else 1)  # of other branches may be many
        found = list[tuple[tuple[int, int], str, MessagePlace]]()
        for at, row in nearest_of(vector, [part.rows for part in parts], limit):
            part = parts[at]
            where = bisect_right(part.starts, row) - 1
            block, place = part.blocks[where], row - part.starts[where]
            seq = block.seqs[place]
            if not line or seq < line.get(block.branch, 0):
                found.append(((block.id, place), block.conversation, (block.branch, seq)))
        return found[:CANDIDATES]


_PART = 2_000
"""Blocks of a part: a new block is put together with at most so many."""


def _table(blocks: Sequence[TurnCodes]) -> _Rows:
    starts, count = list[int](), 0
    for one in blocks:
        starts.append(count)
        count += len(one.seqs)
    return _Rows(code_rows(b"".join(one.codes for one in blocks), count), tuple(blocks), tuple(starts))


def _window_texts(rows: list[StoredMessage], first: int, known: Collection[str]) -> list[tuple[int, str]]:
    """The texts of messages from a number on, without secrets, each after the end of the message before it. Takes each message
    out of the list, so that its bytes, which may be megabytes, are freed before its text is searched.
    """
    texts, before = list[tuple[int, str]](), ""
    while rows:
        seq, text = rows[0].seq, _text_of(rows.pop(0))
        # Before it is cut: half of a secret would not be recognised.
        text = without_secrets(text, known) if text else ""
        if seq >= first and text and not text.isspace():
            texts.append((seq, window_text(before, text)))
        before = text
    return texts


def _text_of(row: StoredMessage) -> str:
    try:
        return read_body(row.body, row.format).text if row.body else ""
    except Damaged:
        return ""


async def find_messages(
    store: Store,
    owner: str,
    turns: TurnVectors | None,
    words: str,
    *,
    conversation: str = "",
    branch: Head | None = None,
    limit: int = 20,
) -> list[SearchHit]:
    """Messages by words and, if there is an embedder, by meaning, best first.

    Meaning takes part in a query of three words or more, and in one without fields whose words no message has all of. It takes no part
    where a phrase must occur or must not. A message that has all of the words comes before every other, and messages that are only
    the nearest come last.
    """
    query, most = parse_query(words), limit if turns is None else max(limit, FUSED)
    by_words = store.search(owner, words, conversation=conversation, branch=branch, limit=most)
    if turns is None or not has_meaning(query):
        return (await by_words)[:limit]
    by_meaning = near_messages(store, owner, turns, words, conversation=conversation, branch=branch)
    if query.takes_neighbours:
        hits, found = await _both(by_words, by_meaning)
    else:
        hits, found = await by_words, NearestMessages()
        if _has_room(query, hits, limit):
            found = await by_meaning
        else:
            by_meaning.close()
            return hits[:limit]
    known = {(hit.branch, hit.seq): hit.conversation for hit in hits}
    names = {one.place: one.conversation for one in (*found.near, *found.like)} | known
    near = found.near if query.takes_neighbours or not hits else ()
    ranked = [((hit.branch, hit.seq), hit.score) for hit in hits]
    if near:
        whole = [(hit.branch, hit.seq) for hit in hits if hit.is_whole]
        ranked = fuse([*known], [one.place for one in near], whole)
    ranked = follow(ranked, [one.place for one in found.likest({place for place, _ in ranked})])
    return [
        SearchHit(conversation=names[place], branch=place[0], seq=place[1], score=score)
        for place, score in ranked[:limit]
    ]


async def near_messages(
    store: Store,
    owner: str,
    turns: TurnVectors,
    words: str,
    *,
    conversation: str = "",
    branch: Head | None = None,
) -> NearestMessages:
    """The messages that are nearest to a query and that its fields allow."""
    query = parse_query(words)
    if not query.looks_in(conversation):
        return NearestMessages()
    line = await _line(store, branch) if branch else {}
    asked = asked_words(query, words)
    found = await turns.nearest(asked, conversation=conversation or query.conversation, line=line)
    like = found.like if len(query.terms) > 1 else ()  # one word is a name or a number as often as a subject
    if query.is_dated or query.role:
        near, like = [await _matching(store, owner, query, some) for some in (found.near, like)]
        return NearestMessages(near, like)
    return NearestMessages(found.near, like)


def name_failure(error: Exception) -> str:
    """What to log of a failed embedder: our own words about its answer, and no others, which may have content."""
    return f"{error.message}; {error.hint}" if isinstance(error, ConfigError) else type(error).__name__


def valid_text(words: str) -> str:
    """Some words without lone surrogates, which no embedder takes."""
    return words.encode("utf-8", "replace").decode()


def asked_words(query: Query, words: str) -> str:
    """The words of which a search takes the meaning: without the fields of the query."""
    return " ".join(" ".join(term.phrases[0]) for term in query.terms) if query.has_fields else words


def has_meaning(query: Query) -> bool:
    """Whether meaning may take part in a search: not where a phrase must occur or must not, nor where there are no words."""
    return not (query.required or query.excluded or query.spans) and bool(query.terms)


def _has_room(query: Query, hits: Sequence[SearchHit], limit: int) -> bool:
    """Whether messages that are near in meaning are added to these matches of a query of a word or two, which wants the messages that
    hold them.
    """
    if not hits:
        return not (query.is_dated or query.role)
    return len(query.terms) > 1 and len(hits) < limit and not hits[0].is_whole


async def _both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Wait for two results that are made at the same time. If one fails, the other is not waited for."""
    beside = asyncio.create_task(other)
    try:
        return await one, await beside
    finally:
        beside.cancel()


async def _line(store: Store, head: Head) -> dict[str, int]:
    """The branches that hold the messages of one, each with the number at which its part ends."""
    line, last, one = dict[str, int](), 1 << 62, head
    while True:
        line[one.branch] = last
        base = await store.head(one.owner, one.conversation, one.base) if one.base else None
        if base is None:
            return line
        last, one = min(last, one.base_seq), base


async def _matching(store: Store, owner: str, query: Query, near: Sequence[NearMessage]) -> list[NearMessage]:
    """Those of the messages that the fields of a query allow."""
    kept = set[MessagePlace]()
    for name, branch in {(one.conversation, one.place[0]) for one in near}:
        head = await store.head(owner, name, branch)
        numbers = [one.place[1] for one in near if one.place[0] == branch]
        kept |= {
            (branch, row.seq)
            for row in (await store.pick(head, numbers) if head else ())
            if query.after <= row.at < query.before and query.role in {"", row.role}
        }
    return [one for one in near if one.place in kept]


def is_able() -> bool:
    """Whether vectors of messages can be compared here: numpy is installed."""
    return find_spec("numpy") is not None


# The secrets of stored conversations.

SECRETS_PAGE = 64
"""Messages that are read and searched together."""
MOST_BRANCHES = 1_000
"""Branches whose secrets stay in memory. Most have none."""


class _SearchedBranch(Struct):
    """The secrets of the messages that a branch holds itself."""

    session: str
    """The session that the branch began with. A conversation that is deleted and begun again has the same branch, and another session."""
    last: int
    """The number of the first message that was not searched."""
    found: dict[int, frozenset[str]]
    """The secrets by the number of their message."""


class KnownSecrets:
    """The secrets of one owner's branches. Each message is read and searched once, as long as its branch stays in memory."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store, self._owner = store, owner
        self._branches: dict[str, _SearchedBranch] = {}

    async def of(self, conversation: str, branch: str, last: int) -> frozenset[str]:
        """The secrets of a branch up to, not including, the message `last`, with those of the messages that it shares."""
        values, name = set[str](), branch
        while name and (head := await self._store.head(self._owner, conversation, name)) is not None:
            sessions = await self._store.holding(self._owner, [(name, head.base_seq)])
            began = sessions[0].id if sessions else ""
            searched = self._branches.pop(name, None)
            if searched is None or searched.session != began:
                searched = _SearchedBranch(began, head.base_seq, {})
            self._branches[name] = searched  # the last one used
            while searched.last < last:
                first, end = searched.last, min(searched.last + SECRETS_PAGE, last)
                rows = await self._store.messages(head, first, end)
                size = sum(len(row.body) for row in rows)
                searched.found |= await run_text_work(size, _values_by_number, rows)
                searched.last = max(searched.last, end)  # another task may search the same branch
            values.update(*(found for seq, found in searched.found.items() if seq < last))
            name, last = head.base, min(last, head.base_seq)
        while len(self._branches) > MOST_BRANCHES:
            del self._branches[next(iter(self._branches))]
        return frozenset(values)


def _values_by_number(rows: Sequence[StoredMessage]) -> dict[int, frozenset[str]]:
    found = dict[int, frozenset[str]]()
    for row in rows:
        try:
            values = values_of(searchable(read_body(row.body, row.format))) if row.body else frozenset[str]()
        except Damaged:
            continue
        if values:
            found[row.seq] = values
    return found


def without_secrets(text: str, known: Collection[str]) -> str:
    """Return a text with placeholders for its secrets; `known` are those of its conversation."""
    return redact(text, known={*known, *values_of(user(text))}) if holds_secret(text, known) else text


# Sessions.

SESSION_PATIENCE_S = 3.0
"""Timeout for vectors: a table of words takes milliseconds and a provider half a second, and the conversation
waits meanwhile."""
MOST_AT_ONCE = 128
"""Sessions that get a missing vector in one sweep: so many take a fraction of a second."""
SESSION_PAGE = 32
"""Texts in one request to the embedder: few enough for every provider."""
NOTHING: frozenset[str] = frozenset()
_NO_VECTOR = (
    "sessions without a vector: %d (%s). They are found by their words meanwhile, and get one when a program opens"
    " the store the next time"
)


class Meaning:
    """Embeds summaries and search words. The embedder may fail, or be missing: then search works by words."""

    def __init__(
        self, embedder: Embedder | None = None, *, turns: TurnVectors | None = None, is_quiet: bool = False
    ) -> None:
        self._embedder = embedder
        self.turns = turns
        """The vectors of messages; None if there is no embedder."""
        self._queries = turns.queries if turns else QueryVectors(embedder) if embedder else None
        self._is_quiet = is_quiet
        """True for the installed embedder in a store in memory: nobody chose it, and no program opens the store again, so
        a missing vector is no warning."""
        self._last: tuple[list[str], list[bytes]] = [], []
        """Cache of the last texts and vectors: after a conflict the same commit is tried again, with the same
        summary."""

    @property
    def name(self) -> str:
        return self._embedder.name if self._embedder else ""

    @property
    def least(self) -> float:
        return self._embedder.least if self._embedder else 1.0

    async def embedded(self, batch: Batch, known: Collection[str] = NOTHING) -> Batch:
        """Return the batch with the vectors of the sessions that it closes; `known` are the secrets of the
        conversation.
        """
        closing = [
            (change.summarises or change.compaction.base, change.written)
            for change in batch.changes
            if change.written is not None
            and (change.summarises or (change.opens is not None and change.compaction.kind == "summarise"))
        ]
        embeddings = await self.embed(closing, batch.at, known)
        return structs.replace(batch, embeddings=embeddings) if embeddings else batch

    async def embed(
        self, closing: Sequence[tuple[str, StoredSummary]], at: float, known: Collection[str] = NOTHING
    ) -> tuple[Embedding, ...]:
        """Return the vectors of sessions, given with their summaries; none if the embedder fails."""
        if self._embedder is None or not closing:
            return ()
        texts = [written.summary.text for _, written in closing]
        try:
            vectors = await self._vectors(
                await run_text_work(sum(map(len, texts)), _without_secrets, texts, known)
            )
        except Exception as error:  # noqa: BLE001 - an embedder may raise anything; the conversation goes on
            level = logging.DEBUG if self._is_quiet else logging.WARNING
            _log.log(level, _NO_VECTOR, len(texts), name_failure(error))
            return ()
        return tuple(
            Embedding(session=session, summary=written.id, name=self.name, vector=vector, at=at)
            for (session, written), vector in zip(closing, vectors, strict=False)
        )

    @property
    def problem(self) -> str:
        """Why searches go by words alone for now; empty if they do not."""
        return self._queries.problem if self._queries else ""

    async def embed_words(self, words: str) -> bytes:
        """Return the vector of search words; empty if the embedder fails."""
        return await self._queries.vector(words) if self._queries else b""

    async def _vectors(self, texts: list[str]) -> list[bytes]:
        """Return a vector for each text."""
        if self._embedder is not None and texts != self._last[0]:
            async with asyncio.timeout(SESSION_PATIENCE_S):
                found = await self._embedder.embed(texts)
            self._last = texts, read_vectors(found, len(texts))
        return self._last[1]

    async def catch_up(self, store: Store, owner: str, at: float) -> int:
        """Embed sessions that were closed without a vector, the newest first, and return how many got one."""
        done = 0
        secrets = self.turns.secrets if self.turns else KnownSecrets(store, owner)
        lacking = await store.unembedded(owner, self.name, MOST_AT_ONCE) if self._embedder else []
        for first in range(0, len(lacking), SESSION_PAGE):
            page = lacking[first : first + SESSION_PAGE]
            written = {
                one.id: one for one in await readable_summaries(store, owner, [row.summary for row in page])
            }
            closed = [(row.id, written[row.summary]) for row in page if row.summary in written]
            known = await _secrets_of(secrets, store, owner, page)
            embeddings = await self.embed(closed, at, known)
            if closed and not embeddings:
                break
            done += await store.embed(owner, embeddings)
        return done


def _without_secrets(texts: Sequence[str], known: Collection[str]) -> list[str]:
    return [without_secrets(text, known) for text in texts]


async def _secrets_of(secrets: KnownSecrets, store: Store, owner: str, closed: Sequence[Session]) -> set[str]:
    """Return the secrets of the conversations of some sessions, up to the end of each."""
    known = set[str]()
    for one in closed:
        for conversation, _ in await store.find_sessions(owner, one.id, 1):
            known |= await secrets.of(conversation, one.branch, one.last or 0)
    return known


SHORTEST_ID = 6
"""The shortest prefix that names a session: a shorter one is more likely a word."""
SESSIONS = 100
"""Sessions that are taken by words: more than anybody looks at, so that those in both lists can rise."""
NEAREST = 20
"""Sessions that are taken by meaning: twice as many as are shown, so that those in both lists can rise."""
DAMPING = 10
"""How slowly a share shrinks with its rank. The best of 24 ways to merge, with static vectors, 1,070
questions and 182 sessions. On questions that were not used for the choice, the right session is among the
first ten for 91 %, and for 83 % by words alone; it is the first one a little less often."""
MOST_LISTED = 1 << 31
"""Upper bound of a limit: databases have smaller integers than Python."""

Named = tuple[str, Session]


async def find_sessions(
    store: Store, owner: str, meaning: Meaning, words: str, *, name: str = "", limit: int = 10
) -> list[Named]:
    """Return sessions, each with its conversation, best first: one that is named by its id, then those that
    match by words and meaning.
    """
    ids = await store.find_sessions(owner, words, limit) if _is_id(words) else []
    named = [one for one in ids if name in {"", one[0]}]
    hits = await store.search_sessions(owner, words, conversation=name, limit=SESSIONS)
    query, near_summaries = parse_query(words), await _by_meaning(store, owner, meaning, words, name)
    if query.has_conditions:  # a summary does not say whether the session meets them; its words do
        meeting = {hit.session.id for hit in hits}
        near_summaries = [one for one in near_summaries if one[1].id in meeting]
    ranked = merged([(hit.conversation, hit.session) for hit in hits], near_summaries)
    if (
        meaning.turns
        and has_meaning(query)
        and (query.takes_neighbours or not (hits or query.is_dated or query.role))
    ):
        found_near = await near_messages(store, owner, meaning.turns, words, conversation=name)
        if near := found_near.near or ([] if hits else found_near.likest()):
            ranked = [*await _with_near(store, owner, hits, near), *ranked]
    found = dict[str, Named]()
    for place, one in (*named, *ranked):
        found.setdefault(one.id, (place, one))
    return list(found.values())[:limit]


async def _with_near(
    store: Store, owner: str, hits: Sequence[SessionHit], near: Sequence[NearMessage]
) -> list[Named]:
    """Return sessions by their words and by the messages that are nearest in meaning."""
    known = {hit.session.id: (hit.conversation, hit.session) for hit in hits}
    messages, of_branch = list[tuple[str, float]](), dict[str, dict[str, Session]]()
    for session in await store.holding(owner, [one.place for one in near]):
        of_branch.setdefault(session.branch, {})[session.id] = session
    for one in near:
        branch, seq = one.place
        holder = next((session for session in of_branch.get(branch, {}).values() if session.holds(seq)), None)
        if holder is not None:
            known.setdefault(holder.id, (one.conversation, holder))
            messages.append((holder.id, one.score))
    return [known[which] for which in fuse_sessions({hit.session.id: hit.score for hit in hits}, messages)]


async def _by_meaning(store: Store, owner: str, meaning: Meaning, words: str, name: str) -> list[Named]:
    """Return closed sessions whose summaries are close in meaning; none for a query without words."""
    query = parse_query(words)
    if query.spans or not query.terms or not query.looks_in(name):
        return []
    vector = await meaning.embed_words(asked_words(query, words))
    if not vector:
        return []
    return await store.nearest(
        owner,
        meaning.name,
        vector,
        conversation=name or query.conversation,
        limit=NEAREST,
        least=meaning.least,
    )


def merged(*lists: Sequence[Named]) -> list[Named]:
    """Merge ranked lists (reciprocal rank fusion). Of two sessions with equal shares, the one of the earlier
    list comes first.
    """
    shares: dict[str, float] = {}
    known: dict[str, Named] = {}
    for found in lists:
        once = {one.id: (place, one) for place, one in found}
        for rank, which in enumerate(once):
            shares[which] = shares.get(which, 0.0) + 1 / (DAMPING + rank)
        known = once | known
    return [known[which] for which in sorted(shares, key=shares.__getitem__, reverse=True)]


def _is_id(words: str) -> bool:
    return len(words) >= SHORTEST_ID and words.isalnum()


def checked(limit: object) -> int:
    """Check a limit, and cap it to a number that every store takes.

    Raises:
        ConfigError: it is not a number of entries.
    """
    if not isinstance(limit, int) or limit < 0:
        raise ConfigError("a limit is a whole number, 0 or more", hint="leave it out for the usual one")
    return min(limit, MOST_LISTED)
