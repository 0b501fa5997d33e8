"""The log: one line for one thing, with facts, and without anything that was said."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from refold.gateway.log import QUIET, facts, set_up

SECRET = "sk-canary-0451"


@pytest.fixture
def log():
    """Set the log up for a test, and put everything back."""
    root, ours = logging.getLogger(), logging.getLogger("refold")
    before = root.handlers[:], ours.level, {name: logging.getLogger(name).level for name in QUIET}

    def opened(form: str, level: str = "info") -> io.StringIO:
        written = io.StringIO()
        set_up(form, level, written)
        return written

    yield opened
    root.handlers = before[0]
    ours.setLevel(before[1])
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)


def fail(words: str) -> None:
    raise ValueError(words)


def log_failure(name: str, message: str) -> None:
    try:
        fail(SECRET)
    except ValueError:
        logging.getLogger(name).exception(message)


def test_a_line_of_json_holds_what_happened_and_its_facts(log):
    written = log("json")

    logging.getLogger("refold.gateway").info("compacted", extra=facts(before=9_000, after=2_000, branch="a1"))

    told = json.loads(written.getvalue())
    assert told.pop("at").endswith("+00:00")
    assert told == {"level": "info", "message": "compacted", "before": 9_000, "after": 2_000, "branch": "a1"}


def test_a_line_of_text_reads_without_a_program(log):
    written = log("text")

    logging.getLogger("refold.gateway").warning(
        "a request was not kept", extra=facts(conversation="two words", n=3)
    )

    at, rest = written.getvalue().split(" warning ")
    assert len(at) == len("2026-02-11 09:30:01")
    assert rest == 'a request was not kept conversation="two words" n=3\n'


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", ["refold.gateway", "uvicorn.error"])
def test_of_an_exception_its_kind_and_places_are_told_and_never_its_words(log, form, name):
    written = log(form)

    log_failure(name, "a request failed")

    assert SECRET not in written.getvalue()
    assert "ValueError" in written.getvalue()
    assert "test_log.py" in written.getvalue()
    assert written.getvalue().count("\n") == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_of_what_others_log_only_the_first_line_is_kept_without_its_values(log, form):
    written = log(form)

    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <Task %s>", SECRET)
    logging.getLogger("elsewhere").warning("a value is %s", SECRET)

    assert SECRET not in written.getvalue()
    assert "Task exception was never retrieved" in written.getvalue()
    assert "elsewhere" in written.getvalue()
    assert written.getvalue().count("\n") == 2


async def test_what_a_lost_task_held_is_not_logged(log):
    written = log("json")

    async def lost() -> None:
        fail(SECRET)

    task = asyncio.create_task(lost())
    await asyncio.wait([task])
    del task

    assert SECRET not in written.getvalue()
    assert json.loads(written.getvalue())["error"] == "ValueError"


def test_nobody_can_write_a_line_of_their_own_into_it(log):
    written = log("text")

    logging.getLogger("refold").info("%s", "one\nerror  two", extra=facts(name="a\x1b[31m\nb"))

    assert written.getvalue().count("\n") == 1
    assert "\x1b" not in written.getvalue()


def test_facts_do_not_hide_what_a_line_is_about(log):
    written = log("json")

    logging.getLogger("refold").warning("this", extra=facts(message="that", level="none"))

    told = json.loads(written.getvalue())
    assert (told["message"], told["level"]) == ("this", "warning")


def test_what_others_say_at_every_start_is_not_heard(log):
    written = log("text", "debug")

    logging.getLogger("uvicorn.error").info("Started server process [1]")
    logging.getLogger("refold").debug("ours")

    assert written.getvalue().endswith("debug   ours\n")
    assert written.getvalue().count("\n") == 1


def test_the_level_is_the_least_that_is_logged(log):
    written = log("text", "error")

    logging.getLogger("refold.gateway").warning("not this")
    logging.getLogger("refold.gateway").error("but this")

    assert "but this" in written.getvalue()
    assert "not this" not in written.getvalue()


def test_setting_it_up_again_replaces_it(log):
    first, second = log("text"), log("json")

    logging.getLogger("refold").info("once")

    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["message"] == "once"


def test_a_log_that_cannot_be_written_says_nothing_elsewhere(log, capsys):
    log("text").close()

    logging.getLogger("refold").error(SECRET)

    assert capsys.readouterr() == ("", "")
