"""Failpoints: places where a test can make the program fail.

A crash that matters falls between two steps, and chance rarely finds that place. `REFOLD_FAILPOINT=name:kill` ends the process there
as a power failure would, `name:raise` raises; `name:kill:7` waits for the seventh time. Without the variable, which is read once,
`reach` does nothing.
"""

from __future__ import annotations

import os
import signal

NAMES = (
    *("commit.after_lock", "commit.after_messages", "commit.after_closing", "commit.before_commit"),
    *(
        "commit.after_embeddings",
        "commit.after_commit",
        "append.before_commit",
        "here.before_commit",
        "claim.before_commit",
        "claim.after_commit",
        "reply.before_commit",
        "reply.after_commit",
    ),
)
"""Every place, for tests that go through all of them."""

_name, _, _rest = os.environ.get("REFOLD_FAILPOINT", "").partition(":")
_action, _, _times = _rest.partition(":")
_left = int(_times or 1)


class Reached(RuntimeError):
    """A failpoint was reached."""


def reach(name: str) -> None:
    """Fail, if a test asked for it here."""
    global _left  # noqa: PLW0603 - one count per process is the point
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        _fail()


def _fail() -> None:
    if _action == "raise":
        raise Reached(_name)
    os.kill(os.getpid(), signal.SIGKILL)
