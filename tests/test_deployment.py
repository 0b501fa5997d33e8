"""The files for operators: their own tools accept them, and the settings and metrics that they name exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from refold.config import environment_layer, resolve
from scripts.image_steps import context_files, read_steps

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "Dockerfile", ROOT / "compose.yaml", *sorted((ROOT / "deploy").glob("*[!v]"))]
SETTING = re.compile(r"\b(REFOLD_(?:SERVER|STORE|COMPACTION|SUMMARISER)_[A-Z_]+)(?:=|: *\"?)([^\s\"]+)")
METRIC = re.compile(r"\brefold_[a-z_]+")


def tool(name: str) -> str:
    """The path of a program that not every machine has."""
    return shutil.which(name) or pytest.skip(f"there is no {name} here")


def run(*argv: str, **environ: str) -> None:
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_that_is_named_exists_and_takes_its_value(path):
    named = dict(SETTING.findall(path.read_text(encoding="utf-8")))

    resolve([environment_layer(named)])

    assert named or path.name in {"Caddyfile", "alerts.yml", "refold-worker.service"}


def test_every_step_of_the_image_has_its_files():
    steps = read_steps((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    files = context_files(ROOT, (ROOT / ".dockerignore").read_text(encoding="utf-8"))
    copied = [word for step in steps if step.name == "COPY" and not step.options for word in step.words[:-1]]

    assert copied
    assert [one for one in copied if not any(f"{name}/".startswith(f"{one}/") for name in files)] == []
    tops = {name.partition("/")[0] for name in files}
    assert tops == set(copied), "no other file is sent to the engine"
    assert "src/refold/stores/sqlite/migrations/0009_place.sql" in files
    last = [step.name for step in steps][[step.name for step in steps].index("FROM", 1) :]
    assert {"USER", "HEALTHCHECK", "STOPSIGNAL"} <= {*last}


@pytest.mark.slow
def test_the_steps_of_the_image_make_a_gateway_that_runs():
    """It installs packages from an index."""
    if os.geteuid():
        pytest.skip("a mount namespace needs root")
    run(os.path.join(ROOT, ".venv/bin/python"), "-m", "scripts.image_steps")  # noqa: PTH118


def test_the_dockerfile_passes_its_linter():
    run(tool("hadolint"), "Dockerfile")


def test_compose_reads_its_file(tmp_path):
    plugins = (
        "/usr/libexec/docker/cli-plugins",
        "/usr/lib/docker/cli-plugins",
        "/usr/local/lib/docker/cli-plugins",
    )
    found = shutil.which("docker-compose") or shutil.which("docker-compose", path=os.pathsep.join(plugins))
    if not found:
        pytest.skip("there is no docker-compose here")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copy(ROOT / "compose.yaml", tmp_path)
    (tmp_path / "deploy/refold.env.example").rename(tmp_path / "deploy/refold.env")
    done = subprocess.run(
        [found, "--project-directory", str(tmp_path), "config"], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.partition("\nx-refold:")[0].count("REFOLD_STORE_URL: postgresql://refold@postgres/refold")
        == 3
    )


def test_caddy_reads_its_file():
    run(tool("caddy"), "validate", "--adapter", "caddyfile", "--config", "deploy/Caddyfile")


@pytest.mark.parametrize("name", ["refold.service", "refold-worker.service"])
def test_systemd_reads_its_units(name, tmp_path):
    analyze, text = tool("systemd-analyze"), (ROOT / "deploy" / name).read_text(encoding="utf-8")
    program = shutil.which("true")
    assert program
    (tmp_path / name).write_text(text.replace("/opt/refold/bin/refold", program), encoding="utf-8")

    run(analyze, "verify", "--man=no", str(tmp_path / name))
    run(analyze, "security", "--offline=true", "--threshold=20", str(tmp_path / name))


def test_every_metric_of_the_alerts_is_documented():
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    named = set(METRIC.findall((ROOT / "deploy/alerts.yml").read_text(encoding="utf-8")))

    assert named
    assert {one.removesuffix("_bucket") for one in named} <= set(METRIC.findall(page))


def test_prometheus_reads_the_alerts():
    run(tool("promtool"), "check", "rules", "deploy/alerts.yml")
