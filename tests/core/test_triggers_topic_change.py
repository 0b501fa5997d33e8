import pytest

from refold.core.policy import TopicChange
from refold.core.triggers import TopicTrack

np = pytest.importorskip("numpy")
RULE = TopicChange(turns=2, min_turns=3)


def vector(*values):
    found = np.array(values, "<f4")
    return (found / np.linalg.norm(found)).astype("<f4").tobytes()


OLD, NEW, BETWEEN = vector(1, 0.1, 0), vector(0, 0.1, 1), vector(1, 0.1, 0.8)


def track_of(*turns, asked=NEW):
    """The track after some turns, and the numbers of the messages at which a change was certain."""
    track, found = TopicTrack(), []
    for number, turn in enumerate(turns):
        track = track.ask(2 * number, turn, RULE)
        found += [track.change.at] if track.change and track.change.at == 2 * number else []
        track = track.end_turn(turn, RULE)
    last = track.ask(2 * len(turns), asked, RULE)
    return last, found + ([last.change.at] if last.change and last.change.at == 2 * len(turns) else [])


def test_a_change_begins_with_the_first_turn_that_was_away():
    track, found = track_of(OLD, OLD, OLD, OLD, NEW, NEW)
    assert found == [12]
    assert track.change.first == 8
    assert track.change.distance > 0.9


def test_a_change_is_recognised_once():
    assert track_of(*[OLD] * 4, *[NEW] * 9)[1] == [12]


def test_a_change_back_is_a_change():
    assert track_of(*[OLD] * 4, *[NEW] * 4, *[OLD] * 4)[1] == [12, 20]


@pytest.mark.parametrize(
    "turns",
    [
        [OLD] * 9,
        [OLD, OLD, NEW, NEW],
        [*[OLD] * 4, NEW, OLD, NEW, OLD],
        [*[OLD] * 4, BETWEEN, BETWEEN, BETWEEN],
    ],
    ids=["one topic", "too short a topic", "digressions", "near enough"],
)
def test_no_change(turns):
    assert track_of(*turns)[1] == []


def test_a_question_that_returns_puts_the_change_off():
    assert track_of(*[OLD] * 4, NEW, NEW, asked=OLD)[1] == []


def test_after_a_turn_away_one_in_between_does_not_return():
    nearer = vector(1, 0.1, 1.6)
    assert track_of(*[OLD] * 4, NEW, nearer)[1] == [12]


def test_a_turn_without_a_vector_says_nothing():
    assert track_of(*[OLD] * 4, NEW, b"", NEW)[1] == [14]
