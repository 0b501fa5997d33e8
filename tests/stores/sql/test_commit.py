"""What of a batch may take the short way, and that nothing is left behind on it."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.ports.records import Batch, LearntValue
from refold.stores.sql.commit import is_one_message
from refold.stores.sqlite.store import append_values
from tests.contract.talks import call, embedding, message, new_head, next_session, reduce

HEAD = new_head()
ALONE = Batch(at=1.0, messages=(message(0, "hello"),))
MORE = {
    "changes": (reduce(HEAD),),
    "opens": next_session(HEAD, 1, kind="new"),
    "undoes": "c1",
    "calls": (call(HEAD, "x", input=1),),
    "takes": ("q",),
    "embeddings": (embedding("s", "c"),),
    "chains": (b"hash",),
    "claims": b"hash",
    "blobs": (b"prompt",),
    "title": "Boats",
    "pins": (0,),
    "unpins": (0,),
    "learnt": (LearntValue("calibration", "m-1", b"{}"),),
}
BESIDE = {"notes": b"{}", "model": "large"}
"""What is written together with a message by PostgreSQL's statement, and not by SQLite's."""


def test_a_message_alone_takes_the_short_way():
    assert is_one_message(HEAD, ALONE)
    assert append_values(HEAD, ALONE) is not None


@pytest.mark.parametrize(
    "name", [one.name for one in structs.fields(Batch) if one.name not in {"at", "messages"}]
)
def test_nothing_else_in_a_batch_is_left_behind(name):
    batch = structs.replace(ALONE, **{name: (MORE | BESIDE)[name]})

    assert is_one_message(HEAD, batch) == (name in BESIDE)
    assert append_values(HEAD, batch) is None


def test_two_messages_none_and_a_key_that_is_to_be_looked_up_take_the_long_way():
    keyed = structs.replace(ALONE, messages=(message(0, "hello", key="k"),))

    assert not is_one_message(HEAD, structs.replace(ALONE, messages=(message(0, "a"), message(1, "b"))))
    assert not is_one_message(HEAD, structs.replace(ALONE, messages=()))
    assert is_one_message(HEAD, keyed)
    assert not is_one_message(structs.replace(HEAD, base="talk/main"), keyed)
