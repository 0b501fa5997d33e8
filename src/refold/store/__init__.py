"""Where conversations are kept: in memory, in an SQLite file, or in PostgreSQL, behind `refold.ports.store.Store`.

The design in one page:

    place.py            open_store(url): `sqlite:///file`, a path, `postgresql://...`, `memory:`
    memory*.py shelf.py scan.py  the reference: what a store does, without a database
    sqlstore.py         the same port over a database: each method is one transaction, handed to a driver
      committing.py     a batch, whole: swap the branch's row, append, close one range and open the next
      beginning.py      conversations, branches, forks      reading.py   messages, sessions, compactions, calls
      forking.py        what a fork takes over as its own
      working.py        claims, replies, cached summaries    listing.py   lists and search
      keeping.py        pins, learnt, keys, settings         purging.py   the only way to delete
      embedding.py      what closed sessions were about, and the nearest of them (nearness.py)
    transactions.py     a transaction is a generator: it yields (statement's name, parameters) and is sent rows
    queries.py sql/     every statement in a file of its own, shared where the databases agree
    migrate.py migrations/  numbered scripts per database, applied once, a newer schema refused
    rows.py             rows to values and back
    words.py            the words of a text, the same for every store and for the query
    sqlite.py           the SQLite driver: one writer per file (sqlite_writer.py, lane.py), commits that share a disk write
                        (sqlite_commit.py), a message kept by one script (sqlite_append.py), files refused before they are
                        touched (sqlite_file.py, network.py), what waits for the index and what was deleted
                        (sqlite_upkeep.py), backup and check (sqlite_copy.py), errors (sqlite_errors.py)
    postgres.py         the PostgreSQL driver, a message kept in one statement (postgres_append.py), and errors
                        (postgres_errors.py)
    failpoints.py       named places where the durability tests kill the process

Messages are appended and never changed: triggers refuse it, and refuse to delete one while its branch is there. A branch goes
only when its conversation is gone, so a purge deletes conversations by name and the rest follows by foreign key; in SQLite messages
follow by a trigger, since they know their branch by their place alone: its ordinal and their number are their key. A message's
session is the range that holds its number; no row is moved for it. All writers of a branch meet at its row: the first statement
of a commit goes on only if its session, `next_seq`, `epoch` and `revision` are what the writer saw, and nobody else moves it
until the commit. In SQLite, where one writes at a time anyway, `next_seq` is the number after the last message; in PostgreSQL it
is a column, since the row is also the lock. The view `head` has it in both.

What a conversation comes in with besides messages is a blob: a row under its own hash that is written once, shared by the branches
of the conversation and gone with it.

What a model wrote is kept as it came. When its compaction takes effect it is written once more, as it is shown from then on,
with its number; after that it never changes.
"""
