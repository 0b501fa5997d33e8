"""In the smallest windows a long newest message is cut so far that a note about the others fits beside it."""

from __future__ import annotations

import pytest

import refold


@pytest.mark.parametrize("preset", ["refold", "lis", "picoclaw", "opal", "llms", "librechat"])
@pytest.mark.parametrize("window", [256, 280, 300, 320, 360])
@pytest.mark.parametrize("turns", [1, 3])
def test_a_conversation_goes_on(preset, window, turns):
    talk = refold.sync.Conversation(
        "m", window=window, max_output=window // 3, system="Rule of the house. " * 7, preset=preset
    )
    for at in range(turns):
        talk.add({"role": "user", "content": f"q{at} " + "tern auk " * 100})
        talk.add({"role": "assistant", "content": "word " * 100})
    talk.add("last " + "auk " * 50)
    sent = talk.context()["messages"]

    assert sent[-1]["content"].startswith("last auk")
    assert "q0 tern" in "".join(str(one["content"]) for one in sent), "the task is told"
