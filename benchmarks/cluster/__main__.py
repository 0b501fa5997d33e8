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
from contextlib import suppress
from pathlib import Path

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


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes."""
    total = 0.0
    for pid in pids:
        with suppress(FileNotFoundError):  # it has ended since
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
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

    def reading(self) -> tuple[float, int, int]:
        """CPU seconds, commits and bytes so far. Processes of connections that have ended count for their parent."""
        pid = int((self._server.pgdata / "postmaster.pid").read_text().split()[0])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / TICKS
        with psycopg.connect(self.url, autocommit=True) as connection:
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

    async def run(self, address: str, turns: int) -> None:
        waiting = [client for client in self.clients for _ in range(turns)]
        order = sorted(range(len(waiting)), key=lambda at: (at % turns, at // turns))
        queue = [waiting[at] for at in order]
        locks = {id(client): asyncio.Lock() for client in self.clients}
        sessions = {
            id(client): aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=not self._keeps))
            for client in self.clients
        }

        async def talk() -> None:
            while queue:
                client = queue.pop(0)
                async with locks[id(client)]:
                    began = time.perf_counter()
                    try:
                        await client.say(sessions[id(client)], address)
                    except (aiohttp.ClientError, AssertionError, OSError):
                        self.failed += 1
                        continue
                    self.took_s.append(time.perf_counter() - began)
                    self.sizes_kb.append(len(json.dumps(client.messages)) / 1024)

        try:
            await asyncio.gather(*(talk() for _ in range(AT_ONCE)))
        finally:
            for session in sessions.values():
                await session.close()

    @property
    def p99_ms(self) -> float:
        return 1_000 * statistics.quantiles(self.took_s, n=100)[98]


def answer(received: Received) -> str:
    return SUMMARY if is_question(received) else "Fine."


class Bench:
    def __init__(
        self, folder: Path, database: Database, upstream: str, *, quick: bool, embedder: str
    ) -> None:
        self._folder, self._database, self._upstream, self._embedder = folder, database, upstream, embedder
        self._clients, self._turns, self._rounds = (8, 6, 2) if quick else (24, 20, 5)

    def _cluster(self, name: str, **settings: str) -> Cluster:
        url = self._database.make(name)
        wide = {"compaction_window": "1000000", "cluster_jobs": "false", "server_log_level": "error"}
        wide["store_embedder"] = self._embedder
        return Cluster(self._folder, url, self._upstream, **{**wide, **settings})

    async def requests(self, workers: int, *, keeps: bool = True) -> dict[str, object]:
        """The cost of a request with so many processes, for two sizes of requests."""
        points, out = list[tuple[float, float]](), {}
        commits = database_s = stored = 0.0
        count = 0
        async with self._cluster(f"requests{workers}") as cluster:
            gateway = cluster.gateway("--workers", str(workers), forked=False)
            address = await gateway.ready()
            await Load(AT_ONCE * 4, 30, "warm", keeps=False).run(address, 8)
            for words in WORDS:
                load = Load(self._clients, words, f"words{words}", keeps=keeps)
                before, used = self._database.reading(), cpu_s(family(gateway.pid))
                await load.run(address, self._turns)
                after = self._database.reading()
                each = (cpu_s(family(gateway.pid)) - used) / len(load.took_s)
                points.append((statistics.mean(load.sizes_kb), each))
                count += len(load.took_s)
                database_s += after[0] - before[0]
                commits += after[1] - before[1]
                stored += (after[2] - before[2]) / 1024
                out[f"p99_ms_{words}"] = load.p99_ms
        base, slope = fit(points)
        return {
            "processes": workers,
            "cpu_s": statistics.mean(cost for _, cost in points),
            "points": points,
            "gateway_s": base,
            "gateway_s_per_kb": slope,
            "database_s": database_s / count,
            "commits": commits / count,
            "stored_kb": stored / count,
            **out,
        }

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
                await Load(AT_ONCE, 10, f"warm{address[-5:]}").run(address, 4)
            p99, used = {"with": list[float](), "without": list[float]()}, cpu_s([worker.pid])
            questions, database = self._questions(), {"with": [0.0, 0.0], "without": [0.0, 0.0]}
            for number in range(self._rounds):
                for kind, address in addresses.items():
                    load = Load(self._clients, 120, f"{kind}{number}")
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
            load = Load(self._clients, 60, "rolling", keeps=False)
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
                found |= {"one": await bench.requests(1), "two": await bench.requests(2)}
                found["any"] = await bench.requests(2, keeps=False)
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


def page(found: dict, costs: Costs, sizes: list[Size], given: Assumptions) -> str:
    one, two, jobs, rolling = found["one"], found["two"], found["jobs"], found["rolling"]
    ratio, worst = two["cpu_s"] / one["cpu_s"], found["any"]["cpu_s"] / one["cpu_s"]
    rows = "\n".join(
        f"| {size.conversations:,} | {_short(size.requests_per_s)} | {size.gateways} | {size.workers} | {size.database_cores} "
        f"| {_short(size.commits_per_s)} | {_short(size.stored_gb_per_day)} | {size.bottleneck} |"
        for size in sizes
    )
    ms = 1_000
    return f"""{BEGIN}
Measured by `python -m benchmarks.cluster --write docs/cluster.md` on {found["cores"]} cores with nothing else running; the
provider and the clients are a script on the same cores, the store is PostgreSQL on them too, without waiting for its disk. Ratios
of two runs differ by a tenth.

| measured | |
|---|---|
| CPU of a gateway per request | {costs.gateway_s * ms:.2f} ms and {costs.gateway_s_per_kb * ms:.3f} ms per KB of history |
| the same with two processes, each client over one connection | {ratio:.2f} times |
| the same if every request reaches another process | {worst:.2f} times: the messages that the others added are read |
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
    parser.add_argument("--only", choices=("requests", "jobs", "rolling"), default="", help="a part of it")
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
