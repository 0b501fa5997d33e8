"""The speed of the page: `python -m benchmarks.dashboard [--conversations 5000] [--messages 10000] [--json]`.

A store in a file gets conversations of three lengths, each written once by the engine as a program would, with its calls and
compactions, and copied row by row until there are enough. Every view is then asked for over HTTP, and opened in Chromium. Compare the
ratios to an empty page (the first page of an empty store) of the same run: absolute times differ between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import apsw
from yarl import URL

from refold.config import flag_layer, resolve
from refold.engine.engine import Engine
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules
from refold.gateway.server import build
from refold.gateway.upstreams import Target, Targets
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.dashboard.browser import CHROMIUM, FLAGS
from tests.dashboard.example_store import Clock, sentence, write_summary
from tests.gateway.served_gateway import serving

SERVER_MS, INTERACTIVE_MS = 200, 1_000
"""The promises: HTML of a view, and a view that answers."""
REPEATS = 7
LONG, MIDDLE, SHORT = "/conversations/long", "/conversations/middle", "/conversations/short"
VIEWS = {
    "home": "/",
    "home, filtered": "/?words=copy+77",
    "home, compaction due": "/?show=due",
    "search": "/search?words=ferry+Rotterdam",
    "effect by day": "/effect?days=30",
    "settings": "/settings",
    "operations": "/operations",
    "conversation, short": SHORT,
    "conversation": LONG,
    "calls": f"{LONG}/calls",
    "changes": f"{LONG}/changes",
    "messages": f"{LONG}/messages",
    "recall": f"{LONG}/recall?what=ferry+Rotterdam",
    "compact": f"{LONG}/compact",
    "pins": f"{LONG}/pins",
    "replay": f"{LONG}/replay",
    "delete": f"{LONG}/delete",
}


async def write(url: str, name: str, messages: int) -> None:
    """A conversation with its calls and compactions, as a program writes it."""
    random, clock, now = Random(name), Clock(0.0), time.time()
    async with Engine(
        url, model="gpt-4o", window=32_000, embedder=None, clock=clock, summariser=write_summary
    ) as engine:
        clock.now = now - messages * 60
        chat = await engine.conversation(name, title=f"The {name} one", system="Be brief.")
        for turn in range(messages // 2):
            clock.now = now - (messages - 2 * turn) * 60
            await chat.add({"role": "user", "content": sentence(random, 40)})
            await chat.context()
            tokens = (await chat.status()).tokens
            await chat.record(
                {
                    "prompt_tokens": tokens,
                    "completion_tokens": 60,
                    "prompt_tokens_details": {"cached_tokens": tokens // 2},
                }
            )
            await chat.add({"role": "assistant", "content": sentence(random, 60)})
        await chat.ready()


def copy(path: Path, name: str, count: int, first: int) -> None:
    """Copy a conversation with all its rows, `count` times."""
    database = apsw.Connection(str(path))
    database.pragma("foreign_keys", False)
    database.pragma("synchronous", 0)
    columns = {
        table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        for table in ("conversation", "branch", "session", "compaction", "summary", "call")
    }
    marked = {
        "conversation": ("id",),
        "branch": ("id", "conversation", "session"),
        "session": ("id", "conversation", "branch", "parent", "summary", "target"),
        "compaction": ("id", "branch", "base", "session"),
        "summary": ("id", "branch"),
        "call": ("id", "conversation", "branch", "session"),
    }
    (old,) = database.execute("SELECT ordinal, id FROM branch WHERE conversation = ?", (name,)).fetchall()
    with database:
        (top,) = database.execute("SELECT max(ordinal) FROM branch").fetchone()
        for number in range(count):
            mark = f" copy {first + number}"
            for table, names in marked.items():
                kept = [one for one in columns[table] if one != "ordinal"]
                values = ", ".join(
                    f"CASE WHEN {one} = '' THEN '' ELSE {one} || :mark END" if one in names else one
                    for one in kept
                )
                where = {
                    "conversation": "id = :name",
                    "branch": "conversation = :name",
                    "session": "conversation = :name",
                    "call": "conversation = :name",
                }.get(table, "branch = :branch")
                database.execute(
                    f"INSERT INTO {table} ({', '.join(kept)}) SELECT {values} FROM {table} WHERE owner = 'local' AND {where}",
                    {"mark": mark, "name": name, "branch": old[1]},
                )
            new = top + 1 + number
            database.execute(
                "INSERT INTO message (id, role, format, tokens, is_findable, body, digest, shown, key, at) "
                "SELECT (:new << 32) + (id & 4294967295), role, format, tokens, is_findable, body, digest, shown, key, at "
                "FROM message WHERE id >= :old << 32 AND id < (:old + 1) << 32",
                {"new": new, "old": old[0]},
            )
    found = database.execute("SELECT max(ordinal) FROM branch").fetchone()[0]
    assert found == top + count, "messages were copied to other branches"
    database.close()


async def fill(path: Path, conversations: int, messages: int) -> None:
    url = f"sqlite:///{path}"
    for name, size in (("long", messages), ("middle", max(4, messages // 10)), ("short", 40)):
        await write(url, name, size)
    long, middle = max(1, conversations // 1_000), max(1, conversations // 50)
    copy(path, "long", long, 0)
    copy(path, "middle", middle, long)
    copy(path, "short", conversations - long - middle - 3, long + middle)


@asynccontextmanager
async def served(store):
    """The port of a gateway before a store."""
    target = Target(name="scripted", url="http://127.0.0.1:9/v1", formats=("chat",), is_private=True)
    resolved = resolve([flag_layer({"compaction.window": "32000", "summariser.enabled": False})])
    gateway = Gateway(store, resolved, Targets([target]))
    try:
        async with serving(build(gateway, Admin(gateway, "bench"), Rules())) as port:
            yield port
    finally:
        await gateway.close()


async def newest_views(session: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """The pages of the newest call and of the newest change of the long conversation."""
    found = {}
    for view, rows, key in (("one call", "calls", "number"), ("one change", "changes", "id")):
        async with session.get(f"{url}{LONG}/{rows}.json") as response:
            listed = (await response.json())[rows]
        found[view] = f"{LONG}/{rows}/{listed[0][key]}"
    return found


async def replayed_view(session: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """The page of a replay that is done. That of the longest conversation would take minutes."""
    async with session.get(f"{url}{MIDDLE}/replay") as response:
        token = re.search(r'name="token" value="([0-9a-f]+)"', await response.text())
    form = {"token": token[1] if token else "", "preset-refold": "1", "preset-opal": "1", "window": "4000"}
    async with session.post(f"{url}{MIDDLE}/replay", data=form) as response:
        assert response.status == 200, response.status
        path, _, query = str(response.url.relative()).partition("?")
    while True:
        async with session.get(URL(f"{url}{path}.json?{query}", encoded=True)) as response:
            if (await response.json())["state"] != "running":
                return {"replay, done": f"{path}?{query}"}
        await asyncio.sleep(0.1)


async def asked_ms(session: aiohttp.ClientSession, url: str) -> tuple[float, float, float, int]:
    """The first time that a view is asked for, the median of later times, that of their processor time, and the size of the HTML.
    The processor time has the client's part in it, and leaves out the waiting for a core.
    """
    times, used = [], []
    for _ in range(REPEATS + 1):
        began, worked = time.perf_counter(), time.process_time()
        async with session.get(URL(url, encoded=True)) as response:
            body = await response.read()
            assert response.status == 200, (url, response.status)
        times.append(1_000 * (time.perf_counter() - began))
        used.append(1_000 * (time.process_time() - worked))
    return times[0], statistics.median(times[1:]), statistics.median(used[1:]), len(body)


async def opened_ms(browser, url: str) -> float:
    """Median milliseconds from the request until the page's script has run."""
    times = []
    for _ in range(3):
        page = await browser.new_page()
        await page.goto(url)
        await page.wait_for_selector("html[data-ready]")
        times.append(float(await page.get_attribute("html", "data-ready")))
        await page.close()
    return statistics.median(times)


