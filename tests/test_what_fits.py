"""Nothing that fits is cut, and what does not fit is cut no further than it must be: through the library."""

from __future__ import annotations

import json
import re
from bisect import bisect_right

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from refold.core.presets import PRESETS
from refold.engine.recall import recall_tool
from refold.sync import Conversation
from tests.formats import KEYS, Plain, answer, question, violations

FORMATS = tuple(KEYS)
WINDOW = 12_000
MOST_MESSAGES = 20
"""The preset picoclaw folds when there are more, however short they are."""
every_format = pytest.mark.parametrize("name", FORMATS)
every_preset = pytest.mark.parametrize("preset", PRESETS)


def code(tokens: int, seed: int = 0) -> str:
    """A file of about so many tokens, in which no line comes twice."""
    return "".join(
        f"class Handler_{seed}_{n}(Base):\n\n    def run(self):  \n\t    return  self.find_{seed}({n * 7_919}, 'x')\n"
        for n in range(tokens // 33)
    )


def exchange(name: str, number: int, *texts: str) -> list[Plain]:
    """A reply with a call for each text, and their results."""
    ids = [f"call_{number}_{at}" for at in range(len(texts))]
    paths = {one: {"path": f"src/{one}.py"} for one in ids}
    if name == "responses":
        calls = [
            {"type": "function_call", "call_id": one, "name": "read", "arguments": json.dumps(paths[one])}
            for one in ids
        ]
        results = [
            {"type": "function_call_output", "call_id": one, "output": text}
            for one, text in zip(ids, texts, strict=True)
        ]
        return [*calls, *results]
    if name == "anthropic":
        uses = [{"type": "tool_use", "id": one, "name": "read", "input": paths[one]} for one in ids]
        blocks = [
            {"type": "tool_result", "tool_use_id": one, "content": text}
            for one, text in zip(ids, texts, strict=True)
        ]
        return [{"role": "assistant", "content": uses}, {"role": "user", "content": blocks}]
    asked = [
        {"id": one, "type": "function", "function": {"name": "read", "arguments": json.dumps(paths[one])}}
        for one in ids
    ]
    told = [
        {"role": "tool", "tool_call_id": one, "content": text} for one, text in zip(ids, texts, strict=True)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": asked}, *told]


def talking(name: str = "chat", preset: str = "refold", **settings: object) -> Conversation:
    """A conversation without cache breakpoints, which turn texts into blocks."""
    policy = structs.replace(PRESETS[preset], cache=None)
    return Conversation(
        "gpt-4o", format=name, policy=policy, **{"window": WINDOW, "max_output": 1_000, **settings}
    )


def sent(talk: Conversation, name: str = "chat") -> list[Plain]:
    fields = talk.context()
    assert not violations(fields, name)
    return [message for message in fields[KEYS[name]] if message.get("role") != "system"]


def results(messages: list[Plain]) -> list[str]:
    """The texts of all tool results, in their order."""
    found = []
    for one in messages:
        if one.get("role") == "tool":
            found.append(one["content"])
        elif one.get("type") == "function_call_output":
            found.append(one["output"])
        elif isinstance(one.get("content"), list):
            found += [block["content"] for block in one["content"] if block["type"] == "tool_result"]
    return found


def room(talk: Conversation) -> int:
    measured = talk.measurement
    return measured.window - measured.reserve - measured.instructions.tokens


def tokens(talk: Conversation, text: str) -> int:
    return talk.state.folded.shown.counter.text(text)


def sized(talk: Conversation, wanted: int, seed: int = 0) -> str:
    """A file of at most so many tokens, as the conversation counts, and hardly fewer."""
    lines = code(2 * wanted, seed).splitlines(keepends=True)
    size = bisect_right(range(len(lines)), wanted, key=lambda size: tokens(talk, "".join(lines[:size])))
    return "".join(lines[: size - 1])


@pytest.mark.parametrize(
    "window, size, role",
    [(32_000, 4_700, "tool"), (64_000, 9_400, "tool"), (128_000, 15_800, "tool"), (16_000, 6_674, "user"),
     (64_000, 29_048, "user")],
)  # fmt: skip
def test_one_large_message_that_fits_leaves_as_it_came(window, size, role):
    talk = talking(window=window, max_output=None)
    text = sized(talk, size)
    talk.add(*([question(text)] if role == "user" else ["Read it.", *exchange("chat", 0, text)]))

    assert sent(talk)[-1]["content"] == text
    assert 0.9 * size < tokens(talk, text) <= size
    assert talk.receipts == ()


conversations = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=3), max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
"""Turns: how long the question is, the results of each reply, and whether there is an answer."""


@every_format
@every_preset
@given(turns=conversations, window=st.sampled_from([8_000, 16_000, 64_000, 200_000]))
def test_below_every_threshold_messages_leave_as_they_came(name, preset, turns, window):
    said: list[Plain] = []
    for number, (asks, replies, is_answered) in enumerate(turns):
        said.append(question(f"{number}: \n  {code(int(asks * window * 0.04), number)} done?"))
        for at, shares in enumerate(replies):
            texts = [
                code(int(share * min(window * 0.03, 400)), 10 * number + at) or " \t" for share in shares
            ]
            said += exchange(name, 10 * number + at, *texts)
        said += [answer(f"It is {number}.  ")] if is_answered or number < len(turns) - 1 else []
    if said[-1].get("role") == "assistant":
        said.append(question("And now?"))
    assume(len(said) <= MOST_MESSAGES)
    talk = talking(name, preset, window=window, max_output=window // 16, system="Be  brief.\n")
    for message in said:
        talk.add(message)

    assert sent(talk, name) == said
    assert talk.receipts == ()


@every_format
@every_preset
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_newest_result_is_whole_however_much_was_there_before(name, preset, share):
    talk = talking(name, preset)
    for number in range(8):
        talk.add(
            question(f"What is in file {number}?"),
            *exchange(name, number, code(1_500, number)),
            answer("It is code."),
        )
    newest = sized(talk, int(share * room(talk)) - 100, seed=99)
    talk.add(question("And in this one?"), *exchange(name, 99, newest))

    assert results(sent(talk, name))[-1] == newest
    assert talk.receipts


@every_preset
def test_in_one_long_turn_every_new_result_is_whole(preset):
    talk, plant = talking(preset=preset), "PLANTED-4711"
    talk.add(question("Read all files, and never change any of them."))
    for number in range(12):
        newest = sized(talk, (2_000, 500, 6_000, 8_500)[number % 4], seed=number) + f"{plant}-{number}"
        talk.add(*exchange("chat", number, newest))
        assert results(sent(talk))[-1] == newest
    assert talk.state.measurement.content.tokens <= WINDOW - 1_000
    assert plant in talk.recall("#m2")["content"]


@every_format
@every_preset
@pytest.mark.parametrize("has_history", [False, True])
def test_what_does_not_fit_by_itself_is_cut_to_the_room_there_is(name, preset, has_history):
    talk = talking(name, preset)
    for number in range(4 if has_history else 0):
        talk.add(
            question(f"What is in file {number}?"),
            *exchange(name, number, code(800, number)),
            answer("It is code."),
        )
    text = code(30_000, seed=9)
    talk.add(question("Read it."), *exchange(name, 9, text))

    shown = results(sent(talk, name))[-1]
    assert shown != text
    assert tokens(talk, shown) > 0.8 * room(talk)
    assert talk.measurement.free >= 0
    edits = [edit for receipt in talk.receipts for edit in receipt.edits if edit.stage == "fit"]
    assert edits
    assert re.fullmatch(r"[\d,]+ tokens do not fit into the [\d,]+ that are left for them", edits[-1].reason)


@every_format
def test_what_is_left_are_lines_of_the_original_in_their_order(name):
    talk, text = talking(name), code(30_000)
    talk.add(question("Read it."), *exchange(name, 0, text))

    shown, original, at = results(sent(talk, name))[-1], text.split("\n"), 0
    lines = [line for line in shown.split("\n") if not re.fullmatch(r"\[…(?: #m\d+(?:\.\d+)? …)?\]", line)]
    for line in lines:
        at = original.index(line, at) + 1
    assert len(lines) > 500
    assert shown.startswith(
        "class Handler_0_0(Base):\n\n    def run(self):  \n\t    return  self.find_0(0, 'x')\n"
    )


@every_format
def test_results_of_one_reply_share_the_room_and_small_ones_stay_whole(name):
    talk = talking(name)
    small, first, second = code(300, 1), code(9_000, 2), code(20_000, 3)
    talk.add(question("Read them."), *exchange(name, 0, first, small, second))

    shown = results(sent(talk, name))
    assert shown[1] == small
    sizes = [tokens(talk, shown[0]), tokens(talk, shown[2])]
    assert sum(sizes) > 0.8 * room(talk)
    assert max(sizes) < 1.2 * min(sizes)


@every_format
def test_results_of_one_reply_that_fit_together_are_whole(name):
    talk = talking(name)
    for number in range(6):
        talk.add(
            question(f"What is in file {number}?"),
            *exchange(name, number, code(1_200, number)),
            answer("It is code."),
        )
    texts = [sized(talk, 3_000, 20), sized(talk, 200, 21), sized(talk, 5_500, 22)]
    talk.add(question("Read them."), *exchange(name, 9, *texts))

    assert results(sent(talk, name))[-3:] == texts


def test_a_question_that_does_not_fit_keeps_its_rules_and_its_ends():
    talk, rule = talking(), "Never touch the public API of billing/api.py, whatever happens."
    talk.add(question(f"Here is the file.\n{code(9_000, 1)}\n{rule}\n{code(9_000, 2)}\nWhat is wrong?"))

    (shown,) = [one["content"] for one in sent(talk)]
    assert shown.startswith("Here is the file.\nclass Handler_1_0(Base):\n")
    assert shown.endswith("\nWhat is wrong?")
    assert rule in shown.split("\n")


def test_what_was_read_makes_room_and_nothing_is_folded_again_and_again():
    """A result that fills the window leaves with the next fold; the calls after that one change nothing."""
    talk = talking()
    talk.add(question("Find the number."))
    talk.add(*exchange("chat", 0, sized(talk, int(0.93 * room(talk))) + "the number is 48151623"))
    assert "48151623" in json.dumps(sent(talk))
    assert talk.receipts == ()
    folds = []
    for number in range(1, 10):
        talk.add(*exchange("chat", number, f"short output {number} " * 60))
        sent(talk)
        folds.append(len(talk.receipts))

    assert folds[0] <= folds[3] == folds[-1] == 1
    assert "48151623" in json.dumps(sent(talk))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_huge_result_after_a_long_question_is_cut_until_it_fits(preset):
    talk = talking(preset=preset, window=8_000, max_output=1)
    talk.add(question("Find the fault. " + "Tell nobody what you see there, and mend it with care. " * 150))
    for number in range(4):
        talk.add(*exchange("chat", number, code(200, number)))
    talk.context()
    talk.add(*exchange("chat", 9, code(20_000, 9)))

    assert "def run(self)" in results(sent(talk))[-1]


@pytest.mark.parametrize("share", [0.65, 0.8])
def test_a_long_reply_is_whole_when_the_user_answers_it(share):
    talk = talking()
    for number in range(6):
        talk.add(question(f"What is in file {number}?"), *exchange("chat", number, code(1_500, number)))
        talk.add(answer("It is code."))
    talk.add(question("Write the whole module."))
    written = sized(talk, int(share * room(talk)), seed=99)
    talk.add(answer(written), question("Shorter, please."))

    messages = sent(talk)
    assert [one["content"] for one in messages[-2:]] == [written, "Shorter, please."]
    assert talk.receipts[-1].decision in ("reduce", "summarise")


def test_asking_again_changes_nothing():
    talk = talking()
    talk.add(question("Read it."), *exchange("chat", 0, code(30_000)))
    first = sent(talk)

    assert [sent(talk) for _ in range(3)] == [first] * 3
    assert len(talk.receipts) == 1


def test_a_summary_makes_room_for_a_result_that_fits_beside_a_shorter_one():
    talk = talking()
    for number in range(9):
        talk.add(
            question(f"What is in file {number}?"),
            *exchange("chat", number, code(1_500, number)),
            answer("It is code."),
        )
    talk.add(question("And this one?"))
    sent(talk)
    assert talk.measurement.summary.tokens > 0.15 * room(talk)
    newest = sized(talk, int(0.8 * room(talk)), seed=99)
    talk.add(*exchange("chat", 99, newest))

    messages = sent(talk)
    assert results(messages)[-1] == newest
    assert messages[0]["content"].startswith("[Earlier messages #m0 to #m")
    assert "And this one?" in json.dumps(messages)


@pytest.mark.parametrize(
    "tool, is_promised",
    [("recall", True), ("mcp__refold__recall", True), ("refold_recall", True), ("total_recall", False),
     ("read", False), (None, False)],
)  # fmt: skip
def test_recall_is_promised_only_to_a_model_that_has_it(tool, is_promised):
    definition = recall_tool()
    definition["function"]["name"] = tool
    talk = talking(tools=[definition] if tool else [])
    for number in range(20):
        talk.add(
            question(f"What is in file {number}?"),
            *exchange("chat", number, code(1_500, number)),
            answer("It is code."),
        )
    talk.add(question("And now?"))

    opening = sent(talk)[0]["content"].split("\n")[0]
    promise = "; recall opens a handle" if is_promised else ""
    assert re.fullmatch(rf"\[Earlier messages #m0 to #m\d+, shortened{promise}\]", opening)


@pytest.mark.parametrize(("keep", "least"), [(2_000, 40), (None, 0)])
def test_a_manual_compaction_describes_the_images_of_all_earlier_turns(keep, least):
    """What stays is decided by the size of messages without their images."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    talk = Conversation("gpt-4o", window=64_000, max_output=500)
    for number in range(40):
        text = {"type": "text", "text": f"Look at picture {number}."}
        talk.add(
            {"role": "user", "content": [text, image]},
            {"role": "assistant", "content": f"Picture {number} shows a square with label {number}."},
        )
    talk.add({"role": "user", "content": "Now finish."})

    sent = json.dumps(talk.compact(keep=keep)["messages"])

    assert "iVBORw0KGgo" not in sent
    assert sum(f"label {number}." in sent for number in range(40)) >= least
    assert talk.status().tokens < 2_000
