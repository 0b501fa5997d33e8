"""Tool definitions of the three formats.

One idea: the formats differ in where they put the same three facts, so one tolerant shape reads them all. A definition
is never written: tools leave as the bytes they came as.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.window import Tool
from refold.wire.reading import each, is_null, read, read_list, text_of

_NONE = Raw(b"")


class _Inner(Struct, gc=False):
    name: str
    description: str | None = None
    parameters: Raw = _NONE


class _Definition(Struct, gc=False):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: Raw = _NONE
    input_schema: Raw = _NONE
    function: _Inner | None = None
    custom: _Inner | None = None


_DEFINITION = Decoder(_Definition)


def decode_tools(array: Raw) -> tuple[Tool, ...]:
    """The value of a request's `tools`; places are relative to it."""
    return () if is_null(array) else each(_tool, read_list(array))


def _tool(raw: Raw) -> Tool:
    tool = read(_DEFINITION, raw)
    inner = tool.function or tool.custom
    if inner is not None:
        return Tool(inner.name, inner.description or "", text_of(inner.parameters), raw)
    name = tool.name or tool.type
    if not name:
        raise WireError("is missing", place="name", hint="a tool has a name, or the type of a provider's own")
    schema = text_of(tool.input_schema) or text_of(tool.parameters)
    return Tool(name, tool.description or "", schema, raw)
