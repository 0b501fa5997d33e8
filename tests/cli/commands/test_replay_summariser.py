"""`refold replay --summariser`, as the script runs it, against a provider of our own. What needs none is said in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.model.tokens import Usage
from refold.testing import ScriptedUpstream, say
from tests.program import command

pytestmark = pytest.mark.feature("N6")

ROOT = Path(__file__).parents[3]
DATA = "examples/coding-agent.json"
TEXT = "## Goal\nThe importer is to be mended.\n## Progress\n### Done\nFiles were read and changed."
USAGE = Usage(input=10_000, output=500)
KEY = "sk-test-1234567890"


@pytest.fixture
def server():
    with ScriptedUpstream(otherwise=say(TEXT, usage=USAGE), key=KEY) as served:
        yield served


def replay(*args: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [*command(), "replay", DATA, "--preset", "refold", "--window", "4000", *args]
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    env = {**kept, "XDG_CACHE_HOME": str(home), "HOME": str(home), "LOCALAPPDATA": str(home), **environ}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_document_holds_what_was_asked_for_and_what_it_cost(server, tmp_path):
    spec = f"gpt-4o-mini@{server.url}/v1"
    args = ("--summariser", "digest", "--summariser", spec, "--key-env", "MY_KEY", "--json", "--jobs", "2")
    first = replay(*args, home=tmp_path, MY_KEY=KEY)
    assert (first.returncode, first.stderr) == (0, "")
    calls = len(server.requests)
    second = replay(*args, home=tmp_path, MY_KEY=KEY)

    found, again = json.loads(first.stdout), json.loads(second.stdout)
    digest, modelled = found["rows"]
    assert [row["candidate"] for row in found["rows"]] == ["refold", "refold + gpt-4o-mini"]
    assert digest["summaries"] is None
    assert modelled["summaries"]["asked"] > 2
    assert modelled["summaries"]["dollars"] == pytest.approx(calls * 0.0018)
    (paid,), (free,) = found["summarisers"], again["summarisers"]
    assert (paid["summariser"], paid["calls"], paid["found"]) == (spec, calls, 0)
    assert paid["prices"]["input"] == 0.15
    assert (free["calls"], free["spent"], free["written"]) == (0, 0.0, 0)
    assert again["rows"][1]["summaries"] == modelled["summaries"]
    assert again["rows"][1]["dollars"] == modelled["dollars"]
    assert len(server.requests) == calls
    assert KEY not in first.stdout + second.stdout
    assert list((tmp_path / "refold" / "summaries").rglob("*.json")) or sys.platform == "darwin"


def test_two_servers_may_give_different_models_one_name(server, tmp_path):
    with ScriptedUpstream(otherwise=say(TEXT.replace("importer", "exporter"), usage=USAGE)) as other:
        mine, theirs = f"gpt-4o-mini@{server.url}/v1", f"gpt-4o-mini@{other.url}/v1"
        for spec in (mine, theirs, mine, f"{theirs}/"):
            told = replay("--summariser", spec, "--key-env", "MY_KEY", home=tmp_path, MY_KEY=KEY)
            assert told.returncode == 0, told.stderr

    assert len(server.requests) == len(other.requests) > 0


def test_a_limit_ends_the_replay_with_what_is_known_so_far(server, tmp_path):
    # Each call costs less than it may cost at most, as with a real provider; all twelve would cost more than the limit.
    usage, price = Usage(input=1_000, output=100), 0.00021
    server.script(otherwise=say(TEXT, usage=usage))
    told = replay(
        *("--summariser", "digest", "--summariser", f"gpt-4o-mini@{server.url}/v1", "--key-env", "MY_KEY"),
        *("--max-spend", "0.002", "--summary-cache", str(tmp_path / "kept")),
        home=tmp_path,
        MY_KEY=KEY,
    )

    assert told.returncode == 0
    assert told.stdout.startswith("window 4,000: 1 recording,")
    assert "stopped: the limit of $0.002 was reached" in told.stderr
    assert "hint: what was paid for is kept" in told.stderr
    assert 0 < len(server.requests) * price <= 0.002
    assert list((tmp_path / "kept").rglob("*.json"))


def test_the_report_shows_the_summariser_and_its_dollars(server, tmp_path):
    file = tmp_path / "report.html"
    told = replay(
        *("--summariser", f"gpt-4o-mini@{server.url}/v1", "--key-env", "MY_KEY", "--report", str(file)),
        home=tmp_path,
        MY_KEY=KEY,
    )

    assert told.returncode == 0
    page = file.read_text(encoding="utf-8")
    assert "refold + gpt-4o-mini" in page
    assert "summaries $" in page
    assert "prices of openai/gpt-4o-mini" in page


@pytest.mark.parametrize(
    "args, words, hint",
    [
        (("--summariser", "openai:gpt-4o-mini"), "OPENAI_API_KEY holds no key", "set it"),
        (("--summariser", "opnai:gpt-4o-mini"), "there is no provider 'opnai'", "choose from: openai"),
        (
            ("--summariser", "gpt-4o-mini"),
            "does not name a provider and a model",
            "openai:gpt-4o-mini",
        ),
        (("--summariser", "m@https://"), "is not an address", "https://"),
        (
            ("--summariser", "gpt-4o-mini@http://127.0.0.1:9/v1"),
            "gpt-4o-mini cannot write summaries: the server cannot be reached",
            "does the server run",
        ),
        (("--summariser", "nobody@http://127.0.0.1:9", "--max-spend", "1"), "is not known", "--max-spend"),
        (("--summariser", "openai:gpt-4o", "--strategy", "magic"), "no strategy 'magic'", "abstractive"),
        (("--max-spend", "1"), "no model is asked", "--summariser"),
    ],
)
def test_mistakes_are_told_in_a_line_with_a_hint(refold, monkeypatch, args, words, hint, tmp_path):
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    told = refold("replay", str(ROOT / DATA), "--preset", "refold", "--window", "4000", *args)

    assert told.code == 2
    assert words in told.err
    assert hint in told.err.partition("hint: ")[2]
    assert "Traceback" not in told.err
    assert told.out == ""


def test_a_key_that_is_refused_is_told_at_the_first_call(server, tmp_path):
    told = replay(
        *("--summariser", f"gpt-4o-mini@{server.url}/v1", "--key-env", "MY_KEY"),
        home=tmp_path,
        MY_KEY="wrong",
    )

    assert told.returncode == 2
    assert "gpt-4o-mini cannot write summaries" in told.stderr
    assert "check the key" in told.stderr
    assert "wrong" not in told.stderr
    assert len(server.requests) == 1


def test_the_help_teaches_how(refold):
    told = refold("replay", "--help")

    assert "--summariser openai:gpt-4o-mini --max-spend" in told.out
    assert "MODEL@URL" in told.out
