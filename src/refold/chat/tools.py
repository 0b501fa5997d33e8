"""Tools of a chat: functions of yours, and the tools of MCP servers.

A tool is a value: its name, its description, the schema of its arguments, and the function that runs it. The
schema comes from the type hints of the function, the descriptions from its docstring. `run_tool` runs one
call and never raises: a failure of any kind is a result that tells the model what went wrong.

    @refold.tool
    def read_file(path: str, lines: int = 100) -> str:
        \"\"\"Read the beginning of a file.

        Args:
            path: where it is.
            lines: how many lines to read.
        \"\"\"
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import shlex
import signal
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar, get_args, get_type_hints, overload

import msgspec
from msgspec import Struct, structs

from refold.core.stages.tool_results import ToolRule
from refold.model.dialect import Dialect
from refold.model.errors import ConfigError, MissingExtra, RefoldError, UpstreamUnavailable
from refold.model.mask import mask_text
from refold.model.message import Text, ToolCall, ToolResult, replace_lone_surrogates
from refold.model.window import Tool
from refold.wire.translate import translate_tools

TIMEOUT_S = 120.0
"""Longer than a build of a small project; a person who waits for more can set it."""
MAX_CHARACTERS = 1_000_000
"""Of one result. What is longer is cut when it is stored: no window holds it, and a store would keep it for ever."""
START_S = 30.0
"""Seconds that an MCP server has to start: one that is downloaded first needs many."""
CLOSE_S = 5.0
"""Seconds that an MCP server has to end."""
MAX_STDERR, READ_STDERR = 1_000_000, 65_536
"""Bytes in the file with what an MCP server writes to stderr, and those of them that are kept when it is larger."""
STDERR_S = 5.0
"""Seconds between two looks at its size."""
MAX_REASON = 200
"""Characters of what an MCP server wrote that a problem shows."""
_SILENT = logging.NullHandler()
"""For the records of the SDK, which would appear on the terminal: it logs each line of a server that is no message."""
MARK = "REFOLD_MCP_SERVER"
"""The variable in the environment of an MCP server by which its process is found."""
GRACE_S = 1.0
"""Seconds that a tool has to end after its cancellation."""
INTERRUPTED = "interrupted: may have run"
"""The result of a call that was open when its program crashed."""
ABORTED = "aborted"
"""The result of a call that was open when its reply was aborted."""
DECLINED = "declined: the user did not confirm this call"
NOT_TRUSTED = "declined: nobody can confirm this call here; `trusted:` before the MCP server lets it run without a question"
"""The result without a person, for a tool of which its server does not say whether it is destructive."""
TRUSTED = "trusted:"
"""Before an MCP server: the user trusts its tools."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_ARGUMENT = re.compile(r"[ \t]*+\*{0,2}(\w++)[ \t]*+(?:\([^)\n]*+\))?+:(.*)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[ -/]*+[0-Z\\^-~])")
"""Sequences that command a terminal."""


