"""How much of a budget an older thing gets.

One idea: of several results the newest matters most and the oldest still a little, so weights rise evenly from 20 % to
100 %. Arithmetic is in whole numbers, so that the same conversation is cut at the same character everywhere.
"""

from __future__ import annotations


def weighted(cap: int, position: int, count: int) -> int:
    """A cap for the thing at `position` of `count`, oldest first: 20 % of `cap` for the oldest, all for the newest."""
    if count < 2:
        return cap
    return cap * (count - 1 + 4 * position) // (5 * (count - 1))


def share(total: int, position: int, count: int) -> int:
    """The part of `total` that falls to the thing at `position`; all parts together are `total`, rounded down.

    The weights of `count` things add up to 60 % of their number.
    """
    if count < 2:
        return total
    return total * (count - 1 + 4 * position) // (3 * count * (count - 1))
