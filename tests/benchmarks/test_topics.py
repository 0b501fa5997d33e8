import pytest

from benchmarks.topics.__main__ import measure, read_talks, spliced
from examples.sources.topics import SUBJECTS, recordings
from refold import embeddings

pytestmark = pytest.mark.skipif(
    embeddings.installed("auto") is None, reason="the extra `search` is not installed"
)


@pytest.mark.feature("X11")
def test_most_changes_of_topic_that_are_reported_are_marked_ones():
    found = measure("own", recordings(8))
    assert found["changes"] == 24
    assert found["reported"] >= 12
    assert found["precision"] >= 0.8
    assert found["twice"] == 0


def test_the_same_recordings_are_made_each_time():
    assert recordings(3) == recordings(3)
    assert all(len(turns) >= 12 for turns in SUBJECTS.values())


def test_a_set_of_sessions_and_one_of_messages_are_read(tmp_path):
    talk = [{"role": role, "content": f"{role} {at}"} for at in range(9) for role in ("user", "assistant")]
    turns = [{"speaker": one["role"], "text": f"{one['content']} ->-> 1,2"} for one in talk]
    path = tmp_path / "set.jsonl"
    path.write_text(
        "\n".join(
            [
                f'{{"messages": {talk}}}'.replace("'", '"'),
                f'{{"sessions": [{{"turns": {turns}}}]}}'.replace("'", '"'),
            ]
        )
    )
    first, second = read_talks(path)
    assert first == second
    assert first[0] == ("user 0", "assistant 0")
    assert len(spliced([first, second])) > 1
