"""The question before a dangerous call shows the whole call."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold.model.message import ToolCall
from refold.terminal.dialogue import Questions


async def question_about(arguments: str) -> str:
    questions = Questions()
    asking = asyncio.create_task(questions.confirm(ToolCall("c1", "delete_file", arguments)))
    text = await questions.asked.get()
    assert questions.answer("n")
    assert not await asking
    return text


@pytest.mark.parametrize("is_pretty", [False, True])
async def test_no_argument_is_hidden_by_the_others(is_pretty):
    given = {
        "path": "/home",
        "note": "\n" * 99 + "\x1b[2J\u202e\u200b\x9b" + "long " * 500,
        "is_forced": True,
    }
    text = await question_about(json.dumps(given, indent=4 if is_pretty else None, ensure_ascii=False))

    call, question = text.split("\n")
    note = "\\n" * 99 + "\\u001b[2J\\u202e\\u200b\\u009b" + "long " * 500
    assert call == f'the model wants to run delete_file(path="/home", note="{note}", is_forced=true)'
    assert question == "run it? y or n: "


async def test_arguments_that_are_no_json_are_shown_as_they_are_on_one_line():
    text = await question_about('{"path":\n\r\t"/home')

    assert text.startswith('the model wants to run delete_file({"path":\\n\\r\\t"/home)\nrun it?')
