"""The pages of one conversation: its window over time and now, its calls, its changes message by message, its lineage, and recall.

Every page reads the stored rows that `refold.engine.history` gives; the pictures are drawn by
`refold.svg`. The views of calls and changes open the conversation and show at most `PAGE` messages at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct, structs

from refold import svg
from refold.core.fold import FoldedBranch
from refold.core.search.query import tell_mistakes
from refold.core.stage import Edit, handle_of
from refold.dashboard import text
from refold.dashboard.app import CONVERSATION, Redirect, RenderedPage, Visit, conversation_url
from refold.dashboard.workspace import Workspace
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.engine.events import Regions, damage_text
from refold.engine.history import (
    MOST_CALLS,
    MOST_CHANGES,
    BranchLine,
    Fate,
    MessageChange,
    TimedCall,
    TimedChange,
    Timeline,
    changes_between,
    fate_of,
    timeline_of,
)
from refold.engine.journal import read_edits
from refold.engine.recall import is_handle, newest_reply
from refold.engine.settings import prices_of
from refold.engine.state import CallSize
from refold.model.errors import ConfigError, Damaged, NotFound, WireError
from refold.model.message import File, Image, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from refold.model.tokens import Measurement, Region, in_proportion
from refold.ports.records import Call, Compaction, Head, StoredMessage, read_stored
from refold.text_work import run_text_work

PAGE = 100
"""Messages, or calls, on one page."""
MOST_TEXT = 1_200
"""Characters of a message in a list; its own page has all of it."""
MOST_RECALLED = 20_000
"""Tokens of a message that is shown alone."""
LISTED_CHANGES = 20
"""Changes on the overview, the newest; the page of changes has all."""
LISTED_CALLS = 200
"""Calls in the JSON of the overview, the newest; the pages of calls have all."""


class RegionLook(Struct, frozen=True):
    """The name, the letter and the meaning of a region, as `refold context` has them."""

    name: str
    letter: str
    meaning: str


LOOKS: dict[Region, RegionLook] = {
    "system": RegionLook("system", "S", "system prompt"),
    "tools": RegionLook("tools", "T", "tool definitions"),
    "summary": RegionLook("summary", "U", "what stands for earlier messages"),
    "history": RegionLook("history", "H", "earlier turns"),
    "tool_results": RegionLook("tool results", "R", "results in earlier turns"),
    "tail": RegionLook("tail", "L", "the active turn so far"),
    "input": RegionLook("input", "I", "what the next call adds"),
    "free": RegionLook("free", "", "room left"),
    "reserve": RegionLook("reserve", "=", "kept for the reply"),
}
CONTENT: tuple[Region, ...] = ("system", "tools", "summary", "history", "tool_results", "tail", "input")
UNRECORDED = "unrecorded"
LINES = (svg.Level("fold", "fold point"), svg.Level("wall", "wall"), svg.Level("window", "window"))
LANES = ("read", "written", "fresh")
SIGNS = {kind: svg.sign(kind) for kind in get_args(svg.MarkKind)}
FATES: dict[Fate, str] = {
    "kept": "shown as it came",
    "shortened": "shown in part; recall gives the rest",
    "superseded": "a newer result says the same",
    "folded": "a summary stands for it",
    "left out": "not shown, and in no summary",
}


# The overview


async def overview(visit: Visit) -> RenderedPage | Redirect:
    """The window over time, the window now, the changes and the lineage."""
    workspace = await visit.workspace()
    engine = workspace.engine
    line = await _timeline(engine, visit, call=visit.query.get("call", ""))
    talk, problem = await _opened(workspace, visit, line.branch)
    status = await talk.status() if talk else None
    window = now_rows(talk.measurement, status.tokens) if talk and status else []
    chosen = _chosen_call(visit, line)
    data = {
        "name": visit.name,
        "branch": line.branch,
        "model": talk.model if talk else line.calls[-1].row.model if line.calls else "",
        "status": {**msgspec.to_builtins(status), "ratio": status.ratio} if status else None,
        "window": window,
        "problem": problem,
        "damage": damage_text(status.damaged) if status and status.damaged else "",
        "totals": totals(line.calls, line.changes),
        "conversation_totals": totals(line.all_calls, line.all_changes),
        "calls": [call_document(one) for one in line.calls[-LISTED_CALLS:]],
        "changes": [change_document(one) for one in reversed(line.changes[-LISTED_CHANGES:])],
        "more_changes": max(0, len(line.changes) - LISTED_CHANGES),
        "pending": list(line.pending),
        "branches": [branch_document(one) for one in line.branches],
        "call": call_document(chosen) if chosen else None,
    }
    groups = call_groups(line, chosen)
    drawn = [one for one, _ in groups]
    links = _branch_links(visit, line.branch, [one.branch for one in line.branches])
    page = {
        **links,
        "over_time": picture_over_time(line, groups, chosen, links["link_branch"]),
        "grid": picture_now(window, status.tokens, status.window) if status else "",
        "lineage": picture_of_lineage(line),
        "looks": LOOKS,
        "shown_regions": _regions_in(drawn),
        "signs": SIGNS,
        "sizes": _size_bars(line.changes[-LISTED_CHANGES:]),
        "has_unrecorded": any(one.sent.sizes is None for one in drawn),
        "has_undone": any(one.state == "undone" for one in line.changes),
        "is_cut": line.is_cut,
        "total_calls": len(line.replies),
        "change_lines": {one.id: change_line(one) for one in line.changes},
    }
    return RenderedPage("conversation.html", data, visit.name, page=page)


async def _timeline(engine: Engine, visit: Visit, *, call: str = "", change: str = "") -> Timeline:
    """The timeline of the branch that the address names, else of the one that was used last. If that one does not have the call
    or the change that is asked for, of a branch that has it: an address goes on working after a fork.
    """
    line = await timeline_of(engine.store, engine.owner, visit.name, branch=visit.branch)
    has_it = call in {f"{one.number}" for one in line.calls} or change in {one.id for one in line.changes}
    if visit.branch or has_it:
        return line
    others = (
        *(one.row.branch for one in line.all_calls if f"{one.number}" == call),
        *(one.branch for one in line.all_changes if one.id == change),
    )
    return await timeline_of(engine.store, engine.owner, visit.name, branch=others[0]) if others else line


def _branch_links(visit: Visit, branch: str, branches: Sequence[str]) -> dict[str, Any]:
    """For the template: all branches, and the one that links lead to. Where there is one only, an address needs none."""
    return {"branch_ids": branches, "link_branch": branch if len(branches) > 1 else visit.branch}


async def _opened(workspace: Workspace, visit: Visit, branch: str) -> tuple[Conversation | None, str]:
    """The conversation with the settings of its next call. Where it has none, because no upstream serves it any more, or where a
    message is damaged, everything else is shown, and the reason.
    """
    try:
        return await workspace.open(visit.name, branch), ""
    except (ConfigError, Damaged, WireError) as error:
        return None, f"{error.message}: {error.hint}" if error.hint else error.message


def _chosen_call(visit: Visit, line: Timeline) -> TimedCall | None:
    """The call that the address names, else the last one."""
    if visit.query.get("call"):
        wanted = visit.count("call", 1, 10**9)
        found = next((one for one in line.calls if one.number == wanted), None)
        if found is None:
            raise NotFound("there is no such call", hint="the page of calls lists them")
        return found
    return line.replies[-1] if line.replies else None


def totals(calls: Sequence[TimedCall], changes: Sequence[TimedChange | Compaction]) -> dict[str, object]:
    """The sums of some calls: measured figures, with the number of those that are estimates beside them."""
    replies = [one for one in calls if one.is_reply]
    prompts, read = (sum(one.usage.prompt for one in replies), sum(one.usage.cache_read for one in replies))
    summary_dollars = sum(one.row.dollars for one in calls if not one.is_reply)
    return {
        "calls": len(calls),
        "replies": len(replies),
        "summaries": len(calls) - len(replies),
        "sent": prompts,
        "output": sum(one.usage.output for one in replies),
        "unsent": sum(one.row.unsent for one in replies),
        "dollars": sum(one.row.dollars for one in calls),
        "summary_dollars": summary_dollars,
        "net_dollars": sum(one.row.saved for one in replies) - summary_dollars,
        "cache_hit_rate": read / prompts if prompts else None,
        "estimated": sum(one.row.is_estimated for one in calls),
        "estimated_dollars": sum(one.row.dollars for one in calls if one.row.is_estimated),
        "unpriced": sorted(one for one in {one.row.model for one in calls} if prices_of(one) is None),
        **change_counts(changes),
    }


def change_counts(changes: Sequence[TimedChange | Compaction]) -> dict[str, int]:
    """Compactions and reductions that are in effect, and the other changes by their state."""
    made = Counter(one.kind == "summarise" for one in changes if one.state == "installed")
    others = Counter(one.state for one in changes)
    return {
        "compactions": made[True],
        "reductions": made[False],
        "undone": others["undone"],
        "failed": others["failed"],
        "superseded": others["superseded"],
    }


def now_rows(measured: Measurement, tokens: int) -> list[dict[str, object]]:
    """The regions of the window as the next request would have them: our counts in proportion to its size, `tokens`, so that
    they add up to it.
    """
    window = max(1, measured.window)
    parts = in_proportion([getattr(measured, region).tokens for region in CONTENT], tokens)
    sizes: dict[Region, int] = dict(zip(CONTENT, parts, strict=True))
    sizes |= {"free": measured.window - measured.reserve - sum(parts), "reserve": measured.reserve}
    return [
        {
            "region": region,
            "name": LOOKS[region].name,
            "tokens": sizes[region],
            "share": sizes[region] / window,
        }
        for region in LOOKS
    ]


def picture_now(rows: Sequence[Mapping[str, Any]], tokens: int, window: int) -> svg.Markup:
    parts = [
        svg.Slice(
            row["region"],
            f"{row['name']}: {row['tokens']:,} tokens",
            row["tokens"],
            LOOKS[row["region"]].letter,
        )
        for row in rows
    ]
    free = max(0, *(row["tokens"] for row in rows if row["region"] == "free"))
    label = f"The window now: {tokens:,} of {window:,} tokens are filled, {free:,} are free."
    return svg.grid(parts, window, label=label)


CallGroup: TypeAlias = tuple[TimedCall, Sequence[TimedCall]]
"""A call that is drawn, and all calls that it stands for."""


def call_groups(line: Timeline, chosen: TimedCall | None) -> list[CallGroup]:
    """At most `svg.MOST_BARS` calls to draw; of several that share a bar, the chosen one or the largest."""
    found = list[CallGroup]()
    for group in svg.thinned(len(line.replies), svg.MOST_BARS):
        own = line.replies[group.start : group.stop]
        is_there = chosen is not None and own[0].number <= chosen.number <= own[-1].number
        largest = max(own, key=lambda one: one.tokens)
        found.append((next((one for one in own if one is chosen), largest) if is_there else largest, own))
    return found


def _regions_in(drawn: Sequence[TimedCall]) -> list[Region]:
    """The regions that any of the calls had, in the order of the stack."""
    found = [one.sent.sizes for one in drawn if one.sent.sizes is not None]
    return [region for region in CONTENT if any(getattr(one, region) for one in found)]


def picture_over_time(
    line: Timeline, groups: Sequence[CallGroup], chosen: TimedCall | None, branch: str
) -> svg.Markup:
    changes = {one.id: one for one in line.changes}
    bars = []
    for shown, own in groups:
        made = [changes[which] for one in own for which in one.changes if which in changes]
        bars.append(_bar(shown, own, made, line.conversation, branch, is_chosen=shown is chosen))
    label = f"The window over {text.plural(len(line.replies), 'reply')}, region by region. Arrow keys move through them."
    return svg.stacked_bars(
        bars, (*CONTENT, UNRECORDED), LINES, label=label, lanes=LANES, lane_name="cache", axis="call"
    )


def _bar(
    one: TimedCall,
    own: Sequence[TimedCall],
    made: Sequence[TimedChange],
    name: str,
    branch: str,
    *,
    is_chosen: bool,
) -> svg.Bar:
    regions, usage = one.regions, one.usage
    parts = (*structs.astuple(regions), 0) if regions is not None else (*(0 for _ in CONTENT), one.tokens)
    return svg.Bar(
        f"{one.number:,}",
        parts,
        (one.fold or None, one.wall or None, one.window),
        (usage.cache_read, usage.cache_write, usage.input),
        _call_text(one, own, made, regions),
        f"{conversation_url(name, branch=branch, call=one.number)}#receipt",
        is_chosen,
        tuple(map(_mark, made)),
    )


def _mark(change: TimedChange) -> svg.MarkKind:
    if change.state == "undone":
        return "undone"
    return "summarise" if change.kind == "summarise" else "reduce"


def _call_text(
    one: TimedCall, own: Sequence[TimedCall], made: Sequence[TimedChange], regions: Regions | None
) -> str:
    """A call in a few lines, for the pointer and for screen readers."""
    row, usage = one.row, one.usage
    head = f"call {one.number:,}: {one.tokens:,} tokens{' (estimated)' if row.is_estimated else ''}"
    if one.wall:
        head += f", {100 * one.tokens / one.wall:.0f} % of the limit"
    lines = [head]
    if len(own) > 1:
        lines.append(f"the largest of the calls {own[0].number:,} to {own[-1].number:,}")
    if usage.prompt:
        lines.append(
            f"{100 * usage.cache_read / usage.prompt:.0f} % read from the cache, {text.dollars(row.dollars)}"
        )
    if row.unsent > 0:
        lines.append(f"{row.unsent:,} tokens not sent, {text.dollars(row.saved)} saved")
    if regions is None:
        lines.append("its regions were not recorded")
    else:
        sizes = structs.asdict(regions)
        lines.append(", ".join(f"{LOOKS[name].name} {sizes[name]:,}" for name in CONTENT if sizes[name]))
    return "\n".join((*lines, *map(change_line, made)))


def change_line(change: TimedChange) -> str:
    what = {"summarise": "summarised", "reduce": "reduced", "arrival": "shortened on arrival"}[change.kind]
    undone = ", undone later" if change.state == "undone" else ""
    return f"{what}{undone}: {change.before:,} to {change.after:,} tokens of messages by our count"


def _size_bars(changes: Sequence[TimedChange]) -> dict[str, svg.Markup]:
    most = max((one.before for one in changes), default=1)
    return {
        one.id: svg.before_after(
            one.before,
            one.after,
            most,
            label=f"{one.before:,} tokens before, {one.after:,} after, by our count",
        )
        for one in changes
    }


def picture_of_lineage(line: Timeline) -> svg.Markup:
    places = {one.branch: at for at, one in enumerate(line.branches)}
    lanes = [
        svg.Lane(
            f"branch {at + 1}: {text.plural(one.size + one.reply, 'message')}",
            tuple(_spans(one, line.conversation)),
            places.get(one.base),
            one.base_seq,
            one.branch == line.branch,
            conversation_url(line.conversation, branch=one.branch) if len(line.branches) > 1 else None,
        )
        for at, one in enumerate(line.branches)
    ]
    sessions = sum(len(one.sessions) for one in line.branches)
    branches = "1 branch" if len(lanes) == 1 else f"{len(lanes):,} branches"
    return svg.lineage(
        lanes,
        label=f"The lineage: {branches}, {text.plural(sessions, 'session')}, by the numbers of their messages",
    )


def _spans(line: BranchLine, name: str) -> Iterator[svg.TimeSpan]:
    kinds = {
        "root": "the first session",
        "compaction": "begun by a compaction",
        "new": "a new session",
        "resume": "resumed",
    }
    for one in line.sessions:
        last = line.size + line.reply if one.last is None else one.last
        state = "undone" if one.state == "undone" else "open" if one.last is None else "closed"
        about = f"{kinds[one.kind]}, {state}: messages {one.first:,} to {max(one.first, last - 1):,}"
        if line.reply and one.last is None:
            about += ", the newest reply included"
        href = conversation_url(name, "messages", branch=line.branch, first=one.first + 1)
        yield svg.TimeSpan(one.first, last, one.kind, about, href, state == "undone", bool(one.summary))


# Documents: what the JSON twins and the templates share


def call_document(one: TimedCall) -> dict[str, Any]:
    row, regions = one.row, one.regions
    return {
        "number": one.number,
        "id": row.id,
        "kind": row.kind,
        "branch": row.branch,
        "session": row.session,
        "size": row.size,
        "at": row.at,
        "model": row.model,
        "upstream": row.upstream,
        "usage": msgspec.to_builtins(one.usage),
        "tokens": one.tokens,
        "dollars": row.dollars,
        "unsent": row.unsent,
        "saved": row.saved,
        "is_estimated": row.is_estimated,
        "recoveries": row.recoveries,
        "added_ms": row.added_ms,
        "regions": structs.asdict(regions) if regions is not None else None,
        "fold": one.fold,
        "wall": one.wall,
        "window": one.window,
        "edits": msgspec.to_builtins(one.edits),
        "changes": list(one.changes),
    }


def change_document(one: TimedChange) -> dict[str, Any]:
    return {
        **structs.asdict(one),
        "author": one.author.text,
        "payback": msgspec.to_builtins(one.payback),
        "line": change_line(one),
    }


def branch_document(one: BranchLine) -> dict[str, Any]:
    return msgspec.to_builtins(one)  # type: ignore[no-any-return]


# Calls


async def calls(visit: Visit) -> RenderedPage | Redirect:
    """The calls, newest first, a page at a time."""
    workspace = await visit.workspace()
    engine = workspace.engine
    line = await timeline_of(engine.store, engine.owner, visit.name, branch=visit.branch)
    before = visit.count("before", 10**9, 10**9)
    earlier = [one for one in line.calls if one.number < before]
    shown = earlier[: -PAGE - 1 : -1]
    data = {
        "name": visit.name,
        "branch": line.branch,
        "calls": [call_document(one) for one in shown],
        "changes": {one.id: change_line(one) for one in line.changes},
        "next": shown[-1].number if len(earlier) > PAGE else None,
    }
    links = _branch_links(visit, line.branch, [one.branch for one in line.branches])
    page = {**links, "is_cut": line.is_cut, "most": MOST_CALLS}
    return RenderedPage("conversation_calls.html", data, f"Calls of {visit.name}", page=page)


class ComparedMessage(Struct, frozen=True):
    """A message beside the form in which it is shown after a change, or was sent with a call."""

    handle: str
    role: str
    fate: Fate
    before: int
    after: int
    text: str
    shown: str | None = None
    """None if it is shown as it came, or not at all."""
    why: str = ""


class ComparedRun(Struct, frozen=True):
    """Messages in a row with the same fate."""

    fate: Fate
    before: int
    after: int
    messages: tuple[ComparedMessage, ...]
    takes_summary: bool = False
    """Whether the summary stands beside them: they are the last ones that it covers."""


def runs_of(messages: Sequence[ComparedMessage]) -> list[ComparedRun]:
    """Group messages by their fate, so that one summary stands beside all messages that it covers."""
    found: list[ComparedRun] = []
    for fate, group in groupby(messages, key=lambda one: one.fate):
        own = tuple(group)
        found.append(ComparedRun(fate, sum(one.before for one in own), sum(one.after for one in own), own))
    folded = [at for at, one in enumerate(found) if one.fate == "folded"]
    if folded:
        found[folded[-1]] = structs.replace(found[folded[-1]], takes_summary=True)
    return found


async def call(visit: Visit) -> RenderedPage | Redirect:
    """As sent against everything: each message of the branch at that time, beside what the call sent of it."""
    workspace = await visit.workspace()
    engine = workspace.engine
    wanted = visit.request.path_params["number"]
    line = await _timeline(engine, visit, call=wanted)
    found = next((one for one in line.calls if f"{one.number}" == wanted), None)
    if found is None:
        raise NotFound("there is no such call", hint="the page of calls lists them")
    row = found.row
    head = await engine.store.head(engine.owner, visit.name, row.branch)
    if head is None:
        raise NotFound("there is no such branch", hint="the page of the conversation lists them")
    last = visit.count("last", row.size, max(1, row.size)) if row.size else 0
    first = max(0, last - PAGE)
    async with await engine.open_branch(head) as talk:
        shown, problem = await _shown(talk, row)
    stored = await engine.store.messages(head, first, last)
    messages = (
        []
        if shown is None
        else await run_text_work(
            sum(len(one.body) for one in stored),
            _beside,
            stored,
            head,
            shown,
            await _edits(engine, line, found),
            found.factor,
        )
    )
    data = {
        "name": visit.name,
        "branch": row.branch,
        "call": call_document(found),
        "runs": msgspec.to_builtins(runs_of(messages)),
        "first": first,
        "last": last,
        "lead": lead_text(shown) if shown is not None else "",
        "lead_tokens": round(shown.lead.tokens * found.factor) if shown is not None else 0,
        "problem": problem,
        "previous": _neighbour(line, found, -1),
        "next": _neighbour(line, found, 1),
        "changes": {one.id: change_line(one) for one in line.changes},
    }
    return RenderedPage(
        "conversation_call.html",
        data,
        f"Call {found.number} of {visit.name}",
        page={
            **_branch_links(visit, line.branch, [one.branch for one in line.branches]),
            "fates": FATES,
            "looks": LOOKS,
        },
    )


async def _shown(talk: Conversation, row: Call) -> tuple[FoldedBranch | None, str]:
    try:
        return await talk.shown_with(row), ""
    except (NotFound, Damaged) as error:
        return None, error.message


def _neighbour(line: Timeline, one: TimedCall, by: int) -> int | None:
    """The number of the reply before or after one."""
    if not one.is_reply:
        return None
    at = bisect_left(line.replies, one.number, key=lambda other: other.number) + by
    return line.replies[at].number if 0 <= at < len(line.replies) else None


async def _edits(engine: Engine, line: Timeline, call: TimedCall) -> dict[int, Edit]:
    """The last edit of each message up to a call. Edits of changes that were undone are among them: a message that is shown as it
    came has none.
    """
    known, found = {one.id for one in line.changes}, dict[int, Edit]()
    made = [
        one
        for branch in {one.branch for one in line.changes}
        for one in await engine.store.compactions(engine.owner, branch, MOST_CHANGES)
        if one.id in known and one.number and one.at <= call.row.at
    ]
    for one in sorted(made, key=lambda one: (one.at, one.number)):
        with suppress(Damaged):
            found |= {edit.seq: edit for edit in read_edits(one)}
    return found


def _beside(
    stored: Sequence[StoredMessage], head: Head, shown: FoldedBranch, edits: Mapping[int, Edit], factor: float
) -> list[ComparedMessage]:
    """Each message beside what was sent of it. `factor` turns our counts into the provider's tokens, as in the receipt."""
    sent: dict[int, list[int]] = {}
    for index in range(len(shown.shown)):
        sent.setdefault(shown.number(index), []).append(index)
    covered = shown.summaries[-1].last if shown.summaries else 0
    rows = [_row(one, head, shown, sent.get(one.seq, []), covered, edits.get(one.seq)) for one in stored]
    return [
        structs.replace(one, before=round(one.before * factor), after=round(one.after * factor))
        for one in rows
    ]


