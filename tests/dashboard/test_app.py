"""The page without a browser: views and their twins, acts, sign-in, and who may see what."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from html import unescape
from random import Random
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from refold.dashboard.app import HEADERS, NOTICES, conversation_url, name_in
from refold.dashboard.browser_access import SESSION_S, BrowserSessions, session_cookie
from refold.dashboard.replay_jobs import read_recording, tariffs_of
from refold.engine.engine import Engine
from refold.gateway.auth import is_page
from refold.model.dialect import DIALECTS
from refold.ports.records import ClientKey, read_stored
from refold.replay import CounterChoice, Recording, ReplayBudget, run, tabulate
from refold.replay.candidate import candidates
from refold.replay.report import page as report_page
from refold.stores.memory import MemoryStore
from refold.svg import MOST_BARS
from tests.bad_queries import BAD_QUERIES
from tests.dashboard.conftest import ServedPage, serve
from tests.dashboard.example_store import TALKS, sentence
from tests.dashboard.visitor import Visitor

PARSER = "/conversations/agents~1parser"
VIEWS = (
    *("/", "/search?words=ferry", "/effect?days=7&by=model", "/effect?by=conversation", "/settings", "/operations"),
    *(PARSER, f"{PARSER}/compact?keep=2k&preset=refold", f"{PARSER}/preview?keep=2k", f"{PARSER}/pins", f"{PARSER}/replay", f"{PARSER}/delete"),
)  # fmt: skip


def twin(path: str) -> str:
    path, mark, query = path.partition("?")
    return f"{'/index' if path == '/' else path}.json{mark}{query}"


@pytest.fixture
def visitor(page) -> Visitor:
    return Visitor(page.port)


def begin(page: ServedPage, name: str, turns: int = 12, *, owner: str = "local", **settings) -> None:
    """Write a conversation of a test's own."""

    async def write() -> None:
        random = Random(name)
        engine = Engine(page.store, owner=owner, model="gpt-4o", window=12_000, embedder=None, **settings)
        chat = await engine.conversation(name)
        for _ in range(turns):
            await chat.add({"role": "user", "content": sentence(random, 120)})
            await chat.add({"role": "assistant", "content": sentence(random, 200)})
        await engine.rest()

    page.run(write)


@pytest.mark.parametrize("path", VIEWS)
def test_every_view_has_a_page_and_a_twin_with_the_same_headers(visitor, path):
    html, data = visitor.get(path), visitor.get(twin(path))

    assert (html.status, data.status) == (200, 200), html.text[-500:]
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert data.headers["content-type"] == "application/json"
    assert f'href="{twin(path).replace("&", "&amp;")}"' in html.text
    for answer in (html, data):
        assert answer.headers["cache-control"] == "no-store"
        assert HEADERS.items() <= answer.headers.items()
    assert isinstance(data.json(), dict)
    assert "<script>" not in html.text
    assert " style=" not in html.text


@pytest.mark.parametrize(
    "name", ["what? now", "a#b", "100% done", "a%2Fb", "Fähre 渡し船", "a&b=c", "x.json", "~1", '"quoted"']
)
def test_a_page_leads_to_its_twin_whatever_the_name(page, visitor, name):
    begin(page, name, 1)
    for url in (conversation_url(name), conversation_url(name, "messages", first=2)):
        html = visitor.get(url)
        link = unescape(re.search(r'<a href="([^"]*)">This page as JSON</a>', html.text)[1])

        assert html.status == 200
        assert link == twin(url)
        assert visitor.get(link).json()["name"] == name


def test_an_argument_of_any_name_is_ignored(visitor):
    assert visitor.get("/?path=1&name=2&self=3").status == 200


