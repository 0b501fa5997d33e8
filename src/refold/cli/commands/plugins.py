"""`refold plugins`: the plugins that are loaded here, and a trial of one."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, structs

from refold.cli import output
from refold.cli.options import JsonOption, WholeLines, expanded
from refold.cli.output import align, plain
from refold.model.errors import ConfigError, PluginError, RefoldError

if TYPE_CHECKING:
    from refold.model.message import Message
    from refold.plugins.registry import LoadedPlugin, Plugins

FORMATS = ("chat", "responses", "anthropic")
TURNS = 30
WINDOW = 4_096
"""Tokens: the sample does not fit, so that it is compacted."""
NOT_TRIED = {"stores": "name a URL of it with --store of another command", "commands": "type them in a chat"}


class Trial(Struct, frozen=True):
    """The result of trying one point of a plugin."""

    plugin: str
    point: str
    passed: bool
    detail: str = ""


def declare(app: typer.Typer) -> None:
    plugins = typer.Typer(
        cls=WholeLines,
        help="Plugins: code of others in Refold. List them, or try one.",
        rich_markup_mode=None,
    )
    plugins.command("list", epilog="Example: refold plugins list")(expanded(list_all))
    plugins.command("check", epilog="Example: refold plugins check ./my_plugin.py")(expanded(check))
    app.add_typer(plugins, name="plugins")


def list_all(*, as_json: JsonOption = False) -> int:
    """List the plugins of installed packages and of the files in the settings, and those that cannot be loaded.

    The exit code is 1 if one cannot be loaded.
    """
    from refold.cli.settings import find_plugins_here

    found = find_plugins_here()
    if as_json:
        output.write_json(
            {
                "plugins": [_document(one) for one in found],
                "problems": [structs.asdict(one) for one in found.problems],
            }
        )
    elif len(found):
        rows = [
            (
                plain(one.plugin.name),
                plain(one.plugin.version) or "-",
                one.plugin.fails,
                ", ".join(one.plugin.points),
                plain(one.source),
            )
            for one in found
        ]
        output.write(align(("name", "version", "fails", "points", "from"), rows, cuts=("from", "points")))
    _note_problems(found)
    if not len(found) and not found.problems:
        output.note("no plugin is installed, and the settings name no file")
    return 1 if found.problems else 0


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="A loaded plugin, or a Python file. Default: all that are loaded.",
            show_default=False,
        ),
    ] = "",
    *,
    as_json: JsonOption = False,
) -> int:
    """Try a plugin: play a conversation with tools in a small window in the three formats, and check everything it returns.

    Nothing is sent to a provider. Summarisers, counters, filters, stages, triggers and presets are called; stores are not opened, and
    commands are only read. The exit code is 1 if a point fails.
    """
    import asyncio

    from refold.cli.settings import find_plugins_here
    from refold.plugins.registry import LOAD_S, Plugins, find_plugins, use

    if what and (Path(what).suffix == ".py" or "/" in what):
        found = find_plugins([what], installed=False, timeout_s=LOAD_S)
    else:
        found = find_plugins_here()
        found = Plugins(
            [one for one in found if what in ("", one.plugin.name)],
            [one for one in found.problems if what in ("", one.name, one.source.partition(" ")[0])],
        )
    trials = [
        Trial(plain(one.source), "load", passed=False, detail=plain(one.reason)) for one in found.problems
    ]
    if what and not len(found) and not trials:
        raise ConfigError(
            f"there is no plugin {plain(what)!r}", hint="`refold plugins list` shows those that are loaded"
        )
    with output.prints_on_stderr():
        for one in found:
            use(Plugins([one]))
            trials += asyncio.run(try_plugin(one))
        use(Plugins())
    if as_json:
        output.write_json({"trials": [structs.asdict(one) for one in trials]})
    elif trials:
        rows = [(one.plugin, one.point, "ok" if one.passed else "failed", one.detail) for one in trials]
        output.write(align(("plugin", "point", "result", "detail"), rows, cuts=("detail",)))
    else:
        output.note("there is no plugin to try")
    _note_problems(found)
    return 0 if all(one.passed for one in trials) else 1


def _note_problems(found: Plugins) -> None:
    for problem in found.problems:
        output.note(f"not loaded: {plain(problem.source)}: {plain(problem.reason)}")


def _document(one: LoadedPlugin) -> dict[str, object]:
    """A plugin for programs; its keys are documented and stay."""
    return {
        "name": one.plugin.name,
        "version": one.plugin.version,
        "api": one.plugin.api,
        "fails": one.plugin.fails,
        "timeout_s": one.plugin.timeout_s,
        "points": list(one.plugin.points),
        "source": one.source,
    }


# The trial


async def try_plugin(one: LoadedPlugin) -> list[Trial]:
    """Call every point of a plugin that is in use, and return what came of it."""
    problems = list[Trial]()
    name, plugin = plain(one.plugin.name), one.plugin
    for preset in ("refold", *plugin.presets):
        for wire in FORMATS:
            try:
                problems += [
                    Trial(name, point, passed=False, detail=f"{wire}: {error.message}")
                    for point, error in await _play(one, preset, wire)
                ]
            except RefoldError as error:
                point = "compaction" if isinstance(error, PluginError) else f"preset {preset}"
                problems.append(Trial(name, point, passed=False, detail=f"{wire}: {error.message}"))
    for summariser in plugin.summarisers:
        await _summarise(summariser)
    return [*problems, *_counted(one), *_declared(one)]


async def _play(one: LoadedPlugin, preset: str, wire: str) -> list[tuple[str, PluginError]]:
    """Play a conversation, and show its window to the filters. Return the errors of the filters, each with its point."""
    import msgspec

    from refold.engine.conversation import Conversation
    from refold.model.dialect import DIALECTS
    from refold.plugins.filters import filter_request, filter_response
    from refold.plugins.plugin import FilterResponse
    from refold.plugins.registry import Plugins
    from refold.wire.translate import translate_messages

    model = next((pattern.replace("*", "x") for pattern in one.plugin.counters), "gpt-4o")
    dialect = DIALECTS[wire]  # type: ignore[index]
    talk = Conversation(
        model, window=WINDOW, max_output=400, preset=preset, format=wire, system="You test plugins."
    )
    async with talk:
        for message in translate_messages(_sample(wire), dialect):
            await talk.add(message)
        fields = await talk.context()
        body = msgspec.json.encode({"model": model, **fields})
        reply = [{"role": "assistant", "content": "Done."}]
        shown = FilterResponse(dialect.name, model, reply)
        tries: dict[str, Coroutine[Any, Any, object]] = {
            "request": filter_request(Plugins([one]), body, dialect, model=model, conversation=talk.id),
            "response": filter_response(Plugins([one]), shown),
        }
        errors = list[tuple[str, PluginError]]()
        for point, filtering in tries.items():
            try:
                await filtering
            except PluginError as error:
                errors.append((point, error))
        return errors


def _sample(wire: str) -> list[Message]:
    """A conversation with tool calls, two at once, and results of some length. A call is an item of its own in the format
    `responses`.
    """
    from refold.model.message import ToolCall, assistant, tool, user

    said: list[Message] = []
    for turn in range(TURNS):
        calls = [
            ToolCall(f"call_{turn}_{at}", "read_file", f'{{"path": "src/{turn}_{at}.py"}}') for at in (0, 1)
        ]
        said.append(user(f"Read the files of step {turn}, and write to me at someone{turn}@example.com."))
        said += [assistant("", call) for call in calls] if wire == "responses" else [assistant("", *calls)]
        said += [tool(call.id, f"line {turn} of {call.arguments}\n" * 8) for call in calls]
        said.append(assistant(f"Step {turn} is done: both files were read."))
    return [*said, user("What was done in step 3?")]


async def _summarise(name: str) -> None:
    from contextlib import suppress

    from refold.plugins.registry import active

    messages = [
        {"role": "user", "content": "Book the ferry."},
        {"role": "assistant", "content": "Booked: F-7."},
    ]
    with suppress(Exception):  # counted by the guard
        await active().summariser(name)(messages, previous="", max_tokens=200)  # type: ignore[misc]


def _counted(one: LoadedPlugin) -> Iterator[Trial]:
    """The calls that the guard has counted."""
    counts = one.guard.counts
    for point in dict.fromkeys(point for point, _ in counts):
        wrong = [
            f"{outcome} {counts[point, outcome]}x"
            for kind, outcome in counts
            if kind == point and outcome not in ("ok", "refused")
        ]
        calls = sum(count for (kind, _), count in counts.items() if kind == point)
        yield Trial(
            plain(one.plugin.name), point, passed=not wrong, detail=", ".join(wrong) or f"{calls} calls"
        )


def _declared(one: LoadedPlugin) -> Iterator[Trial]:
    """The points that are not called here."""
    from refold.chat.commands import CommandTable

    name = plain(one.plugin.name)
    for point in one.plugin.points:
        if point in NOT_TRIED:
            passed, detail = True, f"not tried: {NOT_TRIED[point]}"
            try:
                CommandTable([*one.plugin.commands])  # type: ignore[list-item]
            except ConfigError as error:
                passed, detail = point != "commands", error.message
            yield Trial(name, point, passed=passed, detail=detail)
        elif point == "presets" or (point == "counters" and not _is_counter_replaced(one)):
            yield Trial(name, point, passed=True, detail="used")


def _is_counter_replaced(one: LoadedPlugin) -> bool:
    return any(point == "counter" for point, _ in one.guard.counts)  # only faults of counters are counted
