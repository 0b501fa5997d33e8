"""Write the transcripts of this folder: `python -m examples.make_transcripts`, in the root of the project.

Everything in them is our own invention, made without a clock and with seeded randomness, so the same script always writes
the same bytes. A test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from examples.sources import coding_agent, research, support_chat

FOLDER = Path(__file__).parent


def transcripts() -> dict[str, str]:
    """File name and text of every transcript."""
    return {
        "coding-agent.json": as_request(coding_agent.request()),
        "support-chat.anthropic.json": as_request(support_chat.request()),
        "research.responses.jsonl": as_lines(research.items()),
    }


def as_request(request: dict[str, Any]) -> str:
    """JSON with one message or tool to a line: a change shows as a change of those lines."""
    fields = [
        f"{dump(key)}: {as_array(value) if is_array(value) else dump(value)}"
        for key, value in request.items()
    ]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def as_array(values: list[Any]) -> str:
    return "[\n  " + ",\n  ".join(map(dump, values)) + "\n]"


def as_lines(items: list[dict[str, Any]]) -> str:
    return "".join(f"{dump(item)}\n" for item in items)


def is_array(value: object) -> bool:
    return isinstance(value, list)


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    for name, text in transcripts().items():
        (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")
        print(f"{len(text.encode()):>8,} bytes  examples/{name}")


if __name__ == "__main__":
    main()
