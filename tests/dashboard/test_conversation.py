"""The pages of one conversation: what they show is what is stored, text from outside is text, and every page has a JSON twin."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from copy import deepcopy

import pytest
from msgspec import structs

from refold.cli.main import run
from refold.dashboard import text
from refold.dashboard.app import conversation_url, with_query
from refold.engine.actions import record
from refold.engine.engine import OWNER, Engine
from refold.engine.history import MOST_CALLS, timeline_of
from refold.model.tokens import Usage
from refold.ports.records import Batch, Call
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from refold.summarisers import ModelSummariser
from refold.tokens.catalog import find_model
from tests.agent_session import SYSTEM, TOOLS, play, reply, turn
from tests.damage import damage
from tests.dashboard.conversation_site import Page, Site, engine, site_of
from tests.summarisers.scripted_upstream import GOOD, Scripted, writer

pytestmark = pytest.mark.feature("X13")

NAME = "move to the new clock"


@pytest.fixture(scope="module")
def played() -> MemoryStore:
    """A conversation with a reduction, a model's summary and an undone one."""
    return asyncio.run(play_agent())


async def play_agent() -> MemoryStore:
    made = MemoryStore()
    started = engine(made, summariser=ModelSummariser([writer(Scripted(GOOD, model="gpt-4o-mini"))]))
    talk = await started.conversation(NAME, system=SYSTEM, tools=TOOLS)
    prompts = await play(talk, 26)
    await talk.compact(keep=400)
    await play(talk, 4, first=26, prompts=prompts)
    await talk.compact(keep=200)
    await talk.undo()
    await play(talk, 2, first=30, prompts=prompts)
    return made


@pytest.fixture
def store(played) -> MemoryStore:
    """A copy for one test."""
    return deepcopy(played)


@pytest.fixture
async def site(store) -> Site:
    async with site_of(store) as found:
        yield found


async def line_of(store, branch: str = ""):
    return await timeline_of(store, OWNER, NAME, branch=branch)


async def test_the_overview_names_a_damaged_message_that_a_placeholder_is_shown_for(tmp_path):
    path = tmp_path / "store.db"
    async with Engine(path, model="gpt-4o") as kept:
        await (await kept.conversation(NAME)).add("hello", reply(5), "and now?")
    damage(path, NAME, 1)
    opened = await open_store(f"sqlite:///{path}")
    async with site_of(opened) as site:
        page, twin = await site.page(NAME), await site.json(NAME)
    await opened.close()
    assert "message 1 is damaged and cannot be read: a placeholder is shown for it" in page.text
    assert (page.status, twin["status"]["damaged"]) == (200, [1])


async def test_the_overview_draws_every_call_and_marks_every_change(site, store):
    page, line = await site.page(NAME), await line_of(store)

    assert page.status == 200
    targets = page.with_class("target")
    assert len(targets) == len(line.replies) == 32
    last = line.replies[-1]
    assert targets[-1]["aria-label"].startswith(f"call {last.number}: {last.tokens:,} tokens")
    marks = [attrs["class"] for attrs in page.with_class("mark-line")]
    states = [one.state for one in line.changes if one.number]
    assert len(marks) == len(states)
    assert marks.count("mark-line undone") == states.count("undone") == 1
    assert "mark-line summarise" in marks
    for words in (
        "fold point",
        "wall",
        "window 6,000",
        "The window over time",
        "Now",
        "Lineage",
        "Changes",
    ):
        assert words in page.text


async def test_a_summary_that_was_not_used_has_its_own_cost(site, store):
    before = {one["id"]: one["dollars"] for one in (await site.json(NAME))["changes"]}
    head = await store.head(OWNER, NAME)
    rows = await store.compactions(OWNER, head.branch)
    used = next(one for one in rows if one.kind == "summarise" and one.number)
    unused = structs.replace(used, id="unused", number=0, state="planned", size=used.size - 1)
    await store.plan(OWNER, unused)
    assert await store.claim(OWNER, "unused", "me", now=1.0, until=60.0)
    summary = structs.replace((await store.written(OWNER, [used.id]))[0], id="unused")
    paid = Call(
        id="paid",
        branch=head.branch,
        session=used.base,
        usage=Usage(input=9),
        size=unused.size,
        kind="summary",
        dollars=0.5,
    )
    assert await store.reply(OWNER, "unused", "me", summary, paid)
    await store.give_up(OWNER, "unused", "me", "superseded", "not needed any more")
    after = {one["id"]: one["dollars"] for one in (await site.json(NAME))["changes"]}
    assert after.pop("unused") == pytest.approx(0.5)
    assert after == pytest.approx(before)


