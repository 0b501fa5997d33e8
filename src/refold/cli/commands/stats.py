"""`refold stats`: the tokens and the money that compaction saved, less the price of its summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import Json, StoreOptions, expanded
from refold.cli.output import align, plain

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.engine.status import Savings
    from refold.ports.records import CallTotals

_NUMBERS = frozenset({"calls", "tokens", "$", "sent", "not sent", "saved $"})


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold stats --days 30")(expanded(stats))


def stats(
    *,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="N",
            help="Only the calls of the last N days. Default: all calls.",
            show_default=False,
        ),
    ] = None,
    place: StoreOptions,
    as_json: Json = False,
) -> int:
    """Show the tokens that were not sent and the money that was not spent, less what summaries cost.

    Every call is compared with the same call with the whole history, at the prices of its model, as if that had always been in
    the provider's cache: the true saving is larger. If a provider reported no usage, it is estimated and marked with ~, and a note says for how
    many calls. Calls of versions before this one are not counted.
    """
    from refold.cli import store_access

    async def act(engine: Engine) -> int:
        found = await engine.savings(days=days)
        if as_json:
            output.write_json({"owner": place.owner, "days": days, **found.document()})
        elif found.replies or found.summaries:
            output.write(f"{_totals(found)}\n{_models(found.replies)}")
            _note_prices(found)
        else:
            output.note(f"no calls of the owner {plain(place.owner)!r} were recorded")
        return 0

    return store_access.look(place, act)


def _totals(found: Savings) -> str:
    replies, summaries = found.replies, found.summaries
    asked = sum(one.usage.prompt + one.usage.output for one in summaries)
    said, written, both = _mark(replies), _mark(summaries), _mark([*replies, *summaries])
    spent = sum(one.dollars for one in replies)
    saved, price = sum(one.saved for one in replies), sum(one.dollars for one in summaries)
    rows = [
        ("sent", f"{_calls(replies):,}", f"{said}{found.sent:,}", f"{said}{shown_dollars(spent)}"),
        ("not sent", "", f"{said}{found.unsent:,}", f"{said}{shown_dollars(saved)}"),
        ("summaries", f"{_calls(summaries):,}", f"{written}{asked:,}", f"{written}{shown_dollars(price)}"),
        ("saved", "", f"{both}{found.net_tokens:,}", f"{both}{shown_dollars(found.net_dollars)}"),
    ]
    return align(("", "calls", "tokens", "$"), rows, _NUMBERS)


def _models(replies: Sequence[CallTotals]) -> str:
    rows = [
        (
            f"{one.calls:,}",
            f"{_mark([one])}{one.usage.prompt:,}",
            f"{_mark([one])}{one.unsent:,}",
            f"{_mark([one])}{shown_dollars(one.dollars)}",
            f"{_mark([one])}{shown_dollars(one.saved)}",
            plain(one.model) or "-",
        )
        for one in replies
    ]
    return align(("calls", "sent", "not sent", "$", "saved $", "model"), rows, _NUMBERS, cuts=("model",))


def _note_prices(found: Savings) -> None:
    from refold.engine.settings import prices_of

    calls = [*found.replies, *found.summaries]
    if estimated := sum(one.estimated for one in calls):
        output.note(
            f"~ the usage of {estimated:,} of {_calls(calls):,} calls is estimated: no provider reported it"
        )
    unknown = [one.model for one in found.replies if prices_of(one.model) is None]
    if unknown:
        output.note(f"the prices of {plain(', '.join(unknown[:5]))} are not known: they count as 0")


def _calls(rows: Sequence[CallTotals]) -> int:
    return sum(one.calls for one in rows)


def _mark(rows: Sequence[CallTotals]) -> str:
    """The mark of a figure that is an estimate in part."""
    return "~" if any(one.estimated for one in rows) else ""


def shown_dollars(amount: float) -> str:
    # Rounded first: an amount just under 0 would be shown as -0.00.
    return f"{round(amount, 2) or 0.0:,.2f}"