def _row(
    one: StoredMessage,
    head: Head,
    shown: FoldedBranch,
    places: Sequence[int],
    covered: int,
    edit: Edit | None,
) -> ComparedMessage:
    original, said = _read(one, head)
    is_summarised = not places and one.seq < covered
    fate = fate_of(edit, is_shown=bool(places), is_summarised=is_summarised)
    if not places:
        return ComparedMessage(handle_of(one.seq), one.role, fate, one.tokens, 0, said)
    entries = [shown.shown[index] for index in places]
    is_same = original is None or [entry.message.parts for entry in entries] == [original.parts]
    tokens = sum(entry.tokens for entry in entries)
    if is_same:
        return ComparedMessage(handle_of(one.seq), one.role, "kept", one.tokens, tokens, said)
    texts = clip("\n".join(message_text(entry.message) for entry in entries))
    return ComparedMessage(
        handle_of(one.seq), one.role, fate, one.tokens, tokens, said, texts, _why(edit, fate)
    )


def _why(edit: Edit | None, fate: Fate) -> str:
    return f"{edit.stage}: {edit.reason}" if edit is not None and fate not in ("kept", "folded") else ""


def _read(one: StoredMessage, head: Head) -> tuple[Message | None, str]:
    """A stored message and its text, or the words for one that cannot be shown: one damaged message must not hide the others."""
    try:
        message = read_stored(one, head)
    except Damaged as error:
        return None, f"[{error.what}]"
    return message, "[the content was not kept]" if message is None else clip(message_text(message))


