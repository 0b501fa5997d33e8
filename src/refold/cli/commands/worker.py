"""`refold worker`: runs the background jobs of a cluster."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import typer

from refold.cli import output
from refold.cli.commands.serve import GroupedCommand, with_settings
from refold.config.layers import Layer

EXAMPLES = """\b
Examples:
  refold worker --store postgresql://refold@db/refold
  refold worker --store postgresql://refold@db/refold --cluster-concurrency 16"""
READY = "the worker takes jobs"


def declare(app: typer.Typer) -> None:
    app.command(cls=GroupedCommand, epilog=EXAMPLES)(with_settings(worker))


def worker(flags: Layer) -> int:
    """Run the background jobs of gateways that share a PostgreSQL: summaries, session summaries, vectors, retention.

    Start as many as you like, with the settings and the keys of the gateways, which have `cluster.jobs` on. A worker asks models
    with the operator's keys only. It finishes its jobs when it is told to stop, or gives them back. The extras `cluster` and
    `server` are needed; docs/cluster.md tells the rest.
    """
    from refold.cli.settings import check_server_extra, load_plugins_here

    check_server_extra("the worker")
    from refold.config import environment_layer, file_layers, resolve
    from refold.gateway.log import set_up
    from refold.gateway.server import run_worker
    from refold.text_work import is_text_worked_on

    load_plugins_here(flags)
    resolved = resolve([flags, environment_layer(os.environ), *file_layers(os.environ, Path.cwd())])
    server = resolved.settings.server
    set_up(server.log, server.log_level)

    def tell() -> None:
        if server.log == "json":
            logging.getLogger("refold.worker").info(READY)
        else:
            output.note(READY)

    run_worker(resolved, tell)
    if is_text_worked_on():
        logging.shutdown()
        os._exit(0)
    return 0
