"""The campaign: every row names a test that exists, runs add up, and a campaign that was stopped goes on."""

import subprocess
import sys

import pytest

from scripts import campaign
from scripts.campaign import BEGIN, END, ROWS, Row, Run, done_of, figures, main, publish, read_runs, table


def run(key="power", number=10, is_passed=True, said=("7 cuts, wrong: 0",)):
    return Run(key, number, is_passed, "2026-11-18", "abcd1234", 90.0, said)


def test_every_row_names_a_test_that_exists():
    names = {row.test.partition("[")[0] for row in ROWS}
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *names]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=campaign.ROOT)
    assert ended.returncode == 0, ended.stdout[-2_000:]
    for row in ROWS:
        assert row.test in ended.stdout, f"{row.key}: there is no such test"


def test_runs_add_up_and_a_failed_one_does_not_count():
    row = Row("power", "power cuts", 30, 10, "x")
    assert done_of(row, [run(), run(), run("chat"), run(is_passed=False)]) == 20
    assert "| power cuts | 30 | 20 | 1 | 2026-11-18, 2 min |" in table(
        [run(), run(), run(is_passed=False)], [row]
    )


def test_figures_are_the_lines_of_the_test():
    assert figures("\nPower, seed 7: 1000 cuts, wrong: 0\n.    [100%]\n1 passed in 3.1s\n") == [
        "Power, seed 7: 1000 cuts, wrong: 0"
    ]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "RESULTS", tmp_path / "runs/results.jsonl")
    monkeypatch.setattr(campaign, "ROWS", (Row("power", "power cuts", 30, 10, "x"),))
    return campaign.RESULTS


def test_a_stopped_campaign_goes_on_and_a_torn_line_is_left_out(place, monkeypatch, capsys):
    done = []
    monkeypatch.setattr(campaign, "run_row", lambda row: done.append(row) or run())
    assert main([]) == 0
    assert len(done) == 3
    with place.open("a") as file:
        file.write('{"key": "pow')
    assert len(read_runs(place)) == 3
    assert main([]) == 0
    assert len(done) == 3, "nothing is left to do"
    assert main(["--fresh"]) == 0
    assert len(done) == 6
    assert "| power cuts | 30 | 30 | 0 |" in capsys.readouterr().out


def test_a_failed_run_ends_its_row_and_the_campaign_says_so(place, monkeypatch, capsys):
    monkeypatch.setattr(campaign, "run_row", lambda row: run(is_passed=False, said=("lost: 1",)))
    assert main(["power"]) == 1
    told = capsys.readouterr()
    assert "lost: 1" in told.out
    assert "hint" in told.err
    with pytest.raises(SystemExit):
        main(["nonsense"])


def test_the_table_is_written_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    publish([run()], page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "7 cuts, wrong: 0" in text
