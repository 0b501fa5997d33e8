"""The first page: what needs attention, today's effect, and the conversations; also the search, and the effect in numbers.

The list is read page by page with a fixed number of queries, and the checks for attention look at sums and at the conversations of the last days
only, so the page takes as long with thousands of long conversations as with a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.search.query import tell_mistakes
from refold.dashboard.app import Redirect, RenderedPage, Visit, conversation_url
from refold.dashboard.text import dollars, plural
from refold.dashboard.workspace import Workspace
from refold.engine.effect import Effect, Stats, check_by, day_name
from refold.engine.engine import ConversationLine, FoundMessage
from refold.engine.summary_jobs import MAX_FAILURES, REST_S
from refold.model.errors import ConfigError
from refold.ports.records import DAY_S, day_of

PAGE = 50
"""Conversations on a page: what somebody scrolls through before they search."""
LOOKED_AT = 200
"""The conversations used last in which fill levels and spending are checked: the older ones send nothing."""
MOST_SCANNED = 1_000
"""Conversations that one request of a filtered list reads at most."""
NEAR = 0.8
"""The share of the spending limit from which on it is near."""
RECENT_S = 7 * DAY_S
"""Failures that are older are history: the conversation was not continued since."""
MOST_NAMED = 5
"""Conversations that one kind of problem names; more are counted."""
SPARK_DAYS = 30
SHOWN = ("all", "due", "off")

Urgency: TypeAlias = Literal["bad", "warm", "info"]


class AttentionItem(Struct, frozen=True):
    """One thing that needs attention."""

    kind: Literal["summariser", "breaker", "overflow", "spending", "limit", "not_kept", "held_back", "place"]
    urgency: Urgency
    text: str
    hint: str = ""
    conversation: str = ""
    url: str = ""


async def home(visit: Visit) -> RenderedPage | Redirect:
    workspace = await visit.workspace()
    words, shown = visit.query.get("words", ""), visit.query.get("show", "all")
    if shown not in SHOWN:
        raise ConfigError("there is no such filter", hint=f"show: {', '.join(SHOWN)}")
    limit = visit.count("limit", PAGE, 500)
    lines, following = await _lines(workspace, words, shown, visit.query.get("after", ""), limit)
    by_day = await workspace.engine.stats(by="day", days=SPARK_DAYS)
    today = await workspace.engine.stats(days=1)
    data = {
        "attention": await attention(visit, workspace),
        "today": today.total.document(),
        "estimated_dollars": today.total.estimated_dollars,
        "unpriced": today.savings.unpriced,
        "compactions": _counts(today),
        "days": [_day(one) for one in by_day.groups],
        "conversations": lines,
        "next": following,
        "words": words,
        "show": shown,
    }
    page = {
        "sparks": {name: _spark(by_day.groups, name, visit.now) for name in ("sent", "net_dollars", "unsent")}
    }
    return RenderedPage("home.html", data, page=page)


async def _lines(
    workspace: Workspace, words: str, shown: str, after: str, limit: int
) -> tuple[list[ConversationLine], str]:
    """A page of the list; filtered by what only the engine can tell, it may need several pages of the store."""
    if shown == "all":
        page = await workspace.engine.page(limit=limit, words=words, after=after)
        return [*page.lines], page.next
    found, scanned = list[ConversationLine](), 0
    while len(found) < limit and scanned < MOST_SCANNED:
        page = await workspace.engine.page(limit=LOOKED_AT, words=words, after=after)
        found += [one for one in page.lines if (one.off if shown == "off" else one.reason)]
        scanned, after = scanned + len(page.lines), page.next
        if not after:
            break
    return found, after


async def attention(visit: Visit, workspace: Workspace) -> list[AttentionItem]:
    """What needs attention, the most urgent first."""
    engine = workspace.engine
    recent = (await engine.page(limit=LOOKED_AT)).lines
    found = [
        *await _failing(visit, workspace),
        *_overflowing(recent),
        *await _spending(workspace, recent),
        *[_operation(one.name, one.state) for one in await visit.backend.operations() if one.is_wrong],
    ]
    if (held := await engine.held_back()) is not None:
        waiting = plural(held.conversations, "conversation")
        hint = "`refold expire` deletes what is past its time, and asks first"
        found.append(
            AttentionItem("held_back", "warm", f"past their time and not deleted yet: {waiting}", hint)
        )
    for one in await engine.learned_windows():
        text = f"{one.model}: a window of {one.window:,} tokens was learnt from a refusal"
        hint = "it is used for seven days, or until a larger request is answered"
        found.append(AttentionItem("limit", "info", text, hint, url="/settings#limits"))
    order = {"bad": 0, "warm": 1, "info": 2}
    return sorted(found, key=lambda one: order[one.urgency])


async def _failing(visit: Visit, workspace: Workspace) -> list[AttentionItem]:
    """Summarisers that fail, and those that are not asked for a while because of it."""
    now, found = visit.now, list[AttentionItem]()
    rows = await workspace.engine.store.failing(workspace.engine.owner)
    rows = [one for one in rows if now - one.at < RECENT_S]
    for one in rows[:MOST_NAMED]:
        is_open = one.failures >= MAX_FAILURES and 0 <= now - one.at < REST_S
        times = "once" if one.failures == 1 else f"{one.failures:,} times in a row"
        found.append(
            AttentionItem(
                "breaker" if is_open else "summariser",
                "bad" if is_open or one.failures >= MAX_FAILURES else "warm",
                f"no model is asked for a while: the summariser failed {times}"
                if is_open
                else f"the summariser failed {times}",
                "digests are used meanwhile, and nothing is lost; check its key, its model and its limits",
                one.conversation,
                conversation_url(one.conversation, branch=one.branch),
            )
        )
    return [*found, *_rest("summariser", "warm", len(rows), "conversations with a failing summariser")]


def _overflowing(lines: Sequence[ConversationLine]) -> list[AttentionItem]:
    over = [one for one in lines if one.limit and one.tokens > one.limit]
    found = [
        AttentionItem(
            "overflow",
            "bad" if one.off else "warm",
            f"the context is over its limit: {one.tokens:,} of {one.limit:,} tokens",
            "it is off: nothing will be compacted"
            if one.off
            else "the next call compacts it, or compact it now",
            one.id,
            conversation_url(one.id, "compact"),
        )
        for one in over[:MOST_NAMED]
    ]
    return [*found, *_rest("overflow", "warm", len(over), "conversations over their limit", "/?show=due")]


async def _spending(workspace: Workspace, lines: Sequence[ConversationLine]) -> list[AttentionItem]:
    """Conversations whose summaries have cost most of what they may."""
    limit = workspace.resolved.settings.summariser.max_spend
    if limit is None or not lines:
        return []
    engine = workspace.engine
    spent = await engine.store.spent_each(engine.owner, [one.id for one in lines], "summary")
    near = sorted(
        ((cost, name) for name, cost in spent.items() if cost and cost >= NEAR * limit), reverse=True
    )
    found = [
        AttentionItem(
            "spending",
            "bad" if cost >= limit else "warm",
            f"summaries have cost {dollars(cost)} of the {dollars(limit)} that they may",
            "no model is asked any more: digests are used" if cost >= limit else "summariser.max_spend",
            name,
            conversation_url(name),
        )
        for cost, name in near[:MOST_NAMED]
    ]
    return [*found, *_rest("spending", "warm", len(near), "conversations near their spending limit")]


def _operation(name: str, state: str) -> AttentionItem:
    kind: Literal["not_kept", "place"] = "not_kept" if name == "replies not kept" else "place"
    return AttentionItem(kind, "bad", f"{name}: {state}", "the log of the gateway says more")


def _rest(
    kind: Literal["summariser", "overflow", "spending"],
    urgency: Urgency,
    count: int,
    what: str,
    url: str = "",
) -> list[AttentionItem]:
    more = count - MOST_NAMED
    return [AttentionItem(kind, urgency, f"{more:,} more {what}", url=url)] if more > 0 else []


def _counts(stats: Stats) -> dict[str, int]:
    """Changes of the time by outcome, and of those still in effect the compactions and the reductions. One that was undone was
    installed before.
    """
    found = {"installed": 0, "undone": 0, "failed": 0, "superseded": 0, "compactions": 0, "reductions": 0}
    for one in stats.compactions:
        found[one.outcome] += one.count
        in_effect = {"installed": one.count, "undone": -one.count}.get(one.outcome, 0)
        found["compactions" if one.kind == "summarise" else "reductions"] += in_effect
    return found


def _day(one: Effect) -> dict[str, object]:
    return {
        "day": one.name,
        "sent": one.sent,
        "unsent": one.replies.unsent,
        "net_tokens": one.net_tokens,
        "net_dollars": one.net_dollars,
    }


class SparkBar(Struct, frozen=True):
    """One day in the small picture of a figure, in a box of 100 by 28."""

    x: float
    y: float
    height: float


def _spark(groups: Sequence[Effect], name: str, now: float) -> list[SparkBar]:
    """The bars of a figure over the last days, today last; none if there is nothing to draw."""
    values = {one.name: float(_day(one)[name]) for one in groups}  # type: ignore[arg-type]
    last = day_of(now)
    days = [values.get(day_name(day), 0.0) for day in range(last - SPARK_DAYS + 1, last + 1)]
    low, high = min(0.0, *days), max(0.0, *days)
    if low == high:
        return []
    scale, step = 27 / (high - low), 100 / SPARK_DAYS
    zero = 0.5 + 27 * high / (high - low)
    return [
        SparkBar(round(at * step, 2), round(zero - max(0.0, value) * scale, 2), round(abs(value) * scale, 2))
        for at, value in enumerate(days)
        if value
    ]


# Search


class FoundSession(Struct, frozen=True):
    """A session that a search found."""

    conversation: str
    session: str
    kind: str
    first: int
    last: int | None
    closed_at: float | None
    excerpt: str = ""


async def search(visit: Visit) -> RenderedPage | Redirect:
    """Names and titles, messages by their words, and sessions by words and meaning."""
    workspace, words = await visit.workspace(), visit.query.get("words", "").strip()
    names, messages, sessions = list[ConversationLine](), list[FoundMessage](), list[FoundSession]()
    if words:
        engine = workspace.engine
        names = [*(await engine.page(limit=10, words=words)).lines]
        messages = await engine.search(words, limit=20)
        found = await engine.find_sessions(words, limit=10)
        texts = {
            one.id: one.summary.text
            for one in await engine.summaries([session.summary for _, session in found if session.summary])
        }
        sessions = [
            FoundSession(
                name, one.id, one.kind, one.first, one.last, one.closed_at, texts.get(one.summary, "")[:400]
            )
            for name, one in found
        ]
    notes = [one for one in (tell_mistakes(words), workspace.engine.search_problem) if one]
    data = {
        "words": words, "conversations": names, "messages": messages, "sessions": sessions, "notes": notes,
    }  # fmt: skip
    return RenderedPage("search.html", data, "Search")


# Effect


PERIODS = (1, 7, 30, 90, 365)
GROUPS = ("day", "model", "upstream", "conversation")


async def effect(visit: Visit) -> RenderedPage | Redirect:
    """The effect of compaction in numbers, for a time and in groups."""
    workspace, days = await visit.workspace(), visit.count("days", 30, 10_000)
    by = check_by(visit.query.get("by", "day"))
    if by == "owner" or by is None:
        raise ConfigError("there are no such groups here", hint=f"by: {', '.join(GROUPS)}")
    stats = await workspace.engine.stats(by=by, days=days)
    data = {"days": days, "by": by, **stats.document(), "unpriced": stats.savings.unpriced}
    page = {"stats": stats, "periods": PERIODS, "kinds": GROUPS, "outcomes": _counts(stats)}
    return RenderedPage("effect.html", data, "Effect", page=page)


async def above_conversations(visit: Visit) -> RenderedPage | Redirect:
    """The address above those of the conversations: the list is the first page."""
    return Redirect("/index.json" if visit.path.endswith(".json") else "/")


VIEWS = (
    ("/", home, "GET"),
    ("/conversations", above_conversations, "GET"),
    ("/conversations/", above_conversations, "GET"),
    ("/search", search, "GET"),
    ("/effect", effect, "GET"),
)
