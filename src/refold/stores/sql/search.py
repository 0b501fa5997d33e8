"""Search by words and by vectors, and the vectors of closed sessions and of messages.

The statements count the terms of a query in messages; `refold.core.search.rank` ranks them. A vector belongs to one summary: it is stored only for a closed session that has this
summary, and deleted when the session is opened again, so that no search finds a session by a summary it no longer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add, itemgetter

from msgspec import Struct, json, structs

from refold.core.search.query import Phrase, Query, Term, parse_query
from refold.core.search.rank import Match, MessagePlace
from refold.ports.records import (
    Embedding,
    Head,
    SearchHit,
    Session,
    SessionHit,
    StoredMessage,
    TurnBlock,
    TurnCodes,
    TurnGap,
)
from refold.stores.search import (
    CONSIDERED,
    DatedMessage,
    Nearest,
    find_matches,
    find_messages,
    find_newest,
    rank_found,
    within,
)
from refold.stores.sql import rows
from refold.stores.sql.conversations import line
from refold.stores.sql.queries import EVERYTHING, SqlDialect, TableRow, Transaction

PAGE = 1_000
"""Vectors that are in memory at a time: one to six megabytes."""


class _Scope(Struct, frozen=True):
    """Where to search: all conversations of an owner, one of them, or one branch with what it shares with its bases."""

    owner: str
    conversation: str = ""
    line: tuple[tuple[str, int], ...] = ()
    """The branches to search, each with the number at which its range ends; empty for all branches."""


def search(
    dialect: SqlDialect, owner: str, query: str, conversation: str, limit: int, branch: Head | None = None
) -> Transaction[list[SearchHit]]:
    parsed = parse_query(query)
    scoped = yield from _scope(parsed, owner, conversation, branch)
    return (yield from find_messages(parsed, _Matches(dialect, parsed, scoped), limit)) if scoped else []


def search_sessions(
    dialect: SqlDialect, owner: str, query: str, conversation: str, limit: int
) -> Transaction[list[SessionHit]]:
    parsed = parse_query(query)
    scoped = yield from _scope(parsed, owner, conversation, None)
    if scoped is None:
        return []
    source = _Matches(dialect, parsed, scoped)
    matched = yield from find_matches(parsed, source)
    newest = yield from find_newest(parsed, source, CONSIDERED)
    branches = {one.branch: one.conversation for one in matched.matches}
    branches |= {one.branch: one.conversation for one in newest}
    if not branches:
        return []
    found = yield "list_live_sessions", [{"owner": owner, "branch": branch} for branch in branches]
    sessions = {one.id: one for one in map(rows.to_session, found)}
    of_branch = dict[str, list[Session]]()
    for one in sessions.values():
        of_branch.setdefault(one.branch, []).append(one)
    best = [(sessions[which], score) for which, score in rank_found(matched, newest, of_branch)[:limit]]
    return [SessionHit(conversation=branches[one.branch], session=one, score=score) for one, score in best]


def _scope(query: Query, owner: str, conversation: str, branch: Head | None) -> Transaction[_Scope | None]:
    """The scope of a query; None if it names another conversation than the caller, or has nothing to search for."""
    if not query.looks_in(conversation):
        return None
    links = (yield from line(branch, EVERYTHING)) if branch else []
    return _Scope(owner, conversation or query.conversation, tuple((link, end) for link, _, end in links))


class _Matches:
    """The matches of one search, by the statements of one database."""

    def __init__(self, dialect: SqlDialect, query: Query, scoped: _Scope) -> None:
        self._dialect, self._query, self._scope = dialect, query, scoped

    def count(self, terms: Sequence[Term]) -> Transaction[list[int]]:
        if not terms:
            return []
        asked = [
            {
                **self._where(),
                "match": self._spell([term]),
                "matches": self._spell_each([term]),
                "considered": CONSIDERED,
            }
            for term in terms
        ]
        found = yield "count_matches", asked
        # The first so many were counted. As many are in every other part of the index of the same size.
        return [
            sum(others) + (count if count < CONSIDERED or not last else max(count, count * newest // last))
            for count, last, newest, *others in found
        ]

    def size(self) -> Transaction[int]:
        if self._scope.line:
            found = yield "get_next_seq", {"owner": self._scope.owner, "branch": self._scope.line[0][0]}
        else:
            place = {"owner": self._scope.owner, "conversation": self._scope.conversation}
            found = yield "count_searched", {**place, "limit": CONSIDERED}
        return found[0][0] if found else 0

    def find(self, chosen: Sequence[Term], others: Sequence[Term]) -> Transaction[list[Match]]:
        groups = [(phrase, place) for place, term in enumerate((*chosen, *others)) for phrase in term.phrases]
        choosing = {phrase for term in chosen for phrase in term.phrases}

        def times(phrase: Phrase) -> int:  # how often the query that `spell_match` gives has it
            return bool(others) + (phrase in choosing) + self._query.required.count(phrase)

        asked = {
            **self._where(),
            "match": self._spell(chosen, others),
            "groups": _spell([[phrase, place, times(phrase)] for phrase, place in groups]),
            "words": _spell(sorted({word for phrase, _ in groups for word in phrase})),
            "matches": self._spell_each(chosen),
            "match_any": self._spell_phrases([phrase for phrase, _ in groups]),
            "groups_in_part": _spell([[phrase, place, 1] for phrase, place in groups]),
            "considered": CONSIDERED,
            "is_filtered": self._query.is_dated or bool(self._query.role),
            "after": max(self._query.after, -_FAR),
            "before": min(self._query.before, _FAR),
            "role": self._query.role,
            "names_date": bool(self._query.dates),
        }
        found = yield "search_messages", asked
        near, terms = self._query.nearness, len(chosen) + len(others)
        if self._dialect == "sqlite":
            return [_read_counts(row, terms, near) for row in _add_parts(found)]
        return count_positions(found, groups, terms, near)

    def newest(self, spans: Sequence[tuple[float, float]], limit: int) -> Transaction[list[DatedMessage]]:
        asked = [
            {
                **self._where(), "role": self._query.role, "after": max(after, -_FAR), "before": min(before, _FAR), "limit": limit,
            }
            for after, before in spans
        ]  # fmt: skip
        found = yield "list_newest", asked
        return [DatedMessage(*row) for row in found]

    def findable(self, places: Sequence[MessagePlace]) -> Transaction[set[MessagePlace]]:
        ends = dict(self._scope.line)
        within_line = [one for one in places if not ends or one[1] < ends.get(one[0], 0)]
        if not within_line:
            return set()
        filtered = self._query.is_dated or bool(self._query.role)
        asked = [
            {
                "owner": self._scope.owner, "branch": branch, "seq": seq, "is_filtered": filtered,
                "after": max(self._query.after, -_FAR), "before": min(self._query.before, _FAR),
                "role": self._query.role,
            }
            for branch, seq in within_line
        ]  # fmt: skip
        found = yield "list_findable", asked
        return {(branch, seq) for branch, seq in found}

    def _where(self) -> dict[str, object]:
        scoped = self._scope
        return {
            "owner": scoped.owner, "conversation": scoped.conversation, "line": _spell(scoped.line),
            "excluded": _spell_excluded(self._dialect, self._query),
        }  # fmt: skip

    def _spell_each(self, chosen: Sequence[Term]) -> str:
        """The conditions of a search, each by itself: in SQLite they may be met in several rows of one message."""
        wanted = [
            [phrase for term in chosen for phrase in term.phrases],
            *([one] for one in self._query.required),
        ]
        return _spell([self._spell_phrases(one) for one in wanted])

    def _spell_phrases(self, phrases: Sequence[Phrase]) -> str:
        mark = within(self._scope.owner, self._scope.conversation)
        return f"scope : {mark} AND text : ({spell_any(self._dialect, phrases)})"

    def _spell(self, chosen: Sequence[Term], others: Sequence[Term] = ()) -> str:
        return spell_match(
            self._dialect, within(self._scope.owner, self._scope.conversation), self._query, chosen, others
        )


_FAR = 1e15
"""Seconds beyond every date: databases have no infinite parameters."""


def spell_match(
    dialect: SqlDialect, mark: str, query: Query, chosen: Sequence[Term], others: Sequence[Term] = ()
) -> str:
    """A search in a database's syntax. Words have only letters and digits, so no word can be taken for syntax."""
    wanted = [spell_any(dialect, [phrase for term in chosen for phrase in term.phrases])]
    wanted += [spell_any(dialect, [phrase]) for phrase in query.required]
    excluded = spell_any(dialect, query.excluded)
    if dialect == "sqlite":
        if others:  # these choose no message, but SQLite counts only what is in the query
            wanted.append(spell_any(dialect, [one for term in (*chosen, *others) for one in term.phrases]))
        text = " AND ".join(f"({one})" for one in wanted)
        return f"scope : {mark} AND text : ({text})"
    text = " & ".join((mark, *(f"({one})" for one in wanted)))
    return f"{text} & !({excluded})" if excluded else text


