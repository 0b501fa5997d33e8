"""`refold check`: the rules of its format that a transcript breaks.

Every violation has the index of its message in the file, where a leading system prompt counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from refold.cli import output
from refold.cli.options import FileArgument, JsonOption, SizeOptions, TranscriptOptions, expanded
from refold.cli.output import ALARM, plural
from refold.model.window import Violation, Window

if TYPE_CHECKING:
    from rich.text import Text

    from refold.wire import Request

WHOLE = "the whole request"


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold check examples/coding-agent.json --as-request")(expanded(check))


def check(
    file: FileArgument,
    *,
    as_request: Annotated[
        bool, typer.Option("--as-request", help="Add the rules for a request that is about to be sent.")
    ] = False,
    sizes: SizeOptions,
    reads: TranscriptOptions,
    as_json: JsonOption = False,
) -> int:
    """List the rules of its format that a transcript breaks.

    Every finding names the message by its index in the file and says what to do. The exit code is 1 if there is any.
    """
    from refold.cli import transcript

    data = transcript.read_bytes(file, limit=reads.max_body_bytes)
    with output.busy("checking", len(data)):
        request = transcript.decode(data, file, reads)
        report = inspect(request, transcript.shown_name(file), sizes, as_request=as_request)
    output.warn(report.warning)
    if as_json:
        output.write_json(as_document(report))
    else:
        output.show(*findings(report), closing(report))
    return 1 if report.violations else 0


class CheckReport(Struct, frozen=True):
    """The violations of one transcript."""

    file: str
    format: str
    messages: int
    as_request: bool
    messages_key: str
    violations: tuple[Violation, ...]
    """Each with the index of its message in the file."""
    warning: str = ""


def inspect(request: Request, file: str, sizes: SizeOptions, *, as_request: bool) -> CheckReport:
    """Check a transcript; its size too, where it is meant to be sent."""
    from refold.core.verify import verify_window

    window = Window(request.fixed, request.messages)
    broken = verify_window(window, as_request=as_request, continues=request.continues)
    oversize, warning = verify_size(request, sizes) if as_request else ((), "")
    return CheckReport(
        file,
        request.dialect.name,
        len(request.messages) + request.offset,
        as_request,
        request.dialect.messages_key,
        tuple(_in_file(violation, request.offset) for violation in (*broken, *oversize)),
        warning,
    )


def verify_size(request: Request, sizes: SizeOptions) -> tuple[tuple[Violation, ...], str]:
    """The violations of the model's window and the format's body limit, and a warning if the window is a guess."""
    from refold.cli.transcript import size_up
    from refold.core.measure import count_fixed, count_messages
    from refold.core.verify import verify_fit
    from refold.model.tokens import input_limit
    from refold.tokens import counter_for

    sizing = size_up(request, sizes)
    counter = counter_for(sizing.model)
    content = count_fixed(request.fixed, counter).total + count_messages(request.messages, counter)
    broken = verify_fit(
        tokens=content.tokens,
        limit=max(0, input_limit(sizing.budget)),
        size_bytes=len(request.body),
        max_bytes=request.dialect.max_body_bytes,
    )
    return broken, sizing.warning


def findings(report: CheckReport) -> Iterator[Text]:
    """A line with the position and the violation, then the remedy."""
    from rich.text import Text

    for one in report.violations:
        place = WHOLE if one.index is None else f"{report.messages_key}[{one.index}]"
        yield Text.assemble((place, "bold"), ": ", (one.rule, ALARM), f": {one.message}")
        if one.hint:
            yield Text(f"  hint: {one.hint}", style="dim")


def closing(report: CheckReport) -> Text:
    from rich.text import Text

    count = len(report.violations)
    found = plural(count, "violation") if count else "no violations"
    return Text(f"{found} in {plural(report.messages, 'message')}", style=ALARM if count else "green")


def as_document(report: CheckReport) -> dict[str, object]:
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
    """The same violation with its index in the file; ids in its text made harmless."""
    index = None if violation.index is None else violation.index + offset
    return Violation(violation.rule, index, output.plain(violation.message), violation.hint)