async def test_the_json_twin_has_the_figures_of_the_page(site, store):
    found, line, page = await site.json(NAME), await line_of(store), await site.page(NAME)

    assert [one["number"] for one in found["calls"]] == [one.number for one in line.calls]
    assert not [one for one in found["calls"] if "receipt" in one or "reply" in one]
    for document, call in zip(found["calls"], line.calls, strict=True):
        assert document["usage"]["input"] == call.usage.input
        if call.is_reply:
            assert sum(document["regions"].values()) == call.tokens
    assert found["totals"]["dollars"] == pytest.approx(line.dollars)
    assert found["totals"]["net_dollars"] == pytest.approx(line.net_dollars)
    assert [one["id"] for one in found["changes"]] == [one.id for one in reversed(line.changes)]
    assert (await site.json(NAME, "changes"))["changes"] == found["changes"]
    content = sum(row["tokens"] for row in found["window"] if row["region"] not in ("free", "reserve"))
    room = {row["region"]: row["tokens"] for row in found["window"]}
    assert content + room["free"] + room["reserve"] == 6_000
    for row in found["window"]:
        if row["tokens"]:
            assert f"{row['name']} {row['tokens']:,}" in page.text


async def test_a_compaction_is_counted_alike_on_every_page(site, store):
    """A compaction is a summary in effect. Reductions, and what was undone, have words of their own."""
    found, home = await site.json(NAME), await site.get("/index.json")
    (row,) = json.loads(home.body)["conversations"]
    effect = await engine(store, embedder=None).stats()
    made = [one for one in effect.compactions if one.kind == "summarise"]
    summed = sum(one.count * {"installed": 1, "undone": -1}.get(one.outcome, 0) for one in made)
    rows = Counter((one["kind"], one["state"]) for one in found["changes"])
    totals = found["totals"]

    assert totals["compactions"] == row["compactions"] == found["status"]["compactions"] == summed
    assert totals["compactions"] == rows["summarise", "installed"] > 0
    assert totals["reductions"] == rows["reduce", "installed"] + rows["arrival", "installed"] > 0
    assert totals["undone"] == sum(count for (_, state), count in rows.items() if state == "undone") > 0
    words = f"{totals['compactions']} compactions" if totals["compactions"] > 1 else "1 compaction "
    assert words in (await site.page(NAME)).text
    assert words in (await site.page(NAME, "changes")).text


async def test_the_calls_add_up_to_the_number_of_the_last_one(site, store):
    line, totals, page = await line_of(store), (await site.json(NAME))["totals"], await site.page(NAME)

    assert totals["calls"] == line.calls[-1].number == totals["replies"] + totals["summaries"]
    assert (totals["replies"], totals["summaries"]) == (
        len(line.replies),
        len(line.calls) - len(line.replies),
    )
    assert totals["summaries"]
    assert f"{totals['replies']} replies, {totals['summaries']} summar" in page.text


async def test_a_fill_level_is_the_share_of_the_limit_on_every_page(site, store):
    found, page = await site.json(NAME), await site.page(NAME)
    status, call = found["status"], found["call"]
    share = text.percent(status["tokens"] / status["limit"])

    assert status["ratio"] == status["tokens"] / status["limit"]
    assert f"{share} of the limit" in page.text
    assert f"{text.percent(call['tokens'] / call['wall'])} of the limit" in page.text
    assert "% full" not in page.html
    home = await site.get("/")
    (row,) = json.loads((await site.get("/index.json")).body)["conversations"]
    ratio = row["tokens"] / row["limit"]
    assert f"{text.percent(ratio)} of {text.short(row['limit'])}" in home.text
    assert ratio == pytest.approx(status["ratio"], abs=0.02)


