"""The features of the preset `picoclaw`, through the doors that users have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from refold import presets
from refold.cli.main import run
from refold.core.policy import OverBudget
from refold.sync import Conversation, Engine
from refold.testing import ScriptedUpstream
from tests.formats import answer, question
from tests.gateway.conftest import served

LONG = answer("It reads the settings and checks them, one after the other. " * 12)


class Letters:
    """Counts every letter of the text as a token, and nothing else."""

    source = "counted"

    def text(self, text):
        return len(text)

    def message(self, message):
        return len(message.text)


def talk_of(size, **settings):
    """A conversation of a few turns, with so many tokens in its next request."""
    only_wall = structs.replace(presets.PICOCLAW, triggers={"after_call": OverBudget(1.0)})
    given = {"policy": only_wall, "window": 10_000, "max_output": 2_000, "counter": Letters(), **settings}
    talk = Conversation("some-model", **given)
    for number in range(6):
        talk.add(question(f"{number}" * 600), answer(f"{number}" * 400))
    talk.add(question("q" * (size - 6_000)))
    return talk


@pytest.mark.feature("P6")
@pytest.mark.parametrize(("size", "is_compressed"), [(7_999, False), (8_000, False), (8_001, True)])
def test_a_call_is_compressed_from_8_001_tokens_on(size, is_compressed):
    """Window 10,000 and output 2,000: what fits exactly is sent whole."""
    talk = talk_of(size)
    sent = talk.context()["messages"]
    assert (len(sent) < 13) is is_compressed
    assert [one.decision for one in talk.receipts] == (["reduce"] if is_compressed else [])


@pytest.mark.feature("P6", "P1")
def test_system_prompt_and_tools_are_part_of_the_check():
    for size, is_compressed in ((7_900, False), (7_901, True)):
        talk = talk_of(size, system="s" * 100)
        talk.context()
        assert bool(talk.receipts) is is_compressed


@pytest.mark.feature("P5")
def test_a_turn_is_summarised_above_75_percent_with_the_output():
    talk = Conversation("some-model", preset="picoclaw", window=10_000, max_output=2_000)
    for number in range(9):
        talk.add(question(f"{number} look at the file. " * 40))
        talk.context()
        talk.add(answer("It reads the settings. " * 40))
        if talk.receipts:
            break
    found = re.fullmatch(r"([\d,]+) tokens with output > 75 % of 10,000", talk.receipts[0].reason)
    assert 7_500 < int(found[1].replace(",", "")) < 8_200
    assert talk.receipts[0].summary is not None


def filled(url, turns, **settings):
    with Engine(url, model="gpt-4o", preset="picoclaw") as engine:
        talk = engine.conversation("shop", window=10_000, max_output=2_000, **settings)
        for number in range(turns):
            talk.add(question(f"Step {number}?"), answer("Yes."))


@pytest.mark.feature("P6", "P5")
def test_the_context_of_a_stored_conversation_says_when_it_is_summarised_and_compressed(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    filled(url, 3)
    sizes = ["--window", "10000", "--max-output", "2000", "--store", url]
    assert run(["context", "shop", "--preset", "picoclaw", *sizes]) == 0
    shown = capsys.readouterr().out
    assert "preset picoclaw" in shown
    assert re.search(r"summarise at [\d,]+ tokens, or 21 messages: [\d,]+ from here", shown)
    assert "compress at 8,000 tokens\n  window 10,000 − output 2,000 − reserve 0 = 8,000\n" in shown
    assert run(["context", "shop", "--preset", "librechat", "--json", *sizes]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summarise_at"] == {"tokens": 7_500, "messages": None}
    assert found["compress_at"]["arithmetic"] == "window 10,000 − output 2,000 − reserve 500 = 7,500"


@pytest.mark.feature("P6")
@pytest.mark.parametrize("preset", ["refold", "lis", "picoclaw"])
def test_the_context_of_a_file_is_measured_against_the_preset(preset, tmp_path, monkeypatch, capsys):
    example = Path("examples/coding-agent.json").absolute()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refold.toml").write_text(f'[compaction]\npreset = "{preset}"\n')
    assert run(["context", str(example), "--window", "100000", "--max-output", "4000"]) == 0
    shown = capsys.readouterr().out
    at = {"refold": r"[\d,]+ tokens", "lis": "80,000 tokens", "picoclaw": r"[\d,]+ tokens, or 21 messages"}
    assert re.search(rf"preset {preset}\nsummarise at {at[preset]}: ", shown)
    assert "output 4,000" in shown


@pytest.mark.feature("P5")
@pytest.mark.parametrize(("flags", "kept"), [({}, None), ({"compaction_max_messages": 10}, 4)])
async def test_the_number_of_messages_is_a_setting(flags, kept):
    said = [message for number in range(7) for message in (question(f"Step {number}?"), LONG)]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(
            upstream,
            window=8_000,
            summariser_enabled=False,
            compaction_preset="picoclaw",
            compaction_allow_system_summary=True,
            **flags,
        ) as gate,
        gate.openai() as client,
    ):
        for end in (12, 14):
            request = [*said[:end], question("And?")]
            await client.chat.completions.create(model="gpt-4o", messages=request)
        sent = json.loads(upstream.requests[-1].body)["messages"]
    asked = [one for one in sent if one["role"] != "system"]
    assert (len(asked) < 15) is (kept is not None)


@pytest.mark.feature("P5")
def test_the_number_of_messages_that_stay_is_a_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = [message for number in range(15) for message in (question(f"Step {number}?"), answer("Yes."))]
    (tmp_path / "t.json").write_text(json.dumps({"model": "gpt-4o", "messages": [*said, question("And?")]}))
    kept = []
    for number in (4, 10):
        text = f'[compaction]\npreset = "picoclaw"\nkeep_messages = {number}\n'
        (tmp_path / "refold.toml").write_text(text)
        assert run(["compact", "t.json", "--now", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        kept.append(len([one for one in document["transcript"]["messages"] if one["role"] != "system"]))
    assert kept[1] - kept[0] == 6


@pytest.mark.feature("P5")
@pytest.mark.parametrize("key", ["max_messages", "keep_messages"])
def test_a_preset_that_counts_no_messages_refuses_the_setting(tmp_path, monkeypatch, capsys, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refold.toml").write_text(f"[compaction]\n{key} = 9\n")
    assert run(["config", "check"]) != 0
    said = "".join(capsys.readouterr())
    assert f"compaction.{key}" in said
    assert "picoclaw" in said
