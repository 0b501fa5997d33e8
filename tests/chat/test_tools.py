"""Tools are functions with a schema, and the tools of MCP servers."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest

import refold
from refold.chat import tools as tools_module
from refold.chat.tools import READ_STDERR, limit_stderr, run_tool
from refold.model.errors import BudgetError, ConfigError
from refold.model.message import Text, ToolCall, ToolResult
from refold.testing import ScriptedUpstream, call, say
from tests.chat.chats import chatting, done, results, sent, text_of
from tests.program import command

MODULES = ("mcp.server", "mcp.server.stdio", "mcp.server.mcpserver", "uvicorn")
"""What the servers of these tests import: they are copies of one process."""
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


def command_line(path: Path) -> str:
    """The command line of a server."""
    return shlex.join(command(str(path), MODULES))


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


@pytest.mark.parametrize(
    "settings", [{"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"prune": "sometimes"}]
)
def test_a_setting_that_cannot_work_is_refused(settings):
    with pytest.raises(ConfigError, match="the tool 'nothing'"):
        refold.tool(name="nothing", **settings)(lambda: "")


async def test_the_tools_of_an_mcp_server_are_called(tmp_path):
    path = tmp_path / "ship.py"
    path.write_text(SERVER)
    calls = say(call("sea_heading", {"ship": "Ann"}, id="c1"), call("sea_sink", {"ship": "Ann"}, id="c2"))
    async with (
        ScriptedUpstream(calls, "North.") as server,
        chatting(server, mcp=[f"trusted:sea={command_line(path)}"]) as chat,
    ):
        assert chat.problems == []
        events = await sent(chat, "Where to?")
        found = sorted(results(events))
        assert found[0] == "Ann goes north"
        assert found[1].startswith("error: ")
        assert text_of(events) == "North."
        names = [one.name for one in server.requests[0].request.tools]
        assert names == ["recall", "sea_heading", "sea_sink"]


HINTS = """
from mcp.server import MCPServer
from mcp.types import ToolAnnotations
server = MCPServer("ship")
def run() -> str:
    return "it ran"
