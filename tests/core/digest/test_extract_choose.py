from refold.core.digest.extract import TermValues, VisibleText, choose, choose_all, in_sight
from refold.core.digest.facts import Weights, label_of
from refold.model.message import assistant, tool, user
from tests.core.digest.conversations import facts_of

FAR = 10_000


def chosen(facts, room, covered=frozenset(), **options):
    worth = TermValues(facts, FAR)
    options = {"label": label_of, **options}
    return [piece.text for piece in choose(facts.pieces(0, 999), worth, covered, room, **options).chosen]


def test_what_is_said_twice_is_chosen_once():
    facts = facts_of([tool("a", "deploy failed on host_alpha"), tool("b", "deploy failed on host_alpha")])
    assert chosen(facts, 999) == ["deploy failed on host_alpha"]


def test_what_is_in_sight_is_not_chosen():
    facts = facts_of([tool("a", "deploy failed on host_alpha"), tool("b", "retry works on host_beta")])
    covered = in_sight(facts, VisibleText(texts=("deploy failed on host_alpha",)))
    assert chosen(facts, 999, covered) == ["retry works on host_beta"]
    assert chosen(facts, 999, in_sight(facts, VisibleText(whole=(0, 1)))) == []


def test_names_beat_prose_when_room_is_short():
    facts = facts_of(
        [tool("a", "nothing to report about the weather today\nbuild_id 88231 at src/ci/run.py")]
    )
    assert chosen(facts, 50) == ["build_id 88231 at src/ci/run.py"]


def test_what_the_assistant_used_beats_what_only_a_tool_said():
    facts = facts_of(
        [tool("a", "one is order_aaa here\ntwo is order_bbb here"), assistant("I take order_bbb.")]
    )
    best = choose(facts.pieces(0, 1), TermValues(facts, FAR), frozenset(), 30).chosen
    assert [piece.text for piece in best] == ["two is order_bbb here"]


def test_newer_beats_older():
    old, new = "the key is token_aaa now", "the key is token_bbb now"
    filler = [user("word " * 3_000) for _ in range(4)]
    facts = facts_of([tool("a", old), *filler, tool("b", new)])
    assert chosen(facts, 40)[0] == new


def test_the_room_is_kept_with_labels_paid_for():
    facts = facts_of([tool("a", "\n".join(f"value of setting_{n} is {n}00" for n in range(50)))])
    found = choose(
        facts.pieces(0, 1), TermValues(facts, FAR), frozenset(), 200, label=lambda _: "x" * 29
    ).chosen
    assert found
    assert 30 + sum(len(piece.text) + 3 for piece in found) <= 200


def test_one_long_list_does_not_take_all_of_the_room():
    ids = "\n".join(f"entry number {n} is item_{n}" for n in range(200))
    notes = [tool(f"n{n}", f"note {n}: see module_{n} for it") for n in range(20)]
    messages = [tool("a", ids), *notes]
    fair = chosen(facts_of(messages), 1_000)
    greedy = chosen(facts_of(messages, Weights(crowd=1e9)), 1_000)
    assert sum(text.startswith("note") for text in fair) > sum(text.startswith("note") for text in greedy)


def test_what_matters_less_weighs_less():
    facts = facts_of([tool("a", "alpha setting is value_aaa"), tool("b", "gamma setting is value_bbb")])
    assert chosen(facts, 45, factor=lambda piece: 1 - 0.5 * piece.seq) == ["alpha setting is value_aaa"]
    assert chosen(facts, 45, factor=lambda piece: 0.5 + 0.5 * piece.seq) == ["gamma setting is value_bbb"]


def test_the_ranking_holds_everything_that_adds_something():
    facts = facts_of([tool("a", "first is name_aaa\nsecond is name_bbb\nthird is name_ccc")])
    choice = choose(facts.pieces(0, 1), TermValues(facts, FAR), frozenset(), 25)
    assert len(choice.chosen) == 1
    assert len(choice.ranked) == 3


class TestRoomForAll:
    MESSAGES = (
        tool("a", "deploy failed on host_alpha\nretry works on host_beta"),
        tool("b", "deploy failed on host_alpha"),
        assistant("host_gamma is next"),
    )

    def test_every_term_is_held_and_what_only_repeats_is_left_out(self):
        facts = facts_of([*self.MESSAGES])
        pieces = facts.pieces(0, 3)
        choice = choose_all(pieces, set(), 999)

        assert choice is not None
        assert sorted(piece.text for piece in choice.chosen) == [
            "deploy failed on host_alpha",
            "host_gamma is next",
            "retry works on host_beta",
        ]
        assert {term for piece in choice.chosen for term in piece.terms} == {
            term for piece in pieces for term in piece.terms
        }
        assert len(choice.ranked) == 4

    def test_what_is_in_sight_is_not_chosen(self):
        facts = facts_of([*self.MESSAGES])
        choice = choose_all(facts.pieces(0, 3), in_sight(facts, VisibleText(whole=(0,))), 999)
        assert choice is not None
        assert [piece.text for piece in choice.chosen] == ["host_gamma is next"]
        assert choice.ranked == choice.chosen

    def test_there_must_be_room_for_all_with_their_labels(self):
        facts = facts_of([*self.MESSAGES])
        pieces = facts.pieces(0, 3)
        chosen = choose_all(pieces, set(), 999).chosen
        labels = {piece.label for piece in chosen}
        room = sum(len(piece.text) + 3 for piece in chosen) + sum(len(label) + 1 for label in labels)

        assert choose_all(pieces, set(), room) is not None
        assert choose_all(pieces, set(), room - 1) is None

    def test_nothing_new_is_nothing(self):
        choice = choose_all((), set(), 0)
        assert choice is not None
        assert (choice.chosen, choice.ranked) == ((), ())
