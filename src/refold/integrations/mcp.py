"""Stored conversations as an MCP server: any assistant that speaks the Model Context Protocol can look things up in them.

A client can read, and nothing else. The three tools list conversations, search messages and recall the original behind a handle. The
owner is fixed when the server is started; no tool takes one. The store is opened at the first question, so that its errors reach
the client, and a server that was started before the store exists works as soon as it does.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from io import BufferedReader, RawIOBase, TextIOWrapper
from typing import Annotated, Any, BinaryIO, ParamSpec, TypeAlias

from refold import __version__
from refold.core.search.query import parse_query, tell_mistakes
from refold.core.tool_use import FOUND
from refold.engine.engine import Engine, FoundMessage
from refold.engine.recall import HANDLES, START, read_arguments, read_handle, room, tell
from refold.model.errors import ConfigError, MissingExtra, NotFound, RefoldError
from refold.ports.records import Head, Listed

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations
    from pydantic import Field
except ImportError:  # also where there is an older one, which has no MCPServer
    raise MissingExtra("mcp", "an MCP server") from None

_log = logging.getLogger("refold")

P = ParamSpec("P")

MAX_TOKENS = 2_000
"""Of one answer. Whoever asks has a window of unknown size; what is cut can be asked for."""
TITLE = 100
"""Characters of a title: it is there to tell conversations apart."""

INSTRUCTIONS = (
    "Conversations that Refold keeps. What left a model's context is still here, word for word. Use list_conversations to see "
    "which there are, search to find what was said about something, and recall to open one of the handles that a search or a "
    "context names. " + HANDLES
)
LIST = "The conversations that are kept, the latest first, each with its name, size, time and title."
SEARCH = (
    "Finds what was said in kept conversations: passages that hold the words, best first, each with its conversation and its "
    "handle. Give names, paths, numbers or phrases that were used then."
)
RECALL = (
    "The original behind a handle, word for word, as it was said in a conversation, whatever was shortened or summarised since. "
    + HANDLES
)

ConversationName: TypeAlias = Annotated[
    str, Field(description="The name of a conversation, as list_conversations gives it.")
]
Anywhere: TypeAlias = Annotated[
    str, Field(description="Only in the conversation of this name. Default: in all of them.")
]
HandleText: TypeAlias = Annotated[str, Field(description="Such as #m12, #m12.2 or #s0.")]
BranchArgument: TypeAlias = Annotated[
    str, Field(description="Where a search names a branch beside the conversation: that branch.")
]
Start: TypeAlias = Annotated[int, Field(ge=0, description=START)]
SearchWords: TypeAlias = Annotated[str, Field(description="Words that were said.")]
SomeWords: TypeAlias = Annotated[
    str, Field(description="Only those with these words in their name or title.")
]
HitLimit: TypeAlias = Annotated[int, Field(ge=1, le=50, description="How many at most.")]


async def serve(open_engine: Callable[[], Awaitable[Engine]]) -> None:
    """Answer on stdin and stdout until stdin ends."""
    tools = ConversationTools(open_engine)
    try:
        with _valid_stdin():
            await server_for(tools).run_stdio_async()
    finally:
        await tools.close()


@contextmanager
def _valid_stdin() -> Iterator[None]:
    """Replace stdin by one without escapes of lone surrogates. They are valid JSON and no valid text: the server would drop a whole
    request for one, and its client would wait for ever.
    """
    given = sys.stdin
    sys.stdin = TextIOWrapper(BufferedReader(_ValidLines(given.buffer)))
    try:
        yield
    finally:
        sys.stdin = given


class _ValidLines(RawIOBase):
    """The lines of another stream, each with U+FFFD for every lone surrogate."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        if not self._rest:
            self._rest = _SURROGATES.sub(_valid_escapes, self._lines.readline())
        part, self._rest = self._rest[: len(room)], self._rest[len(room) :]
        room[: len(part)] = part
        return len(part)


_SURROGATES = re.compile(rb"\\\\|(?:\\u[dD][89a-fA-F][0-9a-fA-F]{2})+")
"""A backslash that is escaped itself, which begins no other escape, or a run of escaped surrogates."""
_PAIRS = re.compile(rb"(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u....")


def _valid_escapes(found: re.Match[bytes]) -> bytes:
    return found[0] if found[0] == b"\\\\" else _PAIRS.sub(lambda one: one[1] or b"\\ufffd", found[0])