class ChatTool(Struct, frozen=True, kw_only=True):
    """A tool that the model may call. `refold.tool` makes one of a function."""

    name: str
    description: str = ""
    schema: str = '{"type":"object","properties":{}}'
    """The JSON schema of the arguments."""
    run: Callable[[dict[str, Any]], Awaitable[object]]
    """Runs a call with its arguments, and returns a text, or a value that is written as JSON."""
    is_dangerous: bool = False
    """Whether the user has to confirm each call."""
    is_idempotent: bool = False
    """Whether a call that may have run before a crash may run again."""
    timeout_s: float = TIMEOUT_S
    prune: ToolRule = "prune"
    """What becomes of old results where the policy prunes them: "summarise" keeps them until they are summarised."""

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigError: no provider takes a tool of this name, or with this schema.
        """
        check_name(self.name)
        try:
            schema = msgspec.json.decode(self.schema)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError):
            schema = None
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ConfigError(
                f"the schema of the tool {self.name!r} is no JSON schema of an object",
                hint='give one such as {"type": "object", "properties": {"path": {"type": "string"}}}',
            )


@overload
def tool(function: F, /) -> ChatTool: ...


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    dangerous: bool = False,
    idempotent: bool = False,
    timeout_s: float = TIMEOUT_S,
    prune: ToolRule = "prune",
) -> Callable[[F], ChatTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    dangerous: bool = False,
    idempotent: bool = False,
    timeout_s: float = TIMEOUT_S,
    prune: ToolRule = "prune",
) -> ChatTool | Callable[[F], ChatTool]:
    """Make a tool of a function, which may be async. Others run in a thread.

        @refold.tool(dangerous=True)
        def delete_file(path: str) -> str:
            "Delete a file."

    Args:
        function: its type hints give the schema, its docstring the descriptions.
        name: by default the function's.
        description: by default the first paragraph of the docstring.
        dangerous: ask the user before each call.
        idempotent: a call that was open at a crash may run again.
        timeout_s: seconds after which a call has failed.
        prune: "summarise" for results that stay in the context until they are summarised.

    Raises:
        ConfigError: a parameter has no type hint, or one without a JSON schema; `timeout_s` is not positive, or
            `prune` is unknown.
    """
    if function is None:
        return lambda decorated: _made(decorated, name, description, dangerous, idempotent, timeout_s, prune)
    return _made(function, name, description, dangerous, idempotent, timeout_s, prune)


def _made(
    function: Callable[..., Any],
    name: str,
    description: str,
    dangerous: bool,
    idempotent: bool,
    timeout_s: float,
    prune: ToolRule,
) -> ChatTool:
    name = name or function.__name__
    check_name(name)
    if not timeout_s > 0:
        raise ConfigError(f"the tool {name!r} has no time to run", hint="give timeout_s more than 0 seconds")
    if prune not in get_args(ToolRule):
        hint = f"choose from: {', '.join(get_args(ToolRule))}"
        raise ConfigError(f"the tool {name!r} has an unknown value of prune", hint=hint)
    told, about = _read_docstring(inspect.getdoc(function) or "")
    arguments = _arguments_of(function, name, about)
    schema = _schema_of(arguments, name)

    async def run(given: dict[str, Any]) -> object:
        try:
            read = msgspec.convert(given, arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"the arguments do not fit: {error}", hint="see the schema of the tool"
            ) from None
        values = {key: getattr(read, key) for key in arguments.__struct_fields__}
        if inspect.iscoroutinefunction(function):
            return await function(**values)
        return await _in_thread(lambda: function(**values))

    return ChatTool(
        name=name,
        description=description or told,
        schema=schema,
        run=run,
        is_dangerous=dangerous,
        is_idempotent=idempotent,
        timeout_s=timeout_s,
        prune=prune,
    )


async def _in_thread(work: Callable[[], object]) -> object:
    """Run a function in a daemon thread of its own: the end of the program does not wait for one that hangs."""
    loop, context = asyncio.get_running_loop(), copy_context()
    outcome: asyncio.Future[object] = loop.create_future()

    def settle(value: object, error: BaseException | None) -> None:
        if outcome.done():
            return  # the caller has given up
        if error is None:
            outcome.set_result(value)
        else:
            outcome.set_exception(error)

    def call() -> None:
        value, error = None, None
        try:
            value = context.run(work)
        except BaseException as caught:  # noqa: BLE001  # it belongs to the caller
            error = RuntimeError("StopIteration") if isinstance(caught, StopIteration) else caught
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, name="refold-tool", daemon=True).start()
    return await outcome


def check_name(name: str) -> None:
    """
    Raises:
        ConfigError: no provider takes a tool of this name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:80]!r} cannot be the name of a tool", hint="use up to 64 letters, digits, _ and -"
        )


def _arguments_of(function: Callable[..., Any], name: str, about: Mapping[str, str]) -> type[Struct]:
    """Return a struct with a field for each parameter of the function."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(f"a type hint of the tool {name!r} is not defined: {error.name}") from None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY) or one.name not in hints:
            raise ConfigError(
                f"the parameter {one.name!r} of the tool {name!r} has no type hint, or no name that a model can give",
                hint="write plain parameters with type hints, such as path: str",
            )
        hint = hints[one.name]
        if one.name in about:
            hint = Annotated[hint, msgspec.Meta(description=about[one.name])]
        fields.append((one.name, hint) if one.default is one.empty else (one.name, hint, one.default))
    try:
        return msgspec.defstruct(name.replace("-", "_"), fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the parameters of the tool {name!r} cannot be used: {error}") from None


def _schema_of(arguments: type[Struct], name: str) -> str:
    try:
        (top,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, RecursionError) as error:
        hint = "use str, int, float, bool, list, dict, Literal, enums, structs or dataclasses"
        raise ConfigError(f"a type of the tool {name!r} has no JSON schema: {error}", hint=hint) from None
    own = top.get("$ref", "").rpartition("/")[2]
    schema = {key: value for key, value in parts.pop(own, top).items() if key != "title"}
    return msgspec.json.encode({**schema, **({"$defs": parts} if parts else {})}).decode()


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph, and the descriptions of the parameters under `Args:`."""
    told, _, listed = text.partition("Args:")
    about, last = dict[str, str](), ""
    for line in listed.partition("\n\n")[0].splitlines():
        found = _ARGUMENT.match(line)
        if found:
            last = found[1]
            about[last] = found[2].strip()
        elif last:
            about[last] = f"{about[last]} {line.strip()}".strip()
    return " ".join(told.partition("\n\n")[0].split()), about


