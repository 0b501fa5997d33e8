"""Where a request goes: upstreams by name, and which of them serves a model.

One idea: an upstream is one that the operator has named. Nothing that a client sends can be an address; it can only choose a
name, or say a model for which there is one. Redirects are not followed, proxies are not taken from the environment, and a name
that leads into a private network is refused unless the operator said so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from msgspec import Struct
from yarl import URL

from refold.config import Upstream, completed
from refold.model.errors import ConfigError
from refold.model.message import DialectName
from refold.upstreams.provider import Auth, Key, Provider

USUAL = {"openai": Upstream(), "anthropic": Upstream()}
"""Where nobody names any: the client's own key goes to the provider that it was made for, by the format that it speaks."""


class Target(Struct, frozen=True):
    """One upstream, ready to be asked. Printing it shows its name."""

    name: str
    url: str
    """Without the path of the call, and without a slash at its end."""
    formats: tuple[DialectName, ...]
    key: Key | None = None
    """The gateway's own: of the settings, or of the environment. Used where the client's is not."""
    passes_key: bool = True
    """Does the client's key come first, where it sent one?"""
    passes_key_as_fallback: bool = False
    """Does the client's key come here too when it was sent for another upstream?"""
    headers: dict[str, str] = {}
    models: tuple[str, ...] = ()
    is_private: bool = False
    window: int | None = None
    fallback: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    """Calls that are passed on with the gateway's key whoever owns what they reach: `METHOD /path`, `/path` or `*`."""
    is_small: bool = False
    """Its model answers, and is too small to sum anything up."""

    def __repr__(self) -> str:
        return f"<upstream {self.name}>"

    @property
    def origin(self) -> URL:
        """Scheme, host and port: whoever is there sees what is sent."""
        return URL(self.url).origin()

    def address(self, path: str, query: str = "") -> str:
        """The address of a call: a base that names a version has the path after it, any other the whole of it."""
        short = path.removeprefix("/v1") if urlsplit(self.url).path else path
        return f"{self.url}{short}{'?' + query if query else ''}"

    def allows(self, method: str, path: str) -> bool:
        """Is a call open to every client? `path` is empty where it has no plain one."""
        asked = f"{method} {path}"
        patterns = (one if " " in one else f"* {one}" for one in self.allow if path)
        return "*" in self.allow or any(fnmatchcase(asked, pattern) for pattern in patterns)

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class Targets:
    """All upstreams of a gateway, in the operator's order."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = {target.name: target for target in targets}
        if not targets:
            raise ConfigError(
                "there is no upstream", hint="name one under [upstreams], or say --upstream URL"
            )

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __len__(self) -> int:
        return len(self._targets)

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())

    def choose(self, model: str, wanted: DialectName | None, name: str = "") -> list[Target]:
        """Whom to ask, in this order: the one that was named, or that serves the model, or else the first that speaks the
        format; then those that it names as fallbacks.

        Raises:
            ConfigError: there is none.
        """
        first = self._named(name) if name else self._for(model, wanted)
        others = [self._named(one) for one in first.fallback]
        return [first, *(one for one in others if wanted is None or wanted in one.formats)]

    def choose_for_state(
        self, model: str, wanted: DialectName | None, name: str, made_at: str
    ) -> tuple[Target | None, list[Target]]:
        """As `choose`, for a call that names what the upstream `made_at` keeps, if any: nobody else has it.

        The first of the two is the upstream that a request of this kind is meant for by itself, where there is one.

        Raises:
            ConfigError: there is none.
        """
        if made_at not in self._targets:
            usual = self.choose(model, wanted, name)
            return usual[0], usual
        try:
            usual = self.choose(model, wanted, name)
        except ConfigError:
            return None, [self._targets[made_at]]
        return usual[0], usual if usual[0].name == made_at else [self._targets[made_at]]

    def home_of_keys(self, asked: Sequence[Target]) -> Target:
        """Which of several upstreams, all of which are asked, a client's key was sent for: the one that gets requests without a
        model, else the first that takes keys of clients.
        """
        able = [one for one in asked if one.passes_key] or asked
        return next((one for one in able if not one.models), able[0])

    def _named(self, name: str) -> Target:
        if name not in self._targets:
            raise ConfigError(
                "there is no upstream of this name", hint=f"choose from: {', '.join(self._targets)}"
            )
        return self._targets[name]

    def _for(self, model: str, wanted: DialectName | None) -> Target:
        able = [one for one in self._targets.values() if wanted is None or wanted in one.formats]
        served = [one for one in able if one.serves(model)] or [one for one in able if not one.models]
        if not served:
            raise ConfigError(
                f"no upstream speaks this format ({wanted or 'any'}) for this model",
                hint="add one under [upstreams], or name the model in its `models`",
            )
        return served[0]


def open_targets(upstreams: Mapping[str, Upstream], environ: Mapping[str, str]) -> Targets:
    """
    Raises:
        ConfigError: an upstream has no address, or its key is not there.
    """
    chosen = upstreams or USUAL
    return Targets([target_of(name, one, environ) for name, one in chosen.items()])


def target_of(name: str, given: Upstream, environ: Mapping[str, str]) -> Target:
    """
    Raises:
        ConfigError: it has no address, or its key is not there.
    """
    whole = completed(name, given, environ)
    auth: Auth = "x-api-key" if whole.formats == ("anthropic",) else "bearer"
    provider = Provider(name, key_env=whole.key_env, key_command=whole.key_command, auth=auth)
    return Target(
        name,
        whole.url,
        whole.formats,
        Key(provider, environ) if whole.key_env or whole.key_command else None,
        passes_key=bool(whole.pass_key),
        passes_key_as_fallback=given.pass_key is True,
        headers={key.lower(): value for key, value in whole.headers.items()},
        models=whole.models,
        is_private=whole.private,
        window=whole.window,
        fallback=whole.fallback,
        allow=whole.allow,
    )


def local_target(url: str, key: str) -> Target:
    """The model that comes with the gateway, on a port of its own."""
    return Target(
        "local",
        url,
        ("chat", "anthropic"),
        passes_key=False,
        headers={"authorization": f"Bearer {key}"},
        models=("local",),
        is_private=True,
        is_small=True,
    )


def with_local(targets: Targets, local: Target) -> Targets:
    """The same upstreams, and first of all the model that comes with the gateway."""
    return Targets([local, *(one for one in targets if one.name != local.name)])