async def test_one_window_has_one_size_in_one_unit():
    """Also where the provider counts fewer tokens than our estimate has."""
    store = MemoryStore()
    started = engine(store, model="claude-sonnet-4-5", embedder=None)
    talk = await started.conversation(NAME, system=SYSTEM, tools=TOOLS)
    for at in range(40):
        await talk.add(*turn(at))
        await talk.context()
        await talk.record(
            {"prompt_tokens": round(talk.measurement.content.tokens * 0.8), "completion_tokens": 20}
        )
        await talk.add(reply(at))
    async with site_of(store) as site:
        found, page = await site.json(NAME), await site.page(NAME)
        preview = (await site.json(NAME, "preview"))["preview"]
        last = found["calls"][-1]
        call = await site.json(NAME, "calls", f"{last['number']}")

    status, rows = found["status"], {row["region"]: row["tokens"] for row in found["window"]}
    free, reserve = rows.pop("free"), rows.pop("reserve")
    assert status["tokens"] < 0.9 * talk.measurement.content.tokens
    assert sum(rows.values()) == status["tokens"] == preview["before"]
    assert free + reserve == 6_000 - status["tokens"]
    assert f"The size is {status['source']}" in page.text
    assert status["source"].startswith("the provider's last report")
    assert rows["system"] + rows["tools"] < preview["after"] < preview["before"]

    instructions = last["regions"]["system"] + last["regions"]["tools"]
    messages = sum(run["after"] for run in call["runs"]) + call["lead_tokens"]
    assert instructions + messages == pytest.approx(last["tokens"], rel=0.02)

    limits = [re.search("do not fit into ([0-9,]+)", one["reason"]) for one in found["changes"]]
    stated = [int(one[1].replace(",", "")) for one in limits if one]
    assert stated
    assert all(one <= 6_000 for one in stated)


async def test_unknown_prices_and_the_estimated_part_are_told_beside_the_money():
    """As `refold stats` tells them."""
    store = MemoryStore()
    for name, model in (("free", "my-own-model"), ("paid", "gpt-4o")):
        started = Engine(store, model=model, window=6_000, embedder=None)
        talk = await started.conversation(name)
        await talk.add({"role": "user", "content": "Which ship?"})
        await talk.context()
        usage = Usage(100_000, output=10)
        await talk.record_call(lambda state: record(state, usage), usage, is_estimated=True)  # noqa: B023
    async with site_of(store) as site:
        free, paid, effect, home = [
            await site.get(url) for url in ("/conversations/free", "/conversations/paid", "/effect", "/")
        ]

    note = "The prices of my-own-model are not known: they count as $0."
    assert note in free.text
    assert note in effect.text
    assert note in home.text
    assert "are not known" not in paid.text
    for page in (paid, effect):
        assert "$0.25 estimated" in page.text
    assert "$0.25 of it estimated" in home.text


async def test_a_call_is_chosen_by_the_address_and_its_receipt_is_on_the_page(site, store):
    call = (await line_of(store)).replies[9]

    page = await site.page(NAME, call=call.number)

    assert f"Receipt of call {call.number}" in page.text
    assert f"{call.usage.cache_read:,} read from the cache" in page.text
    assert [attrs["tabindex"] for attrs in page.with_class("chosen") if "target" in attrs["class"]] == ["0"]
    assert (await site.page(NAME, call=9_999)).status == 404
    assert (await site.page(NAME, call="x")).status == 400


async def test_a_change_shows_every_message_with_its_fate_beside_the_summary(site, store):
    line = await line_of(store)
    summarised = next(one for one in line.changes if one.kind == "summarise" and one.state == "installed")

    page, found = (
        await site.page(NAME, "changes", summarised.id),
        await site.json(NAME, "changes", summarised.id),
    )

    runs = {run["fate"]: run for run in found["runs"]}
    assert runs["folded"]["takes_summary"]
    assert [one["handle"] for one in runs["folded"]["messages"]][:2] == ["#m0", "#m1"]
    assert found["counts"]["folded"] == summarised.cut
    assert found["counts"]["kept"] > 0
    assert found["summary"]["author"] == "model"
    assert found["ledger"]["files read"]
    assert found["summary"]["text"].splitlines()[0] in page.text
    for words in ("Before and after", "folded", "kept", "Checks", "Ledger", "gpt-4o-mini", "asked for"):
        assert words in page.text


