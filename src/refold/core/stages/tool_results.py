"""Stages that shorten or replace old tool results.

`Prune` acts by their total size, `Trim` by their age, `Mask` when the window fills.

`Supersede` replaces results that a later event has made worthless: a file that was read again or changed, the same
output twice, an error that was fixed. Each becomes a line that names the later event. The first event counts, so
the line does not change as the conversation continues.

`Tiers` leaves the newest results whole and cuts older ones to a few lines; the assistant's texts and calls stay. A
reply mostly continues the assistant's own words and calls of the last turns, in order. So a full window gives up the
middle of old tool results first, and whole turns only if that is not enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.core.stage import Item, Room, ShownMessages, StageResult, changed, is_stub
from refold.core.stages.parts import (
    HANDLE_MARK,
    Mark,
    Result,
    cut_result,
    excerpt,
    find_results,
    last_answer,
    rebuilt,
    share,
    stub_result,
    unread_from,
)
from refold.core.tool_use import FileAccess, ToolKinds, call_key, file_accesses, stated_errors
from refold.model.message import Message, Part
from refold.model.tokens import exact, share_of

PrunePolicy: TypeAlias = Literal["auto", "keep_all", "keep_none"]
ToolRule: TypeAlias = Literal["prune", "summarise", "summarize"]
"""`summarize` is another spelling of `summarise`."""


PRUNE_STAGE = "prune"
"""The name of the stage in its edits."""


class Prune(Struct, frozen=True, tag="prune"):
    """Replaces old tool results by the name of their tool.

    Pruning is rare and large, and never goes back. Results are replaced only when those since the last pruning
    exceed a threshold, and nothing up to the last replaced result is changed again, so a provider's cache of
    that prefix stays valid. The boundary is recorded in `FoldedBranch.pruned` and stored with it.
    """

    threshold: int = 8_000
    """Tokens of tool results since the last pruning that may stay: a few files and a test run."""
    keep: int = 2_000
    """Tokens of the newest output that stay: enough for the usual read-edit-check loop."""
    policy: PrunePolicy = "auto"
    """`keep_all` prunes only when forced, and then like `auto`. `keep_none` keeps no result and ignores `rules`."""
    rules: dict[str, ToolRule] = {}
    """Rules by tool name. Results of tools with `summarise` stay until they are summarised; all other results are pruned."""
    force: bool = False
    """Prune now, regardless of the threshold and `keep_all`. A summary that is due forces pruning as well."""
    text: str = "{name} {handle}"
    """The stub for a result; `{name}` is its tool's name, `{handle}` its handle."""
    unknown: str = "pruned"
    """The name in the stub if the tool is unknown."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        is_forced = self.force or room.is_due
        if self.policy == "keep_all" and not is_forced:
            return StageResult.skipped(shown, "the policy keeps all tool results")
        fresh = [found for found in find_results(shown) if found.item.seq >= room.pruned]
        sizes = [found.tokens(room.counter) for found in fresh]
        if sum(sizes) <= self.threshold and not is_forced:
            text = (
                f"{sum(sizes):,} tokens of tool results since the last pruning; {self.threshold:,} may stay"
            )
            return StageResult.skipped(shown, text)
        old = fresh[: self._oldest_kept(sizes)]
        stale = [found for found in old if self._may_prune(found, shown, room)]
        if not stale:
            return StageResult.skipped(shown, "no tool result may be pruned")
        parts = {(at.index, at.place): stub_result(at.result, self._stub(at)) for at in stale}
        return changed(PRUNE_STAGE, shown, rebuilt(shown, parts), room, lambda _: "old tool output")

    def _oldest_kept(self, sizes: list[int]) -> int:
        """The position from which all newer results fit into `keep`."""
        left = 0 if self.policy == "keep_none" else self.keep
        at = len(sizes)
        while at and sizes[at - 1] <= left:
            at -= 1
            left -= sizes[at]
        return at

    def _may_prune(self, found: Result, shown: ShownMessages, room: Room) -> bool:
        if not room.may_touch(shown, found.index):
            return False
        if self.policy != "keep_none" and self.rules.get(found.name) in ("summarise", "summarize"):
            return False
        return "{handle}" not in self.text or len(self._stub(found)) < len(found.result.text)

    def _stub(self, found: Result) -> str:
        return self.text.replace("{name}", found.name or self.unknown).replace("{handle}", found.handle)


class Trim(Struct, frozen=True, tag="trim"):
    """Trims old tool results by position: older ones lose their middle, the oldest everything.

    Only age decides: the distance from the end as a share of the whole. The last replies are not changed, and
    small results are not worth a cut.
    """

    keep_last_assistants: int = 3
    """Replies at the end, each with all its tool rounds, that stay whole."""
    soft_trim_ratio: float = 0.3
    hard_clear_ratio: float = 0.5
    """Ages (0 for the newest message, 1 for the oldest) from which a result is trimmed and cleared."""
    min_chars: int = 50_000
    """Smaller results stay: they do not fill a window."""
    soft_max: int = 4_000
    soft_head: int = 1_500
    soft_tail: int = 1_500
    hard_clear: bool = True
    text: str = "[Old tool result content cleared]"
    """The stub for a cleared result. The name of the tool and the handle are added, unless it has `{handle}`."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        first, last = self._first_user(shown), self._recent(shown)
        old = [
            found
            for found in find_results(shown)
            if first <= found.index < last
            and room.may_touch(shown, found.index)
            and len(found.result.text) >= self.min_chars
        ]
        cuts = {(at.index, at.place): self._cut(at, len(shown.items)) for at in old}
        parts: dict[tuple[int, int], Part] = {place: part for place, part in cuts.items() if part}
        if not parts:
            return StageResult.skipped(shown, "no tool result is both old and large")
        return changed("trim", shown, rebuilt(shown, parts), room, lambda _: "old and large")

    def _cut(self, found: Result, count: int) -> Part | None:
        result, distance = found.result, count - found.index
        if self.hard_clear and distance >= exact(self.hard_clear_ratio) * count:
            return stub_result(result, self._stub(found))
        if distance < exact(self.soft_trim_ratio) * count or len(result.text) <= self.soft_max:
            return None
        kept = self.soft_head + self.soft_tail
        inserted = self.mark.spell(
            handle=found.handle, length=len(result.text), limit=self.soft_max, kept=kept
        )
        words = self.mark.whole_words
        cut = excerpt(result.text, self.soft_head, self.soft_tail, inserted, whole_words=words)
        return stub_result(result, cut)

    def _stub(self, found: Result) -> str:
        if "{handle}" in self.text:
            return self.text.replace("{handle}", found.handle).replace("{name}", found.name)
        return " ".join(filter(None, (self.text, found.name, found.handle)))

    def _first_user(self, shown: ShownMessages) -> int:
        roles = (item.message.role for item in shown.items)
        return next((index for index, role in enumerate(roles) if role == "user"), len(shown.items))

    def _recent(self, shown: ShownMessages) -> int:
        """Index at which the last replies begin; a reply is an unbroken run of assistant and tool messages."""
        runs, inside = 0, False
        for index in range(len(shown.items) - 1, -1, -1):
            is_reply = shown.items[index].message.role in ("assistant", "tool")
            runs += is_reply and not inside
            if runs > self.keep_last_assistants:
                return index + 1
            inside = is_reply
        return 0


