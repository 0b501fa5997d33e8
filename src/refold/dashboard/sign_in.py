"""Sign-in with a key, and sign-out."""

from __future__ import annotations

from refold.dashboard.app import Redirect, RenderedPage, Visit
from refold.dashboard.browser_access import session_cookie
from refold.model.errors import KeyRefused


def _target(text: str) -> str:
    """The page to go on with: a path of ours, and never another host."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_path else "/"


async def show(visit: Visit) -> RenderedPage | Redirect:
    if visit.owner:
        return Redirect(_target(visit.query.get("next", "")))
    return RenderedPage(
        "sign_in.html", {"next": _target(visit.query.get("next", "")), "problem": ""}, "Sign in"
    )


async def begin(visit: Visit) -> RenderedPage | Redirect:
    """Sign in. The form has a token of the store, so that no other site can sign a browser in as somebody else."""
    target = _target(visit.form.get("next", ""))
    try:
        key = await visit.backend.verify(visit.form.get("key", "").strip())
    except KeyRefused as error:
        data = {"next": target, "problem": error.message}
        return RenderedPage("sign_in.html", data, "Sign in", status=401)
    if visit.session is not None:
        await visit.sessions.end(visit.session)
    which = await visit.sessions.begin(key)
    return Redirect(target, {"set-cookie": session_cookie(which, is_secure=_is_secure(visit))})


async def end(visit: Visit) -> RenderedPage | Redirect:
    if visit.session is not None:
        await visit.sessions.end(visit.session)
    return Redirect(
        "/sign-in?done=signed-out", {"set-cookie": session_cookie("", is_secure=_is_secure(visit))}
    )


def _is_secure(visit: Visit) -> bool:
    """True if the browser's connection is encrypted, here or by the proxy before us."""
    request = visit.request
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https"


VIEWS = (("/sign-in", show, "GET"), ("/sign-in", begin, "POST"), ("/sign-out", end, "POST"))
