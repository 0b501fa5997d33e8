"""The user's task never vanishes: whoever writes the summaries, every window holds what the user asked for."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.core.presets import PRESETS

TASK = "Port the ferry timetable of Vik to the ledger format; the code word is amberlantern."
RULE = "Never touch the file archive.toml."
LATER_RULE = "Always answer in one short paragraph."
GOOD = f"## Goal\n{TASK}\n\n## Progress\nThe assistant has read the files that were named."
POOR = "## Progress\nThe assistant has read some files and went on with the work, step by step."
WORDS = ("tide", "boat", "crew", "rope", "harbour", "wind", "chart", "lamp", "deck", "mast", "pier", "gull")


def prose(seed: int, words: int) -> str:
    return " ".join(f"{WORDS[(seed * 7 + at * 5) % len(WORDS)]}{seed * 31 + at}" for at in range(words))


def refusal(limit: int) -> dict[str, Any]:
    said = f"This model's maximum context length is {limit} tokens."
    return {"status": 400, "body": {"error": {"message": said, "code": "context_length_exceeded"}}}


class Author:
    """A summariser that does as it is told, and remembers what it was shown."""

    def __init__(self) -> None:
        self.mood = "good"
        self.shown: list[str] = []

    async def __call__(self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int) -> str:
        self.shown.append(f"{json.dumps(messages)}\n{previous}")
        match self.mood:
            case "good":
                return GOOD
            case "poor":
                return POOR
            case "refuses":
                return "I'm sorry, but I can't help with that."
            case "late":
                raise TimeoutError
            case _:
                return ""


class Talk:
    """One conversation of which every window is looked at."""

    def __init__(self, preset: str, url: str) -> None:
        self.preset, self.url, self.author = preset, url, Author()
        self.window, self.calls, self.windows = 6_000, 0, 0
        self.is_refused = False
        """Once: every refusal of what fits teaches a smaller limit."""
        self.said = [TASK, "amberlantern", RULE]
        self.engine: refold.Engine | None = None
        self.talk: Any = None

    async def open(self, window: int) -> None:
        await self.close()
        self.window = window
        own = {"policy": PRESETS[self.preset], "window": window, "summariser": self.author}
        if self.url:
            self.engine = await refold.Engine(self.url, embedder=None).start()
            self.talk = await self.engine.conversation("ferry", **own)
        elif self.talk is None:
            self.talk = refold.Conversation(**own)

    async def close(self) -> None:
        if self.engine is not None:
            await self.talk.ready()
            await self.talk.close()
            await self.engine.close()

    def holds_all(self, fields: dict[str, Any]) -> None:
        sent = json.dumps(fields, ensure_ascii=False)
        self.windows += 1
        assert [said for said in self.said if said not in sent] == [], sent

    async def look(self) -> None:
        await self.talk.ready()
        self.holds_all(await self.talk.context())

    async def turn(self, question: str, calls: int, words: int) -> None:
        await self.talk.add({"role": "user", "content": question})
        for _ in range(calls):
            await self.look()
            self.calls += 1
            call = {"name": "read", "arguments": json.dumps({"path": f"f{self.calls}.txt"})}
            await self.talk.add(
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": f"c{self.calls}", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": f"c{self.calls}", "content": prose(self.calls, words)},
            )
        await self.look()
        await self.talk.add({"role": "assistant", "content": f"Done: {prose(self.calls, 30)}"})

    async def act(self, act: tuple[Any, ...]) -> None:
        match act:
            case ("turn", calls, words, question):
                await self.turn(f"Go on with the next step: {prose(calls + words, question)}", calls, words)
            case ("rule",):
                if LATER_RULE not in self.said:
                    self.said.append(LATER_RULE)
                    await self.turn(f"{LATER_RULE} Now go on.", 1, 20)
            case ("author", mood):
                self.author.mood = mood
            case ("compact",):
                self.holds_all(await self.talk.compact())
            case ("undo",):
                await self.talk.undo()
            case ("reopen", window):
                await self.open(window)
            case ("refused",) if not self.is_refused:
                await self.look()
                known = self.talk.measurement
                size, room = known.content.tokens, known.window - known.reserve
                self.is_refused = size > room // 2
                if self.is_refused:
                    self.holds_all(await self.talk.recover(refusal(size * 3 // 4 + known.reserve)))


ACTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("turn"), st.integers(0, 8), st.sampled_from((20, 90, 220)), st.sampled_from((5, 40, 700))
        ),
        st.tuples(st.just("turn"), st.integers(6, 16), st.sampled_from((60, 120)), st.just(10)),
        st.tuples(st.just("author"), st.sampled_from(("good", "poor", "refuses", "late", "fails"))),
        st.tuples(st.just("reopen"), st.sampled_from((4_000, 6_000, 9_000, 20_000))),
        st.sampled_from((("rule",), ("compact",), ("undo",), ("refused",))),
    ),
    min_size=4,
    max_size=14,
)


PLACES = ("library", "memory", "sqlite")
PAIRS = [
    pytest.param(preset, place, marks=() if (at + number) % 3 == 0 else pytest.mark.slow)
    for at, preset in enumerate(PRESETS)
    for number, place in enumerate(PLACES)
]
"""Each preset in one place, each place with two presets; the other pairs are slow."""


@pytest.mark.parametrize(("preset", "place"), PAIRS)
def test_every_window_holds_the_task_the_rules_and_the_code_word(preset, place):
    @settings(max_examples=max(5, settings.default.max_examples // 20), deadline=None)
    @given(acts=ACTS)
    def runs(acts):
        with TemporaryDirectory() as folder:
            url = {"library": "", "memory": "memory:", "sqlite": f"sqlite:///{Path(folder) / 'talks.db'}"}[
                place
            ]
            asyncio.run(run(Talk(preset, url), acts if place == "sqlite" else without_reopening(acts)))

    runs()


def without_reopening(acts: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [act for act in acts if act[0] != "reopen"]


async def run(talk: Talk, acts: Sequence[tuple[Any, ...]]) -> None:
    await talk.open(6_000)
    try:
        await talk.turn(f"{TASK} {RULE}", 12, 90)
        for act in acts:
            await talk.act(act)
        await talk.turn("And now?", 1, 20)
    finally:
        await talk.close()


def filled(talk: refold.sync.Conversation, turns: int, words: int = 90) -> str:
    """Turns until the beginning is folded; what stands first in the window then."""
    for number in range(turns):
        talk.add({"role": "user", "content": f"Step {number}: {prose(number, 20)}"})
        talk.context()
        talk.add({"role": "assistant", "content": prose(number + 100, words)})
    talk.add({"role": "user", "content": "And now?"})
    return str(talk.context()["messages"][0]["content"])


def test_all_that_a_user_types_before_the_first_reply_is_the_task_and_what_a_program_adds_is_not():
    talk = refold.sync.Conversation(window=5_000)
    reminder = "<system-reminder>\nAgents: helper, tester.\n</system-reminder>"
    talk.add({"role": "user", "content": "<environment_context>\n<cwd>/srv</cwd>\n</environment_context>"})
    talk.add(
        {"role": "user", "content": [{"type": "text", "text": reminder}, {"type": "text", "text": TASK}]}
    )
    talk.add({"role": "user", "content": f"And one more thing: {RULE}"})
    talk.add({"role": "assistant", "content": "I begin."})
    summary = filled(talk, 30)
    assert f"\nTask #m1: {TASK}\nTask #m2: And one more thing: {RULE}\n" in summary
    assert "Agents: helper" not in summary


def test_a_task_of_tags_that_no_program_writes_is_a_task():
    talk = refold.sync.Conversation(window=5_000)
    talk.add(
        {"role": "user", "content": f"<goal>{TASK}</goal>"}, {"role": "assistant", "content": "I begin."}
    )
    assert f"Task #m0: <goal>{TASK}</goal>" in filled(talk, 30)


@pytest.mark.parametrize(
    "task",
    [
        f"<task_description>\n{TASK}\n</task_description>\n<output_format>\nOnly CSV.\n</output_format>",
        f"Port the timetable.\n<output_format>\n{TASK}\n</output_format>",
        f"<context>\n{TASK}\n</context>\nPort the timetable as described in the context.",
        f"<env>{TASK}</env>",
        f"<user_query>\n{TASK}\n</user_query>",
        f"<command-name>/port</command-name>\n<command-args>{TASK}</command-args>",
        f'Fix this component:\n\n<ferry-board>\n  <slot name="a"></slot>\n{TASK}\n</ferry-board>\n\nThanks.',
    ],
)
def test_a_task_between_tags_of_any_name_is_a_task(task):
    talk = refold.sync.Conversation(window=5_000)
    talk.add({"role": "user", "content": task}, {"role": "assistant", "content": "I begin."})
    assert f"Task #m0: {task.partition(TASK)[0]}{TASK}" in filled(talk, 30)


@pytest.mark.parametrize(
    "name", ["system-reminder", "environment_details", "SYSTEM-REMINDER", "local-command-stdout"]
)
def test_a_message_of_blocks_that_a_client_is_known_to_add_gives_way_to_what_the_user_types(name):
    talk = refold.sync.Conversation(window=5_000)
    talk.add({"role": "user", "content": f"<{name}>\nAgents: helper, tester.\n</{name}>"})
    talk.add({"role": "assistant", "content": "How can I help?"}, {"role": "user", "content": TASK})
    talk.add({"role": "assistant", "content": "I begin."})
    assert f"\nTask #m2: {TASK}\n" in filled(talk, 30)


def test_a_question_that_is_too_long_to_stay_keeps_its_beginning_and_its_end_while_its_turn_goes_on():
    talk = refold.sync.Conversation(window=6_000)
    talk.add({"role": "user", "content": TASK}, {"role": "assistant", "content": "I begin."})
    talk.add({"role": "user", "content": f"Find the lost boat. {prose(3, 700)} Answer in verse."})
    windows = []
    for number in range(40):
        call = {"name": "read", "arguments": "{}"}
        made = [{"id": f"c{number}", "type": "function", "function": call}]
        talk.add({"role": "assistant", "content": None, "tool_calls": made})
        talk.add({"role": "tool", "tool_call_id": f"c{number}", "content": prose(number, 90)})
        windows.append(json.dumps(talk.context()))
    assert "Question #m2: Find the lost boat. " in windows[-1]
    for said in (TASK, "Find the lost boat.", "Answer in verse."):
        assert [number for number, sent in enumerate(windows) if said not in sent] == []


async def test_all_messages_of_an_open_question_stay_also_after_a_restart(tmp_path):
    halves = ["Find the lost boat kestrel-5.", "Then paint it green-7."]
    url, added = f"sqlite:///{tmp_path / 'talks.db'}", "By the way, its anchor is heron-3."
    engine = await refold.Engine(url, embedder=None).start()
    talk = await engine.conversation("ferry", window=5_000)
    await talk.add({"role": "user", "content": TASK}, {"role": "assistant", "content": "I begin."})
    await talk.add(*({"role": "user", "content": half} for half in halves))
    for number in range(60):
        call = {"name": "read", "arguments": "{}"}
        made = [{"id": f"c{number}", "type": "function", "function": call}]
        await talk.add({"role": "assistant", "content": None, "tool_calls": made})
        await talk.add({"role": "tool", "tool_call_id": f"c{number}", "content": prose(number, 90)})
        if number == 10:
            await talk.add({"role": "user", "content": added})
        sent = json.dumps(await talk.context())
        assert [
            said for said in (TASK, *halves, *([added] if number >= 10 else [])) if said not in sent
        ] == []
        if number in (30, 45):
            await engine.close()
            engine = await refold.Engine(url, embedder=None).start()
            talk = await engine.conversation("ferry", window=5_000)
    await talk.add({"role": "assistant", "content": "The boat is green."})
    for number in range(30):
        await talk.add({"role": "user", "content": f"Step {number}: {prose(number, 20)}"})
        sent = json.dumps(await talk.context())
        await talk.add({"role": "assistant", "content": prose(number + 100, 90)})
    await engine.close()
    assert TASK in sent
    assert not re.search(rf"Question #m\d+: {halves[0]}", sent)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("test", "The latest release was read."),
        ("fix it", "The prefix items were read."),
        ("修", "The word 维修 was read."),
        ("тест", "Протестировано."),
        ("กา", "The word กาง was read."),
        ("का", "The word कां was read."),
        ("deploy the app", "Somebody will deploy the app-server."),
    ],
)
async def test_a_summary_that_has_a_task_only_within_other_words_begins_with_it(task, said):
    summary = await summed_up(task, f"## Progress\n{said} The assistant went on with the work, step by step.")
    assert said in summary
    assert f"Task #m0: {task}\n" in summary


async def test_a_summary_that_has_a_task_in_its_own_sentence_does_not_say_it_twice():
    text = f"## Progress\nAsked: {TASK} The assistant went on with the work, step by step."
    summary = await summed_up(TASK, text)
    assert f"Asked: {TASK}" in summary
    assert "Task #m0" not in summary


async def summed_up(task: str, text: str) -> str:
    """The summary of a conversation about a task by a function that returns this text."""

    async def author(messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int) -> str:
        return text

    talk = refold.Conversation(policy=PRESETS["opal"], window=5_000, summariser=author)
    await talk.add({"role": "user", "content": task}, {"role": "assistant", "content": "I begin."})
    for number in range(30):
        await talk.add({"role": "user", "content": f"Step {number}: {prose(number, 20)}"})
        await talk.ready()
        await talk.context()
        await talk.add({"role": "assistant", "content": prose(number + 100, 90)})
    (summary, *_) = (await talk.context())["messages"]
    return str(summary["content"])


@pytest.mark.parametrize(
    "rule",
    [
        "Antworte ab jetzt immer auf Deutsch.",
        "Ändere die Datei archive.toml nicht.",
        "Raak het bestand archive.toml nooit aan.",
        "Antwoord vanaf nu in het Nederlands.",
        "A partir de ahora, responde en verso.",
    ],
)
def test_a_rule_in_another_language_stays(rule):
    talk = refold.sync.Conversation(window=4_000)
    talk.add({"role": "user", "content": TASK}, {"role": "assistant", "content": "I begin."})
    talk.add({"role": "user", "content": rule}, {"role": "assistant", "content": "Fine."})
    assert f"\n- {rule}\n" in filled(talk, 40)


@pytest.mark.parametrize("said", ["Das ändere ich nicht.", "Ik heb dat bestand nooit gezien."])
def test_a_fact_in_another_language_is_no_rule(said):
    talk = refold.sync.Conversation(window=4_000)
    talk.add({"role": "user", "content": TASK}, {"role": "assistant", "content": "I begin."})
    talk.add({"role": "user", "content": said}, {"role": "assistant", "content": "Fine."})
    rules = filled(talk, 40).partition("## Rules the user gave")[2].partition("\n## ")[0]
    assert said not in rules


def test_a_sensitive_message_is_neither_task_nor_question():
    talk = refold.sync.Conversation(window=5_000)
    talk.add({"role": "user", "content": "The merger is called Bluefin."}, sensitive=True)
    talk.add({"role": "assistant", "content": "I see."}, {"role": "user", "content": TASK})
    talk.add({"role": "assistant", "content": "I begin."})
    summary = filled(talk, 30)
    assert f"Task #m2: {TASK}" in summary
    assert "Bluefin" not in summary


@pytest.mark.parametrize("mood", ["poor", "fails"])
async def test_a_session_that_goes_on_as_its_summary_has_its_task_and_its_rules(mood):
    author = Author()
    author.mood = mood
    engine = await refold.Engine("memory:", embedder=None).start()
    talk = await engine.conversation("ferry", window=4_000, summariser=author)
    await talk.add(
        {"role": "user", "content": f"{TASK} {RULE}"}, {"role": "assistant", "content": "I begin."}
    )
    await several(talk, 30)
    (first,) = [one for one in await engine.sessions("ferry") if one.last is None]
    await talk.start_session()
    await talk.add({"role": "user", "content": "Something else."}, {"role": "assistant", "content": "Yes?"})
    small = await engine.conversation("ferry", window=2_000, summariser=author)
    resumed = await small.resume((await engine.store.session("local", first.id)) or first)
    assert resumed.carries == "summary"
    await several(small, 30)
    await engine.close()


async def several(talk: Any, turns: int) -> None:
    for number in range(turns):
        await talk.add({"role": "user", "content": f"Step {number}: {prose(number, 20)}"})
        await talk.ready()
        sent = json.dumps(await talk.context())
        assert TASK in sent
        assert RULE in sent
        await talk.add({"role": "assistant", "content": prose(number + 100, 60)})


async def test_whoever_writes_after_a_mechanical_summary_is_shown_what_that_only_counted(tmp_path):
    talk = Talk("opal", f"sqlite:///{tmp_path / 'talks.db'}")
    await talk.open(6_000)
    talk.author.mood = "fails"
    await talk.turn(f"{TASK} {RULE}", 1, 90)
    marks: list[str] = []
    while not any(one.summary and one.summary.kind == "mechanical" for one in talk.talk.receipts):
        marks.append(f"buoy{len(marks)}.")
        await talk.turn(f"Look for {marks[-1]}", 2, 90)
    await talk.open(6_000)
    talk.author.mood = "poor"
    failed = len(talk.author.shown)
    while len(talk.author.shown) == failed:
        await talk.turn("Go on.", 2, 90)
    shown = talk.author.shown[-1]
    await talk.close()
    assert [mark for mark in marks if mark not in shown] == []
    assert TASK in shown
