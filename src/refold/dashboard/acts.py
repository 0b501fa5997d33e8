"""The acts of a user on one conversation: preview, compact, undo, rerun, pins, a new session, the switch, and deletion.

Every act is a POST with the token of its page, calls the engine, and ends with a redirect to the page that shows its result.
"""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

from refold.config import policy_of
from refold.dashboard.app import CONVERSATION, Redirect, RenderedPage, Visit, conversation_url
from refold.dashboard.conversation import message_text
from refold.dashboard.workspace import NO_MODEL, Workspace
from refold.engine.arguments import check_focus
from refold.engine.conversation import Conversation
from refold.engine.history import Fate, change_to_undo, changes_between, last_change
from refold.engine.recall import newest_replies
from refold.engine.status import Preview
from refold.model.errors import MAX_TOKENS, ConfigError, InvalidWindow, NotFound
from refold.plugins.registry import active
from refold.ports.records import Compaction, read_stored
from refold.text_work import run_text_work

MOST_LISTED = 200
"""Messages in the list of a preview; the numbers count all of them."""


def _tokens(text: str) -> int | None:
    """A number of tokens as it is typed.

    Raises:
        ConfigError: it is none.
    """
    from refold.config.parse import Unreadable, read_tokens

    if not text.strip():
        return None
    try:
        return read_tokens(text.strip(), 0, MAX_TOKENS)
    except Unreadable as error:
        raise ConfigError(f"keep: {error.what}", hint=error.hint) from None


def _preset(name: str) -> str:
    if name and name not in active().presets:
        raise ConfigError("there is no such preset", hint=f"choose from: {', '.join(active().presets)}")
    return name


async def compact_form(visit: Visit) -> RenderedPage | Redirect:
    """The forms of all acts. The preview is another view, which the page loads by itself: it takes longer."""
    workspace, keep, preset = await _asked(visit)
    talk = await workspace.open(visit.name, visit.branch, preset=preset)
    last = await change_to_undo(talk.journal)
    again = await last_change(talk.journal, "summarise")
    data = {
        "name": talk.id,
        "branch": talk.branch,
        "keep": keep,
        "preset": preset,
        "status": await talk.status(),
        "last": _change(last),
        "again": _change(again),
        "off": talk.id in await workspace.engine.switched_off(),
    }
    page = {
        "presets": active().presets,
        "own_preset": workspace.resolved.settings.compaction.preset,
        "writers": workspace.writers(),
        "digest": NO_MODEL,
    }
    return RenderedPage("compact.html", data, f"Compact {talk.id}", page=page)


def _change(one: Compaction | None) -> dict[str, object] | None:
    """A change that an act would take back or make again."""
    fields = ("id", "kind", "reason", "before", "after", "at")
    return None if one is None else {field: getattr(one, field) for field in fields}


async def preview(visit: Visit) -> RenderedPage | Redirect:
    """What a compaction would do now, by the preset and the amount of the query. Nothing is changed."""
    workspace, keep, preset = await _asked(visit)
    talk = await workspace.open(visit.name, visit.branch, preset=preset)
    found = await talk.preview(keep=keep)
    size = sum(entry.message.characters for entry in found.difference.before.shown)
    status, instructions = await talk.status(), talk.measurement.instructions.tokens
    data = {
        "name": talk.id,
        "branch": talk.branch,
        "keep": keep,
        "preset": preset,
        "status": status,
        "preview": await run_text_work(size, _preview, found, status.tokens, instructions),
    }
    return RenderedPage("preview.html", data, f"Preview {talk.id}")


async def _asked(visit: Visit) -> tuple[Workspace, int | None, str]:
    query = visit.query
    return await visit.workspace(), _tokens(query.get("keep", "")), _preset(query.get("preset", ""))


def _preview(preview: Preview, tokens: int, instructions: int) -> dict[str, object]:
    """The effect of a compaction, and the fate of every message that is shown now. The sizes are those of requests, instructions
    included: `tokens` is the one of now, and the others are our counts in proportion to it.
    """
    factor = tokens / max(1, instructions + preview.before)
    difference = preview.difference
    changes = changes_between(difference.before, difference.after, difference.receipts)
    changed = [one for one in changes if one.fate != "kept"]
    rows = [
        {
            "handle": one.handle,
            "role": one.role,
            "fate": one.fate,
            "before": round(one.before * factor),
            "after": round(one.after * factor),
            "text": message_text(one.original)[:200],
        }
        for one in changed[:MOST_LISTED]
    ]
    receipt = preview.receipt
    return {
        "before": tokens,
        "after": round((instructions + preview.after) * factor),
        "reason": receipt.reason if receipt else "",
        "fates": {fate: sum(one.fate == fate for one in changes) for fate in get_args(Fate)},
        "messages": rows,
    }


async def compact(visit: Visit) -> RenderedPage | Redirect:
    workspace, form = await visit.workspace(), visit.form
    keep, focus, preset = (
        _tokens(form.get("keep", "")),
        form.get("focus", "").strip(),
        _preset(form.get("preset", "")),
    )
    check_focus(focus)
    talk = await workspace.open(visit.name, visit.branch, preset=preset)
    talk.summariser = (await workspace.writer(talk, form.get("model", ""))).summariser
    before = (await talk.status()).tokens
    with suppress(InvalidWindow):  # the compaction is done even if no call can follow yet
        await talk.compact(keep=keep, focus=focus)
    done = "compacted" if (await talk.status()).tokens < before else "unchanged"
    return Redirect(conversation_url(talk.id, branch=visit.branch, done=done))


