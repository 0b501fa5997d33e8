from __future__ import annotations

import re
from typing import Annotated

import pytest
import typer

from refold.cli.commands.serve import GroupedCommand, with_settings
from refold.config import Layer, resolve
from refold.config.tree import all_keys
from tests.config.samples import BOX, SAMPLES, base_for, name_of


def program(capture: list[object]) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

    @app.callback()
    def root() -> None: ...

    @app.command(cls=GroupedCommand)
    @with_settings
    def serve(flags: Layer, dry: Annotated[bool, typer.Option("--dry", help="Only look.")] = False) -> int:
        """Serve."""
        capture.extend((flags, dry))
        return 0

    return app


@pytest.fixture
def serve():
    def call(*args: str) -> Layer:
        capture: list[object] = []
        assert program(capture)(args=["serve", *args], standalone_mode=False) == 0
        flags = capture[0]
        assert isinstance(flags, Layer)
        return flags

    return call


@pytest.fixture
def help_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    program([])(args=["serve", "--help"], standalone_mode=False)
    return capsys.readouterr().out


def test_nothing_given_nothing_said(serve):
    assert serve().values == {}


def arguments(key, text: str) -> list[str]:
    if key.is_upstream:
        return [key.flag, f"{BOX}={text}"]
    if key.kind == "switch":
        return [
            key.flag if text.lower() in ("on", "yes", "true", "1") else f"--no-{key.flag.removeprefix('--')}"
        ]
    return [key.flag, text]


@pytest.mark.feature("L14", "X1")
@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_every_setting_has_a_flag_that_sets_it(serve, key):
    for typed, text in SAMPLES[key.name]:
        layer = serve(*arguments(key, text))
        resolved = resolve([base_for(key), layer])
        same = resolve([base_for(key), Layer("user", {name_of(key): typed})])
        assert resolved.settings == same.settings
        assert (resolved.origins[name_of(key)].source, resolved.origins[name_of(key)].place) == (
            "flag",
            key.flags[-1],
        )


def test_the_usual_flags_are_short(serve):
    given = serve("--port", "1", "--host", "h", "--preset", "lis", "--window", "8k", "--store", "memory:")
    settings = resolve([given]).settings
    assert (settings.server.port, settings.server.host, settings.store.url) == (1, "h", "memory:")
    assert (settings.compaction.preset, settings.compaction.window) == ("lis", 8000)


def test_an_upstream_s_address_is_enough(serve):
    layer = serve("--upstream", "http://localhost:8000/v1", "--upstream", "openai", "--dry")
    upstreams = resolve([layer]).settings.upstreams
    assert {name: one.url for name, one in upstreams.items()} == {
        "default": "http://localhost:8000/v1",
        "openai": "",
    }


@pytest.mark.feature("L14")
def test_help_lists_the_flags_of_each_section_by_themselves(help_text):
    titles = re.findall(r"^(\w+):$", help_text, re.MULTILINE)
    assert titles[0] == "Options"
    assert set(titles) == {"Options", *(key.section.capitalize() for key in all_keys())}
    part = help_text.partition("\nCache:\n")[2].partition("\n\n")[0]
    assert "--cache-ttl" in part
    assert "--store" not in part
    assert "--dry" in help_text.partition("\n\nUpstreams:\n")[0]


@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_help_says_what_a_flag_does(help_text, key):
    words = " ".join(help_text.split()).replace("- ", "-")
    assert all(flag in words for flag in key.flags)
    assert key.what.replace("- ", "-") in words


@pytest.mark.parametrize(
    "given",
    [
        ("--notify-marker", "maybe"),
        ("--no-notify-marker", "yes"),
        ("--port", "1", "--notify-marker", "maybe"),
    ],
)
def test_a_switch_with_a_value_says_how_it_is_written(refold, given):
    code, _, err = refold("serve", *given)

    assert code == 2
    assert f"{given[-2]} takes no value" in err
    assert "hint: write --notify-marker or --no-notify-marker" in err