def _spell_excluded(dialect: SqlDialect, query: Query) -> str:
    """The messages that a search leaves out; empty if there are none. In SQLite they are a search of their own: beside a NOT, FTS5
    loses occurrences of the other words in some rows when it reads the newest first.
    """
    excluded = spell_any(dialect, query.excluded)
    return f"text : ({excluded})" if excluded and dialect == "sqlite" else excluded


def spell_any(dialect: SqlDialect, phrases: Sequence[Phrase]) -> str:
    distinct = dict.fromkeys(phrases)
    if dialect == "sqlite":
        return " OR ".join(f'"{" ".join(phrase)}"' for phrase in distinct)
    return " | ".join(f"({' <-> '.join(phrase)})" for phrase in distinct)


def _spell(values: Sequence[object]) -> str:
    return json.encode(values).decode()


def _add_parts(found: Sequence[TableRow]) -> list[TableRow]:
    """The newest of the messages that match. The counts of one with several rows are added up."""
    added = dict[int, TableRow]()
    for row in found:
        *place, held, at, number = row
        if number in added:
            length, *counts = map(int, held.split())
            before = map(int, added[number][3].split()[1:])
            added[number] = (*place, " ".join(map(str, (length, *map(add, before, counts)))), at, number)
        else:
            added[number] = row
    return sorted(added.values(), key=itemgetter(5), reverse=True)[:CONSIDERED]


