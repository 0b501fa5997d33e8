"""`refold chat` in scripts: one message, lines of a pipe, JSON, and everything that can be wrong at the start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from refold.testing import Broken, Refuse, Reset, ScriptedUpstream, call, echo, say, think

TOOLS = """
import refold

@refold.tool
def water_level(place: str) -> str:
    "Read the gauge of a place."
    return f"{place}: 501 mm"

@refold.tool(dangerous=True)
def delete_file(path: str) -> str:
    "Delete a file."
    raise SystemExit("it ran")

async def shout(called: refold.CommandCall) -> str:
    return called.arguments.upper()

shouting = refold.Command(name="/shout", usage="words", summary="say it aloud", run=shout)
"""


TYPED_TOOLS = """
from __future__ import annotations
from dataclasses import dataclass
import refold

@dataclass
class Gauge:
    place: str
    depth: int = 1

@refold.tool
def read_UNIT(gauge: Gauge) -> str:
    "Read a gauge."
    return f"{gauge.place}: 501 UNIT"
"""


@pytest.fixture
def chat(refold, store, monkeypatch, tmp_path):
    """The command with a scripted provider, on a store of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def call_it(server, *args, stdin=b""):
        model = ("--model", f"m-1@{server.url}/v1", "--window", "32000") if server else ()
        return refold("chat", *model, *args, stdin=stdin)

    return call_it


@pytest.fixture
def tools(tmp_path):
    (tmp_path / "gauges.py").write_text(TOOLS)
    return "gauges.py"


