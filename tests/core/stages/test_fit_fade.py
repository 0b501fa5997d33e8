import json

import msgspec
import pytest

from refold.core.stages.fit import Fade, Fit
from refold.core.stages.parts import COUNT_MARK
from refold.model.message import ToolCall, assistant, tool, user
from tests.core.conversations import FlatCounter
from tests.core.stages.shown_messages import results_of, room_for, show_all, work

FADE = Fade(fit=Fit(mark=COUNT_MARK))


def faded(pressure, *outputs, tokens=10_000):
    """Results after fading at some percent of pressure."""
    messages = work(*outputs)
    counter = FlatCounter(tokens * pressure // 100 // len(messages))
    used = counter.tokens * len(messages)
    room = room_for(tokens, counter=counter)
    shown = show_all(messages, counter=counter)
    assert used * 100 // tokens in (pressure - 1, pressure)
    return FADE.apply(shown, room)


@pytest.mark.feature("C13")
@pytest.mark.parametrize(
    "pressure, factor",
    [(80, 1.0), (84, 1.0), (85, 0.5), (89, 0.5), (90, 0.2), (98, 0.2), (99, 0.05), (150, 0.05)],
)
def test_the_fuller_the_window_the_less_stays(pressure, factor):
    """A result may take 30 % of the band's tokens, at four characters each; a band has 1,024 tokens at least."""
    result = faded(pressure, "x" * 100_000, tokens=100_000)
    base = max(1_024, int(100_000 * factor))
    assert [len(text) for text in results_of(result.shown)] == [min(100_000, int(0.3 * base) * 4)]


@pytest.mark.feature("C13")
def test_below_80_percent_nothing_fades():
    result = faded(79, "x" * 100_000)
    assert not result.edits
    assert result.reason == "the window is not full enough to fade anything"


@pytest.mark.feature("C13")
def test_the_oldest_keeps_a_fifth_of_what_the_newest_keeps():
    result = faded(99, *["x" * 100_000] * 5, tokens=1_000_000)
    newest = int(0.3 * 50_000) * 4
    assert [len(text) for text in results_of(result.shown)] == [
        newest // 5,
        newest * 2 // 5,
        newest * 3 // 5,
        newest * 4 // 5,
        newest,
    ]


@pytest.mark.feature("C13")
@pytest.mark.parametrize("pressure", [99, 500])
def test_a_small_window_has_1_024_tokens_to_share(pressure):
    assert [len(text) for text in results_of(faded(pressure, "x" * 9_000, tokens=2_000).shown)] == [307 * 4]


@pytest.mark.feature("C13")
def test_inputs_fade_too_and_stay_objects():
    call = ToolCall("c", "write", json.dumps({"content": "x" * 90_000}))
    shown = show_all([user("go"), assistant("", call), tool("c", "ok"), assistant("done")])
    arguments = FADE.apply(shown, room_for(10)).shown.messages[1].calls[0].arguments
    assert len(arguments) <= 153 * 4
    assert set(json.loads(arguments)) == {"_truncated", "_originalChars"}


def test_bands_are_data():
    bands = {"bands": [[0.5, 0.1]], "type": "fade"}
    stage = msgspec.convert(bands, Fade)
    shown = show_all(work("x" * 100_000))
    assert len(results_of(stage.apply(shown, room_for(150_000)).shown)[0]) <= int(0.3 * 15_000) * 4
