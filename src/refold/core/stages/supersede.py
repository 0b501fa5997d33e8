"""Replaces tool results that a later event has made worthless.

Events, not age, make a result worthless: a file that was read again or changed, the same output twice, an
error that was fixed. Each such result becomes a line that names the later event. The first event counts,
so the line does not change as the conversation continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct, structs

from refold.core.stage import Room, ShownMessages, StageResult, changed, is_stub
from refold.core.stages.parts import Result, find_results, rebuilt, stub_result
from refold.core.tool_failures import stated_errors
from refold.core.tool_kinds import FileAccess, ToolKinds, call_key, file_accesses
from refold.model.message import Part

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
    accesses = [file_accesses(found.call, kinds) if found.call else () for found in results]
    failed = {at for at, found in enumerate(results) if _has_failed(found, accesses[at])}
    first_failed = min(failed, default=len(results))
    later: dict[_Event, int] = {}
    stale: list[tuple[Result, Cause]] = []
    for at in range(len(results) - 1, -1, -1):
        found, call = results[at], results[at].call
        text = found.result.text
        if call is None or is_stub(text, found.handle):
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
    return found.call is not None and bool(stated_errors(found.result, is_content=is_content))


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
