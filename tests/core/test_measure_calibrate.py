import pytest

from refold.core.measure import Calibration, forget_sums, instruction_tokens, observe


def test_the_ratio_is_that_of_the_sums():
    learnt = observe(Calibration(), prompt=1_300, counted=1_000, instructions=0)
    assert learnt.ratio == 1.3
    learnt = observe(learnt, prompt=3_300, counted=3_000, instructions=0)
    assert learnt.ratio == pytest.approx(4_600 / 4_000)


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
    learnt = observe(given, prompt=prompt, counted=counted, instructions=instructions)
    assert (learnt.reported, learnt.counted, learnt.ratio) == (1_000, 1_000, 1.0)


@pytest.mark.parametrize("prompt, ratio", [(100_000, 5.0), (500, 0.5), (700, 0.7)])
def test_the_ratio_stays_in_range(prompt, ratio):
    assert observe(Calibration(), prompt=prompt, counted=1_000, instructions=0).ratio == ratio


def test_forgetting_the_sums_keeps_the_ratio():
    learnt = observe(Calibration(), prompt=1_300, counted=1_000, instructions=0)
    fresh = forget_sums(learnt)
    assert (fresh.reported, fresh.counted, fresh.ratio) == (0, 0, 1.3)


def calls(*, overhead: int, ratio: float, estimate: int, sizes=range(500, 20_000, 1_500)) -> Calibration:
    """A conversation that grows, as a provider with another overhead and another tokenizer reports it."""
    learnt = Calibration()
    for size in sizes:
        learnt = observe(learnt, prompt=overhead + round(ratio * size), counted=size, instructions=estimate)
    return learnt


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.3])
@pytest.mark.parametrize(
    "overhead, estimate", [(3_000, 1_000), (20_000, 10_000), (1_000, 3_000), (10_000, 20_000)]
)
def test_an_instruction_overhead_that_is_far_off_is_corrected(overhead, estimate, ratio):
    learnt = calls(overhead=overhead, ratio=ratio, estimate=estimate)
    assert instruction_tokens(estimate, learnt) == pytest.approx(overhead, rel=0.05)
    assert learnt.ratio == pytest.approx(ratio, rel=0.05)


def test_an_estimate_that_is_close_stays():
    learnt = calls(overhead=1_100, ratio=1.0, estimate=1_000)
    assert instruction_tokens(1_000, learnt) == 1_000


def test_two_observations_have_to_agree():
    first = observe(Calibration(), prompt=3_000, counted=1_000, instructions=1_000)
    second = observe(first, prompt=4_000, counted=2_000, instructions=1_000)
    assert (first.overhead, second.overhead, second.last_overhead) == (None, None, 2_000)
    third = observe(second, prompt=5_100, counted=3_000, instructions=1_000)
    assert third.overhead == 1_800
    other = observe(second, prompt=6_500, counted=3_000, instructions=1_000)
    assert other.overhead is None


def test_calls_of_the_same_size_tell_nothing_about_the_overhead():
    learnt = calls(overhead=3_000, ratio=1.0, estimate=1_000, sizes=[1_000, 1_001, 1_002, 1_003])
    assert learnt.overhead is None


def test_a_slope_that_no_tokenizer_has_is_no_observation():
    first = observe(Calibration(), prompt=2_000, counted=1_000, instructions=0)
    assert observe(first, prompt=20_000, counted=1_100, instructions=0).last_overhead is None