def test_the_policy_allows_nothing_but_our_own_files():
    assert HEADERS["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


def test_the_page_is_small_and_its_files_never_change_under_one_address(visitor):
    html = visitor.get("/").text
    files = [part.partition('"')[0] for part in html.split('"/static/')[1:]]
    sizes = [len(visitor.get(f"/static/{name}").body) for name in files]

    assert len(html) + sum(sizes) < 300_000
    assert len(files) >= 3
    assert all("?v=" in name for name in files)
    assert "immutable" in visitor.get(f"/static/{files[0]}").headers["cache-control"]
    for other in ("", "?v=", "?v=0123456789ab"):
        name = files[0].partition("?")[0]
        assert visitor.get(f"/static/{name}{other}").headers["cache-control"] == "no-cache"
    assert visitor.get("/static/../app.py").status in (403, 404)
    assert visitor.get("/static/base.html").status == 404


def test_the_list_has_every_conversation_once_page_by_page(visitor):
    found, after = [], ""
    while True:
        data = visitor.get(f"/index.json?limit=2&after={after}").json()
        found += [one["id"] for one in data["conversations"]]
        if not (after := data["next"]):
            break

    expected = [one["id"] for one in visitor.get("/index.json").json()["conversations"]]
    assert found == expected
    assert {name for name, *_ in TALKS} <= set(found)
    assert 'rel="next"' in visitor.get("/?limit=2").text


def test_the_list_shows_how_full_each_window_is_as_the_library_tells_it(visitor, page):
    shown = {one["id"]: one for one in visitor.get("/index.json").json()["conversations"]}

    async def listed():
        return await Engine(page.store, embedder=None).conversations()

    for one in page.run(listed):
        line = shown[one.id]
        assert (line["tokens"], line["limit"], line["messages"]) == (one.tokens, one.limit, one.messages)


def test_the_list_is_filtered_by_words_and_state(visitor, page):
    begin(page, "switched off", 2)
    page.run(lambda: Engine(page.store, embedder=None).switch("switched off", on=False))

    by_words = visitor.get("/index.json?words=FERRY+texel").json()["conversations"]
    off = visitor.get("/index.json?show=off").json()["conversations"]

    assert [one["id"] for one in by_words] == ["ferry-times"]
    assert [one["id"] for one in off] == ["switched off"]
    assert visitor.get("/?show=nonsense").status == 400
    assert visitor.get("/?after=nonsense").status == 400
    assert visitor.get("/?limit=0").status == 400


def test_today_s_effect_is_what_stats_tells(visitor, page):
    async def stats():
        return await Engine(page.store, embedder=None).stats(days=1)

    data, told = visitor.get("/index.json").json(), page.run(stats)

    assert data["today"] == json.loads(json.dumps(told.total.document()))
    assert data["compactions"]["installed"] == sum(
        one.count for one in told.compactions if one.outcome == "installed"
    )


def test_search_finds_messages_sessions_and_names(visitor):
    data = visitor.get("/search.json?words=Rotterdam").json()
    assert data["messages"]
    assert all("rotterdam" in one["text"].lower() for one in data["messages"])
    assert visitor.get("/search.json?words=ferry-times").json()["conversations"][0]["id"] == "ferry-times"
    assert visitor.get("/search").status == 200


@pytest.mark.parametrize("words", BAD_QUERIES, ids=range(len(BAD_QUERIES)))
def test_whatever_is_searched_for_gives_a_page(visitor, words):
    words = quote(words[:2_000], errors="replace")
    assert visitor.get(f"/search?words={words}").status == 200
    assert visitor.get(f"/search.json?words={words}").status == 200


# What needs attention


async def _never(messages, *, previous, max_tokens):
    raise RuntimeError("no model answers")


def attention(page: ServedPage) -> list[dict]:
    return Visitor(page.port).get("/index.json").json()["attention"]


def test_attention_names_what_is_wrong_the_most_urgent_first(monkeypatch):
    async def prepare(store: MemoryStore) -> None:
        random = Random(1)
        engine = Engine(store, model="gpt-4o", window=4_000, embedder=None, summariser=_never)
        chat = await engine.conversation("no summaries")
        for _ in range(3):
            for _ in range(8):
                await chat.add({"role": "user", "content": sentence(random, 120)})
            await chat.compact()
        await engine.rest()
        large = Engine(store, model="gpt-4o", window=100_000, embedder=None)
        chat = await large.conversation("too long")
        for _ in range(30):
            await chat.add({"role": "user", "content": sentence(random, 200)})
        await large.rest()
        small = Engine(store, model="gpt-4o", window=2_000, embedder=None)
        await small.switch("too long", on=False)
        again = await small.conversation("too long")
        await again.add({"role": "user", "content": "and now?"})
        await again.context()
        await small.rest()

    store = MemoryStore()
    with serve(store) as page:
        page.run(lambda: prepare(store))
        monkeypatch.setattr(type(page.gateway.backlog), "dropped", 2)
        found = attention(page)

    kinds = [one["kind"] for one in found]
    assert set(kinds) == {"breaker", "overflow", "not_kept"}
    assert found[kinds.index("breaker")]["conversation"] == "no summaries"
    order = {"bad": 0, "warm": 1, "info": 2}
    urgencies = [order[one["urgency"]] for one in found]
    assert urgencies == sorted(urgencies)


def test_nothing_needs_attention_in_an_empty_store():
    with serve(MemoryStore()) as page:
        visitor = Visitor(page.port)
        assert attention(page) == []
        assert "Nothing needs attention" in visitor.get("/").text
        assert "No conversations yet" in visitor.get("/").text


# Acts


def test_a_preview_changes_nothing_and_a_compaction_does_what_it_said(visitor, page):
    begin(page, "compacted", 14)
    before = visitor.get("/conversations/compacted.json").json()["status"]
    preview = visitor.get("/conversations/compacted/preview.json?keep=1000").json()["preview"]
    assert visitor.get("/conversations/compacted.json").json()["status"] == before

    visitor.get("/conversations/compacted/compact")
    done = visitor.act("/conversations/compacted/compact", keep="1000", focus="the ferry", model="digest")

    assert (done.status, done.location) == (303, "/conversations/compacted?done=compacted")
    after = visitor.get("/conversations/compacted.json").json()["status"]
    assert after["compactions"] == 1
    assert preview["before"] == before["tokens"]
    assert after["tokens"] < before["tokens"]
    assert NOTICES["compacted"] in visitor.get(done.location).text

    undone = visitor.act("/conversations/compacted/undo")
    assert undone.location == "/conversations/compacted?done=undone"
    assert visitor.get("/conversations/compacted.json").json()["status"]["tokens"] == before["tokens"]
    assert visitor.act("/conversations/compacted/undo").location.endswith("done=nothing-to-undo")


def test_a_compaction_is_made_again_by_another_preset(visitor, page):
    begin(page, "again", 14)
    visitor.get("/conversations/again/compact")
    assert visitor.act("/conversations/again/rerun").location.endswith("done=nothing-to-rerun")
    visitor.act("/conversations/again/compact", keep="1000")
    first = visitor.get("/conversations/again/compact.json").json()["last"]

    assert visitor.act("/conversations/again/rerun", preset="opal").location.endswith("done=rerun")

    last = visitor.get("/conversations/again/compact.json").json()["last"]
    assert last["id"] != first["id"]


def test_only_acts_that_can_work_are_offered(visitor, page):
    begin(page, "offered", 14)
    compact, acts = "/conversations/offered/compact", ("Undo it", "Make it again")
    assert not any(word in visitor.get(compact).text for word in acts)

    visitor.act(compact, keep="1000")
    assert all(word in visitor.get(compact).text for word in acts)

    visitor.act("/conversations/offered/new")
    found = visitor.get(f"{compact}.json").json()
    assert (found["last"], found["again"]) == (None, None)
    assert not any(word in visitor.get(compact).text for word in acts)
    assert visitor.act("/conversations/offered/undo").location.endswith("done=nothing-to-undo")


def test_mistakes_in_an_act_are_told_in_the_words_of_the_library(visitor, page):
    begin(page, "mistakes", 4)
    visitor.get("/conversations/mistakes/compact")
    for form, words in (
        ({"keep": "80%"}, "keep: it is a share, but tokens are needed"),
        ({"preset": "nonsense"}, "there is no such preset"),
        ({"focus": "x" * 5_000}, "focus"),
        ({"model": "openai:gpt-4o"}, "not one of those that may write summaries here"),
    ):
        answer = visitor.act("/conversations/mistakes/compact", **form)
        assert answer.status == 400
        assert words in answer.text
    assert visitor.act("/conversations/mistakes/pins", on="1", handle="#m999").status in (400, 404)
    assert visitor.act("/conversations/nope/compact").status == 404


def test_the_answer_of_an_act_names_no_twin_that_does_not_exist(visitor, page):
    begin(page, "no twin", 1)
    visitor.get("/conversations/no%20twin/compact")

    answer = visitor.act("/conversations/no%20twin/rerun", preset="none")

    assert answer.status == 400
    assert ".json" not in answer.text


def test_a_message_is_pinned_and_unpinned(visitor, page):
    begin(page, "pinned", 3)
    visitor.get("/conversations/pinned/pins")
    assert visitor.act("/conversations/pinned/pins", on="1", handle="#m2").status == 303
    assert [one["handle"] for one in visitor.get("/conversations/pinned/pins.json").json()["pins"]] == ["#m2"]
    visitor.act("/conversations/pinned/pins", on="0", handle="#m2")
    assert visitor.get("/conversations/pinned/pins.json").json()["pins"] == []


def test_a_new_session_begins_with_an_empty_window(visitor, page):
    begin(page, "sessions", 6)
    visitor.get("/conversations/sessions/compact")
    before = visitor.get("/conversations/sessions.json").json()["status"]["tokens"]

    assert visitor.act("/conversations/sessions/new").location == "/conversations/sessions?done=session"

    assert visitor.get("/conversations/sessions.json").json()["status"]["tokens"] < before / 4
    found = visitor.get("/refold/conversations/sessions/sessions").json()
    assert [one["kind"] for one in found] == ["root", "new"]


def test_a_conversation_is_switched_off_and_on(visitor, page):
    begin(page, "switch", 2)
    visitor.get("/conversations/switch/compact")
    visitor.act("/conversations/switch/switch", on="0")
    assert visitor.get("/refold/conversations/switch").json()["off"]
    for on in ("banana", "", "2"):
        assert visitor.act("/conversations/switch/switch", on=on).status == 400
    assert visitor.get("/refold/conversations/switch").json()["off"], "a mistake switches nothing"
    visitor.act("/conversations/switch/switch", on="1")
    assert not visitor.get("/refold/conversations/switch").json()["off"]


def test_a_conversation_is_deleted_only_by_its_typed_name(visitor, page):
    begin(page, "doomed", 2)
    visitor.get("/conversations/doomed/delete")

    refused = visitor.act("/conversations/doomed/delete", confirm="Doomed")
    assert (refused.status, "nothing was deleted" in refused.text) == (400, True)
    assert visitor.get("/conversations/doomed").status == 200

    assert visitor.act("/conversations/doomed/delete", confirm="doomed").location == "/?done=deleted"
    assert visitor.get("/conversations/doomed").status == 404
    assert visitor.act("/conversations/doomed/delete", confirm="doomed").status == 404


def replayed(visitor: Visitor, url: str, *presets: str, window: int = 4_000) -> tuple[str, dict]:
    """Replay a conversation, and wait for the result: its address and its twin."""
    visitor.get(url)
    done = visitor.act(url, window=f"{window}", **{f"preset-{one}": "1" for one in presets})
    assert done.status == 303, done.text
    while (data := visitor.get(twin(done.location)).json())["state"] == "running":
        time.sleep(0.02)
    assert data["state"] == "done", data
    return done.location, data


def test_a_replay_shows_the_columns_of_the_report(visitor, page):
    begin(page, "replayed", 16)
    url = "/conversations/replayed/replay"
    found, data = replayed(visitor, url, "refold", "opal")

    assert [row["candidate"] for row in data["table"]["rows"]] == ["refold", "opal"]
    html = visitor.get(found).text
    assert 'title="contexts within the window, %"' in html
    assert "there is no chart of recall against cost" in html, "random words are no facts"
    assert visitor.act(url, window="12").status == 400


def test_a_replay_draws_the_chart_of_the_report(visitor, page):
    """Every preset is a point at its recall and its cost, and those on the front are joined, as in the HTML of `refold replay`."""
    found, data = replayed(visitor, f"{PARSER}/replay", "refold", "opal", "picoclaw")
    html, rows = visitor.get(found).text, data["table"]["rows"]
    recorded = page.run(lambda: read_parser(page.store))

    counting, budget = CounterChoice("gpt-4o"), ReplayBudget(model="gpt-4o")
    names = ["refold", "opal", "picoclaw"]
    tariffs = tariffs_of("gpt-4o")
    cells = run(recorded, candidates(names), [4_000], counting, tariffs=tariffs, budget=budget)
    report = report_page(tabulate(cells, counting, budget=budget), cells)

    (chart,) = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert chart in report
    assert chart.count("<circle") == 3
    for row in rows:
        assert (
            f"{row['candidate']}: {row['fur_old']:.1f} % for ${row['dollars']['openai/gpt-4o']:,.2f}" in chart
        )
    assert data["table"]["tariffs"][0] == "openai/gpt-4o"
    assert "prices of <bdi>openai/gpt-4o</bdi>" in html
    assert html.count('aria-label="on the front"') == chart.count('class="point best"') > 0


def test_the_oldest_result_is_forgotten_when_too_much_is_held(visitor, page, monkeypatch):
    begin(page, "held", 16)
    monkeypatch.setattr("refold.dashboard.replay_jobs.MOST_CONTEXTS", 20)
    first, second = (replayed(visitor, "/conversations/held/replay", one)[0] for one in ("refold", "opal"))

    assert visitor.get(twin(first)).json()["state"] == "none"
    assert visitor.get(twin(second)).json()["state"] == "done"


async def read_parser(store: MemoryStore) -> tuple[Recording, ...]:
    engine = Engine(store, model="gpt-4o", window=12_000, embedder=None)
    return (await read_recording(await engine.conversation("agents/parser"), store),)


def test_a_replay_draws_the_contexts_of_each_preset_over_time(visitor):
    found, data = replayed(visitor, f"{PARSER}/replay", "refold", "opal", "llms")
    assert (data["shown"], len(data["calls"])) == ("refold", data["table"]["rows"][0]["calls"])
    for at, preset in enumerate(("refold", "opal", "llms")):
        url = f"{found}&shown={preset}"
        shown, html = visitor.get(twin(url)).json(), visitor.get(url).text
        row, calls = shown["table"]["rows"][at], shown["calls"]
        marks = re.findall(r'class="mark-line (\w+)"', html)

        assert f"The window over time, by {preset}" in html
        assert len(re.findall(r'class="target"', html)) == len(calls) == row["calls"]
        assert len(marks) == len([one for one in calls if one["changes"]]) > 0
        assert sum(one["cached"] for one in calls) / sum(one["prompt"] for one in calls) == pytest.approx(
            row["cache_hit"]["openai/gpt-4o"] / 100
        )
        changed = next(one for one in calls if one["changes"])
        told = unescape(visitor.get(f"{url}&call={changed['number']}").text)
        assert f"Call {changed['number']}: {changed['tokens']:,} tokens" in told
        assert changed["changes"][0]["why"] in told
        assert changed["tokens"] < changed["before"]


def test_a_long_replay_is_drawn_with_few_bars_and_the_chosen_call(visitor, page):
    begin(page, "many calls", 200)
    found, data = replayed(visitor, "/conversations/many%20calls/replay", "refold")
    changed = [one["number"] for one in data["calls"] if one["changes"]]
    chosen = min(data["calls"][1:], key=lambda one: one["tokens"])["number"]

    html = visitor.get(f"{found}&call={chosen}").text

    assert len(data["calls"]) == 200
    assert len(re.findall(r'class="target', html)) == MOST_BARS
    assert len(re.findall(r'class="mark-line', html)) == len(changed) > 5
    (label,) = re.findall(r'class="target chosen"[^>]*aria-label="([^"]*)"', html)
    assert label.startswith(f"call {chosen}:")
    assert "one of the calls" in html


def test_a_replay_stays_when_the_conversation_goes_on_and_says_of_how_much_it_is(visitor, page):
    begin(page, "growing", 16)
    url = "/conversations/growing/replay"
    found, data = replayed(visitor, url, "refold")
    assert data["messages"] == data["replayed"] == 32
    assert "These are the first" not in visitor.get(found).text

    begin(page, "growing", 1)

    data = visitor.get(twin(found)).json()
    assert (data["state"], data["messages"], data["replayed"]) == ("done", 34, 32)
    assert "These are the first 32 messages. The conversation has 34 by now" in visitor.get(found).text
    _, data = replayed(visitor, url, "refold")
    assert data["replayed"] == 34


def test_a_replay_has_the_calls_of_closed_sessions_as_the_report_of_an_export_has(visitor, page):
    begin(page, "two sessions", 8)

    async def go_on() -> tuple[Recording, ...]:
        engine = Engine(page.store, model="gpt-4o", window=12_000, embedder=None)
        chat = await engine.conversation("two sessions")
        await chat.start_session()
        random = Random("later")
        for _ in range(8):
            await chat.add({"role": "user", "content": sentence(random, 120)})
            await chat.add({"role": "assistant", "content": sentence(random, 200)})
        await engine.rest()
        found = await page.store.messages(chat.journal.head)
        messages = tuple(message for one in found if (message := read_stored(one, chat.journal.head)))
        assert len(chat.state.folded.branch) < len(messages) == 32
        return (Recording("two sessions", "exported", DIALECTS["chat"], (), messages),)

    recordings = page.run(go_on)
    _, data = replayed(visitor, "/conversations/two%20sessions/replay", "refold")

    counting, budget = CounterChoice("gpt-4o"), ReplayBudget(model="gpt-4o")
    own = tariffs_of("gpt-4o")
    cells = run(recordings, candidates(["refold"]), [4_000], counting, tariffs=own, budget=budget)
    (row,) = tabulate(cells, counting, budget=budget).rows
    (shown,) = data["table"]["rows"]
    assert (data["messages"], shown["calls"]) == (32, row.calls) == (32, 16)
    assert shown["dollars"] == pytest.approx(row.dollars)


# Settings


def test_a_setting_is_shown_with_origin_and_range_and_changed_with_the_same_checks(visitor):
    def line(name: str) -> dict:
        sections = visitor.get("/settings.json").json()["sections"]
        return next(one for lines in sections.values() for one in lines if one["name"] == name)

    assert line("cache.ttl")["choices"] == ["5m", "1h", "off"]
    assert line("compaction.tool_policy")["choices"][:3] == ["auto", "keep_all", "keep_none"]
    assert line("summariser.strategy")["choices"][0] == "abstractive"
    assert line("summariser.temperature")["choices"] == []
    found = line("compaction.limit")
    assert found["takes"] == "tokens (4000, 4k) or a share (25%)"
    assert (found["is_default"], found["is_tunable"]) == (True, True)
    visitor.get("/settings")
    done = visitor.act("/settings", name="compaction.limit", value="70%")
    assert done.location == "/settings?done=saved#compaction.limit"
    changed = line("compaction.limit")
    assert (changed["value"], changed["is_changed"]) == ("70%", True)
    assert visitor.get("/refold/config").json()["settings"]["compaction"]["limit"] == "70%"

    for name, value, words in (
        ("compaction.limit", "70", "it may be tokens or percent"),
        ("compaction.limit", "0%", "it leaves no tokens to use"),
        ("compaction.trigger", "70%", "does not use it"),
        ("compaction.window", "9000", "flag"),
        ("server.port", "1", "server.port"),
        ("nonsense.key", "1", "there is no such setting"),
    ):
        answer = visitor.act("/settings", name=name, value=value)
        assert answer.status == 400, (name, answer.status)
        assert words in answer.text, (name, answer.text[-900:])
    assert line("compaction.limit")["value"] == "70%"
    visitor.act("/settings", name="compaction.limit", reset="1", value="")
    assert line("compaction.limit")["is_default"]
    for name, value, stored in (
        ("compaction.keep_recent", "4k", 4_000),
        ("compaction.include_usage", "true", True),
        ("compaction.read_tools", "read_file, open", ["read_file", "open"]),
        ("compaction.recoveries", "1", 1),
    ):
        assert visitor.act("/settings", name=name, value=value).status == 303, name
        assert line(name)["value"] == stored
        visitor.act("/settings", name=name, reset="1", value="")


def test_an_undo_that_another_change_needs_says_what_to_undo_first(page, visitor):
    visitor.get("/settings")
    for name, value in (("compaction.preset", "opal"), ("compaction.trigger", "60%")):
        assert visitor.act("/settings", name=name, value=value).status == 303
    answer = visitor.act("/settings", name="compaction.preset", reset="1", value="")
    assert answer.status == 400
    assert "undo the change of compaction.trigger first" in answer.text
    for name in ("compaction.trigger", "compaction.preset"):
        assert visitor.act("/settings", name=name, reset="1", value="").status == 303


# Acts come from our own page


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        ("", {}, 403),
        ("0" * 64, {}, 403),
        (None, {"origin": "https://evil.example"}, 403),
        (None, {"origin": "null"}, 403),
        (None, {"sec_fetch_site": "cross-site"}, 403),
        (None, {"sec_fetch_site": "same-site"}, 403),
        (None, {"sec_fetch_site": "none"}, 403),
        (None, {"content_type": "text/plain"}, 400),
        (None, {"content_type": "multipart/form-data; boundary=x"}, 400),
        (None, {"host": "evil.example"}, 403),
    ],
)
def test_an_act_without_its_token_or_from_another_page_is_refused(visitor, page, token, headers, status):
    begin(page, "guarded", 2)
    visitor.get("/conversations/guarded/delete")

    answer = visitor.act("/conversations/guarded/delete", token=token, headers=headers, confirm="guarded")

    assert answer.status == status
    assert visitor.get("/conversations/guarded").status == 200


