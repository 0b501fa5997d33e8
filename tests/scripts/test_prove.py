"""`scripts/prove.py`: that the named mutations apply to this checkout, and the verdicts on a small made-up one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from scripts import prove
from scripts.prove import main, read_mutations

ROOT = Path(__file__).parents[2]
MUTATIONS = read_mutations(ROOT)
LIST = tomllib.loads((ROOT / "features.toml").read_text(encoding="utf-8"))
DONE = [key for key, feature in LIST.items() if feature["done"] and "proven_by" not in feature]
FEATURES = """
[L1]
title = "proven"
done = true
closes = "core"

[L2]
title = "its test does not notice"
done = true
closes = "core"

[L3]
title = "a test of another group fails too"
done = true
closes = "core"

[L4]
title = "the test of another group names it"
done = true
closes = "core"

[L5]
title = "without a mutation"
done = true
closes = "core"

[L6]
title = "with a mutation that does not apply"
done = true
closes = "core"

[L7]
title = "not done"
done = false
closes = "core"
"""
SOURCE = """
def one():
    return 1  # as written


def two():
    return 2


def three():
    return 3
"""
LIS = """
import made_up
import pytest

@pytest.mark.feature("L1", "L2")
def test_one():
    assert made_up.one() == 1

@pytest.mark.feature("L3")
def test_two():
    assert made_up.two() == 2

@pytest.mark.feature("L4")
def test_three():
    assert made_up.three() == 3
"""
OPAL = """
import made_up
import pytest

@pytest.mark.feature("O1")
def test_two():
    assert made_up.two() == 2

@pytest.mark.feature("O2", "L4")
@pytest.mark.parametrize("number", [3])
def test_three(number):
    assert made_up.three() == number
"""
NAMED = {
    "L1": ("return 1", "return 0"),
    "L2": ("as written", "as it was written"),
    "L3": ("return 2", "return 0"),
    "L4": ("return 3", "return 0"),
    "L6": ("return", "yield"),
}


def test_every_feature_that_is_done_has_a_mutation_and_no_other():
    assert sorted({key.partition("-")[0] for key in MUTATIONS}) == sorted(DONE)
    assert set(DONE) <= set(MUTATIONS), "further ones are not alone"


@pytest.mark.parametrize("key", MUTATIONS)
def test_a_mutation_applies_to_this_checkout(key):
    """Its text occurs once, and the changed file compiles."""
    mutation = MUTATIONS[key]
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.find) == 1
    changed = source.replace(mutation.find, mutation.replace)
    assert changed != source
    compile(changed, mutation.file, "exec")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module, tests of two groups, and a mutation for most features.

    Its tests need no plugin of this environment. Loading them takes most of the time of each run.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("src", "tests/features", "scripts", "docs", "examples"):
        (tmp_path / name).mkdir(parents=True)
    mutations = (
        f'[{key}]\nbehaviour = "changed"\nfile = "src/made_up.py"\nfind = "{find}"\nreplace = "{replace}"\n'
        for key, (find, replace) in NAMED.items()
    )
    texts = {
        "README.md": "",
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["feature", "slow"]\n',
        "features.toml": FEATURES,
        "src/made_up.py": SOURCE,
        "tests/features/test_lis.py": LIS,
        "tests/features/test_opal.py": OPAL,
        "scripts/mutations.toml": "\n".join(mutations),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--alone"]])
def test_a_feature_is_proven_if_its_own_tests_fail_and_no_others(checkout, monkeypatch, capsys, options):
    monkeypatch.chdir(checkout)
    assert main(["--json", "--jobs", "2", *options]) == 1
    found = {one["id"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(found) == ["L1", "L2", "L3", "L4", "L5", "L6"]
    lis, opal = "tests/features/test_lis.py", "tests/features/test_opal.py"
    assert {key: (one["own"], one["others"]) for key, one in found.items()} == {
        "L1": ([f"{lis}::test_one"], []),
        "L2": ([], []),
        "L3": ([f"{lis}::test_two"], [f"{opal}::test_two"]),
        "L4": ([f"{lis}::test_three", f"{opal}::test_three"], []),
        "L5": ([], []),
        "L6": ([], []),
    }
    assert {key: one["problem"] for key, one in found.items() if one["problem"]} == {
        "L5": "no mutation is named for it",
        "L6": "src/made_up.py holds the text to replace 3 times, not once",
    }
    assert (checkout / "src/made_up.py").read_text() == SOURCE


def test_a_feature_that_another_command_proves_is_left_to_it(capsys):
    assert main(["N8"]) == 1
    assert "another command proves it: make test-integrations" in capsys.readouterr().out


def test_harmless_mutations_of_a_group_are_tried_together(checkout, monkeypatch, capsys):
    """One run for the tests of the other groups, and one for each feature's own."""
    runs = []
    monkeypatch.setattr(prove, "failed_tests", lambda _root, tests: runs.append(list(tests)) or ())
    monkeypatch.chdir(checkout)
    assert main(["L1", "L2", "L3", "--jobs", "1"]) == 1
    lis = "tests/features/test_lis.py"
    assert runs == [
        ["tests/features/test_opal.py"],
        [f"{lis}::test_one"],
        [f"{lis}::test_one"],
        [f"{lis}::test_two"],
    ]


def test_mutations_of_the_same_text_are_tried_apart(checkout, monkeypatch, capsys):
    named = checkout / "scripts/mutations.toml"
    named.write_text(named.read_text().replace('find = "as written"', 'find = "return 1  # as"'))
    runs = []
    monkeypatch.setattr(prove, "failed_tests", lambda _root, tests: runs.append(list(tests)) or ())
    monkeypatch.chdir(checkout)
    assert main(["L1", "L2", "--jobs", "1"]) == 1
    assert runs[:2] == [["tests/features/test_opal.py"]] * 2


def test_a_feature_may_have_more_mutations(checkout, monkeypatch, capsys):
    named = checkout / "scripts/mutations.toml"
    named.write_text(named.read_text() + named.read_text().partition("[L2]")[0].replace("[L1]", "[L1-again]"))
    monkeypatch.chdir(checkout)
    assert main(["L1", "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["L1", "L1-again"]


def test_the_exit_code_says_whether_all_chosen_features_are_proven(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    assert main(["L1"]) == 0
    shown = capsys.readouterr().out
    assert "L1   proven  changed\n" in shown
    assert "1 of 1 features are proven" in shown
    assert main(["L5"]) == 1
    assert "L5   NOT PROVEN" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["Z9"])
    assert "no such feature in features.toml: Z9" in capsys.readouterr().err
