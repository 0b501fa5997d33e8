import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.digest.facts import TermKind, text_of
from refold.core.digest.shorten import fair_share, shorten
from refold.core.stage import HANDLE_PATTERN
from refold.model.message import Message, Reasoning, Text, ToolCall, assistant, tool, user
from tests.core.digest.conversations import COUNTER, WINDOW, call, facts_of, kinds

LOG = "\n".join(f"12:00:{n % 60:02} worker_{n % 3} handled request {n}" for n in range(400))


def short(message, limit, seq=0):
    before = [user(f"message {n}") for n in range(seq)]
    facts = facts_of([*before, message])
    return shorten(facts, message, seq, limit=limit, window=WINDOW, counter=COUNTER)


def test_what_fits_stays_the_same_object():
    message = tool("c", "short")
    assert short(message, 100) is message


def test_a_long_result_keeps_its_ends_and_what_is_new():
    text = f"{LOG}\nERROR disk_full on host_alpha code 5150\n{LOG}\nexit status 3 after 99 s"
    cut = short(tool("c", text), 200, seq=7)
    assert cut.results[0].call_id == "c"
    assert cut.results[0].text.startswith("12:00:00 worker_0 handled request 0\n")
    assert "disk_full on host_alpha code 5150" in cut.results[0].text
    assert cut.results[0].text.endswith("exit status 3 after 99 s")
    assert "[… #m7 …]" in cut.results[0].text
    assert COUNTER.message(cut) <= 200


def test_sentences_that_have_to_stay_do_so_whole():
    rule = "Never touch it, and always ask."
    news = "\n".join(f"node_{n:x} says code_{n * 7_919:x}" for n in range(400))
    message = user(f"{news}\n{rule}\n{LOG}")
    facts = facts_of([message])
    options = {"limit": 200, "window": WINDOW, "counter": COUNTER}
    assert rule not in shorten(facts, message, 0, **options).text
    cut = shorten(facts, message, 0, must=(rule, "This was never said."), **options).text
    assert rule in cut
    assert "This was never said." not in cut
    assert COUNTER.text(cut) <= 200


def code(lines: int) -> str:
    """A file whose lines are all different, with deep indentation, blank lines and trailing white space."""
    blocks = (
        f"class Handler_{n:x}(Base):\n\n    def run(self):  \n\t    if self.limit_{n} > {n * 13}:\n            return  None\n"
        for n in range(lines // 5)
    )
    return "".join(blocks)


@pytest.mark.parametrize("limit", [80, 200, 500, 1_500])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_left_of_a_file_are_its_own_lines_in_their_order(limit, end):
    text = code(2_000).replace("\n", end)
    cut = short(tool("c", text), limit).results[0].text
    original, at = text.split("\n"), 0
    kept = [line for line in cut.split("\n") if line not in ("[… #m0 …]", "[…]")]
    for line in kept:
        at = original.index(line, at) + 1
    assert len(kept) >= 3
    assert 1 <= cut.count("#m0") <= 2


@given(
    st.lists(st.text(st.sampled_from("ab1_ \t.,请"), max_size=400), min_size=1, max_size=60),
    st.integers(30, 200),
)
def test_every_piece_that_is_left_is_a_piece_of_the_original(lines, limit):
    text = "\n".join(lines)
    cut = short(tool("c", text), limit).results[0].text
    at = 0
    for piece in re.split(r"\n?\[… #m0 …\]\n?|\n?\[…\]\n?", cut):
        at = text.index(piece, at) + len(piece)


def test_of_a_line_without_end_pieces_are_left_with_marks_between_them():
    text = " ".join(f"w{n % 5}" for n in range(2_000)) + " ERROR disk_full on host_alpha " + "filler " * 2_000
    cut = short(tool("c", text), 200).results[0].text
    assert "ERROR disk_full on host_alpha" in cut
    assert "\n" not in cut
    assert all(piece in text for piece in re.split(r"\[…(?: #m0 …)?\]", cut))


def test_arguments_stay_json_and_small_ones_stay_whole():
    message = assistant("I write it.", call("write_file", path="src/app/main.py", content=LOG, mode="new"))
    cut = short(message, 200)
    found = json.loads(cut.calls[0].arguments)
    assert (found["path"], found["mode"]) == ("src/app/main.py", "new")
    assert "#m0.2" in found["content"]
    assert cut.text == "I write it."
    assert COUNTER.message(cut) <= 200


@pytest.mark.parametrize(
    "arguments", ["not json at all " * 300, json.dumps(list(range(5_000))), json.dumps("x " * 9_000)]
)
def test_odd_arguments_end_as_json(arguments):
    cut = short(assistant("", ToolCall("c", "run", arguments)), 100)
    json.loads(cut.calls[0].arguments)
    assert COUNTER.message(cut) <= 100


def test_reasoning_stays_as_it_is():
    message = Message("assistant", (Reasoning("thought", "signed"), Text(LOG)))
    cut = short(message, 200)
    assert cut.parts[0] == message.parts[0]
    assert "[… #m0 …]" in cut.text


def test_parts_share_fairly():
    cut = short(assistant("small", call("a", "x", text=LOG), call("b", "y", text="brief_value")), 200)
    assert cut.text == "small"
    assert json.loads(cut.calls[1].arguments) == {"text": "brief_value"}


@pytest.mark.parametrize(
    "lengths, room, cap",
    [([5, 100, 100], 105, 50), ([10, 10], 100, 10), ([], 5, 0), ([9, 9], 0, 0), ([1, 50, 99], 100, 49)],
)
def test_fair_share(lengths, room, cap):
    assert fair_share(lengths, room) == cap
    assert sum(min(length, cap) for length in lengths) <= room or cap == 0


@given(
    st.lists(
        st.sampled_from(["boat", "TK-4711", "src/a/b.py", "请修复", "😀", "x,y", "\n", "3.14"]), max_size=300
    ),
    st.integers(20, 200),
)
def test_a_shortened_text_fits_and_invents_nothing(words, limit):
    message = tool("c", " ".join(words))
    cut = short(message, limit)
    assert COUNTER.message(cut) <= limit
    said = re.sub(HANDLE_PATTERN, " ", cut.results[0].text)
    wanted = (TermKind.LITERAL, TermKind.NUMBER)
    assert {t for t, k in kinds(said) if k in wanted} <= {
        t for t, k in kinds(text_of(message.parts[0])) if k in wanted
    }