@pytest.mark.parametrize("path", ["compact", "undo", "rerun", "new", "switch", "pins", "delete", "replay"])
def test_no_act_runs_without_a_token_and_none_by_get(visitor, page, path):
    begin(page, "untouched", 4)
    before = visitor.get("/conversations/untouched.json").json()
    visitor.get("/conversations/untouched/compact")

    assert (
        visitor.act(
            f"/conversations/untouched/{path}", token="", confirm="untouched", on="1", handle="#m1"
        ).status
        == 403
    )
    visitor.get(f"/conversations/untouched/{path}?confirm=untouched")

    assert visitor.get("/conversations/untouched.json").json() == before
    for other in ("/settings", "/settings/forget", "/sign-out"):
        assert visitor.act(other, token="").status == 403


def test_a_form_that_is_too_long_is_refused(visitor):
    visitor.get("/settings")
    assert visitor.act("/settings", name="compaction.prompt", value="x" * 70_000).status == 413


# Names in addresses

NAMES = [
    "plain",
    "a/b",
    "a/../b",
    "..",
    ".",
    "x.json",
    "~tilde~1",
    "50 % off?",
    "a%2Fb",
    "ü#ñ",
    "a\\b",
    "…",
    "compact",
    "a/compact",
]


def test_the_address_above_all_conversations_leads_to_the_list(visitor):
    for path, target in (
        ("/conversations", "/"),
        ("/conversations/", "/"),
        ("/conversations.json", "/index.json"),
    ):
        told = visitor.get(path)
        assert (told.status, told.location) == (303, target), path


