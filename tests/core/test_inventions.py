import pytest

from refold.core.inventions import invented, known_of, without_inventions

TOLD = (
    "[User #m12] cwd /repo: src/auth/login.py:120, SessionStore.refresh_token, ORD-99123, see also #m3.2 and 45219.\n"
    '{"path": "docs\\nplan.md", "name": "Stra\\u00dfe_1"} at a1b2c3d4e5f60718293a4b5c6d7e8f9012345678, Python 3.11, postgres'
)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "login.py, auth/login.py, src/auth, src/auth/, ./src/auth/login.py:120",
        "/repo/src/auth/login.py",
        "SESSIONSTORE.refresh_token or sessionstore",
        "plan.md and Straße_1",
        "#m12, #m3.2, #m3",
        "a1b2c3d4",
        "Python3.11, PostgreSQL, v3.11",
        "ORD-99123-related",
        "refresh_token/2",
        "line 120, 45,219",
        "1. first\n2) second\n### 3.1 third",
    ],
)
def test_what_was_said_is_no_invention(text):
    assert invented(text, known_of(TOLD)) == ()


@pytest.mark.feature("N3")
@pytest.mark.parametrize("text", ["3.5s", "(3.5sec)", "2.5GB", "1.2M rows", "1.5s", "0.2s", "0.25s"])
def test_a_size_may_stand_right_before_its_unit(text):
    told = "It takes 3.5 seconds, limit 1,500 ms, 200 milliseconds, 250ms, size 2.5 GB, 1.2 million rows"
    assert invented(text, known_of(told)) == ()
    assert invented("It took 12.75s.", known_of(told)) == ("12.75",)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Order ORD-9912, ticket 4521", ("4521", "ORD-9912")),
        ("src/auth/login.pyc", ("src/auth/login.pyc",)),
        ("tests/auth/login.py", ("tests/auth/login.py",)),
        ("#m1 and #m123 and #m3.1", ("#m1", "#m123", "#m3.1")),
        ("src/billing", ("src/billing",)),
        ("refresh_tokens_all", ("refresh_tokens_all",)),
        ("端口8444", ("8444",)),
        ("ffffffff", ()),
        ("a1b2c3d9", ("a1b2c3d9",)),
        ("| a | ORD-1 |", ("ORD-1",)),
    ],
)
def test_what_nobody_said_is_found(text, found):
    assert invented(text, known_of(TOLD)) == found


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Good. See ORD-1. Fine.", "Good. Fine."),
        ("- See ORD-1. Fine.\n- ORD-1\n- Good.", "- Fine.\n- Good."),
        ("1. ORD-1 is bad.\n2. Good.", "2. Good."),
        ("See #m12 and #m3. See #m1.", "See #m12 and #m3."),
        ("Use it, e.g. ORD-1, often.\nGood.", "Good."),
        ("| a | ORD-1 |\n| b | c |", "| b | c |"),
        ("```\nok\nORD-1. Fine.\n```", "```\nok\n```"),
        ("好。见ORD-1。很好。", "好。很好。"),
        ("> ORD-1 failed.\n> Fine.", "> Fine."),
        ("  - Nested ORD-1. But good.", "- But good."),
    ],
)
def test_only_the_sentence_with_the_invention_goes(text, left):
    known = known_of(TOLD)
    assert without_inventions(text, known) == left
    assert invented(left, known) == ()


def test_a_handle_in_the_instructions_is_an_example():
    known = known_of(TOLD, asked="such as #m99, for ACME-42")
    assert invented("#m99 of ACME-42", known) == ("#m99",)
