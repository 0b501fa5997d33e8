"""Kills, cut-offs, restarts and frozen workers: nothing is lost, split, stuck or paid twice. See `tests/cluster/campaign.py`."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.network import may_make_namespaces

pytest.importorskip("procrastinate", reason="jobs need the extra `cluster`")


def check(done, capsys) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\nCluster: {done}\n")
    assert done.faults == []
    assert done.paid_twice == 0
    assert done.folds
    assert done.questions


@pytest.mark.feature("N9")
async def test_parts_of_a_cluster_die_freeze_and_restart_and_nothing_is_lost(tmp_path, capsys):
    from tests.cluster.campaign import Campaign

    check(await Campaign(tmp_path, conversations=4, plain=True).run(acts=4, gateways=2, workers=2), capsys)


@pytest.mark.slow
async def test_parts_of_a_cluster_are_killed_and_cut_off_fifty_times(tmp_path, capsys):
    if reason := may_make_namespaces():
        pytest.skip(reason)
    from tests.cluster.campaign import Campaign

    check(await Campaign(tmp_path, conversations=100).run(acts=50), capsys)
