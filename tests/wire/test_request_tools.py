from __future__ import annotations

import pytest
from msgspec import Raw

from refold.model.errors import WireError
from refold.model.window import Tool
from refold.wire import decode_tools


@pytest.mark.parametrize(
    "definition, tool",
    [
        (
            b'{"type":"function","function":{"name":"f","description":"d","parameters":{"type": "object"},"strict":true}}',
            Tool("f", "d", '{"type": "object"}'),
        ),
        (b'{"type":"custom","custom":{"name":"f","description":null}}', Tool("f")),
        (b'{"type":"function","name":"f","parameters":{}}', Tool("f", "", "{}")),
        (
            b'{"name":"f","description":"d","input_schema":{"type":"object"}}',
            Tool("f", "d", '{"type":"object"}'),
        ),
        (b'{"type":"web_search"}', Tool("web_search")),
        (b'{"type":"bash_20250124","name":"bash"}', Tool("bash")),
    ],
)
def test_definitions_of_every_format_are_read(definition: bytes, tool: Tool):
    (found,) = decode_tools(Raw(b"[" + definition + b"]"))
    assert (found.name, found.description, found.schema) == (tool.name, tool.description, tool.schema)
    assert bytes(found.raw) == definition


def test_no_tools_are_no_tools():
    assert decode_tools(Raw(b"null")) == decode_tools(Raw(b"[]")) == ()


@pytest.mark.parametrize(
    "tools, place",
    [
        (b"{}", ""),
        (b"[1]", "[0]"),
        (b'[{"name":"f"},{"name":3}]', "[1].name"),
        (b'[{"function":{}}]', "[0].function.name"),
        (b'[{"name":"f"},{}]', "[1].name"),
        (b'[{"name":"","description":"d"}]', "[0].name"),
        (b'[{"name":"f","input_schema":{"x":"\xff"}}]', "[0]"),
        (b'[{"function":{"name":"f","parameters":{"x":"\xff"}}}]', "[0]"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tools: bytes, place: str):
    with pytest.raises(WireError) as caught:
        decode_tools(Raw(tools))
    assert caught.value.place == place
