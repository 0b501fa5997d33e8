"""A campaign against a cluster: clients talk, and its parts are killed, frozen, cut off and restarted, one after the other.

python -m tests.cluster.campaign ACTS CONVERSATIONS                  runs one and prints its figures
python -m tests.cluster.campaign ACTS CONVERSATIONS --rows FILE     adds a row for each act to FILE, and begins after those in it
python -m tests.cluster.campaign --table FILE                        prints the table of these rows

After each act everybody has to be answered again, and everything is checked from outside: nothing that was acknowledged is missing,
no conversation has two branches, no job is stuck, and `refold doctor` finds nothing. The provider writes a number into each summary, so
that a question that is asked again after its answer was stored is found.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple, Self

import aiohttp
import msgspec
import psycopg
from msgspec import Struct

from refold.cli.main import run as run_command
from refold.engine.engine import Engine
from refold.testing import Received, ScriptedUpstream
from tests.cluster.leftovers import remove as remove_leftovers
from tests.cluster.network import Network, may_make_namespaces
from tests.cluster.parts import SUMMARY, WINDOW, Client, Cluster, Part, is_question
from tests.contract.postgres import make_database, start_server
from tests.durability.test_restart import restart

LEASE_S, TIMEOUT_S, MODEL_S = 3.0, 2.0, 0.3
"""The lease of the jobs, the policy's patience, and how long the scripted model takes."""
ALLOWANCE_S = 2.0
"""What an answer may take beside the policy's patience, on a machine on which everything runs at once."""
AGAIN_S = 2.0
"""After a part is there again, those that need it notice it within this time, or within as long as it was cut off: TCP doubles its pauses."""
STOPPED_S = 3.0
"""If all of us stood still for so long, such as on a machine that was suspended, times say nothing, and an act is tried again."""
PATIENCE_S = 90.0
GATEWAYS, WORKERS, AT_ONCE = 3, 2, 6
ACTS = (
    "kill gateway",
    "kill worker",
    "cut gateway",
    "cut worker",
    "freeze worker",
    "restart postgres",
    "cut postgres",
)
PRESETS = ("refold", "refold", "opal")


class Row(Struct):
    """What came of one act."""

    kind: str
    retries: int
    slowest_s: float
    waited_s: float
    """The slowest answer, without the time during which its gateway or the store was away."""
    messages: int
    """Acknowledged during the act and until everybody was answered after it."""
    folds: int
    questions: int
    repeated: int
    paid_twice: int
    faults: list[str]
    seconds: float


class Figures(Struct):
    """What came of a campaign."""

    acts: Counter[str] = Counter()
    conversations: int = 0
    messages: int = 0
    retries: int = 0
    """Requests that were not answered, and were sent again."""
    folds: int = 0
    questions: int = 0
    repeated: int = 0
    """Questions that were asked before, by a part that died or was cut off before it had stored the answer."""
    paid_twice: int = 0
    """Of these, after the answer was stored."""
    slowest_s: float = 0.0
    waited_s: float = 0.0
    """Without the time during which a gateway or the store was away."""
    skipped: str = ""
    faults: list[str] = []
    seconds: float = 0.0
    rows: list[Row] = []

    def __str__(self) -> str:
        return (
            f"{sum(self.acts.values())} acts {dict(self.acts)} in {self.seconds:.0f} s on {self.conversations} conversations: "
            f"{self.messages} messages acknowledged, {self.retries} requests sent again, {self.folds} folded; "
            f"{self.questions} summaries asked for, {self.repeated} again, {self.paid_twice} after a stored reply; "
            f"the slowest answer took {self.slowest_s:.1f} s, {self.waited_s:.1f} s without lost parts; wrong: {self.faults or 0}"
            + (f"; not tried: {self.skipped}" if self.skipped else "")
        )


class Reading(NamedTuple):
    """The counts so far, to take the difference of two."""

    retries: int
    messages: int
    folds: int
    questions: int
    repeated: int
    paid_twice: int
    faults: int
    at: float


