"""Pydantic AI: a capability that makes what the model sees fit, with the recall tool, and a history processor.

    agent = Agent("openai:gpt-4o-mini", capabilities=[RefoldCapability(refold.sync.Engine("sqlite:///chats.db"))])

The capability changes the request alone: the history of the run, and what `all_messages()` returns, keep everything. The history
processor is for `ProcessHistory`, which replaces the history of the run by what the model sees. A message that is sent unchanged is the
agent's own object, with its thinking parts and their signatures.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from refold.engine.recall import DESCRIPTION, NAME, START, WHAT
from refold.integrations.histories import HistoryTable, PreparedCall, SentMessage, as_usage
from refold.model.errors import MissingExtra
from refold.model.tokens import Usage
from refold.sync import Engine

try:
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import RetryModelRequest
    from pydantic_ai.messages import (
        BinaryContent,
        ImageUrl,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        RetryPromptPart,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.toolsets import FunctionToolset
except ImportError:
    raise MissingExtra("pydantic-ai", "the capability of Pydantic AI") from None

Plain = dict[str, Any]
Processor = Callable[["RunContext[Any]", "list[ModelMessage]"], Awaitable["list[ModelMessage]"]]
MARK = "refold"
"""The key in a message's `metadata` under which a replaced history says which messages it stands for."""


