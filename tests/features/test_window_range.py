"""A window has 256 to 100,000,000 tokens, and whoever gives another one reads the same words at every door."""

from __future__ import annotations

import asyncio

import pytest

from refold import ConfigError, Engine
from refold.cli.main import run
from refold.sync import Conversation

RANGE = "is not a number of tokens from 256 to 100,000,000"
WRONG = [0, -1, 12, 255, 100_000_001]


@pytest.mark.parametrize("window", [*WRONG, "32k", 1e4, True])
def test_the_library_refuses_it(window):
    with pytest.raises(ConfigError, match=f"^window {RANGE}\nhint: "):
        Conversation("gpt-4o", window=window)

    async def by_engine() -> None:
        async with Engine("memory:", model="gpt-4o", window=window) as engine:
            await engine.conversation("a")

    with pytest.raises(ConfigError, match=f"^window {RANGE}\nhint: "):
        asyncio.run(by_engine())


def test_the_ends_of_the_range_are_windows():
    assert Conversation("gpt-4o", window=256).window.tokens == 256
    assert Conversation("gpt-4o", window=100_000_000).window.tokens == 100_000_000


@pytest.mark.parametrize("window", [0, 12, 255, 100_000_001])
@pytest.mark.parametrize("command", ["context", "check", "compact", "replay", "chat"])
def test_the_options_refuse_it(capsys, command, window):
    data = [] if command == "chat" else ["examples/coding-agent.json"]

    assert run([command, *data, "--window", str(window)]) == 2
    assert f"invalid value for '--window': '{window}': it {RANGE}; " in capsys.readouterr().err


@pytest.mark.parametrize("window", [0, 12, 255, 100_000_001])
def test_the_settings_refuse_it(capsys, monkeypatch, tmp_path, window):
    file = tmp_path / "refold.toml"
    file.write_text(f"[compaction]\nwindow = {window}\n")

    assert run(["config", "check", str(file)]) == 1
    assert f"compaction.window: it {RANGE}" in capsys.readouterr().out
    monkeypatch.setenv("REFOLD_COMPACTION_WINDOW", str(window))
    assert run(["config", "show"]) == 2
    assert f"compaction.window: it {RANGE}" in capsys.readouterr().err
