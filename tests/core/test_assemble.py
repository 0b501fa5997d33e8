import ast
from pathlib import Path

import pytest

import refold.core
from refold.core.assemble import BRIDGE, assemble
from refold.core.verify import verify_window
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS
from refold.model.message import assistant, system, user
from refold.model.window import Fixed, Tool
from tests.core.conversations import talk


@pytest.mark.feature("P9")
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_system_tools_summaries_and_messages_come_together_in_one_window(dialect):
    fixed = Fixed(dialect, (system("be kind"),), (Tool("look"),))
    window = assemble(fixed, tuple(talk("c:x t:x")), summaries=(user("before"),))
    assert window.fixed is fixed
    assert [message.text for message in window.summaries] == ["before"]
    assert verify_window(window) == ()


@pytest.mark.feature("P9")
def test_a_dialect_that_wants_the_user_first_gets_a_bridge():
    tail = tuple(talk("u"))
    window = assemble(Fixed(ANTHROPIC), tail, summaries=(assistant("what happened before"),))
    assert [message.text for message in window.summaries] == [BRIDGE, "what happened before"]
    assert verify_window(window) == ()
    assert assemble(Fixed(CHAT), tail, summaries=(assistant("before"),)).summaries[0].text == "before"
    assert assemble(Fixed(ANTHROPIC), ()).summaries == ()
    late = tuple(talk("t:x u"))
    assert [message.text for message in assemble(Fixed(ANTHROPIC), late).summaries] == [BRIDGE]


@pytest.mark.feature("P9")
def test_nothing_but_the_assembler_builds_windows_and_budget_functions_build_no_messages():
    core = Path(refold.core.__file__).parent
    builders = {path.stem for path in core.rglob("*.py") if "Window" in _called(path)}
    assert builders == {"assemble"}
    for module in ("budget", "measure", "estimate", "calibrate", "triggers", "cut", "turns"):
        assert not _called(core / f"{module}.py") & {
            "Message",
            "user",
            "assistant",
            "tool",
            "system",
            "with_parts",
        }


def _called(path: Path) -> set[str]:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {name.id if isinstance(name, ast.Name) else getattr(name, "attr", "") for name in calls}
