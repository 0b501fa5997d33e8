"""`refold config`: the settings, and where they come from.

One idea: as in `app`, only words are here, so that help is instant.
"""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.options import Json

SettingsFile = Annotated[
    str,
    typer.Argument(
        metavar="[FILE]", help="A file of settings. Default: all that holds here.", show_default=False
    ),
]


def declare(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    config = typer.Typer(help="The settings: write a file, show what holds, check it.", rich_markup_mode=None)
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
    from refold.cli.configuring import init as run

    return run(for_user=user, force=force)


def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Say of each that is set where it comes from.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show the settings that hold here, as TOML: from the environment, the project's file and your own.

    Secrets are not shown: users, passwords and queries in addresses, values of headers, arguments of commands, patterns of what is
    sensitive.
    """
    from refold.cli.configuring import show as run

    return run(with_origins=origin, as_json=as_json)


def schema() -> int:
    """Print the JSON schema of the file, for editors."""
    from refold.cli.configuring import schema as run

    return run()


def check(file: SettingsFile = "", as_json: Json = False) -> int:
    """List what is wrong with a file of settings, or with all that holds here.

    The exit code is 1 if there is anything.
    """
    from refold.cli.configuring import check as run

    return run(file, as_json=as_json)
