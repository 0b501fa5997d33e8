import re

from refold.core.digest.extract import VisibleText, find, in_sight
from refold.core.digest.facts import Facts, index_message
from refold.model.message import tool, user
from tests.core.digest.conversations import COUNTER, WINDOW, facts_of, work
from tests.work import calls_made


def found(facts, query, budget=200, covered=frozenset()):
    return find(facts, query, budget=budget, window=WINDOW, counter=COUNTER, covered=covered)


def test_the_passage_that_answers_comes_back_with_its_handle():
    messages = [*work(5), tool("x", "the harbour office phone is 5550199"), *work(5, start=5)]
    text = found(facts_of(messages), "phone of the harbour office")
    assert "5550199" in text
    assert "#m30 " in text


def test_the_line_after_a_match_comes_too():
    facts = facts_of(
        [*work(3), tool("x", "password of the staging server\nhunter_2_secret\nunrelated footer_line")]
    )
    assert "hunter_2_secret" in found(facts, "staging server password", budget=40)


def test_what_is_in_sight_is_not_shown_again():
    facts = facts_of([user("invoice number INV-1001 for alice"), user("invoice number INV-2002 for bob")])
    text = found(facts, "invoice number", covered=in_sight(facts, VisibleText(whole=(0,))))
    assert "INV-2002" in text
    assert "INV-1001" not in text


def test_the_budget_holds():
    facts = facts_of(work(30))
    for budget in (0, 10, 50, 300):
        assert COUNTER.text(found(facts, "rounding compute_total billing ticket", budget)) <= budget


def test_nothing_to_find():
    assert found(Facts(), "anything") == ""
    assert found(facts_of(work(1)), "zzz qqq") == ""


def test_what_is_spelled_otherwise_is_found_where_nothing_is_spelled_so():
    facts = facts_of([*work(3), user("Bring it to the Café in src/app/main_page.tsx"), *work(3, start=3)])
    for query in ("CAFE", "src/app", "where is the CAFÉ?"):
        assert "#m18 user: Bring it to the Café in src/app/main_page.tsx" in found(facts, query)
    exact = facts_of([user("a café"), user("a cafe")])
    assert found(exact, "cafe") == "#m1 user: a cafe"


def test_only_what_was_said_before_is_found_in_another_spelling():
    facts = facts_of([user("a café"), user("the CAFÉ of the model's own question")])
    text = find(facts, "cafe", budget=99, window=WINDOW, counter=COUNTER, before=1)
    assert text == "#m0 user: a café"


def test_answers_are_quoted_not_written():
    messages = work(6)
    source = "\n".join(str(message) for message in messages)
    for name in re.findall(r"compute_total_\d+", found(facts_of(messages), "compute_total rounding")):
        assert name in source


def test_any_line_of_the_message_that_was_asked_for_can_answer():
    crew = "\n".join(
        ["crew of the night boat", *(f"row {n} holds person_{n}" for n in range(9)), "captain_ahab"]
    )
    facts = facts_of([*work(5), tool("x", crew), *work(5, start=5)])
    assert "captain_ahab" in found(facts, "who is in the crew of the night boat", budget=90)


def test_a_search_looks_at_what_was_known_at_the_time():
    early = facts_of([user("the key is alpha_key_1 today")])
    late = index_message(early, user("the key is beta_key_2 today"), 1)
    assert "beta_key_2" in found(late, "which key")
    assert "beta_key_2" not in found(early, "which key")
    assert "alpha_key_1" in found(early, "which key")


def test_words_that_are_everywhere_make_a_search_far_less_than_so_much_more_work():
    def calls(size):
        facts = facts_of(
            [user(f"the status of service_{n} is fine, the status is fine") for n in range(size)]
        )
        query = f"status of service_{size - 7}, is the status fine?"
        assert f"service_{size - 7}" in found(facts, query)
        return calls_made(lambda: found(facts, query))

    assert calls(8_000) < 6 * calls(800)
