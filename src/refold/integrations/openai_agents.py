"""OpenAI Agents SDK: a session that keeps every item and returns a history that fits.

    session = RefoldSession("support-42", refold.sync.Engine("sqlite:///chats.db"))
    await Runner.run(agent, "Where is my order?", session=session, run_config=session.run_config(), hooks=session.hooks())

A session is the conversation of its id, in the format of Responses. `get_items()` returns the compacted history, and `get_items(limit)`
the last items as they were added. The input filter of `run_config` does the same before every model call of a run, where the SDK has saved the
calls and results of the run so far.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from refold.engine.damage import read_run
from refold.engine.recall import DESCRIPTION, NAME, START, WHAT
from refold.integrations.histories import as_usage
from refold.model.errors import InvalidWindow, MissingExtra
from refold.sync import Conversation, Engine, answer_recall
from refold.wire.sdk import plain_message

try:
    from agents import FunctionTool, RunConfig, RunHooks, function_tool
    from agents.run import CallModelData, ModelInputData
except ImportError:
    raise MissingExtra("openai-agents", "the session of the OpenAI Agents SDK") from None

Item = dict[str, Any]


class RefoldSession:
    """The items of one session, kept in an engine.

    Args:
        session_id: the name of the conversation.
        engine: keeps the conversations, with the window and the other settings; by default in memory, for this session alone.
    """

    def __init__(self, session_id: str, engine: Engine | None = None) -> None:
        self.session_id, self.session_settings = session_id, None
        self.engine = engine or Engine("memory:")
        self._opened: Conversation | None = None
        self._lock = threading.RLock()

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the history that fits; with a limit, the last items as they were added."""
        return await asyncio.to_thread(self._items, limit)

    async def add_items(self, items: list[Item]) -> None:
        """Add items to the conversation."""
        if items:
            await asyncio.to_thread(self._act, lambda talk: talk.add(*items))

    async def pop_item(self) -> Item | None:
        """Take the last item back, and return it. The conversation goes on in a branch without it."""
        return await asyncio.to_thread(self._pop)

    async def clear_session(self) -> None:
        """Delete the conversation with all its items."""
        await asyncio.to_thread(self._clear)

    def run_config(self, config: RunConfig | None = None) -> RunConfig:
        """Return a configuration of a run whose model calls are compacted one by one. A filter of your own runs first."""
        config = config or RunConfig()
        before = config.call_model_input_filter

        async def compact(data: CallModelData[Any]) -> ModelInputData:
            if before is not None:
                found = before(data)
                data.model_data = await found if hasattr(found, "__await__") else found
            return await asyncio.to_thread(self._compacted, data)

        config.call_model_input_filter = compact
        return config

    def hooks(self) -> RunHooks[Any]:
        """Return hooks that record the usage of every model call: the counts become exact."""
        session = self

        class Hooks(RunHooks[Any]):
            async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:  # noqa: ARG002
                await session.record(response.usage)

        return Hooks()

    async def record(self, usage: Any) -> None:
        """Record the usage of a model call, as the SDK reports it."""
        fields = as_usage(usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens)
        if fields is not None:
            await asyncio.to_thread(self._act, lambda talk: talk.record(fields))

    def recall_tool(self) -> FunctionTool:
        """Return the recall tool of this session, for the agent's tools."""

        async def recall(what: str, start: int = 0) -> str:
            asked = {"what": what, "start": start}
            return await asyncio.to_thread(self._act, lambda talk: answer_recall(talk, asked))

        recall.__annotations__ = {"what": str, "start": int, "return": str}
        recall.__doc__ = f"{DESCRIPTION}\n\nArgs:\n    what: {WHAT}\n    start: {START}"
        return function_tool(recall, name_override=NAME, strict_mode=False)

    @property
    def conversation(self) -> Conversation:
        """The conversation behind the session."""
        with self._lock:
            if self._opened is None:
                self._opened = self.engine.conversation(self.session_id, format="responses")
            return self._opened

    def _act(self, act: Any) -> Any:
        with self._lock:
            return act(self.conversation)

    def _items(self, limit: int | None) -> list[Item]:
        with self._lock:
            if limit is not None:
                return self._last(limit)
            if not self.conversation.size:
                return []
            try:
                return [*self.conversation.context()["input"]]
            except InvalidWindow:  # a call whose result comes next: nothing can be left out now
                return self._last(self.conversation.size)

    def _last(self, count: int) -> list[Item]:
        talk, store = self.conversation, self.engine.store
        talk.load()
        if count <= 0 or not talk.size:
            return []
        head = store.head(self.engine.owner, talk.id, talk.branch)
        stored = read_run(store.messages(head, max(0, talk.size - count)), head)
        dialect = talk.state.frame.fixed.dialect
        return [plain_message(one.message, dialect) for one in stored if one is not None]

    def _pop(self) -> Item | None:
        with self._lock:
            last = self._last(1)
            if not last:
                return None
            talk = self.conversation
            branch = self.engine.fork(talk.id, talk.size - 1, branch=talk.branch)
            self._opened = self.engine.conversation(talk.id, branch=branch, format="responses")
            return last[0]

    def _clear(self) -> None:
        with self._lock:
            self.engine.delete(self.conversation.id)
            self._opened = None

    def _compacted(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the input of a model call from the conversation, if that ends where the input does."""
        given = data.model_data
        with self._lock:
            if not given.input or not _is_same(self._last(1), given.input[-1:]):
                return given
            talk = self.conversation
            talk.set_system(given.instructions or None)
            talk.set_tools([_tool(one) for one in data.agent.tools if isinstance(one, FunctionTool)])
            try:
                items = talk.context()["input"]
            except InvalidWindow:
                return given
        return ModelInputData(input=[*items], instructions=given.instructions)


def _is_same(stored: Sequence[Item], given: Sequence[Any]) -> bool:
    """Whether the last item that was kept is the last one of the input: the SDK may leave out ids and add defaults."""
    keys = ("type", "role", "content", "call_id", "output", "name", "arguments")
    plain = [dict(one) for one in given]
    return [
        [one.get(key) for key in keys if key != "type" or one.get(key) != "message"] for one in stored
    ] == [[one.get(key) for key in keys if key != "type" or one.get(key) != "message"] for one in plain]


def _tool(tool: FunctionTool) -> Item:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.params_json_schema,
        "strict": tool.strict_json_schema,
    }