def server_for(tools: ConversationTools) -> MCPServer[None]:
    """The server and its tools."""
    # Calls that fail are told to whoever made them; a log of each would fill the host's.
    server: MCPServer[None] = MCPServer(
        "refold", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool, description in (
        (tools.list_conversations, LIST),
        (tools.search, SEARCH),
        (tools.recall, RECALL),
    ):
        server.add_tool(_told(tool), description=description, annotations=reads, structured_output=False)
    return server


class ConversationTools:
    """The tools of the server. The engine is opened at the first question, so that an error of the store reaches the client."""

    def __init__(self, open_engine: Callable[[], Awaitable[Engine]]) -> None:
        self._open, self._opening = open_engine, asyncio.Lock()
        self._engine: Engine | None = None

    async def list_conversations(self, words: SomeWords = "", limit: HitLimit = 20) -> str:
        engine = await self._opened()
        found = await engine.conversations(limit=limit, words=words)
        if not found:
            return "There is no such conversation." if words else "There is no conversation yet."
        more = [f"[the latest {limit}; there may be more]"] if len(found) == limit else []
        return "\n".join([*map(_listed, found), *more])

    async def search(self, words: SearchWords, conversation: Anywhere = "", limit: HitLimit = 10) -> str:
        if not words.strip():
            raise ConfigError("there is nothing to search for", hint="give some words that were said")
        engine = await self._opened()
        if conversation:
            await _head(engine, conversation)
        found = await engine.search(words, name=conversation, limit=limit)
        newest = {one.conversation: await _head(engine, one.conversation) for one in found}
        passages = [_passage(one, newest[one.conversation]) for one in found] or [_nothing(words)]
        notes = [f"[{one}]" for one in (tell_mistakes(words), engine.search_problem) if one]
        return "\n".join([*([FOUND] if found else []), *passages, *notes])

    async def recall(
        self,
        conversation: ConversationName,
        handle: HandleText,
        branch: BranchArgument = "",
        start: Start = 0,
    ) -> str:
        asked = read_arguments({"what": handle, "start": start})
        read_handle(asked.what)
        engine = await self._opened()
        head = await _head(engine, conversation, branch)
        async with await engine.open_branch(head) as talk:
            # With its sign it can only be a handle, and is not looked for as a word.
            found = await talk.recall(f"#{asked.what.lstrip('#')}", max_tokens=room(MAX_TOKENS))
            return tell(asked, found, talk.state, max_tokens=MAX_TOKENS)

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    async def _opened(self) -> Engine:
        async with self._opening:
            if self._engine is None:
                self._engine = await self._open()
            return self._engine


def _told(tool: Callable[P, Awaitable[str]]) -> Callable[P, Awaitable[str]]:
    """The tool, with errors as the protocol has them: for the model to read. Where the store is stands on stderr only."""

    @wraps(tool)
    async def told(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return await tool(*args, **kwargs)
        except RefoldError as error:
            if error.location:
                _log.warning("%s", error.located)
            raise ToolError(str(error)) from error
        except Exception as error:  # noqa: BLE001  # the words of other errors may hold anything
            raise ToolError(f"the answer failed: {type(error).__name__}") from None

    return told


async def _head(engine: Engine, name: str, branch: str = "") -> Head:
    """A conversation that is there: to ask for one must not begin it."""
    head = await engine.store.head(engine.owner, name, branch) if name else None
    if head is None:
        what = "branch of this conversation" if branch else "conversation of this name"
        raise NotFound(
            f"there is no {what}", hint="list_conversations and search give the names that there are"
        )
    return head


def _nothing(words: str) -> str:
    if parse_query(words).spans:
        return "Nothing was said at this time. Days begin at midnight UTC."
    return "Nothing that was said holds these words. Try fewer or other words."


def _listed(one: Listed) -> str:
    at = datetime.fromtimestamp(one.updated_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = " ".join(one.title.split())[:TITLE]
    return f"{one.id}: {one.messages:,} messages, last {at}" + (f", {title}" if title else "")


def _passage(one: FoundMessage, newest: Head) -> str:
    """What was found, under the name by which `recall` opens it. A message of another branch is another message there."""
    branch = "" if one.branch == newest.branch else f" (branch {one.branch})"
    why = one.damage or "the content was not kept"
    return f"{one.conversation}{branch}\n{one.text or f'{one.handle} [{why}]'}"
