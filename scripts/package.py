"""Build the wheel and the sdist, install each into a bare environment, and try what was installed.

Nothing of the checkout is on the path of the environments. `dist/` has the files afterwards.

    make package
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "cli,prometheus,server,sqlite,tokens"
DATA = """
import json, pathlib, sys, refold
root = pathlib.Path(refold.__file__).parent
assert root.is_relative_to(sys.prefix), root
print(json.dumps(sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())))
"""


def data_files() -> list[str]:
    """The files of the package that are not Python, as the checkout has them."""
    root = ROOT / "src/refold"
    names = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if name.suffix not in {".py", ".pyc"})


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="refold-package-") as made:
        folder = Path(made)
        tool = _environment(folder / "build", "build")
        _run(tool, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT), cwd=folder)
        version = _run(sys.executable, "-c", "import refold; print(refold.__version__)", cwd=ROOT).strip()
        for name in (f"refold-{version}-py3-none-any.whl", f"refold-{version}.tar.gz"):
            file = ROOT / "dist" / name
            print(f"{name}: {file.stat().st_size / 1e6:.1f} MB", flush=True)
            try_library(_environment(folder / f"library-{file.suffix}", str(file)), folder)
            python = _environment(folder / f"program-{file.suffix}", f"refold[{EXTRAS}] @ {file.as_uri()}")
            try_program(python, folder, version)


def try_library(python: str, folder: Path) -> None:
    """Without any extra: the library works, and the program says what is missing."""
    talk = "import refold.sync as r; t = r.Conversation('gpt-4o'); t.add({'role': 'user', 'content': 'hi'}); print(len(t.context()['messages']))"
    assert _run(python, "-c", talk, cwd=folder).strip() == "1"
    done = subprocess.run([python, "-m", "refold"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "refold[cli]" in done.stderr, done.stderr
    print("  the library alone: imported, a conversation, a hint for the program")


def try_program(python: str, folder: Path, version: str) -> None:
    """With the extras: every file is there, the program starts, and the gateway and its page answer."""
    missing = set(data_files()) - set(json.loads(_run(python, "-c", DATA, cwd=folder)))
    assert not missing, f"not in the package: {sorted(missing)}"
    assert _run(python, "-m", "refold", "--version", cwd=folder).strip() == f"refold {version}"
    with _served(python, folder) as url:
        asked = {"model": "local", "messages": [{"role": "user", "content": "Hello."}]}
        answer = json.loads(_get(f"{url}/v1/chat/completions", json.dumps(asked).encode()))
        assert answer["choices"][0]["message"]["content"].endswith("Hello.")
        page = _get(f"{url}/").decode()
        assert "<html" in page, "the page has its templates"
        assert _get(f"{url}/readyz") == b'{"status":"ready"}'
    found = _run(
        python, "-m", "refold", "conversations", "--json", cwd=folder, XDG_DATA_HOME=str(folder / "data")
    )
    assert len(json.loads(found)["conversations"]) == 1
    print(
        f"  with extras: {len(data_files())} data files, a request through the gateway, the page, the store"
    )


@contextmanager
def _served(python: str, folder: Path) -> Iterator[str]:
    environ = {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder)}
    (folder / "data/refold/refold.db").unlink(missing_ok=True)
    argv = [python, "-m", "refold", "serve", "--port", "0"]
    server = subprocess.Popen(
        argv, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        assert server.wait(60) == 0


def _get(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def _environment(folder: Path, package: str) -> str:
    """A new environment with one package in it; the path of its Python."""
    began = time.monotonic()
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package, cwd=folder)
    print(
        f"  installed {package.partition(' @ ')[0].rpartition('/')[2]} in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return python


def _run(*argv: str, cwd: Path, **more: str) -> str:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REFOLD_"))
    } | more
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"error: {' '.join(argv[:4])} ended with code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


if __name__ == "__main__":
    main()
