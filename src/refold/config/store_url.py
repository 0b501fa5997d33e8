"""Rewrites the store URL of a settings file that still has the spelling of earlier versions.

Until three slashes meant a relative path, `sqlite://chats.db` was relative and `sqlite:///home/me/chats.db` absolute. The file is
changed once, in that one value: comments, order, line ends and all other keys stay. Where it cannot be written the new spelling
holds for this run only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import structs

from refold.config.files import replace_file
from refold.config.layers import Layer, flat
from refold.model.errors import ConfigError
from refold.model.mask import mask_url, printable
from refold.store.place import current_spelling

KEY = "store.url"
MAX_TRIES = 100
"""How many places with the text of the URL are tried: a comment or two may hold it as well."""


def with_current_url(layer: Layer, tell: Callable[[str], None]) -> Layer:
    """The layer of a settings file with its store URL in today's spelling, which is written to the file too.

    `tell` gets one line about what was changed, or why it could not be.
    """
    before = layer.values.get(KEY)
    if not layer.path or not isinstance(before, str):
        return layer
    try:
        now = current_spelling(before)
    except ConfigError:  # whoever resolves or opens it says what is wrong with it
        return layer
    if now == before:
        return layer
    path = Path(layer.path)
    change = f"{KEY} {_shown(before)} is written {_shown(now)} now"
    try:
        is_written = _rewrite(path, before, now)
    except OSError as error:
        tell(f"{printable(str(path))}: {change}, and the file could not be changed: {error.strerror}")
    else:
        tell(
            f"{printable(str(path))}: {change}; {'the file was changed' if is_written else 'please change it'}"
        )
    return structs.replace(layer, values={**layer.values, KEY: now})


def _rewrite(path: Path, before: str, now: str) -> bool:
    """Change the value in the file; False where it stands there in a form that cannot be found."""
    text = path.read_bytes().decode()
    for changed in _candidates(text, before, now):
        if _values(changed) == {**_values(text), KEY: now}:
            replace_file(path.resolve(), changed.encode())
            return True
    return False


def _candidates(text: str, before: str, now: str) -> Iterator[str]:
    """The text with one occurrence of the URL changed, for each of the first occurrences."""
    at = text.find(before)
    for _ in range(MAX_TRIES):
        if at < 0:
            return
        yield text[:at] + now + text[at + len(before) :]
        at = text.find(before, at + 1)


def _values(text: str) -> dict[str, object]:
    try:
        return flat(tomllib.loads(text.removeprefix("\ufeff")))
    except tomllib.TOMLDecodeError:
        return {}


def _shown(url: str) -> str:
    return printable(mask_url(url))
