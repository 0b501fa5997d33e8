import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.core.digest.facts import (
    LONG_QUEUE,
    MANY,
    MAX_EARLY_CHARACTERS,
    MAX_PIECES,
    PORTION,
    SHORT,
    Facts,
    index_message,
    term_ids,
    text_of,
)
from refold.model.message import Message, Reasoning, Text, ToolCall, assistant, tool, user
from tests.core.digest.conversations import call, facts_of, work


def known(facts: Facts) -> list[object]:
    """All that can be asked of an index."""
    log, columns = facts.log, ("ids", "values", "last", "used", "spread", "asked", "standing", "raised")
    return [*(getattr(log, name) for name in columns), log.holders, log.messages, log.pieces, facts.position]


def test_indexing_leaves_the_old_value_as_it_was():
    one = facts_of([user("ticket TK-4711")])
    two = index_message(one, assistant("TK-4711 is done, see TK-4712"), 1)
    assert (one.size, two.size) == (1, 2)
    assert "TK-4712" in two.log.ids
    number = one.log.ids["TK-4711"]
    assert one.log.used[number] == 0
    assert two.log.used[number] == 1
    assert [piece.text for piece in one.pieces(0, 9)] == ["ticket TK-4711"]


def test_two_lines_can_grow_from_one():
    base = facts_of(work(2))
    left = index_message(base, user("left TK-1"), 50)
    right = index_message(base, user("right TK-2"), 50)
    assert left.pieces(50, 51)[0].text == "left TK-1"
    assert right.pieces(50, 51)[0].text == "right TK-2"
    assert right.pieces(0, 12) == left.pieces(0, 12)


def test_an_older_value_knows_what_it_knew():
    messages = work(4)
    whole = facts_of(messages)
    for size in (0, 1, 7, 13, len(messages)):
        fresh, old = facts_of(messages[:size]), Facts(size, whole.shared)
        assert known(old) == known(fresh)
        assert old.pieces(0, size) == fresh.pieces(0, size)


def test_messages_come_in_order():
    facts = facts_of([user("a")])
    with pytest.raises(ValueError, match="in order"):
        index_message(facts, user("b"), 0)


def test_pieces_of_a_range_may_start_anywhere():
    facts = Facts()
    for seq in (3, 7, 12):
        facts = index_message(facts, user(f"message number {seq}"), seq)
    assert [piece.seq for piece in facts.pieces(0, 100)] == [3, 7, 12]
    assert [piece.seq for piece in facts.pieces(4, 12)] == [7]
    assert facts.pieces(13, 20) == ()


def test_labels_name_the_speaker_and_the_part():
    facts = facts_of(
        [
            user("hello there world"),
            assistant("I look twice.", call("read_file", "a", path="x.py"), call("grep", "b", pattern="y_z")),
            tool("a", "first result here"),
            tool("b", "second result here"),
        ]
    )
    labels = [piece.label for piece in facts.pieces(0, 9)]
    assert labels[:2] == ["#m0 user:", "#m1 assistant:"]
    assert labels[-2:] == ["#m2 read_file:", "#m3 grep:"]


def test_of_very_many_messages_at_once_the_newest_are_indexed_in_full():
    long = [
        f"message {number} TK-{number}\n" + "some words in a line of text\n" * 300 + f"end EN-{number}\n"
        for number in range(300)
    ]
    facts = Facts()
    for number, text in enumerate(long):
        middle = len(text) // 2
        facts = index_message(
            facts, user(f"{text[:middle]}\nmiddle MI-{number}\n{text[middle:]}"), number, later=True
        )
    log = facts.known
    assert all({f"TK-{number}", f"EN-{number}"} <= log.ids.keys() for number in range(300))
    known = [number for number in range(300) if f"MI-{number}" in log.ids]
    assert known == [*range(known[0], 300)]
    assert 100 <= len(known) <= 120, "a million characters"
    indexed = sum(len(piece.text) for piece in log.pieces)
    assert indexed < LONG_QUEUE + 300 * MAX_EARLY_CHARACTERS


def test_reasoning_is_not_indexed_and_not_counted_as_a_part():
    message = Message("assistant", (Reasoning("secret_plan"), Text("the answer is here")))
    facts = facts_of([message])
    assert "secret_plan" not in facts.log.ids
    assert facts.pieces(0, 1)[0].label == "#m0 assistant:"


def test_arguments_are_read_as_lines():
    text = text_of(ToolCall("c", "edit", '{"path": "a.py", "edits": [{"old": "x\\ny"}], "count": 3}'))
    assert text == "edit path: a.py\nold: x\ny\ncount: 3"
    assert text_of(ToolCall("c", "edit", "not json")) == "edit not json"


