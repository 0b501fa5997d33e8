"""The effect of compaction in numbers: what calls took and cost, what was not sent, what that saved, and what was done for it.

Everything is added up from the sums of the store, which the transaction of each call or compaction writes; nothing is guessed, and no
sum is clamped: a saving may be negative. Summaries, cache writes and broken prefixes count against it. Figures of calls whose usage
is an estimate are part of every sum, and are given apart as well.

`refold stats`, `GET /refold/stats` and `Engine.stats` all show a `Stats`; its `document` is what programs get.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from msgspec import Struct, structs, to_builtins

from refold.engine.settings import prices_of
from refold.model.errors import ConfigError
from refold.model.tokens import Usage
from refold.ports.records import DAY_S, CallKind, CallSum, CompactionSum, day_of
from refold.ports.store import Store

StatsBy: TypeAlias = Literal["day", "model", "upstream", "conversation", "owner"]
MOST_GROUPS = 1_000
"""Groups of one answer, those with the most dollars and tokens first: an owner may have any number of conversations."""


class Figures(Struct, frozen=True):
    """Calls, added up."""

    calls: int = 0
    usage: Usage = Usage()
    dollars: float = 0.0
    unsent: int = 0
    """Tokens that were not sent, because summaries and shortened messages stood for them."""
    saved: float = 0.0
    """Dollars that the calls would have cost more with these tokens. Negative if the provider's cache was written anew for less."""
    recoveries: int = 0
    """Requests that were made smaller, or repaired, because the provider refused them, and sent again."""
    added_ms: float = 0.0
    timed: int = 0
    """Milliseconds that Refold took before the upstream was asked, and the number of calls for which that was measured."""

    def plus(self, one: CallSum) -> Figures:
        return Figures(
            self.calls + one.calls,
            self.usage + one.usage,
            self.dollars + one.dollars,
            self.unsent + one.unsent,
            self.saved + one.saved,
            self.recoveries + one.recoveries,
            self.added_ms + one.added_ms,
            self.timed + one.timed,
        )


def figures_of(sums: Iterable[CallSum]) -> Figures:
    found = Figures()
    for one in sums:
        found = found.plus(one)
    return found


class CallTotals(Struct, frozen=True):
    """The calls of one kind to one model, added up."""

    model: str
    kind: CallKind
    calls: int = 0
    usage: Usage = Usage()
    dollars: float = 0.0
    unsent: int = 0
    saved: float = 0.0
    estimated: int = 0
    """Calls whose usage is an estimate."""


class Savings(Struct, frozen=True):
    """The calls of an owner, added up: tokens and dollars that were spent, those that compaction saved, and the price of its
    summaries.
    """

    replies: tuple[CallTotals, ...] = ()
    """The calls for replies, by model."""
    summaries: tuple[CallTotals, ...] = ()
    """The calls for summaries, by model."""

    @property
    def sent(self) -> int:
        """Tokens that the models read for replies."""
        return sum(one.usage.prompt for one in self.replies)

    @property
    def unsent(self) -> int:
        """Tokens that were not sent, because summaries and shortened messages stood for them."""
        return sum(one.unsent for one in self.replies)

    @property
    def net_tokens(self) -> int:
        """Tokens that were not sent, less those that summaries took."""
        return self.unsent - sum(one.usage.prompt + one.usage.output for one in self.summaries)

    @property
    def net_dollars(self) -> float:
        """Dollars that were not spent on replies, less the price of the summaries."""
        return sum(one.saved for one in self.replies) - sum(one.dollars for one in self.summaries)

    @property
    def unpriced(self) -> list[str]:
        """The models whose prices are not known: their calls count as 0 dollars."""
        models = {one.model for one in (*self.replies, *self.summaries)}
        return sorted(one for one in models if prices_of(one) is None)

    def document(self) -> dict[str, object]:
        """The totals for programs. Their keys are documented and stay."""
        return {
            "sent": self.sent,
            "unsent": self.unsent,
            "net_tokens": self.net_tokens,
            "net_dollars": self.net_dollars,
            "replies": [to_builtins(one) for one in self.replies],
            "summaries": [to_builtins(one) for one in self.summaries],
        }


