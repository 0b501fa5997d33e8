import pytest

from refold.core.stages.parts import share, weighted


@pytest.mark.parametrize(
    "position, count, expected",
    [(0, 1, 1_000), (0, 2, 200), (1, 2, 1_000), (0, 5, 200), (2, 5, 600), (4, 5, 1_000)],
)
def test_the_oldest_gets_a_fifth_of_what_the_newest_gets(position, count, expected):
    assert weighted(1_000, position, count) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_shares_add_up_to_the_whole(count):
    shares = [share(1_000_000, position, count) for position in range(count)]
    assert 0 <= 1_000_000 - sum(shares) < count
    assert shares == sorted(shares)


def test_golden_shares_of_two():
    assert [share(12_000, position, 2) for position in (0, 1)] == [2_000, 10_000]