def _read_counts(row: TableRow, terms: int, nearness: Callable[[float], float]) -> Match:
    conversation, branch, seq, held, at, _ = row
    length, *counts = map(int, held.split())
    assert len(counts) == terms
    return Match(conversation, branch, seq, length, tuple(counts), nearness(at))


def count_positions(
    found: Sequence[TableRow],
    groups: Sequence[tuple[Phrase, int]],
    terms: int,
    nearness: Callable[[float], float],
) -> list[Match]:
    """Matches from the positions of words. A long message has several rows, one for each part of it."""
    # By their first word: a misspelt word stands for hundreds of others, and a message has few of them.
    beginning = dict[str, list[tuple[Phrase, int]]]()
    for phrase, place in groups:
        beginning.setdefault(phrase[0], []).append((phrase, place))
    held = dict[tuple[str, str, int, float], tuple[int, list[int]]]()
    for conversation, branch, seq, length, positions, at in found:
        key = conversation, branch, seq, at
        before, counts = held.get(key, (0, [0] * terms))
        places = _POSITIONS.decode(positions) if positions else {}
        for word, where in places.items():
            for phrase, place in beginning.get(word, ()):
                counts[place] += len(where) if len(phrase) == 1 else _count_phrase(phrase, places)
        held[key] = before + length, counts
    return [
        Match(conversation, branch, seq, length, tuple(counts), nearness(at))
        for (conversation, branch, seq, at), (length, counts) in held.items()
    ]


