"""The text of a summary without a model, as a user of the library sees it: the user's words, the lists, and the
quotations.
"""

from __future__ import annotations

import json
import re

import pytest

import refold
from refold.testing import EvaluationAdapter

WINDOW = 4_000
REASONS = (
    "The header lacks a column, so the loader guesses where each customer begins.",
    "Somebody damaged this archive while copying it over a slow network.",
    "Renaming accounts by hand left two spellings of most villages.",
    "Both exports ran at midnight and overwrote one another.",
    "A wrong clock dated these receipts before their orders existed.",
    "Accents break our parser because it expects plain letters only.",
)
CHANGE = "Actually the task changed: build the exporter, forget the importer"


def step(number: int, name: str, arguments: dict[str, str], result: str, text: str = "") -> list[dict]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": text or None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def summary_after(messages: list[dict], window: int = WINDOW) -> tuple[str, list[dict]]:
    """The newest summary, and the messages after it."""
    adapter = EvaluationAdapter(preset="refold", model="gpt-4o")
    adapter.start([{"role": "system", "content": "You write programs."}], None, window)
    for message in messages:
        if message["role"] == "assistant":
            adapter.context()
        adapter.add(message)
    _, *sent = adapter.context()
    assert sent[0]["content"].startswith("[Earlier messages"), "nothing was folded"
    return sent[0]["content"], sent[1:]


def code(number: int, lines: int = 30) -> str:
    return "\n".join(f"    value_{at} = compute_{number}({at})" for at in range(lines))


def reading(turns: int, *, first: int = 0) -> list[dict]:
    found: list[dict] = []
    for number in range(first, first + turns):
        found += step(number, "read_file", {"path": f"src/m{number}.py"}, code(number))
    return found


def listed(summary: str, title: str) -> list[str]:
    block = re.search(rf"^## {title}\n((?:- .*\n)+)", summary, re.MULTILINE)
    return [line[2:] for line in block[1].splitlines()] if block else []


def test_words_by_which_the_user_changes_the_task_stay_beside_the_first_task():
    messages: list[dict] = []
    for number in range(40):
        said = {0: "Build the importer", 9: CHANGE}.get(number, f"Go on with step {number} of it, please.")
        messages.append({"role": "user", "content": said})
        messages += step(number, "read_file", {"path": f"src/m{number}.py"}, code(number))
        messages.append({"role": "assistant", "content": f"Step {number} is done. " * 8})
    summary, _ = summary_after([*messages, {"role": "user", "content": "And now?"}])
    assert "Task #m0: Build the importer" in summary
    assert CHANGE in listed(summary, "The user said later")


def test_the_newest_messages_of_the_user_stay_and_none_is_told_twice():
    messages: list[dict] = [{"role": "user", "content": "Plan a trip to the coast."}]
    for number in range(60):
        messages.append({"role": "assistant", "content": f"Idea {number}: a ferry at dawn. " * 10})
        messages.append({"role": "user", "content": f"This time it is harbour {number} with its market."})
    summary, kept = summary_after(messages)
    said = listed(summary, "The user said later")
    shown = [message["content"] for message in kept if message["role"] == "user"]
    numbers = [int(number) for number in re.findall(r"harbour (\d+)", "\n".join((*said, *shown)))]
    assert len(said) > 1
    assert numbers[-1] == 59
    assert numbers[0] == 59 - len(numbers) + 1 or "Question #m" in summary
    assert not set(said) & set(shown)


def test_lists_name_what_left_the_window_and_not_what_is_shown():
    summary, kept = summary_after([{"role": "user", "content": "Read all modules."}, *reading(40)])
    calls = [call["function"] for message in kept for call in message.get("tool_calls", ())]
    shown = [json.loads(call["arguments"])["path"] for call in calls]
    named = listed(summary, "Files read")
    assert shown
    assert named
    assert not set(named) & set(shown)
    numbers = [int(re.search(r"\d+", path)[0]) for path in named]
    assert max(numbers) == min(int(re.search(r"\d+", path)[0]) for path in shown) - 1


def test_decisions_of_messages_that_are_shown_do_not_displace_older_ones():
    messages: list[dict] = [{"role": "user", "content": "Write the parser."}]
    for number in range(60):
        text = (
            f"I decided to use helper_{number} instead of a loop."
            if number % 2
            else f"Reading part {number}."
        )
        messages += step(number, "read_file", {"path": f"src/m{number}.py"}, code(number, 8), text)
    summary, kept = summary_after(messages)
    named = listed(summary, "Decisions")
    assert named
    shown = "\n".join(message["content"] or "" for message in kept)
    assert all(decision not in shown for decision in named)