def events(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_one_message_gets_its_reply_on_stdout(chat):
    with ScriptedUpstream("**Low**, 501 mm.") as server:
        code, out, err = chat(server, "vik", "--once", "How is the water?")

        assert (code, out) == (0, "**Low**, 501 mm.\n")
        assert "error" not in err
        assert server.requests[0].text == "How is the water?"


def test_a_conversation_goes_on_by_its_name_alone(chat, refold):
    with ScriptedUpstream(otherwise=echo) as server:
        chat(server, "vik", "--once", "one")
        assert refold("chat", "vik", "--once", "two")[:2] == (0, "two\n")

        assert [message.text for message in server.requests[-1].messages] == ["one", "one", "two"]
        assert refold("chat", "--resume", "--once", "three")[:2] == (0, "three\n")
        assert len(server.requests[-1].messages) == 5


def test_a_conversation_goes_on_where_it_was_though_another_used_the_model_elsewhere(chat, refold):
    with ScriptedUpstream(otherwise="Here.") as one, ScriptedUpstream(otherwise="There.") as other:
        chat(one, "vik", "--once", "first")
        chat(other, "oslo", "--once", "second")
        assert refold("chat", "vik", "--once", "a secret").out == "Here.\n"
        assert refold("chat", "oslo", "--once", "and on").out == "There.\n"
    assert "a secret" not in str([request.body for request in other.requests])


def test_without_a_name_a_new_conversation_is_begun(chat, refold):
    with ScriptedUpstream(otherwise=echo) as server:
        chat(server, "--once", "one")
        chat(server, "--once", "two")

        assert len(server.requests[-1].messages) == 1
    assert refold("conversations").out.count("chat-20") == 2


def test_all_of_stdin_is_one_message(chat):
    with ScriptedUpstream(otherwise=echo) as server:
        code, out, _ = chat(server, "vik", "--once", "-", stdin="one\n\nzwei ø\n".encode())

        assert (code, out) == (0, "one\n\nzwei ø\n")


@pytest.mark.parametrize("text", ["", "  ", "\u200b", "-"])
def test_nothing_to_send_is_an_error(chat, text):
    with ScriptedUpstream() as server:
        code, out, err = chat(server, "vik", "--once", text)

    assert (code, out) == (2, "")
    assert "error: there is nothing to send\nhint: " in err


def test_the_lines_of_a_pipe_are_sent_one_after_the_other(chat):
    with ScriptedUpstream(otherwise=echo) as server:
        lines = b"one\n\n/STATUS \ntwo \\\nlines\n/exit\nnever sent\n"
        code, out, _ = chat(server, "vik", stdin=lines)

        assert code == 0
        assert [received.text for received in server.requests] == ["one", "two \nlines"]
    assert out.startswith("one\n🤖 Agent: vik\n")
    assert out.endswith("two \nlines\nBye.\n")


def test_json_is_one_event_per_line(chat, tools):
    answers = say(think("Hm."), call("water_level", {"place": "Ås"})), "Low."
    with ScriptedUpstream(*answers) as server:
        code, out, _ = chat(server, "vik", "--json", "--tools", tools, stdin=b"go\n/new\n")

    assert (code, out.isascii()) == (0, True)
    found = events(out)
    kinds = [one["type"] for one in found if one["type"] != "notice"]
    assert kinds == [
        *("reasoning", "usage", "tool_started", "tool_ended", "text", "usage", "done", "command_reply"),
    ]
    assert [one["text"] for one in found if one["type"] == "tool_ended"] == ["Ås: 501 mm"]
    assert next(one for one in found if one["type"] == "done")["status"] == "answered"
    notices = [one["event"]["event"] for one in found if one["type"] == "notice"]
    assert "compaction_end" in notices


def test_tools_and_commands_of_a_module(chat, tools):
    answers = say(call("water_level", {"place": "Vik"})), "Low."
    with ScriptedUpstream(*answers) as server:
        code, out, err = chat(server, "vik", "--tools", tools, stdin=b"go\n/shout ferry\n/help\n")

    assert code == 0
    assert out.startswith("Low.\nFERRY\n")
    assert "/shout words" in out
    assert '⚙ water_level(place="Vik") → Vik: 501 mm\n' in err


def test_a_script_is_asked_nothing_so_dangerous_calls_are_declined(chat, tools):
    with ScriptedUpstream(say(call("delete_file", {"path": "notes"})), "I could not.") as server:
        code, out, err = chat(server, "vik", "--tools", tools, "--once", "delete it")

    assert (code, out) == (0, "I could not.\n")
    assert "✗ declined: the user did not confirm this call" in err


def test_a_compaction_is_told_with_the_sizes_before_and_after(chat):
    with ScriptedUpstream(otherwise=say("lorem ipsum " * 300)) as server:
        code, _, err = chat(server, "vik", "--window", "4000", stdin=b"go on\n" * 6)

    assert code == 0
    assert "⚙️ Compacted (" in err
    assert " → " in err


@pytest.mark.parametrize("option", ["--summariser", "--summarizer"])
def test_another_model_writes_the_summaries(chat, option):
    with ScriptedUpstream(otherwise=say("lorem ipsum " * 300)) as server:
        code, _, _ = chat(
            server, "vik", "--window", "4000", option, f"writer@{server.url}/v1", stdin=b"go on\n" * 6
        )

        assert code == 0
        assert {one.model for one in server.requests} == {"m-1", "writer"}


@pytest.mark.parametrize(
    ("answer", "problem", "kept"),
    [
        (Refuse(401, "no"), "status 401", ""),
        (Reset(), "", ""),
        (
            Broken(say("This is the beginning of it, and then"), after=3, then="reset"),
            "broke",
            "This is the beginning of",
        ),
        (Refuse(410, "gone"), "status 410", ""),
    ],
)
def test_a_provider_that_fails_is_an_error_with_a_hint_and_nothing_is_lost(chat, answer, problem, kept):
    with ScriptedUpstream(answer, otherwise=echo) as server:
        code, out, err = chat(server, "vik", stdin=b"first\nsecond\n")

        assert code == 2
        (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
        assert problem in line
        assert "Traceback" not in err
        assert out.endswith("second\n")
        assert out.startswith(kept)
        sent = [message.text for message in server.requests[-1].messages if message.role == "user"]
        assert " ".join(sent).split() == ["first", "second"]


def test_a_provider_that_is_gone_is_an_error_with_a_hint(chat, refold):
    with ScriptedUpstream(otherwise=echo) as server:
        chat(server, "vik", "--once", "one")
    code, out, err = refold("chat", "vik", "--once", "two")

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "\nhint: " in err
    assert "one\n" in refold("show", "vik").out
    assert "two\n" in refold("show", "vik").out


def test_an_unknown_command_is_no_message(chat):
    with ScriptedUpstream() as server:
        code, out, _ = chat(server, "vik", "--once", "/stats")

        assert (code, out) == (0, "There is no command /stats: did you mean /status?\n")
        assert server.requests == []


def test_a_dead_mcp_server_is_a_warning_and_the_chat_goes_on(chat):
    with ScriptedUpstream("Hello.") as server:
        code, out, err = chat(server, "vik", "--mcp", "gauges=/no/such/program", "--once", "hi")

    assert (code, out) == (0, "Hello.\n")
    assert "warning: the MCP server 'gauges' cannot be used" in err
    assert "hint: start it by hand to see why" in err


def test_a_module_of_tools_that_exits_is_an_error(chat, tmp_path):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with ScriptedUpstream() as server:
        code, out, err = chat(server, "vik", "--tools", str(tmp_path / "leaves.py"), "--once", "hi")

    assert (code, out) == (2, "")
    assert "leaves.py' cannot be imported: SystemExit: 0" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "openai:gpt-4o-mini"], "the variable OPENAI_API_KEY holds no key"),
        (["--model", "nobody:gpt-4o"], "it is not known where the model 'nobody:gpt-4o' is"),
        (["--model", "no-such-model"], "it is not known where the model 'no-such-model' is"),
        (["--upstream", "nowhere", "--model", "m"], "there is no upstream 'nowhere'"),
        (["--upstream", "http://localhost:1/v1"], "--upstream needs the name of a model"),
        (["--resume"], "there is no conversation to go on with"),
        (["--resume", "vik"], "there is no conversation 'vik'"),
        (["--tools", "no_such_module"], "'no_such_module' cannot be imported: ModuleNotFoundError"),
        (["--tools", "no_such_file.py"], "'no_such_file.py' cannot be imported: FileNotFoundError"),
        (["--tools", "json"], "the module 'json' has no tools"),
        (["--preset", "none", "--model", "m@http://localhost:1/v1"], "none"),
        (["--window", "large"], "--window"),
        (["--store", "memory:"], "a store in memory is forgotten"),
    ],
)
def test_what_cannot_work_is_said_at_once(chat, args, message):
    code, out, err = chat(None, "--once", "hi", *args)

    assert (code, out) == (2, "")
    assert message in err.splitlines()[0]
    assert err.splitlines()[-1].startswith("hint: ")