def message_text(message: Message) -> str:
    return "\n".join(part for part in map(_part_text, message.parts) if part)


def _part_text(part: object) -> str:
    match part:
        case Text():
            return part.text
        case Reasoning():
            return f"[reasoning] {part.text}" if part.text else "[reasoning]"
        case ToolCall():
            return f"→ {part.name}({part.arguments})"
        case ToolResult():
            return "\n".join(filter(None, map(_part_text, part.parts)))
        case Image():
            return "[image]"
        case File():
            return "[file]"
        case Opaque():
            return "[an item of the provider]"
        case _:
            return ""


def clip(said: str) -> str:
    return said if len(said) <= MOST_TEXT else f"{said[:MOST_TEXT]}… ({len(said):,} characters)"


def lead_text(shown: FoldedBranch) -> str:
    """The text that stands for the messages that are gone, as it was sent."""
    texts = [shown.lead.block, *(message.text for message in shown.lead.messages)]
    return "\n".join(said for said in texts if said)


# Changes, message by message


async def changes(visit: Visit) -> RenderedPage | Redirect:
    """All changes that a timeline has, newest first."""
    workspace = await visit.workspace()
    engine = workspace.engine
    line = await timeline_of(engine.store, engine.owner, visit.name, branch=visit.branch)
    data = {
        "name": visit.name,
        "branch": line.branch,
        "changes": [change_document(one) for one in reversed(line.changes)],
        "counts": change_counts(line.changes),
    }
    links = _branch_links(visit, line.branch, [one.branch for one in line.branches])
    page = {**links, "signs": SIGNS, "sizes": _size_bars(line.changes)}
    return RenderedPage("conversation_changes.html", data, f"Changes of {visit.name}", page=page)


