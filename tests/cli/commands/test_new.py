"""`refold new`."""

from __future__ import annotations

import json

import pytest

from refold.engine.conversation import Conversation


@pytest.mark.feature("L2")
def test_a_new_session_shows_nothing_and_says_how_to_go_back(kept):
    told = kept("new", "shifts")
    old, new = json.loads(kept("sessions", "shifts", "--json").out)["sessions"]

    assert told.out == f"{new['id'][:8]}  begins at #m134, with nothing shown\n"
    assert f"`refold resume shifts {old['id'][:8]}`" in told.err
    assert (new["kind"], new["carries"], new["state"], old["last"]) == ("new", "none", "open", 134)
    assert json.loads(kept("conversations", "--json").out)["conversations"][0]["ratio"] < 0.01
    assert kept("doctor").code == 0


def test_where_the_model_is_not_there_a_session_is_closed_with_a_digest(kept):
    told = kept("new", "shifts", "--summariser", "gpt-4o-mini@http://127.0.0.1:9/v1")
    assert (told.code, "it was closed with a digest" in told.err) == (0, True)


def test_a_session_is_closed_by_the_preset_of_the_settings(kept, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "refold.engine.conversation.Conversation.start_session",
        _noting(seen, Conversation.start_session),
    )
    monkeypatch.setenv("REFOLD_COMPACTION_PRESET", "opal")
    assert kept("new", "shifts").code == 0

    assert seen == ["opal"]


def _noting(seen, start):
    async def start_session(self, *args, **kwargs):
        seen.append(self.state.frame.policy.name)
        return await start(self, *args, **kwargs)

    return start_session
