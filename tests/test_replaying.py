from __future__ import annotations

import io
import sys

import pytest

from refold.replay.summarisers import SummariserOptions, choose
from refold.replaying import Summaries, Wanted, measure, order_for
from refold.testing import ScriptedUpstream
from tests.corpus import _ROOT

DATA = str(_ROOT / "examples" / "coding-agent.json")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(order: SummariserOptions, monkeypatch) -> list[str]:
    """Everything that stood on the line of somebody who watches."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    measure(Wanted(DATA, ["refold"], [4_000], "", baselines=False, jobs=1), order)
    return screen.getvalue().replace("\x1b[K", "").split("\r")[1:]


@pytest.mark.feature("N6")
def test_whoever_watches_sees_every_call_and_what_was_spent(monkeypatch, tmp_path):
    with ScriptedUpstream(otherwise="Files were read and changed.") as server:
        order = SummariserOptions((choose(f"gpt-4o-mini@{server.url}/v1"),), folder=tmp_path)
        lines = watched(order, monkeypatch)

    calls = len(server.requests)
    assert lines[0].startswith("replaying; 1 calls, $0.00")
    assert len(lines) == calls + 2
    assert lines[-2].startswith(f"replayed 1 of 1; {calls} calls, $0.0")
    assert lines[-1] == ""


def test_without_a_model_only_the_progress_is_shown(monkeypatch):
    assert watched(order_for(Summaries([], "", None, "", "", None)), monkeypatch) == ["replayed 1 of 1", ""]


def test_the_same_summariser_twice_is_one():
    order = order_for(Summaries(["digest", "openai:gpt-4o", "digest", "openai:gpt-4o"], "", 300, "", "", 1.0))

    assert [one and one.spec for one in order.chosen] == [None, "openai:gpt-4o"]
    assert (order.max_tokens, order.most) == (300, 1.0)
