"""Asks upstreams for the windows that they run their models with.

A server on one's own machine sizes the window by its memory and its options, so only the server knows it.
vLLM and other servers state it in `/v1/models`, llama.cpp in `/props`, LM Studio in `/api/v0/models`, and
Ollama in `/api/ps` for a loaded model. The largest window that a model supports is never used. A report that
cannot be a window is ignored, with a warning: a server may report any number, or no number at all.

Every upstream except the well-known hosted providers is asked when the gateway starts, when a model is first
used, and then every ten minutes. Only the first request of a model waits for the answer, and not for long.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeGuard, TypeVar

import aiohttp
import msgspec
from msgspec import Raw, Struct

from refold.config.tree import MAX_TOKENS, MIN_WINDOW
from refold.engine.conversation import warn_once
from refold.gateway.upstreams import Credentials, Forwarder, Target, request_headers
from refold.model.errors import ConfigError
from refold.upstreams.provider import is_hosted

T = TypeVar("T")

WAIT_S = 0.5
"""Time that the first request of a model waits for the report: a server nearby answers in milliseconds."""
AGAIN_S = 600.0
"""Age at which a report is asked for again."""
UNANSWERED_S = 30.0
"""The same for an upstream that could not be reached or did not accept the key."""
PATIENCE_S = 10.0
"""Time for all questions to one upstream."""
MAX_REPORTS = 512
"""Reports that are held. Clients choose the models' names, so there may be any number of them."""
MAX_BYTES = 8 * 1024 * 1024
"""Size of one answer: the longest known list of models has a few thousand entries."""
OLLAMA_WINDOW = 4_096
"""Ollama's own default, used for a model that is not loaded and sets no `num_ctx`."""
ANY_MODEL = ""
"""The name under which a server reports that runs one model under every name."""


_RANGE = f"windows have {MIN_WINDOW:,} to {MAX_TOKENS:,} tokens"


class WindowReport(Struct, frozen=True):
    window: int | None
    """None if the upstream states no window."""
    until: float
    """When the upstream is asked again."""


class WindowReports:
    """The reports of all upstreams of a gateway, by upstream and model."""

    def __init__(self, forwarder: Forwarder, clock: Callable[[], float] = time.monotonic) -> None:
        self._forwarder, self._clock = forwarder, clock
        self._reports: OrderedDict[tuple[str, str], WindowReport] = OrderedDict()
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def begin(self, targets: Iterable[Target]) -> None:
        """Ask every upstream for all models that it lists, with the gateway's own key, without waiting."""
        for target in targets:
            if not is_hosted(target.url):
                self._begin(target, ANY_MODEL, Credentials((), "", target))

    async def close(self) -> None:
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def known(self, target: Target, model: str) -> int | None:
        """The window by the last report, without asking; None if there is none."""
        report = self._reports.get((target.name, model))
        return report.window if report else None

    async def window(self, target: Target, model: str, credentials: Credentials) -> int | None:
        """The window of a model at an upstream, by the upstream's own report; None if it gives none. The
        upstream is asked with the key of this request.
        """
        if not model or is_hosted(target.url):
            return None
        place = target.name, model
        report = self._reports.get(place)
        if report is None or self._clock() >= report.until:
            asking = self._asking.get(place) or self._begin(target, model, credentials)
            if report is None:
                await asyncio.wait({asking}, timeout=WAIT_S)
        return self.known(target, model)

    def _begin(self, target: Target, model: str, credentials: Credentials) -> asyncio.Task[None]:
        place = target.name, model
        task = asyncio.create_task(self._ask(target, model, credentials))
        self._asking[place] = task
        task.add_done_callback(lambda _: self._asking.pop(place, None))
        return task

    async def _ask(self, target: Target, model: str, credentials: Credentials) -> None:
        server = _Server(self._forwarder, target, credentials)
        found: Mapping[str, int] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = await server.windows(model)
        except (ConfigError, TimeoutError):
            server.is_answering = False
        if model:
            wait_s = AGAIN_S if server.is_answering else UNANSWERED_S
            window = found.get(model, found.get(ANY_MODEL))
            self._keep(target, model, window, 0.0 if server.is_assumed else wait_s)
            return
        for name, window in found.items():
            if name:
                self._keep(target, name, window, AGAIN_S)

    def _keep(self, target: Target, model: str, window: int | None, wait_s: float) -> None:
        place = target.name, model
        self._reports[place] = WindowReport(window, self._clock() + wait_s)
        self._reports.move_to_end(place)
        if len(self._reports) > MAX_REPORTS:
            self._reports.popitem(last=False)


