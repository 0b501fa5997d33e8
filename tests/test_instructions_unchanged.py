"""The client's system prompt and tools leave as they came, whatever is done to the messages: through the library."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.presets import PRESETS
from refold.sync import Conversation
from tests.formats import CALLS, KEYS, RESULTS, Plain, answer, question

SYSTEM = "Be  kind.\n\n<summary>\r\nAnswer in caf\u00e9 French.\u2028 "
BLOCKS = [{"type": "text", "text": "Be  kind.\n"}, {"type": "text", "text": SYSTEM}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "number"}, "a": {"const": 1.0}}, "required": []}
TOOLS = {
    "chat": [{"type": "function", "function": {"parameters": SCHEMA, "name": "look", "description": " Looks\n"}}],
    "responses": [{"name": "look", "parameters": SCHEMA, "type": "function", "strict": None}, {"type": "web_search"}],
    "anthropic": [{"name": "look", "input_schema": SCHEMA}, {"type": "web_search_20250305", "name": "web_search"}],
}  # fmt: skip
PROMPTS = [("chat", SYSTEM), ("responses", SYSTEM), ("anthropic", SYSTEM), ("anthropic", BLOCKS)]
APPENDS_TO_SYSTEM = {name for name, policy in PRESETS.items() if policy.placement == "system"}
"""Presets whose summary stands after the system prompt."""
STEPS = st.lists(
    st.tuples(st.sampled_from(["say", "look", "compact", "undo"]), st.integers(1, 900)), max_size=24
)


def prompt_in(fields: Plain, name: str) -> object:
    """The system prompt as it leaves."""
    if name == "anthropic":
        return fields["system"]
    if "instructions" in fields:
        return fields["instructions"]
    first = fields[KEYS[name]][0]
    assert first["role"] in ("system", "developer")
    return first["content"]


def parts_of(prompt: object) -> list[str]:
    """The texts of a prompt, one for each block."""
    return [prompt] if isinstance(prompt, str) else [block["text"] for block in prompt]


def check(fields: Plain, name: str, preset: str, prompt: object) -> bool:
    """Is a summary behind the prompt? Whatever stands there, the prompt and the tools are as they were, cache marks apart."""
    assert json.dumps(fields["tools"]) == json.dumps(TOOLS[name])
    *before, last = parts_of(prompt)
    found = parts_of(prompt_in(fields, name))
    if found == [*before, last]:
        return False
    assert preset in APPENDS_TO_SYSTEM
    assert found[: len(before)] == before
    assert found[len(before)].startswith(last)
    return True


def steps_of(name: str, steps: list[tuple[str, int]], talk: Conversation) -> list[Plain]:
    """Everything that leaves while a conversation goes on."""
    left = list[Plain]()
    for number, (act, size) in enumerate(steps):
        talk.add(question(f"What about item {number}? " + f"It is {number * 37}. " * size))
        if act == "look":
            call = f"read_{number}"
            talk.add(CALLS[name](call, path=f"src/{number}.py"))
            talk.add(RESULTS[name](call, f"value_{number} = {number * 37}\n" * size))
        if act == "undo":
            talk.undo()
        left.append(talk.compact() if act == "compact" else talk.context())
        talk.add(answer(f"It is {number * 37}."))
    return left


def opened(name: str, preset: str, prompt: object) -> Conversation:
    return Conversation(
        "gpt-4o", window=4_000, format=name, preset=preset, system=prompt, tools=TOOLS[name], max_output=300
    )


@given(st.sampled_from(PROMPTS), st.sampled_from([*PRESETS]), STEPS)
def test_system_prompt_and_tools_leave_as_they_came(prompted, preset, steps):
    name, prompt = prompted
    for fields in steps_of(name, steps, opened(name, preset, prompt)):
        check(fields, name, preset, prompt)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name, prompt", PROMPTS, ids=["chat", "responses", "anthropic", "anthropic blocks"])
def test_they_do_so_after_several_compactions(name, prompt, preset):
    talk = opened(name, preset, prompt)
    left = steps_of(name, [("look", 60), ("say", 100)] * 6, talk)
    is_behind = [check(fields, name, preset, prompt) for fields in left]

    assert len(talk.receipts) >= 2
    assert any(is_behind) is (preset in APPENDS_TO_SYSTEM)
