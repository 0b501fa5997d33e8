"""The PostgreSQL store in trouble: whatever the server does, a clear error or none, and nothing half stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest

from refold.model.errors import ConfigError, Conflict, NotFound, StoreError
from refold.ports.store import Head
from refold.store.postgres import Patience, PostgresStore
from tests.contract.postgres import get_server, make_database
from tests.contract.talks import ANNA, begin, first_session, new_head, read, say

SHORT = Patience(connections=2, wait_s=0.5, statement_s=5.0, lock_s=5.0)


@pytest.fixture
def server(pytestconfig):
    return get_server(pytestconfig)


@pytest.fixture(scope="module")
def database(pytestconfig) -> str:
    return make_database(get_server(pytestconfig), "trouble")


@pytest.fixture
def url(database) -> str:
    """An empty database; emptying one is much quicker than making one."""
    with psycopg.connect(database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS refold CASCADE")
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return database


@asynccontextmanager
async def opened(url: str, patience: Patience | None = None) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, patience)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(url) -> AsyncIterator[PostgresStore]:
    async with opened(url) as made:
        yield made


@contextmanager
def by_hand(url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody else."""
    with psycopg.connect(url, options="-c search_path=refold") as connection:
        yield connection


def lock_branch(connection: psycopg.Connection) -> None:
    connection.execute("SELECT 1 FROM branch FOR UPDATE")


async def waiting_backend(url: str) -> int:
    """The process on the server that waits for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            found = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'refold' AND wait_event_type = 'Lock'"
            )
            if row := await found.fetchone():
                return row[0]


def kill(url: str, which: str = "application_name = 'refold'") -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = current_database() AND {which}".encode()
        )


def backends(url: str) -> list[str]:
    """What the store's connections are doing."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'refold'"
        )
        return [state for (state,) in found]


async def refused(url: str, patience: Patience = SHORT) -> StoreError | ConfigError:
    with pytest.raises((StoreError, ConfigError)) as error:
        await PostgresStore.open(url, patience)
    assert error.value.hint
    assert "secret" not in str(error.value)
    return error.value


# Opening


async def test_a_missing_server_is_named(tmp_path):
    error = await refused(f"postgresql://anna:secret@/talks?host={tmp_path}")

    assert "cannot be reached" in error.message
    assert f"talks on {tmp_path}" in error.message
    assert "server runs" in error.hint


async def test_a_port_where_nobody_listens_is_a_missing_server():
    assert "cannot be reached" in (await refused("postgresql://anna:secret@127.0.0.1:1/talks")).message


async def test_a_name_that_no_server_has_is_a_missing_server():
    assert "cannot be reached" in (await refused("postgresql://anna:secret@server.invalid/talks")).message


@pytest.fixture
def guarded(server) -> Iterator[str]:
    """The folder of the server's socket, where one user needs a password."""
    rules = server.pgdata / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all guarded scram-sha-256\nlocal all banned reject\n{before}")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        connection.execute("CREATE ROLE banned LOGIN")
        connection.execute("SELECT pg_reload_conf()")
        while not connection.execute(
            "SELECT 1 FROM pg_hba_file_rules WHERE 'guarded' = ANY (user_name)"
        ).fetchone():
            pass
        yield str(server.get_postmaster_info().socket_dir)
        connection.execute("DROP ROLE guarded, banned")
        rules.write_text(before)
        connection.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("user", "database", "reason", "hint"),
    [
        ("guarded:secret", "postgres", "refuses the password", "password"),
        ("guarded", "postgres", "asks for a password", ".pgpass"),
        ("nobody:secret", "postgres", "does not know the user", "CREATE ROLE"),
        ("banned:secret", "postgres", "lets no such user in", "pg_hba.conf"),
        ("postgres:secret", "nothing", "no such database", "CREATE DATABASE"),
    ],
)
async def test_whom_the_server_refuses_is_told_why(guarded, user, database, reason, hint):
    error = await refused(f"postgresql://{user}@/{database}?host={guarded}")

    assert reason in error.message
    assert hint in error.hint
    assert f"{database} on {guarded}" in error.message


@pytest.mark.parametrize(
    "url", ["postgresql://anna:secret@[/talks", "postgresql://anna:secret@host/talks?no=1"]
)
async def test_a_url_that_cannot_be_read_is_not_repeated(url):
    error = await refused(url)

    assert isinstance(error, ConfigError)
    assert "cannot be read" in error.message


async def test_a_schema_of_a_newer_program_is_left_alone(url):
    async with opened(url) as store:
        await begin(store)
    with by_hand(url) as connection:
        connection.execute("INSERT INTO migration (name) VALUES ('9999_later')")

    error = await refused(url)

    assert "9999_later" in error.message
    with by_hand(url) as connection:
        assert connection.execute("SELECT count(*) FROM branch").fetchone() == (1,)


