"""Options that commands share: groups of them, and the other spelling of one."""

from __future__ import annotations

import re
from typing import Annotated

import pytest
import typer

from refold.cli.options import Conv, OptionGroup, SizeOptions, StoreOptions, expanded


class Colours(OptionGroup, frozen=True):
    front: Annotated[str, typer.Option("--front")]
    back: Annotated[str, typer.Option("--back")] = "white"


def command_for(function) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(expanded(function))
    return app


def test_a_group_is_an_option_for_every_field():
    seen = []

    def paint(what: str, *, colours: Colours, twice: Annotated[bool, typer.Option("--twice")] = False) -> int:
        seen.append((what, colours, twice))
        return 0

    app = command_for(paint)
    app(["door", "--front", "red", "--twice"], standalone_mode=False)
    app(["wall", "--front", "red", "--back", "blue"], standalone_mode=False)

    assert seen == [("door", Colours("red"), True), ("wall", Colours("red", "blue"), False)]


def test_a_field_without_a_default_is_required():
    def paint(*, colours: Colours) -> int:
        raise AssertionError

    with pytest.raises(typer.BadParameter.__base__, match="colours_front"):
        command_for(paint)([], standalone_mode=False)


def test_a_function_that_is_expanded_can_still_be_called_by_its_fields():
    def size(conv: Conv, *, sizes: SizeOptions, place: StoreOptions) -> int:
        return len(conv) + (sizes.window or 0) + len(place.owner)

    run = expanded(size)

    given = {"sizes_model": "", "sizes_window": 10, "sizes_max_output": None}
    assert run(conv="abc", place_url="", place_owner="me", **given) == 15


@pytest.mark.parametrize("command", ["compact", "rerun", "new", "resume", "replay"])
def test_help_has_one_spelling_of_the_summariser_s_option(refold, command):
    told = refold(command, "--help").out

    assert "--summariser SPEC" in told
    assert "summarizer" not in told


def test_both_spellings_of_the_option_name_the_model(kept):
    """Each command is refused, so one store serves all of them."""
    kept("compact", "shifts", "--window", "12000")
    kept("new", "shifts")
    kept("compact", "shifts", "--window", "12000")

    for args in (
        ("compact", "shifts"),
        ("rerun", "shifts"),
        ("new", "shifts"),
        ("resume", "shifts", "ferry harbour"),
    ):
        for option in ("--summariser", "--summarizer"):
            told = kept(*args, option, "nosuch:model")

            assert (told.code, told.out) == (2, ""), (args, option)
            assert "there is no provider 'nosuch'" in told.err, (args, option)


@pytest.mark.parametrize("option", ["--summariser", "--summarizer"])
def test_both_spellings_work_in_a_replay(refold, option):
    told = refold("replay", "examples/coding-agent.json", option, "nosuch:model")

    assert (told.code, told.out) == (2, "")
    assert "there is no provider 'nosuch'" in told.err


@pytest.mark.parametrize("option", ["--summariser-models", "--summarizer-models"])
def test_both_spellings_work_in_the_settings_of_the_gateway(refold, option):
    for given in ([option, "nosuch:model"], [f"{option}=nosuch:model"]):
        told = refold("serve", *given)

        assert (told.code, told.out) == (2, "")
        assert "summariser.models: number 1 names no model to ask" in told.err


@pytest.mark.parametrize("option", ["--summarizer-max-spend", "--summariser-max-spend"])
@pytest.mark.parametrize("spend", ["nan", "-1"])
def test_a_limit_of_dollars_is_a_number(refold, option, spend):
    told = refold("serve", f"{option}={spend}")

    assert (told.code, told.out) == (2, "")
    assert "summariser.max_spend: it is out of range" in told.err
    assert "hint: it takes 0 to 1,000,000" in told.err


@pytest.mark.parametrize("option", ["--no-summarizer-enabled", "--no-summariser-enabled"])
def test_both_spellings_of_a_switch_work(refold, option):
    told = refold("serve", option, "--port=none")

    assert told.code == 2
    assert "server.port" in told.err


def test_no_help_shows_a_range_as_a_formula(refold):
    for command in (["conversations"], ["search"], ["replay"], ["demo"], ["context"], ["import"]):
        assert not re.search(r"x ?[<>]=|<= ?x", refold(*command, "--help").out), command


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("conversations", "--limit", "0"), "invalid value for '--limit': 0 is less than 1"),
        (("replay", "x", "--max-spend", "-0.5"), "invalid value for '--max-spend': -0.5 is less than 0"),
        (("demo", "--speed", "-1"), "invalid value for '--speed': -1.0 is less than 0"),
    ],
)
def test_a_number_that_is_too_small_is_refused(refold, command, words):
    assert words in refold(*command).err


@pytest.mark.parametrize("option", ["--summarizer", "--summariser", "--summarizer=x"])
def test_an_option_that_a_command_lacks_is_named_as_it_was_typed(refold, option):
    code, _, err = refold("doctor", option, "x")

    assert code == 2
    assert err.startswith(f"error: no such option: {option.partition('=')[0]}")
