"""A long agent conversation to measure with: the same bytes on every machine."""

import json
import random

SYLLABLES = [
    "ba",
    "con",
    "der",
    "el",
    "fo",
    "gra",
    "hin",
    "is",
    "ka",
    "lo",
    "mer",
    "nu",
    "or",
    "pra",
    "qui",
    "res",
    "sta",
    "tion",
    "ul",
    "ver",
    "wex",
    "yon",
    "zed",
]


class Writer:
    """Makes up text. `scale` makes every text longer or shorter."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self.random, self.scale = random.Random(seed), scale
        self.words = [
            "".join(self.random.choices(SYLLABLES, k=self.random.randint(1, 3))) for _ in range(3_000)
        ]

    def prose(self, characters: int) -> str:
        text, characters = "", int(characters * self.scale)
        while len(text) < characters:
            text += " ".join(self.random.choices(self.words, k=12)).capitalize() + ". "
        return text[:characters]

    def code(self, characters: int) -> str:
        lines, size, characters = [], 0, int(characters * self.scale)
        while size < characters:
            name, argument, value = self.random.choices(self.words, k=3)
            line = f"    {name}_{argument} = self.{value}({self.random.randint(0, 9999)}, path='src/{argument}/{name}.py')"
            lines.append(line)
            size += len(line) + 1
        return "\n".join(lines)[:characters]


def turn(writer: Writer, number: int) -> list[dict]:
    """Eight messages: a question, two rounds of tools (one of them parallel), an answer."""
    one, two, three = (f"call_{number}_{at}" for at in range(3))
    return [
        {"role": "user", "content": writer.prose(250)},
        {
            "role": "assistant",
            "content": writer.prose(120),
            "tool_calls": [_call(writer, one), _call(writer, two)],
        },
        {"role": "tool", "tool_call_id": one, "content": writer.code(900)},
        {"role": "tool", "tool_call_id": two, "content": writer.code(500)},
        {"role": "assistant", "content": None, "tool_calls": [_call(writer, three)]},
        {"role": "tool", "tool_call_id": three, "content": writer.code(600)},
        {"role": "assistant", "content": writer.prose(280)},
        {"role": "user", "content": writer.prose(60)},
    ]


def _call(writer: Writer, call_id: str) -> dict:
    path = f"src/{writer.random.choice(writer.words)}.py"
    arguments = json.dumps({"path": path, "limit": writer.random.randint(10, 400)})
    return {"id": call_id, "type": "function", "function": {"name": "read_file", "arguments": arguments}}


def conversation(messages: int, seed: int = 7, scale: float = 1.0) -> list[dict]:
    """`messages` messages, a system prompt first; about 400 bytes each, times `scale`."""
    writer = Writer(seed, scale)
    out: list[dict] = [{"role": "system", "content": writer.prose(2_000)}]
    while len(out) < messages:
        out += turn(writer, len(out))
    return out[:messages]


def body(messages: int, seed: int = 7) -> bytes:
    request = {"model": "gpt-4o", "max_tokens": 4096, "messages": conversation(messages, seed)}
    return json.dumps(request, ensure_ascii=False).encode()