async def test_a_database_that_cannot_hold_every_language_is_refused(server):
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS latin")
        connection.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )

    assert "UTF8" in (await refused(server.get_uri("latin"))).hint


async def test_many_who_open_an_empty_database_at_once_make_its_tables_once(url):
    stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(5)))

    assert [await store.owners() for store in stores] == [[]] * 5
    for store in stores:
        await store.close()


async def test_whoever_may_not_make_tables_can_use_those_that_are_there(server, url):
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    guest = url.replace("postgres:@", "guest:@")
    assert "schema refold" in (await refused(guest)).hint

    async with opened(url):
        pass
    with by_hand(url) as connection:
        connection.execute("GRANT USAGE ON SCHEMA refold TO guest")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA refold TO guest")
    async with opened(guest) as store:
        assert await read(store, await say(store, await begin(store), "hello")) == ["hello"]


async def test_other_tables_of_the_same_name_are_left_alone(url):
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE public.message (id int)")
        connection.execute("CREATE TABLE public.migration (id int)")

    async with opened(url) as store:
        assert await read(store, await say(store, await begin(store), "hello")) == ["hello"]


# Connections


async def test_no_more_connections_are_made_than_allowed(url):
    async with opened(url, Patience(connections=2)) as store:
        names = [f"talk{number}" for number in range(20)]
        heads = await asyncio.gather(*(begin(store, name) for name in names))
        await asyncio.gather(*(say(store, head, "hello") for head in heads))

        assert len(await store.conversations(ANNA)) == 20
        assert len(backends(url)) <= 2
        assert set(backends(url)) == {"idle"}, "nothing is left in a transaction"


