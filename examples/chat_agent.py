"""An agent in forty lines: two tools, a conversation in a file, and replies that stream.

    python -m examples.chat_agent openai:gpt-4o-mini "Which module of src/refold is the longest?"

Run it again with another question: the conversation goes on. `refold chat agent --tools examples/chat_agent.py
--store sqlite:///agent.db` opens the same one in a terminal, with the same tools.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import refold


@refold.tool(idempotent=True)
def list_files(folder: str) -> list[str]:
    """List the files below a folder, with their sizes in bytes."""
    return [f"{one} {one.stat().st_size}" for one in sorted(Path(folder).rglob("*")) if one.is_file()]


@refold.tool(dangerous=True)
def write_file(path: str, text: str) -> str:
    """Write a file. The user is asked first."""
    Path(path).write_text(text, encoding="utf-8")
    return f"{len(text)} characters written"


def confirm(call: refold.ToolCall) -> bool:
    return input(f"\nrun {call.name} {call.arguments}? y or n: ") == "y"


async def ask(model: str, question: str, store: str = "sqlite:///agent.db") -> None:
    async with refold.Engine(store) as engine:
        name = model.partition("@")[0].rpartition(":")[2]  # of openai:NAME or NAME@URL
        talk = await engine.conversation("agent", model=name, summariser=model)
        async with refold.Chat(talk, model, tools=[list_files, write_file], confirm=confirm) as chat:
            async for event in chat.send(question):
                match event:
                    case refold.TextDelta():
                        print(event.text, end="", flush=True)
                    case refold.ToolStarted() | refold.Notice():
                        print(f"\n[{getattr(event, 'name', '') or event.text}]", file=sys.stderr)
                    case refold.Done(status="failed"):
                        sys.exit(f"\nerror: {event.problem}")


if __name__ == "__main__":
    asyncio.run(ask(*sys.argv[1:3]))
