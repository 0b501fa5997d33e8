from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.config.parse import Unreadable, read_share, read_size, read_tokens, shown
from refold.model.errors import MAX_TOKENS
from refold.model.tokens import Share, Tokens

pytestmark = pytest.mark.feature("L14")


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        (4000, 4000),
        ("4000", 4000),
        ("4k", 4000),
        ("4K", 4000),
        ("1.5k", 1500),
        ("1m", 10**6),
        ("4_000", 4000),
        (0, 0),
    ],
)
def test_tokens_are_numbers_with_or_without_a_unit(written, tokens):
    assert read_tokens(written) == tokens


@pytest.mark.parametrize("written", ["80%", "0.8", 0.8, 4000.0, "1.0", "50 %"])
def test_a_share_is_never_tokens(written):
    with pytest.raises(Unreadable, match="it is a share, but tokens are needed"):
        read_tokens(written)


@pytest.mark.parametrize(
    ("written", "fraction"),
    [("80%", 0.8), ("80 %", 0.8), (0.8, 0.8), ("0.8", 0.8), (1.0, 1.0), ("100%", 1), ("0.5%", 0.005)],
)
def test_a_share_has_a_percent_sign_or_a_point(written, fraction):
    assert read_share(written) == Share(fraction)


@pytest.mark.parametrize("written", [80, "80", 1, "1", 0, "4k", "1m", 4000])
def test_a_whole_number_is_never_a_share(written):
    with pytest.raises(Unreadable, match="it is a number of tokens, but a share is needed"):
        read_share(written)


def test_the_hint_says_how_the_share_is_written():
    with pytest.raises(Unreadable) as error:
        read_share(80)
    assert error.value.hint.endswith("80% or 0.8")


@pytest.mark.parametrize("written", [1.5, "120%", "1.01"])
def test_a_share_is_at_most_the_whole(written):
    with pytest.raises(Unreadable, match="more than the whole"):
        read_share(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (4000, Tokens(4000)),
        ("4k", Tokens(4000)),
        ("25%", Share(0.25)),
        (0.25, Share(0.25)),
        (0, Tokens(0)),
        ("0.1k", Tokens(100)),
    ],
)
def test_where_both_are_taken_the_unit_decides(written, size):
    assert read_size(written) == size


@pytest.mark.parametrize("written", [1, 25, "80", 100])
def test_where_both_are_taken_a_number_that_may_be_percent_is_refused(written):
    with pytest.raises(Unreadable, match="it may be tokens or percent"):
        read_size(written)


@pytest.mark.parametrize("read", [read_tokens, read_share, read_size])
@pytest.mark.parametrize(
    "written", [True, None, [], "", "k", "-1", -1, math.nan, math.inf, "4kk", "four", "1e3", "٤", "9" * 40]
)
def test_what_is_no_size_is_refused(read, written):
    with pytest.raises(Unreadable):
        read(written)


def test_too_many_tokens_are_refused():
    assert read_tokens(MAX_TOKENS) == MAX_TOKENS
    with pytest.raises(Unreadable):
        read_tokens(MAX_TOKENS + 1)


@given(
    st.integers(101, MAX_TOKENS).map(Tokens) | st.integers(0, 10_000).map(lambda part: Share(part / 10_000))
)
def test_a_size_is_read_as_it_was_shown(size):
    assert read_size(shown(size)) == size


@given(st.one_of(st.integers(), st.floats(), st.text(alphabet="0123456789.%kmKM_- ")))
def test_nothing_is_both_tokens_and_a_share(written):
    def reads(read) -> bool:
        try:
            read(written)
        except Unreadable:
            return False
        return True

    assert not (reads(read_tokens) and reads(read_share))