async def test_a_reduction_shows_what_was_cut_and_why(site, store):
    line = await line_of(store)
    reduced = next(one for one in line.changes if one.kind == "reduce")

    found = await site.json(NAME, "changes", reduced.id)
    cut = [
        one for run in found["runs"] if run["fate"] in ("shortened", "superseded") for one in run["messages"]
    ]

    assert cut
    assert all(one["shown"] and one["why"] and one["after"] < one["before"] for one in cut)
    assert sum(one["before"] - one["after"] for one in cut) == pytest.approx(reduced.before - reduced.after)
    page = await site.page(NAME, "changes", reduced.id)
    assert reduced.reason in page.text


async def test_a_message_has_the_same_fate_on_the_page_of_a_call_and_of_a_change(site, store):
    line = await line_of(store)
    reduced = next(one for one in line.changes if one.kind == "reduce" and one.call)
    by_change, by_call = (
        {one["handle"]: (run["fate"], one["why"]) for run in found["runs"] for one in run["messages"]}
        for found in (
            await site.json(NAME, "changes", reduced.id),
            await site.json(NAME, "calls", f"{reduced.call}"),
        )
    )

    changed = {handle: fate for handle, fate in by_change.items() if fate[0] != "kept"}
    assert "superseded" in {fate for fate, _ in changed.values()}
    assert {handle: by_call[handle] for handle in changed} == changed


async def test_the_change_that_the_page_offers_to_undo_is_the_one_that_undo_takes_back(store, site):
    """The rows are in the order in which jobs were begun: the newest change may be any of them."""
    rows = store._tables(OWNER).compactions
    turned = dict(reversed(rows.items()))
    rows.clear()
    rows.update(turned)
    talk = await engine(store).conversation(NAME)
    taken = list[str]()
    while (last := (await site.json(NAME, "compact"))["last"]) is not None:
        before = {one.id for one in (await line_of(store)).changes if one.state == "undone"}
        assert await talk.undo()
        after = {one.id for one in (await line_of(store)).changes if one.state == "undone"}
        assert after - before == {last["id"]}
        taken.append(last["kind"])

    assert {"summarise", "reduce"} <= set(taken)
    assert not await talk.undo()


async def test_a_reduction_is_not_offered_to_be_made_again(store, site):
    talk = await engine(store).conversation(NAME)
    while (await site.json(NAME, "compact"))["again"] is not None:
        assert "Make it again" in (await site.page(NAME, "compact")).text
        await talk.undo()

    page = await site.page(NAME, "compact")
    assert (await site.json(NAME, "compact"))["last"]["kind"] == "reduce"
    assert "Undo it" in page.text
    assert "Make it again" not in page.text


async def test_a_call_shows_as_sent_against_everything(site, store):
    line = await line_of(store)
    whole, last = line.replies[4], line.replies[-1]

    first, found = (
        await site.json(NAME, "calls", f"{whole.number}"),
        await site.json(NAME, "calls", f"{last.number}"),
    )

    assert [run["fate"] for run in first["runs"]] == ["kept"]
    assert len(first["runs"][0]["messages"]) == whole.row.size
    fates = {one["fate"] for run in found["runs"] for one in run["messages"]}
    assert {"folded", "kept"} <= fates
    assert found["lead"]
    assert sum(len(run["messages"]) for run in found["runs"]) == last.row.size
    page = await site.page(NAME, "calls", f"{last.number}")
    assert "as sent, against everything" in page.text
    assert found["lead"].splitlines()[1] in page.text
    assert (await site.page(NAME, "calls", "9999")).status == 404


async def test_the_call_of_a_summariser_has_no_window_and_says_so(site, store):
    paid = next(one for one in (await line_of(store)).calls if not one.is_reply)

    page = await site.page(NAME, "calls", f"{paid.number}")

    assert page.status == 200
    assert "no window is stored with this call" in page.text


async def test_calls_and_messages_are_paged(site, store):
    line = await line_of(store)
    listed = await site.json(NAME, "calls", before=line.calls[5].number)
    everything = await site.json(NAME, "messages", first=3)

    assert [one["number"] for one in listed["calls"]] == [one.number for one in reversed(line.calls[:5])]
    assert listed["next"] is None
    assert [one["handle"] for one in everything["messages"]][:2] == ["#m2", "#m3"]
    assert everything["size"] == line.size == 64
    assert everything["previous_first"] == 1
    assert (await site.page(NAME, "calls")).status == (await site.page(NAME, "messages")).status == 200


