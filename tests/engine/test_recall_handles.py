import pytest

from refold.engine.recall import is_handle, look_up, retrieve
from refold.model.errors import NotFound
from refold.model.message import Message, Reasoning, Text, ToolCall, ToolResult, assistant, tool, user
from refold.model.summary import Summary
from tests.engine.conversations import agent_turn, memory

CALL = ToolCall("c", "look", "{}")
SPOKEN = Message("assistant", (Reasoning("hm"), Text("Let me look."), CALL))


@pytest.fixture
def folded():
    talk = memory()
    talk.add(user("go"), SPOKEN, tool("c", "it is there"))
    return talk.folded


@pytest.mark.feature("N2")
def test_a_handle_opens_its_message(folded):
    assert look_up("#m0", folded) == user("go")
    assert look_up(" #m1 ", folded) is SPOKEN
    assert look_up("m1", folded) is SPOKEN


@pytest.mark.feature("N2")
def test_a_number_after_the_dot_means_a_part_and_reasoning_does_not_count(folded):
    assert look_up("#m1.1", folded) == Text("Let me look.")
    assert look_up("#m1.2", folded) is CALL
    assert isinstance(look_up("#m2.1", folded), ToolResult)


def test_a_part_by_itself_is_said_by_who_said_it(folded):
    assert retrieve("#m1.1", folded) == assistant("Let me look.")
    assert retrieve("#m1.2", folded) == Message("assistant", (CALL,))
    assert retrieve("#m2.1", folded) == tool("c", "it is there")
    assert retrieve("#m2", folded) == tool("c", "it is there")


def test_an_older_summary_has_a_handle_too():
    talk = memory("lis", window=100_000)
    for number in range(30):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    talk.compact()

    found = look_up("#s0", talk.folded)

    assert isinstance(found, Summary)
    assert retrieve("#s0", talk.folded) is found
    with pytest.raises(NotFound, match="there is no summary 1: the conversation has 1"):
        look_up("#s1", talk.folded)


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        ("#m3", "there is no message 3: the last is #m2"),
        ("#m999999999", "there is no message 999999999"),
        ("#m1.3", "message 1 has no part 3"),
        ("#m1.0", "message 1 has no part 0"),
        ("#s0", "there is no summary 0"),
        ("#m", "'#m' is no handle"),
        ("#m1.", "is no handle"),
        ("#m٣", "is no handle"),
        ("#m1234567890", "is no handle"),
        ("", "'' is no handle"),
        ("x" * 999, "is no handle"),
    ],
)
def test_what_names_nothing_is_not_found(folded, handle, message):
    with pytest.raises(NotFound) as error:
        look_up(handle, folded)

    assert message in error.value.message
    assert "#m12" in error.value.hint
    assert len(error.value.message) < 100


def test_without_its_sign_a_handle_may_be_a_word():
    assert is_handle("#m12")
    assert is_handle(" #s3\n")
    for text in ("m12", "s3", "#", "#m1 and #m2", "where is #m12?"):
        assert not is_handle(text)