class Mask(Struct, frozen=True, tag="mask"):
    """Shortens tool results that the model has already answered to an excerpt.

    Once the assistant has replied to a tool result, the full text is rarely needed again. Unanswered results
    and all text of the assistant stay unchanged.
    """

    at: float = 0.8
    """Least fill level, instructions included: below it the full output is worth its room."""
    floor: int = 300
    """Characters that every result keeps: a few lines still show the kind of output."""
    headroom: float = 0.0
    """Added to the shared room, as a fraction of it, for policies in which a summary frees room anyway."""
    active: bool = False
    """Mask results in the active turn as well: in a long agent run most answered results are there."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        if room.pressure(shown) < exact(self.at):
            return StageResult.skipped(shown, f"the window is less than {self.at:.0%} full")
        answered = last_answer(shown)
        consumed = [found for found in find_results(shown) if found.index < answered]
        if not consumed:
            return StageResult.skipped(shown, "no tool result has been answered yet")
        parts = {}
        for position, found in enumerate(consumed):
            limit = max(self.floor, share(self._characters(room), position, len(consumed)))
            cut = cut_result(found.result, limit, self.mark, found.handle)
            if cut is not found.result and self._may_touch(found, shown, room):
                parts[found.index, found.place] = cut
        if not parts:
            return StageResult.skipped(shown, "every answered tool result is short enough")
        return changed("mask", shown, rebuilt(shown, parts), room, lambda _: "answered tool output")

    def _may_touch(self, found: Result, shown: ShownMessages, room: Room) -> bool:
        return not room.is_pinned(found.item) if self.active else room.may_touch(shown, found.index)

    def _characters(self, room: Room) -> int:
        """Characters that all answered results share: the whole room, at four characters per token."""
        return 4 * int(max(0, room.tokens) * (1 + exact(self.headroom)))


HUGE = 0.8
"""Share of the room for messages: a result that is larger would leave the window almost empty."""
FILLED = 0.4
"""Share of the policy's target up to which a huge result is kept. In the replay, all of the target costs 1.5 % more
in a window of 8,000 tokens, and this share 0.2 %, for half of the gain."""


PROSE, CODE = 4, 3
"""Characters of a token, about."""


class Tiers(Struct, frozen=True, tag="tiers"):
    """Cuts tool results that the model has read, oldest first, until the messages take their share of the room.

    All results are cut at first, and the newest messages that fit are counted. The room that is left then
    makes results whole again, from the newest on, except those that are larger than it. Messages that do not
    fit are left to the summary. Results in the active turn are cut as well: in a long agent run most of them
    are there.

    A huge result that does not fit whole would leave the window almost empty. More of its beginning and end
    stays then: nothing else needs the room.
    """

    keep: float = 0.8
    """Share of the room that the messages take: beyond it, a summary is due soon again."""
    result: int = 300
    """Characters of a cut result, its first and last lines: they show its kind and its outcome. In the replay,
    100 to 600 differ little, because what matters are the calls and texts between the results."""
    mark: Mark = HANDLE_MARK

    def cut_tokens(self, items: Iterable[Item], characters: int) -> list[int]:
        """About the tokens of each message with its results cut, without cutting them, if a token has so many characters."""
        most = self.result // characters
        return [most if item.tokens > most and item.message.role == "tool" else item.tokens for item in items]

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        unread = unread_from(shown)
        read = [
            found for found in find_results(shown) if found.index < unread and not room.is_pinned(found.item)
        ]
        messages = self._cut(shown, read, self.result)
        short = {index: room.counter.message(message) for index, message in messages.items()}
        most = share_of(self.keep, room.tokens)
        first, left = self._first_kept(shown, short, most - room.before)
        for index in sorted(short, reverse=True):
            more = shown.items[index].tokens - short[index]
            if index < first:
                break
            if more <= left:
                left -= more
                del messages[index]
            elif shown.items[index].tokens > share_of(HUGE, most):
                found = [one for one in read if one.index == index]
                free = share_of(FILLED, room.target) - (most - left)
                larger = self._cut_less(shown, found, room, free + short[index])
                for at, message in larger.items():
                    size = room.counter.message(message)
                    left -= size - short[at]
                    messages[at], short[at] = message, size
        if not messages:
            return StageResult.skipped(shown, "the tool results that were read fit or are short")
        return changed("mask", shown, messages, room, lambda _: "tool output that was read", short)

    def _cut(self, shown: ShownMessages, results: Sequence[Result], limit: int) -> dict[int, Message]:
        """The messages in which a result is longer than `limit` characters, with these results cut."""
        cuts = dict[tuple[int, int], Part]()
        for found in results:
            cut = cut_result(found.result, limit, self.mark, found.handle)
            if cut is not found.result:
                cuts[found.index, found.place] = cut
        return rebuilt(shown, cuts)

    def _cut_less(
        self, shown: ShownMessages, results: Sequence[Result], room: Room, tokens: int
    ) -> dict[int, Message]:
        """The message of these results, cut to a number of tokens; empty if that leaves no more than `result`."""
        size = sum(len(found.result.text) for found in results)
        limit = size * tokens // max(1, shown.items[results[0].index].tokens) // len(results)
        while limit > self.result:
            messages = self._cut(shown, results, limit)
            if all(room.counter.message(message) <= tokens for message in messages.values()):
                return messages
            limit = limit * 7 // 8
        return {}

    @staticmethod
    def _first_kept(shown: ShownMessages, short: dict[int, int], left: int) -> tuple[int, int]:
        """Index of the oldest message that fits with its results cut, and the tokens that are left over."""
        first = len(shown.items)
        while first > 0 and (size := short.get(first - 1, shown.items[first - 1].tokens)) <= left:
            first -= 1
            left -= size
        return first, left


_Event: TypeAlias = tuple[str, ...]
"""An event on a file, an output or a failed call: its kind and its object."""
_Happened: TypeAlias = tuple[int, _Event]
"""An event, after the position of the result in which it happened."""


class SupersedeTexts(Struct, frozen=True):
    """The stubs for stale results. `{by}` names the later result, `{handle}` the stale one."""

    read_again: str = "[outdated, the file was read again in {by}; this was {handle}]"
    edited: str = "[outdated, the file was changed in {by}; this was {handle}]"
    repeated: str = "[the same output came again in {by}; this was {handle}]"
    fixed: str = "[an error, fixed in {by}; this was {handle}]"

    def spell(self, cause: Cause, handle: str) -> str:
        text = {"edited": self.edited, "fixed": self.fixed, "repeated": self.repeated}
        return text.get(cause.name, self.read_again).replace("{by}", cause.by).replace("{handle}", handle)


STAGE = "supersede"


class Supersede(Struct, frozen=True, tag=STAGE):
    texts: SupersedeTexts = SupersedeTexts()
    min_chars: int = 200
    """Shorter results stay: their stub would hardly be shorter."""
    active: bool = False
    """Include the active turn, up to the latest reply: an agent's whole run is often one turn."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        parts: dict[tuple[int, int], Part] = {}
        reasons: dict[int, str] = {}
        free = structs.replace(shown, protected=_latest_reply(shown)) if self.active else shown
        for found, cause in _stale(find_results(shown), room.tools):
            stub = self.texts.spell(cause, found.handle)
            length = len(found.result.text)
            if room.may_touch(free, found.index) and length > max(len(stub), self.min_chars):
                parts[found.index, found.place] = stub_result(found.result, stub)
                reasons[found.item.seq] = f"{cause.name} in {cause.by}"
        if not parts:
            return StageResult.skipped(shown, "nothing has been superseded")
        return changed(STAGE, shown, rebuilt(shown, parts), room, lambda item: reasons[item.seq])


