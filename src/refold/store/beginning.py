"""Begin conversations and branches, and find them.

One idea: a branch is begun together with its first session, so there is never a message without a range that holds it.
"""

from __future__ import annotations

from msgspec import structs

from refold.model.errors import NotFound
from refold.ports.store import Head, Session
from refold.store import rows
from refold.store.transactions import Transaction


def create(head: Head, session: Session, title: str, at: float) -> Transaction[Head]:
    found = yield from _find_branch(head.owner, head.branch)
    if found is not None:
        return _belonging(found, head.conversation)
    folded = f"{head.conversation}\n{title}".casefold()
    yield "add_owner", {"owner": head.owner, "at": at}
    yield (
        "add_conversation",
        {"owner": head.owner, "id": head.conversation, "title": title, "folded": folded, "at": at},
    )
    return (yield from _begin(structs.replace(head, base="", base_seq=0), session))


def fork(base: Head, at_seq: int, head: Head, session: Session) -> Transaction[Head]:
    trunk = yield from _find_branch(base.owner, base.branch)
    if not 0 <= at_seq <= _belonging(trunk, base.conversation).next_seq:
        raise NotFound("The branch has no such message to fork at.")
    fresh = structs.replace(
        head, owner=base.owner, conversation=base.conversation, base=base.branch, base_seq=at_seq
    )
    begun = yield from _begin(fresh, session)
    shared = {"owner": base.owner, "branch": head.branch, "base": base.branch, "base_seq": at_seq}
    yield "copy_pins", shared
    return begun


def head(owner: str, conversation: str, branch: str) -> Transaction[Head | None]:
    if not branch:
        found = yield "get_latest_head", {"owner": owner, "conversation": conversation}
        return rows.to_head(found[0]) if found else None
    named = yield from _find_branch(owner, branch)
    return named if named is not None and named.conversation == conversation else None


def _begin(head: Head, session: Session) -> Transaction[Head]:
    """A branch with nothing of its own yet."""
    fresh = structs.replace(head, next_seq=head.base_seq, epoch=0, session=session.id)
    yield "add_branch", rows.of_branch(fresh)
    yield "add_session", rows.of_session(fresh, session)
    return fresh


def _find_branch(owner: str, branch: str) -> Transaction[Head | None]:
    found = yield "get_head", {"owner": owner, "branch": branch}
    return rows.to_head(found[0]) if found else None


def _belonging(head: Head | None, conversation: str) -> Head:
    if head is None or head.conversation != conversation:
        raise NotFound("There is no such branch.")
    return head
