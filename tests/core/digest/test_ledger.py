import pytest

from refold.core.digest.ledger import EMPTY, MAX_ENTRIES, MAX_RULES, Ledger, entries, merge
from refold.core.tool_use import ToolKinds
from refold.model.message import Message, Text, assistant, system, tool, user
from tests.core.digest.conversations import call, work
from tests.core.digest.ledgers import ledger_of


@pytest.mark.feature("O11")
def test_files_accumulate_over_three_cycles_and_modified_wins():
    first = ledger_of(
        [assistant("", call("read_file", path="lib/router.ex"), call("Read", file_path="a.py"))]
    )
    second = merge(first, ledger_of([assistant("", call("edit_file", path="lib/router.ex"))]))
    third = merge(
        second, ledger_of([assistant("", call("read_file", path="lib/router.ex"), call("view", path="b.py"))])
    )
    assert second == Ledger(read=("a.py",), modified=("lib/router.ex",))
    assert third == Ledger(read=("a.py", "b.py"), modified=("lib/router.ex",))


@pytest.mark.feature("O11")
def test_read_then_modified_in_one_message_is_modified():
    found = entries(
        assistant("", call("read_file", path="a.py"), call("Write", file_path="a.py", content="x"))
    )
    assert found == Ledger(modified=("a.py",))


@pytest.mark.feature("O11")
@pytest.mark.parametrize(
    "message",
    [
        assistant("", call("read_file")),
        assistant("", call("read_file", path="")),
        assistant("", call("read_file", path=7)),
        assistant("", call("weather", path="a.py")),
        user("read_file a.py"),
        tool("c", '{"path": "a.py"}'),
        Message("user", (call("read_file", path="a.py"),)),
    ],
)
def test_only_paths_in_calls_of_the_assistant_count(message):
    found = entries(message)
    assert (found.read, found.modified) == ((), ())


@pytest.mark.feature("O11")
def test_other_tools_can_be_named():
    tools = ToolKinds(reads=("fetch_doc",), writes=("store_doc",), paths=("doc",))
    said = [assistant("", call("fetch_doc", doc="x.md"), call("store_doc", doc="y.md"))]
    assert ledger_of(said, tools) == Ledger(read=("x.md",), modified=("y.md",))
    assert ledger_of(said) == EMPTY


def test_only_users_state_rules():
    assert entries(user("You must use tabs.")).rules == ("You must use tabs.",)
    assert entries(assistant("You must use tabs.")).rules == ()


def test_of_too_many_rules_the_oldest_and_the_newest_are_carried():
    found = ledger_of([user(f"Never open door number {n}.") for n in range(MAX_RULES + 20)])
    assert len(found.rules) == MAX_RULES
    assert found.rules[0] == "Never open door number 0."
    assert found.rules[-1] == f"Never open door number {MAX_RULES + 19}."


def test_errors_come_from_failed_results():
    found = ledger_of(
        [tool("a", "error: no such file x.py"), tool("b", "fine"), tool("c", "boom " * 200, is_error=True)]
    )
    assert found.errors[0] == "error: no such file x.py"
    assert len(found.errors) == 2
    assert len(found.errors[1]) <= 240


def test_decisions_and_tasks():
    said = assistant(
        "I decided to use msgspec instead of json.\n- [ ] write the docs\n- [ ] add a test\n- [x] read the code"
    )
    found = ledger_of([said, assistant("- [x] add a test")])
    assert found.decisions == ("I decided to use msgspec instead of json.",)
    assert found.tasks == ("write the docs",)


def test_the_newest_entries_are_carried():
    found = ledger_of([tool("c", f"error: number_{n} failed") for n in range(40)])
    assert len(found.errors) == MAX_ENTRIES
    assert found.errors[-1] == "error: number_39 failed"


def test_fifty_cycles_keep_rules_and_files():
    found = ledger_of([user("Never change the schema.")])
    for cycle in range(50):
        found = merge(found, ledger_of(work(1, start=cycle)))
    assert found.rules == ("Never change the schema.",)
    assert found.modified == tuple(f"src/billing/fix_{n}.py" for n in range(50))
    assert found.read == tuple(f"src/billing/part_{n}.py" for n in range(50))


def test_system_messages_and_odd_ones_add_nothing():
    assert entries(system("You must obey.")) == EMPTY
    assert entries(Message("assistant", (Text(""),))) == EMPTY
