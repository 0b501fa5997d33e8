import json

import msgspec
import pytest

from refold.core.stages.parts import COUNT_MARK, HANDLE_MARK, cut_call, cut_result, find_results, stub_result
from refold.model.message import Image, Message, Text, ToolCall, ToolResult, assistant, tool, user
from tests.core.stages.shown_messages import lines, show_all


def test_a_result_answers_the_latest_call_with_its_id():
    messages = [
        user("go"),
        assistant("", ToolCall("x", "first")),
        tool("x", "1"),
        assistant("", ToolCall("x", "second")),
        tool("x", "2"),
        tool("lost", "3"),
    ]
    assert [found.name for found in find_results(show_all(messages))] == ["first", "second", ""]


def test_screenshots_are_left_alone():
    shot = ToolResult("x", (Image(data="AAAA"),), kind="computer")
    assert find_results(show_all([Message("tool", (shot,))])) == []


def test_a_shortened_result_keeps_everything_but_its_text():
    raw = msgspec.Raw(b'{"type":"text","text":"long"}')
    image = Image(media_type="image/png", data="AAAA")
    result = ToolResult("x", (Text(lines(50), raw=raw), image, Text("end")), True, "custom")
    cut = cut_result(result, 500, HANDLE_MARK, "#m1")
    assert (cut.call_id, cut.is_error, cut.kind) == ("x", True, "custom")
    assert cut.parts[1] is image
    assert cut.parts[0].raw is raw
    assert cut.text.endswith("end")
    assert len(cut.text) <= 500
    assert stub_result(result, "gone").parts == (Text("gone", raw=raw),)


def test_long_values_of_a_call_are_cut_and_short_ones_stay():
    arguments = json.dumps({"path": "src/app.py", "content": lines(200), "mode": 420, "ratio": 1.50})
    cut = cut_call(ToolCall("x", "write", arguments), 1_000, HANDLE_MARK, "#m3.1")
    values = json.loads(cut.arguments)
    assert len(cut.arguments) <= 1_000
    assert (values["path"], values["mode"], values["ratio"]) == ("src/app.py", 420, 1.5)
    assert values["content"].startswith("line 0.")
    assert "#m3.1" in values["content"]
    assert cut_call(cut, 1_000, HANDLE_MARK, "#m3.1") is cut


@pytest.mark.parametrize("limit", [200, 400, 3_000])
@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"items": [{"id": number, "text": "some words"} for number in range(500)]}),
        json.dumps({f"key{number}": "value" * 4 for number in range(400)}),
        json.dumps(["no", "object"] * 1_000),
        '{"broken": "' + "and so on " * 1_000,
        json.dumps({"quotes": '"\n' * 5_000}),
    ],
)
@pytest.mark.parametrize("mark", [HANDLE_MARK, COUNT_MARK])
def test_cut_arguments_are_a_json_object_of_the_right_size(arguments, limit, mark):
    call = cut_call(ToolCall("x", "do", arguments), limit, mark, "#m3")
    assert isinstance(json.loads(call.arguments), dict)
    assert len(call.arguments) <= limit
    assert cut_call(call, limit, mark, "#m3") is call


def test_counted_arguments_say_how_long_they_were():
    arguments = json.dumps({"script": "x" * 5_000})
    once = cut_call(ToolCall("x", "run", arguments), 2_000, COUNT_MARK, "")
    twice = cut_call(once, 600, COUNT_MARK, "")
    for call in (once, twice):
        values = json.loads(call.arguments)
        assert set(values) == {"_truncated", "_originalChars"}
        assert values["_originalChars"] == len(arguments)


def test_own_marks_bring_no_number_of_their_own():
    cut = cut_call(ToolCall("x", "do", json.dumps(["a b"] * 1_000)), 400, HANDLE_MARK, "#m3")
    assert set(json.loads(cut.arguments)) == {"_truncated"}
    assert not any(sign.isdigit() for sign in cut.arguments.replace("#m3", ""))


def test_a_custom_tool_s_input_stays_plain_text():
    call = ToolCall("x", "sql", "select 1 -- why\n" * 200, "custom")
    cut = cut_call(call, 500, HANDLE_MARK, "#m3")
    assert cut.arguments.startswith("select 1")
    assert len(cut.arguments) <= 500