async def test_recall_gives_an_original_by_its_handle_and_messages_by_words(site):
    by_handle, by_words = (
        await site.page(NAME, "recall", what="#m0"),
        await site.json(NAME, "recall", what="billing"),
    )

    assert "Please move billing.py to the new clock (ticket 4000)." in by_handle.text
    assert by_words["found"]
    assert all("billing" in one["text"] for one in by_words["found"])
    missing = await site.page(NAME, "recall", what="#m999")
    assert missing.status == 200
    assert "handles look like #m12" in missing.text
    assert "Nothing that was said" in (await site.page(NAME, "recall", what="zeppelin")).text


async def test_a_fork_is_a_lane_of_the_lineage_and_has_pages_of_its_own(store):
    started = engine(store)
    branch = await started.fork(NAME, 9)
    await play(await started.conversation(NAME, branch=branch), 2, first=5)
    async with site_of(store) as site:
        page = await site.page(NAME, branch=branch)
        found = await site.json(NAME, branch=branch)

        assert len(page.with_class("fork-point")) == 1
        assert len(found["branches"]) == 2
        assert found["branch"] == branch
        assert found["totals"]["calls"] == len((await line_of(store, branch)).replies) == 7
        assert (await site.page(NAME, branch="no such branch")).status == 404


async def test_figures_and_addresses_hold_after_a_fork(site, store):
    """The figures of the whole conversation have every call once, and an address from before the fork goes on working."""
    before, old = await line_of(store), await site.json(NAME)
    only_before = before.replies[-1]
    made = [one for one in before.changes if one.number]
    started = engine(store)
    started.clock.now += 100_000  # after all that was said before
    branch = await started.fork(NAME, 9)
    await play(await started.conversation(NAME, branch=branch), 2, first=5)

    found, page = await site.json(NAME), await site.page(NAME)
    (row,) = json.loads((await site.get("/index.json")).body)["conversations"]
    stats = await started.stats()
    whole = found["conversation_totals"]
    assert found["branch"] == branch
    assert whole["calls"] == old["totals"]["calls"] + 2 > found["totals"]["calls"]
    assert whole["dollars"] == pytest.approx(stats.total.dollars)
    assert row["compactions"] == whole["compactions"] == old["totals"]["compactions"] > 0
    assert "The whole conversation all 2 branches, every call once" in page.text
    assert "Branch 2 of 2 is shown." in page.text
    assert "Changes of branch 2" in page.text
    assert text.dollars(whole["dollars"]) in page.text
    links = [str(attrs.get("href")) for tag, attrs in page.tags if tag == "a"]
    assert conversation_url(NAME, branch=before.branch) in links
    assert with_query(f"{conversation_url(NAME)}.json", branch=branch) in links
    assert all("branch=" in one for one in links if one.startswith(f"{conversation_url(NAME)}/"))

    for address in (
        ("calls", f"{only_before.number}"),
        *(("changes", one.id) for one in made),
    ):
        assert (await site.page(NAME, *address)).status == 200, address
    shown = await site.json(NAME, call=only_before.number)
    assert (shown["branch"], shown["call"]["id"]) == (before.branch, only_before.id)
    assert (await site.page(NAME, "calls", "99999")).status == 404
    assert (await site.page(NAME, "calls", f"{only_before.number}", branch=branch)).status == 404
    for view in ("calls", "changes", "messages"):
        assert "Branch 2 of 2 is shown." in (await site.page(NAME, view)).text


async def test_pages_of_nothing_and_of_others_are_not_found(site, store):
    other = engine(store, owner="somebody else")
    await play(await other.conversation("theirs"), 2)
    change, call = (await line_of(store)).changes[0].id, (await line_of(store)).replies[0].number

    for rest in (
        (),
        ("calls",),
        ("calls", f"{call}"),
        ("changes",),
        ("changes", change),
        ("messages",),
        ("recall",),
    ):
        assert (await site.page("theirs", *rest)).status == 404
        assert (await site.page("none", *rest)).status == 404
    assert (await site.page(NAME, "changes", "none")).status == 404


