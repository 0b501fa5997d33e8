"""A small corpus of our own, made from the transcripts in examples/, so that nothing here needs other people's data."""

from __future__ import annotations

import json
from pathlib import Path

from refold.model.dialect import ANTHROPIC, CHAT
from refold.model.message import Message, Reasoning
from refold.replay.recordings import Recording, read_recordings
from refold.wire import decode_transcript, encode_message

EXAMPLES = Path(__file__).parents[2] / "examples"


def coding_agent() -> dict:
    """A long session with many tool calls: some 27,000 tokens."""
    return json.loads((EXAMPLES / "coding-agent.json").read_bytes())


def support_chat() -> list[dict]:
    """A short chat with a customer, rewritten from Anthropic's format without its thinking."""
    request = decode_transcript((EXAMPLES / "support-chat.anthropic.json").read_bytes(), ANTHROPIC)
    return [item for message in (*request.system, *request.messages) for item in _as_chat(message.bare())]


def _as_chat(message: Message) -> list[dict]:
    said = message.with_parts(tuple(part for part in message.parts if not isinstance(part, Reasoning)))
    pieces = [Message("tool", (result,)) for result in message.results] or [said]
    return [json.loads(bytes(encode_message(piece, CHAT))) for piece in pieces]


def conversations() -> list[dict]:
    """Three conversations: the session, the chat with recorded times, and a session that the chat interrupts and ends."""
    session, chat = coding_agent(), support_chat()
    messages, talk = session["messages"], chat[1:]
    middle = next(at for at in range(len(messages) // 2, len(messages)) if messages[at]["role"] == "user")
    mixed = [*messages[:middle], *talk, *messages[middle:], *_renamed(talk)]
    times = [f"2025-03-01T09:{3 * at % 60:02}:00Z" for at in range(len(chat))]
    return [
        {"id": "session", "source": "coding", "messages": messages, "tools": session.get("tools")},
        {"id": "chat", "source": "support", "messages": chat, "tools": None, "times": times},
        {"id": "mixed", "source": "coding", "messages": mixed, "tools": session.get("tools")},
    ]


def _renamed(messages: list[dict]) -> list[dict]:
    """The same messages once more, under other call ids."""
    text = json.dumps(messages)
    ids = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    for call_id in ids:
        text = text.replace(f'"{call_id}"', f'"{call_id}-again"')
    return json.loads(text)


def corpus() -> bytes:
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in conversations())


def recordings(folder: Path) -> tuple[Recording, ...]:
    path = folder / "own.jsonl"
    path.write_bytes(corpus())
    return read_recordings(path)
