"""What a store has found is told, in whatever spelling it was asked for, and of the branch that asks alone."""

from __future__ import annotations

import re

import pytest

from refold.engine.engine import Engine
from refold.engine.recall import answer_recall

SAID = [
    "The build of src/app/main_page.tsx failed; C++ and C# are to blame.",
    "Bring the crème brûlée to the Café in the Große Straße, says Москва.",
]
SPELLINGS = {
    **dict.fromkeys(["src/app", "SRC", "main page", "C++", "failed the"], "#m0"),
    **dict.fromkeys(["cafe", "CAFÉ", "creme brulee", "STRASSE", "grosse", "МОСКВА"], "#m2"),
}


async def began(store, *, name: str = "chat"):
    talk = await Engine(store, window=4_000, max_output=200).conversation(name, model="gpt-4o")
    await talk.add(SAID[0], {"role": "assistant", "content": "I see."}, SAID[1])
    return talk


@pytest.mark.feature("N2")
async def test_what_a_search_finds_it_shows(store):
    talk = await began(store)
    for query, handle in SPELLINGS.items():
        (found, *_) = await Engine(store).search(query)
        assert (found.handle, found.text) == (handle, f"{handle} user: {SAID[handle == '#m2']}")
        assert found.text in await talk.recall(query), query


async def test_what_is_spelled_so_comes_with_what_is_spelled_otherwise(store):
    talk = await began(store)
    await talk.add({"role": "assistant", "content": "Which cafe?"})
    text = await talk.recall("cafe zebra")
    assert text.splitlines()[0] == "#m3 assistant: Which cafe?"
    assert f"#m2 user: {SAID[1]}" in text


async def test_the_answer_stays_within_its_tokens(store):
    talk = await began(store)
    for number in range(30):
        await talk.add({"role": "assistant", "content": f"A café, number {number}.\n" * 9}, f"cafe {number}")
    counter = talk.state.folded.shown.counter
    for most in (10, 60, 300, 1_000):
        text = await talk.recall("cafe zebra", max_tokens=most)
        assert 0 < counter.text(text) <= most


async def test_words_that_every_text_has_are_no_answer(store):
    talk = await began(store)
    assert await talk.recall("the walrus of the north") == ""
    assert (await answer_recall(talk, {"what": "the walrus"})).startswith("error: nothing that was said")


async def test_a_place_in_a_text_too_long_to_be_indexed_whole_is_shown(store):
    talk = await began(store)
    filler = "nothing to see on this line\n" * 6_000
    await talk.add({"role": "assistant", "content": f"{filler}the naïve_walrus swims\n{filler}"}, "Go on.")
    (found,) = await Engine(store).search("NAIVE walrus")
    assert "the naïve_walrus swims" in found.text
    assert "the naïve_walrus swims" in await talk.recall("NAIVE walrus")


async def test_other_branches_do_not_crowd_out_what_a_branch_has(store):
    engine = Engine(store, window=4_000, max_output=200)
    talk = await began(store)
    await talk.add({"role": "assistant", "content": "The zebra, whose name is Marty, lives in stable nine."})
    fork = await engine.conversation("chat", branch=await engine.fork("chat", 3))
    for number in range(45):
        await fork.add(f"zebra {number}", {"role": "assistant", "content": "zebra"})
    assert (await talk.recall("zebra")).startswith("#m3 assistant: The zebra, whose name is Marty")
    assert "Marty" not in await fork.recall("zebra")
    assert (await fork.recall("cafe")).startswith("#m2 user: "), "what it shares is its own"


def handles(text: str) -> list[str]:
    return re.findall(r"^#m[0-9]+", text, re.MULTILINE)


