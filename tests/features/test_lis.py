"""The features of the preset `lis`, through the doors that users have."""

from __future__ import annotations

import re

import pytest

from refold.engine.events import text_of
from refold.sync import Conversation
from tests.formats import answer, question


@pytest.mark.feature("L15")
def test_a_notice_has_the_numbers_of_the_provider_that_decided():
    """The provider counts 1.4 times as many tokens as we do, and the preset decides on its reports."""
    events, prompt = [], 0
    talk = Conversation("gpt-4o", preset="lis", window=10_000, max_output=500, on_event=events.append)
    while not any(one.kind == "compaction_end" for one in events):
        talk.add(question("The gulls flew out to sea, and the tide came in. " * 30))
        talk.context()
        prompt = round(talk.state.fill_level.counted * 1.4)
        talk.record({"prompt_tokens": prompt, "completion_tokens": 10})
        talk.add(answer("They were grey, and they were many. " * 10))
    start, end = (one for one in events if one.kind.startswith("compaction"))
    assert (start.before.tokens, start.before.source) == (prompt, "reported")
    assert start.before.counted < prompt / 1.3
    assert re.match(rf"⚙️ Compacting \(8.*\): {prompt:,} tokens > 80 % of 10,000", text_of(start))
    assert sum(getattr(end.before.regions, name) for name in end.before.regions.__struct_fields__) == prompt
    assert end.after.source == end.before.source
    assert end.after.messages < end.before.messages
    assert end.after.tokens == pytest.approx(end.after.counted * 1.4, rel=0.1)
