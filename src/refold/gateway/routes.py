"""The web application: health, administration, and the calls of the providers, all behind `Access`.

Every path below `/v1/` belongs to the gateway, which passes on what it does not answer itself. Of the other paths those that are
declared here exist, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from refold.gateway.access import Access, Rules
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.errors import answer, shape_of
from refold.model.errors import NotFound, RefoldError


def build(gateway: Gateway, admin: Admin, rules: Rules, more: Sequence[Route | Mount] = ()) -> ASGIApp:
    """The application, behind the door."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        try:
            await asyncio.wait_for(gateway.store.owners(), 5.0)
        except (RefoldError, TimeoutError):
            return JSONResponse({"status": "the store cannot be reached"}, status_code=503)
        if waiting := len(gateway.backlog):
            return JSONResponse({"status": "not kept", "waiting": waiting}, status_code=503)
        return JSONResponse({"status": "ready"})

    routes = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        *admin.routes(),
        *more,
    ]
    app = Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})
    return Access(_Shortcut(gateway, app), gateway.store, rules)


class _Shortcut:
    """Calls go to the gateway at once: they are nearly all of the traffic, and need no routing."""

    def __init__(self, calls: ASGIApp, others: ASGIApp) -> None:
        self._calls, self._others = calls, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (self._calls if is_call else self._others)(scope, receive, send)


async def _missing(request: Request, _: Exception) -> Response:
    told = answer(
        NotFound("There is nothing at this path.", hint="see /refold/status"), shape_of(request.url.path)
    )
    return Response(told.body, told.status, dict(told.headers))
