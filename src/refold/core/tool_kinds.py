"""Kinds of common tools: those that read a file, those that change one, and results that are failures.

Coding agents use many names for the same few actions. The names are data, so that a policy can add its own
tools; a call is understood by the name of its tool and by the argument that contains a path.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from refold.model.message import ToolCall, ToolResult

Access: TypeAlias = Literal["read", "write"]


class FileAccess(Struct, frozen=True):
    """One file that a call reads or changes."""

    kind: Access
    path: str
    span: str = ""
    """The part of the file that was read, as the call names it; empty for all of it."""


class ToolKinds(Struct, frozen=True):
    """Names of tools and of their arguments. Case and separators are ignored: `readFile` is `read_file`."""

    reads: tuple[str, ...] = (
        "cat",
        "fs_read",
        "get_file",
        "get_file_contents",
        "notebook_read",
        "open_file",
        "read",
        "read_file",
        "read_text_file",
        "view",
        "view_file",
    )
    writes: tuple[str, ...] = (
        "append_file",
        "apply_diff",
        "apply_patch",
        "create",
        "create_file",
        "delete_file",
        "edit",
        "edit_block",
        "edit_file",
        "fs_write",
        "insert_content",
        "insert_edit_into_file",
        "multi_edit",
        "multi_edit_file",
        "notebook_edit",
        "patch",
        "replace",
        "replace_file_content",
        "replace_in_file",
        "replace_string_in_file",
        "save_file",
        "search_replace",
        "str_replace",
        "update_file",
        "write",
        "write_file",
        "write_to_file",
    )
    editors: tuple[str, ...] = (
        "str_replace_based_edit_tool",
        "str_replace_editor",
        "text_editor",
        "file_editor",
    )
    """Tools with an argument `command` for the action: `view` reads, every other command changes."""
    paths: tuple[str, ...] = (
        "file_path",
        "path",
        "filename",
        "file_name",
        "file",
        "target_file",
        "absolute_path",
        "relative_path",
        "relative_workspace_path",
        "notebook_path",
        "uri",
    )
    """Arguments that contain a path, the likeliest first."""
    spans: tuple[str, ...] = (
        "offset",
        "limit",
        "start_line",
        "end_line",
        "line_start",
        "line_end",
        "line_range",
        "view_range",
        "start_line_one_indexed",
        "end_line_one_indexed_inclusive",
        "pages",
    )
    """Arguments that limit a read to a part of a file."""


COMMON_TOOLS = ToolKinds()
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_STRING = msgspec.json.Decoder(str)
_PATCHED = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_FAILURE = re.compile(
    r"\s*(?:error:|error (?:executing|reading|calling|while)|traceback \(most recent|exception:|fatal:|failed to "
    r"|command failed|<tool_use_error>|(?:<returncode>|exit(?:ed with)? (?:code|status):? ?)[1-9])",
    re.IGNORECASE,
)
_LONGEST_OPENING = 80
"""Characters: a result reports a failure at its beginning."""


def file_accesses(call: ToolCall, kinds: ToolKinds = COMMON_TOOLS) -> tuple[FileAccess, ...]:
    """Return every file that the call touches: a patch may change several."""
    return _accesses(call.name, call.arguments, kinds)


@lru_cache(maxsize=8_192)
def _accesses(name: str, arguments: str, kinds: ToolKinds) -> tuple[FileAccess, ...]:
    """Return the files, cached: the same calls are read when they arrive and whenever a window is folded."""
    call = ToolCall("", name, arguments)
    kind = _kind(call, kinds)
    if kind is None:
        return ()
    fields = _fields(call.arguments)
    path = next((found for name in kinds.paths if (found := _string(fields, name))), "")
    if not path:
        return tuple(FileAccess("write", path) for path in _patched_paths(call)) if kind == "write" else ()
    span = ",".join(f"{name}={value}" for name in kinds.spans if (value := _value(fields, name)))
    return (FileAccess(kind, _plain(path), span if kind == "read" else ""),)


def has_failed(result: ToolResult) -> bool:
    """Return True if the result is an error.

    Not every format has a flag for it; then its first words decide.
    """
    return result.is_error or _FAILURE.match(result.text[:_LONGEST_OPENING]) is not None


def _kind(call: ToolCall, kinds: ToolKinds) -> Access | None:
    reads, writes, editors = _names(kinds)
    name = _squeezed(call.name)
    if name in editors:
        return "read" if _string(_fields(call.arguments), "command") == "view" else "write"
    return "read" if name in reads else "write" if name in writes else None


@lru_cache(maxsize=16)
def _names(kinds: ToolKinds) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    reads, writes, editors = (
        frozenset(map(_squeezed, names)) for names in (kinds.reads, kinds.writes, kinds.editors)
    )
    return reads, writes, editors


def _patched_paths(call: ToolCall) -> list[str]:
    """Return the files named in a patch; the arguments may be the patch itself or contain it."""
    fields = _fields(call.arguments)
    texts = [_string(fields, name) for name in fields] or [call.arguments]
    lines = [line for text in texts if "*** " in text for line in text.splitlines()]
    named = [line.removeprefix(start) for line in lines for start in _PATCHED if line.startswith(start)]
    return list(dict.fromkeys(_plain(path.strip()) for path in named))


def _squeezed(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _plain(path: str) -> str:
    return path.removeprefix("./")


def _fields(arguments: str) -> dict[str, Raw]:
    try:
        fields = _OBJECT.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return {_squeezed(name): value for name, value in fields.items()}


def _string(fields: dict[str, Raw], name: str) -> str:
    value = fields.get(_squeezed(name))
    return _STRING.decode(value) if value is not None and bytes(value).startswith(b'"') else ""


def _value(fields: dict[str, Raw], name: str) -> str:
    """Return a value as it is written; empty if it is missing or null."""
    value = bytes(fields.get(_squeezed(name), b"null")).decode()
    return "" if value == "null" else value
