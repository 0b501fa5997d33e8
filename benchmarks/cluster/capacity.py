"""The model of a cluster's size: measured costs and stated assumptions in, numbers of processes and cores out.

All of it is arithmetic on rates at the busiest time of a day. The bottleneck is the part that runs out first when the cluster grows.
"""

from __future__ import annotations

import math

from msgspec import Struct


class Assumptions(Struct, frozen=True):
    """What is assumed about the traffic; change them with the options of the command."""

    requests: int = 20
    """Requests of a conversation."""
    body_kb: float = 40.0
    """The average request, with its history."""
    compactions: float = 1.0
    """Compactions of a conversation: one for a chat of 20 turns with some tool results."""
    peak: float = 3.0
    """The busiest hour against the average of the day."""
    busy: float = 0.6
    """How busy a core may be: above it, waiting times grow fast."""
    model_s: float = 20.0
    """Seconds that a model takes for a summary."""
    concurrency: int = 32
    """Jobs of a worker at the same time, `cluster.concurrency`."""
    commits_per_s: float = 1_000.0
    """Commits that one disk of the database flushes in a second, several commits to a flush: an SSD of a cloud provider."""


class Costs(Struct, frozen=True):
    """What was measured. `gateway_s` is for an empty request, and grows by `gateway_s_per_kb`."""

    gateway_s: float
    gateway_s_per_kb: float
    database_s: float
    commits: float
    stored_kb: float
    jobs_per_compaction: float
    worker_s: float
    database_s_per_job: float
    commits_per_job: float


class Size(Struct, frozen=True):
    """The size of a cluster for so many conversations a day."""

    conversations: int
    requests_per_s: float
    gateways: int
    workers: int
    database_cores: int
    commits_per_s: float
    stored_gb_per_day: float
    bottleneck: str


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The line through points of size and cost, by least squares: the cost of nothing, and that of a unit of size."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = max(0.0, slope)
    return max(0.0, mean_y - slope * mean_x), slope


def size_of(conversations: int, costs: Costs, given: Assumptions) -> Size:
    """The cluster for so many conversations a day, at the busiest time, without spare parts."""
    requests_per_s = conversations * given.requests * given.peak / 86_400
    jobs_per_s = conversations * given.compactions * costs.jobs_per_compaction * given.peak / 86_400
    gateway = requests_per_s * (costs.gateway_s + costs.gateway_s_per_kb * given.body_kb) / given.busy
    by_waiting, by_cpu = (
        jobs_per_s * given.model_s / given.concurrency,
        jobs_per_s * costs.worker_s / given.busy,
    )
    database = (requests_per_s * costs.database_s + jobs_per_s * costs.database_s_per_job) / given.busy
    commits = requests_per_s * costs.commits + jobs_per_s * costs.commits_per_job
    shares = {
        "commits of the one PostgreSQL": commits / given.commits_per_s,
        # One machine has at most some dozens of cores; gateways and workers are added as they are needed.
        "cores of the one PostgreSQL": database / 32,
    }
    first = max(shares, key=lambda name: shares[name])
    bottleneck = f"{first} ({shares[first]:.0%} of one machine)" if shares[first] >= 0.01 else "none"
    return Size(
        conversations,
        requests_per_s,
        max(1, math.ceil(gateway)),
        max(1, math.ceil(max(by_waiting, by_cpu))),
        max(1, math.ceil(database)),
        commits,
        conversations * given.requests * costs.stored_kb / 1024 / 1024,
        bottleneck,
    )
