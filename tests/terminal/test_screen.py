"""A person at a real terminal: typing during a reply, commands, Ctrl-C, crashes, and terminals that can do little."""

from __future__ import annotations

import re
import signal

import pytest

from refold.cli.main import run
from refold.testing import Broken, Refuse, ScriptedUpstream, Slow, call, echo, say
from tests.chat.test_tools import has_ended, mute  # noqa: F401  # a fixture
from tests.contract.postgres import empty
from tests.contract.stores import postgres_url  # noqa: F401  # a fixture
from tests.terminal.program import ALT_ENTER, CTRL_C, CTRL_D, PATIENCE_S, TAB, UP, Gate, Program

TOOLS = """
import refold

@refold.tool(dangerous=True)
def delete_file(path: str) -> str:
    "Delete a file."
    return f"deleted {path}"
"""


@pytest.fixture
def program(request, tmp_path, monkeypatch):
    """Starts the program with a scripted provider, on a store of its own: SQLite, or what the test is run with."""
    is_postgres = getattr(request, "param", "sqlite") == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "chats.db")
    monkeypatch.setenv("REFOLD_STORE", url)
    monkeypatch.chdir(tmp_path)

    def start(server, *args, **more):
        return Program("vik", "--model", f"m-1@{server.url}/v1", "--window", "32000", *args, **more)

    yield start
    if is_postgres:
        empty(url)


each_store = pytest.mark.parametrize("program", ["sqlite", "postgres"], indirect=True)


def texts(received):
    return [message.text for message in received.messages]


def test_a_reply_streams_as_markdown_and_the_status_line_follows(program):
    reply = "# Tides\n\nThe water is **low**.\n\n```python\nlevel = 501\n```"
    with ScriptedUpstream(reply) as server, program(server, is_script=True) as chat:
        chat.see("/help lists the commands")
        chat.see("m-1  ░░░░░░░░░░")
        chat.enter("How is the water?")
        chat.see("level = 501")
        shown = chat.see_idle()
        assert "**" not in shown
        assert "\nTides\n\nThe water is low.\n\n" in shown
        assert "compactions 0" in shown
        assert chat.leave() == 0
        chat.see("hint: to go on: refold chat vik")
    assert "\x1b[1m" in chat.raw  # bold


def test_the_hint_in_the_end_names_a_store_and_an_owner_that_are_not_the_usual_ones(program, tmp_path):
    other = tmp_path / "o.db"
    with ScriptedUpstream("Low.") as server, program(server, "--store", "o.db", "--owner", "li") as chat:
        chat.see_idle()
        assert chat.leave() == 0
        said = "".join(chat.see("--owner li").split())
    assert f"hint:togoon:refoldchatvik--store{other}--ownerli" in said


@each_store
def test_what_is_typed_during_a_reply_waits_out_of_sight_and_is_answered_in_order(program, capsys):
    """Case 62: queued messages are nowhere to be seen; they are flushed in order, and get one reply."""
    gate = Gate("First reply.")
    with ScriptedUpstream(gate, otherwise=echo) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        gate.reached.wait(30)
        chat.enter("two")
        chat.see("> two  (waits)")
        chat.enter("three")
        chat.see("queued 2")
        assert run(["show", "vik"]) == 0
        assert "two" not in capsys.readouterr().out
        gate.opened.set()
        chat.see("First reply.\n\n> two\n> three\nthree\n")
        chat.see_idle()
        assert texts(server.requests[1])[-2:] == ["two", "three"]
        assert len(server.requests) == 2


@each_store
def test_a_message_behind_new_is_in_the_new_session(program):
    """Cases 62 and 63: a command that changes the conversation waits in its place."""
    gate = Gate("First reply.")
    with ScriptedUpstream(gate, otherwise=echo) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        gate.reached.wait(30)
        for line in ("two", "/new", "three"):
            chat.enter(line)
            chat.see(f"> {line}  (waits)")
        gate.opened.set()
        chat.see("First reply.\n\n> two\nstored without a reply: a command came after it\n> /new\n")
        chat.see("\n> three\nthree\n")
        assert texts(server.requests[1]) == ["three"]


