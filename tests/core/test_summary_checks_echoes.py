import pytest

from refold.core.summary_checks import continues, ends_open, is_call, is_echo, without_thoughts

LONG = "this is a very long line of output that nobody would ever want to read again, let alone pay for, in any summary"


@pytest.mark.feature("N3")
def test_copied_paragraphs_are_an_echo_and_quotes_are_not():
    told = f"before\n{LONG} one\n{LONG} two\n{LONG} three\nafter"
    echo = f"{LONG} one\n{LONG} two\n{LONG} three"
    assert is_echo(echo, told)
    assert is_echo("\n".join(f"Assistant: {line}" for line in echo.splitlines()), told)
    assert not is_echo(f"{LONG} one\nSo it was.", told)
    assert not is_echo("\n".join(f"> {line}" for line in echo.splitlines()), told)
    assert not is_echo(f"```\n{echo}\n```", told)
    assert not is_echo(echo, "something else")


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a</think>b", "b"),
        ("<THINKING>\na\n</THINKING>\n\nb", "b"),
        ("a\n</think>\nb", "b"),
        ("<think>a", ""),
        ("It prints `</think>` and <think> tags.", "It prints `</think>` and <think> tags."),
        ("b <think>a</think>", "b <think>a</think>"),
    ],
)
def test_reasoning_is_taken_out(text, left):
    assert without_thoughts(text) == left


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "[User #m4] Go on.",
        "Done.\n[User #m4] Go on.\n[Assistant calls read #m5] {}",
        "[Failed result #m4.2] boom",
        "User: can you do it?\nAssistant: I will.",
        "用户：请修复。\n助手：我来修复。",
        "Okay, I'll fix it now.",
        "Let me check the tests.",
        "Konnte.\n<|im_end|>",
        "わかりました。修正します。",
    ],
)
def test_what_goes_on_is_no_summary(text):
    assert continues(text)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "- [User #m4] wants the login.\n- [Result #m5] failed.",
        "See [User #m4].",
        "User: wants it fixed.\nAssistant: fixed it.",
        "Let me summarize: the login was fixed.",
        "Sure, I'll write the checkpoint.\n## Goal\nFix it.",
        "I fixed the login; I'll write the docs next.",
        "The template prints <|im_end|> at the end.",
    ],
)
def test_a_report_of_who_said_what_is_one(text):
    assert not continues(text)


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('{"name": "read", "arguments": {}}', True),
        ('[{"type": "tool_use", "input": {}}]', True),
        ("<tool_call>read</tool_call>", True),
        ("[TOOL_CALLS] read", True),
        ('{"name": "config", "value": 1}', False),
        ("The parser reads <tool_call> blocks.", False),
        ("It failed on:\n```\n<tool_call>\n```", False),
        (f"{LONG}\n{LONG}\n<tool_call> was the text it stumbled over.", False),
    ],
)
def test_a_call_written_out(text, is_one):
    assert is_call(text) is is_one


def test_a_text_that_stops_in_the_middle():
    assert ends_open("a, b,")
    assert ends_open("```\ncode")
    assert not ends_open("- a,", copied=["- a,"])
    assert not ends_open("```\ncode\n```")
    assert not ends_open("- a point without an end")
