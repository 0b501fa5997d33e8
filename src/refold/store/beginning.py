"""Begin conversations and branches, and find them.

One idea: a branch is begun together with its first session, so there is never a message without a range that holds it.
"""

from __future__ import annotations

from msgspec import structs

from refold.model.errors import NotFound
from refold.ports.store import Head, Inherited, Session
from refold.store import reading, rows
from refold.store.forking import copied, taken_back
from refold.store.transactions import Transaction


def create(head: Head, session: Session, title: str, at: float) -> Transaction[Head]:
    found = yield from _find_branch(head.owner, head.branch)
    if found is not None:
        return _belonging(found, head.conversation)
    folded = rows.folded(head.conversation, title)
    yield "add_owner", {"owner": head.owner, "at": at}
    yield (
        "add_conversation",
        {"owner": head.owner, "id": head.conversation, "title": title, "folded": folded, "at": at},
    )
    return (yield from _begin(structs.replace(head, base="", base_seq=0), session))


def fork(
    base: Head, at_seq: int, head: Head, session: Session, inherited: Inherited | None
) -> Transaction[Head]:
    found = yield from _find_branch(base.owner, base.branch)
    trunk = _belonging(found, base.conversation)
    if not 0 <= at_seq <= trunk.next_seq:
        raise NotFound("The branch has no such message to fork at.")
    fresh = structs.replace(
        head, owner=base.owner, conversation=base.conversation, base=base.branch, base_seq=at_seq
    )
    begun = yield from _begin(fresh, session)
    if inherited is not None:
        begun = structs.replace(begun, base_number=head.base_number)
        yield (
            "set_base_number",
            {"owner": begun.owner, "id": begun.branch, "base_number": begun.base_number},
        )
    shared = {"owner": base.owner, "branch": head.branch, "base": base.branch, "base_seq": at_seq}
    yield "copy_pins", shared
    yield from _inherit(begun, inherited or (yield from _shown_by(trunk, begun)))
    return begun


def _shown_by(trunk: Head, head: Head) -> Transaction[Inherited]:
    """How the base is shown at the place of the fork."""
    raw = yield from reading.raw_arrivals(trunk, 0)
    latest = yield from reading.latest(trunk, head.base_seq)
    if latest is None:
        return Inherited(raw=tuple(raw))
    written = yield from reading.written(head.owner, [latest.id])
    return Inherited(copied(latest, written[0] if written else None, head), tuple(raw))


def _inherit(head: Head, inherited: Inherited) -> Transaction[None]:
    for one in taken_back(inherited.raw, head):
        yield "add_raw_arrival", rows.of_compaction(head.owner, one)
    if (change := inherited.shown) is None:
        return
    if change.written is not None:
        yield "put_summary", rows.of_summary(head.owner, head.branch, change.written)
    yield "install_compaction", rows.of_compaction(head.owner, change.compaction)


def head(owner: str, conversation: str, branch: str) -> Transaction[Head | None]:
    if not branch:
        found = yield "get_latest_head", {"owner": owner, "conversation": conversation}
        return rows.to_head(found[0]) if found else None
    named = yield from _find_branch(owner, branch)
    return named if named is not None and named.conversation == conversation else None


def _begin(head: Head, session: Session) -> Transaction[Head]:
    """A branch with nothing of its own yet."""
    fresh = structs.replace(head, next_seq=head.base_seq, epoch=0, revision=0, session=session.id)
    added = yield "add_branch", rows.of_branch(fresh)
    yield "add_session", rows.of_session(fresh, session)
    return structs.replace(fresh, base_number=added[0][0])


def _find_branch(owner: str, branch: str) -> Transaction[Head | None]:
    found = yield "get_head", {"owner": owner, "branch": branch}
    return rows.to_head(found[0]) if found else None


def _belonging(head: Head | None, conversation: str) -> Head:
    if head is None or head.conversation != conversation:
        raise NotFound("There is no such branch.")
    return head
