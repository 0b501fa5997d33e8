"""A conversation over time, read from every store: regions of each call, changes with their cost, branches."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from refold.engine.engine import Engine
from refold.engine.history import timeline_of
from refold.model.errors import NotFound
from refold.model.tokens import Usage
from refold.ports.records import Batch, Call
from refold.summarisers import ModelSummariser
from refold.tokens.catalog import find_model
from tests.agent_session import SYSTEM, TOOLS, play
from tests.summarisers.scripted_upstream import GOOD, Scripted, writer

pytestmark = pytest.mark.feature("X13")


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def engine(store, **settings) -> Engine:
    return Engine(store, clock=Clock(), **{"model": "gpt-4o", "window": 6_000, **settings})


async def talk_of(started: Engine, name: str = "agent"):
    return await started.conversation(name, system=SYSTEM, tools=TOOLS)


async def test_every_call_has_its_regions_in_the_provider_s_tokens(store):
    started = engine(store)
    await play(await talk_of(started), 14)

    found = await timeline_of(store, started.owner, "agent")

    assert [one.number for one in found.replies] == list(range(1, 15))
    for one in found.replies:
        assert one.regions is not None
        assert sum(structs.astuple(one.regions)) == one.usage.prompt == one.tokens
        assert one.regions.system > 0
        assert one.regions.tools > 0
        assert one.window == 6_000
        assert 0 < one.fold <= one.wall < one.window
    assert found.replies[0].regions.input > 0 == found.replies[0].regions.history
    assert found.replies[-1].regions.tool_results > found.replies[-1].regions.input
    assert found.size == 28


async def test_a_call_of_an_earlier_version_says_that_its_regions_were_not_recorded(store):
    started = engine(store)
    await play(await talk_of(started), 2)
    head = await store.head(started.owner, "agent")
    old = Call(
        id="old", branch=head.branch, session=head.session, usage=Usage(500, output=5), size=4,
        receipt=b'{"size":4,"change":"","only":"","marks":[],"raw":[],"window":6000}', at=1.0,
    )  # fmt: skip
    older = structs.replace(old, id="older", receipt=b'{"size":4}')
    await store.commit(head, Batch(at=1.0, calls=(old, older)))

    found = await timeline_of(store, started.owner, "agent")

    assert [one.regions is None for one in found.replies] == [False, False, True, True]
    assert (found.replies[2].window, found.replies[2].fold) == (6_000, None)
    assert found.replies[3].window is None


async def test_a_change_stands_before_the_first_call_that_it_shaped(store):
    started = engine(store)
    await play(await talk_of(started), 40)

    found = await timeline_of(store, started.owner, "agent")

    made = [one for one in found.changes if one.state == "installed"]
    assert len(made) >= 2
    for one in made:
        call = found.calls[one.call - 1]
        assert one.id in call.changes
        assert one.before > one.after
        assert one.calls_since == len(found.replies) - found.replies.index(call)
    sizes = {one.number: one.tokens for one in found.replies}
    assert all(sizes[one.call] < sizes[one.call - 1] for one in made)
    assert sum(len(one.changes) for one in found.calls) == len(made)


async def test_a_summary_by_a_model_has_its_cost_and_pays_for_itself(store):
    started = engine(store, summariser=ModelSummariser([writer(Scripted(GOOD, model="gpt-4o-mini"))]))
    talk = await talk_of(started)
    prompts = await play(talk, 12)
    await talk.compact(keep=400)
    await play(talk, 3, first=12, prompts=prompts)

    found = await timeline_of(store, started.owner, "agent")

    (change,) = [one for one in found.changes if one.kind == "summarise" and one.state == "installed"]
    paid = [one for one in found.calls if not one.is_reply]
    small, large = find_model("gpt-4o-mini"), find_model("gpt-4o")
    dollars = (
        sum(one.usage.input * small.input_price + one.usage.output * small.output_price for one in paid) / 1e6
    )
    assert paid
    assert change.dollars == pytest.approx(dollars)
    assert (change.author.author, change.author.model) == ("model", "gpt-4o-mini")
    assert change.moment == "manual"

    after = found.calls[change.call - 1]
    before = next(one for one in reversed(found.replies) if one.number < after.number)
    rewritten = min(before.usage.prompt, after.usage.prompt) - after.usage.cache_read
    prefix = rewritten * (large.input_price - large.cache_read_price) / 1e6
    assert change.payback.summary == change.dollars
    assert change.payback.prefix == pytest.approx(prefix)
    assert change.payback.calls == math.ceil((dollars + prefix) / change.payback.per_call)
    assert found.net_dollars == pytest.approx(sum(one.row.saved for one in found.replies) - dollars)
    assert found.dollars == pytest.approx(sum(one.row.dollars for one in found.calls))


async def test_an_undone_change_is_told_and_changes_since_the_last_call_wait(store):
    started = engine(store)
    talk = await talk_of(started)
    prompts = await play(talk, 12)
    await talk.compact(keep=400)
    waiting = await timeline_of(store, started.owner, "agent")
    await talk.undo()
    await play(talk, 1, first=12, prompts=prompts)

    found = await timeline_of(store, started.owner, "agent")

    assert waiting.pending
    assert waiting.changes[-1].call is None
    assert waiting.changes[-1].payback is None
    assert "undone" in {one.state for one in found.changes}
    assert found.pending == ()


async def test_a_fork_has_the_calls_of_its_base_up_to_the_fork(store):
    started = engine(store)
    await play(await talk_of(started), 6)
    branch = await started.fork("agent", 7)
    await play(await started.conversation("agent", branch=branch), 2, first=4)

    base, fork = (
        await store.outline(started.owner, "agent"),
        await timeline_of(store, started.owner, "agent", branch=branch),
    )

    assert [one.row.branch == branch for one in fork.replies] == [False] * 4 + [True] * 2
    assert [one.branch for one in fork.branches] == [one.branch for one in base.heads]
    assert [(one.base, one.base_seq) for one in fork.branches] == [("", 0), (base.heads[0].branch, 7)]
    assert all(one.sessions for one in fork.branches)


async def test_only_the_newest_calls_are_read(store):
    started = engine(store)
    await play(await talk_of(started), 5)

    found = await timeline_of(store, started.owner, "agent", limit=3)

    assert ([one.number for one in found.calls], found.is_cut) == ([3, 4, 5], True)
    assert not (await timeline_of(store, started.owner, "agent", limit=5)).is_cut


async def test_another_owner_finds_nothing(store):
    started = engine(store)
    await play(await talk_of(started), 1)

    with pytest.raises(NotFound):
        await timeline_of(store, "somebody else", "agent")
    with pytest.raises(NotFound):
        await timeline_of(store, started.owner, "agent", branch="none")
