from __future__ import annotations

import pytest

from refold.replay.facts import holds, literals, rare_words, surroundings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://example.org/a?b=1).", {"https://example.org/a?b=1": "url"}),
        ("write to ann.lee@example.org, please", {"ann.lee@example.org": "email"}),
        ("open src/app/main.py: it fails", {"src/app/main.py": "path"}),
        ("in ~/notes and /var/log.", {"~/notes": "path", "/var/log": "path"}),
        ("on 2024-05-15 or 2024-05-15T10:30", {"2024-05-15": "date", "2024-05-15T10:30": "date"}),
        ("call os.path.join here", {"os.path.join": "dotted"}),
        ("order #W2378156 and ZFA04Y", {"#W2378156": "id", "ZFA04Y": "id"}),
        ("set max_tokens and _hidden_name", {"max_tokens": "snake", "_hidden_name": "snake"}),
        ("use readFile or HttpClient", {"readFile": "camel", "HttpClient": "camel"}),
        ("pay 1250,50 or 4.5, not 42", {"1250,50": "number", "4.5": "number"}),
        ("nothing here is worth a name", {}),
    ],
)
def test_nine_kinds_by_their_shape(text, found):
    assert literals(text) == found


def test_what_is_too_short_or_too_long_does_not_count():
    assert literals(f"a/b x_y 12 {'ab1' * 60}") == {}
    assert literals("1/2 3/4/5") == {}


def test_a_megabyte_without_a_space_is_no_literal_and_hides_none():
    assert literals(f"see app.py {'0f' * 500_000} and main.py") == {"app.py": "dotted", "main.py": "dotted"}


def test_the_second_extractor_takes_what_english_does_not_contain():
    text = """The error E42 in "src/app.py": XKCDY=1.5, see don't-care and state-of-the-art; _Private3 (readFile)."""

    assert rare_words(text) == {"E42", "src/app.py", "XKCDY", "1.5", "_Private3", "readFile"}


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("in src/app.py:12", True),
        ("app.py", True),
        ("in myapp.py", False),
        ("in app.pyc", False),
        ("myapp.py, then app.py", True),
        ("the app_py", False),
        ("", False),
    ],
)
def test_a_literal_is_there_only_as_a_whole(text, is_there):
    assert holds(text, "app.py") is is_there


def test_surroundings_are_the_longer_words_near_each_mention():
    text = "the Ferry 77A leaves Harbour at ten; much later the Night ferry 77A returns"

    assert surroundings(text, "77A", reach=20, most=1) == [{"ferry", "leaves", "harbour"}]
    assert surroundings(text, "77A", reach=12, most=5)[1] == {"night", "ferry", "returns"}
    assert surroundings(text, "78B", reach=12, most=5) == []
