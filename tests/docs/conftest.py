"""A gateway for the examples that call one: started as anybody starts it, before a provider that repeats what is said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from refold.testing import ScriptedUpstream, echo
from tests.program import command


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Iterator[dict[str, str]]:
    """What is to be exported so that clients find it."""
    place = tmp_path_factory.mktemp("served")
    (place / "none.toml").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    with ScriptedUpstream(otherwise=echo) as upstream:
        argv = [*command(), "serve", "--port", "0", "--store", "memory:"]
        argv += [
            "--upstream",
            f"mine={upstream.url}/v1",
            "--upstreams-formats",
            "mine=chat,responses,anthropic",
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        own = {**environ, "REFOLD_CONFIG": str(place / "none.toml")}
        with subprocess.Popen(argv, text=True, cwd=place, env=own, **pipes) as process:
            assert process.stdout
            url = process.stdout.readline().strip()
            keys = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}
            yield {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url, **keys}
            process.terminate()
