"""`refold check`: which rules of its format a transcript breaks.

One idea: a finding is of use only if it can be found again, so every violation carries the index that the message has in
the file, where a leading system prompt counts too.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.text import Text

from refold.cli import output, reading
from refold.cli.grid import ALARM
from refold.cli.output import plural
from refold.cli.sizing import Wish, size_up
from refold.core.budget import input_limit
from refold.core.measure import count_fixed, count_messages
from refold.core.verify import verify_fit, verify_window
from refold.model.window import Violation, Window
from refold.wire import Request

WHOLE = "the whole request"


class Report(Struct, frozen=True):
    file: str
    format: str
    messages: int
    as_request: bool
    messages_key: str
    violations: tuple[Violation, ...]
    """Each with the index of its message in the file."""
    warning: str = ""


def run(
    path: str, wish: Wish, *, as_request: bool, format_name: str, max_body_bytes: int, as_json: bool
) -> int:
    data = reading.read_bytes(path, limit=max_body_bytes)
    with output.busy("checking", len(data)):
        request = reading.decode(data, path, format_name=format_name, limit=max_body_bytes)
        report = inspect(request, reading.shown_name(path), wish, as_request=as_request)
    output.warn(report.warning)
    if as_json:
        output.write_json(as_document(report))
    else:
        output.show(*findings(report), closing(report))
    return 1 if report.violations else 0


def inspect(request: Request, file: str, wish: Wish, *, as_request: bool) -> Report:
    """Check a transcript: its size too, where it is meant to be sent."""
    window = Window(request.fixed, request.messages)
    broken = verify_window(window, as_request=as_request, continues=request.continues)
    oversize, warning = verify_size(request, wish) if as_request else ((), "")
    return Report(
        file,
        request.dialect.name,
        len(request.messages) + request.offset,
        as_request,
        request.dialect.messages_key,
        tuple(_in_file(violation, request.offset) for violation in (*broken, *oversize)),
        warning,
    )


def verify_size(request: Request, wish: Wish) -> tuple[tuple[Violation, ...], str]:
    """The violations of the model's window and the format's body limit, and a warning if the window is a guess."""
    from refold.tokens import counter_for

    sizing = size_up(request, wish)
    counter = counter_for(sizing.model)
    content = count_fixed(request.fixed, counter).total + count_messages(request.messages, counter)
    broken = verify_fit(
        tokens=content.tokens,
        limit=max(0, input_limit(sizing.budget)),
        size_bytes=len(request.body),
        max_bytes=request.dialect.max_body_bytes,
    )
    return broken, sizing.warning


def findings(report: Report) -> Iterator[Text]:
    """Where and what on one line, then what to do about it."""
    for one in report.violations:
        place = WHOLE if one.index is None else f"{report.messages_key}[{one.index}]"
        yield Text.assemble((place, "bold"), ": ", (one.rule, ALARM), f": {one.message}")
        if one.hint:
            yield Text(f"  hint: {one.hint}", style="dim")


def closing(report: Report) -> Text:
    count = len(report.violations)
    found = plural(count, "violation") if count else "no violations"
    return Text(f"{found} in {plural(report.messages, 'message')}", style=ALARM if count else "green")


def as_document(report: Report) -> dict[str, object]:
    """The report for programs; its keys are documented and stay."""
    return {
        "file": report.file,
        "format": report.format,
        "messages": report.messages,
        "as_request": report.as_request,
        "violations": [
            {"index": one.index, "rule": one.rule, "message": one.message, "hint": one.hint}
            for one in report.violations
        ],
    }


def _in_file(violation: Violation, offset: int) -> Violation:
    """The same violation, counted as the file counts; ids in its text made harmless."""
    index = None if violation.index is None else violation.index + offset
    return Violation(violation.rule, index, output.plain(violation.message), violation.hint)
