"""Commands name a damaged message, and do for the rest what they were asked to do."""

from __future__ import annotations

import json

from tests.damage import damage


def test_a_search_finds_the_others_and_names_the_doctor(kept, store):
    kept(
        "import", "-", "--as", "boats", stdin=b'{"role": "user", "content": "Is there a ferry on Sunday?"}\n'
    )
    assert "2 messages" in kept("search", "ferry").err, "the index has taken them up"
    damage(store, "ferry", 0)
    told = kept("search", "ferry")

    assert told.code == 0
    assert "ferry on Sunday" in told.out
    assert "#m0 [message 0 cannot be read]" in told.out
    assert "2 messages, of which 1 cannot be read" in told.err
    assert "refold doctor" in told.err
    found = json.loads(kept("search", "ferry", "--json").out)["found"]
    assert {one["conversation"]: one["damage"] for one in found} == {
        "boats": "",
        "ferry": "message 0 cannot be read",
    }


def test_commands_on_the_conversation_say_what_is_damaged(kept, store):
    damage(store, "ferry", 0)
    for command in (
        ("export", "ferry"),
        ("export", "ferry", "--format", "anthropic"),
        ("recall", "ferry", "#m0"),
    ):
        told = kept(*command)

        assert told.code == 2, command
        assert "the conversation 'ferry' is damaged: message 0 cannot be read" in told.err, command
        assert "refold doctor" in told.err, command
    assert kept("recall", "ferry", "#m1").code == 0
    assert kept("show", "shifts").code == 0
    assert "message 0 cannot be read" in kept("doctor", "ferry").out


def test_show_names_it_and_shows_the_others(kept, store):
    whole = kept("show", "ferry").out
    damage(store, "ferry", 0)
    told = kept("show", "ferry")

    assert told.code == 1
    assert "[message 0 cannot be read]" in told.out
    assert told.out.partition("#m1")[2] == whole.partition("#m1")[2] != ""
    assert "1 message cannot be read\nhint: `refold doctor`" in told.err
    first, *others = json.loads(kept("show", "ferry", "--json").out)["messages"]
    assert (first["message"], first["damage"]) == (None, "message 0 cannot be read")
    assert others
    assert all(one["message"] and "damage" not in one for one in others)


def test_an_archive_leaves_it_out_and_has_the_others(kept, store, tmp_path):
    damage(store, "ferry", 0)
    told = kept("db", "export", str(tmp_path / "all.jsonl"))

    assert told.code == 1
    assert "'ferry' was left out: the bytes of message 0 have changed" in told.err
