"""`python -m benchmarks.cluster`: measures gateways of one and two processes and a worker on PostgreSQL, and says how large a cluster
has to be. `--write docs/cluster.md` puts the result into the page. `--only PART --into FILE` measures a part and keeps it; with all
parts in the file, `--from FILE` makes the page of them.

CPU times are those of the processes, from the kernel; the machine may do other work. Latencies are compared side by side, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

import aiohttp
import psycopg
from msgspec import structs

from benchmarks.cluster.capacity import Assumptions, Costs, Size, fit, size_of
from refold.testing import Received, ScriptedUpstream
from tests.cluster.parts import SUMMARY, Client, Cluster, Part, is_question
from tests.contract.postgres import make_database, start_server

BEGIN, END = "<!-- capacity: begin -->", "<!-- capacity: end -->"
DAYS = (100, 10_000, 1_000_000)
AT_ONCE = 8
TICKS = os.sysconf("SC_CLK_TCK")
JOB_TURNS = 24
"""Enough for a compaction or two of each conversation."""
WORDS = (30, 300)
"""Words of a message: two sizes of requests, for the line through them."""
IDLE_S = 0.03
"""CPU seconds in a second and a half below which a gateway rests."""
RATE = 60.0
"""Requests a second: a third of what these cores can do with the clients, the provider and PostgreSQL beside the gateway."""
TALK_TURNS = 20
"""Turns of a conversation."""
KINDS = ("kept", "any", "full")
"""Each client over a connection of its own; each request over a new one, so that any process gets it, as behind the load balancer of
deploy/Caddyfile; and as many requests as the machine can do, over connections that are kept."""


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):  # it has ended since
            total += time.clock_gettime(
                ~pid << 3 | 2
            )  # its clock, as by clock_getcpuclockid(3): /proc has hundredths only
    return total


def family(pid: int) -> list[int]:
    """A process and its children."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(one for child in found for one in family(int(child)))]


class Database:
    """A PostgreSQL of our own, with its CPU time and its commits."""

    def __init__(self) -> None:
        self._server = start_server()

    def make(self, name: str) -> str:
        self.url = make_database(self._server, name)
        return self.url

    def close(self) -> None:
        self._server.cleanup()

    def reading(self, url: str = "") -> tuple[float, int, int]:
        """CPU seconds, commits and bytes so far. Processes of connections that have ended count for their parent."""
        pid = int((self._server.pgdata / "postmaster.pid").read_text().split()[0])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / TICKS
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            # Transactions that wrote have a number; those that only read have none.
            commits = connection.execute(
                "SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
            ).fetchone()
            size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert commits
        assert size
        return cpu_s(family(pid)) + ended, commits[0], size[0]


class Load:
    """Clients that talk, each over a connection of its own as programs do, and how long each of their requests took. Without
    `keeps`, each request has a new connection, and reaches any process.
    """

    def __init__(self, count: int, words: int, prefix: str, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self.clients = [Client(f"{prefix}-{number}", words=words) for number in range(count)]
        self.took_s: list[float] = []
        self.sizes_kb: list[float] = []
        self.failed = 0

    async def __aenter__(self) -> Self:
        self._sessions = [
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=not self._keeps))
            for _ in self.clients
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions:
            await session.close()

    async def run(self, address: str, turns: int, rate: float = 0.0) -> None:
        """Let each client talk for some turns: so many requests a second, or `AT_ONCE` at a time, as fast as they go."""
        count = len(self.clients)
        queue, locks = [*range(turns * count)], [asyncio.Lock() for _ in self.clients]
        began = time.perf_counter()

        async def say(at: int) -> None:
            client, session = self.clients[at % count], self._sessions[at % count]
            async with locks[at % count]:
                asked = time.perf_counter()
                try:
                    await client.say(session, address)
                except (aiohttp.ClientError, AssertionError, OSError):
                    self.failed += 1
                    return
                self.took_s.append(time.perf_counter() - asked)
                self.sizes_kb.append(len(json.dumps(client.messages)) / 1024)

        async def say_when_due(at: int) -> None:
            await asyncio.sleep(began + at / rate - time.perf_counter())
            await say(at)

        async def talk() -> None:
            while queue:
                await say(queue.pop(0))

        await asyncio.gather(*(map(say_when_due, queue) if rate else (talk() for _ in range(AT_ONCE))))

    @property
    def p99_ms(self) -> float:
        return 1_000 * statistics.quantiles(self.took_s, n=100)[98]