async def change(visit: Visit) -> RenderedPage | Redirect:
    """One change: every message before and after it, the summary with its ledger and checks."""
    workspace = await visit.workspace()
    engine = workspace.engine
    which = visit.request.path_params["change"]
    line = await _timeline(engine, visit, change=which)
    found = next((one for one in line.changes if one.id == which), None)
    row = await engine.store.compaction(engine.owner, which) if found else None
    if found is None or row is None:
        raise NotFound(
            "there is no such change in this conversation", hint="the page of the conversation lists them"
        )
    head = await engine.store.head(engine.owner, visit.name, found.branch)
    rows: list[MessageChange] = []
    lead, lead_tokens, ledger, problem = "", 0, {}, ""
    assert head is not None
    try:
        async with await engine.open_branch(head) as talk:
            difference = await talk.diff(row)
    except (NotFound, Damaged) as error:
        problem = f"{error.message}: {error.hint}" if error.hint else error.message
    else:
        rows = list(changes_between(difference.before, difference.after, difference.receipts))
        lead, lead_tokens = lead_text(difference.after), difference.after.lead.tokens
        ledger = _ledger(difference.after)
    written = await engine.summaries([found.id])
    start = visit.count("first", 1, 10**9) - 1
    counted = Counter(one.fate for one in rows)
    begins = next((at for at, one in enumerate(rows) if one.number >= start), len(rows))
    shown, rest = rows[begins : begins + PAGE], rows[begins + PAGE :]
    numbers = [one.id for one in line.changes]
    at = numbers.index(found.id)
    data = {
        "name": visit.name,
        "branch": found.branch,
        "change": change_document(found),
        "counts": {fate: counted[fate] for fate in FATES},
        "runs": msgspec.to_builtins(runs_of([compared(one) for one in shown])),
        "next_first": rest[0].number + 1 if rest else None,
        "lead": lead,
        "lead_tokens": lead_tokens,
        "summary": _summary_document(written[0].summary) if written else None,
        "ledger": ledger,
        "problem": problem,
        "previous": numbers[at - 1] if at else None,
        "next": numbers[at + 1] if at + 1 < len(numbers) else None,
    }
    picture = svg.before_after(
        found.before, found.after, max(found.before, found.after), label=change_line(found)
    )
    links = _branch_links(visit, line.branch, [one.branch for one in line.branches])
    page = {**links, "fates": FATES, "sizes": picture}
    return RenderedPage("conversation_change.html", data, f"A change of {visit.name}", page=page)


