import pytest

from refold.core.calibrate import Calibration, calibrated, forget_sums, instruction_tokens, observe


def test_the_ratio_is_that_of_the_sums():
    learnt = observe(Calibration(), prompt=1_300, counted=1_000, instructions=0)
    assert learnt.ratio == 1.3
    learnt = observe(learnt, prompt=3_300, counted=3_000, instructions=0)
    assert learnt.ratio == pytest.approx(4_600 / 4_000)
    assert calibrated(1_000, learnt) == 1_150


def test_instructions_are_not_part_of_the_ratio():
    assert observe(Calibration(), prompt=2_200, counted=1_000, instructions=1_000).ratio == 1.2


@pytest.mark.parametrize(
    "prompt, counted, instructions",
    [
        (500, 0, 0),  # nothing was sent
        (900, 100, 1_000),  # less than the instructions alone
        (6, 380_000, 0),  # cache accounting, not a size
        (1_499, 1_000, 1_000),
    ],
)
def test_what_cannot_be_a_measurement_is_left_out(prompt, counted, instructions):
    given = Calibration(1_000, 1_000, 1.0)
    assert observe(given, prompt=prompt, counted=counted, instructions=instructions) == given


@pytest.mark.parametrize("prompt, ratio", [(100_000, 5.0), (500, 0.5), (700, 0.7)])
def test_the_ratio_stays_in_range(prompt, ratio):
    assert observe(Calibration(), prompt=prompt, counted=1_000, instructions=0).ratio == ratio


def test_forgetting_the_sums_keeps_the_ratio():
    learnt = observe(Calibration(), prompt=1_300, counted=1_000, instructions=0)
    fresh = forget_sums(learnt)
    assert (fresh.reported, fresh.counted, fresh.ratio) == (0, 0, 1.3)


def test_the_instruction_overhead_is_corrected_when_two_calls_agree_that_it_is_far_off():
    once = observe(Calibration(), prompt=2_600, counted=100, instructions=1_000)
    assert instruction_tokens(1_000, once) == 1_000
    seen = Calibration(last_overhead=1_190)
    learnt = observe(seen, prompt=1_300, counted=100, instructions=1_000)
    assert learnt.overhead == 1_200
    assert instruction_tokens(1_000, learnt) == 1_200
    assert instruction_tokens(1_100, learnt) == 1_100


def test_observations_that_disagree_correct_nothing():
    learnt = observe(Calibration(last_overhead=900), prompt=1_300, counted=100, instructions=1_000)
    assert learnt.overhead is None