class Provider:
    """A model whose summaries carry numbers, and what it was asked, with times."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[bytes, float]] = {}

    async def answer(self, received: Received) -> str:
        if not is_question(received):
            return "Fine."
        number = len(self.asked) + 1
        self.asked[number] = (received.body, time.time())
        await asyncio.sleep(MODEL_S)
        return f"{SUMMARY} Reply {number}."


class Campaign:
    def __init__(self, folder: Path, conversations: int, seed: int = 7, *, plain: bool = False) -> None:
        self.chance, self.figures = random.Random(seed), Figures(conversations=conversations)
        self._folder, self._stack = folder, ExitStack()
        remove_leftovers()
        self.figures.skipped = "namespaces were not asked for" if plain else may_make_namespaces()
        self.provider = Provider()
        self._server = start_server()
        self.store = make_database(self._server, "campaign")
        presets = [PRESETS[number % len(PRESETS)] for number in range(conversations)]
        self.clients = [
            Client(f"talk-{number:04}", words=120, **{"x-refold-preset": preset})
            for number, preset in enumerate(presets)
        ]
        self._network = None if self.figures.skipped else self._stack.enter_context(Network())
        self._addresses: dict[str, str] = {}
        self._stopped_s = 0.0
        self._turns = list[tuple[str, float, float]]()
        """The gateway, the beginning and the end of each answered request of this act."""
        self._away = list[tuple[str, float, float]]()
        """The gateway that was away in this act, or the store, from when until when."""

    async def run(
        self,
        acts: int,
        gateways: int = GATEWAYS,
        workers: int = WORKERS,
        *,
        first: int = 0,
        tell: Callable[[Row], object] = lambda _: None,
    ) -> Figures:
        """Run so many acts, those before number `first` left out, and tell what came of each."""
        began = time.monotonic()
        async with (
            ScriptedUpstream(window=WINDOW, otherwise=self.provider.answer) as upstream,
            await self._cluster(upstream.url) as cluster,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        ):
            try:
                names = [f"gateway{n}" for n in range(gateways)], [f"worker{n}" for n in range(workers)]
                parts = [await self._start(cluster, name) for name in (*names[0], *names[1])]
                self._gateways, self._workers = parts[:gateways], parts[gateways:]
                await self._all_answered(session, rounds=2)
                kinds = [one for one in ACTS if self._network or not one.startswith("cut")]
                watching = asyncio.create_task(self._watch())
                number = first
                while number < acts:
                    kind, before, self._stopped_s = kinds[number % len(kinds)], self._reading(), 0.0
                    self._turns, self._away = [], []
                    for client in self.clients:
                        client.slowest_s = 0.0
                    talking = asyncio.create_task(self._talk(session))
                    await self._act(kind)
                    talking.cancel()
                    await asyncio.wait({talking})
                    await self._all_answered(session)
                    await self._check(f"{number} {kind}")
                    if self._stopped_s < STOPPED_S:  # else it is tried again
                        self.figures.acts[kind] += 1
                        self._add_row(kind, before, tell)
                        number += 1
                watching.cancel()
                before = self._reading()
                await self._drained()
                if len(self.figures.faults) > before.faults:
                    self._add_row("the end", before, tell)
            finally:
                self.figures.seconds = time.monotonic() - began
        return self.figures

    def close(self) -> None:
        """Remove the namespaces and the server; the parts have ended."""
        self._stack.close()
        self._server.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reading(self) -> Reading:
        figures = self.figures
        counts = (figures.retries, figures.messages, figures.folds)
        asked = (figures.questions, figures.repeated, figures.paid_twice)
        return Reading(*counts, *asked, len(figures.faults), time.monotonic())

    def _add_row(self, kind: str, before: Reading, tell: Callable[[Row], object]) -> None:
        now = self._reading()
        row = Row(
            kind=kind,
            retries=now.retries - before.retries,
            slowest_s=max(client.slowest_s for client in self.clients),
            waited_s=self._waited_s(),
            messages=now.messages - before.messages,
            folds=now.folds - before.folds,
            questions=now.questions - before.questions,
            repeated=now.repeated - before.repeated,
            paid_twice=now.paid_twice - before.paid_twice,
            faults=self.figures.faults[before.faults :],
            seconds=now.at - before.at,
        )
        self.figures.rows.append(row)
        tell(row)

    async def _cluster(self, upstream: str) -> Cluster:
        store, url = self.store, upstream
        more = {
            "cluster_lease_s": str(LEASE_S),
            "summariser_timeout_s": str(TIMEOUT_S),
            "cluster_grace_s": "5",
        }
        if self._network is not None:
            folder = re.search(r"host=([^&]+)", self.store)
            assert folder
            socket = next(one for one in os.listdir(folder[1]) if re.fullmatch(r"\.s\.PGSQL\.\d+", one))  # noqa: PTH208
            host, port = await self._network.forward_apart("postgres", f"{folder[1]}/{socket}")
            store = f"postgresql://postgres@{host}:{port}/campaign"
            mine = await self._network.forward(int(upstream.rpartition(":")[2]))
            url = f"http://{self._network.address}:{mine}"
        cluster = Cluster(self._folder, store, url, **more)
        if self._network is not None:  # an address that others reach needs keys
            said = await self._command("keys", "create", "clients", "--json")
            key = json.loads(said)["key"]
            for client in self.clients:
                client.headers["x-refold-key"] = key
        return cluster

    async def _start(self, cluster: Cluster, name: str) -> Part:
        options: dict = {"name": name, "forked": False}
        if self._network is not None:
            host = self._network.add(name)
            options["before"] = self._network.before(name)
        make = cluster.gateway if name.startswith("gateway") else cluster.worker
        flags = ["--host", host] if self._network is not None and name.startswith("gateway") else []
        part = make(*flags, **options)
        self._addresses[name] = await part.ready()
        return part

    # Acts

    async def _act(self, kind: str) -> None:
        what, _, which = kind.partition(" ")
        if which == "postgres":
            await asyncio.sleep(self.chance.random())
            began = time.monotonic()
            if what == "restart":
                await asyncio.to_thread(restart, self._server)
            else:
                await self._cut("postgres")
            self._note_away("", began)
            return
        part = self.chance.choice(self._gateways if which == "gateway" else self._workers)
        if which == "worker":  # while it is at work, mostly
            known, ends = len(self.provider.asked), time.monotonic() + 5
            while len(self.provider.asked) == known and time.monotonic() < ends:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(self.chance.random())
        if what == "kill":
            part.kill()
            part.start()
            self._addresses[part.name] = await part.ready()
        elif what == "freeze":
            part.send(signal.SIGSTOP)
            await asyncio.sleep(LEASE_S + 1)
            part.send(signal.SIGCONT)
        else:
            began = time.monotonic()
            await self._cut(part.name)
            self._note_away(part.name, began)
        if not part.is_alive:  # a supervisor would start it again
            self.figures.faults.append(f"{part.name} ended after {kind}: {part.said[-500:]}")
            part.start()
            self._addresses[part.name] = await part.ready()

    async def _cut(self, name: str) -> None:
        assert self._network
        self._network.cut(name)
        await asyncio.sleep(self.chance.choice([0.5, LEASE_S + 1]))
        self._network.mend(name)

    def _note_away(self, name: str, began: float) -> None:
        ended = time.monotonic()
        self._away.append((name, began, ended + max(AGAIN_S, ended - began)))

    def _waited_s(self) -> float:
        """The longest that an answer took, without the time during which its gateway or the store was away."""
        return max(
            ended
            - began
            - sum(
                max(0.0, min(ended, until) - max(began, since))
                for away, since, until in self._away
                if away in ("", name)
            )
            for name, began, ended in self._turns
        )

    # Clients

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        """Let a few clients talk until it is enough."""
        while True:
            chosen = self.chance.sample(self.clients, min(AT_ONCE, len(self.clients)))
            await asyncio.gather(*(self._turn(session, one) for one in chosen))

    async def _all_answered(self, session: aiohttp.ClientSession, rounds: int = 1) -> None:
        """Let every client be answered, and its request be stored."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(client: Client) -> None:
            async with limit:
                for _ in range(rounds):
                    while not await self._turn(session, client):
                        pass

        try:
            async with asyncio.timeout(PATIENCE_S + len(self.clients)):
                await asyncio.gather(*map(one, self.clients))
        except TimeoutError:
            self.figures.faults.append("somebody was not answered")

    async def _turn(self, session: aiohttp.ClientSession, client: Client) -> bool:
        """One turn at any gateway; False if it was answered and not stored. Without an answer it is sent again elsewhere."""
        for _ in range(200):
            name, began = self.chance.choice(self._gateways).name, time.monotonic()
            try:
                await client.say(session, self._addresses[name])
            except (aiohttp.ClientError, TimeoutError, OSError, AssertionError):
                self.figures.retries += 1
                await asyncio.sleep(0.05)
                continue
            self._turns.append((name, began, time.monotonic()))
            return client.actions[-1] != "not-kept"
        self.figures.faults.append(f"{client.name} was never answered")
        return True

    # Checks

    async def _watch(self) -> None:
        """Note for how long the machine did not run us, nor any of the parts."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.2)
            self._stopped_s = max(self._stopped_s, time.monotonic() - began)

    async def _check(self, after: str) -> None:
        found = [f"{after}: {fault}" for fault in await self._faults()]
        self.figures.faults += found
        self.figures.messages = sum(len(one.messages) for one in self.clients)
        self.figures.folds = sum(one.actions.count("folded") for one in self.clients)
        slowest_s = max(client.slowest_s for client in self.clients)
        if self._stopped_s < STOPPED_S:
            self.figures.slowest_s = max(self.figures.slowest_s, slowest_s)
            waited_s = self._waited_s()
            self.figures.waited_s = max(self.figures.waited_s, waited_s)
            if waited_s > TIMEOUT_S + ALLOWANCE_S:
                self.figures.faults.append(f"{after}: an answer took {waited_s:.1f} s without lost parts")
        await self._count_questions()

    async def _faults(self) -> list[str]:
        found = list[str]()
        async with Engine(self.store, owner=await self._owner(), embedder=None) as engine:
            for client in self.clients:
                heads = await engine.store.latest_heads(engine.owner, limit=1, words=client.name)
                rows = [one for one in heads if one.head.conversation == client.name]
                if not rows or rows[0].branches != 1:
                    found.append(f"split: {client.name} has {rows[0].branches if rows else 0} branches")
                    continue
                stored = [
                    json.loads(one.body)["content"] for one in await engine.store.messages(rows[0].head)
                ]
                said = [one["content"] for one in client.messages[:-1]]  # the last reply is sent back later
                if stored[: len(said)] != said:
                    found.append(f"lost: {client.name} said {len(said)} and {len(stored)} are stored")
        try:
            await self._command("doctor", "--owner", await self._owner())
        except AssertionError as error:
            found.append(f"doctor: {error}")
        return found

    async def _owner(self) -> str:
        async with await psycopg.AsyncConnection.connect(self.store) as connection:
            cursor = await connection.execute("SELECT DISTINCT owner FROM refold.conversation")
            return (await cursor.fetchone() or ("local",))[0]

    async def _count_questions(self) -> None:
        """Count the questions that were asked again, and those of them whose answer was stored before."""
        stored = dict[int, float]()
        async with await psycopg.AsyncConnection.connect(self.store) as connection:
            cursor = await connection.execute("SELECT body, at FROM refold.summary")
            for body, at in await cursor.fetchall():
                text = bytes(body) if isinstance(body, bytes | memoryview) else str(body).encode()
                if number := re.search(rb"Reply (\d+)", text):
                    stored[int(number[1])] = min(at, stored.get(int(number[1]), at))
        by_body = defaultdict[bytes, list[int]](list)
        for number, (body, _) in self.provider.asked.items():
            by_body[body].append(number)
        self.figures.questions = len(self.provider.asked)
        self.figures.repeated = sum(len(numbers) - 1 for numbers in by_body.values())
        twice = [
            number
            for numbers in by_body.values()
            for number in numbers
            if any(
                one in stored and stored[one] < self.provider.asked[number][1]
                for one in numbers
                if one != number
            )
        ]
        self.figures.paid_twice = len(twice)

    async def _drained(self) -> None:
        """Wait until no job waits or runs."""
        ends, left = time.monotonic() + PATIENCE_S, ["?"]
        while left and time.monotonic() < ends:
            found = json.loads(await self._command("jobs", "--json"))["jobs"]
            # One that is tried again after a rest of a minute is not stuck.
            left = [one for one in found if one["status"] == "doing" or one["next_at"] <= time.time()]
            left = [one for one in left if one["status"] != "failed"]
        if left:
            self.figures.faults.append(f"stuck: {left}")

    async def _command(self, *words: str) -> str:
        """Run a command of `refold`; what it prints."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = await asyncio.to_thread(run_command, [*words, "--store", self.store])
        assert code == 0, (out.getvalue() + err.getvalue())[-500:]
        return out.getvalue()


