"""Run the steps of the Dockerfile without a Docker engine, start what it makes, and check its health.

Every stage is an overlay over this machine's own root, in a mount namespace of its own: the steps run as they are written, with this
Python in place of the base image's, and nothing outside of a temporary folder changes. It needs root on Linux. The base image, the
layers and the limits of a container are not part of it.

    sudo .venv/bin/python -m scripts.image_steps
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
INSIDE = "REFOLD_IMAGE_STEPS"
"""Names the folder of the stages, in the process that has the mount namespace."""
NOTED = {"EXPOSE", "VOLUME", "STOPSIGNAL"}
"""Instructions that change nothing in the file system."""
DEVICES = ("null", "zero", "random", "urandom")
START_S = 60.0


class Step(NamedTuple):
    """One instruction: its name, and the text after it."""

    name: str
    text: str

    @property
    def options(self) -> dict[str, str]:
        found = re.findall(r"^--([a-z-]+)=(\S+)\s*", self.text)
        return dict(found)

    @property
    def words(self) -> list[str]:
        """The words after the options; a JSON list is one by itself."""
        text = re.sub(r"^(--[a-z-]+=\S+\s+)+", "", self.text)
        return json.loads(text) if text.startswith("[") else shlex.split(text)


def read_steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, in order."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [Step(*line.strip().split(None, 1)) for line in joined.splitlines() if line.strip()]


def context_files(root: Path, ignored: str) -> list[str]:
    """The files of the build context: those of the checkout that `.dockerignore` lets through."""
    rules = [line for line in map(str.strip, ignored.splitlines()) if line and not line.startswith("#")]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [name for name in listed if not _is_ignored(name, rules) and (root / name).is_file()]


def _is_ignored(name: str, rules: Sequence[str]) -> bool:
    """The last rule that fits the file or a folder that it is in decides."""
    paths = [name, *(str(one) for one in PurePosixPath(name).parents if str(one) != ".")]
    is_ignored = False
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        is_anywhere = rule.removeprefix("!").startswith("**/")
        tried = [PurePosixPath(path).name for path in paths] if is_anywhere else paths
        if any(fnmatch(one, pattern) for one in tried):
            is_ignored = not rule.startswith("!")
    return is_ignored


class Stage:
    """A root of its own, over this machine's."""

    def __init__(self, folder: Path) -> None:
        self.root, self.upper = folder / "root", folder / "upper"
        for path in (self.root, self.upper, folder / "work"):
            path.mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={self.upper},workdir={folder / 'work'}"
        _run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)])
        _run(["mount", "--bind", "/proc", str(self.root / "proc")])
        _run(["mount", "-t", "tmpfs", "tmpfs", str(self.root / "dev")])
        for name in DEVICES:
            (self.root / "dev" / name).touch()
            _run(["mount", "--bind", f"/dev/{name}", str(self.root / "dev" / name)])
        self.environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.folder, self.user = "/", ""
        self.entry, self.command, self.health = list[str](), list[str](), list[str]()
        self._bring_python()

    def _bring_python(self) -> None:
        """This Python as `python`, for every user, as in the base image."""
        python = Path(sys.executable).resolve()
        self.environ["PATH"] = f"{python.parent}:{self.environ['PATH']}"
        named = self.root / str(python.parent).lstrip("/") / "python"
        if not named.exists():
            named.symlink_to(python)
        for parent in python.parents:
            path = self.root / parent.relative_to("/")
            path.chmod(path.stat().st_mode | 0o011)

    def at(self, path: str) -> Path:
        """A path of the stage as this process sees it."""
        return self.root / str(PurePosixPath(self.folder, path)).lstrip("/")

    def argv(self, words: Sequence[str]) -> list[str]:
        who = ["--userspec", self.user] if self.user else []
        inner = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", self.folder, *words]
        return ["chroot", *who, str(self.root), "env", "-i", *map("=".join, self.environ.items()), *inner]