def _latest_reply(shown: ShownMessages) -> int:
    """Index at which the newest reply begins; the model has read the messages before it."""
    at = len(shown.items) - 1
    while at > 0 and shown.items[at].message.role != "assistant":
        at -= 1
    return max(0, at)


class Cause(Struct, frozen=True):
    """The reason that a result is stale: the kind of event, and the handle of the message in which it happened."""

    name: str
    by: str


def _stale(results: list[Result], kinds: ToolKinds) -> list[tuple[Result, Cause]]:
    """The results that a later event supersedes. One backward pass knows the next event of each kind."""
    calls = [found.call for found in results]
    accesses = [file_accesses(call, kinds) if call else () for call in calls]
    failed = {at for at, found in enumerate(results) if calls[at] and _has_failed(found, accesses[at])}
    first_failed = min(failed, default=len(results))
    later: dict[_Event, int] = {}
    stale: list[tuple[Result, Cause]] = []
    for at in range(len(results) - 1, -1, -1):
        found, call = results[at], calls[at]
        text = found.result.text
        if call is None or (text.startswith("[") and is_stub(text, found.handle)):
            continue
        repeated: _Event = ("repeated", call.name, text)
        # Only an earlier failure needs the key of a call.
        fixed: _Event = ("fixed", call_key(call, kinds, accesses[at])) if at >= first_failed else ()
        happened = _first(later, (repeated, fixed) if at in failed else (repeated,))
        outdated = None if at in failed else _outdated(later, accesses[at])
        if outdated and (happened is None or outdated[0] < happened[0]):
            happened = outdated
        if happened:
            stale.append((found, _cause(happened[1], results[happened[0]])))
        later[repeated] = at
        if at not in failed:
            if fixed:
                later[fixed] = at
            for access in accesses[at]:
                later[_event(access)] = at
    return stale[::-1]


