"""What tools did: the files that a call reads or changes, the errors in its output, and the recalls of Refold's own tool.

Coding agents use many names for the same few actions. The names are data, so that a policy can add its own
tools; a call is understood by the name of its tool and by the argument that contains a path. The name may
have a prefix, as the tools of MCP servers have. A shell's command reads a file if it only prints it, and
changes the files of a patch in it.

Formats have a flag for failed calls, but a command that fails is mostly a successful call with an error in
its output. The lines that state it have a fixed form in every common tool, and each form is matched at the
beginning of a line, as the tool prints it. So a text that speaks of errors, a listing of files, code and
counts of zero are no errors.

The recall tool answers with messages word for word, and its calls repeat the words of a question. Neither is searched: the original
would be found after its copies. The answers are recognised by their first line, which `refold.engine.recall` writes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2s
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.digest.pieces import ends, head
from refold.model.message import Part, Role, ToolCall, ToolResult

ToolAccess: TypeAlias = Literal["read", "write"]


class FileAccess(Struct, frozen=True):
    """One file that a call reads or changes."""

    kind: ToolAccess
    path: str
    span: str = ""
    """The part of the file that was read, as the call names it; empty for all of it."""


class ToolKinds(Struct, frozen=True, cache_hash=True):
    """Names of tools and of their arguments. Case and separators are ignored: `readFile` is `read_file`.

    A name without a prefix also stands for the tools of any server: `mcp__files__read_file` is `read_file`.
    """

    reads: tuple[str, ...] = (
        "cat",
        "fs_read",
        "get_file",
        "get_file_contents",
        "notebook_read",
        "open_file",
        "read",
        "read_file",
        "read_files",
        "read_many_files",
        "read_multiple_files",
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
        "multi_replace_string_in_file",
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
    shells: tuple[str, ...] = (
        "bash",
        "cmd",
        "exec",
        "exec_command",
        "execute_bash",
        "execute_command",
        "local_shell",
        "powershell",
        "run_command",
        "run_in_terminal",
        "run_shell_command",
        "run_terminal_cmd",
        "shell",
        "shell_command",
        "terminal",
    )
    """Tools that run a command."""
    commands: tuple[str, ...] = ("command", "cmd", "commands", "script")
    """Arguments that contain the command of a shell: a text, or a list of words."""
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
        "paths",
        "file_paths",
        "files",
    )
    """Arguments that contain a path or several, the likeliest first."""
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

    def with_names(self, *, reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()) -> ToolKinds:
        """Return the kinds with more tools. A tool that is named here is of that kind only."""
        named = frozenset(map(_squeezed, (*reads, *writes)))

        def others(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in names if _squeezed(name) not in named)

        return structs.replace(
            self,
            reads=(*others(self.reads), *reads),
            writes=(*others(self.writes), *writes),
            editors=others(self.editors),
            shells=others(self.shells),
        )


COMMON_TOOLS = ToolKinds()
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_STRING = msgspec.json.Decoder(str)
_PATCHED = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_PREFIX_ENDS = ("__", ".", ":", "/")
_MAX_FILES = 50
"""Files of one call; a list of more is a listing."""
_MAX_COMMAND = 2_000
"""Characters of a command that are parsed: a longer one is a program."""
_SHELLS = frozenset(("bash", "sh", "zsh", "dash", "powershell", "pwsh", "cmd"))
_JOINTS = frozenset(("&&", "||", ";", "|", "&", "|&"))
_FOLLOWED = frozenset(("head", "tail", "sed", "nl"))
"""Commands that only shorten or number the text that is piped into them."""


def file_accesses(call: ToolCall, kinds: ToolKinds = COMMON_TOOLS) -> tuple[FileAccess, ...]:
    """Return every file that the call touches: a patch may change several."""
    return _accesses(call.name, call.arguments, kinds)


def call_key(
    call: ToolCall, kinds: ToolKinds = COMMON_TOOLS, accesses: tuple[FileAccess, ...] | None = None
) -> str:
    """Return a key that two calls share if they do the same: run one command, or access one file. `accesses`
    are the files of the call, if the caller knows them.

    Other arguments of a shell, such as a description or a limit of time, make no difference, and neither do
    a redirection of its errors or a limit of its printed lines.
    """
    accesses = file_accesses(call, kinds) if accesses is None else accesses
    if accesses:
        said = "\0".join(access.path for access in accesses)
    elif _is_named(call.name, kinds, "shells"):
        fields = _fields(call.arguments)
        folder = next(
            (found for name in ("workdir", "cwd", "directory") if (found := _string(fields, name))), ""
        )
        said = f"{folder}\0{_without_limits(_command(call.arguments, kinds))}"
    else:
        said = call.arguments
    return blake2s(f"{_squeezed(call.name)}\0{said}".encode("utf-8", "replace"), digest_size=8).hexdigest()


@lru_cache(maxsize=8_192)
def _accesses(name: str, arguments: str, kinds: ToolKinds) -> tuple[FileAccess, ...]:
    """Return the files, cached: the same calls are read when they arrive and whenever a window is folded."""
    if _is_named(name, kinds, "shells"):
        return tuple(_command_accesses(_command(arguments, kinds)))
    fields = _fields(arguments)
    kind = _kind(name, fields, kinds)
    if kind is None:
        return ()
    paths = _paths(fields, kinds)
    if not paths:
        return (
            tuple(FileAccess("write", path) for path in _patched_paths(arguments)) if kind == "write" else ()
        )
    span = ",".join(f"{name}={value}" for name in kinds.spans if (value := _value(fields, name)))
    return tuple(FileAccess(kind, path, span if kind == "read" else "") for path in paths)


def _kind(name: str, fields: dict[str, Raw], kinds: ToolKinds) -> ToolAccess | None:
    if _is_named(name, kinds, "editors"):
        return "read" if _string(fields, "command") == "view" else "write"
    if _is_named(name, kinds, "reads"):
        return "read"
    return "write" if _is_named(name, kinds, "writes") else None


def _is_named(name: str, kinds: ToolKinds, kind: str) -> bool:
    """Return True if the name, or its last part after a prefix, is one of a kind."""
    names = _names(kinds, kind)
    return _squeezed(name) in names or _squeezed(_without_prefix(name)) in names


def _without_prefix(name: str) -> str:
    for mark in _PREFIX_ENDS:
        name = name.rpartition(mark)[2] or name
    return name


@lru_cache(maxsize=64)
def _names(kinds: ToolKinds, kind: str) -> frozenset[str]:
    return frozenset(map(_squeezed, getattr(kinds, kind)))


def _paths(fields: dict[str, Raw], kinds: ToolKinds) -> tuple[str, ...]:
    """Return the paths in the arguments of a call: one, a list of them, or one in each object of a list."""
    found = list[str]()
    for name in kinds.paths:
        value = fields.get(_squeezed(name))
        if value is not None and (found := list(_listed_paths(value, kinds))):
            break
    if not found:  # edits of several files, or the one operation of a provider's own tool
        values = (value for value in fields.values() if _opening(value) in (b"[", b"{"))
        found = [path for value in values for path in _listed_paths(value, kinds, is_path=False)]
    return tuple(dict.fromkeys(_plain(path) for path in found[:_MAX_FILES] if path))


def _listed_paths(value: Raw, kinds: ToolKinds, *, is_path: bool = True) -> Iterator[str]:
    first = _opening(value)
    if first == b'"' and is_path:
        yield _STRING.decode(value)
    elif first == b"{":
        fields = _fields(bytes(value).decode())
        yield next((found for name in kinds.paths if (found := _string(fields, name))), "")
    elif first == b"[":
        for inner in _LIST.decode(value)[:_MAX_FILES]:
            if _opening(inner) != b"[":
                yield from _listed_paths(inner, kinds, is_path=is_path)


def _patched_paths(arguments: str) -> list[str]:
    """Return the files named in a patch; the arguments may be the patch itself or contain it."""
    fields = _fields(arguments)
    return _paths_in_patch([_string(fields, name) for name in fields] or [arguments])


def _paths_in_patch(texts: list[str]) -> list[str]:
    lines = [line for text in texts if "*** " in text for line in text.splitlines()]
    named = [line.removeprefix(start) for line in lines for start in _PATCHED if line.startswith(start)]
    return list(dict.fromkeys(_plain(path.strip()) for path in named))


# Commands of shells.


def _command(arguments: str, kinds: ToolKinds) -> str:
    """Return the command of a shell: of `["bash", "-lc", "cat f"]` the last word."""
    fields = _fields(arguments)
    if not any(_squeezed(name) in fields for name in kinds.commands):
        fields = _fields(_value(fields, "action"))
    for name in kinds.commands:
        value = fields.get(_squeezed(name))
        first = _opening(value)
        if first == b'"' and value is not None:
            return _STRING.decode(value)
        if first == b"[" and value is not None:
            words = [_STRING.decode(word) for word in _LIST.decode(value) if _opening(word) == b'"']
            is_wrapped = len(words) > 2 and words[0].rpartition("/")[2] in _SHELLS and words[1][:1] in "-/"
            return words[-1] if is_wrapped or "*** Begin Patch" in words[-1:] else shlex.join(words)
    return ""


def _command_accesses(command: str) -> Iterator[FileAccess]:
    """Yield the files that a command changes by a patch or prints."""
    if "*** Begin Patch" in command:
        yield from (FileAccess("write", path) for path in _paths_in_patch([command]))
        return
    if command.strip().partition(" ")[0] not in ("cat", "cd", "head", "tail", "sed", "nl"):
        return  # most commands: splitting them into words would be wasted
    yield from _printed_files(_words(command))


def _words(command: str) -> list[str]:
    """Return the words and operators of a command; none if it is long, or more than one line."""
    if len(command) > _MAX_COMMAND or "\n" in command.strip() or "<<" in command:
        return []
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quotation without an end
        return []


def _printed_files(words: list[str]) -> Iterator[FileAccess]:
    """Yield the files that a command prints, if it does nothing else."""
    found, folder, before, at = list[FileAccess](), "", "", 0
    while at < len(words):
        stop = next((place for place in range(at, len(words)) if words[place] in _JOINTS), len(words))
        name, *rest = words[at:stop] or [""]
        if name == "cd" and len(rest) == 1 and before in ("", "&&", ";"):
            folder = rest[0].rstrip("/")
        elif before == "|" and name in _FOLLOWED and found:
            limited = f"{found[-1].span}|{' '.join(words[at:stop])}"
            found[-1] = structs.replace(found[-1], span=limited)
        elif before == "|" or not (printed := _arguments(name, rest)):
            return
        else:
            paths, span = printed
            found += [FileAccess("read", _joined(folder, path), span) for path in paths]
        before, at = words[stop] if stop < len(words) else "", stop + 1
    yield from found


def _arguments(name: str, rest: list[str]) -> tuple[list[str], str] | None:
    """Return the files of `cat`, `nl`, `head`, `tail` or `sed -n`, and the part that is printed; None for
    others.
    """
    plain = [word for word in rest if not word.startswith("-")]
    if any(mark in word for word in rest for mark in "<>$`*?()"):
        return None
    if name in ("cat", "nl"):
        return (plain, "") if plain else None
    if name == "sed" and rest[:1] == ["-n"] and len(plain) == len(rest) - 1 >= 2:
        return plain[1:], f"sed {plain[0]}"
    if name in ("head", "tail"):
        counted = plain[1:] if rest[:1] in (["-n"], ["-c"]) else plain
        options = rest[: len(rest) - len(counted)]
        return (counted, " ".join((name, *options))) if counted else None
    return None


def _joined(folder: str, path: str) -> str:
    return _plain(path if not folder or path.startswith("/") else f"{folder}/{path}")


def _without_limits(command: str) -> str:
    """Return a command with single blanks, without `2>&1` and a `head` or `tail` of its output at its end."""
    said = " ".join(command.split())
    while True:
        begun, _, last = said.rpartition("|")
        if begun and last.split()[:1] in (["tail"], ["head"]) and not any(mark in last for mark in "&;\"'"):
            said = begun.rstrip()
        elif said.endswith("2>&1"):
            said = said[: -len("2>&1")].rstrip()
        else:
            return said


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
    return _STRING.decode(value) if value is not None and _opening(value) == b'"' else ""


def _opening(value: Raw | None) -> bytes:
    """Return the first character of a JSON value: its type."""
    return b"" if value is None else bytes(memoryview(value)[:1])


def _value(fields: dict[str, Raw], name: str) -> str:
    """Return a value as it is written; empty if it is missing or null."""
    value = bytes(fields.get(_squeezed(name), b"null")).decode()
    return "" if value == "null" else value


MAX_LINE = 240
"""Characters of one line: an error states its cause in its first words."""
MAX_LINES = 3
"""Lines of one result. Of more, the first ones and the last are kept: compilers name the cause first, and a
run of tests ends with its summary."""
MAX_SEARCHED = 32_000
"""Characters of a result that are searched, three quarters from its beginning and one quarter from its
end."""
_MAX_LINE_SEARCHED = 600
_CLUES = (
    "error",
    "fail",
    "fatal",
    "exception",
    "panic",
    "not found",
    "denied",
    "no such",
    "conflict",
    "***",
    "http/",
    "exit",
    "returncode",
    "cannot",
    "rejected",
    "recognized",
    "err!",
    "err_",
    "false",
    "timed out",
    "undefined",
    "no module",
    "fault",
    "status",
    "detail",
    ".go:",
    ":in ",
)
"""Words without which no line states an error: most outputs have none of them, and are not read further."""
_OPENING = re.compile(
    r"\s*+(?:error:|error (?:executing|reading|calling|while)|traceback \(most recent|exception:|fatal:|failed to "
    r"|command failed|<tool_use_error>|(?:<returncode>|exit(?:ed with)? (?:code|status):? ?)[1-9][0-9]{0,2}(?=[^\w ]|\s*+$|\s*+\n))",
    re.IGNORECASE,
)
"""The first words of a failed result, as agents' tools write them."""
_LONGEST_OPENING = 80
_LONGEST_REFUSAL = 200
"""Characters: `cat: a.py: No such file or directory` is shorter, and most files are longer."""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_TIME = re.compile(
    r"[\[(]?[0-9]{1,4}[-:/][0-9]{1,2}[-:/][0-9T][0-9T:.,Z+/ -]{0,30}+[\])]?\s{0,4}(?:\[[^\]]{1,40}\] )?"
)
"""The time at the beginning of a line of a log."""
_STATED = re.compile(
    r"(?:#[0-9]{1,4} )?(?:[^\s:(]{1,200}(?:(?::[0-9]{1,7}){1,2}|\([0-9,]{1,15}\))?: )?(?:PHP )?(?:fatal |internal |parse |syntax )?"
    r"(?:error|fatal)(?:\[[A-Z]{0,4}[0-9]{1,5}\]| [A-Z]{1,4}[0-9]{1,5})?:\s{1,4}(?!(?:none|null|nil|no|0|false)\b)\S",
    re.IGNORECASE,
)
"""`error: ...`, `error[E0382]: ...`, `list.c:42:17: error: ...`, `cart.ts(12,5): error TS2322: ...`,
`#8 ERROR: ...`."""
_TOOL = re.compile(
    r"npm (?:ERR!|error) \S|(?:g?make|ninja)(?:\[[0-9]{1,3}\])?: \*\*\* |\[(?:ERROR|FATAL)\] \S|E: [A-Z]"
    r"|CONFLICT \(|Automatic merge failed|! \[(?:remote )?rejected\]"
    r"|(?:FAILED|ERROR) \S+(?:::|\.py\b)|(?:FAIL|ERROR): \w+ \(|FAILED \(|--- FAIL: |FAIL\s+\S*[./]\S*"
    r"|test result: FAILED|test \S+ \.\.\. FAILED|panic: |thread '[^']{0,80}' panicked at |goroutine panic"
    r"|[0-9]{1,7}:[0-9]{1,7}\s{1,8}error\s{2}"
    r"|[^\s:]{1,200}\.go:[0-9]{1,7}:[0-9]{1,7}: \S|[^\s:]{1,200}:[0-9]{1,7}:in [`']|[0-9]{1,7} examples?, [1-9][0-9]{0,6} failures?"
    r"|Error from server \(|An error occurred \(|error An unexpected error occurred|ERR_[A-Z]{2,20}_|Segmentation fault"
    r"|(?:Command|Request|Operation|Connection) timed out|[^\s:]{1,80} : The term '"
    r"|curl: \([0-9]{1,3}\) |Caused by: \S|Uncaught \S|Unhandled \S|BUILD FAILED|FAILURE: Build failed"
    r"|HTTP/[0-9.]{1,3} [45][0-9]{2}\b|(?:HTTP|Status|Status code)(?: status| error| code)?:? [45][0-9]{2}\b"
    r"|Exception in thread \"[^\"]{1,80}\" |The term '[^']{1,80}' is not recognized|'[^']{1,80}' is not recognized as"
)
"""Forms of single tools: package managers, builds, version control, tests, linters, requests, shells."""
_EXCEPTION = re.compile(
    r"(?:[a-z_][\w$]{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)(?: \[[A-Z_]{1,40}\])?: \S"
)
"""The last line of a traceback. Documentation of exceptions is indented, and code has other words first."""
_LOGGED = re.compile(r"\[?(?:ERROR|FATAL|CRITICAL|SEVERE)\]?[ :]\s{0,8}\S")
_COUNT = re.compile(
    r"(?:[=\s]{0,200}|Tests:\s{1,12}|Found )[1-9][0-9]{0,6} (?:failed|failing|failures?|errors?)\b"
)
_SHELL = re.compile(
    r"(?!(?:fix|feat|chore|docs?|refactor|note|help|hint|title|summary|description):)[\w./+-]{1,80}: \S"
)
"""A message of a command: its name and a colon. Subjects of commits and fields of documents look alike."""
_SHELL_ENDS = (
    ": command not found",
    ": not found",
    "No such file or directory",
    "Permission denied",
    "Is a directory",
    "Not a directory",
    "Operation not permitted",
    "Connection refused",
    "No space left on device",
)
_SHELL_STARTS = ("command not found: ", "no such file or directory: ", "cannot ", "No module named ")
_STATUS = re.compile(
    r"[45][0-9]{2} (?:Bad Request|Unauthorized|Payment Required|Forbidden|Not Found|Method Not Allowed|Not Acceptable"
    r"|Request Timeout|Conflict|Gone|Payload Too Large|Unprocessable|Too Many Requests|Internal Server Error"
    r"|Not Implemented|Bad Gateway|Service Unavailable|Gateway Timeout)\b"
)
_JSON_KEY = re.compile(r'"(?:error|errors|error_message|errorMessage|exception)"\s{0,20}:')
_HTTP_ERROR = re.compile(r"[45][0-9]{2}")
_SOME_ERROR = ("error", "errors", "error_message", "errorMessage", "exception")
_FLAGS = ("success", "ok", "succeeded")
_OUTPUTS = ("output", "stdout", "stderr", "result", "content")
_CODES = ("exit_code", "exitCode", "returncode", "return_code", "exit_status")