def compared(one: MessageChange) -> ComparedMessage:
    is_other = one.fate in ("shortened", "superseded")
    return ComparedMessage(
        one.handle,
        one.role,
        one.fate,
        one.before,
        one.after,
        clip(message_text(one.original)),
        clip("\n".join(map(message_text, one.shown))) if is_other and one.shown else None,
        _why(one.edit, one.fate),
    )


def _summary_document(one: Any) -> dict[str, object]:
    return {
        "text": one.text,
        "first": one.first,
        "last": one.last,
        "tokens": one.tokens,
        "kind": one.kind,
        "scope": one.scope,
        "author": one.author,
        "model": one.model,
        "why": one.why,
        "usage": msgspec.to_builtins(one.usage),
        "checks": list(one.checks),
    }


def _ledger(after: FoldedBranch) -> dict[str, list[str]]:
    """The facts that are carried along beside the summary, as far as they were found when it was made."""
    ledger = after.noted.ledger
    named = {
        "rules of the user": ledger.rules,
        "files modified": ledger.modified,
        "files read": ledger.read,
        "decisions": ledger.decisions,
        "open tasks": ledger.tasks,
        "errors": ledger.errors,
        "said by the user": ledger.said,
        "ids and numbers": ledger.ids,
    }
    return {name: [clip(one) for one in found[-40:]] for name, found in named.items() if found}


