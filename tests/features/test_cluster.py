"""N9, one machine to many: several processes on one store, and background work in workers. Every part is a program."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from refold.cli.main import run
from refold.engine.engine import Engine
from refold.testing import Received, Refuse, ScriptedUpstream
from tests.cluster.parts import DONE, PATIENCE_S, WINDOW, Client, Cluster, Part, either, is_question, until
from tests.contract.postgres import get_server, make_database

pytest.importorskip("procrastinate", reason="jobs need the extra `cluster`")


@pytest.fixture
def database(pytestconfig) -> str:
    return make_database(get_server(pytestconfig), "cluster")


def questions(upstream: ScriptedUpstream) -> list[Received]:
    return [one for one in upstream.requests if is_question(one)]


def last_sent(upstream: ScriptedUpstream) -> str:
    """The last request of the conversation itself."""
    found = [one.body.decode() for one in upstream.requests if not is_question(one)]
    return found[-1] if found else ""


async def talk(client: Client, session, addresses: list[str], is_enough, most: int = 120) -> None:
    """Let a client talk to gateways in turn until it is enough."""
    ends = len(client.actions) + most
    while not is_enough():
        assert len(client.actions) < ends, client.actions
        await client.say(session, addresses[len(client.actions) % len(addresses)])


async def jobs_of(store: str, capsys) -> dict:
    """What `refold jobs --json` prints."""
    assert await asyncio.to_thread(run, ["jobs", "--json", "--store", store]) == 0
    return json.loads(capsys.readouterr().out)


async def summaries_stored(engine: Engine) -> int:
    """The calls of the conversation that wrote a summary."""
    return sum(one.kind == "summary" for one in await engine.store.calls("local", "ships"))


@pytest.mark.feature("N9", "L5")
async def test_a_worker_writes_the_summaries_and_every_gateway_uses_them(tmp_path, database, capsys):
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        Cluster(tmp_path, database, upstream.url) as cluster,
        aiohttp.ClientSession() as session,
    ):
        first, second, worker = cluster.gateway(), cluster.gateway(), cluster.worker()
        addresses = [await first.ready(), await second.ready()]
        await worker.ready()
        client = Client("ships")
        await talk(client, session, addresses, lambda: DONE in last_sent(upstream))

        await worker.until("wrote the summary")
        assert {one.headers["authorization"] for one in questions(upstream)} == {"Bearer operators-own"}
        async with session.get(f"{addresses[0]}/refold/status") as answer:
            status = await answer.json()
        assert status["jobs"]["workers"] == 1
        async with Engine(database) as engine:
            assert not await engine.examine("ships")
            async with asyncio.timeout(PATIENCE_S):  # the next summary may be on its way
                while await summaries_stored(engine) < len(questions(upstream)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await summaries_stored(engine) == len(
                questions(upstream)
            )  # each is asked once, whoever wanted it
        assert (await jobs_of(database, capsys))["failed"] == 0


@pytest.mark.feature("N9")
async def test_a_summary_with_the_clients_own_key_stays_in_its_gateway(tmp_path, database):
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        Cluster(
            tmp_path, database, upstream.url, upstreams_main_key_env="", upstreams_main_pass_key="true"
        ) as cluster,
        aiohttp.ClientSession() as session,
    ):
        address = await cluster.gateway().ready()  # there is no worker at all
        client = Client("ships", authorization="Bearer clients-own")
        await talk(client, session, [address], lambda: DONE in last_sent(upstream))
        assert {one.headers["authorization"] for one in questions(upstream)} == {"Bearer clients-own"}


@pytest.mark.feature("N9")
async def test_a_worker_without_the_upstream_of_a_conversation_asks_no_other(
    tmp_path, database, capsys, monkeypatch
):
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        ScriptedUpstream(window=WINDOW, otherwise=either) as another,
        Cluster(
            tmp_path, database, upstream.url, compaction_preset="opal", summariser_timeout_s="60"
        ) as cluster,
        aiohttp.ClientSession() as session,
    ):
        gateway = cluster.gateway()
        for name in [name for name in cluster.env if name.startswith("REFOLD_UPSTREAMS_MAIN")]:
            cluster.env[name.replace("MAIN", "OTHER")] = cluster.env.pop(name)
        cluster.env["REFOLD_UPSTREAMS_OTHER_URL"] = f"{another.url}/v1"
        address, worker = await gateway.ready(), cluster.worker()
        await worker.ready()
        client = Client("ships")
        await talk(client, session, [address], lambda: "folded" in client.actions)

        assert not questions(upstream)
        assert not another.requests, "the conversation is no business of another provider"
        assert client.slowest_s < 30, "nobody waits for a job that has failed"
        await worker.until("does not know the upstream of the conversation: 'main'")
        assert "main'; hint:" in worker.said, "a log line is one line, and the hint is a part of it"
        assert "\ufffd" not in worker.said
        failed = (await jobs_of(database, capsys))["jobs"][0]
        assert (failed["status"], failed["attempts"]) == ("failed", 1)
        assert failed["error"] == "the worker does not know the upstream of the conversation"
        monkeypatch.setenv("COLUMNS", "80")
        assert await asyncio.to_thread(run, ["jobs", "--store", database]) == 0
        assert f"\njob {failed['id']} failed: {failed['error']}\n" in capsys.readouterr().out


@pytest.mark.feature("N9")
async def test_a_gateway_waits_for_a_worker_only_where_its_policy_waits_and_not_longer(tmp_path, database):
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        Cluster(
            tmp_path, database, upstream.url, compaction_preset="opal", summariser_timeout_s="2"
        ) as cluster,
        aiohttp.ClientSession() as session,
    ):
        address = await cluster.gateway().ready()
        client = Client("ships")
        await talk(client, session, [address], lambda: "folded" in client.actions)
        # No worker is there: the policy's own text is sent after two seconds.
        assert 2 <= client.slowest_s < 10
        assert DONE not in last_sent(upstream)
        worker = cluster.worker()
        await worker.ready()
        # Now the summary comes, and the request that waits for it has it.
        await talk(client, session, [address], lambda: DONE in last_sent(upstream))
        assert {one.headers["authorization"] for one in questions(upstream)} == {"Bearer operators-own"}


@pytest.mark.feature("N9")
async def test_the_job_of_a_killed_worker_is_done_by_another_and_one_of_a_stopped_worker_at_once(
    tmp_path, database
):
    holds = asyncio.Event()

    async def slow(received: Received) -> str:
        if is_question(received):
            await holds.wait()
        return either(received)

    async with (
        ScriptedUpstream(window=WINDOW, otherwise=slow) as upstream,
        Cluster(tmp_path, database, upstream.url, cluster_grace_s="0") as cluster,
        aiohttp.ClientSession() as session,
    ):
        address = await cluster.gateway().ready()
        first = cluster.worker()
        await first.ready()
        client = Client("ships")
        await talk(client, session, [address], lambda: questions(upstream))
        first.kill()
        second = cluster.worker()
        await second.ready()
        await until(lambda: len(questions(upstream)) == 2)  # after the lease of the first
        assert await second.stop() == 0
        third, began = cluster.worker(), time.monotonic()
        await third.ready()
        holds.set()
        await third.until("wrote the summary")
        assert len(questions(upstream)) == 3
        assert time.monotonic() - began < 60
        await talk(client, session, [address], lambda: DONE in last_sent(upstream))
        bodies = [one.body for one in questions(upstream)]
        assert bodies.count(bodies[0]) == 3  # a reply that was stored is not asked for again


@pytest.mark.feature("N9")
async def test_a_failed_job_is_listed_and_can_be_tried_again(tmp_path, database, capsys):
    fails = True

    def answer(received: Received) -> str | Refuse:
        return Refuse(400, "no such model") if fails and is_question(received) else either(received)

    async with (
        ScriptedUpstream(window=WINDOW, otherwise=answer) as upstream,
        Cluster(tmp_path, database, upstream.url) as cluster,
        aiohttp.ClientSession() as session,
    ):
        gateway, worker = cluster.gateway(), cluster.worker()
        address = await gateway.ready()
        await worker.ready()
        client = Client("ships")
        await talk(client, session, [address], lambda: questions(upstream))
        while not (listed := [one for one in (await jobs_of(database, capsys))["jobs"] if one["attempts"]]):
            assert worker.is_alive
        assert (listed[0]["kind"], listed[0]["status"]) == ("summary", "todo")
        assert listed[0]["next_at"] > time.time() + 30  # it is tried again later, not at once
        await give_up(database, listed[0]["id"])
        (failed,) = [one for one in (await jobs_of(database, capsys))["jobs"] if one["status"] == "failed"]
        assert (failed["status"], failed["conversation"]) == ("failed", "ships")
        assert failed["error"]
        fails = False
        retry = ["jobs", "--retry", str(failed["id"]), "--store", database]
        assert await asyncio.to_thread(run, retry) == 0
        while failed["id"] in [one["id"] for one in (await jobs_of(database, capsys))["jobs"]]:
            assert worker.is_alive
        assert await asyncio.to_thread(run, ["jobs", "--retry", "4711", "--store", database]) == 2


async def give_up(store: str, job: int) -> None:
    """Let a job fail for good, as after its last try."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(store, autocommit=True) as connection:
        await connection.execute("SET search_path TO refold_jobs")
        await connection.execute("UPDATE procrastinate_jobs SET status = 'failed' WHERE id = %s", [job])