server.add_tool(run, name="silent", description="-")
server.add_tool(run, name="idle", description="-", annotations=ToolAnnotations(idempotent_hint=True))
server.add_tool(run, name="reads", description="-", annotations=ToolAnnotations(read_only_hint=True))
server.add_tool(run, name="adds", description="-", annotations=ToolAnnotations(destructive_hint=False))
server.add_tool(run, name="breaks", description="-", annotations=ToolAnnotations(destructive_hint=True))
server.run("stdio")
"""


@pytest.mark.parametrize(
    ("mark", "asked"), [("", ["breaks", "idle", "silent"]), ("trusted:", ["breaks"])], ids=["", "trusted"]
)
@pytest.mark.parametrize("has_person", [True, False], ids=["a person", "nobody"])
async def test_tools_of_a_server_are_confirmed_unless_they_are_harmless(tmp_path, mark, asked, has_person):
    path = tmp_path / "ship.py"
    path.write_text(HINTS)
    names = ["adds", "breaks", "idle", "reads", "silent"]
    calls = say(*(call(name, id=f"c-{name}") for name in names))
    confirmed = list[str]()

    def confirm(call):
        confirmed.append(call.name)
        return True

    async with (
        ScriptedUpstream(calls, DONE) as server,
        chatting(
            server, mcp=[f"{mark}{command_line(path)}"], confirm=confirm if has_person else None
        ) as chat,
    ):
        assert chat.problems == []
        ended = {
            event.name: event.text for event in await sent(chat, "Go.") if isinstance(event, refold.ToolEnded)
        }
    declined = [name for name in names if ended[name] != "it ran"]
    assert sorted(confirmed) == (asked if has_person else [])
    assert declined == ([] if has_person else asked)
    told = {name for name in declined if "`trusted:` before the MCP server" in ended[name]}
    assert told == {*declined} - {"breaks"}, "a mark does not help where the server says: destructive"


async def test_a_dead_mcp_server_is_named_and_the_chat_goes_on():
    async with (
        ScriptedUpstream("Hello.") as server,
        chatting(server, mcp=["ships=/nowhere/at/all", "http://127.0.0.1:1/mcp"]) as chat,
    ):
        assert len(chat.problems) == 2
        assert chat.problems[0].startswith("the MCP server 'ships' cannot be used: FileNotFoundError: ")
        assert "cannot be used: ConnectError: " in chat.problems[1]
        assert text_of(await sent(chat, "Hello?")) == "Hello."


LOUD = r"""
import sys
import tempfile
sys.stderr.write("\x1b[2J\x1b[H\x1b]0;title\x07\n\x1b[31mthe \x07port is taken " + "x" * 300 + "\n")
sys.stderr.flush()
"""


async def test_what_a_server_writes_to_stderr_never_reaches_the_terminal(tmp_path, capfd):
    good, bad, broken = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "broken.py"
    good.write_text(LOUD + SERVER)
    bad.write_text(LOUD)
    broken.write_text("import nowhere_at_all")
    servers = [f"{path.stem}={command_line(path)}" for path in (good, bad, broken)]
    async with ScriptedUpstream() as server, chatting(server, mcp=servers) as chat:
        told = [problem.partition("\n")[0] for problem in chat.problems]
    ended = "cannot be used: it ended without an answer; it wrote:"
    wrote = ("the port is taken " + "x" * 300)[:200]
    assert told == [
        f"the MCP server 'bad' {ended} {wrote}",
        f"the MCP server 'broken' {ended} ModuleNotFoundError: No module named 'nowhere_at_all'",
    ]
    assert capfd.readouterr() == ("", "")


WRONG = """
import json, sys
for line in sys.stdin:
    asked, result = json.loads(line), None
    if asked.get("method") == "initialize":
        version = asked["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "w", "version": "1"}}
    elif asked.get("method") == "tools/list" and not (asked.get("params") or {}).get("cursor"):
        result = {"tools": [{"name": "good", "inputSchema": {"type": "object"}}], "nextCursor": "2"}
    elif asked.get("method") == "tools/list":
        result = {"tools": TOOLS}
    if "id" in asked:
        fault = {"error": {"code": -32601, "message": "unknown"}}
        said = {"result": result} if result else fault
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        (
            [{"name": "bad", "inputSchema": {"type": "object", "required": "a"}}],
            "its tool number 2 has a wrong definition in inputSchema.required",
        ),
        ([7], "its tool number 2 has a wrong definition"),
        ("none", "its list of tools is not in the format of MCP"),
    ],
)
async def test_a_tool_that_the_sdk_refuses_is_told_in_one_line(tools, why, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(WRONG.replace("TOOLS", repr(tools)))
    servers = [f"wrong={sys.executable} {path}"]
    async with ScriptedUpstream("Yes.") as server, chatting(server, mcp=servers) as chat:
        (problem,) = chat.problems
        assert problem.partition("\n")[0] == f"the MCP server 'wrong' cannot be used: {why}"
        assert text_of(await sent(chat, "Go.")) == "Yes."


async def test_a_line_of_a_server_that_is_no_message_never_reaches_the_terminal(tmp_path):
    path, script = tmp_path / "ship.py", tmp_path / "chat.py"
    path.write_text('print("\\x1b[2J ready", flush=True)\n' + SERVER)
    script.write_text(f"""
import asyncio, refold
async def main():
    chat = refold.Chat(refold.Conversation("m"), "m@http://127.0.0.1:1/v1", mcp=[{command_line(path)!r}])
    async with chat:
        print(chat.problems)
asyncio.run(main())
""")
    started = await asyncio.create_subprocess_exec(
        *command(str(script), MODULES), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )  # a program of its own: pytest catches what is logged
    assert await started.communicate() == (b"[]\n", b"")


def test_no_more_is_kept_of_stderr_than_its_beginning():
    with tempfile.TemporaryFile("w+") as stderr:
        theirs = os.dup(stderr.fileno())  # as a process has it that was started with this file
        for size, kept in ((1_000_000, 1_000_000), (1, READ_STDERR)):
            os.write(theirs, b"x" * size)
            limit_stderr(stderr)
            assert os.fstat(stderr.fileno()).st_size == kept
        os.write(theirs, b"more")
        os.close(theirs)
        assert os.fstat(stderr.fileno()).st_size == READ_STDERR + 4, "it goes on behind that"


# Whatever a tool does is a result

DONE = "Well."


async def answer_of(tools, *names: str, **settings):
    """Call tools once, and return their results, and the reply to the next message."""
    calls = say(*(call(name, id=f"c{n}") for n, name in enumerate(names)))
    async with (
        ScriptedUpstream(calls, DONE, "Next.", window=None) as server,
        chatting(server, tools=tools, **settings) as chat,
    ):
        events = await sent(chat, "Go.")
        assert done(events).status == "answered", done(events).problem
        assert text_of(await sent(chat, "And now?")) == "Next."
        found = {one.call_id: one.text for one in events if isinstance(one, refold.ToolEnded)}
        return [found[f"c{n}"] for n in range(len(names))]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


RAISED = [
    (SystemExit(3), "error: SystemExit: 3"),
    (KeyboardInterrupt(), "error: KeyboardInterrupt"),
    (asyncio.CancelledError(), "error: CancelledError"),
    (GeneratorExit(), "error: GeneratorExit"),
    (TimeoutError("the line is dead"), "error: TimeoutError: the line is dead"),
    (BaseExceptionGroup("two", [SystemExit(1)]), "error: SystemExit: 1"),
    (Unprintable(), "error: Unprintable"),
    (ValueError("half of a pair: \ud800"), "error: ValueError: half of a pair: ?"),
]


@pytest.mark.parametrize(("raised", "told"), RAISED, ids=[type(one).__name__ for one, _ in RAISED])
async def test_whatever_a_tool_raises_is_told_to_the_model(raised, told):
    @refold.tool
    def threaded() -> str:
        """Raise in a thread."""
        raise raised

    @refold.tool
    async def awaited() -> str:
        """Raise in the loop."""
        raise raised

    assert await answer_of([threaded, awaited], "threaded", "awaited") == [told, told]


async def test_a_stop_iteration_in_a_thread_is_told_to_the_model():
    @refold.tool
    def stop() -> str:
        """Raise."""
        raise StopIteration

    assert await answer_of([stop], "stop") == ["error: RuntimeError: StopIteration"]


async def test_a_tool_that_ignores_its_end_is_left_behind(monkeypatch):
    monkeypatch.setattr(tools_module, "GRACE_S", 0.01)
    goes_on = asyncio.Event()

    @refold.tool(timeout_s=0.01)
    async def stubborn() -> str:
        """Never end."""
        while not goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
        return ""

    try:
        assert await answer_of([stubborn], "stubborn") == [
            "error: no result after 0.01 s; it may still be running"
        ]
    finally:
        goes_on.set()


async def test_a_result_of_50_mb_is_cut():
    big = "tide " * 10_000_000

    @refold.tool
    def shout() -> str:
        """Give too much."""
        return big

    @refold.tool
    def fail() -> str:
        """Give too much."""
        raise ValueError(big)

    async def whole(_):
        return ToolResult("other", (Text(big),))

    own = refold.ChatTool(name="whole", run=whole)
    found = await answer_of([shout, fail, own], "shout", "fail", "whole")
    assert all("[cut: the result has 50,0" in one[-100:] for one in found)
    assert all(len(one) < 1_000_200 for one in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"low water", "low water"),
        (bytearray("Ås".encode()), "Ås"),
        (b"\xff\xfe\x00", "(binary data, 3 bytes)"),
        (b"", "(no output)"),
        (None, "(no output)"),
    ],
)
async def test_bytes_are_text_where_they_can_be(value, text):
    async def run(_):
        return value

    assert await answer_of([refold.ChatTool(name="odd", run=run)], "odd") == [text]


