"""What was said is quoted whatever the spelling in which it is asked for."""

import pytest

from refold.core.digest.extract import excerpt, mentions, quote, significant_words
from refold.core.digest.facts import MAX_CHARACTERS, Facts
from refold.model.message import Message, ToolCall, assistant, tool, user
from tests.core.digest.conversations import COUNTER, WordCounter, facts_of, work


def told(message, query, budget=80, counter=COUNTER):
    return excerpt(facts_of([message]), [(0, message)], query, budget=budget, counter=counter)


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("see src/app/main_page.tsx", "src/app"),
        ("see src/app/main_page.tsx", "main page"),
        ("C++ and then C#", "C++"),
        ("meet me at the café", "cafe"),
        ("meet me at the café", "CAFÉ"),
        ("Die Größe zählt", "GRÖSSE"),
        ("Москва стоит", "МОСКВА"),
        ("the end", "The"),
    ],
)
def test_another_spelling_is_found(said, query):
    facts = facts_of([*work(2), user(said), *work(2, start=2)])
    assert f"#m12 user: {said}" in quote(facts.log.pieces, query, budget=200, counter=COUNTER)
    assert told(user(said), query) == f"#m0 user: {said}"


def test_letters_inside_a_word_are_not_the_word():
    facts = facts_of([user("a category"), user("concatenate them")])
    assert quote(facts.log.pieces, "cat", budget=200, counter=COUNTER) == ""


def test_words_that_say_nothing_count_only_where_there_are_no_others():
    assert significant_words("what is the naming of C++") == "naming"
    assert significant_words("C++ is the") == "C++ is the"
    message = user("the end of it")
    assert mentions(message, "of the")
    assert not mentions(message, "the naming of zebras")
    assert quote(facts_of([message]).log.pieces, "the naming of", budget=99, counter=COUNTER) == ""


def test_the_newest_comes_first_then_what_stands_beside_it():
    lists = [user(f"naïve list number {number}\nholds item_{number} and no more") for number in range(9)]
    pieces = facts_of(lists).log.pieces
    assert quote(pieces, "NAIVE", budget=9, counter=COUNTER) == "#m8 user: naïve list number 8"
    assert "\nholds item_8 and no more" in quote(pieces, "NAIVE", budget=100, counter=COUNTER)


def test_a_place_in_the_middle_of_a_very_long_text_is_told():
    filler = "nothing to see on this line\n" * (2 * MAX_CHARACTERS // 28)
    message = tool("x", f"{filler}the Größe of it is 42\n{filler}")
    text = told(message, "grösse")
    assert text.startswith("#m0 tool: ")
    assert "the Größe of it is 42" in text


def test_a_message_that_does_not_hold_the_words_is_told_from_its_beginning():
    assert told(user("First this.\nThen that."), "zebra").startswith("#m0 user: First this.")


def test_the_best_place_of_a_message_is_told_where_not_all_fit():
    lines = [f"page {number} is about other things entirely" for number in range(50)]
    lines[30] = "the main-page is about zebras and nothing else"
    text = told(user("\n".join(lines)), "MAIN page", budget=20)
    assert lines[30] in text


def test_several_messages_share_the_room():
    said = [(seq, user(f"café {seq}\n" + "another café is here\n" * 40)) for seq in (5, 2, 9)]
    facts = facts_of([])
    text = excerpt(facts, said, "cafe", budget=60, counter=COUNTER)
    assert [line.split()[0] for line in text.splitlines() if line.startswith("#")] == ["#m2", "#m5", "#m9"]
    assert COUNTER.text(text) <= 60


@pytest.mark.parametrize("text", ["é" * 5_000, "x" * 5_000, "zwölf " * 900, "a/" * 3_000])
def test_there_is_always_something_to_tell(text):
    for counter in (COUNTER, WordCounter()):
        found = told(user(text), "zebra", counter=counter)
        assert found.startswith("#m0 user: ")
        assert counter.text(found) <= 80


def test_without_room_for_a_handle_nothing_is_told():
    assert told(user("a café"), "cafe", budget=0) == told(user("a café"), "cafe", budget=1) == ""
    assert excerpt(Facts(), [], "cafe", budget=80, counter=COUNTER) == ""


def test_results_and_calls_are_told_under_their_names():
    call = Message("assistant", (ToolCall("c", "look_up", '{"place": "Café Noir"}'),))
    messages = [call, tool("c", "closed, says Café Noir"), assistant("Closed.")]
    facts = facts_of(messages)
    text = excerpt(facts, list(enumerate(messages[:2])), "cafe noir", budget=80, counter=COUNTER)
    assert text == "#m0 assistant: look_up place: Café Noir\n#m1 look_up: closed, says Café Noir"
