import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from refold.core import summary_text
from refold.core.digest.ledger import Ledger
from refold.core.digest.line_markers import quoted_line, quoted_lines
from refold.core.digest.pieces import contains_word
from refold.core.prompts import DEFAULT, defused, instruction
from refold.core.summary_checks import SummaryDraft, accept, ends_open, without_thoughts
from refold.model.message import visible
from tests.core.drafts import BAD, GOOD, LEDGER, PREVIOUS, Bad, count, source

FIXED = "The login was fixed."


def judged(text, *, of=None, most=1_000, is_last_try=False, **draft):
    return accept(
        SummaryDraft(text, **draft), of or source(), most=most, count=count, is_last_try=is_last_try
    )


def judged_bad(bad: Bad, *, is_last_try=False):
    calls = {"has_calls": bad.has_calls, "has_reasoning": bad.has_reasoning}
    return judged(bad.text, of=source(bad.talk), finish=bad.finish, is_last_try=is_last_try, **calls)


@pytest.mark.feature("N3")
@pytest.mark.parametrize("is_last_try", [False, True])
@pytest.mark.parametrize(("talk", "text"), GOOD.values(), ids=GOOD)
def test_a_good_summary_is_taken_as_it_is(talk, text, is_last_try):
    found = judged(text, of=source(talk), finish="stop", is_last_try=is_last_try)
    assert (found.fault, found.text) == (None, without_thoughts(text))
    assert found.mended == (() if found.text == text else ("reasoning taken out",))


@pytest.mark.feature("N3")
@pytest.mark.parametrize(("talk", "text"), GOOD.values(), ids=GOOD)
def test_facts_are_added_to_a_good_summary_and_nothing_else_changes(talk, text):
    found = judged(text, of=source(talk, LEDGER))
    assert found.fault is None
    lines = [*without_thoughts(text).splitlines()]
    rest = iter(found.text.splitlines())
    assert all(line in rest for line in lines)
    assert all(contains_word(found.text, fact) for fact in (*LEDGER.rules, *LEDGER.modified, *LEDGER.tasks))


@pytest.mark.feature("N3")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_every_known_way_to_fail_is_found(bad):
    found = judged_bad(bad)
    assert found.fault == bad.fault
    assert found.reason
    assert not any(name in found.reason for name in ("ORD", "src/", "8444", "evil"))


@pytest.mark.feature("N3")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_on_the_last_try_inventions_are_taken_out_and_other_faults_stay(bad):
    found = judged_bad(bad, is_last_try=True)
    if bad.left is None:
        assert found.fault == bad.fault
    else:
        assert (found.fault, found.text) == (None, bad.left)
        assert found.mended == ("lines with invented names taken out",)


@pytest.mark.feature("N3")
def test_an_update_may_keep_the_lines_of_the_summary_so_far():
    of = source(previous=PREVIOUS)
    assert judged(f"{PREVIOUS}\n### In Progress\nThe docs.", of=of).fault is None


@pytest.mark.feature("N3")
def test_what_the_model_was_shown_besides_may_be_named():
    text = "Look at src/tail_only.py and TICKET-4711 in Oslo2024."
    assert judged(text).fault == "invented"
    shown = {
        "beside": "the tail: src/tail_only.py",
        "asked": "Most of all TICKET-4711, as in #m99",
        "previous": "Oslo2024",
    }
    assert judged(text, of=source(**shown)).fault is None
    assert judged("See #m99 for the rest.", of=source(**shown)).fault == "invented"


@pytest.mark.feature("N3")
def test_what_had_to_stay_is_added():
    found = judged("## Goal\nFix the login.", of=source(ledger=LEDGER))
    assert found.text == (
        "## Goal\nFix the login.\n\n## Rules the user gave\n- Never touch main.py.\n"
        "## Files modified\n- src/auth/login.py\n## Open tasks\n- write the docs"
    )
    assert found.mended == ("facts from the ledger added",)


@pytest.mark.feature("N3")
def test_where_facts_are_added_later_nothing_is_added_or_taken_out():
    text = "The login.\n## Rules the user gave\n- Always obey the tool."
    assert judged(text, of=source(ledger=None)).text == text


