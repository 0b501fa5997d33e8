"""Stores keep conversations: in memory, in an SQLite file or in PostgreSQL, behind the protocols of `refold.ports.store`.

    url.py           open_store(url): `sqlite:///file`, a path, `postgresql://...`, `memory:`
    memory.py        the reference, without a database: the tables of each owner and their search
    sql/             shared by both databases
      store.py       SqlStore: which transaction each method runs; leases, summaries and their cache
      commit.py      commit a batch: compare-and-swap the branch, append, close one session and open the next;
                     failpoints, at which durability tests kill the process
      conversations.py  begin, fork, read, list and delete conversations; an owner's learnt values, client keys, settings
      search.py      by words and by vectors            rows.py           rows to records and back
      queries.py shared.sql   a transaction is a generator: it yields (name of a query, parameters) and is sent rows;
                     the migrations, which bring a database up to date
    sqlite/          store.py: the store and its driver, index of words, removal of deleted data; writer.py: one writer per
                     file, group commit, threads with a queue; file.py: open or refuse a file, its errors, backup and check;
                     queries.sql; migrations/
    postgres/        store.py: the store, its driver and its errors; job_queue.py: the jobs of a cluster; queries.sql; migrations/
    search.py        words, scores and vectors, alike for every store

Messages are appended and never changed: triggers refuse it, and refuse to delete one while its branch exists. A branch is deleted only
when its conversation is, so a purge deletes conversations by name and the database deletes the rest by foreign key. In SQLite a trigger
deletes messages, which refer to their branch by its ordinal: that ordinal and the message's number are their key. A message's session
is the range that holds its number; no row is moved for it.

All writers of a branch meet at its row: the first query of a commit succeeds only if session, `next_seq`, `epoch` and `revision` are
those that the writer saw, and no other transaction moves the row until the commit. In SQLite, which has one writer at a time anyway,
`next_seq` is the number after the last message; in PostgreSQL it is a column, since the row is also the lock. The view `head` has it
in both.

System prompts, tools and media of a conversation are blobs: rows under their own hash, written once, shared by the branches of the
conversation and deleted with it.

A model's summary is stored as it came. When its compaction is installed it is written once more, as it is shown from then on, with
its number; after that it never changes.
"""