def test_the_words_of_a_tool_result_are_in_the_twins(visitor, page):
    async def write() -> None:
        chat = await Engine(page.store, model="gpt-4o", window=12_000, embedder=None).conversation("results")
        for turn in range(14):
            call = {"id": f"c{turn}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            await chat.add({"role": "user", "content": f"read file {turn}"})
            await chat.add({"role": "assistant", "content": None, "tool_calls": [call]})
            await chat.add(
                {
                    "role": "tool",
                    "tool_call_id": f"c{turn}",
                    "content": f"line {turn} of the ferry ledger. " * 40,
                }
            )
            await chat.add({"role": "assistant", "content": "done"})

    page.run(write)
    visitor.get("/conversations/results/pins")
    visitor.act("/conversations/results/pins", on="1", handle="#m2")

    (pin,) = visitor.get("/conversations/results/pins.json").json()["pins"]
    assert (pin["role"], pin["text"][:27]) == ("tool", "line 0 of the ferry ledger.")
    preview = visitor.get("/conversations/results/preview.json?keep=500").json()["preview"]
    results = [one["text"] for one in preview["messages"] if one["role"] == "tool"]
    assert results
    assert all("of the ferry ledger" in one for one in results)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_address_of_its_own(visitor, page, name):
    begin(page, name, 1)

    assert name_in(conversation_url(name).removeprefix("/conversations/")) or True
    for path in (conversation_url(name), conversation_url(name, "compact"), conversation_url(name, "delete")):
        assert visitor.get(path).status == 200, path
    assert visitor.get(f"{conversation_url(name)}.json").json()["name"] == name
    assert f'href="{conversation_url(name)}.json"' in visitor.get(conversation_url(name)).text
    visitor.get(conversation_url(name, "delete"))
    assert visitor.act(conversation_url(name, "delete"), confirm=name).location == "/?done=deleted"


@pytest.mark.parametrize(
    "path",
    ["/conversations/%00", "/conversations/x%00y/compact", "/conversations/x?branch=%00"],
)
def test_a_name_that_no_store_can_hold_is_not_found(visitor, path):
    assert visitor.get(path).status == 404


def test_the_words_of_a_search_are_marked(visitor):
    page = visitor.get("/search?words=Rotterdam").text
    assert "<mark>rotterdam</mark>" in page
    found = visitor.get("/search.json?words=Rotterdam").json()["messages"][0]
    recall = conversation_url(found["conversation"], "recall", what="Rotterdam")
    assert "<mark>rotterdam</mark>" in visitor.get(recall).text
    assert "there is no such date" in visitor.get("/search?words=Rotterdam+after:2026-13").text


@pytest.mark.parametrize("path", ["/?words=%00", "/search?words=a%00b", "/search.json?words=%00"])
def test_a_nul_in_a_search_is_told(visitor, path):
    answer = visitor.get(path)

    assert answer.status == 400
    assert "NUL" in answer.text


def test_a_nul_in_a_form_is_told(visitor, page):
    begin(page, "nul", 1)
    visitor.get("/conversations/nul/compact")

    answer = visitor.act("/conversations/nul/compact", focus="a\0b")

    assert answer.status == 400
    assert "NUL" in answer.text


@pytest.mark.parametrize("rest", ["", "/calls", "/calls/1", "/changes", "/messages", "/compact", "/preview", "/pins", "/replay", "/delete"])  # fmt: skip
def test_a_page_of_nothing_hints_at_a_page(visitor, rest):
    answer = visitor.get(f"/conversations/nothing{rest}")

    assert answer.status == 404
    assert "see the list of conversations" in answer.text
    assert "/refold/" not in answer.text


# Sign-in


@pytest.fixture(scope="module")
def guarded():
    """The page of a gateway with keys: Anna's, Boris's, and Boris's as an admin."""
    with serve(MemoryStore()) as served:
        for owner in ("anna", "boris"):
            begin(served, f"talk of {owner}", 3, owner=owner)
        served.keys = {"anna": served.make_key("anna"), "boris": served.make_key("boris")}
        served.keys["admin"] = served.make_key("boris", admin=True)
        yield served


@pytest.fixture
def anna(guarded) -> Visitor:
    visitor = Visitor(guarded.port)
    assert visitor.sign_in(guarded.keys["anna"]).status == 303
    return visitor


@pytest.mark.parametrize("path", VIEWS)
def test_without_a_key_every_page_asks_for_one(guarded, path):
    visitor = Visitor(guarded.port)
    asked = visitor.get(path)

    assert asked.status == 303
    assert asked.location == (
        "/sign-in" if path == "/" else f"/sign-in?next={quote(path, safe='')}".replace("~", "~")
    )
    assert visitor.get(twin(path)).status == 401
    assert visitor.get("/live").status == 401
    assert visitor.get("/static/page.css").status == 200


@pytest.mark.parametrize("name", ["what? now", "a#b", "100% done", "Fähre"])
def test_a_sign_in_goes_on_with_the_page_that_was_asked_for(guarded, name):
    visitor, wanted = Visitor(guarded.port), conversation_url(name, "messages", first=2)
    asked = parse_qs(urlsplit(visitor.get(wanted).location).query)["next"][0]
    visitor.get("/sign-in")

    assert visitor.act("/sign-in", key=guarded.keys["anna"], next=asked).location == wanted


def test_a_session_has_a_cookie_that_no_script_and_no_other_site_gets(guarded):
    visitor = Visitor(guarded.port)
    visitor.get("/sign-in")
    answer = visitor.act("/sign-in", key=guarded.keys["anna"], next="/effect")
    (cookie,) = answer.cookies

    assert answer.location == "/effect"
    assert "; HttpOnly" in cookie
    assert "; SameSite=Strict" in cookie
    assert "; Path=/" in cookie
    assert "Secure" not in cookie
    assert guarded.keys["anna"] not in cookie
    assert len(cookie.partition(";")[0]) > 40
    assert "; Secure" in session_cookie("x", is_secure=True)
    other = Visitor(guarded.port)
    other.get("/sign-in")
    tls = other.act("/sign-in", key=guarded.keys["anna"], headers={"x_forwarded_proto": "https"})
    assert "; Secure" in tls.cookies[0]
    assert other.get("/").status == 200


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "x"]
)
def test_a_sign_in_leads_to_our_own_pages_only(guarded, target):
    visitor = Visitor(guarded.port)
    visitor.get("/sign-in")

    assert visitor.act("/sign-in", key=guarded.keys["anna"], next=target).location == "/"


