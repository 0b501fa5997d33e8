"""Kills, cut-offs, restarts and frozen workers: nothing is lost, split, stuck or paid twice. See `tests/cluster/campaign.py`."""

from __future__ import annotations

import os
import sys

import pytest

from tests.cluster.network import may_make_namespaces

pytest.importorskip("procrastinate", reason="jobs need the extra `cluster`")

USUAL = {"ACTS": 50, "TALKS": 100}


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

    with Campaign(tmp_path, conversations=4, plain=True) as campaign:
        check(await campaign.run(acts=4, gateways=2, workers=2), capsys)


@pytest.mark.slow
async def test_parts_of_a_cluster_are_killed_and_cut_off_fifty_times(tmp_path, capsys):
    """Ten minutes; `REFOLD_CAMPAIGN_ACTS` and `REFOLD_CAMPAIGN_TALKS` make it shorter."""
    acts, talks = (int(os.environ.get(f"REFOLD_CAMPAIGN_{name}", usual)) for name, usual in USUAL.items())
    if reason := may_make_namespaces():
        pytest.skip(reason)
    from tests.cluster.campaign import Campaign

    with Campaign(tmp_path, conversations=talks) as campaign:
        check(await campaign.run(acts=acts), capsys)