def has_failed(result: ToolResult) -> bool:
    """Return True if the result is an error, by its flag or by its text."""
    return result.is_error or reports_failure(result.text) or bool(error_lines(result.text))


def reports_failure(text: str) -> bool:
    """Return True if the first words of a result say that the call failed.

    It is the only sign for the content of a file, which may contain any text.
    """
    return _OPENING.match(text[:_LONGEST_OPENING]) is not None


def stated_errors(result: ToolResult, *, is_content: bool = False) -> tuple[str, ...]:
    """Return the lines of a failed result that state the error; empty if it has not failed.

    A result that `is_content` of a file fails only as a whole: it is short, or its first words say so.
    """
    text = result.text
    has_begun = result.is_error or reports_failure(text)
    if is_content and not has_begun and len(text) > _LONGEST_REFUSAL:
        return ()
    return error_lines(text) or ((_shortened(text),) if has_begun else ())


def error_lines(text: str) -> tuple[str, ...]:
    """Return the lines of an output that state an error, in order, at most `MAX_LINES`."""
    text = ends(text, MAX_SEARCHED)
    lowered = text.lower()
    if not any(clue in lowered for clue in _CLUES):
        return ()
    found = tuple(dict.fromkeys(line for line in _find_errors(text) if line))
    return found if len(found) <= MAX_LINES else (*found[: MAX_LINES - 1], found[-1])


