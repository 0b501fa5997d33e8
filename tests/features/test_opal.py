"""The features of the preset `opal`, through the doors that users have."""

from __future__ import annotations

import json

import openai
import pytest
from msgspec import structs

from refold import presets
from refold.cli.main import run
from refold.sync import Conversation, Engine
from refold.testing import Body, ScriptedUpstream
from tests.features.test_llms import cli
from tests.formats import answer, chat_call, chat_result, question, turn
from tests.gateway.conftest import served

PATCH = "*** Begin Patch\n*** Update File: src/cart.py\n@@\n-x\n+y\n*** End Patch"
READS = {
    "Claude Code": ("Read", {"file_path": "src/cart.py"}),
    "an MCP server": ("mcp__files__read_file", {"path": "src/cart.py"}),
    "another MCP server": ("mcp__my-box__read_text_file", {"path": "src/cart.py"}),
    "Gemini CLI": ("read_many_files", {"paths": ["src/cart.py", "README.md"]}),
    "cat": ("bash", {"command": "cat src/cart.py"}),
    "cat in a folder": ("bash", {"command": "cd src && cat cart.py", "description": "Show it"}),
    "sed": ("run_in_terminal", {"command": "sed -n '10,40p' src/cart.py"}),
    "head": ("run_shell_command", {"command": "head -n 50 src/cart.py"}),
    "tail": ("shell", {"command": ["bash", "-lc", "tail -20 src/cart.py"], "workdir": "/srv"}),
}
WRITES = {
    "Claude Code": ("Edit", {"file_path": "src/cart.py", "old_string": "x", "new_string": "y"}),
    "an MCP server": ("mcp__files__write_file", {"path": "src/cart.py", "content": "y"}),
    "Copilot": ("multi_replace_string_in_file", {"replacements": [{"filePath": "src/cart.py"}]}),
    "Codex": ("shell", {"command": ["apply_patch", PATCH]}),
    "Codex, by bash": ("shell", {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"]}),
    "Codex, by name": ("apply_patch", {"input": PATCH}),
}
NEITHER = {
    "a search": ("bash", {"command": "grep -n tax src/cart.py"}),
    "a count": ("bash", {"command": "cat src/cart.py | wc -l"}),
    "another tool": ("load_doc", {"path": "src/cart.py"}),
}


def files_after(*calls, policy=presets.OPAL):
    """Return the files that were read and those that were modified, by the summary of a folded conversation."""
    talk = Conversation("gpt-4o", window=4_000, max_output=400, policy=policy)
    talk.add(question("Fix the cart."))
    for name, arguments in calls:
        talk.add(chat_call(name, **arguments), chat_result(name, "fine"))
    talk.add(answer("Done."))
    for number in range(12):
        talk.add(*turn(number))
        talk.context()
        talk.add(question(f"And {number}?"), answer("Yes. " * 40))
    talk.add(question("And now?"))
    text = str(talk.context()["messages"])
    summary = talk.receipts[-1].summary
    assert all(path in text for path in (*summary.read[:1], *summary.modified[:1]))
    own = ("src/cart.py", "README.md")
    return tuple([path for path in paths if path in own] for paths in (summary.read, summary.modified))


@pytest.mark.feature("O11")
@pytest.mark.parametrize("client", READS)
def test_a_file_that_a_common_tool_reads_is_listed(client):
    read, modified = files_after(READS[client])
    assert read[0] == "src/cart.py"
    assert modified == []


@pytest.mark.feature("O11")
@pytest.mark.parametrize("client", WRITES)
def test_a_file_that_a_common_tool_changes_is_modified_only(client):
    assert files_after(READS["cat"], WRITES[client], READS["cat"]) == ([], ["src/cart.py"])


@pytest.mark.feature("O11")
@pytest.mark.parametrize("call", NEITHER)
def test_other_calls_read_no_file(call):
    assert files_after(NEITHER[call]) == ([], [])


@pytest.mark.feature("O11")
def test_the_tools_that_count_are_configurable_in_the_library():
    tools = presets.OPAL.file_tools.with_names(reads=("load_doc",), writes=("save_doc",))
    policy = structs.replace(presets.OPAL, file_tools=tools)
    load, save = ("load_doc", {"path": "README.md"}), ("mcp__docs__save_doc", {"path": "src/cart.py"})
    assert files_after(load, save, policy=policy) == (["README.md"], ["src/cart.py"])
    assert files_after(load, save) == ([], [])


@pytest.mark.feature("O11")
async def test_the_tools_that_count_are_settings_of_the_gateway():
    said = [question("Fix the docs.")]
    for name in ("load_doc", "save_doc"):
        said += [chat_call(name, path=f"docs/{name}.md"), chat_result(name, "fine")]
    said += [answer("Done."), *(message for number in range(30) for message in turn(number))]
    flags = {"compaction_read_tools": ["load_doc"], "compaction_write_tools": ["save_doc"]}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=4_000, summariser_enabled=False, compaction_preset="opal", **flags) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[*said, question("And now?")])
        text = json.dumps(json.loads(upstream.requests[-1].body)["messages"])
    assert "## Files modified\\n- docs/save_doc.md" in text
    assert "- docs/load_doc.md" in text.partition("## Files read")[2]


