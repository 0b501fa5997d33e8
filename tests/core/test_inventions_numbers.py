import random

import pytest

from refold.core import regex_safety
from refold.core.inventions import Day, find_days, find_numbers, is_small, numbers_of


def holds(said: str, told: str) -> bool:
    known = numbers_of(told)
    return all(known.holds(number) for number in find_numbers(said) if not is_small(number))


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("1.234", "1,234"),
        ("1234", "1 234"),
        ("1 234", "1234"),
        ("1,234,567.5", "1.234.567,50"),
        ("1'234", "1234"),
        ("87.5", "87.46"),
        ("12", "12.345"),
        ("128,000", "128 000"),
        ("128k", "128,000"),
        ("1500 ms", "1.5 s"),
        ("12.5 %", "0.125"),
        ("90 min", "1.5 hours"),
        ("3万", "30000"),
        ("3.11", "3.11.4"),
        ("10.0.0.1", "10.0.0.1:8080"),
        ("200", "[100,200,300]"),
        ("v1.2.3", "1.2.3"),
        ("7", "nothing"),
        ("2.5 GB", "nothing"),
    ],
)
def test_one_number_in_two_spellings(said, told):
    assert holds(said, told)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("4521", "45219"),
        ("234", "1,234"),
        ("12.34", "1,234"),
        ("500", "5000"),
        ("200 ms", "2 s and 300 ms"),
        ("3.12", "3.11"),
        ("1.5", "1.05"),
        ("1,235", "1,234"),
        ("250 %", "25"),
    ],
)
def test_another_number_is_another_number(said, told):
    assert not holds(said, told)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01", "2024/5/1", "2024-05-01T12:00:00Z", "01.05.2024", "5/1/2024", "May 1, 2024", "1 May 2024", "1st of May 2024",
        "1. Mai 2024", "1er mai 2024", "1 de mayo de 2024", "1 de maio de 2024", "1 maggio 2024", "1 мая 2024", "2024年5月1日", "2024년 5월 1일",
    ],
)  # fmt: skip
def test_a_day_in_many_spellings(text):
    assert Day(5, 1, 2024) in [day for day, _, _ in find_days(text)]
    assert numbers_of(text).has_day(Day(5, 1, 2024))
    assert not numbers_of(text).has_day(Day(5, 2, 2024))


def test_a_year_may_be_said_elsewhere():
    assert numbers_of("on May 1 (it is 2024)").has_day(Day(5, 1, 2024))
    assert not numbers_of("on May 1").has_day(Day(5, 1, 2024))
    assert list(find_days("section 13.13.2024 and 99/99/2024, may 77")) == []


@pytest.mark.parametrize("portion", [7, 20, 37])
def test_days_in_a_long_text_are_found_in_portions(monkeypatch, portion):
    chance = random.Random(portion)
    said = [
        "2024-01-02",
        "3 March 2021",
        "March 3rd, 2020",
        "12.03.2024",
        "2024年3月5日",
        "May  5",
        "1 May 5",
        "12",
        "of",
        "\n",
    ]
    texts = [
        "".join(f"{word}{chance.choice(['', ' ', chr(10)])}" for word in chance.choices(said, k=60))
        for _ in range(50)
    ]
    whole = [list(find_days(text)) for text in texts]
    monkeypatch.setattr(regex_safety, "PORTION", portion)

    assert [list(find_days(text)) for text in texts] == whole
    assert any(whole)