@pytest.mark.parametrize("key", ["", "nonsense", "rf_000000000000_" + "0" * 48])
def test_a_wrong_key_is_refused_and_not_repeated(guarded, key):
    visitor = Visitor(guarded.port)
    visitor.get("/sign-in")
    answer = visitor.act("/sign-in", key=key)

    assert answer.status == 401
    assert answer.cookies == []
    assert not key or key not in answer.text


def test_a_key_is_not_taken_by_a_form_of_another_page(guarded):
    visitor = Visitor(guarded.port)
    assert visitor.act("/sign-in", key=guarded.keys["anna"], token="").status == 403


def test_an_owner_sees_only_what_is_theirs(anna, guarded):
    assert [one["id"] for one in anna.get("/index.json").json()["conversations"]] == ["talk of anna"]
    mine, theirs = conversation_url("talk of anna"), conversation_url("talk of boris")
    assert anna.get(mine).status == 200
    for path in ("", "/compact", "/pins", "/replay", "/delete"):
        assert anna.get(f"{theirs}{path}").status == 404
        assert anna.get(f"{theirs}{path}.json").status == 404
    anna.get(f"{mine}/compact")
    for path in ("/compact", "/undo", "/rerun", "/new", "/switch", "/pins", "/delete", "/replay"):
        answer = anna.act(f"{theirs}{path}", confirm="talk of boris", on="1", handle="#m1")
        assert answer.status == 404, path
        said = answer.text.replace("talk of boris", "").replace(theirs, "")
        assert "boris" not in said or path == "/delete"
    assert anna.get("/search.json?words=boris").json()["conversations"] == []
    assert anna.get("/operations").status == 403
    assert "/operations" not in anna.get("/").text
    assert "server.host" not in anna.get("/settings").text


