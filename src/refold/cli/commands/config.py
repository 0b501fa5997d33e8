"""`refold config`: the settings that hold where the command runs, and where they come from."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption, WholeLines
from refold.cli.output import plain, plural
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.model.errors import SettingError


MAX_FAULT = 1_000
"""Characters of one fault: a path and a sentence, which may name a path too."""


def declare(app: typer.Typer) -> None:
    config = typer.Typer(
        cls=WholeLines,
        help="The settings: write a file, show the values in effect, check them.",
        rich_markup_mode=None,
    )
    config.command("init", epilog="Example: refold config init")(init)
    config.command("show", epilog="Example: refold config show --origin")(show)
    config.command("schema", epilog="Example: refold config schema > refold.schema.json")(schema)
    config.command("check", epilog="Example: refold config check refold.toml")(check)
    app.add_typer(config, name="config")


def init(
    user: Annotated[bool, typer.Option("--user", help="Your own file, for all projects.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> int:
    """Write a file in which every setting stands as a comment, and print where it is.

    It is refold.toml in this folder: the file of the project. Nothing changes until a comment mark is taken away.
    """
    from refold.config.formats import commented
    from refold.config.layers import PROJECT_FILE, replace_file, user_file

    path = user_file(os.environ, sys.platform, Path.home()) if user else Path.cwd() / PROJECT_FILE
    if path.exists() and not force:
        raise ConfigError(f"{plain(str(path))} is there already", hint="--force writes over it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path.resolve(), commented().encode())
    except OSError as error:
        raise ConfigError(
            f"{plain(str(path))} cannot be written: {error.strerror}",
            hint="see that its folder can be written and has room",
        ) from None
    output.write(f"{plain(str(path))}\n")
    return 0


def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Say of each that is set where it comes from.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show the settings that hold here, as TOML: from the environment, the project's file and your own.

    Secrets are not shown: users, passwords and queries in addresses, values of headers, arguments of commands, patterns of what is
    sensitive.
    """
    from refold.cli.settings import find_plugins_here, layers_here
    from refold.config.formats import settings_toml, tree_of
    from refold.config.resolution import resolve
    from refold.plugins.registry import use

    use(find_plugins_here())  # for their presets; one that cannot be loaded is no matter of this command
    resolved = resolve(layers_here())
    if as_json:
        output.write_json({"settings": tree_of(resolved), "origins": resolved.origins})
    else:
        output.write(settings_toml(resolved, with_origins=origin))
    return 0


def schema() -> int:
    """Print the JSON schema of the file, for editors."""
    from refold.config.formats import schema as schema_of

    output.write_json(schema_of())
    return 0


def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A file of settings. Default: all that holds here.", show_default=False
        ),
    ] = "",
    as_json: JsonOption = False,
) -> int:
    """List what is wrong with a file of settings, or with all that holds here.

    The exit code is 1 if there is anything.
    """
    from refold.cli.settings import layers_here
    from refold.config.layers import PROJECT_FILE, file_layer
    from refold.config.resolution import faults

    if file:
        path = Path(file)  # a file of the project's name is read as the project's
        layers = [file_layer(path, "project" if path.name == PROJECT_FILE else "user")]
    else:
        layers = layers_here()
    found = faults(layers)
    if as_json:
        rows = [{"key": one.key, "place": one.place, "what": one.what, "hint": one.hint} for one in found]
        output.write_json({"faults": rows, "files": [layer.path for layer in layers if layer.path]})
    else:
        output.write("".join(f"{plain(one.located, MAX_FAULT)}\n  hint: {one.hint}\n" for one in found))
        output.note(_verdict(found, [layer.path for layer in layers], has_environment=not file))
    return 1 if found else 0


def _verdict(found: Sequence[SettingError], paths: Sequence[str], *, has_environment: bool) -> str:
    """The number of faults and where they are, or everything that was read if there are none."""
    files = [path for path in paths if path]
    if not found:
        read = [*map(plain, files), *(["the environment"] if has_environment else [])]
        return f"no faults in {' and '.join(read)}"
    where = {next((path for path in files if one.place.startswith(path)), ""): None for one in found}
    named = " and ".join(plain(path) or "the environment" for path in where)
    return f"{plural(len(found), 'fault')} in {named}"
