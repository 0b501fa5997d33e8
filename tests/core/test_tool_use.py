import json

import pytest

from refold.core.tool_use import COMMON_TOOLS, FileAccess, ToolKinds, call_key, file_accesses
from refold.model.message import ToolCall


def call(name, **arguments):
    return ToolCall("c", name, json.dumps(arguments))


@pytest.mark.parametrize(
    "used, expected",
    [
        (call("read_file", path="a.py"), ("read", "a.py")),
        (call("Read", file_path="/src/a.py", offset=3), ("read", "/src/a.py")),
        (call("readFile", filePath="a.py"), ("read", "a.py")),
        (call("view", path="./a.py"), ("read", "a.py")),
        (call("str_replace_based_edit_tool", command="view", path="a.py"), ("read", "a.py")),
        (call("str_replace_based_edit_tool", command="create", path="a.py"), ("write", "a.py")),
        (call("Write", file_path="a.py", content="x"), ("write", "a.py")),
        (call("MultiEdit", file_path="a.py", edits=[]), ("write", "a.py")),
        (call("NotebookEdit", notebook_path="a.ipynb"), ("write", "a.ipynb")),
        (call("write_to_file", path="a.py"), ("write", "a.py")),
        (call("edit_file", target_file="a.py"), ("write", "a.py")),
        (call("read_file"), None),
        (call("read_file", path=3), None),
        (call("bash", command="cat a.py"), ("read", "a.py")),
        (call("bash", command="cat a.py | grep x"), None),
        (call("bash", command="cat a.py > b.py"), None),
        (call("bash", command="cat a.py && make"), None),
        (call("bash", command="cat $FILE"), None),
        (call("bash", command="cat 'a.py"), None),
        (call("bash", command="catalog a.py"), None),
        (call("bash", command="cd src && cat a.py | head -5"), ("read", "src/a.py")),
        (call("run_in_terminal", command="sed -n '1,40p' a.py"), ("read", "a.py")),
        (call("bash", command="sed -i s/x/y/ a.py"), None),
        (call("shell", command=["bash", "-lc", "head -n 20 a.py"]), ("read", "a.py")),
        (call("shell", command=["tail", "-5", "a.py"]), ("read", "a.py")),
        (call("local_shell", action={"command": ["cat", "a.py"]}), ("read", "a.py")),
        (call("mcp__files__read_file", path="a.py"), ("read", "a.py")),
        (call("files.write_file", path="a.py"), ("write", "a.py")),
        (call("read_many_files", paths=["a.py"]), ("read", "a.py")),
        (call("multi_replace_string_in_file", replacements=[{"filePath": "a.py"}]), ("write", "a.py")),
        (call("apply_patch", operation={"type": "update_file", "path": "a.py"}), ("write", "a.py")),
        (
            call("exec_command", cmd="apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a.py\n"),
            ("write", "a.py"),
        ),
        (call("get_order", path="a.py"), None),
        (ToolCall("c", "read_file", '{"path": "a'), None),
        (ToolCall("c", "read_file", "[1]"), None),
    ],
)
def test_what_a_call_does_to_a_file(used, expected):
    found = [(access.kind, access.path) for access in file_accesses(used)]
    assert found == ([expected] if expected else [])


def test_a_patch_may_change_several_files():
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Add File: ./b.py\n+z\n*** Delete File: c.py\n"
    both = (FileAccess("write", "a.py"), FileAccess("write", "b.py"), FileAccess("write", "c.py"))
    assert file_accesses(call("apply_patch", input=patch)) == both
    assert file_accesses(ToolCall("c", "apply_patch", patch, "custom")) == both


def test_parts_of_a_file_are_told_apart():
    whole = file_accesses(call("read", path="a.py", offset=None))[0]
    part = file_accesses(call("read", path="a.py", offset=10, limit=5))[0]
    assert whole.span == ""
    assert part.span == "offset=10,limit=5"


def test_other_tools_can_be_named():
    kinds = ToolKinds(reads=("fetch_document",), paths=("document",))
    assert file_accesses(call("fetch_document", document="a"), kinds) == (FileAccess("read", "a"),)
    assert file_accesses(call("read_file", path="a"), kinds) == ()


def test_named_tools_are_of_the_kind_they_are_named_for():
    kinds = COMMON_TOOLS.with_names(reads=("load_doc", "bash"), writes=("view",))
    assert file_accesses(call("mcp__docs__load_doc", path="a"), kinds) == (FileAccess("read", "a"),)
    assert file_accesses(call("view", path="a"), kinds) == (FileAccess("write", "a"),)
    assert file_accesses(call("bash", command="cat a"), kinds) == ()


@pytest.mark.parametrize(
    "first, second, is_same",
    [
        (call("bash", command="make"), call("bash", command="make  2>&1 | tail -5", description="x"), True),
        (call("bash", command="make"), call("bash", command="make test"), False),
        (call("bash", command="make", cwd="a"), call("bash", command="make", cwd="b"), False),
        (
            call("shell", command=["bash", "-lc", "make"]),
            call("shell", command=["bash", "-lc", "make"], timeout=9),
            True,
        ),
        (call("bash", command="make"), call("run", command="make"), False),
        (call("run", a=1), call("run", a=2), False),
        (call("Edit", file_path="a", old_string="x"), call("Edit", file_path="a", old_string="y"), True),
    ],
)
def test_calls_that_do_the_same_share_a_key(first, second, is_same):
    assert (call_key(first) == call_key(second)) is is_same