def test_a_name_that_does_not_exist_is_answered_like_another_s(anna):
    strange, theirs = anna.get("/conversations/strange"), anna.get(conversation_url("talk of boris"))

    assert strange.status == theirs.status == 404
    assert (
        theirs.text.replace("talk%20of%20boris", "strange").replace("talk of boris", "strange")
        == strange.text
    )


def test_an_admin_sees_operations_without_content(guarded):
    visitor = Visitor(guarded.port)
    visitor.sign_in(guarded.keys["admin"])
    shown, data = visitor.get("/operations"), visitor.get("/operations.json")

    assert shown.status == 200
    assert "The last 30 days," in shown.text
    assert {one["id"] for one in data.json()["keys"]} == {key.split("_")[1] for key in guarded.keys.values()}
    for text in (shown.text, data.text):
        assert "talk of" not in text
        assert not any(key in text for key in guarded.keys.values())
        assert "digest" not in data.json()["keys"][0]
    assert visitor.get(conversation_url("talk of anna")).status == 404
    assert "server.host" in visitor.get("/settings").text


def test_a_token_of_another_session_is_refused(anna, guarded):
    other = Visitor(guarded.port)
    other.sign_in(guarded.keys["boris"])
    other.get("/settings")
    anna.get("/settings")

    assert other.token != anna.token
    assert anna.act("/settings", token=other.token, name="compaction.trigger", value="70%").status == 403


