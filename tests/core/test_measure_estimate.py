import msgspec
import pytest

from refold.core.assemble import Lead, assemble
from refold.core.measure import CharacterEstimate, estimate_window
from refold.model.dialect import CHAT
from refold.model.message import (
    File,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool,
    user,
)
from refold.model.window import FixedFields, Tool

by_characters = CharacterEstimate()
PIXEL = Image(media_type="image/png", data="AAAA")


@pytest.mark.feature("P8")
class TestCharacters:
    @pytest.mark.parametrize(
        "message, tokens",
        [
            (Message("user", ()), 4),
            (user("Hello, world!"), 10),
            (user("日本語"), (3 + 12) * 2 // 5),
            (Message("assistant", (Reasoning("x" * 100), Text("y" * 20))), (100 + 20 + 12) * 2 // 5),
            (assistant("", ToolCall("call_1", "look", '{"a":1}')), (6 + 8 + 4 + 7 + 12) * 2 // 5),
            (tool("call_1", "found"), (6 + 5 + 12) * 2 // 5),
            (Message("user", (Text("Hello, world!"), PIXEL)), 10 + 256),
            (Message("user", (Text("Hello, world!"), PIXEL, File(url="a.pdf"))), 10 + 512),
            (Message("tool", (ToolResult("c", (Text("shot"), PIXEL)),)), (1 + 4 + 12) * 2 // 5 + 256),
        ],
    )
    def test_golden_values(self, message, tokens):
        assert by_characters.message(message) == tokens

    def test_arguments_are_bytes_and_text_is_characters(self):
        said = by_characters.message(user("é" * 50))
        called = by_characters.message(assistant("", ToolCall("", "", "é" * 50, "")))
        assert (said, called) == (24, 44)

    def test_large_arguments_count(self):
        assert by_characters.message(assistant("", ToolCall("x", "write", "y" * 5_000))) >= 2_000

    def test_a_system_prompt_in_blocks_pays_for_each(self):
        block = Text("rule", raw=msgspec.Raw(b'{"type":"text","text":"rule"}'))
        whole = by_characters.message(Message("system", (Text("rulerule"),)))
        blocks = by_characters.message(Message("system", (block, block)))
        assert (whole, blocks) == (8, (8 + 40 + 12) * 2 // 5)

    def test_tool_definitions(self):
        look = Tool("look", "Looks at it.", '{"type": "object"}')
        assert by_characters.tools([]) == 0
        assert by_characters.tools([look]) == (4 + 12 + 17 + 20) * 2 // 5
        assert by_characters.tools([look, look]) == 2 * (4 + 12 + 17 + 20) * 2 // 5

    def test_a_window_is_all_that_is_sent(self):
        look = Tool("look", "Looks at it.", '{"type": "object"}')
        fixed = FixedFields(CHAT, (system("be kind"),), (look,))
        window = assemble(fixed, (user("Hello, world!"),), Lead((user("before"),)))
        assert estimate_window(window) == (7 + 12) * 2 // 5 + (6 + 12) * 2 // 5 + 10 + by_characters.tools(
            [look]
        )
        block = assemble(fixed, (user("Hello, world!"),), Lead(block="before"))
        assert estimate_window(block) == (7 + 2 + 6 + 12) * 2 // 5 + 10 + by_characters.tools([look])
