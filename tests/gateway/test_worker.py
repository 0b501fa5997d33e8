"""The worker's rules for jobs that are run again."""

from __future__ import annotations

import asyncio

import pytest

from refold.model.errors import ConfigError, StoreError

pytest.importorskip("procrastinate", reason="jobs need the extra `cluster`")

from refold.gateway.worker import JobFailed, JobHeld, retry_after_s


def test_a_job_is_run_again_later_and_later_and_not_for_ever():
    assert retry_after_s(asyncio.CancelledError(), 7) == 0
    assert retry_after_s(JobHeld(12.5), 50) == 12.5
    assert [retry_after_s(JobFailed(), tries) for tries in range(3)] == [61, 122, None]
    assert [retry_after_s(StoreError("x"), tries) for tries in (0, 1, 8, 9)] == [1, 2, 256, None]
    assert retry_after_s(ConfigError("x"), 0) is None
