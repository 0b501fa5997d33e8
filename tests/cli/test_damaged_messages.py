"""Commands name a damaged message, and do for the rest what they were asked to do."""

from __future__ import annotations

import json

import apsw
import pytest

from refold.engine.damage import placeholder_text
from tests.damage import BAD_PROMPTS, damage, damage_prompt


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
    told = kept("recall", "ferry", "#m0")
    assert told.code == 2
    assert "the conversation 'ferry' is damaged: message 0 cannot be read" in told.err
    assert "refold doctor" in told.err
    assert kept("recall", "ferry", "#m1").code == 0
    assert kept("show", "shifts").code == 0
    assert "message 0 cannot be read" in kept("doctor", "ferry").out


@pytest.mark.parametrize("form", [(), ("--format", "anthropic"), ("--lines",)])
def test_an_export_has_a_placeholder_in_its_place_and_can_be_imported(kept, store, tmp_path, form):
    whole = kept("export", "ferry", *form)
    damage(store, "ferry", 0)
    told = kept("export", "ferry", *form)

    assert (whole.code, told.code) == (0, 1)
    assert "message 0 cannot be read: a placeholder stands for it\nhint: `refold doctor`" in told.err
    assert placeholder_text(0) in told.out
    others = [line for line in whole.out.splitlines() if "assistant" in line]
    assert others
    assert all(line in told.out for line in others)
    file = tmp_path / "ferry.jsonl"
    file.write_text(told.out)
    assert kept("import", str(file), "--as", "again").code == 0
    assert placeholder_text(0) in kept("show", "again").out
    assert "damaged" not in json.loads(kept("context", "again", "--json").out), (
        "the words alone are no damage"
    )


def test_every_command_works_on_a_conversation_that_shows_a_damaged_message(kept, store, caplog):
    kept("compact", "shifts", "--window", "12000")
    damage(store, "shifts", 133)
    told = kept("context", "shifts", "--json")
    assert json.loads(told.out)["damaged"] == [133]
    assert "message 133 is damaged" in caplog.text, "the library's log, which goes to stderr"
    for command in ("context", "diff", "undo", "compact", "new", "sessions"):
        assert kept(command, "shifts").code == 0, command


@pytest.mark.parametrize(("table", "column"), [("compaction", "shown"), ("branch", "notes")])
def test_what_a_conversation_cannot_be_opened_without_has_a_way_out(kept, store, tmp_path, table, column):
    kept("compact", "shifts", "--window", "12000")
    connection = apsw.Connection(str(store))
    connection.execute(f"UPDATE {table} SET {column} = x'c1ff'")
    connection.close()
    told = kept("context", "shifts")
    assert told.code == 2
    assert "cannot be read\nhint: `refold export` still writes its messages" in told.err
    file = tmp_path / "shifts.json"
    file.write_text(kept("export", "shifts").out)
    assert kept("import", str(file), "--as", "again").code == 0
    assert kept("compact", "again", "--window", "12000").code == 0
    assert kept("show", "again").out.count("#m") == kept("show", "shifts").out.count("#m")


def test_a_damaged_summary_stops_no_list_no_search_and_no_resume(kept, store):
    kept("compact", "shifts", "--window", "12000")
    kept("new", "shifts")
    sessions = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE summary SET body = x'c1ff'")
    connection.close()
    assert kept("sessions", "shifts").code == 0
    assert "shifts" in kept("search", "--sessions", "half an hour gap").out
    told = kept("resume", "shifts", sessions[0]["id"], "--window", "12000")
    assert (told.code, told.err.count("damaged")) == (0, 0)
    assert kept("recall", "shifts", "#s0").code == 2
    assert "the summary" in kept("doctor", "shifts").out


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


@pytest.mark.parametrize("value", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_an_export_leaves_out_a_damaged_system_prompt_and_names_it(kept, store, tmp_path, value):
    request = {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": "Hello!"},
        ],
    }
    file = tmp_path / "kind.json"
    file.write_text(json.dumps(request))
    assert kept("import", str(file), "--as", "kind").code == 0
    assert "Be kind." in kept("export", "kind").out
    damage_prompt(store, "kind", value)

    for form in ((), ("--lines",), ("--format", "anthropic")):
        told = kept("export", "kind", *form)
        assert told.code == 1, form
        assert "system prompt" in told.err
        assert "the system prompt and the tools are left out\nhint: `refold doctor`" in told.err
        assert "Hello?" in told.out
        assert "Hello!" in told.out
        assert "evil" not in told.out
        file.write_text(told.out)
        assert kept("import", str(file), "--as", f"again{len(form)}{form[-1:]}").code == 0
    assert "system prompt" in kept("doctor", "kind").out
    assert kept("show", "kind").code == 0
    assert "Hello!" in kept("recall", "kind", "#m1").out
    told = kept("compact", "kind")
    assert told.code == 2
    assert "the conversation 'kind' is damaged" in told.err
