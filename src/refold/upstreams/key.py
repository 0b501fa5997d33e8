"""The key of a provider: from the environment, or from a command that prints it.

One idea: a key is held by one object that nobody can print, and leaves it only into a request's header. A key from a command
is kept until a provider refuses it; then the command is asked once more, for keys that change every hour.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Mapping

from refold.model.errors import ConfigError
from refold.model.mask import mask_variable
from refold.upstreams.provider import Provider

COMMAND_TIMEOUT_S = 30.0
"""A vault may ask its owner for a finger."""


class Key:
    def __init__(self, provider: Provider, environ: Mapping[str, str]) -> None:
        """
        Raises:
            ConfigError: the environment does not hold the key.
        """
        self._name, self._command, self._auth = provider.name, provider.key_command, provider.auth or "bearer"
        self._lock = asyncio.Lock()
        self._value = ""
        if provider.key_env and not provider.key_command:
            self._value = _checked(
                environ.get(provider.key_env, ""), f"the variable {mask_variable(provider.key_env)}"
            )

    def __repr__(self) -> str:
        return "<key ***>"

    async def headers(self) -> dict[str, str]:
        """The header that carries the key; none where the provider wants no key."""
        async with self._lock:
            if self._command and not self._value:
                self._value = await asyncio.to_thread(self._run)
        if not self._value:
            return {}
        return (
            {"authorization": f"Bearer {self._value}"}
            if self._auth == "bearer"
            else {self._auth: self._value}
        )

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Ask the command again, unless somebody else has. Is there another key than these headers carried?"""
        if not self._command:
            return False
        if await self.headers() == refused:
            self._value = ""
        return await self.headers() != refused

    def _run(self) -> str:
        try:
            done = subprocess.run(  # noqa: S603  # the operator's own command, without a shell
                shlex.split(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"did not finish within {COMMAND_TIMEOUT_S:g} s"
        except (OSError, ValueError):
            problem = "cannot be run"
        else:
            if done.returncode == 0:
                return _checked(done.stdout.decode("utf-8", "replace"), "the output of the key command")
            problem = f"ended with code {done.returncode}"
        raise ConfigError(f"the key command of {self._name!r} {problem}", hint="run it by hand to see why")


def _checked(text: str, what: str) -> str:
    key = text.strip()
    if not key:
        raise ConfigError(f"{what} holds no key", hint="set it, or name another with key_env or key_command")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{what} holds something that is no key", hint="a key is one word of plain letters")
    return key
