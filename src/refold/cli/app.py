"""The commands and their options.

One idea: asking for help must be instant, so nothing is imported here that only a command needs. Every failure that is not
a bug ends as `error:` and `hint:` on stderr with exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from refold.model.errors import ConfigError, RefoldError

MAX_BODY_BYTES = 64 * 1024 * 1024
"""As the codecs have it (a test compares); importing them would make `--help` slower."""
MAX_TOKENS = 10**12
"""Likewise, of `sizing`."""
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

File = Annotated[str, typer.Argument(metavar="FILE", help="A transcript, JSON or JSONL; - for stdin.")]
ModelName = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Default: the file's own, else gpt-4o.", show_default=False),
]
WindowTokens = Annotated[
    int | None,
    typer.Option(
        "--window", metavar="N", min=1, max=MAX_TOKENS, help="The model's window, if you know better."
    ),
]
MaxOutput = Annotated[
    int | None,
    typer.Option(
        "--max-output",
        metavar="N",
        min=0,
        max=MAX_TOKENS,
        help="Kept for the reply. Default: the file's max_tokens.",
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="chat, responses or anthropic. Default: told by the shape of the file.",
        show_default=False,
    ),
]
MaxBody = Annotated[int, typer.Option("--max-body-bytes", metavar="N", min=1, help="Refuse a larger file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


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

    These commands look at transcripts: requests or lists of messages in the format of OpenAI Chat Completions, OpenAI
    Responses or Anthropic Messages. Nothing is sent anywhere.
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


@app.command(epilog="Example: refold compact examples/coding-agent.json --window 12000 --dry-run --diff")
def compact(
    file: File,
    preset: Annotated[str, typer.Option("--preset", metavar="NAME", help="The policy to apply.")] = "refold",
    model: ModelName = "",
    window: WindowTokens = None,
    max_output: MaxOutput = None,
    now: Annotated[bool, typer.Option("--now", help="Compact whatever the thresholds say.")] = False,
    target: Annotated[
        str, typer.Option("--output", metavar="PATH", help="Write the transcript there.", show_default=False)
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="List every message before and after.")] = False,
    format_name: Format = "",
    max_body_bytes: MaxBody = MAX_BODY_BYTES,
    as_json: Json = False,
) -> int:
    """Write what a preset makes of a transcript, and say what it did and why.

    The transcript is told to the engine message by message, as it once arrived. What the preset would send next is written
    to stdout in the shape it came in; what was done is told beside it. No model is called, and FILE stays as it is.
    """
    from refold.cli.compact import Order
    from refold.cli.compact import run as run_compact
    from refold.cli.sizing import Wish

    wish = Wish(model, window, max_output)
    order = Order(
        preset=preset, wish=wish, now=now, target=target, dry_run=dry_run, diff=diff, as_json=as_json
    )
    return run_compact(file, order, format_name=format_name, max_body_bytes=max_body_bytes)


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


def _in_our_words(error: Exception) -> ConfigError:
    command = getattr(getattr(error, "ctx", None), "command_path", "refold")
    message = getattr(error, "format_message", error.__str__)()
    return ConfigError(message, hint=f"see {command} --help")
