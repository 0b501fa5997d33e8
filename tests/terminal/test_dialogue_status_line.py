from __future__ import annotations

import pytest

from refold.terminal.dialogue import ChatFigures, status_line

FULL = ChatFigures("gpt-4o-mini", 61_000, 122_000, 0.01234, 85, 2, 3, activity="answering")


def test_the_line_has_everything_there_is_to_know():
    assert status_line(FULL, 120) == (
        "gpt-4o-mini  █████░░░░░  61k/122k 50%  $0.0123  cache 85%  compactions 2  queued 3  answering…"
    )
    assert status_line(ChatFigures("m"), 80) == "m  ░░░░░░░░░░  0/0 0%  cache 0%  compactions 0"


def test_without_blocks_it_is_ascii():
    assert status_line(ChatFigures("m", 50, 100), 80, has_blocks=False).isascii()


@pytest.mark.parametrize("width", range(8, 100, 7))
def test_it_fits_and_keeps_the_context_longest(width):
    line = status_line(FULL, width)

    assert len(line) <= width
    if width >= 50:
        assert "61k/122k 50%" in line
        assert "queued 3" in line


def test_an_overfull_context_fills_the_bar_and_no_more():
    assert "██████████  130/100 130%" in status_line(ChatFigures("m", 130, 100), 80)
