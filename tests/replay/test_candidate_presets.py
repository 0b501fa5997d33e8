import pytest

from refold.core.presets import PRESETS
from refold.model.errors import ConfigError
from refold.replay import BASELINES, ReplayBudget, read_recordings, run, tabulate
from refold.replay.candidate import candidates
from refold.replay.facts import REFERENCE
from tests.corpus import _ROOT
from tests.replay.recordings import recordings


def test_every_preset_is_valid_and_fits_on_our_own_recordings():
    own = read_recordings(_ROOT / "examples" / "coding-agent.json")
    table = tabulate(run(own, candidates(tuple(PRESETS)), (2_000, 8_000)), REFERENCE)
    assert len(table.rows) == 2 * len(PRESETS)
    for row in table.rows:
        assert row.fits == row.valid == 100.0, row.candidate
        assert (
            row.made_up == 0.0 or row.candidate != "refold"
        )  # others have words of their own around a summary


def test_the_default_knows_more_than_every_baseline_that_fits():
    own = read_recordings(_ROOT / "examples" / "coding-agent.json")
    cells = run(own, [*candidates(("refold",)), *BASELINES], (8_000,))
    ours, *others = tabulate(cells, REFERENCE).rows
    for other in others:
        assert other.fits < 100 or ours.fur_old >= other.fur_old, other.candidate


@pytest.mark.feature("N1")
@pytest.mark.parametrize("window", [4_000, pytest.param(8_000, marks=pytest.mark.slow)])
def test_no_preset_of_the_seeds_beats_the_default_at_recall_and_dollars_together(tmp_path, window):
    """With the budget that users have. A preset beats the default if it holds no less for no more money."""
    cells = run(recordings(tmp_path), candidates(tuple(PRESETS)), (window,), budget=ReplayBudget())

    ours, *others = tabulate(cells, REFERENCE).rows
    assert (ours.candidate, len(others)) == ("refold", 5)
    assert ours.demands["mid"] + ours.demands["far"] > 50
    for other in others:
        is_cheaper = other.dollars["anthropic"] <= ours.dollars["anthropic"]
        assert other.fur_old < ours.fur_old or not is_cheaper, other.candidate


def test_an_unknown_preset_is_a_clear_error():
    with pytest.raises(ConfigError, match="choose from: refold"):
        candidates(("nonsense",))


@pytest.mark.parametrize(
    ("preset", "decisions"), [("refold", {"summarise", "reduce"}), ("librechat", {"summarise", "reduce"})]
)
def test_a_preset_says_once_what_it_did_and_why(preset, decisions):
    (recording,) = read_recordings(_ROOT / "examples" / "coding-agent.json")
    (cell,) = run([recording], candidates((preset,)), (4_000,))
    (found,) = cell.scores

    made = [change for one in found.sent for change in one.changes]
    assert {change.decision for change in made} == decisions
    assert len(made) == len({*made}) >= found.compactions > 3
    assert all("tokens" in change.reason and change.after < change.before for change in made)
    assert all(one.changes for one in found.sent if one.is_rewritten)
