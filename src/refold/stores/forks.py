"""The compactions that a fork copies from its base.

A fork shares the messages of its base, which never change. It copies the compaction in effect, so that a later compaction or undo on
the base does not affect the fork.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from refold.ports.records import Compaction, Head, InstalledCompaction, StoredSummary

REASON = "a fork begins"


def copied_compaction(shown: Compaction, written: StoredSummary | None, head: Head) -> InstalledCompaction:
    """The change in effect on the base, as the one that opened the first session of a fork."""
    name = f"fork-{head.branch}"
    change = structs.replace(
        shown, id=name, branch=head.branch, number=0, kind="reduce", session=head.session, reason=REASON,
        holder="", until=0.0, attempts=0, error="",
    )  # fmt: skip
    return InstalledCompaction(change, structs.replace(written, id=name) if written else None)


def copied_raw_arrivals(raw: Iterable[int], head: Head) -> list[Compaction]:
    """For messages of the base that are shown in full again after they were shortened on arrival: the same changes for a fork."""
    return [
        Compaction(
            id=f"fork-{head.branch}-{seq}", branch=head.branch, kind="arrival", state="undone",
            base=head.session, cut=seq, size=seq + 1, reason=REASON,
        )
        for seq in sorted({seq for seq in raw if seq < head.base_seq})
    ]  # fmt: skip
