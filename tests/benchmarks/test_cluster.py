"""The arithmetic of a cluster's size."""

from __future__ import annotations

import pytest

from benchmarks.cluster.capacity import Assumptions, Costs, fit, size_of

COSTS = Costs(
    gateway_s=0.003,
    gateway_s_per_kb=0.0,
    database_s=0.002,
    commits=2.0,
    stored_kb=10.0,
    jobs_per_compaction=1.0,
    worker_s=0.03,
    database_s_per_job=0.01,
    commits_per_job=5.0,
)


def test_the_line_goes_through_two_points_and_costs_are_never_negative():
    assert fit([(10.0, 0.004), (30.0, 0.006)]) == pytest.approx((0.003, 0.0001))
    assert fit([(10.0, 0.006), (30.0, 0.004)]) == pytest.approx((0.005, 0.0))


def test_a_hundred_conversations_need_one_of_each_and_a_million_the_arithmetic():
    assert size_of(100, COSTS, Assumptions()).gateways == 1
    size = size_of(1_000_000, COSTS, Assumptions(concurrency=8))
    assert size.requests_per_s == pytest.approx(694.4, abs=0.1)
    assert (size.gateways, size.workers, size.database_cores) == (4, 87, 3)
    assert size.commits_per_s == pytest.approx(1_562.5)
    assert size.bottleneck.startswith("commits of the one PostgreSQL (156%")
