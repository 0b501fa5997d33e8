from refold.core.digest.extract import TermValues, VisibleText, choose, in_sight
from refold.core.digest.facts import label_of
from refold.core.digest.terms import Weights
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
