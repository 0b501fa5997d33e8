"""What a store has found is told, in whatever spelling it was asked for, and of the branch that asks alone."""

from __future__ import annotations

import pytest

from refold.engine.engine import Engine
from refold.recall import answer_recall

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