async def test_a_conversation_without_calls_has_a_page(store, site):
    await (await engine(store).conversation("quiet")).add("hello")

    page = await site.page("quiet")

    assert page.status == 200
    assert "No call was recorded yet" in page.text
    assert "no call yet" in page.text
    assert "Nothing was done to this conversation yet" in page.text


async def test_a_call_of_an_earlier_version_is_shown_as_not_recorded(store, site):
    head = await store.head(OWNER, NAME)
    old = Call(
        id="old", branch=head.branch, session=head.session, usage=Usage(500, output=5), size=64,
        receipt=b'{"size":64,"window":6000}', at=1_800_000_000.0,
    )  # fmt: skip
    await store.commit(head, Batch(at=1_800_000_000.0, calls=(old,)))

    page = await site.page(NAME)

    assert "Regions not recorded" in page.text
    assert len(page.with_class("unrecorded")) == 2, "one in the picture, one in the legend"


def test_calls_have_the_numbers_of_refold_show_also_where_the_first_are_not_listed(tmp_path, capsys):
    path = tmp_path / "chats.db"

    async def write_and_look() -> tuple[dict[int, str], Page, Page]:
        store = await open_store(f"sqlite:///{path}")
        try:
            talk = await engine(store).conversation("long")
            await talk.add("Where is the ferry?")
            head = await store.head(OWNER, "long")
            made = (
                Call(
                    id=f"call {at}", branch=head.branch, session=head.session, usage=Usage(500), size=1, at=at
                )
                for at in range(1, MOST_CALLS + 4)
            )
            await store.commit(head, Batch(at=1.0, calls=tuple(made)))
            async with site_of(store) as site:
                listed = await site.json("long", "calls", before=105)
                numbers = {one["number"]: one["id"] for one in listed["calls"]}
                return numbers, await site.page("long", "calls"), await site.page("long", "calls", "3")
        finally:
            await store.close()

    numbers, newest, first = asyncio.run(write_and_look())
    assert run(["show", "long", "--calls", "--json", "--store", f"sqlite:///{path}"]) == 0
    told = {one["number"]: one["id"] for one in json.loads(capsys.readouterr().out)["calls"]}

    assert len(told) == MOST_CALLS + 3
    assert numbers == {number: told[number] for number in range(5, 105)}
    assert "5,003 reply" in newest.text
    assert "The 5,000 newest calls of the conversation can be seen here" in newest.text
    assert first.status == 404, "it is not among the newest"


EVIL = [
    '"><script>alert(1)</script>',
    "</pre></bdi></details><img src=x onerror=alert(1)>",
    "</svg><style>*{display:none}</style>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    '\'" onmouseover="alert(1)',
    "<!--<script>",
    "&lt;script&gt;",
    "\x1b[31mred\x07",
]


@pytest.mark.parametrize(
    "evil",
    [
        " ".join(EVIL[::2]),
        " ".join(EVIL[1::2]),
        *(pytest.param(one, marks=pytest.mark.slow) for one in EVIL),
    ],
)
async def test_hostile_text_is_text_on_every_page(evil):
    store = MemoryStore()
    started = engine(store, window=2_000)
    name = "".join(letter for letter in f"n {evil}" if letter.isprintable())
    talk = await started.conversation(name, title=evil)
    tool = {"id": "c1", "type": "function", "function": {"name": "x", "arguments": json.dumps({"a": evil})}}
    for at in range(6):
        await talk.add({"role": "user", "content": f"{evil} {at} {'words ' * 60}"})
        await talk.context()
        await talk.record({"prompt_tokens": 400, "completion_tokens": 5, "total_tokens": 405})
        await talk.add(
            {"role": "assistant", "content": f"{evil} answer", "tool_calls": [{**tool, "id": f"c{at}"}]}
        )
        await talk.add({"role": "tool", "tool_call_id": f"c{at}", "content": f"{evil} result {'data ' * 60}"})
    await talk.compact(keep=50)
    line = await timeline_of(store, OWNER, name)
    changes = [("changes", one.id) for one in line.changes if one.number]
    assert changes
    async with site_of(store) as site:
        below = (
            (),
            ("calls",),
            ("calls", "3"),
            ("messages",),
            ("changes",),
            ("compact",),
            ("delete",),
            *changes,
        )
        for url in (
            *("/", "/effect?by=conversation", with_query("/search", words=name)),
            with_query("/search", words=f"{evil} answer"),
            *(conversation_url(name, *rest) for rest in below),
            conversation_url(name, "recall", what=evil),
        ):
            page = await site.get(url)
            assert page.status == 200
            if url.startswith("/conversations"):
                assert text.shown(name) in "".join(page.words), "its name is on every page, letter by letter"
            scripts = [attrs for tag, attrs in page.tags if tag == "script"]
            assert all(attrs["src"].startswith("/static/") for attrs in scripts)
            assert not [tag for tag, _ in page.tags if tag in ("img", "style", "iframe", "object", "base")]
            for tag, attrs in page.tags:
                assert not [key for key in attrs if key.startswith("on") or key == "style"], (tag, attrs)
                assert not (attrs.get("href") or "").lower().startswith("javascript")
            assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.text)


