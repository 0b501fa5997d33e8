"""`refold completion`: prints the script with which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli import output
from refold.model.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_REFOLD_COMPLETE"
"""The variable by which a script asks; typer makes the name from that of the program."""
EXAMPLES = """\b
Examples:
  refold completion bash > ~/.local/share/bash-completion/completions/refold
  refold completion zsh > ~/.zfunc/_refold
  refold completion fish > ~/.config/fish/completions/refold.fish"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(completion)


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
) -> int:
    """Print the script that completes commands and options in a shell.

    The script asks `refold` itself at every Tab, so it need not be written again after an upgrade.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it is imported there

    if shell not in SHELLS:
        raise ConfigError("there is no completion for this shell", hint=f"choose one of {', '.join(SHELLS)}")
    script = get_completion_script(prog_name="refold", complete_var=VARIABLE, shell=shell)
    output.write(f"{script}\n")
    return 0
