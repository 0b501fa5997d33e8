"""The routes of the page, and everything that all views share.

A view is a function from a `Visit` to a `RenderedPage` page or a `Redirect`. The same data fills its template and is its `.json` twin.
Before a view runs, the visitor must be signed in where there are keys, and an act must carry the token of its page. Every answer has
the same strict headers: no script, style or image but our own files, no frame, no form to another site.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from refold.dashboard import text
from refold.dashboard.browser_access import BrowserSession, BrowserSessions, cookie_in, session_cookie
from refold.dashboard.workspace import PageBackend, Workspace
from refold.model.errors import (
    AccessError,
    BodyTooLarge,
    ConfigError,
    Conflict,
    KeyRefused,
    NotFound,
    RefoldError,
    SettingError,
    StoreError,
    WireError,
)
from refold.svg import window_bar

if TYPE_CHECKING:
    from refold.dashboard.replay_jobs import ReplayJobs
    from refold.ports.records import Head

_log = logging.getLogger("refold.dashboard")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
PRIVATE = {**HEADERS, "cache-control": "no-store"}
FOR_EVER = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
"""A static file, by an address that has the digest of its content."""
REVALIDATED = {**HEADERS, "cache-control": "no-cache"}
"""A static file by an address without its digest, under which another version may have another content."""
MAX_FORM = 64 * 1024
"""Bytes of a form: settings and names are short."""
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (KeyRefused, 401),
    (AccessError, 403),
    (NotFound, 404),
    (Conflict, 409),
    (BodyTooLarge, 413),
    (ConfigError, 400),
    (WireError, 400),
    (StoreError, 503),
    (RefoldError, 502),
)
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
THEMES = ("light", "dark")
LIST_HINT = "see the list of conversations"
NUL = "the text has a NUL character, which no text here may have"

# Addresses of conversations: a name is one part of a path. `~` escapes what would be read as something else there.
CONVERSATION = "/conversations/{name}"
_ESCAPES = {"~": "~0", "/": "~1", "\\": "~3"}
_UNESCAPE = re.compile(r"~([0123])")
_MEANT = {"0": "~", "1": "/", "2": ".", "3": "\\"}


def conversation_url(name: str, *rest: str, **query: object) -> str:
    """The address of a conversation's page, or of one below it. Arguments of the query that are empty are left out."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in name)
    if not escaped.strip(".") or escaped.endswith(".json"):  # these would be another path, or a twin
        escaped = "~2".join(escaped.rsplit(".", 1))
    path = "/".join(["/conversations", quote(escaped, safe="~"), *rest])
    return with_query(path, **query)


def with_query(path: str, /, **query: object) -> str:
    asked = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(asked)}" if asked else path


def name_in(part: str) -> str:
    """The name of the conversation that a part of a path means."""
    return _UNESCAPE.sub(lambda found: _MEANT[found[1]], part)


class Visit(Struct, frozen=True):
    """One request for a view, after the gate."""

    request: Request
    owner: str
    admin: bool
    key_id: str
    session: BrowserSession | None
    token: str
    backend: PageBackend
    sessions: BrowserSessions
    replays: ReplayJobs
    form: Mapping[str, str] = {}
    """The fields of an act, without its token."""

    @property
    def now(self) -> float:
        return time.time()

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def path(self) -> str:
        """The path of the address, quoted: `Request.url` ends it at a `?` or `#` in the name of a conversation."""
        return quote(self.request.scope["path"], safe="/~")

    @property
    def name(self) -> str:
        """The conversation that the path names."""
        return name_in(self.request.path_params["name"])

    @property
    def branch(self) -> str:
        return self.query.get("branch", "")

    async def workspace(self) -> Workspace:
        return await self.backend.workspace(self.owner)

    async def head(self, branch: str = "") -> Head:
        """The branch of the conversation; by default the one that was used last.

        Raises:
            NotFound: there is none.
        """
        engine = (await self.workspace()).engine
        head = await engine.store.head(engine.owner, self.name, branch)
        if head is None:
            raise NotFound("there is no such conversation", hint=LIST_HINT)
        return head

    def count(self, field: str, default: int, most: int) -> int:
        """A number of the query.

        Raises:
            ConfigError: it is no number, or out of range.
        """
        text_ = self.query.get(field, "")
        if not text_:
            return default
        if not (text_.isascii() and text_.isdigit() and len(text_) < 12 and 1 <= int(text_) <= most):
            raise ConfigError(f"{field} must be a number", hint=f"1 to {most:,}")
        return int(text_)


class RenderedPage(Struct, frozen=True):
    """The answer of a view: a template and its data, which is also the `.json` twin."""

    template: str
    data: dict[str, Any]
    title: str = ""
    status: int = 200
    page: dict[str, Any] = {}
    """Values for the template alone, such as drawings."""


class Redirect(Struct, frozen=True):
    """The answer of an act: the page that shows its result."""

    url: str
    headers: dict[str, str] = {}


ViewFunction: TypeAlias = Callable[[Visit], Awaitable[RenderedPage | Redirect]]