async def undo(visit: Visit) -> RenderedPage | Redirect:
    talk = await (await visit.workspace()).open(visit.name, visit.branch)
    done = "undone" if await talk.undo() else "nothing-to-undo"
    return Redirect(conversation_url(talk.id, branch=visit.branch, done=done))


async def rerun(visit: Visit) -> RenderedPage | Redirect:
    workspace, preset = await visit.workspace(), _preset(visit.form.get("preset", ""))
    talk = await workspace.open(visit.name, visit.branch)
    policy = policy_of(workspace.resolved.settings, preset=preset) if preset else None
    writer = await workspace.writer(talk, visit.form.get("model", ""))
    done = "rerun" if await talk.rerun(policy=policy, summariser=writer.summariser) else "nothing-to-rerun"
    return Redirect(conversation_url(talk.id, branch=visit.branch, done=done))


async def new_session(visit: Visit) -> RenderedPage | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    talk.summariser = (await workspace.writer(talk)).summariser
    await talk.start_session()
    return Redirect(conversation_url(talk.id, branch=visit.branch, done="session"))


def _on(visit: Visit) -> bool:
    """
    Raises:
        ConfigError: the form says neither on nor off.
    """
    found = visit.form.get("on", "")
    if found not in ("0", "1"):
        raise ConfigError("on must be 0 or 1", hint="use the page itself")
    return found == "1"


async def switch(visit: Visit) -> RenderedPage | Redirect:
    workspace, on = await visit.workspace(), _on(visit)
    talk = await workspace.open(visit.name, visit.branch)
    await workspace.switch(talk.id, on=on)
    return Redirect(conversation_url(talk.id, branch=visit.branch, done="on" if on else "off"))


async def pins(visit: Visit) -> RenderedPage | Redirect:
    """The messages that compaction keeps in the window."""
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    handles = await talk.pins()
    rows = [await _pin(workspace, talk, one) for one in handles]
    return RenderedPage(
        "pins.html", {"name": talk.id, "branch": talk.branch, "pins": rows}, f"Pins of {talk.id}"
    )


async def _pin(workspace: Workspace, talk: Conversation, handle: str) -> dict[str, object]:
    for stored in await workspace.engine.store.pick(talk.journal.head, [int(handle[2:])]):
        message = read_stored(stored, talk.journal.head)
        text = message_text(message)[:200] if message else ""
        return {"handle": handle, "role": stored.role, "tokens": stored.tokens, "text": text}
    return {"handle": handle, "role": "", "tokens": 0, "text": ""}


async def change_pin(visit: Visit) -> RenderedPage | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    handle, on = visit.form.get("handle", "").strip(), _on(visit)
    await (talk.pin(handle) if on else talk.unpin(handle))
    workspace.note_change(talk.id)
    return Redirect(
        conversation_url(talk.id, "pins", branch=visit.branch, done="pinned" if on else "unpinned")
    )


async def delete_form(visit: Visit) -> RenderedPage | Redirect:
    return await _delete_form(visit)


async def _delete_form(visit: Visit, problem: str = "") -> RenderedPage:
    engine = (await visit.workspace()).engine
    await visit.head()  # raises if there is none
    outline = await engine.store.outline(engine.owner, visit.name)
    replies = await newest_replies(engine.store, outline.heads)
    data = {
        "name": visit.name,
        "messages": sum(one.next_seq - one.base_seq for one in outline.heads)
        + sum(map(len, replies.values())),
        "branches": len(outline.heads),
        "sessions": len(outline.sessions),
        "problem": problem,
    }
    return RenderedPage("delete.html", data, f"Delete {visit.name}", 400 if problem else 200)


async def delete(visit: Visit) -> RenderedPage | Redirect:
    """Delete the conversation if its name was typed: a click alone must not be enough."""
    if visit.form.get("confirm", "") != visit.name:
        return await _delete_form(
            visit, "the name is not the one of this conversation, so nothing was deleted"
        )
    workspace = await visit.workspace()
    if not await workspace.engine.delete(visit.name):
        raise NotFound("there is no such conversation", hint="see the list of conversations")
    workspace.note_change(visit.name)
    return Redirect("/?done=deleted")


VIEWS = (
    (f"{CONVERSATION}/compact", compact_form, "GET"),
    (f"{CONVERSATION}/compact", compact, "POST"),
    (f"{CONVERSATION}/preview", preview, "GET"),
    (f"{CONVERSATION}/undo", undo, "POST"),
    (f"{CONVERSATION}/rerun", rerun, "POST"),
    (f"{CONVERSATION}/new", new_session, "POST"),
    (f"{CONVERSATION}/switch", switch, "POST"),
    (f"{CONVERSATION}/pins", pins, "GET"),
    (f"{CONVERSATION}/pins", change_pin, "POST"),
    (f"{CONVERSATION}/delete", delete_form, "GET"),
    (f"{CONVERSATION}/delete", delete, "POST"),
)
