"""The wheel has every file of the package, and the sdist has what it is built from."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from scripts.package import data_files

ROOT = Path(__file__).parents[2]


def build(folder: Path, kind: str) -> Path:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(tmp_path):
    with zipfile.ZipFile(build(tmp_path, "wheel")) as wheel:
        names = set(wheel.namelist())
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/refold").rglob("*.py")}
    wanted = sources | {f"refold/{name}" for name in data_files()}

    assert len(data_files()) > 50
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_the_sdist_has_the_package_and_its_licence_and_no_environment(tmp_path):
    with tarfile.open(build(tmp_path, "sdist")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {"LICENSE", "README.md", "pyproject.toml", "src/refold/__init__.py"} <= names
    assert {f"src/refold/{name}" for name in data_files()} <= names
    assert [name for name in names if name.startswith((".venv", "dist", "site"))] == []
