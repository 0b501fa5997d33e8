"""Errors in the output of tools: whether a result is a failure, and the lines that state the error.

Formats have a flag for failed calls, but a command that fails is mostly a successful call with an error in
its output. The lines that state it have a fixed form in every common tool, and each form is matched at the
beginning of a line, as the tool prints it. So a text that speaks of errors, a listing of files, code and
counts of zero are no errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from refold.core.digest.pieces import ends, head
from refold.model.message import ToolResult

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