@pytest.mark.feature("N9")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_setting_changed_at_one_gateway_holds_at_the_others_within_a_second(tmp_path, request, kind):
    store = f"sqlite:///{tmp_path}/chats.db" if kind == "sqlite" else request.getfixturevalue("database")
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        Cluster(tmp_path, store, upstream.url, cluster_jobs="false") as cluster,
        aiohttp.ClientSession() as session,
    ):
        addresses = [await cluster.gateway().ready() for _ in range(2)]
        for address in addresses:  # both know the settings of before
            await Client(f"at {address[-5:]}").say(session, address)
        changed = {"compaction.preset": "lis"}
        async with session.post(f"{addresses[0]}/refold/config", json=changed) as answer:
            assert answer.status == 200, await answer.text()
        began, preset = time.monotonic(), ""
        while preset != "lis":
            async with session.get(f"{addresses[1]}/refold/config") as answer:
                preset = (await answer.json())["settings"]["compaction"]["preset"]
            assert time.monotonic() - began < 5
        assert time.monotonic() - began < 1.5  # a second, and time for a busy machine


@pytest.mark.feature("N9")
async def test_a_gateway_that_is_told_to_stop_says_so_answers_and_ends(tmp_path):
    """A load balancer takes it out before it closes its port."""
    begun, holds = asyncio.Event(), asyncio.Event()

    async def slow(received: Received) -> str:
        begun.set()
        await holds.wait()
        return "Fine."

    async with (
        ScriptedUpstream(otherwise=slow) as upstream,
        Cluster(
            tmp_path,
            f"sqlite:///{tmp_path}/chats.db",
            upstream.url,
            cluster_jobs="false",
            server_drain_s="4",
        ) as cluster,
        aiohttp.ClientSession() as session,
    ):
        gateway = cluster.gateway()
        address = await gateway.ready()
        async with session.get(f"{address}/readyz") as answer:
            assert answer.status == 200
        asked = asyncio.create_task(Client("ships").say(session, address))
        await begun.wait()
        assert gateway.process
        gateway.process.send_signal(signal.SIGTERM)
        status = 200
        while status == 200:
            async with session.get(f"{address}/readyz") as answer:
                status = answer.status
        assert status == 503
        late = asyncio.create_task(Client("late").say(session, address))
        await until(lambda: len(upstream.requests) == 2)
        holds.set()
        assert (await asked, await late) == ("Fine.", "Fine.")
        assert await gateway.stop() == 0


