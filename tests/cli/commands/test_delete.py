"""`refold delete`."""

from __future__ import annotations

import json


def test_what_is_deleted_is_gone_from_the_file_too(kept, store):
    assert b"harbour office in Vik" in store.read_bytes()
    kept("compact", "shifts", "--window", "12000")
    deleted = kept("delete", "shifts")

    assert (deleted.code, deleted.err) == (0, "deleted 1 conversation\n")
    assert kept("search", "harbour").code == 1
    assert kept("show", "shifts").code == 2
    assert b"harbour office in Vik" not in b"".join(path.read_bytes() for path in store.parent.iterdir())
    assert "ferry" in kept("conversations").out


def test_everything_is_deleted_only_if_that_is_certain(kept):
    for args in ((), ("--all",), ("shifts", "--all")):
        refused = kept("delete", *args)
        assert refused.code == 2
        assert "hint: " in refused.err
    assert len(kept("conversations").out.splitlines()) == 3

    assert json.loads(kept("delete", "--all", "--yes", "--json").out)["deleted"] == 2
    assert kept("conversations").out == ""
