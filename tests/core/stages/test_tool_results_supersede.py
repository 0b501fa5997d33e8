import json

import pytest
from msgspec import structs

from refold.core.stages.tool_results import Supersede, SupersedeTexts
from refold.core.tool_use import ToolKinds
from refold.model.message import ToolCall, assistant, tool, user
from tests.core.stages.shown_messages import lines, results_of, room_for, show_all

ROOM = room_for(100)
TEXT, OTHER, MORE = lines(10), lines(20), lines(30)


def acts(*calls):
    """One turn of calls, each `(tool, arguments, result)`."""
    messages = [user("go")]
    for number, (name, arguments, output) in enumerate(calls):
        call = ToolCall(f"c{number}", name, json.dumps(arguments))
        messages += [assistant("", call), tool(f"c{number}", output)]
    return [*messages, assistant("done")]


def superseded(*calls, stage=None, **kwargs):
    shown = show_all(acts(*calls), **kwargs)
    return (stage or Supersede()).apply(shown, ROOM)


def read(path="a.py", text=TEXT, **arguments):
    return ("Read", {"file_path": path, **arguments}, text)


@pytest.mark.feature("N12")
def test_a_file_that_is_read_again():
    result = superseded(read(), read(text=OTHER), read("b.py", MORE))
    assert results_of(result.shown) == [
        "[outdated, the file was read again in #m4; this was #m2]",
        OTHER,
        MORE,
    ]
    assert [(edit.seq, edit.reason) for edit in result.edits] == [(2, "read_again in #m4")]


@pytest.mark.parametrize(
    "change",
    [
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, "ok"),
        ("write_file", {"path": "./a.py", "content": "y"}, "ok"),
        ("str_replace_editor", {"command": "str_replace", "path": "a.py"}, "ok"),
        ("apply_patch", {"input": "*** Begin Patch\n*** Update File: a.py\n*** End Patch"}, "ok"),
    ],
)
def test_a_file_that_is_changed(change):
    result = superseded(read(), change)
    assert results_of(result.shown)[0] == "[outdated, the file was changed in #m3; this was #m2]"


def test_a_change_that_failed_changes_nothing():
    assert not superseded(read(), ("Edit", {"file_path": "a.py"}, "Error: no such text")).edits


def test_a_part_of_a_file_is_superseded_by_the_same_part_or_by_all_of_it():
    part, other = {"offset": 10, "limit": 5}, {"offset": 90}
    assert not superseded(read(**part), read(text=OTHER, **other)).edits
    assert superseded(read(**part), read(text=OTHER, **part)).edits
    assert superseded(read(**part), read(text=OTHER)).edits
    assert not superseded(read(), read(text=OTHER, **part)).edits


def test_output_that_comes_again():
    status = ("bash", {"command": "git status"}, TEXT)
    other = ("bash", {"command": "git status -v"}, TEXT)
    assert results_of(superseded(status, other).shown) == [
        "[the same output came again in #m4; this was #m2]",
        TEXT,
    ]
    assert not superseded(status, ("grep", {"command": "git status"}, TEXT)).edits


def test_an_error_that_was_fixed():
    failed = ("bash", {"command": "make"}, f"Error: {TEXT}")
    fixed = ("bash", {"command": "make"}, OTHER)
    assert results_of(superseded(failed, fixed).shown)[0] == "[an error, fixed in #m4; this was #m2]"
    assert not superseded(failed, ("bash", {"command": "make test"}, OTHER)).edits
    assert not superseded(failed, ("bash", {"command": "make"}, f"Error: {OTHER}")).edits


def test_an_error_is_known_by_its_flag():
    messages = acts(("run", {"a": 1}, TEXT), ("run", {"a": 1}, OTHER))
    messages[2] = tool("c0", TEXT, is_error=True)
    result = Supersede().apply(show_all(messages), ROOM)
    assert result.shown.messages[2].results[0].is_error
    assert [edit.reason for edit in result.edits] == ["fixed in #m4"]


def test_an_edit_of_the_same_file_fixes_a_failed_one():
    failed = ("Edit", {"file_path": "a.py", "old_string": "x"}, f"<tool_use_error>{TEXT}")
    fixed = ("Edit", {"file_path": "a.py", "old_string": "y"}, "ok")
    assert superseded(failed, fixed).edits


def test_short_results_stay():
    assert superseded(read(text="x" * 200), read(text=OTHER)).reason == "nothing has been superseded"


def test_the_first_event_counts_so_that_a_stub_never_changes():
    once = superseded(read(), read(text=OTHER)).shown
    later = show_all(acts(read(), read(text=OTHER), read(text=MORE))).items[len(once.items) - 1 :]
    grown = type(once)((*once.items[:-1], *later), len(once.items) + 2)
    again = Supersede().apply(grown, ROOM)
    assert results_of(again.shown) == [
        "[outdated, the file was read again in #m4; this was #m2]",
        "[outdated, the file was read again in #m6; this was #m4]",
        MORE,
    ]


def test_the_active_turn_and_pins_stay_but_count_as_events():
    assert superseded(read(), read(text=OTHER), protected=3).edits
    assert not superseded(read(), read(text=OTHER), protected=2).edits
    shown = show_all(acts(read(), read(text=OTHER)))
    assert not Supersede().apply(shown, room_for(100, pinned=[2])).edits


def test_tools_and_texts_are_data():
    stage = Supersede(SupersedeTexts(read_again="[alt: {by} {handle}]"))
    room = structs.replace(ROOM, tools=ToolKinds(reads=("holen",), paths=("datei",)))
    calls = [("holen", {"datei": "a"}, TEXT), ("holen", {"datei": "a"}, OTHER)]
    assert results_of(stage.apply(show_all(acts(*calls)), room).shown)[0] == "[alt: #m4 #m2]"


@pytest.mark.feature("N12")
def test_an_agent_s_run_under_one_question_is_looked_at_up_to_its_latest_reply():
    messages = acts(read(), read(text=OTHER), read(text=MORE))[:-1]
    shown = show_all(messages, protected=0)
    assert superseded_in(shown, Supersede()) == [TEXT, OTHER, MORE]
    assert superseded_in(shown, Supersede(active=True)) == [
        "[outdated, the file was read again in #m4; this was #m2]",
        "[outdated, the file was read again in #m6; this was #m4]",
        MORE,
    ]


def superseded_in(shown, stage):
    return results_of(stage.apply(shown, ROOM).shown)