def test_a_command_that_only_reads_is_answered_during_the_reply(program):
    gate = Gate("First reply.")
    with ScriptedUpstream(gate) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        gate.reached.wait(30)
        chat.enter("/status")
        chat.see("🧠 Model: m-1")
        chat.enter("/stats")
        chat.see("There is no command /stats: did you mean /status?")
        gate.opened.set()
        chat.see("First reply.")
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("program", "how"),
    [("sqlite", "/abort"), ("sqlite", "  /STOP  "), ("sqlite", CTRL_C), ("postgres", "/abort")],
    indirect=["program"],
)
def test_a_reply_is_stopped_and_what_came_is_kept(program, capsys, how):
    """Case 64."""
    slow = Slow(say("word " * 2_000), between_s=0.02)
    with ScriptedUpstream(slow, otherwise=echo) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        chat.see("word word word")
        chat.type(how if how == CTRL_C else f"{how}\r")
        chat.see("⛔ stopped; what came is kept")
        chat.enter("/abort")
        chat.see("Nothing to abort.")
        chat.enter("two")
        chat.see("> two\ntwo\n")
        chat.leave()
    run(["show", "vik"])
    assert "word word word" in capsys.readouterr().out


def test_ctrl_c_clears_the_input_and_twice_leaves(program):
    with ScriptedUpstream() as server, program(server) as chat:
        chat.see_idle()
        chat.type("half a thought")
        chat.see("> half a thought")
        chat.type(CTRL_C)
        assert "half a thought" not in chat.see("Ctrl-C again leaves")
        chat.type(CTRL_C)
        assert chat.wait() == 0
        assert server.requests == []


@each_store
def test_what_was_queued_when_the_program_was_killed_is_answered_once(program):
    """Case 65."""
    gate = Gate("Never arrives.")
    with ScriptedUpstream(gate, otherwise=echo) as server:
        with program(server) as chat:
            chat.see_idle()
            chat.enter("one")
            gate.reached.wait(30)
            chat.enter("two")
            chat.see("queued 1")  # it is stored
            chat.kill()
        gate.opened.set()
        with program(server) as chat:
            chat.see("Not typed here: two\ntwo\n", within_s=40)
            chat.see_idle()
            # The reply that was in progress comes first, then the one to the message that waited for it.
            assert [texts(one) for one in server.requests[1:]] == [["one"], ["one", "one", "two"]]
            chat.leave()


@each_store
def test_an_earlier_session_is_resumed(program):
    """Cases 66 and 67: the list, an unknown id, and the whole context."""
    with ScriptedUpstream(otherwise=echo) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("/resume")
        chat.see("No previous sessions to resume.")
        chat.enter("the ferry leaves at noon")
        chat.see("> the ferry leaves at noon\nthe ferry leaves at noon\n")
        chat.enter("/new")
        session = re.search(r"session #(\w{8}) archived", chat.see(" archived."))[1]
        chat.enter("/resume 99999999")
        chat.see("Session #99999999 not found.")
        chat.enter(f"/resume {session}")
        chat.see(f"🔄 Resumed session #{session} with full context.")
        chat.enter("when?")
        chat.see("> when?\nwhen?\n")
        assert texts(server.requests[-1]) == ["the ferry leaves at noon"] * 2 + ["when?"]


@each_store
def test_compactions_are_told_and_undone(program):
    """Case 68: after /undo the originals are back."""
    long = say("lorem ipsum dolor " * 200)
    with ScriptedUpstream(otherwise=long) as server, program(server, "--window", "6000") as chat:
        for number in range(4):
            chat.see_idle()
            chat.enter(f"turn {number}")
            chat.see(f"> turn {number}\nlorem")
        chat.see_idle()
        chat.enter("/compact")
        assert re.search(r"⚙ +Compacted \(\S+ → \S+\)", chat.see("compactions 1"))
        chat.enter("/diff")
        chat.see("left: #m")
        chat.enter("/status")
        chat.see("Compactions: 1")
        chat.enter("/undo")
        chat.see("compactions 0")
        chat.see_idle()
        chat.enter("/status")
        chat.enter("/help")
        last = chat.see("this list").rpartition("> /undo\n")[2]
        assert "🧵 Session: " in last
        assert "Compactions: " not in last
        assert chat.shown().count("Taken back (") == 1
        chat.enter("And now?")
        chat.see("> And now?\nlorem")
        assert texts(server.requests[-1])[0] == "turn 0"


