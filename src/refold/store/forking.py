"""What a fork takes over as its own.

One idea: a fork shares messages, which never change, and copies how they are shown, which does: what is undone or done again
on its base afterwards is none of its business.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from refold.ports.store import Change, Compaction, Head, Written

REASON = "a fork begins"


def copied(shown: Compaction, written: Written | None, head: Head) -> Change:
    """The change in effect on the base, as the one that opened the first session of a fork."""
    name = f"fork-{head.branch}"
    change = structs.replace(
        shown, id=name, branch=head.branch, number=0, kind="reduce", session=head.session, reason=REASON,
        holder="", until=0.0, attempts=0, error="",
    )  # fmt: skip
    return Change(change, structs.replace(written, id=name) if written else None)


def taken_back(raw: Iterable[int], head: Head) -> list[Compaction]:
    """Messages of the base that a fork shows as they came, as changes of its own."""
    return [
        Compaction(
            id=f"fork-{head.branch}-{seq}", branch=head.branch, kind="arrival", state="undone",
            base=head.session, cut=seq, size=seq + 1, reason=REASON,
        )
        for seq in sorted({seq for seq in raw if seq < head.base_seq})
    ]  # fmt: skip