class Effect(Struct, frozen=True):
    """The calls of a group, added up: a day, a model, an upstream, a conversation, an owner, or all."""

    name: str = ""
    """The name of the group: a day is `2026-02-11`, in UTC. Empty if it is not known, or for the sum of all."""
    replies: Figures = Figures()
    summaries: Figures = Figures()
    estimated_replies: Figures = Figures()
    """The part of `replies` whose usage is an estimate, because the provider reported none."""
    estimated_summaries: Figures = Figures()

    @classmethod
    def of(cls, name: str, sums: Sequence[CallSum]) -> Effect:
        def part(kind: CallKind, *, is_all: bool) -> Figures:
            return figures_of(one for one in sums if one.kind == kind and (is_all or one.is_estimated))

        return cls(
            name,
            part("reply", is_all=True),
            part("summary", is_all=True),
            part("reply", is_all=False),
            part("summary", is_all=False),
        )

    @property
    def sent(self) -> int:
        """Tokens that the models read for replies."""
        return self.replies.usage.prompt

    @property
    def dollars(self) -> float:
        """What replies and summaries cost."""
        return self.replies.dollars + self.summaries.dollars

    @property
    def net_tokens(self) -> int:
        """Tokens that were not sent, less those that summaries took."""
        return self.replies.unsent - self.summaries.usage.prompt - self.summaries.usage.output

    @property
    def net_dollars(self) -> float:
        """Dollars that were not spent on replies, less the price of the summaries."""
        return self.replies.saved - self.summaries.dollars

    @property
    def cache_hit_rate(self) -> float | None:
        """The share of the prompts of replies that the provider read from its cache, by its own reports; None without one."""
        prompt = self.replies.usage.prompt - self.estimated_replies.usage.prompt
        read = self.replies.usage.cache_read - self.estimated_replies.usage.cache_read
        return read / prompt if prompt else None

    @property
    def added_ms(self) -> float | None:
        """The mean time that Refold took before the upstream was asked, in milliseconds; None if it was not measured."""
        return self.replies.added_ms / self.replies.timed if self.replies.timed else None

    @property
    def estimated_dollars(self) -> float:
        """The part of `dollars` that follows from estimated usage."""
        return self.estimated_replies.dollars + self.estimated_summaries.dollars

    @property
    def is_estimated(self) -> bool:
        """Whether a part of the figures is an estimate."""
        return bool(self.estimated_replies.calls or self.estimated_summaries.calls)

    def document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "sent": self.sent,
            "unsent": self.replies.unsent,
            "dollars": self.dollars,
            "net_tokens": self.net_tokens,
            "net_dollars": self.net_dollars,
            "cache_hit_rate": self.cache_hit_rate,
            "recoveries": self.replies.recoveries,
            "added_ms": self.added_ms,
            "replies": to_builtins(self.replies),
            "summaries": to_builtins(self.summaries),
            "estimated": {
                "replies": to_builtins(self.estimated_replies),
                "summaries": to_builtins(self.estimated_summaries),
            },
        }


class CompactionTotals(Struct, frozen=True):
    """Compactions with the same kind, reason, author and outcome, added up; the fields are those of `CompactionSum`."""

    kind: str
    reason: str
    author: str
    outcome: str
    count: int = 0
    before: int = 0
    after: int = 0
    day: str = ""
    """Empty unless the totals are by day."""


class Stats(Struct, frozen=True):
    """The effect of compaction for one owner or for all: in total, in groups, and the compactions that had it."""

    by: StatsBy | None
    savings: Savings
    total: Effect
    groups: tuple[Effect, ...] = ()
    """By day, oldest first; otherwise those with the most dollars and tokens first."""
    left_out: int = 0
    """The number of groups beyond the first 1,000."""
    compactions: tuple[CompactionTotals, ...] = ()
    uncounted: int = 0
    """Compactions of earlier versions that are not in `compactions`; `refold db backfill` counts them."""

    def document(self) -> dict[str, object]:
        """The stats for programs: `refold stats --json` and `GET /refold/stats`. Their keys are documented and stay."""
        return {
            **self.savings.document(),
            "by": self.by,
            "total": self.total.document(),
            "groups": [one.document() for one in self.groups],
            "left_out": self.left_out,
            "compactions": [to_builtins(one) for one in self.compactions],
            "uncounted": self.uncounted,
        }