def asked_and_sent(strategy, tmp_path, monkeypatch, capsys):
    """Compact a stored conversation with a strategy; return the questions to the model, and the summary."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with Engine(url, model="gpt-4o", window=60_000) as engine:
        talk = engine.conversation("shop")
        for number in range(12):
            talk.add(*turn(number, lines=60))
        talk.add(question("Which value has file 3?"))
    with ScriptedUpstream(otherwise="The user asked what is in each file, and was told.") as upstream:
        writer = ["--summariser", f"gpt-4o@{upstream.url}/v1", "--preset", "opal"]
        args = ["compact", "shop", "--window", "4000", "--max-output", "400", "--store", url, *writer]
        code = run([*args, *(["--strategy", strategy] if strategy else [])])
        capsys.readouterr()
        questions = [json.loads(one.body) for one in upstream.requests]
    assert code == 0
    with Engine(url, model="gpt-4o", preset="opal", window=4_000, max_output=400) as engine:
        talk = engine.conversation("shop")
        sent = json.dumps(talk.context()["messages"])
    return questions, sent


@pytest.mark.feature("X10")
def test_the_strategy_of_a_summary_is_chosen_at_the_command_line(tmp_path, monkeypatch, capsys):
    found = {}
    for strategy in ("", "abstractive", "hierarchical", "selective", "extractive", "truncate"):
        folder = tmp_path / (strategy or "default")
        folder.mkdir()
        found[strategy] = asked_and_sent(strategy, folder, monkeypatch, capsys)
    asked = {name: len(questions) for name, (questions, _) in found.items()}
    assert asked["extractive"] == asked["truncate"] == 0
    assert asked[""] == asked["abstractive"] >= 1
    assert asked["hierarchical"] >= 1
    assert "value_3" in json.dumps(found["abstractive"][0])
    assert "value_3 =" not in json.dumps(found["selective"][0])  # results of tools are left out
    assert "[Compacted messages: " in found["truncate"][1]
    assert "[Compacted messages: " not in found["extractive"][1]


@pytest.mark.feature("X10")
async def test_the_strategy_of_a_summary_is_a_setting_of_the_gateway():
    said = [message for number in range(30) for message in turn(number)]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=4_000, compaction_preset="opal", summariser_strategy="truncate") as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[*said, question("And now?")])
        assert len(upstream.requests) == 1
        assert "[Compacted messages: " in upstream.requests[-1].body.decode()


@pytest.mark.feature("X10")
def test_an_unknown_strategy_is_refused(capsys):
    assert run(["compact", "examples/coding-agent.json", "--strategy", "guess", "--dry-run"]) != 0
    assert "summariser.strategy" in "".join(capsys.readouterr())


TYPE_COMPLAINTS = {
    "OpenAI": {
        "error": {
            "message": "Invalid type for 'max_tokens': expected an integer, but got a string instead.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "invalid_type",
        }
    },
    "vLLM": {
        "object": "error",
        "message": "[{'type': 'int_parsing', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be a valid integer, "
        "unable to parse string as an integer', 'input': 'abc'}]",
        "type": "BadRequestError",
        "code": 400,
    },
}


@pytest.mark.feature("O12")
@pytest.mark.parametrize("provider", TYPE_COMPLAINTS)
async def test_a_complaint_about_the_type_of_a_parameter_is_not_taken_for_an_overflow(provider):
    complaint = TYPE_COMPLAINTS[provider]
    messages = [
        question(f"Why? {'It does not work. ' * 200}"),
        answer("No idea. " * 200),
        question("And now?"),
    ]
    async with (
        ScriptedUpstream(otherwise=Body.of(400, complaint)) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="gpt-4o", messages=messages)

    assert len(upstream.requests) == 1
    assert refused.value.response.headers["x-refold-action"] == "none"
    assert refused.value.response.json() == complaint


ENGLISH = "The customer wrote again, and wants to know why the parcel has not left the harbour yet. "


def small_talk(turns=12, **settings):
    """A conversation that takes a small part of its window."""
    talk = Conversation("gpt-4o", window=100_000, **settings)
    for number in range(turns):
        talk.add(question(f"Parcel {number}: {ENGLISH * 12}"), answer(f"About {number}: {ENGLISH * 10}"))
    talk.add(question("And now?"))
    return talk


@pytest.mark.feature("O2")
@pytest.mark.parametrize("preset", ["refold", "lis", "opal", "llms", "picoclaw", "librechat"])
def test_a_compaction_that_is_asked_for_frees_room_without_a_model_in_a_window_that_is_not_full(preset):
    talk = small_talk(preset=preset)
    before = talk.status().tokens
    talk.compact(keep=300)

    assert talk.status().tokens < before * 0.5


@pytest.mark.feature("O2")
def test_keep_says_how_much_of_the_end_stays(tmp_path):
    few, many = small_talk(preset="opal"), small_talk(preset="opal")
    assert len(few.compact(keep=300)["messages"]) < len(many.compact(keep=2_000)["messages"])

    file = tmp_path / "parcels.json"
    messages = [
        message
        for n in range(12)
        for message in (question(f"Parcel {n}: {ENGLISH * 12}"), answer(ENGLISH * 10))
    ]
    file.write_text(json.dumps({"model": "gpt-4o", "messages": messages}))
    cli(tmp_path, "import", str(file), "--as", "parcels")
    kept = {
        keep: json.loads(cli(tmp_path, "compact", "parcels", "--keep", keep, "--dry-run", "--json"))["after"]
        for keep in ("300", "2000")
    }
    assert kept["300"] < kept["2000"]