async def test_a_store_with_all_connections_busy_says_so(url):
    async with opened(url, Patience(connections=1, wait_s=0.2)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            held = asyncio.create_task(say(store, head, "waits"))
            await waiting_backend(url)
            with pytest.raises(StoreError) as error:
                await store.owners()
            connection.rollback()
        assert (await held).next_seq == 1

    assert "All 1 connections were busy" in error.value.message


async def test_a_closed_store_says_so(url):
    async with opened(url) as store:
        await begin(store)

    with pytest.raises(StoreError, match="closed"):
        await store.owners()


async def test_a_writer_does_not_wait_for_another_for_ever(url):
    async with opened(url, Patience(lock_s=0.1)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            with pytest.raises(StoreError) as error:
                await say(store, head, "hello")

        assert "locked" in error.value.message
        assert error.value.hint
        assert await read(store, await say(store, head, "again")) == ["again"]


async def test_a_statement_does_not_take_for_ever(url):
    async with opened(url, Patience(statement_s=0.1)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            with pytest.raises(StoreError) as error:
                await say(store, head, "hello")

        assert "too long" in error.value.message
        assert await read(store, await say(store, head, "again")) == ["again"]


async def test_a_purge_takes_as_long_as_it_takes(url):
    async with opened(url, Patience(statement_s=0.1)) as store:
        await say(store, await begin(store), "hello")
        with by_hand(url) as connection:
            # Longer than a statement may take.
            connection.execute(
                "CREATE FUNCTION slow () RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM pg_sleep(0.3); RETURN OLD; END'"
            )
            connection.execute(
                "CREATE TRIGGER slow BEFORE DELETE ON message FOR EACH ROW EXECUTE FUNCTION slow ()"
            )

        assert await store.delete(ANNA) == 1


async def test_a_writer_who_is_called_off_leaves_nothing_and_blocks_nobody(url):
    async with opened(url, Patience(connections=1)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            writer = asyncio.create_task(say(store, head, "never"))
            await waiting_backend(url)
            writer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writer

        assert await read(store, await say(store, head, "hello")) == ["hello"]


# Lost connections


async def test_connections_that_died_while_nobody_used_them_are_not_noticed(url, store):
    head = await say(store, await begin(store), "a")
    await asyncio.gather(*(store.owners() for _ in range(5)))
    kill(url)

    assert await read(store, await say(store, head, "b")) == ["a", "b"]
    kill(url)
    assert await store.owners() == [ANNA]


async def test_a_transaction_whose_connection_was_lost_is_begun_again(url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(say(store, head, "hello"))
        kill(url, f"pid = {await waiting_backend(url)}")
        connection.rollback()

    assert (await writer).next_seq == 1
    assert await read(store, head) == ["hello"]


async def test_a_connection_that_is_lost_again_and_again_is_an_error_and_nothing_is_stored(url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(say(store, head, "hello"))
        first = await waiting_backend(url)
        kill(url, f"pid = {first}")
        while (second := await waiting_backend(url)) == first:
            pass
        kill(url, f"pid = {second}")
        with pytest.raises(StoreError) as error:
            await writer

    assert "lost" in error.value.message
    assert "nothing was stored" in error.value.message
    assert error.value.hint
    assert await read(store, await say(store, head, "again")) == ["again"]


async def test_a_connection_that_is_lost_during_the_commit_is_an_unknown_outcome(url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        connection.execute(
            "CREATE FUNCTION wait () RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON message DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait ()"
        )
        connection.commit()
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        writer = asyncio.create_task(say(store, head, "hello"))
        kill(url, f"pid = {await waiting_backend(url)}")
        with pytest.raises(StoreError) as error:
            await writer

    assert "not known whether it was stored" in error.value.message
    assert "load the conversation" in error.value.hint
    assert not isinstance(error.value, Conflict)
    found = await store.head(ANNA, "talk")
    assert found
    assert (await say(store, found, "again")).next_seq == found.next_seq + 1


async def test_a_server_that_was_started_again_is_used_by_the_next_call(server, url, store):
    head = await say(store, await begin(store), "before")
    server.stop()
    server.ensure_postgres_running()

    assert await read(store, await say(store, head, "after")) == ["before", "after"]


async def test_a_writer_lives_through_a_restart_of_the_server(server, url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(say(store, head, "hello"))
        await waiting_backend(url)
        server.stop()
        server.ensure_postgres_running()
        assert (await writer).next_seq == 1
        connection.close()

    assert await read(store, head) == ["hello"]


async def test_a_server_that_stays_away_is_an_error_until_it_is_back(server, url):
    async with opened(url, SHORT) as store:
        head = await begin(store)
        server.stop()
        with pytest.raises(StoreError) as error:
            await say(store, head, "hello")
        server.ensure_postgres_running()
        assert "cannot be reached" in error.value.message
        assert await read(store, await say(store, head, "again")) == ["again"]


# At the same time


async def test_many_who_begin_the_same_conversation_get_the_same_branch(store):
    heads = await asyncio.gather(*(begin(store) for _ in range(8)))

    assert heads == [heads[0]] * 8
    assert len(await store.sessions(ANNA)) == 1


async def test_a_writer_who_is_in_a_deadlock_begins_again(url, store):
    head = await begin(store)
    other = await psycopg.AsyncConnection.connect(
        url, options="-c search_path=refold -c deadlock_timeout=20s"
    )
    async with other:
        await other.execute("SELECT 1 FROM branch FOR UPDATE")
        writer = asyncio.create_task(say(store, head, "hello"))
        await waiting_backend(url)
        # The writer has the conversation and waits for the branch; it is the first to notice.
        await other.execute("SELECT 1 FROM conversation FOR UPDATE")
        await other.rollback()

    assert (await writer).next_seq == 1
    assert await read(store, head) == ["hello"]


async def write_and_delete(store: PostgresStore, rounds: int) -> None:
    """Take a conversation away while another writes to it: each locks what the other needs."""
    for _ in range(rounds):
        head = new_head()
        try:
            head = await store.create(head, first_session(head))
            head = await say(store, head, "hello")
            await asyncio.gather(say(store, head, "more"), store.delete(ANNA, "talk"))
        except (Conflict, NotFound):
            continue


async def test_writing_and_deleting_at_once_never_ends_in_a_deadlock(store):
    await asyncio.gather(*(write_and_delete(store, 10) for _ in range(4)))

    await store.delete(ANNA)
    head = await say(store, await begin(store), "hello")
    assert await read(store, head) == ["hello"]


# Words


async def found(store: PostgresStore, query: str) -> list[int]:
    return sorted(hit.seq for hit in await store.search(ANNA, query))


async def test_words_are_found_wherever_they_are_in_a_long_message(store):
    filler = " ".join(f"w{number}" for number in range(9_000))
    await say(
        store, await begin(store), f"{filler} harbour_master {filler}", f"harbour {filler} master", "end"
    )

    assert await found(store, "harbour_master") == [0]
    assert await found(store, "harbour") == [0, 1]
    assert await found(store, "w8999") == [0, 1]


async def test_a_phrase_of_the_commonest_characters_is_found_after_hundreds_of_them(store):
    await say(store, await begin(store), "的" * 10 + "他的书很好" * 3_000 + "我的船", "我" * 300)

    assert await found(store, "我的船") == [0]


async def test_no_phrase_is_lost_where_a_long_message_is_parted(store):
    words = [f"w{number}" for number in range(4_100)]
    await say(store, await begin(store), " ".join(words), "w1 w3")

    for place in (1_998, 1_999, 2_000, 3_999, 4_000):
        assert await found(store, f"{words[place]}-{words[place + 1]}") == [0], place
    assert await found(store, "w1-w3") == [1], "in the other these do not follow each other"


async def test_a_purge_of_a_branch_takes_its_words_with_it(url, store):
    head: Head = await say(store, await begin(store), "storm " * 3_000)
    await store.delete(ANNA, head.conversation)

    with by_hand(url) as connection:
        assert connection.execute("SELECT count(*) FROM words").fetchone() == (0,)
