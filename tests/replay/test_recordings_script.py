from __future__ import annotations

from refold.model.dialect import CHAT, RESPONSES
from refold.model.message import ToolCall, assistant, system, tool, user
from refold.replay.facts import ReferenceCounter
from refold.replay.recordings import CountedRecording, Recording, read_recordings
from tests.replay.recordings import EXAMPLES, recordings

GO = assistant("", ToolCall("c1", "go"))
MESSAGES = (user("hi"), assistant("I look."), GO, tool("c1", "done"), assistant("There."), user("thanks"))


def script(messages, dialect=CHAT, **fields):
    return CountedRecording(
        Recording("r", "s", dialect, (system("be kind"),), messages, **fields), ReferenceCounter()
    )


def test_every_reply_asks_for_a_context_but_one_that_begins_the_conversation():
    assert script(MESSAGES).replies == (range(1, 2), range(2, 3), range(4, 5))
    assert script(MESSAGES[1:]).replies == (range(1, 2), range(3, 4))


def test_items_of_one_reply_are_one_reply():
    assert script(MESSAGES, RESPONSES).replies == (range(1, 3), range(4, 5))


def test_without_recorded_times_people_take_longer_than_machines():
    assert script(MESSAGES).seconds == (90, 98, 106, 114, 122, 212)
    assert script(MESSAGES, seconds=(0, 1, 2, 3, 4, 5)).seconds == (0, 1, 2, 3, 4, 5)


def test_sizes_are_known_before_anybody_is_asked():
    known = script(MESSAGES)

    assert known.offsets[:3] == (0, 5, 11)
    assert known.tokens == known.offsets[-1] + 6
    assert known.last_user_text(5) == "hi"
    assert known.last_user_text(0) == ""


def test_what_the_system_and_the_tools_say_is_never_a_demand(tmp_path):
    session = CountedRecording(recordings(tmp_path)[0], ReferenceCounter())

    assert {tool.name for tool in session.recording.tools} <= session.fixed_literals
    assert session.head_tokens > 100


def test_examples_in_every_format_become_scripts():
    for recording in read_recordings(EXAMPLES):
        assert CountedRecording(recording, ReferenceCounter()).replies