def check_by(value: object) -> StatsBy | None:
    """
    Raises:
        ConfigError: the value names no groups.
    """
    names = get_args(StatsBy)
    if not value:
        return None
    if value not in names:
        raise ConfigError("there are no such groups of figures", hint=f"by: {', '.join(names)}")
    return value  # type: ignore[return-value]


def first_day(now: float, days: float | None) -> int:
    """The first of the last days in UTC, of which today is one; without `days`, the first of all."""
    return 0 if days is None else day_of(now) - math.ceil(min(days, 1e6)) + 1


def day_name(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()


async def savings_of(store: Store, owner: str, first: int) -> Savings:
    return _savings(await store.call_days(owner, first))


async def stats_of(
    store: Store, owners: Sequence[str], *, by: StatsBy | None = None, first: int = 0
) -> Stats:
    """Add up the sums of some owners from a day on."""
    whole, groups = list[CallSum](), dict[str, list[CallSum]]()
    compactions, uncounted = list[CompactionSum](), 0
    for owner in owners:
        found = await store.call_days(owner, first)
        whole += found
        compactions += await store.compaction_days(owner, first)
        uncounted += (await store.uncounted(owner))[1]
        shown = await store.conversation_calls(owner, first * DAY_S) if by == "conversation" else found
        if by is not None:
            for one in shown:
                groups.setdefault(_group_name(one, by, owner), []).append(one)
    effects = [Effect.of(name, sums) for name, sums in groups.items()]
    if by == "day":
        effects.sort(key=lambda one: one.name)
        kept = effects[-MOST_GROUPS:]
    else:
        effects.sort(key=lambda one: (-one.dollars, -one.sent, one.name))
        kept = effects[:MOST_GROUPS]
    return Stats(
        by,
        _savings(whole),
        Effect.of("", whole),
        tuple(kept),
        len(effects) - len(kept),
        _compactions(compactions, by_day=by == "day"),
        uncounted,
    )


def _group_name(one: CallSum, by: StatsBy, owner: str) -> str:
    names = {
        "day": day_name(one.day),
        "model": one.model,
        "upstream": one.upstream,
        "conversation": one.conversation,
        "owner": owner,
    }
    return names[by]


def _savings(sums: Sequence[CallSum]) -> Savings:
    groups = dict[tuple[CallKind, str], list[CallSum]]()
    for one in sums:
        groups.setdefault((one.kind, one.model), []).append(one)
    totals = [_totals(*groups[key]) for key in sorted(groups)]
    replies, summaries = (tuple(one for one in totals if one.kind == kind) for kind in ("reply", "summary"))
    return Savings(replies, summaries)


def _totals(*sums: CallSum) -> CallTotals:
    found, estimated = figures_of(sums), sum(one.calls for one in sums if one.is_estimated)
    first = sums[0]
    return CallTotals(
        first.model, first.kind, found.calls, found.usage, found.dollars, found.unsent, found.saved, estimated
    )


def _compactions(sums: Iterable[CompactionSum], *, by_day: bool) -> tuple[CompactionTotals, ...]:
    found = dict[tuple[str, ...], CompactionTotals]()
    for one in sums:
        key = day_name(one.day) if by_day else "", one.kind, one.reason, one.author, one.outcome
        known = found.get(key, CompactionTotals(*key[1:], day=key[0]))
        found[key] = structs.replace(
            known,
            count=known.count + one.count,
            before=known.before + one.before,
            after=known.after + one.after,
        )
    return tuple(found[key] for key in sorted(found))
