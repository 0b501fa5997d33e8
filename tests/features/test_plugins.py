"""X16, plugins, through the doors that users have: an installed package, a file in the settings, the gateway, the chat, the library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

import refold
from refold.cli.main import run
from refold.gateway.telemetry import PrometheusMetrics
from refold.plugins.registry import Plugins, find_plugins, use
from refold.testing import ScriptedUpstream, call, say
from tests.gateway.conftest import served
from tests.gateway.test_admin import asked

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
FILE = EXAMPLE / "refold_harbour.py"


@pytest.fixture(autouse=True)
def no_plugins_afterwards() -> Iterator[None]:
    yield
    use(Plugins())


@pytest.fixture
def harbour():
    """The plugin of the example, with a deadline that no machine passes."""
    found = refold.load_plugins(FILE, installed=False).loaded[0].plugin
    made = plugins_of(structs.replace(found, timeout_s=60))
    use(made)
    return made


def stamped(turn: int) -> str:
    return "".join(f"2026-03-0{at}T10:00:00Z gauge {turn}-{at} fell\n" for at in range(1, 9))


def agent(turns: int) -> list[dict]:
    messages: list[dict] = [{"role": "system", "content": "You watch the gauges."}]
    for turn in range(turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "gauge", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"Read gauge {turn} for skipper{turn}@example.com."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": stamped(turn)},
            {"role": "assistant", "content": f"Gauge {turn} fell."},
        ]
    return [*messages, {"role": "user", "content": "Write to clerk@example.com."}]


@pytest.mark.feature("X16")
async def test_a_request_filter_changes_what_leaves_and_the_change_is_recorded(harbour):
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=20_000) as gate,
        gate.openai() as client,
    ):
        answer = await client.chat.completions.with_raw_response.create(model="gpt-4o", messages=agent(2))
        _, found = await asked(
            gate, "GET", f"conversations/{answer.headers['x-refold-conversation']}/receipts"
        )

        sent = upstream.requests[-1].text + json.dumps(upstream.requests[-1].json)
        assert "example.com" not in sent
        assert sent.count("[address]") >= 3
        assert answer.headers["x-refold-plugins"] == "harbour: 3 messages"
        assert "skipper0@example.com" in json.dumps(
            await recalled(gate, answer)
        )  # the stored message is the client's
        assert json.dumps(found).count("plugin:harbour") >= 3


async def recalled(gate, answer):
    async with refold.Engine(gate.store, owner="local") as engine:
        return await (await engine.conversation(answer.headers["x-refold-conversation"])).recall("#m0")


@pytest.mark.feature("X16")
async def test_a_summary_is_asked_for_without_what_a_filter_hides(harbour):
    def answer(received):
        return "They read the gauges, and they fell." if "fell" in received.text else "Fine."

    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        served(upstream, window=3_000, compaction_preset="llms") as gate,
        gate.openai() as client,
    ):
        for turns in (14, 15, 16):
            await client.chat.completions.create(model="gpt-4o", messages=agent(turns), max_tokens=200)
        bodies = [json.dumps(one.json) for one in upstream.requests]

    assert len(bodies) > 3, "summaries were asked for"
    assert "@example.com" not in "".join(bodies)


@pytest.mark.feature("X16")
@pytest.mark.parametrize("named", [False, True], ids=["own model", "named model"])
async def test_a_filter_is_told_the_owner_of_a_request_for_a_summary(named):
    seen = []
    use(plugins_of(refold.Plugin(name="watch", api=1, on_request=seen.append)))
    async with ScriptedUpstream(otherwise="They read the gauges, and they fell.") as upstream:
        models = {"summariser_models": f"small@{upstream.url}/v1"} if named else {}
        async with (
            served(upstream, window=3_000, compaction_preset="llms", **models) as gate,
            gate.openai() as client,
        ):
            for turns in (14, 15, 16):
                await client.chat.completions.create(model="gpt-4o", messages=agent(turns), max_tokens=200)

    assert {one.is_summary for one in seen} == {True, False}
    assert {one.owner for one in seen} == {"local"}


@pytest.mark.feature("X16")
@pytest.mark.parametrize("headers", [{}, {"X-Refold": "off"}], ids=["hosted", "off"])
async def test_a_filter_refuses_a_request_in_the_words_of_the_format(harbour, headers):
    import anthropic
    import openai

    async with ScriptedUpstream(otherwise="Fine.") as upstream, served(upstream, window=20_000) as gate:
        words = [{"role": "user", "content": "Load the embargoed cargo."}]
        async with gate.openai() as client:
            with pytest.raises(
                openai.PermissionDeniedError, match="refused by the plugin harbour: this cargo"
            ):
                await client.chat.completions.create(model="gpt-4o", messages=words, extra_headers=headers)
        async with gate.anthropic() as client:
            with pytest.raises(anthropic.PermissionDeniedError, match="under an embargo"):
                await client.messages.create(
                    model="claude-opus-4-8", messages=words, max_tokens=100, extra_headers=headers
                )
        assert upstream.requests == []


@pytest.mark.feature("X16")
async def test_a_response_filter_reads_every_answer_and_can_refuse_it(harbour):
    import openai

    leak = "The key is HARBOUR-KEY-7."
    async with (
        ScriptedUpstream("Fine.", leak, leak, otherwise="Fine.") as upstream,
        served(upstream, window=20_000) as gate,
        gate.openai() as client,
    ):
        words = [{"role": "user", "content": "Hello."}]
        first = await client.chat.completions.create(model="gpt-4o", messages=words)
        assert first.choices[0].message.content == "Fine."
        with pytest.raises(openai.PermissionDeniedError, match="the answer holds a key"):
            await client.chat.completions.create(model="gpt-4o", messages=words)
        stream = await client.chat.completions.create(model="gpt-4o", messages=words, stream=True)
        with pytest.raises(openai.APIError, match="the answer holds a key"):
            [chunk async for chunk in stream]
    assert harbour.counts["harbour", "response", "refused"] == 2


@pytest.mark.feature("X16")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_after_a_recall_of_the_gateway_is_filtered_too(harbour, stream):
    import openai

    recall = say(call("recall", {"what": "#m0"}))
    async with (
        ScriptedUpstream(recall, "The key is HARBOUR-KEY-7.") as upstream,
        served(upstream, window=20_000, compaction_recall_tool=True) as gate,
        gate.openai() as client,
    ):
        words = [{"role": "user", "content": "What was said to clerk@example.com?"}]

        async def read():
            answer = await client.chat.completions.create(model="gpt-4o", messages=words, stream=stream)
            return [chunk async for chunk in answer]

        with pytest.raises(openai.APIError, match="the answer holds a key"):
            await read()

    assert len(upstream.requests) == 2
    assert "@example.com" not in json.dumps([one.json for one in upstream.requests])


@pytest.mark.feature("X16")
async def test_a_stage_and_a_trigger_take_part_in_compaction():
    events = []

    def stage(shown, room):
        """Shorten old results by their time stamps."""
        return refold_harbour.drop_time_stamps(shown, room)

    refold_harbour = sys.modules.get("refold_plugin_refold_harbour") or load_example()
    plugin = refold.Plugin(
        name="gauges",
        api=1,
        timeout_s=60,
        stages=[stage],
        triggers={"before_call": lambda facts: "noon" if facts.messages > 40 else ""},
    )
    use(plugins_of(plugin))
    async with refold.Conversation("gpt-4o", window=20_000, max_output=500, on_event=events.append) as talk:
        await talk.add(*agent(9))
        assert not [one for one in events if isinstance(one, refold.CompactionEnd)]
        await talk.add(*agent(4)[1:])
        window = await talk.context()
        receipts = [one for one in talk.receipts if one.edits]

        assert "gauges: noon" in {one.reason for one in talk.receipts}
        assert {edit.stage for one in receipts for edit in one.edits} >= {"plugin:gauges"}
        shown = [
            one for one in window["messages"] if one["role"] == "tool" and "[gauges: #m" in one["content"]
        ]
        number = (
            shown[0]["content"].split("[gauges: ")[1].rstrip("]") if shown else receipts[0].edits[0].handle
        )
        assert "2026-03-01T10:00:00Z" in json.dumps(await talk.recall(number))


def load_example():
    from refold.plugins.registry import load_file

    load_file(FILE)
    return sys.modules["refold_plugin_refold_harbour"]


def plugins_of(plugin: refold.Plugin) -> Plugins:
    from refold.plugins.registry import LoadedPlugin, PluginGuard

    return Plugins([LoadedPlugin(plugin, "a test", PluginGuard(plugin))])


@pytest.mark.feature("X16", "L11")
async def test_names_of_a_plugin_work_where_names_of_ours_do(harbour, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {
        "model": "harbour-1",
        "preset": "harbour",
        "summariser": "plugin:first-lines",
        "window": 3_000,
    }
    async with refold.Engine("pier://north", max_output=200, **settings) as engine:
        talk = await engine.conversation("tides")
        await talk.add(*agent(20))
        await talk.compact()
        status = await talk.status()

        assert status.summary.text.startswith("model") or "- Read gauge" in json.dumps(await talk.context())
        assert await refold.run_command(talk, "/tide Vik") == "High water at Vik: 12:04."
    assert (tmp_path / "north.db").exists()
    assert harbour.counts["harbour", "summariser", "ok"] >= 1
    with pytest.raises(refold.ConfigError, match="no plugin has a summariser"):
        refold.Conversation("gpt-4o", summariser="plugin:none")


@pytest.mark.feature("X16")
async def test_a_plugin_that_fails_is_counted_in_the_metrics_and_the_status():
    def broken(request):
        raise RuntimeError("secret words")

    use(plugins_of(refold.Plugin(name="broken", api=1, timeout_s=60, on_request=broken)))
    metrics = PrometheusMetrics()
    async with (
        ScriptedUpstream(say("Fine.")) as upstream,
        served(upstream, window=20_000, metrics=metrics) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "Hello."}])
        _, status = await asked(gate, "GET", "status")

    line = 'refold_plugin_calls_total{outcome="raised",plugin="broken",point="request"} 1.0'
    assert line in metrics.text()[0].decode()
    assert status["plugins"] == [{"name": "broken", "version": "", "calls": {"request": {"raised": 1}}}]


@pytest.mark.feature("X16")
def test_an_installed_package_is_found_listed_and_tried(tmp_path):
    """The example package, installed with pip into a folder of its own."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
    ]
    subprocess.run([*pip, str(tmp_path / "site"), str(EXAMPLE)], check=True, capture_output=True)
    environ = {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path), "PATH": ""}

    def program(*args):
        done = subprocess.run(
            [sys.executable, "-m", "refold", *args],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, listed, _ = program("plugins", "list", "--json")
    assert code == 0
    found = json.loads(listed)["plugins"][0]
    assert (found["name"], found["fails"], found["source"]) == ("harbour", "closed", "refold-harbour 1.0.0")
    assert len(found["points"]) == 9
    code, tried, _ = program("plugins", "check", "harbour", "--json")
    assert (code, {one["passed"] for one in json.loads(tried)["trials"]}) == (0, {True})


@pytest.mark.feature("X16")
def test_a_file_in_the_settings_is_loaded_and_a_broken_one_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import refold\nplugin = refold.Plugin(name='later', api=2)\n")
    monkeypatch.setenv("REFOLD_PLUGINS_FILES", str(FILE))
    monkeypatch.setenv("REFOLD_PLUGINS_INSTALLED", "false")

    assert run(["plugins", "list"]) == 0
    assert "harbour" in capsys.readouterr().out
    assert run(["plugins", "check", str(wrong)]) == 1
    assert "version 2 of the plugin protocols" in capsys.readouterr().err
    wrong.write_text("import refold\n\ndef broken(:\n")
    assert run(["plugins", "check", str(wrong)]) == 1
    assert "SyntaxError at wrong.py:3" in capsys.readouterr().err
    monkeypatch.setenv("REFOLD_PLUGINS_FILES", str(wrong))
    assert run(["plugins", "list"]) == 1
    monkeypatch.setenv("REFOLD_PLUGINS_FILES", "")
    monkeypatch.setenv("REFOLD_PLUGINS_REQUIRED", "harbour")
    assert run(["serve", "--store", str(tmp_path)]) == 2
    assert "the required plugin 'harbour' is not loaded" in capsys.readouterr().err
    monkeypatch.delenv("REFOLD_PLUGINS_REQUIRED")


@pytest.mark.feature("X16")
@pytest.mark.parametrize(
    "code", ["threading.Event().wait(60)", "plugin = lambda: threading.Event().wait(60)"]
)
def test_a_file_that_hangs_when_it_is_loaded_is_named_after_a_deadline(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("refold.plugins.registry.LOAD_S", 0.2)
    hangs = tmp_path / "hangs.py"
    hangs.write_text(f"import threading\n{code}\n")
    monkeypatch.setenv("REFOLD_PLUGINS_INSTALLED", "false")

    assert run(["plugins", "check", str(hangs)]) == 1
    assert "hangs.py: its import has not ended after 0.2 s" in capsys.readouterr().err
    monkeypatch.setenv("REFOLD_PLUGINS_FILES", str(hangs))
    assert run(["plugins", "list"]) == 1
    assert "hangs.py: its import has not ended after 0.2 s" in capsys.readouterr().err
    assert run(["serve", "--store", str(tmp_path)]) == 2
    assert "its import has not ended after 0.2 s" in capsys.readouterr().err


@pytest.mark.feature("X16")
def test_the_code_of_an_installed_plugin_that_is_off_does_not_run(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "bad-1.dist-info").mkdir(parents=True)
    (site / "bad-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (site / "bad-1.dist-info" / "entry_points.txt").write_text("[refold.plugins]\nbad = bad_plugin:plugin\n")
    (site / "bad_plugin.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit\n")
    monkeypatch.syspath_prepend(site)

    assert [one.name for one in find_plugins(off=["bad"]).problems] == []
    assert not (tmp_path / "ran").exists()
    assert [one.name for one in find_plugins().problems] == ["bad"]


@pytest.mark.feature("X16")
@pytest.mark.parametrize(
    "line", [f'files = ["{FILE}"]', 'off = ["harbour"]', "required = []", "installed = false"]
)
def test_a_projects_file_can_neither_name_plugins_nor_switch_them_off(line, tmp_path, monkeypatch, capsys):
    """What protects the user's data is the user's choice: the user requires the plugin `harbour`."""
    own = tmp_path / "own.toml"
    own.write_text(f'[plugins]\nfiles = ["{FILE}"]\nrequired = ["harbour"]\n')
    project = tmp_path / "project"
    project.mkdir()
    (project / "refold.toml").write_text(f"[plugins]\n{line}\n")
    monkeypatch.setenv("REFOLD_CONFIG", str(own))
    monkeypatch.chdir(project)

    for command in (["plugins", "list"], ["serve", "--store", str(tmp_path)], ["config", "check"]):
        assert run(command) in (1, 2)
        told = capsys.readouterr()
        assert "must not choose the programs and plugins that run" in told.out + told.err
        assert "refold.toml, line 2" in told.out + told.err
