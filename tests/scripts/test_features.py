from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from scripts.features import (
    Feature,
    FeatureListError,
    find_proofs,
    main,
    read_features,
    render,
    report,
)

ROOT = Path(__file__).parents[2]
TOML = """
[A1]
title = "first"
done = true
closes = "core"

[A2]
title = "second"
done = false
closes = "store"
"""
TESTS = """
import pytest
from pytest import mark

def test_bare():
    pass

@pytest.mark.feature("A1", "A2")
def test_function():
    pass

@mark.feature("A2")
class TestGroup:
    pytestmark = [pytest.mark.slow, pytest.mark.feature("A1")]

    @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.feature("A3"))])
    async def test_method(self, x):
        pass

    def helper(self):
        pass
"""

pytestmark = pytest.mark.feature("X0")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "features.toml").write_text(TOML)
    (tmp_path / "tests" / "features").mkdir(parents=True)
    (tmp_path / "tests" / "features" / "test_it.py").write_text(TESTS)
    return tmp_path


def test_finds_marks_on_functions_classes_and_parameters(checkout):
    function, method = (
        "tests/features/test_it.py::test_function",
        "tests/features/test_it.py::TestGroup::test_method",
    )

    assert find_proofs(checkout) == {"A1": (function, method), "A2": (function, method), "A3": (method,)}


def test_a_mark_of_the_module_holds_for_all_its_tests(checkout):
    (checkout / "tests" / "features" / "test_other.py").write_text(
        "import pytest\n\ndef test_one():\n    pass\n\npytestmark = pytest.mark.feature('A9')\n"
    )

    assert find_proofs(checkout)["A9"] == ("tests/features/test_other.py::test_one",)


def test_features_keep_the_order_of_the_file_and_get_their_tests(checkout):
    first, second = read_features(checkout)

    assert (first.id, first.title, first.done, first.closes) == ("A1", "first", True, "core")
    assert first.tests == second.tests
    assert second == Feature("A2", "second", False, "store", first.tests)


def test_the_report_works_from_a_folder_below(checkout):
    assert report(checkout / "tests" / "features").splitlines() == [
        "A1   done  first",
        "           tests/features/test_it.py::test_function",
        "           tests/features/test_it.py::TestGroup::test_method",
        "A2   open  second",
        "           tests/features/test_it.py::test_function",
        "           tests/features/test_it.py::TestGroup::test_method",
        "2 features, 1 done",
    ]


@pytest.mark.parametrize(("state", "ids"), [("all", ["A1", "A2"]), ("done", ["A1"]), ("open", ["A2"])])
def test_the_report_can_be_filtered_and_read_by_a_program(checkout, state, ids):
    rows = msgspec.json.decode(report(checkout, state=state, as_json=True))

    assert [row["id"] for row in rows] == ids
    assert set(rows[0]) == {"id", "title", "done", "closes", "tests", "proven_by"}


def test_a_feature_without_tests_is_listed_all_the_same():
    assert render((Feature("N1", "later", False, "engine"),)) == "N1   open  later\n1 features, 0 done"


def test_outside_of_a_checkout_there_is_a_hint(tmp_path):
    with pytest.raises(FeatureListError, match="checkout of the repository"):
        report(tmp_path)


@pytest.mark.parametrize(
    "text", ["[A1", '[A1]\ntitle = "no state"', '[A1]\ntitle = 3\ndone = true\ncloses = ""']
)
def test_a_broken_list_is_a_typed_error(checkout, text):
    (checkout / "features.toml").write_text(text)

    with pytest.raises(FeatureListError, match=r"features\.toml cannot be read"):
        report(checkout)


def test_every_test_names_features_that_exist():
    known = {feature.id for feature in read_features(ROOT)}

    assert set(find_proofs(ROOT)) <= known


def test_our_own_list_is_complete():
    ids = [feature.id for feature in read_features(ROOT)]
    expected = {"L": range(1, 19), "O": range(1, 17), "X": range(21), "P": range(1, 11), "C": range(1, 17)}
    expected["N"] = range(1, 15)

    assert ids == [f"{letter}{number}" for letter, numbers in expected.items() for number in numbers]


@pytest.mark.feature("X0")
def test_the_script_lists_every_id(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert (main(["--done"]), main(["--open"])) == (0, 0)
    finished, unfinished = (line for line in capsys.readouterr().out.splitlines() if " features, " in line)

    assert main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    done = sum(row["done"] for row in rows)
    assert finished == f"{done} features, {done} done"
    assert unfinished == f"{len(rows) - done} features, 0 done"


@pytest.mark.feature("X0")
def test_outside_of_a_checkout_it_is_an_error(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert main([]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.splitlines()[1]) == ("", "hint: run it in a checkout of the repository")
    assert told.err.startswith("error: there is no features.toml")


def test_features_cannot_be_done_and_open(capsys):
    with pytest.raises(SystemExit):
        main(["--done", "--open"])


def test_a_feature_that_another_command_proves_names_it_and_the_tests_of_that_command():
    """N8 needs the frameworks: its command exists, and every framework of its sentence has a test."""
    from scripts.test_integrations import TARGET, feature_frameworks, features_proven_here

    (found,) = features_proven_here()
    verb = TARGET.removeprefix("make ")
    assert found.id == "N8"
    assert f"\n{verb}:" in (ROOT / "Makefile").read_text()
    assert feature_frameworks(found) == ["langchain", "litellm", "openai_agents", "pydantic_ai"]
