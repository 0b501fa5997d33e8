"""A bicycle shop's support chat as an Anthropic Messages request: signed thinking, tools, a photo, a failed lookup.

The signatures are made up. They have the shape of real ones, and no provider would accept them.
"""

from __future__ import annotations

import base64
import json
from typing import Any

PHOTO = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAJ0lEQVR42i3LQQkAAAzDwMipiPpXUTGDEfK5T1jzUUUUVURRRRTeO4zmEiFSPs04AAAAAElFTkSuQmCC"
"""A grey checkerboard of eight by eight pixels with a bright line across it."""


def request() -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 4096,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "tools": TOOLS,
        "messages": MESSAGES,
    }


def thinking(number: int, text: str) -> dict[str, Any]:
    fake = base64.b64encode(f"example signature {number:02}, not a real one".encode()).decode()
    return {"type": "thinking", "thinking": text, "signature": fake}


def sealed(number: int) -> dict[str, Any]:
    fake = base64.b64encode(f"example of redacted thinking {number:02}, nothing inside".encode()).decode()
    return {"type": "redacted_thinking", "data": fake}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str, tool: str, **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def result(name: str, content: object, **extra: object) -> dict[str, Any]:
    body = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"type": "tool_result", "tool_use_id": name, "content": body, **extra}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


SYSTEM = """You answer customers of Sykkelstua, a small shop for bicycle parts.

Be warm and short. Look things up instead of guessing. You may promise a replacement or a refund of up to 100 euros when a
part failed within two years; above that, hand over to a person. Never ask for card numbers."""

PHOTO_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PHOTO}}

TOOLS = [
    {
        "name": "find_order",
        "description": "Find an order by its number.",
        "input_schema": {
            "type": "object",
            "properties": {"number": {"type": "string", "description": "Such as S-20417."}},
            "required": ["number"],
        },
    },
    {
        "name": "check_stock",
        "description": "How many pieces of an article are in stock.",
        "input_schema": {
            "type": "object",
            "properties": {"article": {"type": "string"}},
            "required": ["article"],
        },
    },
    {
        "name": "create_return",
        "description": "Open a return. Answers with the return number and a link to the label.",
        "input_schema": {
            "type": "object",
            "properties": {
                "order": {"type": "string"},
                "article": {"type": "string"},
                "remedy": {"type": "string", "enum": ["replacement", "refund"]},
            },
            "required": ["order", "article", "remedy"],
        },
    },
]

ORDER = {
    "number": "S-20417",
    "ordered": "2025-02-11",
    "delivered": "2025-02-14",
    "items": [
        {"article": "CR-172", "name": "Crank arm, left, 172.5 mm", "euros": 64.0, "pieces": 1},
        {"article": "BB-68", "name": "Bottom bracket, 68 mm", "euros": 31.5, "pieces": 1},
    ],
    "ship_to": {"country": "NO", "postcode": "9990"},
}

MESSAGES = [
    {
        "role": "user",
        "content": "Hi! My left crank arm cracked today, near the pedal. Order S-20471. Is that covered?",
    },
    assistant(
        thinking(1, "The customer gives an order number. I look it up before I say anything about cover."),
        text("I am sorry to hear that, and I hope you did not fall. Let me look at your order."),
        use("toolu_01Ekq7example0001", "find_order", number="S-20471"),
    ),
    user(result("toolu_01Ekq7example0001", "no order with this number", is_error=True)),
    assistant(
        thinking(
            2, "Not found. Two digits may be swapped, but I should not try numbers: other orders are private."
        ),
        text(
            "I cannot find S-20471. Could you check the number? It is in the subject of our confirmation. A photo helps too."
        ),
    ),
    user(text("Oh, sorry: S-20417. Here is the crack."), PHOTO_BLOCK),
    assistant(
        thinking(
            3,
            "I fetch the order and the stock of the crank arm at the same time. CR-172 is the left 172.5 mm arm.",
        ),
        use("toolu_01Ekq7example0002", "find_order", number="S-20417"),
        use("toolu_01Ekq7example0003", "check_stock", article="CR-172"),
    ),
    user(
        result("toolu_01Ekq7example0002", ORDER),
        result("toolu_01Ekq7example0003", {"article": "CR-172", "pieces": 3, "next_delivery": "2025-09-02"}),
    ),
    assistant(
        thinking(
            4, "Delivered in February 2025, within two years; 64 euros, below 100. I may offer both remedies."
        ),
        text(
            "Thank you, the bright line in your photo is clear. You got the arm on 14 February 2025, so it is covered. "
            "We have three in stock. Would you like a new one, or the 64 euros back?"
        ),
    ),
    user(
        text(
            "A new one please. Same length, 172.5. And can it be here before the 21st? We ride the coast then."
        )
    ),
    assistant(
        sealed(1),
        thinking(
            5,
            "Open the return as a replacement. I know nothing about shipping times, so I must not promise a date.",
        ),
        use(
            "toolu_01Ekq7example0004",
            "create_return",
            order="S-20417",
            article="CR-172",
            remedy="replacement",
        ),
    ),
    user(
        result(
            "toolu_01Ekq7example0004",
            {
                "return": "R-3308",
                "label": "https://sykkelstua.example/r/3308",
                "ships": "today",
                "to": "9990",
            },
        )
    ),
    assistant(
        thinking(6, "It ships today. I can say that, and that I cannot promise the day of arrival."),
        text(
            "Done: your new arm (172.5 mm) leaves today under R-3308. I cannot promise a day, but your first parcel took "
            "three. The label for the cracked arm is at https://sykkelstua.example/r/3308; there is no hurry with that."
        ),
    ),
    user(text("Great. What was the torque for the bolt again? And does the bottom bracket need anything?")),
]
