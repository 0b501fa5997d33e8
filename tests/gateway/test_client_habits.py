"""Habits of clients in use: what they send beside the user's words, and what they send back."""

from __future__ import annotations

import json

import aiohttp
import pytest

from tests.gateway.conftest import Served

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TYPED = "Port the ferry timetable to version 7."


async def get(gate: Served, path: str):
    async with aiohttp.ClientSession() as session, session.get(f"{gate.url}{path}") as answer:
        return await answer.json()


async def post(gate: Served, path: str, fields: object, **headers: str):
    status, told, body = await gate.post(path, json.dumps(fields).encode(), **headers)
    assert status == 200, body
    return told, json.loads(body)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(
            MESSAGES,
            {
                "max_tokens": 100,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "text",
                                "text": "<system-reminder>\nAvailable agent types: general\n</system-reminder>",
                            },
                            {"type": "text", "text": TYPED},
                        ],
                    }
                ],
            },
            id="claude code",
        ),
        pytest.param(
            RESPONSES,
            {
                "input": [
                    {
                        "role": "user",
                        "content": "<environment_context>\n  <cwd>/home/ada</cwd>\n</environment_context>",
                    },
                    {"role": "user", "content": TYPED},
                ]
            },
            id="codex",
        ),
        pytest.param(
            CHAT,
            {
                "messages": [
                    {"role": "user", "content": "Generate a title for this conversation:\n"},
                    {"role": "user", "content": TYPED},
                ]
            },
            id="opencode",
        ),
    ],
)
async def test_a_title_is_what_the_user_typed(gate, path, fields):
    await post(gate, path, {"model": "m", **fields}, x_refold_conversation="talk")

    assert [one["title"] for one in await get(gate, "/refold/conversations")] == [TYPED]


@pytest.mark.parametrize(
    "asked",
    [
        "Generate a title for this conversation:",
        "Please write a 5-10 word title for the following conversation:\n\nUser: Hello",
        "Provide a concise, 5-word-or-less title for the conversation, using title case.",
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.",
    ],
)
async def test_a_request_for_a_title_gives_none_and_the_conversation_gets_its_own_later(gate, asked):
    side = {"model": "m", "messages": [{"role": "user", "content": asked}]}
    main = {"model": "m", "messages": [{"role": "user", "content": TYPED}]}
    await post(gate, CHAT, side, x_refold_conversation="talk")
    await post(gate, CHAT, main, x_refold_conversation="talk")

    assert [one["title"] for one in await get(gate, "/refold/conversations")] == [TYPED]


async def test_a_user_who_asks_for_a_title_of_something_else_gets_that_as_the_title(gate):
    asked = "Write a title for the chat window of my application."
    await post(gate, CHAT, {"model": "m", "messages": [{"role": "user", "content": asked}]})

    assert [one["title"] for one in await get(gate, "/refold/conversations")] == [asked]