def definitions(tools: Sequence[ChatTool], dialect: Dialect) -> list[object]:
    """Return the definitions of tools in a format, as plain values."""
    found = translate_tools([Tool(one.name, one.description, one.schema) for one in tools], dialect)
    return [msgspec.json.decode(msgspec.json.encode(one)) for one in found]


# Running a call


async def run_tool(tools: Mapping[str, ChatTool], call: ToolCall) -> ToolResult:
    """Run a call, and return its result. It never raises, except if the caller is cancelled: a failure of any kind, a
    `SystemExit` too, is a result that says what happened.
    """
    found = tools.get(call.name)
    if found is None:
        known = ", ".join(tools) or "none"
        return failed(call, f"error: there is no tool {call.name[:80]!r}; the tools are: {known}")
    try:
        given = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return failed(call, "error: the arguments are no JSON object")

    async def run() -> ToolResult:
        value = await found.run(given)
        if isinstance(value, ToolResult):
            return structs.replace(
                value,
                call_id=call.id,
                parts=tuple(Text(_cut(one.text)) if isinstance(one, Text) else one for one in value.parts),
            )
        return ToolResult(call.id, (Text(_text_of(value)),))

    ended = await run_guarded(run(), found.timeout_s)
    if isinstance(ended, ToolResult):
        return ended
    if ended is None:
        return failed(call, f"error: no result after {found.timeout_s:g} s; it may still be running")
    return failed(call, f"error: {problem_of(ended)}")


async def run_guarded(
    act: Coroutine[Any, Any, T], timeout_s: float | None = None
) -> T | BaseException | None:
    """Run code of the user's in a task of its own. Returns its result, the exception that it raised, or None after
    `timeout_s`. Code that ignores its cancellation is left behind after `GRACE_S`: nothing waits for it for ever.
    """

    async def guarded() -> T | BaseException:
        try:
            return await act
        except BaseException as error:  # noqa: BLE001  # a SystemExit that leaves a task ends the program
            return error

    task = asyncio.create_task(guarded())
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        return task.result() if done else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)


def problem_of(error: BaseException) -> str:
    """Say in a line what code of the user's raised. Of a group of exceptions the first one is named, and the others are counted."""
    raised = list[BaseException]([error])
    while isinstance(raised[0], BaseExceptionGroup):
        raised[:1] = raised[0].exceptions
    if len(raised) > 1:
        return f"{problem_of(raised[0])} (and {len(raised) - 1} more)"
    error = raised[0]
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # it is the user's as well
        text = ""
    if isinstance(error, RefoldError):
        return text
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def failed(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, (Text(_cut(text)),), is_error=True)