class RefoldCapability(AbstractCapability):
    """Compacts the messages of each request. Give it to an agent as one of its `capabilities`, the last one.

    The conversation is that of the run's `conversation_id`, which Pydantic AI keeps in the messages: runs that pass on
    `message_history` are one conversation.

    Args:
        engine: keeps the conversations, with the window and the other settings; by default in memory.
        recall: whether the model gets the recall tool.
    """

    def __init__(self, engine: Engine | None = None, *, recall: bool = True) -> None:
        self.table, self.has_recall = HistoryTable(engine), recall
        self._call: PreparedCall | None = None
        self._history: _FlatHistory | None = None

    async def for_run(self, ctx: RunContext[Any]) -> RefoldCapability:  # noqa: ARG002  # the framework's signature
        """Return a copy for one run, because a call in progress belongs to its run."""
        return copy(self)

    async def prepare_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Replace the messages of the request; after a refusal, by those of the smaller one."""
        if self._call is None or self._history is None or request_context.attempt == 1:
            self._history = _FlatHistory(request_context.messages)
            asked, settings = request_context.model_request_parameters, request_context.model_settings or {}
            instructions = [part.content for part in asked.instruction_parts or ()]
            self._call = await self.table.aprepare(
                self._history.plain,
                name=ctx.conversation_id or "",
                system=[*self._history.system, *instructions] or None,
                tools=[_tool(one) for one in (*asked.function_tools, *asked.output_tools)],
                model=request_context.model.model_name,
                max_output=settings.get("max_tokens"),
            )
        return replace(request_context, messages=self._history.shortened(self._call))

    async def after_model_request(self, ctx: RunContext[Any], *, request_context: Any, response: Any) -> Any:  # noqa: ARG002
        """Record the usage that the provider reported."""
        if self._call is not None:
            await asyncio.to_thread(self._call.record, _usage(response))
        return response

    async def on_model_request_error(
        self,
        ctx: RunContext[Any],  # noqa: ARG002  # the framework's signature
        *,
        request_context: Any,  # noqa: ARG002
        error: Exception,
    ) -> Any:
        """Attempt a smaller request after a refusal for its length."""
        if self._call is not None and await asyncio.to_thread(self._call.recover, error):
            raise RetryModelRequest from error
        raise error

    def get_toolset(self) -> Any:
        """Return the recall tool."""
        if not self.has_recall:
            return None

        async def recall(ctx: RunContext[Any], what: str, start: int = 0) -> str:
            history = _FlatHistory(ctx.messages)
            asked = {"what": what, "start": start}
            name = ctx.conversation_id or ""
            return await asyncio.to_thread(lambda: self.table.recall(asked, history.plain, name=name))

        recall.__annotations__ = {"ctx": RunContext[Any], "what": str, "start": int, "return": str}
        recall.__doc__ = f"{DESCRIPTION}\n\nArgs:\n    what: {WHAT}\n    start: {START}"
        toolset = FunctionToolset(id=MARK)
        toolset.add_function(recall, name=NAME)
        return toolset


def history_processor(engine: Engine | None = None) -> Processor:
    """Return a function for `ProcessHistory`: it replaces the history of a run by what fits.

    It does not see the agent's tools. The usage of earlier replies, which the history has, tells their size from the second
    request on; set the engine's `limit` where the first one is large.
    """
    table, calls = HistoryTable(engine), dict[str, PreparedCall]()

    async def process(ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        name, history = ctx.conversation_id or "", _FlatHistory(messages)
        mark = (messages[0].metadata or {}).get(MARK) if messages else None
        if mark:
            short = history.plain[: mark["count"]]
            place = {"name": name, "branch": mark["branch"], "size": mark["size"]}
            await asyncio.to_thread(lambda: table.note_short_form(short, **place))
        replies = [one for one in messages if isinstance(one, ModelResponse)]
        if (before := calls.get(name)) is not None and replies:
            await asyncio.to_thread(before.record, _usage(replies[-1]))
        instructions = [messages[-1].instructions] if getattr(messages[-1], "instructions", None) else []
        call = await table.aprepare(
            history.plain,
            name=name,
            system=[*history.system, *instructions] or None,
            model=ctx.model.model_name,
        )
        calls[name] = call
        if call.conversation is None or call.is_unchanged:
            return messages
        found, count = history.shortened(call), len(call.messages_after_prompt)
        mark = {"branch": call.conversation.branch, "size": call.conversation.size, "count": count}
        found[0] = replace(found[0], metadata={**(found[0].metadata or {}), MARK: mark})
        return found

    return process


class _FlatHistory:
    """The messages of a run in the chat format, and the way back. A request of Pydantic AI is one message or several: its tool
    results, and what the user said.
    """

    def __init__(self, messages: Sequence[ModelMessage]) -> None:
        self.messages = messages
        self.system: list[Plain] = []
        self._system_parts: list[SystemPromptPart] = []
        self.plain: list[Plain] = []
        self._origins: list[tuple[int, int]] = []
        """The number of the message behind each plain one, and of its part; -1 for a whole reply."""
        for at, message in enumerate(messages):
            if isinstance(message, ModelResponse):
                self._add(_plain_reply(message), at, -1)
                continue
            for number, part in enumerate(message.parts):
                if isinstance(part, SystemPromptPart):
                    self.system.append({"role": "system", "content": part.content})
                    self._system_parts.append(part)
                elif (plain := _plain_part(part)) is not None:
                    self._add(plain, at, number)

    def _add(self, plain: Plain, at: int, part: int) -> None:
        self.plain.append(plain)
        self._origins.append((at, part))

    def shortened(self, call: PreparedCall) -> list[ModelMessage]:
        """Return the messages of a call: the run's own where they are unchanged."""
        if call.conversation is None or call.is_unchanged:
            return [*self.messages]
        found = list[ModelMessage]()
        for one in call.pieces():
            at, part = self._origins[one.at] if one.at is not None else (-1, -1)
            if at < 0:
                new = _made(one.message)
            elif part < 0:
                new = _changed_reply(self.messages[at], one)
            else:
                own = self.messages[at]
                kept = own.parts[part] if one.is_same else _changed_part(own.parts[part], one.message)
                new = replace(own, parts=[kept])
            if found and isinstance(new, ModelRequest) and isinstance(found[-1], ModelRequest):
                found[-1] = replace(new, parts=[*found[-1].parts, *new.parts])  # as the framework joins them
            else:
                found.append(new)
        if self._system_parts:
            if isinstance(found[0], ModelRequest):
                found[0] = replace(found[0], parts=[*self._system_parts, *found[0].parts])
            else:
                found.insert(0, ModelRequest(parts=[*self._system_parts]))
        return found


