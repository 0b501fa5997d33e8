"""The log: what happened, when and where, and never what was said.

One idea: a log is read by many and kept for long, so nothing can reach it that was not meant for it. Our own lines are written for
it, with facts beside them; of what others log only the first line is kept, as they wrote it down, and of an exception its kind and
the places it came by. Neither the words of others' exceptions nor a value is ever in it. Of our own errors, which hold no content and no
secret, those of the store are logged with their location: the answer to the client does not have it.

    _log.info("compacted", extra=facts(conversation="support-42", before=9_000, after=2_000))

    2026-02-11 09:30:01 info    compacted conversation=support-42 before=9000 after=2000
    {"at": "2026-02-11T09:30:01.204+00:00", "level": "info", "message": "compacted", "conversation": "support-42", ...}
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

OURS = "refold"
EVENTS = "refold.events"
FACTS = "refold_facts"
"""Under which name facts travel with a record: what callers call them cannot hide what `logging` itself keeps there."""
QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "aiohttp.access", "aiohttp.client", "aiohttp.server")
"""What others say at every start and for every request; their warnings stay."""
MAX_PLACES = 12
"""Of an exception, from where it was raised outwards: the rest is the server's own stack."""


def facts(**told: object) -> dict[str, dict[str, object]]:
    """Facts for a line of the log, as its `extra`: names, numbers and ids."""
    return {FACTS: told}


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """Log to stderr, or elsewhere, as `text` or `json`, from this level on; a second time replaces the first."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(Lines() if form == "text" else Objects())
    for name in ("", OURS):
        logger = logging.getLogger(name)
        logger.handlers = [one for one in logger.handlers if not isinstance(one, _Handler)]
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger(OURS).setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class Objects(logging.Formatter):
    """One JSON object to a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        own = {"at": at, "level": record.levelname.lower(), "message": _message(record)}
        return json.dumps(own | _facts(record) | own, default=str)


class Lines(logging.Formatter):
    """One line for people, in the time of this machine."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        told = "".join(f" {name}={_word(value)}" for name, value in _facts(record).items())
        # The words of events are all ours, and of several lines; of anything else a line break might be somebody's.
        words = _message(record)
        first, *more = words.split("\n") if record.name == EVENTS else [words]
        line = f"{at} {record.levelname.lower():<7} {_plain(first)}{told}"
        return "\n".join((line, *map(_plain, more)))


class _Handler(logging.StreamHandler[TextIO]):
    """Says nothing about what cannot be written: `logging` would show the whole record."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        del record


def _message(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] == OURS:
        return record.getMessage()
    return str(record.msg).strip().partition("\n")[0]


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    told = dict(getattr(record, FACTS, {}))
    if record.name.partition(".")[0] != OURS:
        told["logger"] = record.name
    if record.exc_info and record.exc_info[1] is not None:
        told |= _exception(record.exc_info[1])
    return told


def _exception(error: BaseException) -> dict[str, object]:
    """Its kind and the places it came by; its words may hold anything."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_PLACES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)]
    return {"error": type(error).__name__, "places": places}


def _word(value: object) -> str:
    """A value in a line: as it is where nobody can mistake it, in quotes elsewhere."""
    text = _plain(str(value)) if not isinstance(value, list) else _plain(", ".join(map(str, value)))
    return text if text and not set(text) & set(" ='\"") else json.dumps(text, ensure_ascii=False)


def _plain(text: str) -> str:
    """Harmless in a terminal, and one line."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
