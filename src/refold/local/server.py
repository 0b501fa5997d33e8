"""A server for the local model, as long as it is needed.

One idea: the server is a process of its own. Any program here can reach its port, so it gets a key that nobody can guess; its
log may hold what is said, so nobody keeps it; a crash of it is a failed call and no more; it ends when its input does.
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
"""What SmolLM2 was trained for."""
THREADS = 1
"""Summaries are written in the background: the other cores are for what somebody waits for."""


class Served(Struct, frozen=True):
    """A model that can be asked in the format of OpenAI Chat."""

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
    """The local model, or a GGUF file of your own, until the block ends.

    Raises:
        ConfigError: the weights are not there, or cannot be used.
        MissingExtra: xllamacpp is not installed.
    """
    file = weights or weights_path()
    if find_spec("xllamacpp") is None:
        raise MissingExtra("local", "a model on this machine")
    if not file.is_file():
        raise ConfigError(f"there are no weights {file.name}", hint="fetch them with: refold local install")
    key = secrets.token_urlsafe(32)
    with _started() as server:
        try:
            address = _address(server, (str(file.resolve()), key, window, threads))
            yield Served(f"{address}/v1", key, file.stem, window)
        finally:
            server.kill()  # it keeps nothing that an orderly end would save


def run() -> None:
    """The server's own program: it reads one line, says where it can be reached, and serves until its input ends."""
    weights, key, window, threads = msgspec.json.decode(sys.stdin.buffer.readline())
    llama = import_module("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel = weights, window, 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.api_keys, settings.port, settings.verbosity = [key], 0, -1
    settings.endpoint_slots = False  # it would show what is being read and written
    # What replies call the model: without it, the path of the weights. Older releases take a text.
    name = Path(weights).stem
    settings.model_alias = {name} if isinstance(getattr(settings, "model_alias", ""), set) else name
    if hasattr(settings, "cors_origins"):  # releases before it leave it to the key to keep web pages out
        settings.cors_origins = ""
    server = llama.Server(settings)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


def _started() -> subprocess.Popen[bytes]:
    # -P: what lies in the current directory is not the program that is meant. A session of its own: whoever stops a reply
    # with Ctrl-C goes on with the same server.
    command = [sys.executable, "-P", "-c", "from refold.local.server import run; run()"]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, 0, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True)  # noqa: S603


def _address(server: subprocess.Popen[bytes], order: tuple[str, str, int, int]) -> str:
    """Say what to serve, on its input: arguments and environments can be read by others."""
    assert server.stdin
    assert server.stdout
    with suppress(BrokenPipeError):  # it died at once: then its output has ended as well
        server.stdin.write(msgspec.json.encode(order) + b"\n")
    for line in server.stdout:
        if line.startswith(b"http://127.0.0.1:"):
            return line.decode().strip()
    raise ConfigError("the local model did not start", hint="are the weights a GGUF file of a chat model?")