@pytest.mark.feature("N2")
async def test_recall_and_the_tool_follow_the_ranking_of_search(store):
    engine = Engine(store, window=100_000)
    talk = await engine.conversation("chat", model="gpt-4o")
    for number in range(12):
        filler = f"Number {number} of the list is about something else. " * (number % 4)
        words = ("harbour", "painted boats", "the harbour master paints", "boat", "a painter")[number % 5]
        await talk.add(f"{filler}{words}", {"role": "assistant", "content": f"{words} {filler}"})
    for query in ("painted boats harbour", "harbour master", "boat", "what did the painter paint"):
        ranked = [hit.handle for hit in await engine.search(query, name="chat", limit=50)]
        shown = handles(await talk.recall(query))
        assert len(shown) > 3
        assert shown == ranked[: len(shown)], query
        told = handles(await answer_recall(talk, {"what": query}))
        assert told == ranked[: len(told)], query


CALLS = {
    "chat": lambda words, said: [
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "recall", "arguments": f'{{"what": "{words}"}}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": said},
    ],
    "responses": lambda words, said: [
        {
            "type": "function_call",
            "call_id": "a",
            "name": "refold_recall",
            "arguments": f'{{"what": "{words}"}}',
        },
        {"type": "function_call_output", "call_id": "a", "output": said},
    ],
    "anthropic": lambda words, said: [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "a", "name": "mcp__refold__recall", "input": {"what": words}}
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": said}]},
    ],
}


@pytest.mark.parametrize("wire", CALLS)
@pytest.mark.parametrize("is_old", [False, True], ids=["now", "indexed before"])
async def test_an_original_is_found_and_not_the_recalls_of_it(store, monkeypatch, wire, is_old):
    engine = Engine(store, window=100_000, format=wire)
    talk = await engine.conversation("chat", model="gpt-4o")
    said = "The night boat from Vik leaves at 02:30."
    await talk.add(said, {"role": "assistant", "content": "Noted."})
    if is_old:
        monkeypatch.setattr("refold.stores.search.is_recall", lambda part: False)
    for words in ("night boat Vik", "#m0", "boat leaves"):
        answer = await answer_recall(talk, {"what": words})
        await talk.add("When?", *CALLS[wire](words, answer), {"role": "assistant", "content": "At night."})
    for query in ("night boat Vik", "boat", "night boat", '"night boat"', "02:30"):
        found = await engine.search(query)
        assert found[0].handle == "#m0", query
        assert [one.text for one in found if said in one.text] == [f"#m0 user: {said}"], query
        assert (await talk.recall(query)).startswith("#m0 user:"), query
        assert (await talk.recall(query)).count(said) == 1, query
    if not is_old:
        assert await engine.search("recall") == []


async def test_a_tool_of_the_client_that_reads_a_file_about_recalls_is_found(store):
    engine = Engine(store, window=100_000)
    talk = await engine.conversation("chat", model="gpt-4o")
    call, result = CALLS["chat"]("x", "line 1\nFound, with handles:\n#m0, from the user:\nzebra")
    call["tool_calls"][0]["function"] = {"name": "recall", "arguments": '{"id": "walrus"}'}
    await talk.add("Read it.", call, result)
    assert [one.handle for one in await engine.search("zebra")] == ["#m2"]
    assert [one.handle for one in await engine.search("walrus")] == ["#m1"]


async def test_another_conversation_is_never_searched_by_recall(store):
    talk = await began(store)
    await began(store, name="other")
    assert await talk.recall("cafe in:other") == ""
    assert await talk.search("cafe in:other") == ""
    assert "#m2" in await talk.recall("cafe in:chat")
    assert "leave `in:` out" in await answer_recall(talk, {"what": "cafe in:other"})


async def test_a_field_that_nothing_meets_finds_nothing(store):
    talk = await began(store)
    for query in ("cafe -straße", 'cafe "no such words"', "cafe from:tool", "cafe before:2001"):
        assert await talk.recall(query) == "", query


async def test_the_model_is_told_about_a_date_that_there_is_not(store):
    talk = await began(store)
    for field in ("after:2026-13", "before:2026-02-31", "after:2026/05/01"):
        told = await answer_recall(talk, {"what": f"cafe {field}"})
        assert "#m2" in told
        assert f"[{field}: there is no such date" in told
