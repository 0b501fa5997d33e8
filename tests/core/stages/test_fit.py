import json

import pytest

from refold.core.measure import CharacterEstimate
from refold.core.stages.fit import Fit
from refold.core.stages.parts import COUNT_MARK
from refold.model.message import ToolCall, assistant, tool, user
from tests.core.conversations import TextCounter
from tests.core.stages.shown_messages import lines, results_of, room_for, show_all, work


def sizes(result):
    return [len(text) for text in results_of(result.shown)]


@pytest.mark.parametrize("tokens, characters", [(8_000, 9_600), (128_000, 153_600), (1_000_000, 400_000)])
def test_a_result_takes_at_most_30_percent_of_the_room(tokens, characters):
    result = Fit(mark=COUNT_MARK).apply(show_all(work("x" * 500_000)), room_for(tokens))
    assert sizes(result) == [characters]


@pytest.mark.parametrize("tokens, characters", [(8_000, 4_800), (1_000_000, 200_000)])
def test_an_input_takes_at_most_15_percent_of_the_room_and_stays_an_object(tokens, characters):
    call = ToolCall("c", "write", json.dumps({"path": "a.py", "content": "some words " * 50_000}))
    shown = show_all([user("go"), assistant("", call), tool("c", "ok"), assistant("done")])
    for stage in (Fit(), Fit(mark=COUNT_MARK)):
        arguments = stage.apply(shown, room_for(tokens)).shown.messages[1].calls[0].arguments
        assert characters * 0.7 < len(arguments) <= characters
        assert isinstance(json.loads(arguments), dict)


def test_the_oldest_result_gets_a_fifth_of_that():
    result = Fit(mark=COUNT_MARK).apply(show_all(work(*["x" * 50_000] * 5)), room_for(8_000))
    assert sizes(result) == [1_920, 3_840, 5_760, 7_680, 9_600]
    assert [edit.reason for edit in result.edits] == ["larger than its share"] * 5


@pytest.mark.parametrize("tokens", [0, -5, 1, 50])
def test_everything_keeps_200_characters(tokens):
    assert sizes(Fit(mark=COUNT_MARK).apply(show_all(work("x" * 9_000)), room_for(tokens))) == [200]


def test_what_fits_stays():
    shown = show_all(work("x" * 9_600))
    result = Fit().apply(shown, room_for(8_000))
    assert result.shown is shown
    assert result.reason == "nothing is larger than its share"


def test_users_are_cut_only_where_the_policy_says_so():
    shown = show_all([user(lines(1_000)), assistant("yes")])
    assert not Fit().apply(shown, room_for(1_000)).edits
    cut = Fit(user_share=0.5).apply(shown, room_for(1_000)).shown.messages[0].text
    assert 1_700 < len(cut) <= 2_000
    assert "#m0" in cut


def test_measured_sizes_are_in_tokens_of_the_text_itself():
    """Dense text: a token and a half for each character."""

    class Dense(TextCounter):
        def text(self, text, /):
            return len(text) * 3 // 2

    counter = Dense()
    shown = show_all(work("汉" * 50_000), counter=counter)
    room = room_for(10_000, counter=counter)
    cut = results_of(Fit(measured=True).apply(shown, room).shown)[0]
    assert 2_000 < counter.text(cut) <= 3_000
    assert Fit(measured=True).apply(Fit(measured=True).apply(shown, room).shown, room).edits == ()
    assert len(results_of(Fit().apply(shown, room).shown)[0]) > 11_000


def test_a_result_in_the_active_turn_is_cut_only_in_an_emergency():
    shown = show_all(work("x" * 50_000, answer=""), protected=0)
    assert not Fit().apply(shown, room_for(1_000)).edits
    assert sizes(Fit(active=True, mark=COUNT_MARK).apply(shown, room_for(1_000))) == [1_200]
    assert not Fit(active=True).apply(shown, room_for(1_000, pinned=[2])).edits


def test_the_cut_is_counted_with_the_counter_of_the_room():
    counter = CharacterEstimate()
    shown = show_all(work("x" * 50_000), counter=counter)
    result = Fit().apply(shown, room_for(1_000, counter=counter))
    assert result.shown.tokens == sum(map(counter.message, result.shown.messages))
