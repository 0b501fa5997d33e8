"""Arguments and options that several commands share, each with its words.

One idea: an option means the same everywhere, so it is described once. Nothing heavy is imported here: asking for help must be
instant.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

MAX_BODY_BYTES = 64 * 1024 * 1024
"""As the codecs have it (a test compares); importing them would make `--help` slower."""
MAX_TOKENS = 10**12
"""Likewise, of `sizing`."""
OWNER = "local"
"""Likewise, of `keeping`."""

File: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A transcript, JSON or JSONL; - for stdin.")
]
ModelName: TypeAlias = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Default: the file's own, else gpt-4o.", show_default=False),
]
WindowTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--window", metavar="N", min=1, max=MAX_TOKENS, help="The model's window, if you know better."
    ),
]
MaxOutput: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-output",
        metavar="N",
        min=0,
        max=MAX_TOKENS,
        help="Kept for the reply. Default: the file's max_tokens.",
    ),
]
Format: TypeAlias = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="chat, responses or anthropic. Default: told by the shape of the file.",
        show_default=False,
    ),
]
MaxBody: TypeAlias = Annotated[
    int, typer.Option("--max-body-bytes", metavar="N", min=1, help="Refuse a larger file.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def _settled(url: str) -> str:
    """The store that was named, or the one that the gateway uses here; a file by its absolute path.

    Everything that is to be said about the spelling of a URL is said here, once: commands go on with a path that has one meaning.
    """
    from refold.cli.configuring import store_url
    from refold.cli.output import note
    from refold.store.place import sqlite_file

    chosen = url or store_url()
    path = sqlite_file(chosen, lambda text: note(f"warning: {text}")) if chosen else None
    return chosen if path is None else str(path)


StoreUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="REFOLD_STORE",
        callback=_settled,
        help="A path, sqlite:///relative/path, sqlite:////absolute/path or postgresql://... Default: the setting store.url, "
        "else a file in your data folder.",
        show_default=False,
    ),
]
Owner: TypeAlias = Annotated[
    str, typer.Option("--owner", metavar="NAME", help="Whose conversations. Nobody sees another's.")
]
Conv: TypeAlias = Annotated[
    str, typer.Argument(metavar="CONV", help="The name of a stored conversation.", show_default=False)
]
BranchId: TypeAlias = Annotated[
    str,
    typer.Option(
        "--branch",
        metavar="ID",
        help="Another branch than the one begun last; the first letters of its id are enough.",
        show_default=False,
    ),
]
Preset: TypeAlias = Annotated[str, typer.Option("--preset", metavar="NAME", help="The policy to apply.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Diff: TypeAlias = Annotated[bool, typer.Option("--diff", help="List every message before and after.")]
Now: TypeAlias = Annotated[bool, typer.Option("--now", help="FILE: compact whatever the thresholds say.")]
Target: TypeAlias = Annotated[
    str,
    typer.Option("--output", metavar="PATH", help="FILE: write the transcript there.", show_default=False),
]
Focus: TypeAlias = Annotated[
    str,
    typer.Option(
        "--focus", metavar="TEXT", help="CONV: what the summary gives its room to.", show_default=False
    ),
]
Summarizer: TypeAlias = Annotated[
    str,
    typer.Option(
        "--summarizer",
        metavar="SPEC",
        help="CONV: the model that writes it, PROVIDER:MODEL or MODEL@URL. Default: none, a digest.",
        show_default=False,
    ),
]
KeyEnv: TypeAlias = Annotated[
    str,
    typer.Option(
        "--key-env",
        metavar="NAME",
        help="CONV: the variable that holds the key for MODEL@URL, if any.",
        show_default=False,
    ),
]
PinHandle: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="HANDLE", help="Of a message, such as '#m12'. Default: list what is pinned."),
]
UnpinHandle: TypeAlias = Annotated[
    str, typer.Argument(metavar="HANDLE", help="Of a pinned message, such as '#m12'.")
]
FileOrConv: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE|CONV", help="A transcript (- for stdin), or a stored conversation.")
]