def test_a_session_ends_with_the_sign_out(anna):
    anna.get("/")
    cookie = anna.cookie
    answer = anna.act("/sign-out")

    assert answer.location == "/sign-in?done=signed-out"
    assert "Max-Age=0" in answer.cookies[0]
    assert anna.get("/", cookie=cookie).status == 303


def test_an_act_of_a_user_is_told_to_those_who_watch(anna, guarded):
    begin(guarded, "watched", 3, owner="anna")
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=30)
    connection.request("GET", "/live", headers={"cookie": anna.cookie})
    stream = connection.getresponse()
    assert stream.readline() == b":\n"

    anna.get("/conversations/watched/compact")
    anna.act("/conversations/watched/pins", handle="#m1", on="1")
    anna.act("/conversations/watched/switch", on="0")
    anna.act("/conversations/watched/delete", confirm="watched")

    told = [stream.readline() for _ in range(13)]
    connection.close()
    assert told.count(b"event: changed\n") == 3
    events = anna.get("/").text.partition('data-events="')[2].partition('"')[0].split()
    assert "changed" in events


def test_the_live_stream_ends_with_the_sign_out(anna, guarded):
    anna.get("/")
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=30)
    connection.request("GET", "/live", headers={"cookie": anna.cookie})
    stream = connection.getresponse()
    assert stream.readline() == b":\n"

    anna.act("/sign-out")

    assert stream.read() == b"\n", "nothing comes after the sign of life of the beginning"
    connection.close()


