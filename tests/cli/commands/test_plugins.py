"""`refold plugins check` and the loading of plugins through the commands: what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.chat.commands import COMMANDS
from refold.cli.main import run
from refold.plugins.registry import OWN_COMMANDS, Plugins, use

COMMAND = """
import refold

async def reply(call):
    return "mine"

plugin = refold.Plugin(
    name="{name}", api=1, commands=[refold.Command(name="{command}", aliases={aliases}, summary="s", run=reply)]
)
"""
COUNTER = """
import refold

class Counter:
    source = "counted"
    def text(self, text): return {count}
    def message(self, message): return {count}

plugin = refold.Plugin(name="tally", api=1, counters={{"*": Counter()}})
"""
REFUSES = """
import refold

plugin = refold.Plugin(name="guard", api=1, timeout_s=60, on_response=lambda response: "no answers today")
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    use(Plugins())


def tried(capsys: pytest.CaptureFixture[str], what: str) -> tuple[int, list[dict[str, object]]]:
    code = run(["plugins", "check", what, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)["trials"] if out else []


@pytest.mark.parametrize("count", ["0", "-1", "True", "7.5", "float('nan')", "10**30"])
def test_a_counter_with_impossible_counts_fails_the_check(count, capsys, caplog):
    Path("tally.py").write_text(COUNTER.format(count=count))

    code, trials = tried(capsys, "./tally.py")

    assert code == 1
    assert {(one["plugin"], one["point"], one["passed"]) for one in trials} == {("tally", "counter", False)}
    assert "plugin tally, counter: it returned no possible number of tokens" in caplog.text


def test_a_counter_may_count_no_tokens_for_spaces(capsys):
    lines = COUNTER.replace(
        "(self, message): return {count}", "(self, message): return 9 + message.characters // 4"
    )
    Path("tally.py").write_text(lines.format(count="len(text.split())"))

    code, trials = tried(capsys, "./tally.py")

    assert (code, [one["point"] for one in trials]) == (0, ["counters"])


def test_the_refusal_of_a_response_filter_is_shown_as_that(capsys):
    Path("guard.py").write_text(REFUSES)

    code, trials = tried(capsys, "./guard.py")

    assert code == 1
    assert {one["point"] for one in trials} == {"response"}
    assert "no answers today" in str(trials)


def test_the_commands_that_plugins_may_not_replace_are_all_of_refold():
    assert {name for one in COMMANDS for name in (one.name, *one.aliases)} == OWN_COMMANDS


@pytest.mark.parametrize(("command", "aliases"), [("/compact", ()), ("/clear", ()), ("/mine", ("/quit",))])
def test_a_plugin_with_a_command_of_refold_is_not_loaded(command, aliases, tmp_path, monkeypatch, capsys):
    Path("mine.py").write_text(COMMAND.format(name="mine", command=command, aliases=aliases))
    taken = aliases[0] if aliases else command
    monkeypatch.setenv("REFOLD_PLUGINS_FILES", "mine.py")

    for args in (["plugins", "check", "./mine.py"], ["plugins", "list"]):
        assert run(args) == 1
        assert f"there is a command '{taken}' already" in capsys.readouterr().err
    assert run(["serve", "--store", str(tmp_path)]) == 2
    assert f"there is a command '{taken}' already" in capsys.readouterr().err


def test_two_plugins_with_one_command_are_not_both_loaded(monkeypatch, capsys):
    for name in ("one", "two"):
        Path(f"{name}.py").write_text(COMMAND.format(name=name, command="/mine", aliases=()))
    monkeypatch.setenv("REFOLD_PLUGINS_FILES", "one.py,two.py")

    assert run(["plugins", "list"]) == 1
    assert "two.py: there is a command '/mine' already" in capsys.readouterr().err


@pytest.mark.parametrize("aliases", ["5", "(5,)", "None", "'/x'"])
def test_aliases_that_are_no_texts_are_named(aliases, capsys):
    Path("mine.py").write_text(COMMAND.format(name="mine", command="/mine", aliases=aliases))

    assert tried(capsys, "./mine.py")[0] == 1
    run(["plugins", "check", "./mine.py"])
    assert "`commands` is a list of refold.Command" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tides", "tide-plugin"])
def test_the_check_of_a_broken_package_says_what_is_wrong(name, tmp_path, monkeypatch, capsys):
    info = tmp_path / "tide_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tide-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[refold.plugins]\ntides = no_such_module_of_tides:plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    code, trials = tried(capsys, name)

    assert code == 1
    assert [(one["plugin"], one["point"], one["passed"]) for one in trials] == [
        ("tide-plugin 1.0", "load", False)
    ]
    assert "ModuleNotFoundError" in str(trials[0]["detail"])
    assert tried(capsys, "other")[0] == 2