def test_a_giant_message_is_indexed_within_bounds():
    text = "\n".join(f"line {number} of the log says code_{number}" for number in range(60_000))
    found = facts_of([tool("c", text)]).pieces(0, 1)
    assert len(found) <= MAX_PIECES
    assert found[0].text.startswith("line 0 ")
    assert found[-1].text.endswith("code_59999")


def test_terms_of_a_text_are_those_the_index_knows():
    facts = facts_of([user("look at src/app.py")])
    assert term_ids(facts.log, "src/app.py and src/other.py") == {
        facts.log.ids[term] for term in ("src/app.py",)
    } | term_ids(facts.log, "src")


def test_two_words_beside_each_other_are_a_term_of_their_own():
    facts = facts_of([user("the red house stands near the old bridge")])
    one_by_one = term_ids(facts.log, "red, and then another thing, house")
    assert len(term_ids(facts.log, "red house") - one_by_one) == 1
    assert term_ids(facts.log, "house red") == one_by_one, "another order is another phrase"


def test_many_messages_that_are_read_at_once_get_the_numbers_of_those_that_came_one_by_one():
    messages = [
        user(f"see run_it{at % 7} in src/file{at}.py and mod.run_it{at % 5} again") for at in range(3 * MANY)
    ]
    at_once = Facts()
    for seq, message in enumerate(messages):
        at_once = index_message(at_once, message, seq, later=True)
    assert at_once.log.pieces == eager(messages).log.pieces


names = st.sampled_from(["src/app.py", "app.py", "TK-4711", "see", "run_it", "mod.run_it", "12", "密码"])
texts = st.lists(names, min_size=1, max_size=6).map(" ".join)
messages_said = st.one_of(
    st.builds(user, texts),
    st.builds(lambda text, path: assistant(text, call("read_file", "r", path=path)), texts, names),
    st.builds(lambda text: tool("r", text), texts),
)
FIRST = assistant("I look.", call("read_file", "r", path="src/first.py"))
LATER = ("arrive later", user("see src/app.py"), 0)
STEPS = ("arrive later", "arrive later", "arrive", "ask", "ask about before", "go another way")


def eager(messages):
    """The facts of messages each of which was asked about when it came."""
    facts = Facts()
    for seq, message in enumerate(messages):
        facts = index_message(facts, message, seq)
        assert len(facts.known.messages) == seq + 1
    return facts


@example([LATER, LATER, ("go another way", FIRST, 1), LATER])
@example([LATER, LATER, ("ask about before", FIRST, 1), LATER])
@given(st.lists(st.tuples(st.sampled_from(STEPS), messages_said, st.integers(0, 20)), max_size=25))
def test_what_is_read_later_is_known_as_what_is_read_on_arrival(steps):
    """Whenever somebody asks, and whichever way a conversation goes on from wherever it was."""
    line, lazy = [FIRST], eager([FIRST])
    past = [Facts(), lazy]
    for step, message, at in steps:
        before = 1 + at % len(line)
        match step:
            case "ask":
                assert known(lazy) == known(eager(line))
            case "ask about before":
                assert known(past[before]) == known(eager(line[:before]))
                assert past[before].pieces(0, 99) == eager(line[:before]).pieces(0, 99)
            case "go another way":
                line, past = line[:before], past[: before + 1]
                lazy = past[before]
            case _:
                lazy = index_message(lazy, message, len(line), later=step == "arrive later")
                line, past = [*line, message], [*past, lazy]
    assert known(lazy) == known(eager(line))


def test_a_history_that_comes_at_once_is_read_by_the_time_as_much_was_said_again():
    facts, messages = Facts(), work(5)
    for seq, message in enumerate(messages):
        facts = index_message(facts, message, seq, later=True)
    assert not facts.shared.messages
    for seq in range(len(messages), 2 * len(messages)):
        unread = len(facts.shared.waiting)
        facts = index_message(facts, user("and so on"), seq)
        assert len(facts.shared.waiting) == unread + 1 - PORTION
    assert not facts.shared.waiting


def test_a_short_conversation_is_not_read_before_somebody_asks():
    facts = Facts()
    for seq in range(SHORT):
        facts = index_message(facts, user(f"see src/file{seq}.py"), seq)
    assert not facts.shared.messages
    longer = facts
    for seq in range(SHORT, 2 * SHORT):
        longer = index_message(longer, user("and so on"), seq)
    assert not longer.shared.waiting
    assert len(facts.pieces(0, SHORT)) == SHORT


def test_who_is_interrupted_while_a_message_is_read_can_ask_again(monkeypatch):
    facts, messages = Facts(), work(1)
    for seq, message in enumerate(messages):
        facts = index_message(facts, message, seq, later=True)
    with monkeypatch.context() as patch:
        patch.setattr("refold.core.digest.facts.text_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = facts.log
    assert facts.pieces(0, 99) == facts_of(messages).pieces(0, 99)


def interrupted(_: object) -> str:
    raise KeyboardInterrupt
