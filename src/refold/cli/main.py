"""The `refold` app: registers the commands and turns every error that is not a bug into `error:` and `hint:` with exit code 2.

`SECTIONS` is the order of `refold --help`: the commands that people need first come first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from refold.cli.commands import (
    chat,
    check,
    compact,
    completion,
    config,
    context,
    conversations,
    dashboard,
    db,
    delete,
    demo,
    diff,
    doctor,
    expire,
    export,
    import_,
    jobs,
    keys,
    limits,
    local,
    mcp,
    models,
    new,
    off,
    pin,
    plugins,
    recall,
    replay,
    rerun,
    resume,
    search,
    serve,
    sessions,
    show,
    stats,
    undo,
    worker,
)
from refold.cli.options import LINE, one_spelling
from refold.model.errors import ConfigError, RefoldError

COMMANDS = (
    *(context, check, compact, models, limits),
    *(conversations, stats, sessions, show, search, recall, diff, export, doctor),
    *(import_, undo, pin, off, rerun, new, resume, delete, expire),
    *(replay, serve, dashboard, chat, demo, mcp),
    *(db, keys, config, plugins, local, completion),
    *(worker, jobs),
)
SECTIONS = {
    "Start here": "serve dashboard chat demo context conversations show",
    "Stored conversations": "stats sessions search recall diff compact undo rerun pin unpin off on new resume import export delete expire",
    "Transcripts and models": "check replay models limits local",
    "The gateway and its store": "config keys plugins db doctor worker jobs mcp completion",
}
WrongUsage = cast("type[Exception]", typer.BadParameter.__base__)
"""Every mistake on the command line. Typer has no public name for it: the class is its own or click's, by version."""
HELP = frozenset(("-h", "--help"))
FAILED = 2
INTERRUPTED = 130


class Sections(TyperGroup):
    """Lists the commands in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        for title, names in SECTIONS.items():
            with formatter.section(title):
                listed = ((name, self.commands[name]) for name in names.split())
                formatter.write_dl([(name, command.get_short_help_str(LINE)) for name, command in listed])


app = typer.Typer(
    cls=Sections,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": one_spelling},
)


def main() -> None:
    """Run the program and exit."""
    if sys.stderr is None:  # closed (`2>&-`): nobody reads what is written there
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  # for as long as the program runs
    sys.exit(run())


def run(args: Sequence[str] | None = None) -> int:
    """Run the program; the result is its exit code."""
    from refold.cli.output import guarded, show_error

    if completion.VARIABLE in os.environ:  # a shell asks what could follow
        from typer.completion import completion_init  # type: ignore[attr-defined]  # it is imported there

        completion_init()
    asks_for_help = not HELP.isdisjoint(sys.argv[1:] if args is None else args)
    try:
        with guarded() if asks_for_help else nullcontext():  # typer writes the help itself
            return int(app(args=args, prog_name="refold", standalone_mode=False) or 0)
    except RefoldError as error:
        show_error(error)
        return FAILED
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except WrongUsage as error:
        show_error(_usage_error(error, sys.argv[1:] if args is None else args))
        return FAILED


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> int:
    """Refold keeps LLM conversations inside the context window without losing anything.

    Some commands look at transcripts: requests or lists of messages in the format of OpenAI Chat Completions, OpenAI
    Responses or Anthropic Messages. Others keep conversations in a store: `refold import`, `refold chat` and `refold serve`
    fill it. Only `refold serve` sends anything anywhere, and the commands for which you name a model. `refold local install`
    downloads a small model (98 MB) with pip.
    """
    if version:
        from importlib.metadata import version as installed

        from refold.cli.output import write

        write(f"refold {installed('refold')}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(FAILED)
    return 0


_NOT_A_NUMBER = re.compile(r"(?:Input should be|'[^'\n]{0,200}' is not) a valid (number|float|integer)\b.*")
"""What typer says of an option that takes a number, in the words of its validation or of Click."""
_NUMBERS = {"number": "a number", "float": "a number", "integer": "a whole number"}


def _usage_error(error: Exception, args: Sequence[str]) -> ConfigError:
    """A mistake on the command line, in the voice of the other errors: lower case, no full stop."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "refold")
    message = str(getattr(error, "format_message", error.__str__)())
    if context is not None and message.startswith("Got unexpected extra argument"):
        switches = {
            name: (one.opts[0], one.secondary_opts[0])
            for one in context.command.params
            if one.secondary_opts
            for name in (*one.opts, *one.secondary_opts)
        }
        after = [one for one, value in pairwise(args) if not value.startswith("-")]
        if given := next((one for one in after if one in switches), ""):
            on, off = switches[given]
            return ConfigError(f"{given} takes no value", hint=f"write {on} or {off}")
    for typed in args:  # an option is named as it was typed, not in the spelling that it was looked up by
        message = message.replace(one_spelling(name), name) if (name := typed.partition("=")[0]) else message
    message = _NOT_A_NUMBER.sub(lambda found: f"it is not {_NUMBERS[found[1]]}", message)
    return ConfigError(message[:1].lower() + message[1:].removesuffix("."), hint=f"see {command} --help")


for command in COMMANDS:
    command.declare(app)