async def test_a_session_tells_its_end(monkeypatch):
    monkeypatch.setattr("refold.dashboard.browser_access.FOLLOW_S", 0.01)
    now, store = 0.0, MemoryStore()
    sessions, elsewhere = (BrowserSessions(store, lambda: now) for _ in range(2))
    key = ClientKey(owner="anna", id="1", digest=b"")
    await store.add_key(key)
    ids = [await sessions.begin(key) for _ in range(4)]
    headers = [[(b"cookie", session_cookie(one, is_secure=False).encode())] for one in ids]
    signed_out, signed_out_elsewhere, expired, revoked = [await sessions.find(one) for one in headers]
    waiting = [asyncio.create_task(sessions.wait_for_end(one)) for one in (signed_out, signed_out_elsewhere)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)

    await sessions.end(signed_out)
    await elsewhere.end(signed_out_elsewhere)

    await asyncio.gather(*waiting)
    assert [await elsewhere.find(one) is None for one in headers] == [True, True, False, False]
    waiting = [asyncio.create_task(sessions.wait_for_end(revoked))]
    await asyncio.sleep(0)
    await store.revoke_key("anna", "1", 1.0)
    await asyncio.gather(*waiting)
    now = SESSION_S
    await sessions.wait_for_end(expired)
    assert await sessions.find(headers[2]) is None


async def test_the_store_has_digests_of_sessions_and_nothing_that_signs_a_browser_in():
    store = MemoryStore()
    sessions, key = BrowserSessions(store), ClientKey(owner="anna", id="1", digest=b"")
    await store.add_key(key)
    which = await sessions.begin(key)
    secret = which.partition(".")[2]
    ((mark, value),) = await store.all_learnt("anna", "browser")
    found = await sessions.find([(b"cookie", f"refold_session={which}".encode())])
    assert secret not in mark
    assert secret.encode() not in value
    assert found.token not in mark
    for guess in (mark, f"1.{mark}", f"1.{found.token}", secret, f"2.{secret}", f".{secret}", "1."):
        assert await sessions.find([(b"cookie", f"refold_session={guess}".encode())]) is None


def test_a_session_ends_with_its_key(guarded, monkeypatch):
    monkeypatch.setattr("refold.gateway.auth.REMEMBER_S", 0.0)
    key = guarded.make_key("carla")
    visitor = Visitor(guarded.port)
    visitor.sign_in(key)
    assert visitor.get("/").status == 200
    guarded.run(lambda: guarded.store.revoke_key("carla", key.split("_")[1], 1.0))

    assert visitor.get("/").status == 303


def test_a_session_counts_for_the_page_alone(anna):
    assert anna.get("/refold/status").status == 401
    assert anna.get("/v1/models").status == 401
    assert anna.get("/metrics").status == 401
    assert not is_page("/refold/status")
    assert not is_page("/v1/models")
    assert not is_page("/healthz")
    assert is_page("/")
    assert is_page("/conversations/x")
    assert is_page("/index.json")


def test_a_client_with_a_key_in_a_header_reads_the_twins(guarded):
    answer = Visitor(guarded.port).get("/index.json", authorization=f"Bearer {guarded.keys['anna']}")

    assert [one["id"] for one in answer.json()["conversations"]] == ["talk of anna"]


async def test_sessions_end_after_twelve_hours_and_are_limited():
    now, store = 1_000.0, MemoryStore()
    names = iter(f"secret-{number}" for number in range(5_000))
    sessions = BrowserSessions(store, lambda: now, lambda: next(names))
    key = ClientKey(owner="anna", id="1", digest=b"")
    await store.add_key(key)
    first = await sessions.begin(key)

    async def find(which: str):
        return await sessions.find([(b"cookie", f"theme=dark; refold_session={which}".encode())])

    assert (await find(first)).owner == "anna"
    assert await find("guess") is None
    assert await sessions.find([(b"cookie", b"refold_session=a"), (b"cookie", b"refold_session=b")]) is None
    now += SESSION_S
    assert await find(first) is None
    later = list[str]()
    for _ in range(101):
        now += 1
        later.append(await sessions.begin(key))
    assert await find(later[0]) is None
    assert await find(later[1]) is not None
    assert await find(later[-1]) is not None
    assert len(await store.all_learnt("anna", "browser")) == 100


def test_without_keys_only_names_of_this_machine_are_served(visitor, page):
    for host, status in (
        ("localhost", 200),
        ("127.0.0.1:1", 200),
        ("evil.example", 403),
        (f"evil.example:{page.port}", 403),
    ):
        assert visitor.get("/", host=host).status == status
    assert visitor.get("/", x_forwarded_for="203.0.113.9").status == 403
    assert visitor.get("/", sec_fetch_site="cross-site").status == 403
    assert visitor.get("/", origin="https://evil.example").status == 403