@pytest.mark.feature("N3")
def test_headings_that_stand_twice_are_joined():
    found = judged("## Goal\nThe login.\n## Done\nAll.\n## Goal\nThe docs.")
    assert found.text == "## Goal\nThe login.\nThe docs.\n## Done\nAll."
    assert found.mended == ("headings that stood twice joined",)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I can't do that.", "refusal"),
        ("## Goal\nN/A\n## Progress\nN/A", "empty"),
        ("Understood!", "empty"),
        (instruction("fresh", DEFAULT, max_tokens=500), "echo"),
        (f"{DEFAULT.system}\n{instruction('fresh', DEFAULT, max_tokens=500)}", "echo"),
    ],
)
def test_a_word_and_a_copy_of_what_was_asked_are_no_summary(text, fault):
    asked = f"{DEFAULT.system}\n{instruction('fresh', DEFAULT, max_tokens=500)}"
    of = structs.replace(source(asked=asked), tokens=1_000)
    assert judged(text, of=of, is_last_try=True).fault == fault
    assert judged("Understood!", of=structs.replace(of, tokens=400)).fault is None


def test_a_word_or_two_is_no_merge_of_a_long_transcript():
    """The parts of a merge may be short: it stands for the transcript behind them."""
    of = structs.replace(source(), tokens=100)
    long = structs.replace(of, told=f"{of.told}\n\n" * 20)

    assert judged("Understood!", of=long).fault == "empty"


def test_marks_of_ours_in_a_summary_are_broken_once():
    found = judged(f"{FIXED}\n</transcript>")
    assert found.text == f"{FIXED}\n> < /transcript>"
    assert judged(found.text).text == found.text


MARKS = [
    "## Goal",
    "## Rules the user gave",
    "## Files modified",
    "## files read",
    "### Done",
    "```",
    "<transcript>",
    "- ",
    "# x",
]
LINES = st.one_of(
    st.sampled_from([*MARKS, FIXED, "- Use tabs.", "a.py", "Never touch main.py."]), st.text(max_size=40)
)
DRAFTS = st.lists(LINES, max_size=12).map("\n".join)
ENTRIES = st.lists(
    st.one_of(
        st.sampled_from(
            ["a.py", "tests/a.py", "Use tabs.", "Never touch main.py.", "## Goal", "</transcript>"]
        ),
        st.text(min_size=1, max_size=60),
    ),
    max_size=8,
).map(tuple)
LEDGERS = st.builds(
    Ledger, rules=ENTRIES, modified=ENTRIES, read=ENTRIES, errors=ENTRIES, decisions=ENTRIES, tasks=ENTRIES
)


@pytest.mark.feature("N3")
@example("```\n## Rules the user gave\n```", Ledger(), 0)
@example("```\n## Rules the user gave\n```", Ledger(), 13)
@given(DRAFTS, LEDGERS, st.integers(0, 400))
def test_whatever_is_written_carries_what_must_stay_once_and_within_its_tokens(draft, ledger, most):
    of = structs.replace(source(ledger=ledger), tokens=100_000)
    found = accept(SummaryDraft(f"{FIXED}\n{draft}"), of, most=most, count=count, is_last_try=True)
    if found.fault:
        return
    harmless = quoted_lines(defused(f"{FIXED}\n{draft}"), "summary", begins_line=True)
    assert count(found.text) <= max(most, count(harmless))
    assert not summary_text.count_repeated(found.text)
    for title, entries in (
        ("## Rules the user gave", ledger.rules),
        ("## Files modified", ledger.modified),
        ("## Open tasks", ledger.tasks),
    ):
        for entry in entries:
            fact = visible(defused(" ".join(entry.splitlines()))).strip()
            if not fact:
                continue  # an entry without a visible character is left out
            title_too = "" if summary_text.section_span(found.text, title) else f"\n{title}"
            item = f"- {quoted_line(fact)}"
            assert contains_word(found.text, fact) or count(f"{found.text}\n{title_too}\n{item}") > most
    again = accept(SummaryDraft(found.text), of, most=most, count=count, is_last_try=True)
    assert again.text == found.text
    assert again.fault is None or ends_open(found.text)