async def measure(conversations: int, messages: int) -> dict[str, object]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path, began = folder / "bench.db", time.perf_counter()
        await fill(path, conversations, messages)
        filled = time.perf_counter() - began
        store = await open_store(f"sqlite:///{path}")
        stack.push_async_callback(store.close)
        rows = {
            "conversations": conversations,
            "messages": messages,
            "megabytes": path.stat().st_size / 1e6,
            "filled_s": filled,
        }
        full = await stack.enter_async_context(served(store))
        empty = await stack.enter_async_context(served(MemoryStore()))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        _, bare, work, _ = await asked_ms(session, f"http://127.0.0.1:{empty}/")
        found = {"empty page": {"first_ms": bare, "server_ms": bare, "cpu_ms": work, "bytes": 0}}
        url = f"http://127.0.0.1:{full}"
        views = VIEWS | await newest_views(session, url) | await replayed_view(session, url)
        for name, path_ in views.items():
            first, median, work, size = await asked_ms(session, f"http://127.0.0.1:{full}{path_}")
            found[name] = {
                "first_ms": first,
                "server_ms": median,
                "cpu_ms": work,
                "ratio": median / bare,
                "bytes": size,
            }
        if CHROMIUM is not None:
            from playwright.async_api import async_playwright

            player = await stack.enter_async_context(async_playwright())
            browser = await player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            stack.push_async_callback(browser.close)
            await opened_ms(browser, f"http://127.0.0.1:{empty}/")
            blank = await opened_ms(browser, f"http://127.0.0.1:{empty}/")
            found["empty page"]["interactive_ms"] = blank
            for name, path_ in views.items():
                took = await opened_ms(browser, f"http://127.0.0.1:{full}{path_}")
                found[name] |= {"interactive_ms": took, "interactive_ratio": took / blank}
        return {**rows, "views": found}


def table(measured: dict) -> str:
    lines = [
        f"{measured['conversations']:,} conversations of up to {measured['messages']:,} messages, {measured['megabytes']:,.0f} MB",
        f"{'view':<22}{'first ms':>10}{'server ms':>11}{'cpu ms':>8}{'ratio':>8}{'interactive ms':>16}{'ratio':>8}{'KB':>8}",
    ]
    for name, one in measured["views"].items():
        over = one["server_ms"] > SERVER_MS or one.get("interactive_ms", 0) > INTERACTIVE_MS
        lines.append(
            f"{name:<22}{one['first_ms']:>10.1f}{one['server_ms']:>11.1f}{one['cpu_ms']:>8.1f}{one.get('ratio', 1):>8.1f}"
            f"{one.get('interactive_ms', float('nan')):>16.0f}{one.get('interactive_ratio', 1):>8.1f}{one['bytes'] / 1e3:>8.0f}"
            f"{'  over the limit' if over else ''}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=5_000)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    result = asyncio.run(measure(asked.conversations, asked.messages))
    print(json.dumps(result, indent=2) if asked.json else table(result))