def hand_calculation(model: str, prompts: list[tuple[int, int, int, int]]) -> float:
    """Dollars for calls of so many tokens: neither cached, read from the cache, written to it, and of the reply."""
    found = find_model(model)
    write = found.input_price if found.cache_write_price is None else found.cache_write_price
    total = 0.0
    for plain, read, written, output in prompts:
        total += plain * found.input_price + read * found.cache_read_price + written * write
        total += output * found.output_price
    return total / 1_000_000


RECORDED = {
    "chat": (
        "gpt-4o",
        [
            {
                "prompt_tokens": 41_200,
                "completion_tokens": 900,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            {
                "prompt_tokens": 62_850,
                "completion_tokens": 1_310,
                "prompt_tokens_details": {"cached_tokens": 41_088},
            },
            {
                "prompt_tokens": 90_003,
                "completion_tokens": 77,
                "prompt_tokens_details": {"cached_tokens": 62_720},
            },
        ],
        [(41_200, 0, 0, 900), (62_850 - 41_088, 41_088, 0, 1_310), (90_003 - 62_720, 62_720, 0, 77)],
    ),
    "anthropic": (
        "claude-sonnet-4-5",
        [
            {
                "input_tokens": 12,
                "cache_creation_input_tokens": 55_001,
                "cache_read_input_tokens": 0,
                "output_tokens": 2_048,
            },
            {
                "input_tokens": 9,
                "cache_creation_input_tokens": 4_417,
                "cache_read_input_tokens": 55_001,
                "output_tokens": 611,
            },
        ],
        [(12, 0, 55_001, 2_048), (9, 55_001, 4_417, 611)],
    ),
    "responses": (
        "gpt-4.1-mini",
        [
            {
                "input_tokens": 300_500,
                "output_tokens": 4_000,
                "input_tokens_details": {"cached_tokens": 100_000},
            },
            {
                "input_tokens": 310_777,
                "output_tokens": 1_234,
                "input_tokens_details": {"cached_tokens": 300_032},
            },
        ],
        [(200_500, 100_000, 0, 4_000), (310_777 - 300_032, 300_032, 0, 1_234)],
    ),
}


@pytest.mark.parametrize("format_", RECORDED)
async def test_the_money_on_the_page_is_that_of_a_hand_calculation(format_):
    model, reports, prompts = RECORDED[format_]
    store = MemoryStore()
    talk = await engine(store, model=model, window=None).conversation("paid", format=format_)
    for at, usage in enumerate(reports):
        await talk.add({"role": "user", "content": f"question {at}"})
        await talk.context()
        await talk.record(usage)
        await talk.add({"role": "assistant", "content": f"answer {at}"})
    dollars = hand_calculation(model, prompts)

    async with site_of(store) as site:
        page, found = await site.page("paid"), await site.json("paid")

    assert dollars > 0.05
    assert f"Spent ${dollars:.2f}" in page.text
    assert found["totals"]["dollars"] == pytest.approx(dollars, abs=1e-9)
    each = [hand_calculation(model, [one]) for one in prompts]
    assert [one["dollars"] for one in found["calls"]] == pytest.approx(each, abs=1e-9)
    assert f"Cost ${each[-1]:.4f}" in page.text
    assert found["totals"]["net_dollars"] == pytest.approx(0, abs=1e-9)
    assert "Saved, net $0.00" in page.text
