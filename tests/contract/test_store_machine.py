"""The same random script on every store: whatever happens, in whatever order, all of them give the same answers.

Names are few and times small, so that scripts keep running into what is there already: taken names, stale heads, lost claims,
sessions that were taken back, conversations that were deleted in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from refold.model.errors import StoreError
from refold.ports.records import Batch, Call, Head, InstalledCompaction, Session, StoredMessage
from refold.ports.store import Store
from tests.contract.stores import StoreSet
from tests.contract.talks import (
    ANNA,
    BORIS,
    arrival,
    call,
    embedding,
    first_session,
    fold,
    message,
    messages,
    new_head,
    next_session,
    planned,
    reduce,
    summary,
    written,
)

WORDS = st.sampled_from(["storm", "sea", "storm at sea", "风暴", "calm", ""])
KEYS = st.sampled_from(["", "", "", "k1", "k2"])
TIMES = st.integers(min_value=0, max_value=6).map(float)
PLACES = st.integers(min_value=0, max_value=12)
PLANS = st.sampled_from(["p1", "p2"])
HOLDERS = st.sampled_from(["me", "you", ""])
ENDS = st.sampled_from(["failed", "superseded", "planned"])
NEAR = embedding("", "", 1.0, 2.0).vector
Question = Callable[[Store], Awaitable[Any]]


class Script(RuleBasedStateMachine):
    """What happens to conversations, told to several stores at once."""

    stores: StoreSet
    compare_every = 8
    """Asking everything takes longer than doing something: every answer to an act is compared at once, the rest now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opened = self.runner.run(self.stores.open())
        self.heads: list[Head] = []
        self.branches: dict[tuple[str, str], Head] = {}
        self.steps = 0

    def teardown(self) -> None:
        try:
            self.compare_everything()
        finally:
            self.runner.run(self.stores.close(self.opened))
            self.runner.close()

    def ask(self, question: Question) -> Any:
        """The one answer that all stores give."""
        answers = [self.runner.run(_answer(question, store)) for store in self.opened]
        assert all(answer == answers[0] for answer in answers), answers
        return answers[0]

    def act(self, question: Question) -> None:
        answer = self.ask(question)
        if isinstance(answer, Head):
            self.heads.append(answer)
            self.branches[answer.owner, answer.branch] = answer

    def fresh(self, head: Head) -> Head:
        found = self.ask(lambda store: store.head(head.owner, head.conversation, head.branch))
        return found or head

    def commit(self, data: st.DataObject, make: Callable[[Head], Batch]) -> None:
        """Mostly from where a branch is, now and then from where it was."""
        head = self.draw_head(data)
        batch = make(head)
        self.act(lambda store: store.commit(head, batch))

    def draw_head(self, data: st.DataObject) -> Head:
        newest = data.draw(st.integers(0, 7))
        return data.draw(st.sampled_from(list(self.branches.values()) if newest else self.heads))

    @initialize(said=st.lists(WORDS, min_size=2, max_size=6))
    def begin(self, said: list[str]) -> None:
        """Without a few messages nothing that follows would mean much."""
        for owner in (ANNA, BORIS):
            self.create(owner, "one", "main", 1.0)
            head = self.heads[-1]
            batch = Batch(at=1.0, messages=messages(head, *said))
            self.act(lambda store, head=head, batch=batch: store.commit(head, batch))

    def create(self, owner: str, conversation: str, name: str, at: float) -> None:
        head = new_head(conversation, owner, f"{conversation}/{name}")
        self.act(lambda store: store.create(head, first_session(head), title=f"About {conversation}", at=at))

    @rule(data=st.data(), name=st.sampled_from(["x", "y"]), at_seq=PLACES)
    def fork(self, data: st.DataObject, name: str, at_seq: int) -> None:
        base = self.draw_head(data)
        at_seq = base.next_seq if at_seq % 2 else at_seq % (base.next_seq + 2)
        head = new_head(base.conversation, base.owner, f"{base.conversation}/{name}")
        self.act(lambda store: store.fork(base, at_seq, head, first_session(head, at_seq)))

    @rule(data=st.data(), said=st.lists(st.tuples(WORDS, KEYS), min_size=1, max_size=4), at=TIMES)
    def say(self, data: st.DataObject, said: list[tuple[str, str]], at: float) -> None:
        def make(head: Head) -> Batch:
            numbered = enumerate(said, head.next_seq)
            new = tuple(message(seq, text, key=key and f"{key}.{seq % 3}") for seq, (text, key) in numbered)
            return Batch(at=at, messages=new, calls=(self._call(head),), notes=str(at).encode())

        self.commit(data, make)

    @rule(data=st.data(), back=st.integers(0, 3), also=st.booleans(), at=TIMES)
    def compact(self, data: st.DataObject, back: int, also: bool, at: float) -> None:
        def make(head: Head) -> Batch:
            opened = self.ask(lambda store: store.session(head.owner, head.session))
            cut = max(head.next_seq - back, opened.first if opened else 0)
            changes = (fold(head, cut, self._name("c")),)
            extra = (reduce(head, self._name("r")),) if also else ()
            near = embedding(head.session, self._name("c"), at, self.steps)
            return Batch(at=at, changes=(*extra, *changes), embeddings=(near,))

        self.commit(data, make)

    @rule(data=st.data(), which=PLANS, back=st.integers(0, 3))
    def install_plan(self, data: st.DataObject, which: str, back: int) -> None:
        def make(head: Head) -> Batch:
            change = fold(head, head.next_seq - back, f"{head.branch}/{which}")
            session = structs.replace(_session(change), id=self._name("s"))
            return Batch(at=5.0, changes=(structs.replace(change, opens=session),))

        self.commit(data, make)

    @rule(data=st.data(), back=st.integers(0, 3))
    def shorten(self, data: st.DataObject, back: int) -> None:
        def make(head: Head) -> Batch:
            return Batch(at=5.0, changes=(arrival(head, max(head.next_seq - back, 0), self._name("a")),))

        self.commit(data, make)

    @rule(data=st.data(), text=WORDS, kind=st.sampled_from(["new", "resume"]))
    def begin_session(self, data: st.DataObject, text: str, kind: str) -> None:
        def make(head: Head) -> Batch:
            opens = next_session(head, head.next_seq, self._name("s"), kind=kind)
            return Batch(at=4.0, messages=(message(head.next_seq, text),), opens=opens, model="other")

        self.commit(data, make)

    @rule(data=st.data(), last=st.sampled_from([1, 1, 1, 2]))
    def undo(self, data: st.DataObject, last: int) -> None:
        def make(head: Head) -> Batch:
            rows = self.ask(lambda store: store.compactions(head.owner, head.branch))
            names = [row.id for row in rows if row.state == "installed"]
            if not names:
                return Batch(at=5.0, changes=(reduce(head, self._name("r")),))
            return Batch(at=5.0, undoes=names[-min(last, len(names))])

        self.commit(data, make)

    @rule(data=st.data(), which=PLANS, holder=HOLDERS, now=TIMES, ending=ENDS, act=st.integers(0, 4))
    def work(self, data: st.DataObject, which: str, holder: str, now: float, ending: str, act: int) -> None:
        head = self.draw_head(data)
        owner, plan = head.owner, planned(head, f"{head.branch}/{which}")
        paid = self._call(head)
        acts: list[Question] = [
            lambda store: store.claim(owner, plan.id, holder or "me", now=now, until=now + 2),
            lambda store: store.claim(owner, plan.id, holder or "me", now=now, until=now + 2),
            lambda store: store.beat(owner, plan.id, holder, now + 2),
            lambda store: store.reply(owner, plan.id, holder, written(plan.id, f"By {holder}."), paid),
            lambda store: store.give_up(owner, plan.id, holder, ending, "error"),  # type: ignore[arg-type]
        ]
        self.ask(lambda store: store.plan(owner, plan))
        self.ask(acts[act])

    @rule(data=st.data(), act=st.sampled_from(["pin", "attach", "create", "learn", "delete"]), place=PLACES)
    def other(self, data: st.DataObject, act: str, place: int) -> None:
        """What matters less, or would leave little for the rest to do: each a little."""
        head = self.draw_head(data)
        if act == "pin":
            seqs = (place // 2,)
            batch = Batch(at=3.0, pins=seqs) if place % 2 else Batch(at=3.0, unpins=seqs)
            self.act(lambda store: store.commit(head, batch))
        elif act == "attach":
            self.attach(head, place)
        elif act == "create":
            self.create(head.owner, ["one", "two"][place % 2], ["main", "title"][place // 6 % 2], 3.0)
        elif act == "learn":
            self.ask(lambda store: store.learn(head.owner, "limit", "a", b"1", 1.0))
            if place % 3:
                self.ask(lambda store: store.reserve(head.owner, "a", 1.0))
            self.ask(lambda store: store.cache(head.owner, "a", summary("Paid."), 1.0))
        else:
            self.delete(head, place)

    def attach(self, head: Head, back: int) -> None:
        sessions = self.ask(lambda store: store.sessions(head.owner, head.conversation))
        if sessions:
            chosen, late = sessions[-1 - back % len(sessions)], written(self._name("w"), "Late.")
            which, near = chosen.id, embedding(chosen.id, late.id, back, self.steps) if back % 2 else None
            known = chosen.summary if back % 3 == 0 else ""
            self.ask(lambda store: store.attach_summary(head.owner, which, late, near, replaces=known))

    def delete(self, head: Head, place: int) -> None:
        acts: dict[int, Question] = {
            1: lambda store: store.delete(head.owner),
            4: lambda store: store.delete(head.owner, head.conversation),
            7: lambda store: store.expire(head.owner, 3.0, ["two"]),
            8: lambda store: store.expire(head.owner, 9.0, limit=1),
            9: lambda store: store.forget_plans(head.owner, 1.0),
        }
        self.ask(acts.get(place, lambda store: store.delete(head.owner, "nothing")))

    @invariant()
    def now_and_then(self) -> None:
        self.steps += 1
        if self.steps % self.compare_every == 0:
            self.compare_everything()

    def compare_everything(self) -> None:
        self.ask(lambda store: store.owners())
        for owner in (ANNA, BORIS):
            self._compare_owner(owner)
        seen = {(head.owner, head.conversation, head.branch): head for head in self.heads}
        for head in seen.values():
            self._compare_branch(self.fresh(head))

    def _compare_owner(self, owner: str) -> None:
        self.ask(lambda store: store.conversations(owner))
        self.ask(lambda store: store.idle(owner, 3.0, ["two"]))
        self.ask(lambda store: store.sessions(owner))
        self.ask(lambda store: store.find_sessions(owner, "c"))
        self.ask(lambda store: store.unfinished(owner))
        self.ask(lambda store: store.unembedded(owner, "tiny"))
        self.ask(lambda store: store.nearest(owner, "tiny", NEAR, limit=9))
        self.ask(lambda store: store.nearest(owner, "tiny", NEAR, conversation="one"))
        self.ask(lambda store: store.learnt(owner, "limit", "a"))
        self.ask(lambda store: store.cached(owner, "a"))
        for query in ("storm", "storm sea", "风暴"):
            self.ask(lambda store, query=query: _hits(store, owner, query))
        for conversation in ("one", "two"):
            self.ask(lambda store, name=conversation: store.calls(owner, name))
            self.ask(lambda store, name=conversation: store.spent(owner, name, "reply"))
            self.ask(lambda store, name=conversation: store.head(owner, name))
        self.ask(lambda store: store.conversation_calls(owner))
        self.ask(lambda store: store.call_days(owner))
        self.ask(lambda store: store.compaction_days(owner))
        self.ask(lambda store: store.uncounted(owner))

    def _compare_branch(self, head: Head) -> None:
        kept = self.ask(lambda store: store.messages(head))
        self.ask(lambda store: store.messages(head, 2, 5, 2))
        self.ask(lambda store: store.pick(head, [5, 1, 3]))
        self.ask(lambda store: store.latest(head))
        self.ask(lambda store: store.latest(head, 3))
        self.ask(lambda store: store.raw_arrivals(head, 1))
        self.ask(lambda store: store.pins(head))
        self.ask(lambda store: _hits(store, head.owner, "storm sea", head))
        self.ask(lambda store: store.summary(head, 0))
        self.ask(lambda store: store.last_change(head.owner, head.session))
        self.ask(lambda store: store.last_change(head.owner, head.session, ["reduce", "summarise"]))
        self.ask(lambda store: store.count_summarised(head.owner, head.branch))
        self.ask(lambda store: store.unfinished(head.owner, head.branch))
        self.ask(lambda store: store.failures(head.owner, head.branch))
        self.ask(lambda store: store.holding(head.owner, [(head.branch, seq) for seq in (4, 0, 2)]))
        self.ask(lambda store: store.find_key(head, "k1.0"))
        rows = self.ask(lambda store: store.compactions(head.owner, head.branch))
        self.ask(lambda store: store.written(head.owner, [row.id for row in rows]))
        sessions = self.ask(lambda store: store.sessions(head.owner, head.conversation))
        self.ask(lambda store: store.embeddings(head.owner, [one.id for one in sessions]))
        if self.ask(lambda store: store.head(head.owner, head.conversation, head.branch)):
            _check(head, kept, sessions)

    def _name(self, letter: str) -> str:
        return f"{letter}{self.steps}"

    def _call(self, head: Head) -> Call:
        return call(head, self._name("paid"), input=self.steps, output=1)


def _session(change: InstalledCompaction) -> Session:
    assert change.opens
    return change.opens


def _check(head: Head, kept: list[StoredMessage], sessions: list[Session]) -> None:
    """Numbers without a gap, and live sessions that take turns up to the open one."""
    assert [one.seq for one in kept] == list(range(head.next_seq))
    live = [one for one in sessions if one.branch == head.branch and one.state == "live"]
    live.sort(key=lambda one: (one.first, one.last is None, one.last))
    assert [one.first for one in live] == [head.base_seq, *(one.last for one in live[:-1])]
    assert live[-1].last is None
    assert live[-1].id == head.session


async def _answer(question: Question, store: Store) -> Any:
    try:
        return await question(store)
    except StoreError as error:
        return type(error)


async def _hits(
    store: Store, owner: str, query: str, branch: Head | None = None
) -> set[tuple[str, str, int]]:
    hits = await store.search(owner, query, branch=branch, limit=1_000)
    return {(hit.conversation, hit.branch, hit.seq) for hit in hits}


def test_all_stores_give_the_same_answers(store_set):
    machine = type("Told", (Script,), {"stores": store_set})

    run_state_machine_as_test(machine, settings=settings(max_examples=10, stateful_step_count=30))  # type: ignore[arg-type]


@pytest.mark.slow
def test_all_stores_give_the_same_answers_to_long_scripts(store_set):
    machine = type("Told", (Script,), {"stores": store_set})

    run_state_machine_as_test(
        machine, settings=settings(max_examples=settings().max_examples // 3, stateful_step_count=80)
    )  # type: ignore[arg-type]
