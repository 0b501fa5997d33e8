"""The arguments and options that several commands share, each described once.

Options that always come together are an `OptionGroup`: a command takes one parameter of that type, and `expanded` makes an option of
every field. Nothing heavy is imported here: `--help` loads this module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer
from msgspec import NODEFAULT, Struct, structs
from typer.core import TyperGroup

from refold.model.errors import MAX_TOKENS, MIN_WINDOW

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The limit of the codecs (a test compares); importing them would make `--help` slower."""
OWNER = "local"
"""The engine's default owner (a test compares)."""


def token_count(least: int = 0, most: int = MAX_TOKENS) -> Callable[[str], int]:
    """The parser of an option that takes a number of tokens, written as in the settings: 4000, 4k or 1m."""

    def read(text: str) -> int:
        from refold.config.parse import Unreadable, read_tokens

        try:
            return read_tokens(text, least, most)
        except Unreadable as error:
            raise typer.BadParameter(f"{text!r}: {error}; {error.hint}") from None

    return read


JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
FileArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A transcript, JSON or JSONL; - for stdin.")
]
Conv: TypeAlias = Annotated[
    str, typer.Argument(metavar="CONV", help="The name of a stored conversation.", show_default=False)
]
BranchId: TypeAlias = Annotated[
    str,
    typer.Option(
        "--branch",
        metavar="ID",
        help="Another branch than the one used last; the first letters of its id are enough.",
        show_default=False,
    ),
]
Preset: TypeAlias = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="The policy to apply. Default: the setting compaction.preset, else refold.",
        show_default=False,
    ),
]
WindowOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--window",
        metavar="TOKENS",
        parser=token_count(MIN_WINDOW),
        help="The model's window, such as 12000 or 12k. Default: as last used, else looked up.",
    ),
]
ShowsDiff: TypeAlias = Annotated[bool, typer.Option("--diff", help="List every message before and after.")]


def at_least(least: float) -> Callable[[float | None], float | None]:
    """Checks a number. `min=` would do the same, and write `[x>=1]` into the help."""

    def check(value: float | None) -> float | None:
        if value is not None and value < least:
            raise typer.BadParameter(f"{value} is less than {least}")
        return value

    return check


LimitOption: TypeAlias = Annotated[
    int, typer.Option("--limit", metavar="N", callback=at_least(1), help="How many at most.")
]


def _settled(url: str) -> str:
    """The store that was named, or the one that the gateway uses here; a file by its absolute path.

    Every warning about the spelling of a URL is given here, once: commands go on with a path that has one meaning.
    """
    from refold.cli.output import note
    from refold.cli.settings import load_plugins_here, store_url
    from refold.stores.url import sqlite_file

    chosen = url or store_url()
    if "://" in chosen and chosen.partition(":")[0] not in ("sqlite", "postgres", "postgresql"):
        load_plugins_here()
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
SUMMARISER_METAVAR = "SPEC"


def one_spelling(option: str) -> str:
    """The name of an option in the one spelling that options have: `summarizer` is taken for `summariser`."""
    return option.replace("summarizer", "summariser")


class OptionGroup(Struct, frozen=True):
    """Options that a command takes together, as one value. Every field has its option in its annotation."""


class StoreOptions(OptionGroup, frozen=True):
    """The store of a command, and whose conversations in it."""

    url: StoreUrl = ""
    owner: Owner = OWNER


def model_name(name: str) -> str:
    """
    Raises:
        ConfigError: an address is given with the name. It may hold a password, and the name is shown.
    """
    from refold.model.errors import ConfigError

    if "://" in name:
        raise ConfigError(
            "--model takes the name of a model, without an address",
            hint="write the part before the @; the address of a model that writes summaries belongs to --summariser",
        )
    return name


class SizeOptions(OptionGroup, frozen=True):
    """The model and the sizes that were asked for; empty or None where the transcript or a default decides."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            callback=model_name,
            help="Whose tokenizer and window are used. Default: that of the file or conversation, else gpt-4o.",
            show_default=False,
        ),
    ] = ""
    window: WindowOption = None
    max_output: Annotated[
        int | None,
        typer.Option(
            "--max-output",
            metavar="TOKENS",
            parser=token_count(),
            help="Kept for the reply. Default: as in the file or the last request.",
        ),
    ] = None


class TranscriptOptions(OptionGroup, frozen=True):
    """How a transcript is read."""

    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="chat, responses or anthropic. Default: told by the shape of the file.",
            show_default=False,
        ),
    ] = ""
    max_body_bytes: Annotated[
        int, typer.Option("--max-body-bytes", metavar="N", callback=at_least(1), help="Refuse a larger file.")
    ] = MAX_BODY_BYTES


class SummariserOptions(OptionGroup, frozen=True):
    """The model that writes a summary of a stored conversation, if any."""

    spec: Annotated[
        str,
        typer.Option(
            "--summariser",
            metavar=SUMMARISER_METAVAR,
            help="The model that writes the summary: PROVIDER:MODEL or MODEL@URL; native for a compaction by the conversation's own provider; digest for no model. Default: the setting summariser.models, else a digest.",
            show_default=False,
        ),
    ] = ""
    key_env: Annotated[
        str,
        typer.Option(
            "--key-env",
            metavar="NAME",
            help="The variable that holds the key for MODEL@URL, if any.",
            show_default=False,
        ),
    ] = ""


DIGEST = "digest"
"""The name of a summariser that means no model."""
NO_MODEL = SummariserOptions(spec=DIGEST)


def expanded(command: Callable[..., int]) -> Callable[..., int]:
    """The command as typer takes it: instead of each parameter that is a group, a parameter for every field of the group."""
    parameters = signature(command, eval_str=True).parameters
    groups: dict[str, type[OptionGroup]] = {
        name: one.annotation for name, one in parameters.items() if _is_group(one.annotation)
    }

    @wraps(command)
    def run(**given: Any) -> int:
        for name, group in groups.items():
            fields = {field: given.pop(f"{name}_{field}") for field in group.__struct_fields__}
            given[name] = group(**fields)
        return command(**given)

    flat: list[Parameter] = []
    for name, one in parameters.items():
        flat += _fields(name, groups[name]) if name in groups else [one]
    keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in flat]
    run.__signature__ = signature(command).replace(parameters=keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would look them up again, and those of `command` are not these
    return run


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


@cache
def _fields(name: str, group: type[OptionGroup]) -> tuple[Parameter, ...]:
    """Cached: the annotations of a group are evaluated once, and not for every command that has it."""
    hints = get_type_hints(group, include_extras=True)
    return tuple(
        Parameter(
            f"{name}_{one.name}",
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if one.default is NODEFAULT else one.default,
            annotation=hints[one.name],
        )
        for one in structs.fields(group)
    )


LINE = 200
"""Characters of a command's line in the list: more than any has, so that none is cut."""


class WholeLines(TyperGroup):
    """Lists the commands of a group, each with the whole first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(LINE)) for name, command in self.commands.items()]
            )
