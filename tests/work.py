"""How much work something takes, counted and not timed: a busy machine changes nothing about it."""

import sys
from collections.abc import Callable


def calls_made(run: Callable[[], object]) -> int:
    """How many functions were called, those written in C included."""
    count = 0

    def noted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(noted)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
