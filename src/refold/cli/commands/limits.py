"""`refold limits`: the windows that providers stated when they refused a request as too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from refold.cli import output
from refold.cli.options import JsonOption, StoreOptions, expanded
from refold.cli.output import align, plain, when
from refold.model.errors import NotFound

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.engine.journal import LearnedWindow


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold limits --forget my-model@box")(expanded(limits))


def limits(
    *,
    forget: Annotated[
        str,
        typer.Option(
            "--forget",
            metavar="MODEL",
            help="Forget the window of this model, by its name in the list.",
            show_default=False,
        ),
    ] = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """List the windows that were learnt from refusals, or forget one.

    When a provider refuses a request as too long and states its window, a smaller request is sent. Once that is
    answered, the stated window is used for every conversation with this model, instead of the one in the
    catalogue. A window from your settings or from the server's own report comes first. A learnt window is used
    for 7 days, and forgotten before that if a larger request is answered. Behind the gateway a model is listed
    with its upstream, as MODEL@UPSTREAM. A gateway that is running uses a forgotten window until it has opened
    the conversation anew.
    """
    from refold.cli import store_access

    async def show(engine: Engine) -> int:
        found = await engine.learned_windows()
        if as_json:
            output.write_json({"owner": place.owner, "limits": [_document(one) for one in found]})
        elif found:
            output.write(_table(found))
        if not found:
            output.note(f"no windows were learnt for the owner {plain(place.owner)!r}")
        return 0

    async def act(engine: Engine) -> int:
        if not await engine.forget_window(forget):
            raise NotFound(
                f"no window was learnt for {plain(forget)!r}", hint="`refold limits` lists the models"
            )
        if as_json:
            output.write_json({"model": forget, "forgotten": True})
        else:
            output.note(f"forgot the window of {plain(forget)}")
        return 0

    return store_access.change(place, act) if forget else store_access.look(place, show)


def _table(found: Sequence[LearnedWindow]) -> str:
    rows = [(f"{one.window:,}", when(one.at), when(one.until), plain(one.model)) for one in found]
    return align(("window", "learnt", "used until", "model"), rows, frozenset({"window"}), cuts=("model",))


def _document(one: LearnedWindow) -> dict[str, object]:
    """A learnt window for programs; its keys are documented and stay."""
    return {**structs.asdict(one), "until": one.until}