def build(  # noqa: C901  # one case for each instruction
    steps: Sequence[Step], folder: Path, network: Mapping[str, str]
) -> Stage:
    """Run all steps; the result is the last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    files = context_files(ROOT, (ROOT / ".dockerignore").read_text(encoding="utf-8"))
    for step in steps:
        print(f"{step.name} {step.text[:100]}", flush=True)
        if step.name == "FROM":
            name = step.words[2] if len(step.words) == 3 else f"{len(stages)}"
            stage = stages[name] = Stage(folder / name)
            continue
        assert stage is not None, "a Dockerfile begins with FROM"
        match step.name:
            case "RUN":
                extra = [f"{key}={value}" for key, value in network.items()]
                _run(stage.argv(["env", *extra, "sh", "-ec", step.text]))
            case "COPY":
                _copy(stage, step, stages, files)
            case "ENV":
                for key, value in (word.split("=", 1) for word in step.words):
                    stage.environ[key] = value.replace("$PATH", stage.environ["PATH"])
            case "WORKDIR":
                stage.folder = step.words[0]
                stage.at(".").mkdir(parents=True, exist_ok=True)
            case "USER":
                stage.user = step.words[0]
            case "ENTRYPOINT":
                stage.entry = step.words
            case "CMD":
                stage.command = step.words
            case "HEALTHCHECK":
                stage.health = json.loads(step.text.partition("CMD ")[2])
            case name if name not in NOTED:
                raise SystemExit(f"error: {name} is not known\nhint: add it to scripts/image_steps.py")
    assert stage is not None
    return stage


def _copy(stage: Stage, step: Step, stages: Mapping[str, Stage], files: Sequence[str]) -> None:
    *sources, target = step.words
    if "from" in step.options:
        for source in sources:
            _run(
                [
                    "cp",
                    "-a",
                    str(stages[step.options["from"]].root / source.lstrip("/")),
                    str(stage.at(target)),
                ]
            )
        return
    for source in sources:
        found = [name for name in files if name == source or name.startswith(f"{source}/")]
        if not found:
            raise SystemExit(f"error: COPY {source}: it is not there, or .dockerignore leaves it out")
        for name in found:
            inside = name.removeprefix(f"{source}/") if name != source else Path(name).name
            to = stage.at(target) / inside
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to)


def try_out(stage: Stage) -> None:
    """Make a key, start the image as it starts by itself, and ask its health check and its readiness."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        stage.environ["REFOLD_SERVER_PORT"] = str(free.getsockname()[1])
    made = subprocess.run(
        stage.argv([*stage.entry, "keys", "create"]), capture_output=True, text=True, check=True
    )
    assert made.stdout.startswith("rf_"), "`refold keys create` prints a key"
    with _started(stage) as server:
        healthy = stage.argv(stage.health)
        until = time.monotonic() + START_S
        while subprocess.run(healthy, capture_output=True, check=False).returncode:
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit("error: the health check does not pass")
            time.sleep(0.1)
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
        uid = re.search(r"^Uid:\t(\d+)", status, re.MULTILINE)
        assert uid, "a process has a user"
        print(f"healthy, as user {uid[1]}")
        assert uid[1] != "0", "it does not run as root"
        server.send_signal(signal.SIGTERM)
        assert server.wait(START_S) == 0, "SIGTERM ends it properly"
        print("stopped with code 0")
    assert subprocess.run(healthy, capture_output=True, check=False).returncode, (
        "a stopped one is not healthy"
    )
    size = sum(path.stat().st_size for path in stage.at("/opt/refold").rglob("*") if path.is_file())
    print(f"{size / 1e6:.0f} MB in /opt/refold")


@contextlib.contextmanager
def _started(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    server = subprocess.Popen(stage.argv([*stage.entry, *stage.command]))
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, check=False)
    if done.returncode:
        raise SystemExit(f"error: the step ended with code {done.returncode}")


def main() -> None:
    if os.geteuid():
        raise SystemExit(
            "error: a mount namespace needs root\nhint: sudo .venv/bin/python -m scripts.image_steps"
        )
    if INSIDE not in os.environ:
        # All that is mounted and written is in the namespace of the inner process, and gone with it. The folder stays empty.
        folder = tempfile.mkdtemp(prefix="refold-image-")
        argv = ["unshare", "--mount", sys.executable, "-m", "scripts.image_steps"]
        done = subprocess.run(argv, cwd=ROOT, env={**os.environ, INSIDE: folder}, check=False)
        Path(folder).rmdir()
        sys.exit(done.returncode)
    folder = os.environ[INSIDE]
    # The upper layer of an overlay cannot be in an overlay.
    _run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder])
    network = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http"))
    }
    try_out(build(read_steps((ROOT / "Dockerfile").read_text(encoding="utf-8")), Path(folder), network))


if __name__ == "__main__":
    main()
