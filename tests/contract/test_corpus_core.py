"""Every recorded conversation of the corpus is sound, is measured, and stays sound after every cut."""

from __future__ import annotations

import pytest

from refold.core.assemble import Lead, assemble
from refold.core.cut import by_message, last_turns, pair_safe, turn_boundary_before, user_boundary_after
from refold.core.measure import count_fixed, measure
from refold.core.pairs import repair
from refold.core.verify import verify_window
from refold.core.view import View
from refold.model.message import user
from refold.model.tokens import Budget
from refold.tokens import counter_for
from refold.wire import decode_transcript
from tests.corpus import TRANSCRIPTS, transcripts

pytestmark = pytest.mark.skipif(
    not TRANSCRIPTS.exists(), reason="the corpus of transcripts is not on this machine"
)


@pytest.fixture(scope="module")
def views() -> list[tuple[View, object]]:
    counter = counter_for("gpt-4o")
    requests = [decode_transcript(line) for line in transcripts()]
    return [(View.of(request.messages, request.dialect, counter), request.fixed) for request in requests]


def test_every_transcript_passes_the_check_and_is_measured(views):
    for view, fixed in views:
        assert view.violations() == ()
        cost = count_fixed(fixed, view.counter)
        sizes = measure(view, cost, Budget(window=200_000))
        assert sizes.content == cost.total + view.tokens
        assert sizes.content.tokens > 0


def test_every_rule_cuts_to_a_window_that_a_provider_would_take(views):
    summary = user("what happened before")
    for view, fixed in views:
        for wanted in (
            by_message(view, 4_000),
            user_boundary_after(view, 8_000, force=True),
            turn_boundary_before(view, 4),
            last_turns(view, 2, max_tokens=20_000),
        ):
            tail = view.messages(pair_safe(view, wanted))
            assert not repair(tail, view.dialect).removed
            window = assemble(fixed, tail, Lead((summary,)))
            found = {broken.rule for broken in verify_window(window)}
            assert found <= {"ends_with_assistant"}  # recordings end with the last answer
            mended = repair(view.messages(wanted), view.dialect).messages
            assert not verify_window(assemble(fixed, mended, Lead((summary,))), as_request=False)
