"""Other libraries compacting the same conversation, if they are installed.

`pip install pydantic-ai-harness summarization-pydantic-ai langchain litellm` installs all of them. A stub
writes their summaries and answers at once, so that the library itself is measured; the conversion of the
messages is not counted.
"""

import asyncio
import os
import statistics
from collections.abc import Callable
from importlib.util import find_spec

SUMMARY = "A summary of what was said before."


def peers(
    history: list[dict], spent: Callable, evidence: Callable, *, trigger: int, keep: int
) -> dict[str, dict]:
    """Processor time of one compaction each, and whether goal, calls and results were kept."""
    found: dict[str, dict] = {}
    for package, peer in PEERS.items():
        if find_spec(package) is None:
            continue
        for name, (run, flat, repeat) in peer(history, keep, trigger).items():
            times, out = zip(*(spent(run) for _ in range(repeat)), strict=True)
            found[name] = {
                "compact_ms": statistics.median(times),
                "compact_ms_min": min(times),
                "compact_ms_max": max(times),
                "out_tokens": tokens(flat(out[-1])),
                **evidence(flat(out[-1])),
            }
    return found


def tokens(messages: list[tuple[str, list[str], list[str]]]) -> int:
    """The tokens of the text alone, with the same counter for all."""
    from refold.tokens import counter_for

    return sum(counter_for("gpt-4o").text(text) for text, _, _ in messages)


def langchain_core(history: list[dict], keep: int, _trigger: int) -> dict:
    from langchain_core.messages import convert_to_messages, trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    messages = convert_to_messages(history)

    def run() -> object:
        return trim_messages(
            messages,
            max_tokens=keep,
            token_counter=count_tokens_approximately,
            start_on="human",
            include_system=True,
        )

    return {"langchain-core trim_messages, drops": (run, _of_langchain, 7)}


def langchain(history: list[dict], keep: int, trigger: int) -> dict:
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.messages import convert_to_messages

    middleware = SummarizationMiddleware(
        FakeListChatModel(responses=[SUMMARY]), trigger=("tokens", trigger), keep=("tokens", keep)
    )
    messages = convert_to_messages(history)

    def run() -> object:
        return middleware.before_model({"messages": messages}, None)["messages"][1:]

    return {"langchain SummarizationMiddleware": (run, _of_langchain, 7)}


def _of_langchain(messages) -> list[tuple[str, list[str], list[str]]]:
    return [
        (
            str(message.content),
            [call["id"] for call in getattr(message, "tool_calls", None) or ()],
            [message.tool_call_id] if message.type == "tool" else [],
        )
        for message in messages
    ]


def litellm(history: list[dict], keep: int, _trigger: int) -> dict:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network for prices
    from litellm.utils import trim_messages

    def run() -> object:
        return trim_messages([dict(message) for message in history], model="gpt-4o", max_tokens=keep)

    def flat(messages) -> list[tuple[str, list[str], list[str]]]:
        return [
            (
                message.get("content") or "",
                [call["id"] for call in message.get("tool_calls") or ()],
                [message["tool_call_id"]] if message["role"] == "tool" else [],
            )
            for message in messages
        ]

    return {"litellm trim_messages, drops": (run, flat, 3)}


def pydantic_ai_harness(history: list[dict], keep: int, trigger: int) -> dict:
    from pydantic_ai.models.test import TestModel
    from pydantic_ai_harness.compaction import SummarizingCompaction, compact_now

    messages, model = _for_pydantic(history), TestModel(custom_output_text=SUMMARY)
    strategy = SummarizingCompaction(model=model, max_tokens=trigger, keep_tokens=keep)

    def run() -> object:
        return asyncio.run(compact_now(strategy, list(messages), model=model))

    return {"pydantic-ai-harness SummarizingCompaction": (run, _of_pydantic, 7)}


def pydantic_ai_summarization(history: list[dict], keep: int, trigger: int) -> dict:
    from pydantic_ai.models.test import TestModel
    from pydantic_ai_summarization import SummarizationProcessor

    messages = _for_pydantic(history)
    processor = SummarizationProcessor(
        TestModel(custom_output_text=SUMMARY), trigger=("tokens", trigger), keep=("tokens", keep)
    )

    def run() -> object:
        return asyncio.run(processor(list(messages)))

    return {"summarization-pydantic-ai": (run, _of_pydantic, 7)}


def _for_pydantic(history: list[dict]) -> list:
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    def convert(message: dict) -> object:
        text = message.get("content") or ""
        match message["role"]:
            case "system":
                return ModelRequest(parts=[SystemPromptPart(text)])
            case "user":
                return ModelRequest(parts=[UserPromptPart(text)])
            case "tool":
                return ModelRequest(parts=[ToolReturnPart("read_file", text, message["tool_call_id"])])
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        parts = [ToolCallPart(call["name"], call["arguments"], call_id) for call_id, call in calls]
        return ModelResponse(parts=[*([TextPart(text)] if text else []), *parts])

    return [convert(message) for message in history]


def _of_pydantic(messages) -> list[tuple[str, list[str], list[str]]]:
    out = []
    for message in messages:
        kinds = [(part.part_kind, part) for part in message.parts]
        out.append(
            (
                "\n".join(str(getattr(part, "content", "")) for _, part in kinds),
                [part.tool_call_id for kind, part in kinds if kind == "tool-call"],
                [part.tool_call_id for kind, part in kinds if kind == "tool-return"],
            )
        )
    return out


PEERS = {
    "pydantic_ai_harness": pydantic_ai_harness,
    "pydantic_ai_summarization": pydantic_ai_summarization,
    "langchain": langchain,
    "langchain_core": langchain_core,
    "litellm": litellm,
}