def _target(text: str) -> str:
    """The page to go on with: a path of ours, and never another host."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_path else "/"


async def show_sign_in(visit: Visit) -> RenderedPage | Redirect:
    if visit.owner:
        return Redirect(_target(visit.query.get("next", "")))
    return RenderedPage(
        "sign_in.html", {"next": _target(visit.query.get("next", "")), "problem": ""}, "Sign in"
    )


async def sign_in(visit: Visit) -> RenderedPage | Redirect:
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


async def sign_out(visit: Visit) -> RenderedPage | Redirect:
    if visit.session is not None:
        await visit.sessions.end(visit.session)
    return Redirect(
        "/sign-in?done=signed-out", {"set-cookie": session_cookie("", is_secure=_is_secure(visit))}
    )


def _is_secure(visit: Visit) -> bool:
    """True if the browser's connection is encrypted, here or by the proxy before us."""
    request = visit.request
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https"


SIGN_IN_VIEWS = (
    ("/sign-in", show_sign_in, "GET"),
    ("/sign-in", sign_in, "POST"),
    ("/sign-out", sign_out, "POST"),
)
"""The pages for visitors without a session."""


class Dashboard:
    """The page of one place."""

    def __init__(self, backend: PageBackend, sessions: BrowserSessions) -> None:
        from refold.dashboard.replay_jobs import ReplayJobs

        self.backend, self.sessions, self.replays = backend, sessions, ReplayJobs()

    def routes(self) -> list[Route]:
        from refold.dashboard import acts, conversation, home, operations, replay_jobs

        made = [Route("/static/{file}", self._static), Route("/live", _Live(self.backend, self.sessions))]
        for path, view, *methods in SIGN_IN_VIEWS:
            made += self._paths(path, view, methods, is_public=True)
        for module in (home, operations, acts, replay_jobs, conversation):
            for path, view, *methods in module.VIEWS:
                made += self._paths(path, view, methods or ["GET"], is_public=False)
        return made

    def _paths(self, path: str, view: ViewFunction, methods: list[str], *, is_public: bool) -> list[Route]:
        twin = "/index.json" if path == "/" else f"{path}.json"
        found = [Route(path, _Page(self, view, is_public=is_public), methods=methods)]
        if "GET" in methods and not is_public:
            found.insert(0, Route(twin, _Page(self, view, as_json=True), methods=["GET"]))
        return found

    async def _static(self, request: Request) -> Response:
        found = self.files.get(request.path_params["file"])
        if found is None:
            return Response("there is no such file\n", 404, PRIVATE, "text/plain")
        body, kind, digest = found
        headers = FOR_EVER if request.query_params.get("v") == digest else REVALIDATED
        return Response(body, headers={**headers, "content-type": kind})

    @cached_property
    def files(self) -> dict[str, tuple[bytes, str, str]]:
        """The static files by name: their content, type and digest."""
        found = {}
        own = files("refold.dashboard").joinpath("static").iterdir()
        for one in (*own, files("refold").joinpath("svg.css")):
            kind = TYPES.get(one.name.rpartition(".")[2])
            if kind is not None:
                body = one.read_bytes()
                found[one.name] = body, kind, sha256(body).hexdigest()[:12]
        return found

    def static_url(self, name: str) -> str:
        return f"/static/{name}?v={self.files[name][2]}"

    @cached_property
    def templates(self) -> Environment:
        made = Environment(
            loader=PackageLoader("refold.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.filters |= text.FILTERS
        made.globals |= {
            "static": self.static_url,
            "conversation_url": conversation_url,
            "window_bar": window_bar,
            "with_query": with_query,
            "version": self.backend.version,
            "events": " ".join(self.backend.events),
        }
        return made

    def render(self, visit: Visit, found: RenderedPage, *, as_json: bool) -> Response:
        if as_json:
            body = msgspec.json.encode(found.data, enc_hook=str)
            return Response(body, found.status, PRIVATE, "application/json")
        theme = cookie_in(visit.request.scope["headers"], "theme")
        path, query = visit.path, {**visit.query}
        if branch := found.page.get("link_branch"):
            query["branch"] = branch  # the twin shows the same branch, also after a fork
        html = self.templates.get_template(found.template).render(
            **found.data,
            **found.page,
            visit=visit,
            title=found.title,
            path=path,
            now=visit.now,
            theme=theme if theme in THEMES else "",
            twin=with_query("/index.json" if path == "/" else f"{path}.json", **query),
            notice=_known_notice(visit),
        )
        return Response(html, found.status, PRIVATE, "text/html; charset=utf-8")


NOTICES = {
    "compacted": "The conversation was compacted.",
    "unchanged": "Nothing was changed: a compaction would not make it smaller.",
    "undone": "The last compaction was undone.",
    "nothing-to-undo": "There is no compaction of this session to undo.",
    "rerun": "The last compaction was made again.",
    "nothing-to-rerun": "There is no compaction of this session to make again.",
    "pinned": "The message is pinned: compaction keeps it in the window.",
    "unpinned": "The message is no longer pinned.",
    "session": "A new session has begun with an empty window. The closed one can be resumed.",
    "deleted": "The conversation was deleted.",
    "saved": "The settings were changed.",
    "off": "The conversation is off: its requests are passed on unchanged.",
    "on": "The conversation is on again.",
    "forgotten": "The learned window was forgotten.",
    "signed-out": "You are signed out.",
}
"""What the address of a page says about an act before it: a word, so that nobody can make the page say other things."""


def _known_notice(visit: Visit) -> str:
    return NOTICES.get(visit.query.get("done", ""), "")


class _Page:
    """One route as plain ASGI: the gate, the view, and its answer or the page of an error."""

    def __init__(
        self, dashboard: Dashboard, view: ViewFunction, *, is_public: bool = False, as_json: bool = False
    ) -> None:
        self._dashboard, self._view, self._is_public, self._as_json = dashboard, view, is_public, as_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        visit = self._visit(request)
        try:
            response = await self._answer(visit)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  # every failure gets a page
            response = self._problem(visit, error)
        await response(scope, receive, send)

    def _visit(self, request: Request) -> Visit:
        state, sessions = request.scope.get("state", {}), self._dashboard.sessions
        session = state.get("browser")
        return Visit(
            request,
            state.get("owner", ""),
            state.get("admin", False),
            state.get("key_id", ""),
            session,
            session.token if session else sessions.token,
            self._dashboard.backend,
            sessions,
            self._dashboard.replays,
        )

    async def _answer(self, visit: Visit) -> Response:
        request = visit.request
        asked = request.scope["query_string"].decode("latin-1")
        if not (visit.owner or self._is_public):
            if self._as_json or request.method not in ("GET", "HEAD"):
                raise KeyRefused("this page needs a key", hint="sign in at /sign-in")
            target = "" if visit.path == "/" else f"{visit.path}?{asked}" if asked else visit.path
            return RedirectResponse(with_query("/sign-in", next=target), 303, PRIVATE)
        if "\0" in request.scope["path"] or "\0" in visit.branch:
            raise NotFound("there is nothing with this name", hint=LIST_HINT)
        if "\0" in unquote(asked):
            raise ConfigError(NUL, hint="leave it out")
        if request.method == "POST":
            form = await read_form(request)
            visit.sessions.check_act(request.scope, visit.session, form.pop("token", ""))
            if any("\0" in value for value in form.values()):
                raise ConfigError(NUL, hint="leave it out")
            visit = msgspec.structs.replace(visit, form=form)
        found = await self._view(visit)
        if isinstance(found, Redirect):
            return RedirectResponse(found.url, 303, {**PRIVATE, **found.headers})
        return self._dashboard.render(visit, found, as_json=self._as_json)

    def _problem(self, visit: Visit, error: Exception) -> Response:
        if not isinstance(error, RefoldError):
            where = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("a page failed: %s at %s:%s", type(error).__name__, where.name, where.lineno)
        if isinstance(error, StoreError) and status_of(error) >= 500:
            _log.error("the store failed: %s", error.located)
        status = status_of(error)
        is_known = isinstance(error, RefoldError)
        message = error.message if isinstance(error, RefoldError) else "the page could not be made"
        hint = error.hint if isinstance(error, RefoldError) else "the log says more"
        if isinstance(error, SettingError):
            message = str(error).partition("\nhint:")[0]
        if isinstance(error, NotFound) and re.search(r"`refold |/refold/", hint or ""):
            hint = LIST_HINT  # the engine and the gateway name a command, or a path of the API
        data = {"error": {"message": message, "hint": hint, "status": status, "is_known": is_known}}
        return self._dashboard.render(
            visit, RenderedPage("error.html", data, "Problem", status), as_json=self._as_json
        )


class _Live:
    """The event stream, for a visitor who may see the page. It ends with the browser's session."""

    def __init__(self, backend: PageBackend, sessions: BrowserSessions) -> None:
        self._backend, self._sessions = backend, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["state"].get("owner"):
            await Response("sign in first\n", 401, PRIVATE, "text/plain")(scope, receive, send)
            return
        session = scope["state"].get("browser")
        if session is None:
            await self._backend.stream(scope, receive, send)
            return
        ended = asyncio.ensure_future(self._sessions.wait_for_end(session))

        async def receive_or_end() -> Message:
            """To the stream, the end of the session is the end of the connection."""
            asked = asyncio.ensure_future(receive())
            try:
                await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
                return asked.result() if asked.done() else {"type": "http.disconnect"}
            finally:
                asked.cancel()

        async def send_while_open(message: Message) -> None:
            if not message.get("body") or not ended.done():
                await send(message)

        try:
            await self._backend.stream(scope, receive_or_end, send_while_open)
        finally:
            ended.cancel()


def status_of(error: Exception) -> int:
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, each once.

    Raises:
        BodyTooLarge: it is longer than any form of the page.
        WireError: the body is no form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise WireError("the body is not a form of this page", hint="use the page itself")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            raise BodyTooLarge("the form is too long", hint=f"at most {MAX_FORM:,} bytes")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=500, errors="strict")
    except ValueError:
        raise WireError("the body is not a form of this page", hint="use the page itself") from None
    return dict(pairs)