# Everything that was said, recall and search


async def messages(visit: Visit) -> RenderedPage | Redirect:
    """Everything, as it came: the messages of the branch and the newest reply, a page at a time."""
    workspace = await visit.workspace()
    engine = workspace.engine
    head = await visit.head(visit.branch)
    start = visit.count("first", 1, 10**9) - 1
    reply = await newest_reply(engine.store, head)
    stored = [
        *await engine.store.messages(head, start, limit=PAGE),
        *(one for one in reply if start <= one.seq < start + PAGE),
    ]
    rows = await run_text_work(sum(len(one.body) for one in stored), _messages, stored, head)
    after, size = start + len(stored), head.next_seq + len(reply)
    data = {
        "name": visit.name,
        "branch": head.branch,
        "size": size,
        "messages": rows,
        "previous_first": max(0, start - PAGE) + 1 if start else None,
        "next_first": after + 1 if after < size else None,
    }
    page = _branch_links(visit, head.branch, await _branches(engine, visit.name))
    return RenderedPage("conversation_messages.html", data, f"Messages of {visit.name}", page=page)


async def _branches(engine: Engine, name: str) -> list[str]:
    return [one.branch for one in (await engine.store.outline(engine.owner, name, 0)).heads]


def _messages(stored: Sequence[StoredMessage], head: Head) -> list[dict[str, object]]:
    return [
        {
            "handle": handle_of(one.seq),
            "role": one.role,
            "tokens": one.tokens,
            "at": one.at,
            "text": _read(one, head)[1],
            "is_newest_reply": one.seq >= head.next_seq,
        }
        for one in stored
    ]


