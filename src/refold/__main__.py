"""The `refold` script.

The library alone has no command line: `typer` and `rich` come with the extra `cli`. Without it the script says so
instead of showing a traceback.
"""

from __future__ import annotations

import sys

from refold.model.errors import MissingExtra

CLI_PACKAGES = frozenset({"typer", "rich", "click"})


def main() -> None:
    try:
        from refold.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in CLI_PACKAGES:
            raise
        missing = MissingExtra("cli", "the command line")
        sys.stderr.write(f"error: {missing.message}\nhint: {missing.hint_for(sys.executable)}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
