"""A campaign that is stopped removes its namespaces, and what a killed one left is removed by the next."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster import leftovers
from tests.cluster.network import may_make_namespaces
from tests.cluster.parts import ROOT, until

pytest.importorskip("procrastinate", reason="jobs need the extra `cluster`")


def left_of(pid: int) -> list[str]:
    """The namespaces, links and servers that carry the name of a process."""
    named = subprocess.run(["ip", "netns", "list"], capture_output=True, check=True, text=True).stdout
    links = subprocess.run(["ip", "-oneline", "link"], capture_output=True, check=True, text=True).stdout
    spaces = [one[0] for one in leftovers.SPACE.finditer(named) if one[1] == str(pid)]
    ends = [one[0] for one in leftovers.LINK.finditer(links) if int(one[1], 16) == pid]
    users = Path(tempfile.gettempdir()).glob(f"{leftovers.SERVER}/.handle_pids.json")
    return spaces + ends + [str(one) for one in users if pid in json.loads(one.read_text() or "[]")]


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_is_left_of_a_campaign_that_was_stopped(which):
    if reason := may_make_namespaces():
        pytest.skip(reason)
    program = [sys.executable, "-m", "tests.cluster.campaign", "1", "2"]
    campaign = await asyncio.create_subprocess_exec(*program, cwd=ROOT)
    try:
        # The gateways and workers have their namespaces one after the other, each when the one before it is ready.
        await until(lambda: f"refold-{campaign.pid}-0-gateway1" in left_of(campaign.pid))
        campaign.send_signal(which)
        await campaign.wait()
        if which is signal.SIGKILL:
            assert left_of(campaign.pid)
            assert f"refold-{campaign.pid}-0-postgres" in leftovers.remove()
        assert left_of(campaign.pid) == []
    finally:
        if campaign.returncode is None:
            campaign.kill()
            await campaign.wait()
