"""The order of matches."""

from __future__ import annotations

from msgspec import structs

from refold.core.search.rank import Match, fuse_sessions, rank_messages, rank_sessions, rarity


def match(seq: int, *counts: int, length: int = 20, branch: str = "b") -> Match:
    return Match("talk", branch, seq, length, counts)


def order(matches: list[Match], weights: list[float]) -> list[int]:
    return [one.seq for one in rank_messages(matches, weights, limit=10) if one.is_match]


def test_rare_terms_weigh_more():
    assert rarity(1, 1_000) > rarity(100, 1_000) > rarity(1_000, 1_000) > 0


def test_more_occurrences_and_shorter_messages_rank_higher():
    assert order([match(0, 1), match(10, 3)], [1.0]) == [10, 0]
    assert order([match(0, 1), match(10, 1, length=500)], [1.0]) == [0, 10]
    assert order([match(0, 5, 0), match(10, 0, 1)], [1.0, 5.0]) == [10, 0]


def test_a_message_with_all_terms_comes_first():
    assert order([match(0, 9, 0, 9), match(10, 1, 1, 1, length=300)], [1.0, 1.0, 1.0])[0] == 10


def test_a_neighbour_of_a_match_gets_a_share_and_never_more_than_it():
    found = rank_messages([match(5, 2)], [1.0], limit=10)

    assert [one.seq for one in found] == [5, 6, 4, 7, 3]
    assert [one.is_match for one in found] == [True, False, False, False, False]


def test_of_equals_the_later_comes_first():
    assert order([match(0, 1), match(10, 1)], [1.0]) == [10, 0]


def test_a_session_is_ranked_by_the_terms_it_covers_and_by_its_best_messages():
    matches = [match(0, 1, 0), match(1, 0, 1), match(20, 2, 0), match(40, 1, 0)]
    ranked = rank_sessions(matches, [1.0, 2.0], ["both", "both", "one", "other"])

    assert ranked[0][0] == "both"
    assert rank_sessions([], [], []) == []


def test_a_session_of_the_named_time_comes_first():
    matches = [match(0, 3), match(20, 1)]
    assert rank_sessions(matches, [1.0], ["often", "then"])[0][0] == "often"

    matches[1] = structs.replace(matches[1], nearness=1.0)
    assert rank_sessions(matches, [1.0], ["often", "then"])[0][0] == "then"
    assert order(matches, [1.0]) == [20, 0]


def test_sessions_are_merged_by_their_scores():
    by_words = {"near": 1.0, "first": 1.1, "last": 0.1}
    near = [("near", 0.9), ("other", 0.5), ("near", 0.4), ("last", 0.3)]

    assert fuse_sessions(by_words, near) == ["near", "first", "other", "last"]
    assert fuse_sessions(by_words, []) == ["first", "near", "last"]
    assert fuse_sessions({}, near)[0] == "near"
