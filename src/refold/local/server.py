"""Runs a server for the local model, as a child process.

Every program on this machine can reach its port, so it gets a random key. Its log may contain the
conversation, so the log is discarded. A crash of the server is only a failed call. The server exits when its
standard input is closed.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from refold.local.weights import weights_path
from refold.model.errors import ConfigError, MissingExtra

WINDOW = 8_192
"""The window that SmolLM2 was trained for."""
THREADS = 1
"""One thread: summaries are written in the background, and the other cores serve the foreground."""


class Served(Struct, frozen=True):
    """A running model that speaks OpenAI Chat."""

    base_url: str
    key: str
    model: str
    window: int

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def __repr__(self) -> str:
        return f"<served {self.model}>"


@contextmanager
def serve_local(
    weights: Path | None = None, *, window: int = WINDOW, threads: int = THREADS
) -> Iterator[Served]:
    """Run the local model, or a GGUF file of your own, until the block ends.

    Raises:
        ConfigError: the weights are missing or cannot be used.
        MissingExtra: xllamacpp is not installed.
    """
    file = weights or weights_path()
    if find_spec("xllamacpp") is None:
        raise MissingExtra("local", "a model on this machine")
    if not file.is_file():
        raise ConfigError(
            f"the weights {file.name} are missing", hint="fetch them with: refold local install"
        )
    key = secrets.token_urlsafe(32)
    with _start() as server:
        try:
            address = _address(server, (str(file.resolve()), key, window, threads))
            yield Served(f"{address}/v1", key, file.stem, window)
        finally:
            server.kill()  # it has no state that an orderly exit would save


def run() -> None:
    """The main function of the server process: reads one line, prints its address, and serves until its input
    is closed.
    """
    weights, key, window, threads = msgspec.json.decode(sys.stdin.buffer.readline())
    llama = import_module("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel = weights, window, 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.api_keys, settings.port, settings.verbosity = [key], 0, -1
    settings.endpoint_slots = False  # it would show the text in progress
    # The model name in replies: by default the path of the weights. Older releases take a string.
    name = Path(weights).stem
    settings.model_alias = {name} if isinstance(getattr(settings, "model_alias", ""), set) else name
    if hasattr(settings, "cors_origins"):  # older releases have no such setting; the key keeps web pages out
        settings.cors_origins = ""
    server = llama.Server(settings)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


def _start() -> subprocess.Popen[bytes]:
    # -P: ignore modules in the current directory. A session of its own: Ctrl-C stops a reply in the caller
    # but not the server.
    command = [sys.executable, "-P", "-c", "from refold.local.server import run; run()"]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, 0, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True)  # noqa: S603


def _address(server: subprocess.Popen[bytes], order: tuple[str, str, int, int]) -> str:
    """Send the settings on standard input, because arguments and environments are visible to other processes."""
    assert server.stdin
    assert server.stdout
    with suppress(BrokenPipeError):  # it exited at once: then its output has ended as well
        server.stdin.write(msgspec.json.encode(order) + b"\n")
    for line in server.stdout:
        if line.startswith(b"http://127.0.0.1:"):
            return line.decode().strip()
    raise ConfigError("the local model did not start", hint="are the weights a GGUF file of a chat model?")
