"""What the program that is killed and the one that kills it have agreed on."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from refold.engine.summary_jobs import LEASE_S
from tests.embedder import Subjects

OWNER = "local"
CONVERSATIONS = 3
"""At once: each has a summary in the making now and then."""
RUNS_EACH = 25
"""How many programs go on with the same conversations, before others are begun."""
SETTINGS = {"window": 1_600, "max_output": 100, "owner": OWNER, "embedder": Subjects()}
"""A small window, so that there is a compaction every few turns."""


class Noted(Struct, frozen=True):
    """A message by the name that it was given before it was said."""

    conversation: str
    id: str


def name_of(run: int, place: int) -> str:
    return f"talk-{run // RUNS_EACH}-{place}"


def clock_of(run: int) -> Callable[[], float]:
    """The time of a run: every run is later than the leases of the one before it."""
    return lambda: time.time() + run * 2 * LEASE_S