def _text_of(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            value = f"(binary data, {len(raw):,} bytes)"
    if not isinstance(value, str):
        try:
            value = "" if value is None else msgspec.json.encode(value, enc_hook=str).decode()
        except (TypeError, ValueError, RecursionError):
            value = str(value)
    text = _cut(value)
    return text if text.strip() else "(no output)"


def _cut(text: str) -> str:
    """Return a text that can be stored: not too long, and valid Unicode. It is cut first: the rest is not even read."""
    kept = replace_lone_surrogates(text[:MAX_CHARACTERS])
    if len(text) <= MAX_CHARACTERS:
        return kept
    return f"{kept}\n[cut: the result has {len(text):,} characters; these are the first {MAX_CHARACTERS:,}]"


# MCP servers


class ToolServer:
    """A connection to an MCP server, held by a task of its own until `close`: its scopes must be left by the task
    that entered them, and a chat may be closed by another one.

    Args:
        spec: a URL (`https://host/mcp`), or the command line that starts the server; in front of either, `name=`
            gives the prefix of its tools' names, and `trusted:` before that lets tools run of which it says nothing.
        patience_s: seconds that the server has for its start; `START_S` by default.
    """

    def __init__(self, spec: str, *, patience_s: float | None = None) -> None:
        self._is_trusted = spec.startswith(TRUSTED)
        spec = spec.removeprefix(TRUSTED)
        prefix, equals, rest = spec.partition("=")
        has_prefix = bool(equals and _NAME.fullmatch(prefix))
        self.prefix, self._target = (prefix, rest) if has_prefix else ("", spec)
        self.name = mask_text(self.prefix or self._target.partition(" ")[0])[:80]
        self.problems: list[str] = []
        """Tools that are left out, and why."""
        self.unstated: set[str] = set()
        """Tools that have to be confirmed only because the server says nothing about them."""
        self._patience_s = START_S if patience_s is None else patience_s
        self._closing = asyncio.Event()
        self._is_ready, self._mark = False, f"{os.getpid()}-{id(self)}"
        """`_mark` is in the environment of the server's process, which is found by it."""
        self._task: asyncio.Task[None] | None = None
        self._stderr: TextIO | None = None
        """A file with what the server writes there. On the stderr of this program it would command the terminal."""

    async def open(self) -> list[ChatTool]:
        """Connect, and return the server's tools.

        Raises:
            MissingExtra: the package `mcp` is not installed.
            UpstreamUnavailable: the server does not start, or does not answer.
        """
        ready: asyncio.Future[list[ChatTool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready))
        try:
            async with asyncio.timeout(self._patience_s):
                found = await ready
        except TimeoutError:
            problem = self._unusable(f"no answer within {self._patience_s:g} s")
            await self.close()
            raise problem from None
        self._is_ready = True
        return found

    async def _hold(self, ready: asyncio.Future[list[ChatTool]]) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as self._stderr:
            try:
                async with _client_of(self._target, self._stderr, {MARK: self._mark}) as client:
                    found = [one for each in await _list_tools(client) if (one := self._tool(client, each))]
                    if not ready.done():
                        ready.set_result(found)
                    await self._wait_for_close()
            except MissingExtra as error:
                _fail(ready, error)
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # any: the chat goes on without this server
                why = _readable(error.message if isinstance(error, RefoldError) else problem_of(error))
                _fail(
                    ready,
                    self._unusable(why.replace("MCPError: Connection closed", "it ended without an answer")),
                )

    async def _wait_for_close(self) -> None:
        """Wait until the chat is closed, and keep no more of what the server writes than its beginning."""
        while not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), STDERR_S)
            limit_stderr(self._stderr)

    def _tool(self, client: Any, listed: Any) -> ChatTool | None:
        """Return a tool of the server; None if no provider would take it, which is said in `problems`."""

        async def run(given: dict[str, Any]) -> object:
            try:
                result = await client.call_tool(listed.name, given)
            except Exception as error:  # noqa: BLE001  # whatever the SDK raises: the model is told
                raise UpstreamUnavailable(
                    f"the MCP server {self.name!r} gave no result: {problem_of(error)}",
                    hint="if it has ended, open the chat again",
                ) from None
            texts = [getattr(part, "text", f"[{part.type}]") for part in result.content]
            if result.is_error:
                raise ConfigError("\n".join(texts) or "the tool failed")
            return "\n".join(texts)

        notes, schema = listed.annotations, {"type": "object", **listed.input_schema}
        name = f"{self.prefix}_{listed.name}" if self.prefix else listed.name
        # By MCP's defaults a tool that says nothing changes things and is destructive.
        is_stated = bool(notes and (notes.read_only_hint or notes.destructive_hint is not None))
        is_destructive = is_stated and notes.destructive_hint and not notes.read_only_hint
        try:
            made = ChatTool(
                name=_NOT_IN_NAMES.sub("_", name)[:64],
                description=listed.description or "",
                schema=msgspec.json.encode(schema).decode(),
                run=run,
                is_dangerous=bool(is_destructive) if is_stated else not self._is_trusted,
                is_idempotent=bool(notes and (notes.idempotent_hint or notes.read_only_hint)),
            )
        except ConfigError as error:
            self.problems.append(f"a tool of the MCP server {self.name!r} is left out: {error.message}")
            return None
        if made.is_dangerous and not is_stated:
            self.unstated.add(made.name)
        return made

    def _unusable(self, why: str) -> UpstreamUnavailable:
        wrote = _first_line(self._stderr) if self._stderr is not None and not self._stderr.closed else ""
        told = f"; it wrote: {wrote}" if wrote else ""
        return UpstreamUnavailable(
            f"the MCP server {self.name!r} cannot be used: {why}{told}", hint="start it by hand to see why"
        )

    async def close(self) -> None:
        """End the server. One that has not answered yet, or does not end in time, is killed."""
        self._closing.set()
        if self._task is None or self._task.done():
            return
        is_killed = False
        try:
            if self._is_ready:
                await asyncio.wait({self._task}, timeout=CLOSE_S)
        finally:
            if not self._task.done():
                is_killed = _kill_marked(self._mark)
        if is_killed:  # the connection ends by itself then
            await asyncio.wait({self._task}, timeout=GRACE_S)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_S)


