from __future__ import annotations

import json

import pytest

from refold.model.message import File, Image
from refold.wire import decode_transcript

pytestmark = pytest.mark.feature("N6")


def user(name: str, *parts: dict) -> dict:
    info = {"id": name, "sessionID": "ses_1", "role": "user", "time": {"created": 1_767_000_000_000}}
    return {"info": info, "parts": list(parts)}


def assistant(name: str, *parts: dict, **info) -> dict:
    times = {"created": 1_767_000_001_000, "completed": 1_767_000_009_000}
    known = {"id": name, "sessionID": "ses_1", "role": "assistant", "time": times, "modelID": "gpt-5.5"}
    return {"info": {**known, **info}, "parts": [{"type": "step-start"}, *parts]}


def text(words: str, **more) -> dict:
    return {"type": "text", "id": f"prt_{words}", "text": words, **more}


def tool(call: str, **state) -> dict:
    known = {"input": {"path": "/a"}, "time": {"start": 1_767_000_002_000, "end": 1_767_000_003_000}}
    return {"type": "tool", "callID": call, "tool": "read", "state": {**known, **state}}


def read(*messages: dict, **info):
    session = {"id": "ses_1", "title": "A title", "version": "1.4.0", **info}
    return decode_transcript(json.dumps({"info": session, "messages": messages}, indent=2).encode())


def said(request) -> list[tuple[str, str]]:
    return [
        (message.role, message.text or " ".join(result.text for result in message.results))
        for message in request.messages
    ]


def test_a_part_with_a_call_becomes_a_call_and_its_result():
    tokens = {"input": 10, "output": 4, "reasoning": 2, "cache": {"read": 80, "write": 5}}
    request = read(
        user("msg_1", text("Read it.")),
        assistant(
            "msg_2",
            {"type": "reasoning", "text": "A file.", "time": {"start": 1}},
            text("Reading."),
            tool("c1", status="completed", output="x = 1", title="a", metadata={"output": {"odd": 1}}),
            {"type": "step-finish", "reason": "tool-calls", "cost": 0, "tokens": tokens},
            {"type": "step-start"},
            text("It is 1."),
            {"type": "patch", "hash": "f00", "files": []},
        ),
    )

    assert said(request) == [
        ("user", "Read it."),
        ("assistant", "Reading."),
        ("tool", "x = 1"),
        ("assistant", "It is 1."),
    ]
    assert [made.id for made in request.messages[1].calls] == ["c1"]
    assert (request.dialect.name, request.model) == ("chat", "gpt-5.5")
    fields = {key: json.loads(bytes(raw)) for key, raw in request.fields.items()}
    assert fields["usage"] == [{"i": 1, "input": 10, "cache_read": 80, "cache_write": 5, "output": 6}]
    assert fields["times"] == [1_767_000_000, 1_767_000_002, 1_767_000_003, 1_767_000_009]
    assert (fields["id"], fields["source"]) == ("ses_1", "opencode")


def test_the_words_of_a_compaction_are_the_client_s():
    request = read(
        user("msg_1", text("Name it aurora.")),
        assistant("msg_2", text("Aurora.")),
        user("msg_3", {"type": "compaction", "auto": True}),
        assistant("msg_4", text("The user named it."), summary=True, mode="compaction"),
        user("msg_5", text("Go on if you can.", synthetic=True, metadata={"compaction_continue": True})),
        assistant("msg_6", text("Going on.")),
    )

    assert said(request) == [
        ("user", "Name it aurora."),
        ("assistant", "Aurora."),
        ("assistant", "Going on."),
    ]


@pytest.mark.parametrize(
    "state, words",
    [
        ({"status": "completed", "output": "kept", "metadata": {}, "time": {"compacted": 5}}, "kept"),
        ({"status": "error", "error": "no such file"}, "no such file"),
        ({"status": "error", "error": "x", "metadata": {"interrupted": True, "output": "half"}}, "half"),
        ({"status": "running"}, "[the call was interrupted]"),
    ],
)
def test_every_call_has_a_result(state: dict, words: str):
    assert said(read(user("msg_1", text("Go.")), assistant("msg_2", tool("c1", **state))))[-1] == (
        "tool",
        words,
    )


def test_files_of_the_user():
    request = read(
        user(
            "msg_1",
            text("Look."),
            text("not for models", ignored=True),
            {"type": "file", "mime": "image/png", "url": "data:image/png;base64,aW1n", "filename": "a.png"},
            {"type": "file", "mime": "application/pdf", "url": "data:application/pdf;base64,cGRm"},
            {"type": "file", "mime": "text/plain", "url": "file:///a.txt"},
            {"type": "agent", "name": "build"},
            {"type": "subtask", "prompt": "Review it.", "description": "d", "agent": "a"},
        )
    )

    assert request.messages[0].text == "Look.\nReview it."
    kinds = [type(part) for part in request.messages[0].parts]
    assert (kinds.count(Image), kinds.count(File)) == (1, 1)


def test_replies_that_failed_are_left_out_and_those_broken_off_are_not():
    request = read(
        user("msg_1", text("Go.")),
        assistant("msg_2", text("Half"), error={"name": "APIError", "data": {}}),
        assistant("msg_3", text("Half."), error={"name": "MessageAbortedError", "data": {}}),
        assistant("msg_4"),
    )

    assert said(request) == [("user", "Go."), ("assistant", "Half.")]


@pytest.mark.parametrize("part", [None, "prt_Two."])
def test_what_the_user_took_back_is_gone(part: str | None):
    request = read(
        user("msg_1", text("One.")),
        assistant("msg_2", text("First."), text("Two.")),
        user("msg_3", text("Three.")),
        revert={"messageID": "msg_2", **({"partID": part} if part else {})},
    )

    assert [words for _, words in said(request)] == (["One.", "First."] if part else ["One."])