def answer(received: Received) -> str:
    return SUMMARY if is_question(received) else "Fine."


class Side(NamedTuple):
    """A gateway that is measured."""

    address: str
    pid: int
    url: str


class Costed:
    """What the requests to a gateway have cost so far."""

    def __init__(self) -> None:
        self.each_s = list[float]()
        self.points = list[tuple[int, float, float]]()
        self.took_s = list[float]()
        self.requests, self.database = 0, [0.0, 0.0, 0.0]

    def figures(self) -> dict[str, object]:
        points = [
            (
                statistics.mean(kb for size, kb, _ in self.points if size == words),
                statistics.median(cost for size, _, cost in self.points if size == words),
            )
            for words in WORDS
        ]
        base, slope = fit(points)
        cpu_s, commits, stored = (one / self.requests for one in self.database)
        return {
            "requests": self.requests,
            "points": points,
            "gateway_s": base,
            "gateway_s_per_kb": slope,
            "database_s": cpu_s,
            "commits": commits,
            "stored_kb": stored / 1024,
            "p99_ms": 1_000 * statistics.quantiles(self.took_s, n=100)[98],
        }


class Bench:
    def __init__(
        self, folder: Path, database: Database, upstream: str, *, quick: bool, embedder: str
    ) -> None:
        self._folder, self._database, self._upstream, self._embedder = folder, database, upstream, embedder
        self._clients, self._turns, self._rounds = (8, 5, 2) if quick else (24, 5, 5)
        self._pairs, self._warm = (4, 2) if quick else (16, 30)
        self._vector_pairs = 2 if quick else 6

    def _cluster(self, name: str, **settings: str) -> Cluster:
        url = self._database.make(name)
        wide = {"compaction_window": "1000000", "cluster_jobs": "false", "server_log_level": "error"}
        wide["store_embedder"] = self._embedder
        return Cluster(self._folder, url, self._upstream, **{**wide, **settings})

    async def requests(self) -> dict[str, object]:
        """The cost of a request with one and with two processes, in turns, after both have warmed up."""
        async with AsyncExitStack() as stack:
            sides = dict[int, Side]()
            for workers in (1, 2):
                cluster = await stack.enter_async_context(
                    self._cluster(f"requests{workers}", store_embedder="off")
                )
                gateway = cluster.gateway("--workers", str(workers), name=f"of{workers}", forked=False)
                sides[workers] = Side(await gateway.ready(), gateway.pid, self._database.url)
            for side in sides.values():
                async with Load(AT_ONCE * 4, WORDS[0], "warm", keeps=False) as load:
                    await load.run(side.address, self._warm)
            kept = {(workers, kind): Costed() for workers in sides for kind in KINDS}
            loads = dict[tuple[int, str, int], Load]()
            for round_ in range(self._pairs):
                words = WORDS[round_ % len(WORDS)]
                for kind in KINDS:
                    for workers in (1, 2) if round_ % 2 else (2, 1):
                        load = loads.get((workers, kind, words))
                        if load is None or len(load.clients[0].messages) >= 2 * TALK_TURNS:
                            name = f"{kind}{words}-{round_}"
                            load = Load(self._clients, words, name, keeps=kind != "any")
                            loads[workers, kind, words] = await stack.enter_async_context(load)
                        rate = 0 if kind == "full" else RATE
                        await self._measure(sides[workers], load, rate, kept[workers, kind], words)
            return {
                "rate": RATE,
                "one": kept[1, "kept"].figures(),
                "two": kept[2, "kept"].figures(),
                "pairs": {
                    kind: [
                        two / one for one, two in zip(kept[1, kind].each_s, kept[2, kind].each_s, strict=True)
                    ]
                    for kind in KINDS
                },
                "cpu_ms": {
                    f"{workers} {kind}": [1_000 * one for one in costed.each_s]
                    for (workers, kind), costed in kept.items()
                },
            }

    async def vectors(self) -> dict[str, object]:
        """The cost of a request with one and with two processes, the vectors of its messages included. They are made when
        nothing else is done, so the gateway is measured until it rests.
        """
        async with AsyncExitStack() as stack:
            sides = dict[int, Side]()
            for workers in (1, 2):
                cluster = await stack.enter_async_context(self._cluster(f"vectors{workers}"))
                gateway = cluster.gateway("--workers", str(workers), name=f"vectors{workers}", forked=False)
                sides[workers] = Side(await gateway.ready(), gateway.pid, self._database.url)
            each_ms: dict[int, list[float]] = {1: [], 2: []}
            for round_ in range(-1, self._vector_pairs):  # the first one warms up
                for workers in (1, 2) if round_ % 2 else (2, 1):
                    used = cpu_s(family(sides[workers].pid))
                    async with Load(self._clients, WORDS[0], f"vectors{round_}") as load:
                        await load.run(sides[workers].address, self._turns, RATE)
                        await self._rest(sides[workers].pid)
                        used = cpu_s(family(sides[workers].pid)) - used
                        each_ms[workers].append(1_000 * used / len(load.took_s))
            ratios = [two / one for one, two in zip(each_ms[1][1:], each_ms[2][1:], strict=True)]
            return {"cpu_ms": each_ms, "ratios": ratios, "all": sum(each_ms[2][1:]) / sum(each_ms[1][1:])}

    async def _rest(self, pid: int) -> None:
        """Wait until a gateway and its processes do next to nothing for a while."""
        for _ in range(10):
            used = cpu_s(family(pid))
            await asyncio.sleep(1.5)
            if cpu_s(family(pid)) - used < IDLE_S:
                return

    async def _measure(self, side: Side, load: Load, rate: float, costed: Costed, words: int) -> None:
        """Let clients talk to one of the gateways, and add what it cost."""
        before, said = self._database.reading(side.url), len(load.took_s)
        used = cpu_s(family(side.pid))
        await load.run(side.address, self._turns, rate)
        used = cpu_s(family(side.pid)) - used
        after, count = self._database.reading(side.url), len(load.took_s) - said
        costed.each_s.append(used / count)
        costed.points.append((words, statistics.mean(load.sizes_kb[said:]), used / count))
        costed.requests += count
        costed.took_s += load.took_s[said:]
        for at in range(3):
            costed.database[at] += after[at] - before[at]

    async def jobs(self) -> dict[str, object]:
        """The cost of a job, and the latencies of requests with and without jobs, in turns."""
        small = {"compaction_window": "6000"}
        async with self._cluster("jobs", **small, cluster_jobs="true", cluster_lease_s="10") as cluster:
            with_jobs, worker = cluster.gateway(forked=False), cluster.worker(forked=False)
            cluster.env |= {"REFOLD_CLUSTER_JOBS": "false", "REFOLD_SUMMARISER_ENABLED": "false"}
            without = cluster.gateway(forked=False)
            addresses = {"with": await with_jobs.ready(), "without": await without.ready()}
            await worker.ready()
            for address in addresses.values():
                async with Load(AT_ONCE, 10, f"warm{address[-5:]}") as load:
                    await load.run(address, 4)
            p99, used = {"with": list[float](), "without": list[float]()}, cpu_s([worker.pid])
            questions, database = self._questions(), {"with": [0.0, 0.0], "without": [0.0, 0.0]}
            for number in range(self._rounds):
                for kind, address in addresses.items():
                    async with Load(self._clients, 120, f"{kind}{number}") as load:
                        before = self._database.reading()
                        await load.run(address, JOB_TURNS)
                        after = self._database.reading()
                    p99[kind].append(load.p99_ms)
                    for at in range(2):
                        database[kind][at] += after[at] - before[at]
            jobs = max(1, self._questions() - questions)
            more = [a - b for a, b in zip(database["with"], database["without"], strict=True)]
            with psycopg.connect(self._database.url) as connection:
                found = connection.execute(
                    "SELECT count(*) FROM refold.compaction JOIN refold.branch ON branch.id = compaction.branch "
                    "WHERE compaction.state = 'installed' AND compaction.kind = 'summarise' AND conversation LIKE 'with%' "
                    "AND conversation NOT LIKE 'without%'"
                ).fetchone()
            assert found
            return {
                "jobs": jobs,
                "compactions": found[0],
                "jobs_per_compaction": jobs / max(1, found[0]),
                "worker_s": (cpu_s([worker.pid]) - used) / jobs,
                "database_s_per_job": max(0.0, more[0] / jobs),
                "commits_per_job": max(0.0, more[1] / jobs),
                "p99_ms": p99,
                "ratio": statistics.median(a / b for a, b in zip(p99["with"], p99["without"], strict=True)),
            }

    def _questions(self) -> int:
        return self._asked()

    _asked: Callable[[], int] = staticmethod(lambda: 0)

    async def rolling(self) -> dict[str, object]:
        """Requests that failed while every process is replaced under load."""
        async with self._cluster("rolling") as cluster:
            gateway: Part = cluster.gateway("--workers", "2", forked=False)
            address = await gateway.ready()
            # A connection that is kept may be closed by the old process while a request is on its way, as with every server.
            async with Load(self._clients, 60, "rolling", keeps=False) as load:
                await load.run(address, 2)
                before = set(family(gateway.pid))
                assert gateway.process
                gateway.process.send_signal(signal.SIGHUP)
                while len(set(family(gateway.pid)) & before) > 1:
                    await load.run(address, 1)
            return {"requests": len(load.took_s) + load.failed, "failed": load.failed}