_POSITIONS = json.Decoder(dict[str, list[int]])


def _count_phrase(phrase: Phrase, places: Mapping[str, Sequence[int]]) -> int:
    if not all(word in places for word in phrase):
        return 0
    first, *rest = (set(places[word]) for word in phrase)
    return sum(all(one + gap in other for gap, other in enumerate(rest, 1)) for one in first)


def embed(owner: str, embeddings: Sequence[Embedding]) -> Transaction[int]:
    if not embeddings:
        return 0
    return len((yield "put_embedding", [rows.of_embedding(owner, one) for one in embeddings]))


def forget(owner: str, session: str) -> Transaction[None]:
    yield "delete_embeddings", {"owner": owner, "session": session}


def embeddings(owner: str, sessions: Sequence[str]) -> Transaction[list[Embedding]]:
    if not sessions:
        return []
    found = yield "get_embeddings", [{"owner": owner, "session": which} for which in sessions]
    return [rows.to_embedding(row) for row in found]


def unembedded(owner: str, name: str, limit: int = 100) -> Transaction[list[Session]]:
    found = yield "list_unembedded", {"owner": owner, "name": name, "limit": limit}
    return [rows.to_session(row) for row in found]


def nearest(
    owner: str,
    name: str,
    vector: bytes,
    *,
    conversation: str = "",
    limit: int = 20,
    least: float = -1.0,
) -> Transaction[list[tuple[str, Session]]]:
    statement = "list_embeddings" if conversation else "list_owner_embeddings"
    asked = {"owner": owner, "name": name, "conversation": conversation, "limit": PAGE}
    found, after = Nearest[tuple[str, str]](vector, limit, least), -1
    while page := (yield statement, {**asked, "after": after}):
        found.take(((place, which), other) for _, place, which, other in page)
        after = page[-1][0]
    if not found.best:
        return []
    best = {which: place for place, which in found.best}
    sessions = yield "get_session", [{"owner": owner, "id": which} for which in best]
    return [(best[one.id], one) for one in map(rows.to_session, sessions)]


def turn_gaps(owner: str, name: str, limit: int = 100) -> Transaction[list[TurnGap]]:
    found = yield "list_turn_gaps", {"owner": owner, "name": name, "limit": limit}
    return [TurnGap(*row) for row in found]


def turn_messages(owner: str, gap: TurnGap) -> Transaction[list[StoredMessage]]:
    found = yield "list_turn_messages", {"owner": owner, **structs.asdict(gap)}
    return [
        StoredMessage(seq=seq, role=role, format=wire, body=bytes(body)) for seq, role, wire, body in found
    ]


def put_turns(owner: str, block: TurnBlock) -> Transaction[bool]:
    # Of two programs that write at the same time, both begin at the same number, and the unique key refuses one.
    row = {"owner": owner, **structs.asdict(block), "seqs": _spell(block.seqs)}
    return bool((yield "put_turns", row))


def turn_codes(
    owner: str, name: str, *, conversation: str = "", after: int = 0, limit: int = 1_000
) -> Transaction[list[TurnCodes]]:
    asked = {"owner": owner, "name": name, "conversation": conversation, "after": after, "limit": limit}
    found = yield "list_turn_codes" if conversation else "list_owner_turn_codes", asked
    return [
        TurnCodes(which, place, branch, json.decode(seqs, type=tuple[int, ...]), bytes(codes))
        for which, place, branch, seqs, codes in found
    ]


def turn_vectors(
    owner: str, places: Sequence[tuple[int, int]], size: int
) -> Transaction[dict[tuple[int, int], bytes]]:
    found = yield "list_turn_vectors", {"owner": owner, "places": _spell(places), "size": size}
    return {(which, at): bytes(vector) for which, at, vector in found}