@pytest.mark.feature("N9", "L5")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_several_processes_serve_one_port_and_a_dead_one_is_replaced(tmp_path, request, kind):
    store = f"sqlite:///{tmp_path}/chats.db" if kind == "sqlite" else request.getfixturevalue("database")
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        Cluster(tmp_path, store, upstream.url, cluster_jobs="false") as cluster,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        gateway = cluster.gateway("--workers", "2", forked=False)
        address = await gateway.ready()
        clients = [Client(f"talk-{number}") for number in range(4)]
        await until(lambda: len(children(gateway)) == 2, gateway)
        for _ in range(3):
            await asyncio.gather(*(one.say(session, address) for one in clients))
        before = children(gateway)
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: len(now := children(gateway)) == 2 and before[0] not in now, gateway)
        for _ in range(20):
            await asyncio.gather(*(one.say(session, address) for one in clients))
        assert gateway.process
        gateway.process.send_signal(signal.SIGHUP)
        while set(children(gateway)) & set(before):  # each is replaced, and no request fails
            await asyncio.gather(*(one.say(session, address) for one in clients))
        assert await gateway.stop() == 0
        async with Engine(store) as engine:
            listed = await engine.conversations()
            said = {one.name: len(one.messages) - 1 for one in clients}  # the last reply is sent back later
            assert {one.id: one.messages for one in listed} == said
            assert [await engine.examine(one.id) for one in listed] == [[]] * 4


def children(gateway: Part) -> list[int]:
    """The processes of a gateway that serve."""
    found = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split()
    return [int(one) for one in found]


@pytest.mark.feature("N9")
async def test_a_browser_that_signs_in_at_one_gateway_is_known_at_all(tmp_path, database, capsys):
    assert await asyncio.to_thread(run, ["keys", "create", "anna", "--json", "--store", database]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    async with (
        ScriptedUpstream(window=WINDOW, otherwise=either) as upstream,
        Cluster(tmp_path, database, upstream.url) as cluster,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        parts = [cluster.gateway(), cluster.gateway("--workers", "2")]
        first, second = [await part.ready() for part in parts]

        async def get(address: str, path: str = "/") -> tuple[int, str]:
            # Each request has a connection of its own, so that it reaches any of the processes.
            headers = {"connection": "close"}
            async with browser.get(f"{address}{path}", allow_redirects=False, headers=headers) as answer:
                return answer.status, await answer.text()

        async def post(address: str, path: str, **form: str) -> int:
            async with browser.post(f"{address}{path}", data=form, allow_redirects=False) as answer:
                return answer.status

        def token_in(page: str) -> str:
            found = re.search(r'name="token" value="([0-9a-f]+)"', page)
            assert found
            return found[1]

        assert (await get(second))[0] == 303
        _, form = await get(first, "/sign-in")
        assert await post(second, "/sign-in", token=token_in(form), key=key, next="/") == 303

        for address in (first, second) * 4:
            assert (await get(address))[0] == 200
        # The form of one gateway is sent to another, and so is the end.
        assert await post(first, "/sign-out", token="0" * 64) == 403
        assert await post(second, "/sign-out", token=token_in((await get(first))[1])) == 303
        for address in (first, second) * 4:
            assert (await get(address))[0] == 303
