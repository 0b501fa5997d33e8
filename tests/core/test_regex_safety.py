import random
import re

import pytest

from refold.core import regex_safety
from refold.core.regex_safety import matches_by_portion


@pytest.mark.parametrize("portion", [1, 7, 64])
def test_a_search_by_portions_finds_the_matches_of_one_search(monkeypatch, portion):
    monkeypatch.setattr(regex_safety, "PORTION", portion)
    chance, pattern = random.Random(portion), re.compile(r"(?<!a)b{1,5}(?=c)|ca{0,3}")
    texts = ["".join(chance.choices("abc", k=200)) for _ in range(50)]
    found = [[match.span() for match in matches_by_portion(pattern, text, longest=8)] for text in texts]

    assert found == [[match.span() for match in pattern.finditer(text)] for text in texts]
    assert all(found)


def test_an_empty_text_has_no_match_by_portions():
    assert not list(matches_by_portion(re.compile("a"), "", longest=8))