async def test_of_a_group_of_errors_the_first_is_named():
    async def run(_):
        raise ExceptionGroup("several", [ExceptionGroup("inner", [ValueError("no wind")]), KeyError("sail")])

    own = refold.ChatTool(name="odd", run=run)
    assert await answer_of([own], "odd") == ["error: ValueError: no wind (and 1 more)"]


async def test_a_value_that_cannot_be_written_is_told_to_the_model():
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no words")

    @refold.tool
    def odd() -> object:
        """Return what cannot be written."""
        return Odd()

    assert await answer_of([odd], "odd") == ["error: ValueError: no words"]


async def test_a_question_that_fails_declines_the_call():
    @refold.tool(dangerous=True)
    def erase() -> str:
        """Erase."""
        return "gone"

    def confirm(_):
        raise EOFError

    assert await answer_of([erase], "erase", confirm=confirm) == [
        "declined: the user did not confirm this call"
    ]


@pytest.mark.parametrize("schema", ["", "no json", "[]", '"object"', '{"type": "string"}', "{}", "\ud800"])
def test_a_wrong_schema_is_refused_where_it_is_written(schema):
    async def run(_):
        return ""

    with pytest.raises(ConfigError, match="the schema of the tool 'odd' is no JSON schema of an object"):
        refold.ChatTool(name="odd", schema=schema, run=run)


# MCP servers that fail

DYING = """
import os
from mcp.server import MCPServer
server = MCPServer("ship")
@server.tool()
def die() -> str:
    "Ends the server."
    os._exit(1)
server.run(TRANSPORT)
"""