def test_a_tool_with_a_wrong_schema_is_said_at_once(chat, tmp_path):
    (tmp_path / "bad.py").write_text("import refold\n@refold.tool\ndef look(place): return 1\n")

    code, out, err = chat(None, "--once", "hi", "--tools", "bad.py")
    assert (code, out) == (2, "")
    assert err.startswith("error: the parameter 'place' of the tool 'look' has no type hint")


def test_without_a_model_and_without_the_local_one_the_way_is_told(chat, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("REFOLD_LOCAL_MODEL", raising=False)

    code, out, err = chat(None, "--once", "hi")
    assert (code, out) == (2, "")
    assert err.startswith("error: no model is named, and the local one cannot run: ")
    assert "--model openai:gpt-4o-mini" in err
    assert "refold local install" in err


def test_an_upstream_of_the_settings_serves_its_models(chat, refold, tmp_path):
    with ScriptedUpstream(otherwise=echo) as server:
        (tmp_path / "refold.toml").write_text(
            f'[upstreams.mine]\nurl = "{server.url}/v1"\nmodels = ["small-*", "big"]\nwindow = 32000\n'
        )
        code, out, err = refold("chat", "a", "--model", "small-1", "--once", "one")
        assert (code, out) == (0, "one\n")
        assert "the upstream mine is the one that " in err
        assert refold("chat", "b", "--model", "mine:other", "--once", "two")[:2] == (0, "two\n")
        assert refold("chat", "c", "--upstream", "mine", "--model", "x", "--once", "three")[:2] == (
            0,
            "three\n",
        )
        assert refold("chat", "d", "--once", "four")[:2] == (0, "four\n")

        assert [received.model for received in server.requests] == ["small-1", "other", "x", "big"]


@pytest.mark.parametrize(("flags", "limit"), [((), "122.6k"), (("--window", "16k"), "13.8k")])
def test_another_model_keeps_the_window_that_was_asked_for_and_not_that_of_the_upstream(
    refold, chat, tmp_path, flags, limit
):
    with ScriptedUpstream(otherwise=echo) as server:
        (tmp_path / "refold.toml").write_text(f'[upstreams.mine]\nurl = "{server.url}/v1"\nwindow = 32000\n')
        said = f"one\n/model gpt-4o@{server.url}/v1\n/status\n".encode()
        told = refold("chat", "a", "--upstream", "mine", "--model", "x", *flags, stdin=said)

    assert f"/{limit} (" in told.out


def test_what_a_crashed_program_left_is_not_printed_as_the_reply(chat):
    """Only the reply to the message that was sent is data."""
    with ScriptedUpstream(Refuse(401, "no"), otherwise=echo) as server:
        chat(server, "vik", "--once", "first")
        assert chat(server, "vik", "--once", "second").out == "second\n"


def test_nothing_of_the_conversation_or_the_key_is_logged(chat, monkeypatch):
    monkeypatch.setenv("GAUGE_KEY", "sk-not-for-logs")
    with ScriptedUpstream(Refuse(500, "secret words"), otherwise=Refuse(401, "no")) as server:
        _, _, err = chat(server, "vik", "--key-env", "GAUGE_KEY", "--once", "xylophone")

        assert server.requests[-1].key == "sk-not-for-logs"
    assert "xylophone" not in err
    assert "sk-not" not in err


def test_a_file_of_tools_may_have_dataclasses_and_postponed_annotations(chat, tmp_path):
    for unit in ("mm", "inch"):
        (tmp_path / f"{unit}.py").write_text(TYPED_TOOLS.replace("UNIT", unit))
    calls = say(*(call(f"read_{unit}", {"gauge": {"place": "Vik"}}, id=unit) for unit in ("mm", "inch")))
    with ScriptedUpstream(calls, "Low.") as server:
        code, out, err = chat(server, "--tools", "mm.py", "--tools", "inch.py", "--once", "Read.")

    assert (code, out) == (0, "Low.\n")
    assert "Vik: 501 mm" in err
    assert "Vik: 501 inch" in err


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("vik <&-", "error: stdin is closed, so nothing can be read\nhint: "),
        ("vik --once - <&-", "error: stdin is closed, so nothing can be read\nhint: "),
        ("vik --once hi >&-", "error: stdout is closed, so no reply can be written\nhint: "),
    ],
)
def test_a_closed_stream_is_told_in_a_line(line, problem, store, tmp_path):
    program = f"exec '{sys.executable}' -m refold chat --model m@http://127.0.0.1:1/v1 {line}"
    ended = subprocess.run(["sh", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert ended.returncode == 2
    assert ended.stderr.startswith(problem)
    assert ended.stderr.count("\n") == 2


def test_the_place_of_a_model_that_a_command_chose_is_remembered(chat, refold):
    with ScriptedUpstream("First.") as first, ScriptedUpstream("Second.", "Third.") as second:
        lines = f"one\n/model m-2@{second.url}/v1\ntwo\n".encode()
        code, out, _ = chat(first, "vik", stdin=lines)
        assert code == 0
        assert out.startswith("First.\n")
        assert out.endswith("Second.\n")

        assert refold("chat", "vik", "--once", "three")[:2] == (0, "Third.\n")
        assert len(second.requests[-1].messages) == 5


def test_a_model_that_is_only_chosen_is_remembered_too(chat, refold):
    with ScriptedUpstream("First.") as first, ScriptedUpstream("Second.") as second:
        chat(first, "vik", "--once", "one")
        chat(first, "vik", "--once", f"/model m-2@{second.url}/v1")
        assert refold("chat", "vik", "--model", "m-2", "--once", "two")[:2] == (0, "Second.\n")


def test_what_a_tool_prints_is_no_data(chat, tmp_path):
    (tmp_path / "ship.py").write_text(
        'import refold\n\n@refold.tool\ndef look() -> str:\n    "Look."\n    print("a ship")\n    return "seen"\n'
    )
    with ScriptedUpstream(say(call("look")), "Aye.") as server:
        code, out, err = chat(server, "--tools", "ship.py", "--once", "Go", "--json")
    assert code == 0
    assert [one["type"] for one in events(out)][-1] == "done"
    assert "a ship" not in out
    assert "a ship\n" in err
