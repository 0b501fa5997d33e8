"""What `refold serve` does between its flags and the gateway.

One idea: a first run needs nothing. Where no upstream is named the gateway serves a model of its own beside the usual providers:
the small one on this machine or, where that is not installed, a script that says so and how to get the model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from refold.cli import output
from refold.cli.serving import Notice, Upstream, told
from refold.config import Layer, Resolved, completed, environment_layer, file_layers, resolve
from refold.config.layers import with_current_url
from refold.config.tree import UpstreamSettings as Wanted
from refold.local import serve_local, weights_path
from refold.local.server import WINDOW
from refold.model.errors import ConfigError, MissingExtra, RefoldError
from refold.model.mask import mask_model, mask_url, mask_variable
from refold.model.message import DialectName
from refold.store.place import kind_of, sqlite_file
from refold.text_work import is_text_worked_on

if TYPE_CHECKING:
    from refold.gateway.app import Gateway
    from refold.gateway.upstreams import Target
    from refold.testing import Received

_log = logging.getLogger("refold.gateway")
NEEDS = ("aiohttp", "starlette", "uvicorn")
"""What the extra `server` brings."""
ALL: tuple[DialectName, ...] = ("chat", "responses", "anthropic")
"""What the local model speaks, and what would otherwise go to a provider."""
WORDS = (
    "I am a script, not a model: the local model is not installed here. `refold local install` fetches it; then start "
    "`refold serve` again. You said: "
)


class Embedded(Struct, frozen=True):
    """The model that comes with the gateway."""

    target: Target
    what: str


def serve(flags: Layer) -> int:
    """Serve until told to stop.

    Raises:
        ConfigError: a setting cannot work, or the port is taken.
        MissingExtra: what the gateway needs is not installed.
        StoreError: the store cannot be opened.
    """
    check_installed("The gateway")
    from refold.gateway.log import set_up
    from refold.gateway.server import run

    rewritten: list[str] = []
    files = [with_current_url(layer, rewritten.append) for layer in file_layers(os.environ, Path.cwd())]
    resolved = resolve([flags, environment_layer(os.environ), *files])
    set_up(resolved.settings.server.log, resolved.settings.server.log_level)
    for text in rewritten:
        _log.warning("%s", text)
    with _embedded(resolved) as local:
        teller = _Teller(resolved, local)
        run(resolved, teller, local=local.target if local else None)
    if is_text_worked_on():
        # Everything is closed, and nobody waits for those threads.
        logging.shutdown()
        os._exit(0)
    return 0


def check_installed(what: str) -> None:
    """
    Raises:
        MissingExtra: what the gateway needs is not there.
    """
    if not all(map(find_spec, NEEDS)):
        raise MissingExtra("server", what)


@contextmanager
def _embedded(resolved: Resolved) -> Iterator[Embedded | None]:
    """The model of our own, where nobody named another place."""
    if resolved.settings.upstreams:
        yield None
        return
    with ExitStack() as stack:
        try:
            found = _model(stack)
        except (ConfigError, MissingExtra) as error:
            _say(resolved, f"no local model: {error}\nA script answers for `local` until it is there.\n")
            found = _script(stack)
        yield found


def _model(stack: ExitStack) -> Embedded:
    from refold.gateway.upstreams import local_target

    served = stack.enter_context(serve_local(window=WINDOW))
    target = structs.replace(local_target(served.base_url, served.key), window=served.window, formats=ALL)
    return Embedded(target, f"{served.model} on this machine, to try things out")


def _script(stack: ExitStack) -> Embedded:
    from refold.gateway.upstreams import local_target
    from refold.testing import ScriptedUpstream

    def answer(received: Received) -> str:
        server.requests.clear()  # it keeps what it was asked, for tests
        server.answered.clear()
        return WORDS + received.text

    key = secrets.token_urlsafe(32)
    server = ScriptedUpstream(otherwise=answer, window=WINDOW, key=key, validates=False, model="local")
    stack.enter_context(server)
    target = structs.replace(local_target(f"{server.url}/v1", key), window=WINDOW, formats=ALL)
    return Embedded(target, "a script, no model: it repeats what you say")


class _Teller:
    """Says what is served, once it is."""

    def __init__(self, resolved: Resolved, local: Embedded | None) -> None:
        self._resolved, self._local = resolved, local
        self._task: asyncio.Task[None] | None = None

    def __call__(self, address: str, gateway: Gateway) -> None:
        output.write(f"{address}\n")
        self._task = asyncio.get_running_loop().create_task(self._tell(address, gateway))

    async def _tell(self, address: str, gateway: Gateway) -> None:
        try:
            needs_key = await gateway.store.has_keys()
        except RefoldError:  # requests will say so too
            needs_key = True
        notice = self.notice(address, gateway, needs_key=needs_key)
        if self._resolved.settings.server.log == "json":
            from refold.gateway.log import facts

            _log.info("ready", extra=facts(**msgspec.to_builtins(notice)))
        else:
            output.note(told(notice))

    def notice(self, address: str, gateway: Gateway, *, needs_key: bool) -> Notice:
        settings = self._resolved.settings
        return Notice(
            address,
            tuple(self._upstream(target) for target in gateway.targets),
            settings.compaction.preset if settings.compaction.enabled else "",
            _summaries(self._resolved, has_local=self._local is not None),
            _store(settings.store.url),
            needs_key,
            self._local is not None,
        )

    def _upstream(self, target: Target) -> Upstream:
        if self._local is not None and target is self._local.target:
            return Upstream(target.name, target.formats, target.models, "none needed", self._local.what)
        given = self._resolved.settings.upstreams.get(target.name, Wanted())
        whole = completed(target.name, given, os.environ)
        others = self._resolved.settings.upstreams.values()
        is_fallback = any(target.name in one.fallback for one in others)
        key = _key(given, whole, is_fallback=is_fallback)
        return Upstream(target.name, target.formats, target.models, key, mask_url(target.url))


def _key(given: Wanted, whole: Wanted, *, is_fallback: bool) -> str:
    """Whose key goes to an upstream, in the order in which keys are looked for."""
    own = (
        "printed by a command"
        if whole.key_command
        else f"${mask_variable(whole.key_env)}"
        if whole.key_env
        else ""
    )
    if not whole.pass_key:
        return f"{own} (settings)" if given.key_env or given.key_command else own or "none"
    first = f"the client's, else {own}" if own else "the client's"
    return first if given.pass_key or not is_fallback else f"{first}; as a fallback {own or 'none'}"


def _summaries(resolved: Resolved, *, has_local: bool) -> str:
    wished = resolved.settings.summariser
    if not wished.enabled:
        return "digests; no model is asked"
    if wished.models:
        return f"by {', '.join(map(mask_model, wished.models))}"
    return f"by the conversation's own model{'; for local, digests' if has_local else ''}"


def _store(url: str) -> str:
    if kind_of(url) == "memory":
        return "memory: forgotten when it ends"
    path = sqlite_file(url)
    return str(path) if path else "PostgreSQL"


def _say(resolved: Resolved, text: str) -> None:
    if resolved.settings.server.log == "json":
        _log.warning(text.strip().replace("\n", "; "))
    else:
        output.note(text)


def show_local(*, as_json: bool) -> int:
    """What there is of the local model, and what to do about the rest."""
    weights = weights_path()
    has_weights, has_extra = weights.is_file(), find_spec("xllamacpp") is not None
    if as_json:
        output.write_json({"weights": str(weights), "is_there": has_weights, "can_run": has_extra})
    else:
        output.write(f"weights  {output.plain(str(weights))}{'' if has_weights else ' (not there)'}\n")
        output.write(
            f"runs     {'with xllamacpp' if has_extra else 'not: the extra `local` is not installed'}\n"
        )
    if not has_weights:
        output.note("hint: fetch them with: refold local install")
    if not has_extra:
        output.note("hint: install it with: pip install 'refold[local]'")
    return 0 if has_weights and has_extra else 1
