"""The commands and their options.

One idea: asking for help must be instant, so nothing is imported here that only a command needs. Every failure that is not
a bug ends as `error:` and `hint:` on stderr with exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from refold.cli import acting, asking, config
from refold.cli.options import (
    MAX_BODY_BYTES,
    OWNER,
    BranchId,
    Diff,
    DryRun,
    File,
    FileOrConv,
    Focus,
    Format,
    Json,
    KeyEnv,
    MaxBody,
    MaxOutput,
    ModelName,
    Now,
    Owner,
    Preset,
    StoreUrl,
    Summarizer,
    Target,
    WindowTokens,
)
from refold.model.errors import ConfigError, RefoldError

WrongUsage = cast("type[Exception]", typer.BadParameter.__base__)
"""Every mistake on the command line. Typer has no public name for it: the class is its own or click's, by version."""
FAILED = 2
INTERRUPTED = 130

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMPACT_EXAMPLES = """\b
Examples:
  refold compact examples/coding-agent.json --window 12000 --dry-run --diff
  refold compact support-42 --dry-run
  refold compact support-42 --focus "the refund" --summarizer openai:gpt-4o-mini"""


def main() -> None:
    """Run the program and exit."""
    sys.exit(run())


def run(args: Sequence[str] | None = None) -> int:
    """Run the program; the answer is its exit code."""
    from refold.cli.output import show_error

    try:
        return int(app(args=args, prog_name="refold", standalone_mode=False) or 0)
    except RefoldError as error:
        show_error(error)
        return FAILED
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except WrongUsage as error:
        show_error(_in_our_words(error))
        return FAILED


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> int:
    """Refold keeps LLM conversations inside the context window without losing anything.

    Some commands look at transcripts: requests or lists of messages in the format of OpenAI Chat Completions, OpenAI
    Responses or Anthropic Messages. Others keep conversations in a store: `refold import` is where those begin. Nothing is
    sent anywhere, unless you name a model.
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


@app.command(epilog="Example: refold context examples/coding-agent.json --model gpt-4o")
def context(
    file: File,
    model: ModelName = "",
    window: WindowTokens = None,
    max_output: MaxOutput = None,
    format_name: Format = "",
    max_body_bytes: MaxBody = MAX_BODY_BYTES,
    as_json: Json = False,
) -> int:
    """Show what fills the context window.

    Draws the window as a grid of 200 cells and lists its regions, each with its tokens and where the number comes from:
    counted with the model's tokenizer, or estimated.
    """
    from refold.cli.context import run as show_context
    from refold.cli.sizing import Wish

    wish = Wish(model, window, max_output)
    return show_context(file, wish, format_name=format_name, max_body_bytes=max_body_bytes, as_json=as_json)


@app.command(epilog="Example: refold check examples/coding-agent.json --as-request")
def check(
    file: File,
    as_request: Annotated[
        bool, typer.Option("--as-request", help="Add the rules for a request that is about to be sent.")
    ] = False,
    model: ModelName = "",
    window: WindowTokens = None,
    max_output: MaxOutput = None,
    format_name: Format = "",
    max_body_bytes: MaxBody = MAX_BODY_BYTES,
    as_json: Json = False,
) -> int:
    """List the rules of its format that a transcript breaks.

    Every finding names the message by its index in the file and says what to do. The exit code is 1 if there is any.
    """
    from refold.cli.check import run as show_check
    from refold.cli.sizing import Wish

    return show_check(
        file,
        Wish(model, window, max_output),
        as_request=as_request,
        format_name=format_name,
        max_body_bytes=max_body_bytes,
        as_json=as_json,
    )


@app.command(epilog=COMPACT_EXAMPLES)
def compact(
    what: FileOrConv,
    preset: Preset = "refold",
    model: ModelName = "",
    window: WindowTokens = None,
    max_output: MaxOutput = None,
    now: Now = False,
    target: Target = "",
    dry_run: DryRun = False,
    diff: Diff = False,
    format_name: Format = "",
    max_body_bytes: MaxBody = MAX_BODY_BYTES,
    focus: Focus = "",
    summarizer: Summarizer = "",
    key_env: KeyEnv = "",
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Make a transcript or a stored conversation smaller, and say what was done and why.

    What is the name of a file is a FILE: it is told to the engine message by message, as it once arrived. What the preset would
    send next is written to stdout in the shape it came in; what was done is told beside it. No model is called, and FILE stays as
    it is.

    Anything else is a CONV: what is shown of it changes at once, whatever the thresholds say, and a new session begins.
    `refold undo` takes that back, and nothing that was said is touched.
    """
    from refold.cli import reading, sizing

    shown: dict[str, Any] = {"preset": preset, "dry_run": dry_run, "diff": diff, "as_json": as_json}
    shown["wish"] = sizing.Wish(model, window, max_output)
    kept = {"focus": focus, "summarizer": summarizer, "key_env": key_env, "branch": branch}
    if reading.is_file(what):
        _check_unused("a stored conversation", **kept)
        return _compact_file(what, format_name, max_body_bytes, now=now, target=target, **shown)
    _check_unused("a file", output=target, format=format_name, now=now)
    return _fold((store, owner), what, **shown, **kept)


def _compact_file(path: str, format_name: str, max_body_bytes: int, **order: Any) -> int:
    from refold.cli import compact as files

    return files.run(path, files.Order(**order), format_name=format_name, max_body_bytes=max_body_bytes)


def _fold(place: tuple[str, str], name: str, **order: Any) -> int:
    from refold.cli import folding
    from refold.cli.stored import Place

    return folding.compact(Place(*place), name, folding.Order(**order))


@app.command(epilog="Example: refold models sonnet")
def models(
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="A part of the name.", show_default=False)
    ] = "",
    show_all: Annotated[bool, typer.Option("--all", help="Show every match, not only the first 50.")] = False,
    as_json: Json = False,
) -> int:
    """List known models with their windows and prices.

    Prices are in dollars for a million tokens: input, output, and what is read from or written to the provider's cache.
    """
    from refold.cli.models import run as show_models

    return show_models(pattern, show_all=show_all, as_json=as_json)


@app.command(epilog="Example: refold features --open")
def features(
    done: Annotated[bool, typer.Option("--done", help="Only what is finished.")] = False,
    still_open: Annotated[bool, typer.Option("--open", help="Only what is not.")] = False,
    as_json: Json = False,
) -> int:
    """List Refold's features with the tests that prove them.

    For its developers: it reads features.toml and the tests of the checkout that it is run in.
    """
    from pathlib import Path

    from refold.cli.features import State, report
    from refold.cli.output import write

    if done and still_open:
        raise ConfigError("--done and --open exclude each other", hint="leave both out to see every feature")
    state: State = "done" if done else "open" if still_open else "all"
    write(report(Path.cwd(), state=state, as_json=as_json) + "\n")
    return 0


def _check_unused(what: str, **given: object) -> None:
    """Options that mean nothing here would be passed over in silence."""
    for option, value in given.items():
        if value:
            name = option.replace("_", "-")
            raise ConfigError(f"--{name} is for {what}", hint="see refold compact --help")


def _in_our_words(error: Exception) -> ConfigError:
    command = getattr(getattr(error, "ctx", None), "command_path", "refold")
    message = getattr(error, "format_message", error.__str__)()
    return ConfigError(message, hint=f"see {command} --help")


asking.declare(app)
acting.declare(app)
config.declare(app)
