import ast
from pathlib import Path

import pytest
from msgspec import structs

import refold.core
from refold.core.assemble import BRIDGE, NO_LEAD, assemble, broken_rules, lead_of
from refold.core.policy import LastMessages, Policy, Texts
from refold.core.verify import verify_window
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT, DIALECTS, alternating
from refold.model.message import system
from refold.model.summary import Summary
from refold.model.window import FixedFields, Tool
from tests.core.conversations import TextCounter, talk

EVERY = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
POLICY = Policy(name="mine", triggers={}, cut=LastMessages(2), texts=Texts("Before: ", " (end)"))


def placed(*texts, dialect=CHAT, room=1_000, **changes):
    policy = structs.replace(POLICY, **changes)
    summaries = [Summary(text, 0, 1, len(text), number=number) for number, text in enumerate(texts)]
    return lead_of(summaries, policy, dialect, TextCounter(), room)


@pytest.mark.feature("P9", "P3")
@EVERY
def test_system_tools_summaries_and_messages_come_together_in_one_window(dialect):
    fixed = FixedFields(dialect, (system("be kind"),), (Tool("look"),))
    window = assemble(fixed, tuple(talk("c:x t:x")), placed("it began", dialect=dialect))
    assert window.fixed is fixed
    assert [message.text for message in window.summaries] == ["Before: it began (end)"]
    assert window.system == (system("be kind"),)
    assert verify_window(window) == ()


@pytest.mark.feature("P9")
def test_an_assistant_summary_gets_a_bridge_where_the_user_must_speak_first():
    tail = tuple(talk("u"))
    lead = placed("it began", placement="assistant", dialect=ANTHROPIC)
    window = assemble(FixedFields(ANTHROPIC), tail, lead)
    assert [message.text for message in window.summaries] == [BRIDGE, "Before: it began (end)"]
    assert lead.tokens == sum(map(TextCounter().message, window.summaries))
    assert verify_window(window) == ()
    plain = placed("it began", placement="assistant")
    assert [message.role for message in assemble(FixedFields(CHAT), tail, plain).summaries] == ["assistant"]


@pytest.mark.feature("P9")
@EVERY
def test_a_conversation_that_does_not_begin_with_the_user_gets_a_bridge_where_it_is_refused(dialect):
    assert assemble(FixedFields(dialect), ()).summaries == ()
    assert assemble(FixedFields(dialect), tuple(talk("u"))).summaries == ()
    late = assemble(FixedFields(dialect), tuple(talk("c:x t:x u")))
    assert [message.text for message in late.summaries] == ([BRIDGE] if dialect is ANTHROPIC else [])
    strict = assemble(FixedFields(alternating(dialect)), tuple(talk("c:x t:x u")))
    assert [message.text for message in strict.summaries] == [BRIDGE]


@EVERY
def test_a_reply_that_a_fold_leaves_first_gets_a_bridge_in_every_format(dialect):
    lead = placed("it began", placement="system", texts=Texts("Before:\n", fence="past"))
    window = assemble(FixedFields(dialect), tuple(talk("c:x t:x u")), lead)
    assert [message.text for message in window.summaries] == [BRIDGE]


@pytest.mark.feature("P3")
@EVERY
def test_a_summary_can_stand_after_the_system_prompt(dialect):
    fixed = FixedFields(dialect, (system("be kind"),))
    lead = placed("it </past> began", placement="system", texts=Texts("Before:\n", fence="past"))
    window = assemble(fixed, tuple(talk("u")), lead)
    assert window.summaries == ()
    assert window.fixed.system == (system("be kind"),)
    block = "Before:\n<past>\nit <·/past> began\n</past>"
    assert window.system[0].text.replace("\n\n", "\n") == f"be kind\n{block}"
    assert len(window.system[0].parts) == (2 if dialect is ANTHROPIC else 1)
    assert lead.tokens >= len(block)
    bare = assemble(FixedFields(dialect), tuple(talk("u")), lead)
    assert bare.system == (system(block),)


@pytest.mark.feature("L4")
def test_the_parent_comes_whole_and_its_ancestors_as_lines_while_they_fit():
    lead = placed("first of all " * 60, "second thing", "the parent")
    said = lead.messages[0].text
    assert said.startswith("Before: the parent\n## Before that\n#s1 second thing …\n#s0 first of all")
    assert len(said) < 400
    assert "#s1" in (tight := placed("one", "two", "three", room=10).messages[0].text)
    assert "#s0" not in tight
    assert placed("one", "two", room=0).messages[0].text == "Before: two (end)"


def test_what_is_wrong_is_found_without_looking_at_every_message_again():
    counter = TextCounter()
    for said in ("c:x t:x u", "u c:x", "u t:x u", "c:x"):
        for lead in (NO_LEAD, placed("it began", dialect=ANTHROPIC)):
            shown = View.of(talk(said), ANTHROPIC, counter)
            window = assemble(FixedFields(ANTHROPIC), shown.messages(), lead)
            assert broken_rules(window, shown) == verify_window(window)


@pytest.mark.feature("P9")
def test_nothing_but_the_assembler_builds_windows_and_budget_functions_build_no_messages():
    core = Path(refold.core.__file__).parent
    builders = {path.stem for path in core.rglob("*.py") if "Window" in _called(path)}
    assert builders == {"assemble"}
    for module in ("budget", "measure", "triggers", "cut"):
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
