import pytest

from refold.core.stages.fit import Squeeze
from refold.core.stages.parts import COUNT_MARK
from refold.model.message import Image, Message, Reasoning, Text, assistant, user
from tests.core.conversations import TextCounter
from tests.core.stages.shown_messages import lines, results_of, room_for, show_all, work


class Quarter(TextCounter):
    """Four characters to a token, rounded up."""

    def text(self, text, /):
        return -(-len(text) // 4)

    def message(self, message, /):
        return -(-super().message(message) // 4)


COUNTER = Quarter()


def squeezed(messages, tokens, *, stage=None, **kwargs):
    shown = show_all(messages, protected=0, counter=COUNTER)
    return (stage or Squeeze()).apply(shown, room_for(tokens, counter=COUNTER, **kwargs))


def test_the_room_is_divided_over_all_messages():
    """Seven messages share 7,000 tokens: 4,000 characters each."""
    messages = work(*["x" * 50_000] * 2, answer="y" * 50_000)
    result = squeezed([*messages, user("and?")], 7_000, stage=Squeeze(mark=COUNT_MARK))
    assert [len(text) for text in results_of(result.shown)] == [4_000, 4_000]
    assert len(result.shown.messages[-2].text) == 4_000
    assert result.shown.tokens <= 7_000
    assert result.reason == ""
    assert {edit.reason for edit in result.edits} == {"nothing else fits"}


def test_a_question_that_was_read_may_take_half_of_the_room():
    result = squeezed([user(lines(1_000)), assistant(lines(1_000)), assistant(lines(1_000))], 3_000)
    lengths = [len(message.text) for message in result.shown.messages]
    assert result.shown.tokens <= 3_000
    assert 5_700 < lengths[0] <= 6_000
    assert lengths[1] <= 4_000
    assert "#m0" in result.shown.messages[0].text


def test_what_was_not_read_yet_is_the_last_to_be_cut():
    newest = user(lines(150))
    result = squeezed([user(lines(1_000)), assistant(lines(1_000)), newest], 3_000)
    assert result.shown.tokens <= 3_000
    assert result.shown.messages[2] is newest
    too_much = squeezed([user(lines(1_000)), assistant(lines(1_000)), user(lines(1_000))], 3_000)
    lengths = [len(message.text) for message in too_much.shown.messages]
    assert too_much.shown.tokens <= 3_000
    assert max(lengths[:2]) <= 200
    assert lengths[2] > 7_000


def test_sizes_shrink_until_all_fits():
    class Dense(TextCounter):
        def message(self, message, /):
            return 2 * super().message(message)

    counter = Dense()
    shown = show_all([user("汉" * 9_000), assistant("汉" * 9_000)], protected=0, counter=counter)
    result = Squeeze().apply(shown, room_for(4_000, counter=counter))
    assert 1_000 < result.shown.tokens <= 4_000
    assert result.reason == ""


@pytest.mark.parametrize("tokens", [1, 10, 25, 50])
def test_a_tiny_window_ends_with_a_clear_word(tokens):
    result = squeezed(work(*[lines(100)] * 3), tokens)
    assert result.reason.endswith(f"do not fit into {tokens}, however much is cut")
    again = Squeeze().apply(result.shown, room_for(tokens, counter=COUNTER))
    assert again.shown == result.shown
    assert not again.edits
    assert again.reason == result.reason


def test_what_fits_stays():
    assert squeezed(work("x" * 100), 1_000).reason == "everything fits"


def test_pins_and_thinking_stay_whole():
    thought = Reasoning("hm " * 500, "signed")
    reply = Message("assistant", (thought, Text(lines(100))))
    result = squeezed([user(lines(100)), reply, user("so?")], 600, pinned=[0])
    assert result.shown.messages[0].text == lines(100)
    assert result.shown.messages[1].parts[0] is thought
    assert len(result.shown.messages[1].text) < 1_000


class Seeing(Quarter):
    """An image takes a thousand tokens, whatever the room."""

    def message(self, message, /):
        return super().message(message) + 1_000 * sum(isinstance(part, Image) for part in message.parts)


@pytest.mark.feature("C15")
@pytest.mark.parametrize("tokens, is_shown", [(1_200, True), (900, False)])
def test_media_are_described_only_where_nothing_else_helps(tokens, is_shown):
    picture = Message("user", (Text("what is this?"), Image(media_type="image/png", data="iVBO")))
    shown = show_all([picture, assistant("a" * 3_000)], protected=0, counter=Seeing())
    result = Squeeze().apply(shown, room_for(tokens, counter=Seeing()))
    assert result.shown.tokens <= tokens
    assert result.reason == ""
    assert (picture in result.shown.messages) is is_shown
    assert is_shown or "[image image/png #m0.2]" in result.shown.messages[0].text


def test_an_empty_list():
    assert "do not fit" in squeezed([], -1).reason
