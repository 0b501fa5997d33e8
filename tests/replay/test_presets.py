import pytest

from refold.core.presets import PRESETS
from refold.model.errors import ConfigError
from refold.replay import BASELINES, read_recordings, run, tabulate
from refold.replay.presets import candidates
from refold.replay.token_counts import REFERENCE
from tests.corpus import _ROOT


def test_every_preset_is_valid_and_fits_on_our_own_recordings():
    recordings = read_recordings(_ROOT / "examples" / "coding-agent.json")
    table = tabulate(run(recordings, candidates(tuple(PRESETS)), (2_000, 8_000)), REFERENCE)
    assert len(table.rows) == 2 * len(PRESETS)
    for row in table.rows:
        # A summary as an assistant message may come first in this format; the strictest providers would refuse that.
        is_strict = PRESETS[row.candidate].placement != "assistant"
        assert row.fits == 100.0, row.candidate
        assert row.valid == 100.0 or not is_strict, row.candidate
        assert (
            row.made_up == 0.0 or row.candidate != "refold"
        )  # others have words of their own around a summary


def test_the_default_knows_more_than_every_baseline_that_fits():
    recordings = read_recordings(_ROOT / "examples" / "coding-agent.json")
    cells = run(recordings, [*candidates(("refold",)), *BASELINES], (8_000,))
    ours, *others = tabulate(cells, REFERENCE).rows
    for other in others:
        assert other.fits < 100 or ours.fur_old >= other.fur_old, other.candidate


def test_an_unknown_preset_is_a_clear_error():
    with pytest.raises(ConfigError, match="choose from: refold"):
        candidates(("nonsense",))


@pytest.mark.parametrize(
    ("preset", "decisions"), [("refold", {"summarise"}), ("librechat", {"summarise", "reduce"})]
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
