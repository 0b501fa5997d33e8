from __future__ import annotations

from refold.model.message import Image, Message, Reasoning, Text, ToolCall, assistant, system, tool, user
from refold.replay.facts import Context, FactBook, ReferenceCounter, argument_names, spelled_out


def book():
    return FactBook(ReferenceCounter())


def context(facts, *messages, before=None):
    return Context(facts.all_of(messages), before)


def test_messages_that_say_the_same_are_the_same():
    facts = book()
    first = facts.of(user("hello"))

    assert facts.of(user("hello")) is first
    assert facts.of(user("hello there")).number != first.number
    assert facts.of(tool("a", "ok")).number != facts.of(tool("b", "ok")).number
    assert FactBook(ReferenceCounter(), [first]).of(user("hello")) is first


def test_what_costs_more_is_not_the_same():
    class Weighing(ReferenceCounter):
        def message(self, message):
            return super().message(message) + 10 * len(message.parts)

    facts = FactBook(Weighing())
    bare, thinking = assistant("yes"), Message("assistant", (Reasoning("hm"), Text("yes")))

    assert facts.of(bare).number != facts.of(thinking).number


def test_the_text_of_a_call_is_its_name_and_its_arguments_as_one_reads_them():
    call = ToolCall("c1", "read_file", '{"path": "a/b.py", "lines": [1, 2.5, null, true]}')

    assert (
        book().of(assistant("I look.", call)).text
        == "I look.\nread_file\npath\na/b.py\nlines\n1\n2.5\nnull\ntrue"
    )
    assert spelled_out("no json {") == "no json {"
    assert argument_names('{"path": 1, "mode": 2}') == ["path", "mode"]
    assert argument_names("[1]") == argument_names("no json") == []


def test_a_picture_alone_is_a_message_and_white_space_is_none():
    facts = book()

    assert facts.of(user(" \n")).is_empty
    assert not facts.of(Message("user", (Image(url="https://example.org/a.png"),))).is_empty
    assert not facts.of(tool("c1", "")).is_empty
    assert facts.of(Message("assistant", (Reasoning("hm"), Text("")))).is_only_thought
    assert not facts.of(assistant("", ToolCall("c1", "go"))).is_empty


def test_a_context_knows_what_it_shares_with_the_one_before():
    facts = book()
    first = context(facts, system("be kind"), user("one"))
    longer = context(facts, system("be kind"), user("one"), assistant("two"), before=first)
    other = context(facts, system("be kind"), user("other"), before=longer)

    assert (first.shared, first.is_rewritten, first.system_size) == (0, False, 1)
    assert (longer.shared, longer.is_rewritten) == (2, False)
    assert (other.shared, other.is_rewritten) == (1, True)
    assert other.text == "be kind\nother"
