"""LangChain and LangGraph: a middleware that makes what the model sees fit, with the recall tool.

    agent = create_agent(model, tools=tools, middleware=[RefoldMiddleware(refold.sync.Engine("sqlite:///chats.db"))])

The state of the agent, and with it every checkpoint, keeps all messages: only the request is compacted. With `trims_state` the state
takes over what the model sees, so that checkpoints stay small, and the originals are in the engine's store. A thread of LangGraph is
the conversation of its id; going back to an earlier checkpoint continues in a branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from refold.engine.recall import DESCRIPTION, NAME, START, WHAT
from refold.integrations.histories import HistoryTable, PreparedCall, as_usage
from refold.model.errors import MissingExtra
from refold.model.tokens import Usage
from refold.sync import Engine

try:
    from langchain.agents.middleware import (
        AgentMiddleware,
        ExtendedModelResponse,
        ModelRequest,
        ModelResponse,
    )
    from langchain.tools import ToolRuntime
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage
    from langchain_core.messages.utils import convert_to_messages, convert_to_openai_messages
    from langchain_core.tools import StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.config import get_config
    from langgraph.graph.message import REMOVE_ALL_MESSAGES
    from langgraph.types import Command
except ImportError:
    raise MissingExtra("langchain", "the middleware of LangChain") from None

MARK = "refold"
"""The key in a message's `additional_kwargs` under which a trimmed state says which messages it stands for."""


class RefoldMiddleware(AgentMiddleware):
    """Compacts the messages that the model sees. Give it to `create_agent`.

    Args:
        engine: keeps the conversations, with the window and the other settings; by default in memory.
        recall: whether the model gets the recall tool.
        trims_state: whether the state of the agent is replaced by what the model sees, after each compaction.
    """

    def __init__(
        self, engine: Engine | None = None, *, recall: bool = True, trims_state: bool = False
    ) -> None:
        super().__init__()
        self.table, self.trims_state = HistoryTable(engine), trims_state
        self.tools = [self._recall_tool()] if recall else []

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> Any:
        """Send a compacted request, and a smaller one as long as the provider refuses it as too long."""
        call = self._prepare(request)
        while True:
            try:
                reply = handler(self._shortened(request, call))
            except Exception as error:
                if not call.recover(error):
                    raise
                continue
            call.record(_usage(reply))
            return self._trimmed(request, reply, call)

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Do the same in an async agent."""
        call = await asyncio.to_thread(self._prepare, request)
        while True:
            try:
                reply = await handler(self._shortened(request, call))
            except Exception as error:
                if not await asyncio.to_thread(call.recover, error):
                    raise
                continue
            await asyncio.to_thread(call.record, _usage(reply))
            return self._trimmed(request, reply, call)

    def _trimmed(self, request: ModelRequest, reply: ModelResponse, call: PreparedCall) -> Any:
        """Return the reply; with `trims_state`, after a compaction, together with the new messages of the state."""
        name = _thread()  # without one there is no place to find the originals again
        if not (self.trims_state and name and call.conversation) or call.is_unchanged:
            return reply
        kept = _restored(request.messages, call)
        mark = {"branch": call.conversation.branch, "size": call.conversation.size, "count": len(kept)}
        first = kept[0]
        kept[0] = first.model_copy(update={"additional_kwargs": {**first.additional_kwargs, MARK: mark}})
        update = {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept, *reply.result]}
        return ExtendedModelResponse(reply, Command(update=update))

    def _prepare(self, request: ModelRequest) -> PreparedCall:
        name, prompt = _thread(), request.system_message
        return self.table.prepare(
            self._given(request.messages, name),
            name=name,
            system=[_plain(prompt)] if prompt else None,
            tools=[convert_to_openai_tool(one) for one in request.tools],
            model=str(getattr(request.model, "model_name", "") or getattr(request.model, "model", "")),
            max_output=request.model_settings.get("max_tokens") or getattr(request.model, "max_tokens", None),
        )

    def _given(self, messages: Sequence[BaseMessage], name: str) -> list[dict[str, Any]]:
        """Return the messages in the chat format. Those of a trimmed state are made known to the table first."""
        given = [_plain(one) for one in messages]
        mark = messages[0].additional_kwargs.get(MARK) if name and messages else None
        if mark:
            short = given[: mark["count"]]
            self.table.note_short_form(short, name=name, branch=mark["branch"], size=mark["size"])
        return given

    def _shortened(self, request: ModelRequest, call: PreparedCall) -> ModelRequest:
        if call.conversation is None or call.is_unchanged:
            return request
        prompt = [one for one in call.messages if one["role"] in ("system", "developer")]
        system = request.system_message
        if prompt and (system is None or [_plain(system)] != prompt):
            system = SystemMessage("\n\n".join(str(one["content"]) for one in prompt))
        return request.override(messages=_restored(request.messages, call), system_message=system)

    def _recall_tool(self) -> StructuredTool:
        def recall(what: str, runtime: ToolRuntime, start: int = 0) -> str:
            messages = runtime.state["messages"]
            name = (runtime.config.get("configurable") or {}).get("thread_id") or ""
            given = self._given(messages, name)
            return self.table.recall({"what": what, "start": start}, given, name=name)

        recall.__annotations__ = {"what": str, "runtime": ToolRuntime, "start": int, "return": str}
        recall.__doc__ = f"{DESCRIPTION}\n\nArgs:\n    what: {WHAT}\n    start: {START}"
        return StructuredTool.from_function(recall, name=NAME, parse_docstring=True)


def _thread() -> str:
    """Return the id of LangGraph's thread, which names the conversation; empty without a checkpointer."""
    try:
        found = (get_config().get("configurable") or {}).get("thread_id")
    except RuntimeError:  # outside of a graph
        return ""
    return str(found or "")


def _plain(message: BaseMessage) -> dict[str, Any]:
    found: dict[str, Any] = convert_to_openai_messages([message])[0]
    return found


def _restored(messages: Sequence[BaseMessage], call: PreparedCall) -> list[BaseMessage]:
    """Return the messages of a call: the agent's own where they are unchanged, with their ids, thinking and metadata."""
    found = list[BaseMessage]()
    for piece in call.pieces():
        if piece.at is None:
            found += convert_to_messages([piece.message])
        elif piece.is_same:
            found.append(messages[piece.at])
        else:
            own, changed = messages[piece.at], convert_to_messages([piece.message])[0]
            update = {"content": changed.content}
            if isinstance(own, AIMessage) and isinstance(changed, AIMessage):
                update["tool_calls"] = changed.tool_calls
            found.append(own.model_copy(update=update))
    if not found:  # never: a window has at least the last message
        return [HumanMessage("continue")]
    return found


def _usage(reply: ModelResponse) -> Usage | None:
    """Return the usage of a reply. LangChain counts cached tokens as input too."""
    used = next((one.usage_metadata for one in reply.result if isinstance(one, AIMessage)), None)
    if not used:
        return None
    cached = (used.get("input_token_details") or {}).get("cache_read")
    return as_usage(used["input_tokens"], used["output_tokens"], cached)