@each_store
def test_what_the_first_of_several_summaries_covers_is_found(program):
    """Case 69."""
    number = 0

    def reply(received):
        return say(f"Reply to {received.text[:20]}: " + "潮来潮去。" * 350)  # many tokens, few characters

    with ScriptedUpstream(otherwise=reply) as server, program(server, "--window", "6000") as chat:
        chat.see_idle()
        chat.enter("The code of zanzibar is 4417.")
        chat.see("Reply to The code")
        while "compactions 3" not in chat.see_idle():
            chat.enter(f"turn {number}")
            chat.see(f"Reply to turn {number}:")
            number += 1
            assert number < 30
        chat.enter("And now?")
        chat.see("Reply to And now?")
        assert "The code of zanzibar is 4417." not in texts(server.requests[-1])
        chat.see_idle()
        chat.enter("/search zanzibar")
        chat.see("> /search zanzibar\n#m0")
        chat.enter("/recall #m0")
        chat.see("> /recall #m0\nThe code of zanzibar is 4417.\n")
        chat.enter("/recall #s0")
        assert "⚠" not in chat.see_idle().rpartition("> /recall #s0")[2]


def test_lines_that_are_entered_before_the_prompt_are_messages_of_their_own(program):
    with ScriptedUpstream(otherwise=echo) as server, program(server) as chat:
        chat.type("one\rtwo\r")
        # One turn answers both, or the second waits for the reply to the first, which is told in between.
        chat.wait_for(lambda: "\ntwo\n" in chat.shown().partition("> two")[2])
    users = [one.text for one in server.requests[-1].messages if one.role == "user"]
    assert users == ["one", "two"]


def test_a_dangerous_call_is_asked_about_and_a_message_is_no_answer(program, tmp_path):
    (tmp_path / "files.py").write_text(TOOLS)
    deletes = say(call("delete_file", {"path": "notes"}))
    answers = deletes, "Gone.", deletes, "Kept."
    with ScriptedUpstream(*answers) as server, program(server, "--tools", "files.py") as chat:
        chat.see_idle()
        chat.enter("delete it")
        chat.see("run it? y or n:")
        chat.enter("why")
        chat.see("> why  (waits)")
        chat.enter("y")
        chat.see('⚙ delete_file(path="notes") → deleted notes')
        chat.see("Gone.\n\n> why\n")
        chat.see("> why\nthe model wants to run delete_file")
        chat.enter("No")
        chat.see("✗ declined")
        chat.see("Kept.")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Refuse(401, "no"), "error: the server (m-1) did not give a reply: status 401"),
        (
            Broken(say("This is the beginning of it, and then"), then="reset"),
            "error: the server broke the connection",
        ),
    ],
)
def test_after_an_error_the_prompt_comes_back(program, answer, problem):
    with ScriptedUpstream(answer, otherwise=echo) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        chat.see(problem)
        chat.see("hint: ")
        chat.see_idle()
        chat.enter("two")
        chat.see("> two\ntwo\n")
        assert [one.text for one in server.requests[1].messages if one.role == "user"] == ["one", "two"]