def _plain_reply(message: ModelResponse) -> Plain:
    text = "".join(part.content for part in message.parts if isinstance(part, TextPart))
    thought = "\n".join(
        part.content for part in message.parts if isinstance(part, ThinkingPart) and part.content
    )
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    plain: Plain = {"role": "assistant", "content": text or None}
    if thought:
        plain["reasoning_content"] = thought
    if calls:
        plain["tool_calls"] = [
            {
                "id": part.tool_call_id,
                "type": "function",
                "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
            }
            for part in calls
        ]
    return plain


def _plain_part(part: Any) -> Plain | None:
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
    if isinstance(part, UserPromptPart):
        return {"role": "user", "content": _plain_content(part.content)}
    if hasattr(part, "model_response"):
        return {"role": "user", "content": part.model_response()}
    return None


def _plain_content(content: Any) -> Any:
    return content if isinstance(content, str) else [_block(item) for item in content]


def _block(item: Any) -> Plain:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, ImageUrl):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent) and item.media_type.startswith("image/"):
        data = base64.b64encode(item.data).decode()
        return {"type": "image_url", "image_url": {"url": f"data:{item.media_type};base64,{data}"}}
    text = getattr(item, "content", None) or getattr(item, "url", None)
    return {"type": "text", "text": text if isinstance(text, str) else f"[{type(item).__name__}]"}


def _made(plain: Plain) -> ModelMessage:
    """Return a message that is not the agent's, such as a summary."""
    text = _text(plain)
    if plain["role"] == "assistant":
        return ModelResponse(parts=[TextPart(text)])
    return ModelRequest(parts=[UserPromptPart(text)])


def _text(plain: Plain) -> str:
    content = plain.get("content") or ""
    return content if isinstance(content, str) else "\n".join(block.get("text", "") for block in content)


def _changed_part(part: Any, plain: Plain) -> Any:
    """Return a part with the content of a message that was shortened."""
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return replace(part, content=_text(plain))
    own = {json.dumps(_block(item)): item for item in part.content if not isinstance(item, str)}
    content = plain["content"] if isinstance(plain["content"], list) else [{"text": plain["content"]}]
    return replace(part, content=[own.get(json.dumps(block)) or block.get("text", "") for block in content])


def _changed_reply(message: ModelResponse, sent: SentMessage) -> ModelResponse:
    """Return a reply as it is sent: its own parts, less what was taken out."""
    if sent.is_same:
        return message
    calls = {call["id"]: call["function"]["arguments"] for call in sent.message.get("tool_calls") or ()}
    text, parts = _text(sent.message), list[Any]()
    for part in message.parts:
        if isinstance(part, ThinkingPart):
            if sent.message.get("reasoning_content"):
                parts.append(part)
        elif isinstance(part, TextPart):
            if text:
                parts.append(replace(part, content=text))
            text = ""
        elif isinstance(part, ToolCallPart):
            if part.tool_call_id in calls:
                is_own = part.args_as_json_str() == calls[part.tool_call_id]
                parts.append(part if is_own else replace(part, args=calls[part.tool_call_id]))
        else:
            parts.append(part)
    return replace(message, parts=parts or [TextPart(text)])


def _tool(definition: Any) -> Plain:
    function = {
        "name": definition.name,
        "description": definition.description or "",
        "parameters": definition.parameters_json_schema,
    }
    return {"type": "function", "function": function}


def _usage(response: ModelResponse) -> Usage | None:
    """Return the usage of a reply. Pydantic AI counts cached tokens as input too."""
    used = response.usage
    return as_usage(used.input_tokens, used.output_tokens, used.cache_read_tokens)
