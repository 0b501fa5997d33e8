"""The nearest of many vectors by their signs."""

import numpy as np
import pytest

from refold.core.search import rank
from refold.core.search.rank import code_rows, nearest_of


@pytest.mark.parametrize("size", [16, 256, 384, 20])
def test_the_nearest_are_those_of_a_full_sort_the_earlier_of_equals(monkeypatch, size):
    monkeypatch.setattr(rank, "_ROWS_AT_A_TIME", 7)
    random = np.random.default_rng(size)
    tables = [random.standard_normal((count, size)) for count in (5, 40, 1, 100)]
    for _ in range(20):
        own = random.standard_normal(size).astype("<f4")
        differ = [
            (int(np.count_nonzero((row > 0) != (own > 0))), at, place)
            for at, table in enumerate(tables)
            for place, row in enumerate(table)
        ]
        packed = [code_rows(np.packbits(table > 0, axis=1).tobytes(), len(table)) for table in tables]
        for limit in (1, 4, 30, 146, 500):
            wanted = [(at, place) for _, at, place in sorted(differ)[:limit]]
            assert nearest_of(own.tobytes(), packed, limit) == wanted
