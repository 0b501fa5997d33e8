"""`refold rerun`: does the last compaction of the open session again, with another preset or another model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from refold.cli import output
from refold.cli.options import (
    BranchId,
    Conv,
    JsonOption,
    Preset,
    ShowsDiff,
    SizeOptions,
    StoreOptions,
    SummariserOptions,
    expanded,
)

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Head

EXAMPLES = """\b
Examples:
  refold rerun support-42 --preset lis --diff
  refold rerun support-42 --summariser openai:gpt-4o-mini"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(rerun))


def rerun(
    conv: Conv,
    *,
    preset: Preset = "",
    summariser: SummariserOptions,
    sizes: SizeOptions,
    diff: ShowsDiff = False,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Do the last compaction of the open session again, on the same messages: by another preset or another model.

    The new compaction replaces the one before in one commit, when its summary is written. If the model fails or you stop it,
    the one before stays as it was; no message is changed in any case. The exit code is 1 if there is no compaction to do again.
    """
    from refold.cli import store_access
    from refold.cli.changes import ChangeReport, show_report
    from refold.cli.settings import policy_here

    policy = policy_here(preset)

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        async with store_access.opened(engine, head, sizes, summariser, policy=policy) as conversation:
            asked = await _count_questions(engine, head)
            found, made = await store_access.difference_made_by(
                conversation.rerun, engine, head, conversation
            )
            status = await conversation.status()
            is_stored = await _count_questions(engine, head) == asked
        if made or as_json:
            ids = tuple(one.id for one in made)
            report = ChangeReport(conv, found, status.limit, diff, ids, arithmetic=status.arithmetic)
            show_report(report, as_json=as_json)
        if not made:
            output.note(
                "no compaction of the open session can be done again\nhint: `refold compact` makes one; see `refold sessions`"
            )
        elif is_stored and status.summary.author in ("model", "native"):
            output.note(
                "no model was asked: the same model has summarised the same messages before, and its summary is used again"
            )
        return 0 if made else 1

    return store_access.change(place, act)


async def _count_questions(engine: Engine, head: Head) -> int:
    """How many questions for summaries of a conversation were answered so far."""
    calls = await engine.store.calls(engine.owner, head.conversation)
    return sum(one.kind == "summary" for one in calls)