def _has_failed(found: Result, accesses: tuple[FileAccess, ...]) -> bool:
    is_content = "read" in [access.kind for access in accesses]
    return bool(stated_errors(found.result, is_content=is_content))


def _event(access: FileAccess) -> _Event:
    """The event on a file by which a result supersedes earlier ones."""
    return ("read", access.path, access.span) if access.kind == "read" else ("edited", access.path)


def _cause(event: _Event, found: Result) -> Cause:
    """The cause for results that an event in `found` supersedes. The call changes a file, not its result."""
    if event[0] == "edited" and found.caller:
        return Cause("edited", found.caller.handle)
    return Cause("read_again" if event[0] == "read" else event[0], found.handle)


def _first(later: dict[_Event, int], events: Iterable[_Event]) -> _Happened | None:
    """The first of these events that happened."""
    first: _Happened | None = None
    for event in events:
        at = later.get(event)
        if at is not None and (first is None or at < first[0]):
            first = (at, event)
    return first


def _outdated(later: dict[_Event, int], accesses: tuple[FileAccess, ...]) -> _Happened | None:
    """The event that outdated a result: the last file of several that was read again or changed."""
    last: _Happened | None = None
    for access in accesses:
        if access.kind == "read":
            path, span = access.path, access.span
            happened = _first(later, (("read", path, span), ("read", path, ""), ("edited", path)))
            if happened is None:
                return None
            if last is None or happened[0] > last[0]:
                last = happened
    return last