def _find_errors(text: str) -> Iterator[str]:
    if text.lstrip()[:1] == "{":
        fields = _object(text)
        if fields is not None:
            yield from _json_errors(text, fields)
            return
    for line in text.splitlines():
        if _is_error(line[:_MAX_LINE_SEARCHED]):
            yield _shortened(line)


def _is_error(line: str) -> bool:
    """Return True if a line states an error."""
    is_indented = line[:1] in (" ", "\t")
    said = _COLOUR.sub("", line).strip(" \t\r│")
    if _TOOL.match(said) or _STATED.match(said) or _COUNT.match(said):
        return True
    if not is_indented and (_EXCEPTION.match(said) or _STATUS.match(said)):
        return True
    if not is_indented and (named := _SHELL.match(said)):
        rest = said[named.end() - 1 :]
        return rest.endswith(_SHELL_ENDS) or rest.startswith(_SHELL_STARTS)
    time = _TIME.match(said)
    return _LOGGED.match(said, time.end()) is not None if time else False


def _json_errors(text: str, fields: dict[str, object]) -> Iterator[str]:
    """Yield the error of a JSON object: from the key that names it, or of the output that it contains."""
    if any(fields.get(name) for name in _SOME_ERROR):
        named = _JSON_KEY.search(text)
        yield _shortened(text[named.start() if named else 0 :])
    elif _is_refusal(fields):
        yield _shortened(text)
    else:
        inner = [value for name in _OUTPUTS if isinstance(value := fields.get(name), str)]
        found = [line for value in inner for line in _find_errors(value)]
        yield from found
        if not found and inner and _exit_code(fields):
            yield _shortened(inner[0])