async def test_a_server_that_dies_is_told_to_the_model_and_the_chat_goes_on(tmp_path):
    path = tmp_path / "ship.py"
    path.write_text(DYING.replace("TRANSPORT", '"stdio"'))
    script = say(call("die", id="c1")), DONE, say(call("die", id="c2")), DONE
    async with (
        ScriptedUpstream(*script) as server,
        chatting(server, mcp=[f"trusted:{command_line(path)}"]) as chat,
    ):
        for _ in range(2):
            events = await sent(chat, "Go.")
            assert results(events)[0].startswith("error: the MCP server '")
            assert "gave no result" in results(events)[0]
            assert text_of(events) == DONE


async def test_an_http_server_that_dies_is_told_to_the_model_and_the_chat_goes_on(tmp_path):
    path, port = tmp_path / "ship.py", free_port()
    path.write_text(DYING.replace("TRANSPORT", f'"streamable-http", port={port}'))
    process = await asyncio.create_subprocess_exec(
        *command(str(path), MODULES), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until_open(port)
        script = say(call("die", id="c1")), DONE, say(call("die", id="c2")), DONE
        async with (
            ScriptedUpstream(*script) as server,
            chatting(server, mcp=[f"trusted:http://127.0.0.1:{port}/mcp"]) as chat,
        ):
            assert chat.problems == []
            for _ in range(2):
                events = await sent(chat, "Go.")
                assert results(events)[0].startswith("error: the MCP server '")
                assert text_of(events) == DONE
    finally:
        await process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def until_open(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def test_tools_of_a_server_with_odd_names_or_names_twice(tmp_path):
    path = tmp_path / "ship.py"
    path.write_text(
        SERVER.replace("def heading", "def add").replace("@server.tool()", '@server.tool(name="ship.sink")')
    )

    @refold.tool
    def add(a: int) -> int:
        """Ours."""
        return a

    async with (
        ScriptedUpstream(DONE) as server,
        chatting(server, tools=[add], mcp=[command_line(path)]) as chat,
    ):
        (problem,) = chat.problems
        assert problem.endswith("is left out: there is another 'add'")
        await sent(chat, "Go.")
        assert [one.name for one in server.requests[0].request.tools] == ["recall", "add", "ship_sink"]


async def test_a_chat_that_cannot_start_leaves_no_server_running(tmp_path):
    path, mark = tmp_path / "ship.py", tmp_path / "ended"
    path.write_text(SERVER + f"\nopen({str(mark)!r}, 'w').close()\n")
    huge = refold.tool(name="huge", description="word " * 40_000)(lambda: "")
    async with ScriptedUpstream() as server:
        with pytest.raises(BudgetError):
            async with chatting(server, tools=[huge], mcp=[command_line(path)]):
                pass
    assert mark.exists(), "the server has ended"


# MCP servers that never answer

MUTE = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_text(str(os.getpid()))
file.with_suffix(".new").rename(file)
while True:
    time.sleep(3600)
"""


@pytest.fixture
def mute(tmp_path):
    """The command line of a server that never answers, and the file with its process id."""
    (tmp_path / "mute.py").write_text(MUTE)
    file = tmp_path / "process"
    return f"mute={sys.executable} {tmp_path}/mute.py {file}", file


def has_ended(file) -> bool:
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_chat_goes_on_without_a_server_that_never_answers(mute, monkeypatch):
    command, file = mute
    closed = tools_module.ToolServer.close

    async def close(server):
        await until_there(file)
        await closed(server)

    monkeypatch.setattr(tools_module, "START_S", 0.01)
    monkeypatch.setattr(tools_module.ToolServer, "close", close)
    async with ScriptedUpstream(DONE) as server, chatting(server, mcp=[command]) as chat:
        assert has_ended(file)
        (problem,) = chat.problems
        assert problem.startswith("the MCP server 'mute' cannot be used: no answer within 0.01 s")
        assert text_of(await sent(chat, "Go.")) == DONE


async def test_a_start_that_is_cancelled_ends_a_server_that_never_answers(mute):
    command, file = mute

    async def start() -> None:
        async with ScriptedUpstream() as server, chatting(server, mcp=[command]):
            pass

    starting = asyncio.create_task(start())
    await until_there(file)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert has_ended(file)


async def until_there(file) -> None:
    async with asyncio.timeout(20):
        while not file.exists():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


async def test_the_name_of_a_server_shows_no_key():
    async with ScriptedUpstream() as server:
        url = "http://me:secret@127.0.0.1:9/mcp?api_key=secret"
        async with chatting(server, mcp=[url]) as chat:
            (problem,) = chat.problems
            assert chat.servers == ["http://***@127.0.0.1:9/mcp?***"]
            assert "secret" not in problem
