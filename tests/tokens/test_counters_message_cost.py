import base64
import json

import pytest
from msgspec import Raw

from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    user,
)
from refold.tokens import ExactCounter, FittedCounter
from refold.tokens.counters import CHAT_FRAMING, IMAGE_TOKENS, PAGE_TOKENS

FRAME = CHAT_FRAMING.message
counter = FittedCounter()


def cost(*parts, role="user"):
    return counter.message(Message(role, parts)) - FRAME


def opaque(value):
    return Opaque(value.get("type", "unknown"), raw=Raw(json.dumps(value).encode()))


def test_a_message_costs_its_text_and_its_frame():
    assert counter.message(user("hello there")) == FRAME + counter.text("hello there")
    assert counter.message(user("")) == FRAME
    assert cost(Text("one"), Text("two")) == counter.text("one") + counter.text("two")


def test_thinking_costs_its_text_and_not_what_is_sealed():
    thought = counter.text("let me see")
    assert cost(Reasoning("let me see", signature="x" * 9_000), role="assistant") == thought
    assert cost(Reasoning("", sealed="x" * 9_000), role="assistant") == 0


def test_calls_cost_name_arguments_and_frame_and_results_their_parts():
    call = ToolCall("call_1", "read_file", '{"path": "a.py"}')
    expected = counter.text("read_file") + counter.text('{"path": "a.py"}')
    assert cost(call, call, role="assistant") == 2 * (expected + CHAT_FRAMING.call)
    result = ToolResult("call_1", (Text("line one"), Image(url="https://example.org/a.png")))
    assert cost(result, role="tool") == CHAT_FRAMING.result + counter.text("line one") + IMAGE_TOKENS


def test_the_frames_are_those_of_the_published_harmony_format():
    splintr = pytest.importorskip("splintr")
    harmony = splintr.Tokenizer.from_pretrained("gpt-oss")
    exact = ExactCounter("o200k_base")
    called = "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{}<|call|>"
    answered = "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>sunny<|end|>"
    said = "<|start|>user<|message|>hello<|end|>"
    assert exact.message(assistant("", ToolCall("1", "get_weather"))) == len(harmony.encode(called))
    assert exact.message(tool("1", "sunny")) == len(harmony.encode(answered))
    assert exact.message(user("hello")) == len(harmony.encode(said))


def test_an_image_costs_the_same_whatever_its_bytes():
    assert cost(Image(data="A" * 4_000_000)) == cost(Image(url="https://example.org/a.png")) == IMAGE_TOKENS


def test_a_file_costs_its_text_or_its_pages():
    assert cost(File(name="a.txt", text="plain words")) == counter.text("plain words")
    assert cost(File(file_id="file-1")) == PAGE_TOKENS
    pages = base64.b64encode(bytes(10 * 64 * 1024)).decode()
    assert cost(File(media_type="application/pdf", data=pages)) == 10 * PAGE_TOKENS
    assert cost(File(media_type="application/pdf", data="A" * 80_000_000)) == 25 * PAGE_TOKENS
    words = base64.b64encode(b"word " * 1_000).decode()
    assert cost(File(media_type="text/plain", data=words)) == pytest.approx(1_250, abs=5)


def test_an_opaque_part_costs_what_a_model_can_read_of_it():
    plain = {"type": "web_search_tool_result", "content": [{"title": "Snow", "url": "https://example.org"}]}
    sealed = json.loads(json.dumps(plain))
    sealed["content"][0]["encrypted_content"] = "x" * 50_000
    sealed |= {"signature": "x" * 5_000, "data": "x" * 5_000}
    assert cost(opaque(sealed)) == cost(opaque(plain)) > 5


def test_media_inside_an_opaque_part_costs_as_an_image():
    shot = {"type": "computer_call_output", "output": {"image_url": "data:image/png;base64," + "A" * 900_000}}
    assert IMAGE_TOKENS < cost(opaque(shot)) < IMAGE_TOKENS + 60


@pytest.mark.parametrize("raw", [b"{broken", b"[" * 100_000, b"\xff\xfe"])
def test_an_opaque_part_that_is_no_json_still_costs_something(raw):
    assert cost(Opaque("odd", raw=Raw(raw))) > 0
    assert cost(Opaque("made here")) == counter.text("made here")