async def recall(visit: Visit) -> RenderedPage | Redirect:
    """The original behind a handle, or the messages that contain some words."""
    workspace = await visit.workspace()
    engine = workspace.engine
    head = await visit.head(visit.branch)
    what = visit.query.get("what", "").strip()[:1_000]
    data: dict[str, Any] = {
        "name": visit.name,
        "branch": head.branch,
        "what": what,
        "original": None,
        "found": [],
        "problem": "",
        "notes": [],
    }
    if what and is_handle(what):
        try:
            said = await engine.recall(visit.name, what, branch=head.branch, max_tokens=MOST_RECALLED)
        except (NotFound, Damaged) as error:
            data["problem"] = str(error)
        else:
            data["original"] = (
                said
                if isinstance(said, str)
                else msgspec.json.format(msgspec.json.encode(said), indent=2).decode()
            )
    elif what:
        hits = await engine.search(what, name=visit.name, limit=20)
        data["found"] = [structs.asdict(one) for one in hits]
        data["notes"] = [one for one in (tell_mistakes(what), engine.search_problem) if one]
    page = _branch_links(visit, head.branch, await _branches(engine, visit.name))
    return RenderedPage("conversation_recall.html", data, f"Recall in {visit.name}", page=page)


VIEWS = (
    (f"{CONVERSATION}/calls", calls, "GET"),
    (f"{CONVERSATION}/calls/{{number}}", call, "GET"),
    (f"{CONVERSATION}/changes", changes, "GET"),
    (f"{CONVERSATION}/changes/{{change}}", change, "GET"),
    (f"{CONVERSATION}/messages", messages, "GET"),
    (f"{CONVERSATION}/recall", recall, "GET"),
    (CONVERSATION, overview, "GET"),
)
assert set(CONTENT) < set(CallSize.__struct_fields__)
