"""`refold stats`: the effect of compaction in numbers, less the price of its summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption, StoreOptions, expanded
from refold.cli.output import align, percent, plain, plural
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.engine.effect import CallTotals, CompactionTotals, Effect, Savings, Stats
    from refold.engine.engine import Engine

_NUMBERS = frozenset(
    (
        *("calls", "tokens", "$", "sent", "not sent", "saved $", "net $"),
        *("cache", "ms", "count", "before", "after"),
    )
)
MOST_ROWS = 50
"""Groups that are shown to people; --json has more."""


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold stats --by day --days 30")(expanded(stats))


def stats(
    *,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="GROUPS",
            help="Also in groups: day, model, upstream, conversation or owner.",
            show_default=False,
        ),
    ] = "",
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="N",
            help="Only the last N days, in UTC; today is one of them. Default: all.",
            show_default=False,
        ),
    ] = None,
    all_owners: Annotated[
        bool, typer.Option("--all", help="Of all owners together; --by owner is too.", show_default=False)
    ] = False,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Show the tokens that were not sent and the money that was not spent, less what summaries cost.

    Every call is compared with the same call with the whole history, at the prices of its model, as if that had always been in
    the provider's cache: the true saving is larger. If a provider reported no usage, it is estimated and marked with ~, and a note says for how
    many calls. "net $" is what was saved less what summaries cost. Calls in deleted conversations are counted.
    """
    from refold.cli import store_access
    from refold.engine.arguments import check_days
    from refold.engine.effect import check_by, first_day, stats_of

    groups, is_all = check_by(by), all_owners or by == "owner"
    check_days(days)
    if is_all and groups == "conversation":
        raise ConfigError("conversations are shown to their owner only", hint="leave out --all")

    async def act(engine: Engine) -> int:
        owners = await engine.store.owners() if is_all else [place.owner]
        first = first_day(engine.clock(), days)
        found = await stats_of(engine.store, owners, by=groups, first=first)
        whose = "any owner" if is_all else f"the owner {plain(place.owner)!r}"
        if as_json:
            output.write_json({"owner": None if is_all else place.owner, "days": days, **found.document()})
        elif found.total.replies.calls or found.total.summaries.calls:
            _show(found)
        else:
            output.note(f"no calls of {whose} were recorded")
        return 0

    return store_access.look(place, act)


def _show(found: Stats) -> None:
    output.write(_totals(found.savings))
    if found.by is None:
        output.write(f"\n{_models(found.savings.replies)}")
    elif found.groups:
        output.write(f"\n{_groups(found)}")
    output.write(f"\n{_facts(found.total)}\n")
    if found.compactions:
        output.write(f"\n{_compactions(found.compactions, by_day=found.by == 'day')}")
    _note_prices(found.savings)
    if (more := found.left_out + max(0, len(found.groups) - MOST_ROWS)) > 0:
        output.note(f"{plural(more, 'group')} more: --json shows up to 1,000")
    if found.uncounted:
        what = plural(found.uncounted, "compaction")
        output.note(f"{what} of earlier versions not counted: run refold db backfill")


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
    head = ("calls", "sent", "not sent", "$", "saved $", "model")
    return align(head, rows, _NUMBERS, cuts=("model",))


def _groups(found: Stats) -> str:
    shown = found.groups[-MOST_ROWS:] if found.by == "day" else found.groups[:MOST_ROWS]
    rows = [_group(one) for one in shown]
    head = ("calls", "sent", "not sent", "$", "net $", "cache", "ms", found.by or "")
    return align(head, rows, _NUMBERS, optional=("ms", "cache"), cuts=(found.by or "",))


def _group(one: Effect) -> tuple[str, ...]:
    mark = "~" if one.is_estimated else ""
    return (
        f"{one.replies.calls + one.summaries.calls:,}",
        f"{mark}{one.sent:,}",
        f"{mark}{one.replies.unsent:,}",
        f"{mark}{shown_dollars(one.dollars)}",
        f"{mark}{shown_dollars(one.net_dollars)}",
        "-" if one.cache_hit_rate is None else percent(one.cache_hit_rate),
        "-" if one.added_ms is None else f"{one.added_ms:,.1f}",
        plain(one.name) or "-",
    )


def _facts(total: Effect) -> str:
    """The figures that are no sums of tokens or dollars, in a line."""
    hits = "not known" if total.cache_hit_rate is None else percent(total.cache_hit_rate)
    added = "not measured" if total.added_ms is None else f"{total.added_ms:,.1f} ms"
    return f"cache hits: {hits}   recoveries: {total.replies.recoveries:,}   added per call: {added}"


def _compactions(rows: Sequence[CompactionTotals], *, by_day: bool) -> str:
    head = ("count", "kind", "before", "after", "outcome", "author", "reason", *(("day",) if by_day else ()))
    cells = [
        (
            f"{one.count:,}",
            plain(one.kind),
            f"{one.before:,}",
            f"{one.after:,}",
            plain(one.outcome),
            plain(one.author) or "-",
            plain(one.reason) or "-",
            *((one.day,) if by_day else ()),
        )
        for one in rows
    ]
    return align(head, cells, _NUMBERS, optional=("after", "before"))


def _note_prices(found: Savings) -> None:
    calls = [*found.replies, *found.summaries]
    if estimated := sum(one.estimated for one in calls):
        output.note(
            f"~ the usage of {estimated:,} of {_calls(calls):,} calls is estimated: no provider reported it"
        )
    if unknown := found.unpriced:
        names = ", ".join(one or "calls that name no model" for one in unknown[:5])
        output.note(f"the prices of {plain(names)} are not known: they count as 0")


def _calls(rows: Sequence[CallTotals]) -> int:
    return sum(one.calls for one in rows)


def _mark(rows: Sequence[CallTotals]) -> str:
    """The mark of a figure that is an estimate in part."""
    return "~" if any(one.estimated for one in rows) else ""


def shown_dollars(amount: float) -> str:
    # Rounded first: an amount just under 0 would be shown as -0.00.
    return f"{round(amount, 2) or 0.0:,.2f}"