async def measure(asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    database = Database()
    try:
        async with ScriptedUpstream(window=None, otherwise=answer, validates=False) as upstream:
            bench = Bench(folder, database, upstream.url, quick=asked.quick, embedder=asked.embedder)
            bench._asked = lambda: sum(map(is_question, upstream.requests))
            found: dict[str, object] = {"load": os.getloadavg(), "cores": os.cpu_count()}
            if asked.only in ("", "requests"):
                found |= await bench.requests()
            if asked.only == "vectors":
                found["vectors"] = await bench.vectors()
            if asked.only in ("", "jobs"):
                found["jobs"] = await bench.jobs()
            if asked.only in ("", "rolling"):
                found["rolling"] = await bench.rolling()
            return {**found, "load_after": os.getloadavg()}
    finally:
        database.close()


def costs_of(found: dict) -> Costs:
    one, jobs = found["one"], found["jobs"]
    return Costs(
        gateway_s=one["gateway_s"],
        gateway_s_per_kb=one["gateway_s_per_kb"],
        database_s=one["database_s"],
        commits=one["commits"],
        stored_kb=one["stored_kb"],
        jobs_per_compaction=jobs["jobs_per_compaction"],
        worker_s=jobs["worker_s"],
        database_s_per_job=jobs["database_s_per_job"],
        commits_per_job=jobs["commits_per_job"],
    )


def _short(value: float) -> str:
    """A figure with two digits, without an exponent."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _ratio(found: dict, kind: str) -> str:
    one, two = (found["cpu_ms"][f"{workers} {kind}"] for workers in (1, 2))
    pairs = found["pairs"][kind]
    return f"{sum(two) / sum(one):.2f} times (median {statistics.median(pairs):.2f}, {min(pairs):.2f} to {max(pairs):.2f})"


def page(found: dict, costs: Costs, sizes: list[Size], given: Assumptions) -> str:
    jobs, rolling = found["jobs"], found["rolling"]
    kept, any_, full = (_ratio(found, kind) for kind in KINDS)
    rows = "\n".join(
        f"| {size.conversations:,} | {_short(size.requests_per_s)} | {size.gateways} | {size.workers} | {size.database_cores} "
        f"| {_short(size.commits_per_s)} | {_short(size.stored_gb_per_day)} | {size.bottleneck} |"
        for size in sizes
    )
    ms = 1_000
    return f"""{BEGIN}
Measured by `python -m benchmarks.cluster --write docs/cluster.md` on {found["cores"]} cores with nothing else running; the
provider and the clients are a script on the same cores, the store is PostgreSQL on them too, without waiting for its disk.
Gateways of one and of two processes, both warm and each on a database of its own, get the same requests in turns: {found["rate"]:.0f} a second
where nothing else is said. A ratio is that of all
requests; behind it stand the median and the range of its {len(found["pairs"]["kept"])} pairs of rounds. Vectors of
messages, which are made when a gateway is idle, are left out.

| measured | |
|---|---|
| CPU of a gateway per request | {costs.gateway_s * ms:.2f} ms and {costs.gateway_s_per_kb * ms:.3f} ms per KB of history |
| the same with two processes, each client over one connection | {kept} |
| the same with two processes, any of them for each request, as behind `deploy/Caddyfile` | {any_} |
| the same with two processes, each client over one connection, as many requests as the cores can do | {full} |
| CPU of PostgreSQL per request | {costs.database_s * ms:.2f} ms |
| commits per request | {costs.commits:.1f} |
| stored per request | {costs.stored_kb:.1f} KB |
| jobs per compaction | {costs.jobs_per_compaction:.2f} |
| CPU of a worker per job | {costs.worker_s * ms:.1f} ms |
| CPU and commits of PostgreSQL per job | {costs.database_s_per_job * ms:.1f} ms, {costs.commits_per_job:.0f} |
| p99 of requests with jobs against p99 without | {jobs["ratio"]:.2f} times (median of {len(jobs["p99_ms"]["with"])} pairs of rounds) |
| a rolling restart of two processes under load | {rolling["failed"]} of {rolling["requests"]} requests failed |

How large a cluster has to be, at the busiest time of the day and without spare parts (add one gateway and one worker so that one of
each may be down):

| conversations a day | requests/s | gateway processes | workers | cores of PostgreSQL | commits/s | GB a day | what runs out first |
|---|---|---|---|---|---|---|---|
{rows}

It is arithmetic on the figures above. Assumed: {given.requests} requests per conversation with {given.body_kb:g} KB each on
average, {given.compactions:g} compaction per conversation, a busiest hour with {given.peak:g} times the average, cores that are
{given.busy:.0%} busy, {given.model_s:g} s for a summary and {given.concurrency} jobs at the same time in a worker, and
{given.commits_per_s:,.0f} commits a second on the disk of the database. The commands of the benchmark take other assumptions
(`--requests`, `--body-kb`, …). Gateways and workers are added without limit; the one PostgreSQL is what a cluster outgrows, and
owners can then be divided among several.
{END}"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fraction of the requests")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", metavar="PAGE", help="put the result into this page")
    parser.add_argument(
        "--embedder",
        default="auto",
        help="`store.embedder`: vectors of messages are made when nothing else is done",
    )
    parser.add_argument(
        "--only", choices=("requests", "vectors", "jobs", "rolling"), default="", help="a part of it"
    )
    parser.add_argument("--into", metavar="FILE", help="put the figures into this file, beside those in it")
    parser.add_argument(
        "--from", dest="known", metavar="FILE", help="figures of an earlier run (--json) instead of a new one"
    )
    for field in structs.fields(Assumptions):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    asked = parser.parse_args()
    given = Assumptions(**{field.name: getattr(asked, field.name) for field in structs.fields(Assumptions)})
    if asked.known:
        found = json.loads(Path(asked.known).read_text())["measured"]
    else:
        folder = Path(tempfile.mkdtemp(prefix="refold-cluster-"))
        try:
            found = asyncio.run(measure(asked, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if asked.into:
        path = Path(asked.into)
        kept = json.loads(path.read_text())["measured"] if path.exists() else {}
        path.write_text(json.dumps({"measured": {**kept, **found}}, indent=1) + "\n")
    if asked.only:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    costs = costs_of(found)
    sizes = [size_of(count, costs, given) for count in DAYS]
    if asked.json:
        document = {
            "measured": found,
            "costs": structs.asdict(costs),
            "sizes": [structs.asdict(one) for one in sizes],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write(page(found, costs, sizes, given) + "\n")
    if asked.write:
        path = Path(asked.write)
        text = re.sub(
            f"{BEGIN}.*{END}", lambda _: page(found, costs, sizes, given), path.read_text(), flags=re.DOTALL
        )
        path.write_text(text)


if __name__ == "__main__":
    main()