def read_rows(file: Path) -> list[Row]:
    return (
        [msgspec.json.decode(line, type=Row) for line in file.read_bytes().splitlines()]
        if file.exists()
        else []
    )


def table(rows: list[Row]) -> str:
    """A table of the acts by kind, and their sum."""
    lines = [
        "| act | times | messages | requests sent again | slowest answer | without the time of a lost part | summaries | asked again before a reply was stored | faults |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = [kind for kind in (*ACTS, "the end") if any(row.kind == kind for row in rows)]
    for name, chosen in [
        *((kind, [row for row in rows if row.kind == kind]) for kind in kinds),
        ("**all**", rows),
    ]:
        asked_again = sum(row.repeated - row.paid_twice for row in chosen)
        lines.append(
            f"| {name} | {len(chosen)} | {sum(row.messages for row in chosen):,} | {sum(row.retries for row in chosen):,} "
            f"| {max(row.slowest_s for row in chosen):.1f} s | {max(row.waited_s for row in chosen):.1f} s | {sum(row.questions for row in chosen):,} | {asked_again} "
            f"| {sum(len(row.faults) + row.paid_twice for row in chosen)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.campaign", description=__doc__)
    parser.add_argument("acts", type=int, nargs="?", default=50)
    parser.add_argument("conversations", type=int, nargs="?", default=100)
    parser.add_argument("--rows", type=Path, help="a file of rows to add to")
    parser.add_argument("--table", type=Path, help="print the table of a file of rows")
    parser.add_argument("--plain", action="store_true", help="without namespaces, and without cut-offs")
    asked = parser.parse_args()
    if asked.table:
        sys.stdout.write(table(read_rows(asked.table)) + "\n")
        return 0
    os.environ.setdefault("REFOLD_HYPOTHESIS", "fast")
    first = len(read_rows(asked.rows)) if asked.rows else 0

    def tell(row: Row) -> None:
        line = msgspec.json.encode(row).decode() + "\n"
        sys.stderr.write(line)
        if asked.rows:
            with asked.rows.open("a") as out:
                out.write(line)

    async def run(folder: Path) -> Figures:
        # SIGTERM ends it as Ctrl-C does: the parts are stopped, and the namespaces and the server are removed.
        this = asyncio.current_task()
        assert this
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        with Campaign(folder, asked.conversations, seed=7 + first, plain=asked.plain) as campaign:
            return await campaign.run(asked.acts, first=first, tell=tell)

    with tempfile.TemporaryDirectory() as made:
        try:
            done = asyncio.run(run(Path(made)))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.stderr.write("stopped\n")
            return 1
    sys.stdout.write(f"{done}\n")
    return bool(done.faults or done.paid_twice)


if __name__ == "__main__":
    sys.exit(main())