def test_several_lines_completion_and_history(program, tmp_path):
    with ScriptedUpstream(otherwise=echo) as server, program(server) as chat:
        chat.see_idle()
        chat.type(f"first line{ALT_ENTER}second line\\\rthird line")
        chat.see("third line")
        chat.type("\r")
        chat.see("> first line\n  second line\n  third line\n")
        chat.see_idle()
        chat.type("/sta")
        chat.see("model, tokens, cache, context, session")
        chat.type(f"{TAB}\r")
        chat.see("🧠 Model: m-1")
        chat.see_idle()
        chat.type(UP)
        chat.see("> /status\n m-1")
        chat.type(CTRL_C)
        chat.see_idle()
        chat.leave()
        assert server.requests[0].text == "first line\nsecond line\nthird line"
    history = tmp_path / "chat_history"
    assert "second line" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_keys_are_shown_while_a_reply_streams(program):
    """Typing is drawn at once, whatever arrives meanwhile."""
    with ScriptedUpstream(Slow(say("word " * 3_000), between_s=0.005)) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("go")
        chat.see("word word")
        typed = "> "
        for letter in "quick":
            typed += letter
            chat.type(letter)
            chat.see(typed)
        assert "answering" in chat.shown()


def test_ctrl_c_stops_a_compaction_and_the_next_message_is_answered(program):
    gate, note = Gate("Never."), "the tide comes and goes by the pier " * 60
    notes = [f"Reply {n}: {note}" for n in range(4)]
    with (
        ScriptedUpstream(*notes, gate, otherwise="Still here.") as server,
        program(server, "--window", "8000") as chat,
    ):
        chat.see_idle()
        for n in range(4):
            chat.enter(f"note {n}")
            chat.see(f"Reply {n}: ")  # before it is answered the input may be empty too
            chat.see_idle()
        chat.enter("/compact hang")
        assert gate.reached.wait(PATIENCE_S)
        chat.see("compacting")
        chat.type(CTRL_C)
        chat.see("Stopped")
        chat.enter("two")
        chat.see("Still here.")
        gate.opened.set()


def test_there_is_no_colour_without_colour(program):
    reply = "# Head\n\n`code` and **bold**\n\n```python\nx = 'y'\n```"
    with ScriptedUpstream(reply, Refuse(401, "no")) as server, program(server, NO_COLOR="1") as chat:
        chat.see_idle()
        chat.enter("one")
        chat.see("x = 'y'")
        chat.see_idle()
        chat.enter("two")
        chat.see("error: ")
        chat.type("/st")
        chat.see("/status")
        chat.type(CTRL_C)
        chat.see_idle()
        chat.leave()
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]", chat.raw)


def test_a_dumb_terminal_gets_lines_and_no_escape_sequence(program):
    gate = Gate("First **reply**.")
    with ScriptedUpstream(gate, otherwise=echo) as server, program(server, TERM="dumb") as chat:
        chat.see("leaves\n>")
        chat.type("one\n")
        gate.reached.wait(30)
        chat.type("two\n")
        chat.see("two")
        gate.opened.set()
        chat.see("First **reply**.\n")
        chat.see("\ntwo\n[m-1  ")
        chat.type("/stats\n")
        chat.see("did you mean /status?\n[m-1")
        chat.type(CTRL_D)
        assert chat.wait() == 0
        assert server.requests[1].text == "two"
    assert "\x1b" not in chat.raw


def test_ctrl_c_in_a_dumb_terminal_stops_the_reply_and_then_leaves(program):
    slow = Slow(say("word " * 2_000), between_s=0.02)
    with ScriptedUpstream(slow) as server, program(server, TERM="dumb") as chat:
        chat.see("leaves\n>")
        chat.type("one\n")
        chat.see("word word")
        chat.type(CTRL_C)
        chat.see("⛔ stopped; what came is kept\n[m-1")
        chat.type(CTRL_C)
        assert chat.wait() == 0


@pytest.mark.parametrize("columns", [40, 80])
def test_nothing_is_cut_or_wrapped_by_a_narrow_terminal(program, columns):
    reply = "words " * 60 + "\n\n- " + "item " * 40
    with ScriptedUpstream(reply) as server, program(server, columns=columns) as chat:
        chat.see("m-1")
        chat.enter("go")
        chat.see("item")
        shown = chat.see_idle()
        chat.leave()
    assert (shown.count("words"), shown.count("item")) == (60, 40)
    assert not re.search("word\n|ite\n|wor\n|it\n", shown)


