import pytest

from refold.core.digest.ledger import MAX_IDS, MAX_PER_TEXT, are_stated, identifiers
from refold.model.message import ToolCall, assistant, tool, user
from tests.core.digest.ledgers import ledger_of


@pytest.mark.parametrize(
    "text",
    [
        "My order is ORD-99123.",
        "see INV-2024-0017",
        "charge ch_3NqF5eLkdIwHu7ix failed",
        "the session 3f2b8a10-1c2d-4e5f-8a9b-0c1d2e3f4a5b",
        "order_id: 4471",
        'Confirmation code: "XK7P2Q"',
    ],
)
def test_ids_are_found_in_every_text(text):
    assert identifiers(text, by_user=False) == (text,)
    assert identifiers(text, by_user=True) == (text,)


@pytest.mark.parametrize(
    "text", ["It cost 1,299.50 EUR.", "My zip code is 98193.", "by 2025-03-04", "19 % more", "$5 each"]
)
def test_numbers_count_if_the_user_said_them(text):
    assert identifiers(text, by_user=True) == (text,)
    assert identifiers(text, by_user=False) == ()


@pytest.mark.parametrize(
    "text",
    [
        "Write it as UTF-16 or ISO-8601.",
        "Use 2 of the 12 rows.",
        "src/f12.py",
        "v2 of test_case_12",
        "x86_64",
    ],
)
def test_other_words_are_no_ids(text):
    assert identifiers(text, by_user=True) == ()


def test_a_long_line_is_quoted_around_the_id():
    text = "word " * 100 + "the order ORD-99123 was charged twice " + "word " * 100
    (entry,) = identifiers(text, by_user=True)
    assert "the order ORD-99123 was charged twice" in entry
    assert len(entry) < 100


def test_a_list_is_known_by_its_first_id():
    listing = "\n".join(f"ORD-{number} is open and waits for its payment" for number in range(1000, 1050))
    assert len(identifiers(listing, by_user=True)) == MAX_PER_TEXT
    assert identifiers(listing, by_user=False) == ("ORD-1000 is open and waits for its payment",)


def test_an_entry_is_stated_if_all_its_names_are():
    entry = "ORD-99123 costs 1,200 EUR"
    assert are_stated(entry, "1,200 for ORD-99123")
    assert not are_stated(entry, "ORD-99123 is paid")
    assert not are_stated(entry, "ORD-991234 costs 1,200")


def test_the_ledger_ranks_the_user_first_and_then_the_newest():
    said = [user("I am customer KD-4711.")]
    said += [tool("c", f"ORD-{number} is open") for number in range(1000, 1000 + 2 * MAX_IDS)]
    said += [assistant("I will cancel ORD-1030.")]
    ids = ledger_of(said).ids
    assert ids[-1] == "I am customer KD-4711."
    assert ids[-2] == "ORD-1030 is open"
    assert len(ids) == MAX_IDS + 1
    assert "ORD-1000 is open" not in ids


def test_the_content_of_a_file_adds_no_ids():
    call = ToolCall("c", "read_file", '{"path": "orders.csv"}')
    assert ledger_of([assistant("", call), tool("c", "ORD-1000")]).ids == ()
    assert ledger_of([tool("c", "ORD-1000")]).ids == ("ORD-1000",)
