"""The page of one conversation: what fills its window now."""

from __future__ import annotations

from refold.dashboard.app import Redirect, Rendered, Visit


async def overview(visit: Visit) -> Rendered | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    data = {"name": talk.id, "branch": talk.branch, "model": talk.model, "status": await talk.status()}
    return Rendered("conversation.html", data, talk.id)


VIEWS = (("/conversations/{name}", overview, "GET"),)