def test_exit_leaves_and_what_was_received_is_kept(program, capsys):
    with ScriptedUpstream(Slow(say("word " * 2_000), between_s=0.02)) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        chat.see("word word word")
        chat.type("/exit\r")
        assert chat.wait() == 0
        chat.see("hint: to go on: refold chat vik")
    run(["show", "vik"])
    assert "word word word" in capsys.readouterr().out


def test_without_prompt_toolkit_the_way_is_told(program, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prompt_toolkit'] = None\n")
    with ScriptedUpstream() as server, program(server, is_script=True, PYTHONPATH=str(tmp_path)) as chat:
        assert chat.wait() == 2
        shown = " ".join(chat.shown().split())
        assert "error: the chat in a terminal needs the extra 'chat'" in shown
        assert "hint: install it with: " in shown


def test_exit_in_mid_reply_leaves_what_came_on_the_screen(program, capsys):
    gate = Gate("Never.")
    slow = Slow(say("one two three\n\nfour five " + "six " * 2_000), between_s=0.02)
    with ScriptedUpstream(slow, gate) as server, program(server) as chat:
        chat.see_idle()
        chat.enter("one")
        chat.see("five six six")
        chat.enter("next")
        chat.see("queued 1")
        chat.type("/exit\r")
        assert chat.wait() == 0
        shown = chat.see("hint: to go on: refold chat vik")
    left = re.sub(r"\s+", " ", shown.partition("Bye.")[2])
    assert left.startswith(" four five six six")
    assert "six ⛔ stopped; what came is kept" in left
    assert "1 typed line in the queue: answered when you go on hint: " in left
    run(["show", "vik"])
    assert "four five six six" in capsys.readouterr().out


def test_a_reply_after_a_crash_is_asked_for_until_it_is_stopped(program):
    gates = [Gate("Never.") for _ in range(2)]
    slow = Slow(say("word " * 2_000), between_s=0.02)
    with ScriptedUpstream(*gates, slow, otherwise=echo) as server:
        with program(server) as chat:
            chat.see_idle()
            chat.enter("one")
            gates[0].reached.wait(30)
            chat.kill()
        with program(server, TERM="dumb") as chat:
            gates[1].reached.wait(30)
            assert chat.leave() == 0  # before the first word
        with program(server) as chat:
            chat.see("word word word")
            chat.see("answering")
            chat.process.send_signal(signal.SIGINT)  # as Ctrl-C, where the terminal is not in raw mode yet
            chat.see("\n\n⛔ stopped; what came is kept\n")
            chat.see_idle()
            chat.enter("two")
            chat.see("> two\ntwo\n")
            chat.leave()
    assert [texts(one)[-1] for one in server.requests] == ["one", "one", "one", "two"]


PRINTING = """
import refold, subprocess, sys

@refold.tool
def look() -> str:
    "Look out."
    print("a ship\\x1b[2J in sight")
    print("no wind", file=sys.stderr)
    subprocess.run(["echo", "a process"])
    sys.stdout.buffer.write(b"raw\\n" * 1000)
    print("the end", end="")
    return "seen"
"""


def test_what_a_tool_prints_is_above_the_input(program, tmp_path):
    (tmp_path / "ship.py").write_text(PRINTING)
    answers = say(call("look")), "Aye."
    with ScriptedUpstream(*answers) as server, program(server, "--tools", "ship.py") as chat:
        chat.see_idle()
        chat.enter("go")
        chat.see("Aye.")
        for line in ("a ship�[2J in sight", "no wind", "a process"):
            chat.see(f"\n{line}\n")
        chat.wait_for(lambda: chat.shown().splitlines().count("raw") == 1_000)
        chat.see_idle()
        assert chat.leave() == 0
        chat.see("the end\n")


def test_a_server_that_never_answers_is_named_and_ctrl_c_leaves(program, mute):  # noqa: F811
    command, file = mute
    with ScriptedUpstream() as server, program(server, "--mcp", command) as chat:
        chat.see("connecting to the MCP server mute…")
        chat.wait_for(file.exists)
        chat.type(CTRL_C)
        assert chat.wait() == 130
        assert "Traceback" not in chat.shown()
    assert has_ended(file)
