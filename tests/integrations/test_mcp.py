"""The MCP server: the official client over stdio, against the real command on a real file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from refold.cli.main import run
from refold.embeddings import installed
from refold.engine.engine import Engine
from tests.bad_queries import BAD_QUERIES
from tests.damage import damage
from tests.program import command

mcp = pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
if not hasattr(mcp, "Client"):
    pytest.skip("this `mcp` is older than 2.0, which the server needs", allow_module_level=True)

ROOT = Path(__file__).parents[2]
REPORT = "".join(f"{line:04}: the gauge at Vik reads {line * 37 % 1000} mm\n" for line in range(900))
SETTINGS = {"window": 6_000, "max_output": 500}
MODULES = ("refold.cli.main", "refold.cli.output", "refold.cli.settings", "refold.cli.store_access",
           "refold.stores.sqlite.store", "refold.integrations.mcp", "mcp.server.stdio")  # fmt: skip
"""What the command imports: its processes are copies of one."""


async def fill(path: Path) -> None:
    """Two conversations of one owner, the first with much behind it, and one of another owner."""
    url = f"sqlite:///{path}"
    async with Engine(url, **SETTINGS) as engine:
        talk = await engine.conversation("tides", model="gpt-4o", title="Gauges\nof the north")
        call = {"name": "gauge", "arguments": '{"at": "Vik"}'}
        await talk.add(
            "How is the water at Vik?",
            {
                "role": "assistant",
                "content": "I will look.",
                "tool_calls": [{"id": "a", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "a", "content": REPORT},
            {"role": "assistant", "content": "It is low."},
        )
        for turn in range(40):
            await talk.add(f"And ferry number {turn}? " + "It matters to me. " * 20)
            await talk.context()
            await talk.add({"role": "assistant", "content": f"Ferry {turn} is late. " * 20})
        await talk.add("My number is 4242-1111.", sensitive=True)
        sent = str((await talk.context())["messages"])
        assert "0500: the gauge" not in sent
        other = await engine.conversation("recipes")
        await other.add("How much rhubarb goes into the pie?")
    async with Engine(url, owner="mallory", **SETTINGS) as engine:
        await (await engine.conversation("heist")).add(
            "The vault at Vik opens at nine, and the gauge is dry."
        )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "chats.db"
    asyncio.run(fill(path))
    return path


class Refused(Exception):
    pass


def spoken(result: mcp.types.CallToolResult) -> str:
    """What a tool said; an error where it is one."""
    (content,) = result.content
    if result.is_error:
        raise Refused(content.text)
    return content.text


class Asking:
    def __init__(self, client: mcp.Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: object) -> str:
        return spoken(await self.client.call_tool(tool, arguments))


@asynccontextmanager
async def connected(path: Path, *args: str) -> AsyncIterator[Asking]:
    first, *others = command(modules=MODULES)
    words = [*others, "mcp", "--store", f"sqlite:///{path}", *args]
    server = mcp.StdioServerParameters(command=first, args=words, cwd=ROOT)
    with open(os.devnull, "w", encoding="utf-8") as errors:  # noqa: ASYNC230, PTH123
        async with mcp.Client(mcp.stdio_client(server, errlog=errors)) as client:
            yield Asking(client)


@asynccontextmanager
async def in_process(path: Path) -> AsyncIterator[Asking]:
    """The same server and client in this process: a start of the program takes longer than all questions of a test."""
    from refold.integrations.mcp import ConversationTools, server_for

    async with Engine(f"sqlite:///{path}") as engine:

        async def opened() -> Engine:
            return engine

        async with mcp.Client(server_for(ConversationTools(opened))) as client:
            yield Asking(client)


@pytest.mark.feature("N2")
async def test_an_original_that_was_compacted_away_comes_back_word_for_word(store):
    pages, start = [], 0
    async with connected(store) as ask:
        while start < len(REPORT):
            said = await ask("recall", conversation="tides", handle="#m2", start=start)
            text, _, cut = said.partition("\n")[2].rpartition("\n[cut: ")
            pages.append(text)
            start = int(re.search(r"to (\d+) of", cut)[1])

            assert said.startswith("#m2, the result of a tool:\n")
        parts = await ask("recall", conversation="tides", handle="#m1.2")
        summary = await ask("recall", conversation="tides", handle="#s0")

    assert "".join(pages) == REPORT
    assert parts.endswith('call of gauge: {"at": "Vik"}')
    assert "Vik" in summary


@pytest.mark.feature("N2")
async def test_a_search_names_the_conversation_and_the_handle_that_open_what_it_found(store):
    async with in_process(store) as ask:
        everywhere = await ask("search", words="rhubarb pie")
        within = await ask("search", words="gauge Vik 0873", conversation="tides", limit=1)
        nothing = await ask("search", words="rhubarb", conversation="tides")

    assert everywhere == "Found, with handles:\nrecipes\n#m0 user: How much rhubarb goes into the pie?"
    assert within.startswith("Found, with handles:\ntides\n#m2 ")
    assert f"0873: the gauge at Vik reads {873 * 37 % 1000} mm" in within
    assert nothing.startswith("Nothing that was said")


@pytest.mark.skipif(installed() is None, reason="the extra `search` is not installed")
async def test_the_command_finds_by_meaning_what_was_said_in_other_words(store):
    async with connected(store) as ask:
        found = await ask("search", words="baking a fruit dessert", conversation="recipes")

    assert found == "Found, with handles:\nrecipes\n#m0 user: How much rhubarb goes into the pie?"


async def test_the_tools_say_that_they_only_read_and_what_a_handle_is(store):
    async with in_process(store) as ask:
        tools = {tool.name: tool for tool in (await ask.client.list_tools()).tools}
        info, instructions = ask.client.server_info, ask.client.instructions
        listed = await ask("list_conversations")
        chosen = await ask("list_conversations", words="recip")
        first = await ask("list_conversations", limit=1)

    assert set(tools) == {"list_conversations", "search", "recall"}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert tools["recall"].input_schema["required"] == ["conversation", "handle"]
    assert "#m12.2" in tools["recall"].description
    assert info.name == "refold"
    assert "#m12.2" in instructions
    assert [line.partition(":")[0] for line in listed.splitlines()] == ["recipes", "tides"]
    assert re.search(r"^tides: 85 messages, last .* UTC, Gauges of the north$", listed, re.MULTILINE)
    assert chosen.startswith("recipes: 1 ")
    assert first.splitlines()[1:] == ["[the latest 1; there may be more]"]


@pytest.mark.parametrize(
    "tool, arguments, words",
    [
        ("recall", {"conversation": "tides", "handle": "#m9999"}, "there is no message 9999"),
        ("recall", {"conversation": "tides", "handle": "the gauge"}, "is no handle"),
        ("recall", {"conversation": "tides", "handle": "m9999"}, "there is no message 9999"),
        ("recall", {"conversation": "tides", "handle": "#m0", "start": 900}, "only 24 characters"),
        ("recall", {"conversation": "tides", "handle": "#m84"}, "marked as sensitive"),
        ("recall", {"conversation": "tidse", "handle": "#m1"}, "no conversation of this name"),
        ("recall", {"conversation": "", "handle": "#m1"}, "no conversation of this name"),
        ("recall", {"conversation": "tides", "handle": "#m1", "branch": "x"}, "no branch of this conv"),
        ("search", {"words": " "}, "nothing to search for"),
        ("search", {"words": "pie", "conversation": "tidse"}, "no conversation of this name"),
    ],
)
async def test_what_cannot_be_answered_is_an_error_with_a_hint(store, tool, arguments, words):
    async with in_process(store) as ask:
        with pytest.raises(Refused, match=words) as refused:
            await ask(tool, **arguments)

    assert "\nhint: " in str(refused.value)


async def test_errors_reach_the_client_of_the_real_server_and_it_goes_on(store):
    async with connected(store) as ask:
        with pytest.raises(Refused, match=r"there is no message 9999(.|\n)*hint: handles look like"):
            await ask("recall", conversation="tides", handle="#m9999")
        with pytest.raises(Refused, match=r"no conversation of this name\nhint: list_conversations"):
            await ask("recall", conversation="nowhere", handle="#m0")
        with pytest.raises(Refused, match="handle"):
            await ask("recall", conversation="tides")
        listed = await ask("list_conversations")

    assert "nowhere" not in listed


@pytest.mark.feature("N2")
async def test_what_another_owner_said_is_out_of_reach(store):
    async with in_process(store) as ask:
        assert "heist" not in await ask("list_conversations")
        assert "vault" not in await ask("search", words="vault Vik")
        for tool, arguments in (
            ("recall", {"conversation": "heist", "handle": "#m0"}),
            ("search", {"words": "vault", "conversation": "heist"}),
        ):
            with pytest.raises(Refused, match="no conversation of this name"):
                await ask(tool, **arguments)
    async with connected(store, "--owner", "mallory") as ask:
        assert (await ask("list_conversations")).startswith("heist: 1 messages")
        assert "vault" in await ask("recall", conversation="heist", handle="#m0")
        with pytest.raises(Refused):
            await ask("recall", conversation="tides", handle="#m0")


@pytest.mark.feature("N2")
async def test_a_message_beside_a_damaged_one_is_recalled_and_a_sensitive_one_is_not(tmp_path):
    path = tmp_path / "chats.db"
    async with Engine(path) as engine:
        talk = await engine.conversation("plans")
        await talk.add("Where to?", {"role": "assistant", "content": "North, by the old lighthouse."})
        await talk.add("My number is 4242-1111.", sensitive=True)
    damage(path, "plans", 0)
    async with in_process(path) as ask:
        said = await ask("recall", conversation="plans", handle="#m1")
        assert said == "#m1, from the assistant:\nNorth, by the old lighthouse."
        with pytest.raises(Refused, match="the conversation 'plans' is damaged: message 0 cannot be read"):
            await ask("recall", conversation="plans", handle="#m0")
        with pytest.raises(Refused, match="is marked as sensitive"):
            await ask("recall", conversation="plans", handle="#m2")


async def test_a_message_of_another_branch_is_opened_there(tmp_path):
    path = tmp_path / "forks.db"
    async with Engine(f"sqlite:///{path}") as engine:
        talk = await engine.conversation("plans")
        await talk.add("Where to?", {"role": "assistant", "content": "North, by the old lighthouse."})
        fork = await engine.fork("plans", 1)
        newer = await engine.conversation("plans", branch=fork)
        await newer.add({"role": "assistant", "content": "South, through the orchard."})
    async with in_process(path) as ask:
        for words, place in (("lighthouse", "North, by the old"), ("orchard", "South, through the")):
            _, head, text = (await ask("search", words=words)).split("\n", 2)
            found = re.fullmatch(r"plans(?: \(branch (\w+)\))?", head)
            said = await ask("recall", conversation="plans", handle=text[:3], branch=found[1] or "")

            assert said.startswith(f"#m1, from the assistant:\n{place}")


async def test_a_store_that_is_not_there_is_not_made_and_found_when_it_is(store, tmp_path):
    path = tmp_path / "later.db"
    async with connected(path) as ask:
        with pytest.raises(Refused, match=r"there is no store yet(.|\n)*hint: "):
            await ask("list_conversations")
        assert not path.exists()
        path.write_bytes(store.read_bytes())
        assert "tides" in await ask("list_conversations")


async def test_reading_changes_nothing(store):
    async with in_process(store) as ask:
        await ask("search", words="gauge")
        before = await everything(store)
        await ask("recall", conversation="tides", handle="#m2")
        await ask("list_conversations")

    assert await everything(store) == before


async def everything(path: Path) -> object:
    async with Engine(f"sqlite:///{path}") as engine:
        found = await engine.conversations()
        heads = [await engine.store.head(engine.owner, one.id) for one in found]
        return found, heads, [await engine.sessions(one.id) for one in found]


@pytest.mark.parametrize("url", ["memory:", "sqlite:chats.db", "sqlite:///usr/chats.db"])
def test_a_store_that_cannot_work_ends_the_command(url, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, (out, err) = run(["mcp", "--store", url]), capsys.readouterr()

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "\nhint: " in err


def test_the_end_of_stdin_ends_the_server(store):
    argv = [sys.executable, "-m", "refold", "mcp", "--store", f"sqlite:///{store}"]
    ended = subprocess.run(argv, cwd=ROOT, input="", capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


async def test_the_page_shows_settings_that_work_and_the_tools_that_there_are(store):
    page = (ROOT / "docs" / "recall.md").read_text(encoding="utf-8")
    settings = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])["mcpServers"]["refold"]
    command, *args = settings["args"]
    async with connected(store, *(arg.replace("/home/me/chats.db", str(store)) for arg in args)) as ask:
        tools = (await ask.client.list_tools()).tools
        listed = await ask("list_conversations")

    assert (settings["command"], command) == ("refold", "mcp")
    assert "tides" in listed
    for tool in tools:
        (row,) = re.findall(rf"^\| `{tool.name}` \| (.*?) \|", page, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == set(tool.input_schema["properties"])


async def test_whatever_is_searched_for_gives_results_or_a_clear_word(store):
    async with in_process(store) as ask:
        for words in BAD_QUERIES:
            if "\ud800" not in words:  # JSON of the protocol has no half of a pair
                assert await ask("search", words=words)
        with pytest.raises(Refused, match="there is nothing to search for"):
            await ask("search", words=" ")


async def test_a_date_without_words_lists_what_was_said_then(store):
    async with in_process(store) as ask:
        assert "rhubarb" in await ask("search", words="after:2020", conversation="recipes")
        nothing = await ask("search", words="before:2001")
    assert nothing == "Nothing was said at this time. Days begin at midnight UTC."


def test_half_of_a_pair_in_a_request_gets_an_answer(store):
    def request(number: int, words: str) -> str:
        arguments = f'{{"name": "search", "arguments": {{"words": "{words}"}}}}'
        return f'{{"jsonrpc": "2.0", "id": {number}, "method": "tools/call", "params": {arguments}}}'

    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": start}),
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        request(1, "rhubarb \\ud800"),
        request(2, "\\udc00\\ud83d\\ude00 rhubarb \\uD83D"),
        request(3, "rhubarb \\\\ud800"),
    ]
    argv = [*command(modules=MODULES), "mcp", "--store", f"sqlite:///{store}"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        server.stdin.write("\n".join([*lines, ""]))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(4)]
        server.stdin.close()

    assert sorted(one["id"] for one in answers) == [0, 1, 2, 3]
    for one in answers:
        if one["id"]:
            assert "rhubarb goes into the pie" in one["result"]["content"][0]["text"]


async def test_an_assistant_is_told_about_a_date_that_there_is_not(store):
    async with in_process(store) as ask:
        told = await ask("search", words="rhubarb after:2026-13")
    assert told.startswith("Found, with handles:\nrecipes\n#m0 user: ")
    assert told.endswith(
        "[after:2026-13: there is no such date, so it restricts nothing; dates look like 2026, 2026-05 or 2026-05-31]"
    )
