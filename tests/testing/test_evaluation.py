"""The adapter for evaluations: four functions that stay as they are."""

import pytest

from refold.core.presets import PRESETS
from refold.model.errors import ConfigError
from refold.testing import EvaluationAdapter

SYSTEM = [{"role": "system", "content": "You mind the ferry."}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def turn(number: int) -> list[dict]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"What of crossing {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "content": f"crossing {number} has code K{number * 7}. " * 20,
        },
        {"role": "assistant", "content": f"It has code K{number * 7}."},
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_conversation_stays_in_its_window_and_brings_back_what_left(preset):
    adapter = EvaluationAdapter(preset)
    adapter.start(SYSTEM, TOOLS, 2_000)
    for number in range(30):
        for message in turn(number):
            adapter.add(message)
        adapter.add({"role": "user", "content": "and now?"})
        sent = adapter.context()
        assert sent[0]["role"] == "system"
        assert sent[-1] == {"role": "user", "content": "and now?"}
        adapter.add({"role": "assistant", "content": "Go on."})
    assert sum(len(str(message["content"])) for message in sent) < 2_000 * 6
    assert "K7" in adapter.recall("crossing 1 code", 500)


def test_starting_again_forgets_the_conversation_before():
    adapter = EvaluationAdapter()
    adapter.start(SYSTEM, None, 4_000)
    adapter.add({"role": "user", "content": "first"})
    adapter.start([], None, 4_000)
    adapter.add({"role": "user", "content": "second"})
    assert adapter.context() == [{"role": "user", "content": "second"}]


def test_nothing_can_be_added_before_the_start():
    with pytest.raises(ConfigError, match="start"):
        EvaluationAdapter().add({"role": "user", "content": "first"})


def test_a_preset_that_there_is_not_is_refused_at_the_start():
    with pytest.raises(ConfigError):
        EvaluationAdapter("nonsense").start([], None, 4_000)


@pytest.mark.parametrize("system", ["Be brief.", {"role": "system", "content": "Be brief."}])
def test_a_system_prompt_that_is_no_list_of_messages_is_refused(system):
    """Each of its characters or keys would be a message of the user."""
    adapter = EvaluationAdapter()
    with pytest.raises(ConfigError, match="list of messages"):
        adapter.start(system, None, 4_000)
    with pytest.raises(ConfigError, match="no conversation was started"):
        adapter.context()
