"""The settings with their origin and range, and the operations of the place for an admin: without names and texts of conversations."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from refold.config.formats import plain_default, toml, values_of
from refold.config.layers import DEFAULT, ValueOrigin
from refold.config.parse import ELSEWHERE, Unreadable, expected, read, shown
from refold.config.resolution import FIXED
from refold.config.tree import SettingKey, find_key
from refold.dashboard.app import Redirect, RenderedPage, Visit
from refold.engine.effect import first_day, stats_of
from refold.model.errors import AccessError, ConfigError, SettingError
from refold.model.tokens import Share, Tokens
from refold.plugins.registry import active

PRESET = "compaction.preset"


class SettingLine(Struct, frozen=True):
    """One setting as the page shows it."""

    name: str
    value: Any
    text: str
    """The value as it is typed."""
    default: str
    origin: str
    takes: str
    what: str
    choices: tuple[str, ...] = ()
    """The words that it takes, if these are all."""
    is_default: bool = False
    is_tunable: bool = False
    is_fixed: bool = False
    """A flag or a variable sets it: it cannot be changed here."""
    is_changed: bool = False
    """It was changed while the gateway runs; the change can be undone."""


async def settings(visit: Visit) -> RenderedPage | Redirect:
    return await _settings(visit)


async def _settings(visit: Visit, problem: SettingError | None = None, typed: str = "") -> RenderedPage:
    workspace = await visit.workspace()
    sections: dict[str, list[SettingLine]] = {}
    for name, value, origin in values_of(workspace.resolved, for_admin=visit.admin):
        key = find_key(name)
        if key is not None:
            sections.setdefault(name.rpartition(".")[0], []).append(_line(name, key, value, origin))
    # What can be changed here comes first.
    order = sorted(sections, key=lambda name: not any(one.is_tunable for one in sections[name]))
    data = {
        "sections": {name: sections[name] for name in order},
        "limits": [
            {**to_builtins(one), "until": one.until} for one in await workspace.engine.learned_windows()
        ],
        "problem": None
        if problem is None
        else {"key": problem.key, "message": str(problem).partition("\nhint:")[0], "hint": problem.hint},
    }
    page = {"typed": typed}
    return RenderedPage("settings.html", data, "Settings", 200 if problem is None else 400, page)


def _line(name: str, key: SettingKey, value: Any, origin: ValueOrigin) -> SettingLine:
    choices = ("true", "false") if key.kind == "switch" else key.choices
    if name == PRESET:
        choices = tuple(active().presets)
    elif choices and key.is_optional:
        choices = (*choices, ELSEWHERE)
    return SettingLine(
        name,
        value,
        _typed(value),
        key.unset or _typed(plain_default(key)),
        str(origin),
        expected(key),
        key.what,
        choices,
        origin == DEFAULT,
        key.is_tunable,
        origin.source in FIXED,
        origin.source == "runtime",
    )


def _typed(value: Any) -> str:
    """A value as the form takes it."""
    match value:
        case None:
            return ELSEWHERE
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{name}={one}" for name, one in value.items())
        case str():
            return value
    return toml(value)


def _raw(name: str, text: str) -> object:
    """A typed text as a value for the settings.

    Raises:
        SettingError: the setting does not take it.
    """
    key = find_key(name)
    if key is None:
        raise SettingError(name[:80], "there is no such setting", hint="this page lists every setting")
    try:
        value = read(key, text, is_text=True)
    except Unreadable as error:
        raise SettingError(name, error.what, hint=error.hint) from None
    if value is None:
        return ELSEWHERE
    return shown(value) if isinstance(value, Tokens | Share) else to_builtins(value)


async def change(visit: Visit) -> RenderedPage | Redirect:
    """Change one setting, or undo its change."""
    workspace, name = await visit.workspace(), visit.form.get("name", "")
    text, is_undone = visit.form.get("value", "").strip(), "reset" in visit.form
    try:
        await workspace.change_settings({name: None if is_undone else _raw(name, text)})
    except SettingError as error:
        if is_undone and error.key != name:
            hint = f"undo the change of {error.key} first, which needs the value of {name} that is undone"
            error = SettingError(error.key, error.what, place=error.place, hint=hint)
        return await _settings(visit, error, text)
    return Redirect(f"/settings?done=saved#{name}")


async def forget(visit: Visit) -> RenderedPage | Redirect:
    """Forget a window that was learnt from a refusal."""
    if not await (await visit.workspace()).engine.forget_window(visit.form.get("model", "")):
        raise ConfigError("no window was learnt for this model", hint="it may have run out meanwhile")
    return Redirect("/settings?done=forgotten#limits")


async def operations(visit: Visit) -> RenderedPage | Redirect:
    """The state of the place, and the figures of all owners without their conversations; for an admin."""
    if not visit.admin:
        raise AccessError("operations are for an admin", hint="use an admin key (refold keys create --admin)")
    workspace, days = await visit.workspace(), visit.count("days", 30, 10_000)
    store, now = workspace.engine.store, visit.now
    owners, first = await store.owners(), first_day(now, days)
    by_owner = await stats_of(store, owners, by="owner", first=first)
    by_upstream = await stats_of(store, owners, by="upstream", first=first)
    keys = [
        {"id": key.id, "owner": owner, "name": key.name, "admin": key.admin, "at": key.at, "revoked_at": key.revoked_at}
        for owner in owners
        for key in await store.keys(owner)
    ]  # fmt: skip
    data = {
        "days": days,
        "operations": await visit.backend.operations(),
        "total": by_owner.total.document(),
        "owners": [one.document() for one in by_owner.groups],
        "upstreams": [one.document() for one in by_upstream.groups],
        "compactions": by_owner.compactions,
        "keys": keys,
    }
    return RenderedPage("operations.html", data, "Operations")


VIEWS = (
    ("/settings", settings, "GET"),
    ("/settings", change, "POST"),
    ("/settings/forget", forget, "POST"),
    ("/operations", operations, "GET"),
)
