import pytest

from refold.tokens.catalog import spellings


@pytest.mark.parametrize(
    "name, bare",
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4.1", "gpt-4.1"),
        ("GPT-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("openrouter/anthropic/claude-3.5-sonnet:beta", "claude-3.5-sonnet"),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-sonnet-4"),
        ("anthropic.claude-v2", "claude"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("deepseek/deepseek-r1:free", "deepseek-r1"),
        ("llama3.1:8b", "llama3.1:8b"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet"),
        ("", ""),
    ],
)
def test_the_last_spelling_is_the_model_alone(name, bare):
    assert spellings(name)[-1] == bare


def test_spellings_go_from_the_literal_to_the_bare_without_repetition():
    names = spellings("openai/GPT-4o-2024-08-06:free")
    assert names[0] == "openai/GPT-4o-2024-08-06:free"
    assert names[-1] == "gpt-4o"
    assert len(set(names)) == len(names)
    assert spellings("gpt-4o") == ("gpt-4o",)
