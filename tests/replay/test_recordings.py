from __future__ import annotations

import gzip
import json

import pytest

from refold.model.errors import ConfigError, WireError
from refold.model.tokens import Usage
from refold.replay.recordings import read_recordings
from tests.replay.recordings import EXAMPLES, corpus

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "what can I do?"}]


def write(path, *conversations):
    path.write_text("".join(json.dumps(one) + "\n" for one in conversations), encoding="utf-8")
    return path


def read_one(path, conversation):
    (recording,) = read_recordings(write(path / "one.jsonl", conversation))
    return recording


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz", "own"])
def test_a_file_with_one_conversation_per_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(corpus()) if name.endswith(".gz") else corpus())

    found = read_recordings(path)

    assert [(recording.id, recording.source) for recording in found] == [
        ("session", "coding"),
        ("chat", "support"),
        ("mixed", "coding"),
    ]
    assert [len(recording.system) for recording in found] == [1, 1, 1]
    assert found[0].tools


def test_a_folder_of_single_transcripts_in_three_formats():
    found = {recording.id: recording.dialect.name for recording in read_recordings(EXAMPLES)}

    assert found == {"coding-agent": "chat", "research": "responses", "support-chat": "anthropic"}


def test_lines_without_an_id_are_named_by_file_and_line(tmp_path):
    path = write(tmp_path / "two.jsonl", {"messages": HELLO}, {"messages": HELLO})

    assert [recording.id for recording in read_recordings(path)] == ["two:1", "two:2"]


def test_instructions_in_the_middle_belong_to_the_system(tmp_path):
    messages = [HELLO[0], {"role": "developer", "content": "be brief"}, HELLO[1]]

    recording = read_one(
        tmp_path, {"messages": messages, "times": [f"2025-01-01T00:00:0{at}" for at in (0, 2, 5)]}
    )

    assert [message.text for message in recording.system] == ["be brief"]
    assert [message.role for message in recording.messages] == ["user", "assistant"]
    assert recording.seconds == (0, 5)


def test_recorded_times_count_from_the_first_and_never_run_backwards(tmp_path):
    messages = [{"role": "system", "content": "be kind"}, *HELLO, HELLO[0]]
    times = [
        "2025-01-01T10:00:00Z",
        "2025-01-01T10:01:00Z",
        "2025-01-01T10:00:30Z",
        "2025-01-01T11:02:00+01:00",
    ]

    recording = read_one(tmp_path, {"messages": messages, "times": times})

    assert recording.seconds == (60, 60, 120)


def test_times_with_gaps_are_no_times(tmp_path):
    assert read_one(tmp_path, {"messages": HELLO, "times": ["2025-01-01T10:00:00Z", None]}).seconds == ()


def test_reported_usage_belongs_to_a_reply(tmp_path):
    messages = [{"role": "system", "content": "be kind"}, *HELLO]
    usage = [{"i": 2, "input": 3, "cache_read": 17, "cache_write": 5, "output": 7, "model": "m"}]

    recording = read_one(tmp_path, {"messages": messages, "usage": usage})

    assert recording.usage == ((1, Usage(3, 17, 5, 7)),)


def test_fields_that_mean_something_else_elsewhere_do_no_harm(tmp_path):
    recording = read_one(tmp_path, {"messages": HELLO, "usage": {"total": 3}, "id": 7, "times": "yesterday"})

    assert (recording.id, recording.usage, recording.seconds) == ("one", (), ())


def test_times_may_be_seconds(tmp_path):
    recording = read_one(tmp_path, {"messages": HELLO, "times": [1_767_000_000, 1_767_000_002.5]})

    assert recording.seconds == (0, 2.5)


@pytest.mark.feature("N6")
def test_a_folder_of_logs_beside_other_files(tmp_path):
    sessions = tmp_path / "projects" / "app"
    sessions.mkdir(parents=True)
    common = {"sessionId": "s-1", "isSidechain": False, "timestamp": "2026-03-01T10:00:00Z"}
    write(
        sessions / "s-1.jsonl",
        {"type": "user", "uuid": "a", "message": {"role": "user", "content": "hello"}, **common},
        {
            "type": "assistant",
            "uuid": "b",
            "parentUuid": "a",
            "message": {"id": "m", "role": "assistant", "content": [{"type": "text", "text": "hi"}]},
            **common,
            "timestamp": "2026-03-01T10:00:09Z",
        },
    )
    write(sessions / "s-2.jsonl", {"type": "summary", "summary": "a title", "leafUuid": "b"})
    write(sessions / "sessions-index.json", {"version": 1, "entries": []})
    write(sessions / "broken.jsonl", {"type": "user", **common}, {"type": 5}, {"type": "user", **common})

    with pytest.raises(WireError) as caught:
        read_recordings(tmp_path)
    (sessions / "broken.jsonl").unlink()
    (recording,) = read_recordings(tmp_path)

    assert caught.value.place == "broken.jsonl"
    assert "line 2" in str(caught.value)
    assert (recording.id, recording.source, recording.seconds) == ("s-1", "claude-code", (0, 9))
    assert [message.text for message in recording.messages] == ["hello", "hi"]


def test_a_file_that_is_asked_for_is_not_passed_over(tmp_path):
    with pytest.raises(WireError, match="has no messages"):
        read_recordings(write(tmp_path / "s.jsonl", {"type": "summary", "summary": "t", "leafUuid": "b"}))


@pytest.mark.parametrize(
    ("second", "place"),
    [
        ('{"messages": [{"role": "user", "content": 5, "secret": "hunter2"}]}', "messages[0].content"),
        ('{"messages": [', ""),
        ('{"messages": [{"role":"user","content":"hunter2"}], "times": ["a", "b"]}', "times"),
        ('{"messages": [{"role":"user","content":"hunter2"}], "times": ["noon"]}', "times"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line_and_not_quoted(tmp_path, second, place):
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps({"messages": HELLO}) + "\n" + second + "\n", encoding="utf-8")

    with pytest.raises(WireError) as caught:
        read_recordings(path)

    assert caught.value.place == "broken.jsonl, line 2"
    assert place in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_what_cannot_be_read_is_a_clear_error(tmp_path):
    damaged = tmp_path / "damaged.jsonl.gz"
    damaged.write_bytes(gzip.compress(corpus())[:3_000])
    (tmp_path / "nothing").mkdir()

    with pytest.raises(ConfigError, match="there is no file"):
        read_recordings(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match=r"damaged\.jsonl\.gz cannot be read"):
        read_recordings(damaged)
    with pytest.raises(ConfigError, match="holds no conversation"):
        read_recordings(tmp_path / "nothing")


def test_progress_grows_to_the_size_of_all_files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(corpus())
    seen = []

    read_recordings(tmp_path, on_progress=lambda done, total: seen.append((done, total)))

    total = 2 * len(corpus())
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert len(seen) == 7
