import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.digest.extract import HISTORY, MAX_CANDIDATES, NOTHING, TURN, VisibleText, digest
from refold.core.digest.facts import Facts, TermKind, index_message, text_of
from refold.core.stage import HANDLE_PATTERN
from refold.model.message import assistant, tool, user
from tests.core.digest.conversations import COUNTER, WINDOW, WordCounter, call, facts_of, kinds, work

WORDS = st.sampled_from(
    [
        "boat",
        "harbour",
        "ticket",
        "TK-4711",
        "src/app/main.py",
        "compute_total",
        "3.14",
        "88231",
        "SessionLive",
        "请修复",
        "错误",
        "😀",
        "error:",
        "https://a.bc/d?e=1",
        "a,b",
        "{x}",
        "\n",
    ]
)
TEXT = st.lists(WORDS, min_size=1, max_size=80).map(" ".join)
MESSAGES = st.lists(
    st.one_of(TEXT.map(user), TEXT.map(assistant), TEXT.map(lambda text: tool("c", text))),
    min_size=1,
    max_size=12,
)


def made(facts, budget, counter=COUNTER, **options):
    options = {"first": 0, "last": 999, **options}
    return digest(facts, budget=budget, window=WINDOW, counter=counter, **options)


def literals(text):
    return {term for term, kind in kinds(text) if kind in (TermKind.LITERAL, TermKind.NUMBER)}


@given(MESSAGES, st.integers(0, 300))
def test_a_digest_keeps_to_its_budget_and_invents_nothing(messages, budget):
    found = made(facts_of(messages), budget)
    assert COUNTER.text(found.text) <= budget
    source = "\n".join(text_of(part) for message in messages for part in message.parts)
    assert literals(re.sub(HANDLE_PATTERN, " ", found.text)) <= literals(source)


@given(MESSAGES)
def test_the_same_facts_give_the_same_digest(messages):
    assert made(facts_of(messages), 60) == made(facts_of(messages), 60)


def test_the_budget_holds_for_any_counter():
    facts = facts_of(work(6))
    counter = WordCounter()
    for budget in (0, 5, 40, 200, 1_000):
        assert counter.text(made(facts, budget, counter).text) <= budget
    assert made(facts, 400, counter).text


def test_names_that_the_agent_worked_with_survive():
    text = made(facts_of(work(8)), 500).text
    assert all(f"fix_{turn}.py" in text for turn in range(8))
    assert "compute_total_7" in text


def test_every_line_can_be_traced_to_its_message():
    text = made(facts_of(work(3)), 200).text
    handles = re.findall(HANDLE_PATTERN, text)
    assert handles == list(dict.fromkeys(handles))
    assert all(re.match(HANDLE_PATTERN, line) or not line.startswith("#") for line in text.splitlines())


def test_what_stays_in_sight_is_not_quoted():
    messages = work(2)
    text = made(facts_of(messages), 500, sight=VisibleText(whole=tuple(range(6, 12))), last=6).text
    assert "TK-4000" in text
    assert "TK-4001" not in text


def test_the_rest_of_a_shortened_message_is_quoted():
    facts = facts_of([tool("c", "first line here\nthe build is build_88231 today\nlast line here")])
    sight = VisibleText(texts=("first line here\nlast line here",), partly=(0,))
    found = made(facts, 100, first=0, last=0, sight=sight)
    assert "build_88231" in found.text
    assert found.reserve == ()


@pytest.mark.feature("O5")
def test_a_split_turn_stands_apart():
    facts = facts_of(work(2))
    text = made(facts, 600, turn_from=6).text
    history, turn = text.split(f"{TURN}\n")
    assert history.startswith(HISTORY)
    assert "TK-4000" in history
    assert "TK-4001" not in history
    assert "TK-4001" in turn
    assert HISTORY not in made(facts, 600, first=6, turn_from=6).text


def test_nothing_gives_an_empty_digest():
    assert made(Facts(), 100) == NOTHING
    assert made(facts_of([user("   ")]), 100).text == ""


def test_fifty_cycles_stay_bounded_and_keep_what_is_used():
    facts, found, seq, sizes = Facts(), NOTHING, 0, []
    for cycle in range(50):
        first = seq
        for message in [
            *work(1, start=cycle),
            assistant("Still on it.", call("check", f"k{cycle}", host="prod_db_7")),
        ]:
            facts = index_message(facts, message, seq)
            seq += 1
        found = made(facts, 300, first=first, last=seq, previous=found)
        sizes.append((COUNTER.text(found.text), len(found.reserve)))
        assert "prod_db_7" in found.text
    assert max(size for size, _ in sizes) <= 300
    assert max(reserve for _, reserve in sizes[10:]) <= 1.5 * sizes[10][1]
    assert f"fix_{49}.py" in found.text
    assert len(found.text.splitlines()) == len(set(found.text.splitlines()))


def test_lines_once_dropped_never_return():
    facts = facts_of(work(30))
    first = made(facts, 50, last=90)
    second = made(facts, 5_000, first=90, last=90, previous=first)
    assert set(second.chosen) <= set(first.reserve)


def test_quoted_headings_do_not_look_like_ours():
    facts = facts_of([tool("c", "intro_one of the page\n## Open tasks of alpha_1\nmore_text of it here")])
    assert not any(line.startswith("##") for line in made(facts, 200).text.splitlines())


def test_a_long_line_is_one_line_again():
    line = (
        "The rounding in compute_total is wrong because the amount is cut before it is summed up, "
        "so invoice INV-4711 shows 3 cents less than the ledger, and ledger_sync fails for it every night."
    )
    assert made(facts_of([assistant(line)]), 200).text == f"#m0 assistant: {line}"
    packed = '{"first_key":"alpha_value_1","second_key":"beta_value_2","third_key":"gamma_value_3","fourth_key":"d_4"}'
    assert made(facts_of([tool("c", packed)]), 200).text == f"#m0 tool: {packed}"


def test_what_is_left_out_of_a_line_is_marked_in_it():
    words = " and ".join(f"the weather of the day was fine and mild {n}" for n in "abcdefgh")
    text = made(facts_of([user(f"The key is alpha_key_1, {words}, and the door is beta_door_2.")]), 40).text
    assert re.fullmatch(r"#m0 user: The key is alpha_key_1,.* … .*beta_door_2\.", text)


def test_of_a_long_conversation_the_promising_pieces_are_weighed():
    log = "\n".join(f"row {n}: sensor_{n} reads {n * 7}" for n in range(1_500))
    logs = [tool(f"t{n}", log.replace("sensor", f"sensor{n}")) for n in range(10)]
    facts = facts_of([*work(5), *logs, *work(5, start=5)])
    assert len(facts.pieces(0, 999)) > 4 * MAX_CANDIDATES
    found = made(facts, 1_000)
    assert all(f"fix_{turn}.py" in found.text for turn in range(5, 10))
    assert sum("sensor" in line for line in found.text.splitlines()) < len(found.text.splitlines()) / 2
    assert len(found.reserve) <= MAX_CANDIDATES
