"""The gateway's log: formatters that keep user content and secrets out of it.

A log is read by many people and kept for long. Refold's own lines have a fixed text and structured facts. Of
other loggers only the first line of the unformatted message is kept, and of an exception its type and its
stack locations; argument values and exception texts never appear. Refold's own errors hold no content and no
secrets; store errors are logged with their location, which the client does not get.

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
"""The attribute of a log record that holds the facts; one attribute, so that no fact can overwrite a field of
`logging`.
"""
QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "aiohttp.access", "aiohttp.client", "aiohttp.server")
"""Loggers with lines for every start and every request; only their warnings are logged."""
MAX_PLACES = 12
"""Stack locations of an exception, innermost first: the rest is the server's own stack."""


def facts(**values: object) -> dict[str, dict[str, object]]:
    """Facts for a log line, to be passed as `extra`: names, numbers and ids."""
    return {FACTS: values}


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """Log to `stream` (default stderr) as `text` or `json`, from this level on. A second call replaces the
    first.
    """
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(TextFormatter() if form == "text" else JsonFormatter())
    for name in ("", OURS):
        logger = logging.getLogger(name)
        logger.handlers = [one for one in logger.handlers if not isinstance(one, _Handler)]
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger(OURS).setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        own = {"at": at, "level": record.levelname.lower(), "message": _message(record)}
        return json.dumps(own | _facts(record) | own, default=str)


class TextFormatter(logging.Formatter):
    """One line for people, in local time. The lines of an event's text are joined by bars."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        fields = "".join(f" {name}={_field_text(value)}" for name, value in _facts(record).items())
        words = _message(record)
        if (
            record.name == EVENTS
        ):  # its texts are Refold's own; a line break in any other message might be forged
            words = " | ".join(line.strip() for line in words.split("\n") if line.strip())
        return f"{at} {record.levelname.lower():<7} {_printable(words)}{fields}"


class _Handler(logging.StreamHandler[TextIO]):
    """Drops records that cannot be written: `logging` would print the whole record with its arguments."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # overrides logging's method
        del record


def _message(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] == OURS:
        return record.getMessage()
    return str(record.msg).strip().partition("\n")[0]


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    found = dict(getattr(record, FACTS, {}))
    if record.name.partition(".")[0] != OURS:
        found["logger"] = record.name
    if record.exc_info and record.exc_info[1] is not None:
        found |= _exception(record.exc_info[1])
    return found


def _exception(error: BaseException) -> dict[str, object]:
    """The type and the stack locations of an exception; its text may contain anything."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_PLACES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)]
    return {"error": type(error).__name__, "places": places}


def _field_text(value: object) -> str:
    """A value in a line: plain if it is unambiguous, otherwise in quotes."""
    text = _printable(str(value)) if not isinstance(value, list) else _printable(", ".join(map(str, value)))
    return text if text and not set(text) & set(" ='\"") else json.dumps(text, ensure_ascii=False)


def _printable(text: str) -> str:
    """One line without control characters, safe in a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