class _ListedModel(Struct, frozen=True):
    """An entry of `/v1/models`, of LM Studio's `/api/v0/models` or of Ollama's `/api/ps`."""

    id: str = ""
    name: str = ""
    max_model_len: object = None
    context_length: object = None
    loaded_context_length: object = None

    @property
    def window(self) -> object:
        """The window that is reported, or a report that is no window; None if there is no report."""
        sizes = (self.max_model_len, self.loaded_context_length, self.context_length)
        return next(filter(_is_window, sizes), next((size for size in sizes if size is not None), None))


class _List(Struct, frozen=True):
    data: list[Raw] = []
    models: list[Raw] | None = None
    """Ollama's name for the list."""


class _Generation(Struct, frozen=True):
    n_ctx: object = None


class _Props(Struct, frozen=True):
    default_generation_settings: _Generation = _Generation()


class _Shown(Struct, frozen=True):
    parameters: str = ""


class _Server:
    """One upstream while it is asked."""

    def __init__(self, forwarder: Forwarder, target: Target, credentials: Credentials) -> None:
        self._forwarder, self._target, self._credentials = forwarder, target, credentials
        self._root = target.url.removesuffix("/v1")
        self.is_answering = True
        """False if an answer is missing, so that the report may be another one soon."""
        self.is_assumed = False
        """True if the window is one that the server would load the model with, and has not yet."""

    async def windows(self, model: str) -> Mapping[str, int]:
        """The windows by model, as far as the server reports them. `model` is the one that has to be known."""
        listed, props, loaded, running = await asyncio.gather(
            self._get(self._target.address("/v1/models"), _List),
            self._get(f"{self._root}/props", _Props),
            self._get(f"{self._root}/api/v0/models", _List),
            self._get(f"{self._root}/api/ps", _List),
        )
        ids = [*_entries(listed.data)] if listed else []
        found: dict[str, object] = {one.id: one.window for one in ids}
        if loaded:
            found |= {
                one.id: one.loaded_context_length
                for one in _entries(loaded.data)
                if not _is_window(found.get(one.id))
            }
        if running and running.models is not None:
            found |= await self._ollama(running.models, model)
        if props and (one_for_all := props.default_generation_settings.n_ctx) is not None:
            found |= {name: one_for_all for name, size in found.items() if not _is_window(size)}
            found[ANY_MODEL] = one_for_all
        if any(size is not None and not _is_window(size) for size in found.values()):
            warn_once(
                f"the upstream {self._target.name} reports a window that is none: it is ignored; {_RANGE}"
            )
        return {name: size for name, size in found.items() if _is_window(size)}

    async def _ollama(self, running: list[Raw], model: str) -> dict[str, object]:
        """The window of a loaded model, or the one that Ollama would load it with."""
        found = {_full_name(one.name): one.context_length for one in _entries(running)}
        window = found.get(_full_name(model))
        if not model or window is not None:
            return {**found, model: window}
        shown = await self._get(f"{self._root}/api/show", _Shown, msgspec.json.encode({"model": model}))
        self.is_assumed = shown is not None
        window = _num_ctx(shown.parameters) if shown else None
        return {model: OLLAMA_WINDOW if window is None else window} if shown else {}

    async def _get(self, address: str, kind: type[T], body: bytes | None = None) -> T | None:
        """An answer, read as `kind`; None if there is none. `body` is posted if it is given."""
        headers = await request_headers(self._target, self._credentials)
        headers["content-type"] = "application/json"
        method = "GET" if body is None else "POST"
        try:
            async with await self._forwarder.send(self._target, method, address, headers, body) as response:
                self.is_answering = self.is_answering and response.status not in (401, 403)
                content = await _read(response) if response.status == 200 else b""
            return msgspec.json.decode(content, type=kind) if content else None
        except (aiohttp.ClientError, OSError):
            self.is_answering = False
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer; empty if it is too long."""
    content = b""
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_BYTES:
            return b""
    return content


def _is_window(value: object) -> TypeGuard[int]:
    return type(value) is int and MIN_WINDOW <= value <= MAX_TOKENS  # `True` is no window


def _entries(raws: Iterable[Raw]) -> Iterator[_ListedModel]:
    """The readable entries of a list: one entry in another shape must not hide the others."""
    for raw in raws:
        try:
            yield msgspec.json.decode(raw, type=_ListedModel)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


def _full_name(name: str) -> str:
    """Ollama's full name of a model: without a tag, `latest` is meant."""
    return name if ":" in name else f"{name}:latest"


def _num_ctx(parameters: str) -> object:
    """The window among the parameters of an Ollama model, one to a line; None if it is not set."""
    for line in parameters.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "num_ctx":
            digits = value.strip()
            is_number = digits.isdecimal() and len(digits) <= len(str(MAX_TOKENS))
            return int(digits) if is_number else digits
    return None