def test_lines_are_quoted_as_lines_with_their_indentation_and_no_bare_numbers():
    source = "\n".join(
        f"def area_{n}(side):\n    if side:\n        return side_{n} * {n}\n" for n in range(12)
    )
    messages: list[dict] = [{"role": "user", "content": "Describe the shapes."}]
    messages += step(0, "read_file", {"path": "shapes.py"}, source)
    messages += step(1, "run", {"command": "seq"}, "\n".join(str(n * 1_717) for n in range(1, 200)))
    summary, _ = summary_after([*messages, *reading(30, first=2)], 8_000)
    quoted = [line for line in summary.splitlines() if re.search(r"return side_\d", line)]
    assert quoted
    assert all(re.fullmatch(r" {8}return side_\d+ \* \d+", line) for line in quoted)
    assert not [line for line in summary.splitlines() if re.fullmatch(r"[… \d]*\d[… \d]*", line)]
    assert not re.search(r"run: \d+$", summary, re.MULTILINE)


def test_reasons_of_the_assistant_stay_before_rows_of_data():
    messages: list[dict] = [{"role": "user", "content": "Find out why the import fails."}]
    for number in range(24):
        rows = "\n".join(
            f"row_{number}_{at} | user_{at * 7 + number} | acct_{number * at}" for at in range(14)
        )
        why = REASONS[number] if number < len(REASONS) else f"Next, table {number}."
        messages += step(number, "query", {"table": f"table_{number}"}, rows, why)
    summary, _ = summary_after(messages)
    assert [reason for reason in REASONS if reason in summary] == [*REASONS]


def test_an_edit_is_told_with_what_it_changed():
    messages: list[dict] = [{"role": "user", "content": "Fix the totals."}]
    edit = {
        "path": "src/totals.py",
        "old_str": "def total(rows):\n    return sum(rows)",
        "new_str": "def total(rows):\n    return round(sum(rows), 2)",
    }
    messages += step(0, "str_replace", edit, "ok", "Rounding it.")
    summary, _ = summary_after([*messages, *reading(20, first=1)])
    assert "path: src/totals.py + return round(sum(rows), 2)" in summary


def test_the_range_of_the_header_holds_every_quoted_message_but_those_that_are_shown_cut():
    messages: list[dict] = [{"role": "user", "content": "Read all modules."}]
    for number in range(40):
        text = "\n".join(f"entry_{number}_{at} = load_{number * at}()" for at in range(60))
        messages += step(number, "read_file", {"path": f"src/m{number}.py"}, text)
    summary, kept = summary_after(messages, 8_000)
    last = int(re.match(r"\[Earlier messages #m0 to #m(\d+)", summary)[1])
    above, _, below = summary.partition("## Left out of messages below\n")
    assert max(map(int, re.findall(r"^#m(\d+)", above, re.MULTILINE))) <= last
    cut = re.findall(r"the rest is in #m(\d+)", json.dumps(kept))
    quoted = re.findall(r"^#m(\d+)", below, re.MULTILINE)
    assert set(quoted) <= set(cut)


def test_a_huge_task_is_told_once():
    task = "Port the billing service.\n" + "\n".join(
        f"Requirement {n}: column_{n} of the invoice is checked against ledger_{n * 3}." for n in range(250)
    )
    summary, _ = summary_after([{"role": "user", "content": task}, *reading(20)], 8_000)
    assert summary.count("Port the billing service.") == 1
    assert "Task #m0: Port the billing service." in summary
    assert not re.search(r"^#m0 user:", summary, re.MULTILINE)


@pytest.mark.parametrize("window", [4_000, 8_000])
def test_a_task_of_a_paragraph_stays_whole(window: int):
    task = " ".join(
        f"Point {n}: the report lists every invoice of quarter {n} by customer." for n in range(9)
    )
    answer = {"role": "assistant", "content": "The report is planned."}
    begin = {"role": "user", "content": "Good, begin."}
    summary, _ = summary_after([{"role": "user", "content": task}, answer, begin, *reading(60)], window)
    assert f"Task #m0: {task}" in summary


async def test_a_digest_follows_a_models_summary_that_lists_ids_too():
    """A heading that stands twice would be a reason to refuse the digest, and nothing would be compacted."""
    answers = ["The orders of the harbour were read one by one, and each was answered."]

    async def summarise(messages, *, previous, max_tokens):
        return answers.pop()  # at the second request there is no model any more

    orders = [
        message
        for number in range(30)
        for message in (
            {"role": "user", "content": f"Order TICKET-{4100 + number} waits at the harbour for its ship."},
            {"role": "assistant", "content": f"It sails on night {number}. {REASONS[number % 6]}"},
        )
    ]
    async with refold.Conversation("gpt-4o", window=WINDOW, summariser=summarise) as talk:
        await talk.add(*orders[:30])
        await talk.compact(keep=100)
        await talk.add(*orders[30:], {"role": "user", "content": "And now?"})
        before = (await talk.status()).tokens
        first, *_ = (await talk.compact(keep=100))["messages"]
        after = (await talk.status()).tokens

    assert first["content"].count("\n## Ids and numbers") == 1
    assert "were read one by one" in first["content"]
    assert after < before