def _is_refusal(fields: dict[str, object]) -> bool:
    """Return True if an object says that a request failed: by a flag, a status, or a lone detail."""
    states = [str(fields.get(name, "")) for name in ("status", "statusCode", "status_code")]
    has_state = any(state in ("error", "failed") or _HTTP_ERROR.fullmatch(state) for state in states)
    is_lone = len(fields) == 1 and isinstance(fields.get("detail"), str)
    return has_state or is_lone or any(fields.get(name) is False for name in _FLAGS)


def _exit_code(fields: dict[str, object]) -> bool:
    """Return True if an object states an exit code other than zero, itself or in its metadata."""
    inner = fields.get("metadata")
    places = [fields, inner] if isinstance(inner, dict) else [fields]
    return any(place.get(name) not in (None, 0, "0") for place in places for name in _CODES)


def _object(text: str) -> dict[str, object] | None:
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _shortened(text: str) -> str:
    return head(" ".join(_COLOUR.sub("", head(text, 4 * MAX_LINE)).split()), MAX_LINE)


FOUND = "Found, with handles:"
"""The first line of passages that a search found."""
SUMMARY = "a summary of earlier messages"
SOURCES: dict[Role, str] = {
    "user": "from the user",
    "assistant": "from the assistant",
    "tool": "the result of a tool",
    "system": "from the system prompt",
    "developer": "from the developer",
}
"""Where an original came from, after its handle in the first line."""
_ORIGINAL = re.compile(rf"#[ms][0-9]+(?:\.[0-9]+)?, (?:{'|'.join((*SOURCES.values(), SUMMARY))}):\n")
_RECALL_TOOL = re.compile(r"(?i)recall|(?:mcp[_.:/-]+)?refold[_.:/-]+(?:recall|search)")
"""The recall tool, also with a client's prefix, and the tools of the MCP server with theirs."""
_RECALL_ARGUMENTS = re.compile(r'\{\s*"(?:what|words|handle|conversation)"')


def is_recall(part: Part) -> bool:
    """Whether a part is a call of the recall tool, or an answer to one."""
    match part:
        case ToolCall():
            has_arguments = _RECALL_ARGUMENTS.match(part.arguments) is not None
            return has_arguments and _RECALL_TOOL.fullmatch(part.name) is not None
        case ToolResult():
            text = part.text
            return text.startswith(FOUND) or _ORIGINAL.match(text) is not None
        case _:
            return False