def _kill_marked(mark: str) -> bool:
    """Kill the child of this process that has the mark in its environment, and what it started. Returns whether there was
    one. The SDK does not tell which process it is, and would wait for seconds before it kills one that does not read its
    input. Elsewhere than on Linux it does so.
    """
    is_killed = False
    for listed in Path("/proc/self/task").glob("*/children"):
        for process in _read(listed).decode().split():
            if f"{MARK}={mark}".encode() in _read(Path(f"/proc/{process}/environ")).split(b"\0"):
                with suppress(OSError):
                    os.killpg(int(process), signal.SIGKILL)
                    is_killed = True
    return is_killed


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def _fail(ready: asyncio.Future[list[ChatTool]], error: Exception) -> None:
    if not ready.done():
        ready.set_exception(error)


def limit_stderr(stderr: TextIO | None) -> None:
    """Cut the file that a server writes its errors to, if it has become large: it may run for weeks."""
    if stderr is not None and os.fstat(stderr.fileno()).st_size > MAX_STDERR:
        os.ftruncate(stderr.fileno(), READ_STDERR)
        os.lseek(stderr.fileno(), 0, os.SEEK_END)  # the server's position as well: it has inherited the file


def _first_line(stderr: TextIO) -> str:
    """Return the first line that a server wrote and a person can read; of a traceback, the exception."""
    stderr.seek(0)
    for line in stderr.read(READ_STDERR).splitlines():
        text = _readable(line)
        if text and not line.startswith((" ", "Traceback (")):
            return text
    return ""


def _readable(text: str) -> str:
    """Return a text of a server in one short line that is harmless in a terminal, without keys."""
    kept = " ".join(_ESCAPES.sub("", text).split())
    return mask_text("".join(one for one in kept if one.isprintable()))[:MAX_REASON]


def _client_of(target: str, stderr: TextIO, environ: dict[str, str]) -> Any:
    try:
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
    except ImportError:
        raise MissingExtra("mcp", "an MCP server") from None
    logging.getLogger("mcp").addHandler(_SILENT)  # a program that sets up logging still sees its records
    if target.startswith(("http://", "https://")):
        return Client(target)
    command, *arguments = shlex.split(target) or [""]
    return Client(
        stdio_client(StdioServerParameters(command=command, args=arguments, env=environ), errlog=stderr)
    )


async def _list_tools(client: Any) -> list[Any]:
    """
    Raises:
        UpstreamUnavailable: the SDK takes no list with a wrong definition, and does not hand out the others.
    """
    found, cursor = list[Any](), None
    while True:
        try:
            listed = await client.list_tools(cursor=cursor)
        except ValueError as error:  # pydantic's, which has the place of each fault
            faults = getattr(error, "errors", list[Any])()
            raise UpstreamUnavailable(_fault_of(faults[0] if faults else {}, len(found))) from None
        found += listed.tools
        cursor = listed.next_cursor
        if not cursor:
            return found


def _fault_of(fault: Mapping[str, Any], before: int) -> str:
    """Say which tool of a list is wrong, and where, without what the server wrote; `before` tools came in earlier pages."""
    match fault.get("loc"):
        case ("tools", int(at), *place):
            inside = f" in {'.'.join(map(str, place))}" if place else ""
            return f"its tool number {before + at + 1} has a wrong definition{inside}"
    return "its list of tools is not in the format of MCP"
