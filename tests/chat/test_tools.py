"""Tools are functions with a schema, and the tools of MCP servers."""

from __future__ import annotations

import sys
from typing import Literal

import msgspec
import pytest

import refold
from refold.chat.tools import run_tool
from refold.model.errors import ConfigError
from refold.model.message import ToolCall
from refold.testing import ScriptedUpstream, call, say
from tests.chat.chats import chatting, results, sent, text_of

SERVER = """
from mcp.server import MCPServer
from mcp.types import ToolAnnotations
server = MCPServer("ship")
@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def heading(ship: str) -> str:
    "The heading of a ship."
    return f"{ship} goes north"
@server.tool()
def sink(ship: str) -> str:
    "Fails."
    raise ValueError("it floats")
server.run("stdio")
"""


def test_hints_and_docstring_give_the_definition():
    @refold.tool
    def read_file(path: str, lines: int = 100, mode: Literal["text", "bytes"] = "text") -> str:
        """Read the beginning
        of a file.

        It may be long.

        Args:
            path: where it is,
                from the root.
            lines (int): how many.

        Returns:
            the lines.
        """
        return f"{path} {lines} {mode}"

    assert (read_file.name, read_file.description) == ("read_file", "Read the beginning of a file.")
    assert msgspec.json.decode(read_file.schema) == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "where it is, from the root."},
            "lines": {"type": "integer", "default": 100, "description": "how many."},
            "mode": {"enum": ["bytes", "text"], "default": "text"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }


async def test_arguments_are_read_by_their_types():
    @refold.tool
    def count(numbers: list[int], scale: float = 1.0) -> dict[str, float]:
        """Add up."""
        return {"sum": sum(numbers) * scale}

    async def run(arguments: str):
        return (await run_tool({"count": count}, ToolCall("c", "count", arguments))).text

    assert await run('{"numbers": [1, "2"], "scale": 2}') == '{"sum":6.0}'
    assert "Expected `int`" in await run('{"numbers": ["x"]}')
    assert "unknown field `size`" in await run('{"numbers": [], "size": 1}')


def untyped(path):
    """No hint."""


def any_number(*paths: str) -> str:
    """Not a plain parameter."""
    return ""


def odd(path: type[ValueError]) -> str:
    """No schema."""
    return ""


@pytest.mark.parametrize("function", [untyped, any_number, odd])
def test_a_function_without_a_schema_is_refused_where_it_is_written(function):
    with pytest.raises(ConfigError):
        refold.tool(function)
    with pytest.raises(ConfigError):
        refold.Chat(refold.Conversation("m"), "m@http://localhost:1/v1", tools=[function])


def test_a_name_that_no_provider_takes_is_refused():
    with pytest.raises(ConfigError, match="cannot be the name of a tool"):
        refold.tool(name="read file")(lambda: "")


async def test_the_tools_of_an_mcp_server_are_called(tmp_path):
    path = tmp_path / "ship.py"
    path.write_text(SERVER)
    calls = say(call("sea_heading", {"ship": "Ann"}, id="c1"), call("sea_sink", {"ship": "Ann"}, id="c2"))
    async with (
        ScriptedUpstream(calls, "North.") as server,
        chatting(server, mcp=[f"sea={sys.executable} {path}"]) as chat,
    ):
        assert chat.problems == []
        events = await sent(chat, "Where to?")
        found = sorted(results(events))
        assert found[0] == "Ann goes north"
        assert found[1].startswith("error: ")
        assert text_of(events) == "North."
        names = [one.name for one in server.requests[0].request.tools]
        assert names == ["recall", "sea_heading", "sea_sink"]


async def test_a_dead_mcp_server_is_named_and_the_chat_goes_on():
    async with (
        ScriptedUpstream("Hello.") as server,
        chatting(server, mcp=["ships=/nowhere/at/all", "http://127.0.0.1:1/mcp"]) as chat,
    ):
        assert len(chat.problems) == 2
        assert chat.problems[0].startswith("the MCP server 'ships' cannot be used")
        assert text_of(await sent(chat, "Hello?")) == "Hello."
