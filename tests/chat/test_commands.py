"""Commands run before any model call, in the queue's order, and cost no tokens."""

from __future__ import annotations

import asyncio
import re

import pytest

import refold
import refold.chat.chat as chat_module
from refold.chat.commands import COMMANDS, Command
from refold.engine.engine import Engine
from refold.model.errors import ConfigError, NotFound
from refold.model.tokens import Usage
from refold.plugins.registry import Plugins, use
from refold.ports.records import CommandEntry
from refold.testing import ScriptedUpstream, call, echo, say
from tests.bad_queries import BAD_QUERIES
from tests.chat.chats import FORMATS, Gate, chatting, messages, reply_of, said, sent, text_of
from tests.chat.test_queue import until

LONG = "the tide comes and goes by the pier and the boats lie still " * 12


@refold.tool
def read(path: str) -> str:
    """Read a file."""
    return f"{path}: " + "a line of the file that was read\n" * 120


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("/status", "/status", ""),
        ("  /STATUS  ", "/status", ""),
        ("/Compact the tide", "/compact", "the tide"),
        ("/clear", "/new", ""),
        ("/prune-tools", "/prune", ""),
        ("/stop", "/abort", ""),
        ("/cancel", "/abort", ""),
        ("/resume  #12", "/resume", "#12"),
        ("/compact\tthe tide", "/compact", "the tide"),
        ("/compact\nthe tide", "/compact", "the tide"),
    ],
)
def test_a_command_is_its_first_word(text, name, arguments):
    found = COMMANDS.read(text)
    assert (found.command.name, found.arguments) == (name, arguments)


@pytest.mark.parametrize(
    "text", ["hello", "status", "/etc/hosts is broken", "/ what?", "a /new", "/1", "/tmp/x"]
)
def test_other_texts_are_messages(text):
    assert COMMANDS.read(text) is None


@pytest.mark.feature("L11")
@pytest.mark.parametrize("wire", FORMATS)
async def test_commands_cost_no_tokens_and_are_never_sent(wire, store):
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store, wire=wire) as chat:
        await sent(chat, "one")
        for text in (
            "/status",
            "/help",
            "/context",
            "/diff",
            "/search one",
            "/compact",
            "/undo",
            "/prune",
            "/nonsense",
        ):
            assert reply_of(await sent(chat, text))
        assert len(server.requests) == 1, "no model was asked"
        await sent(chat, "two")

        assert [one.text for one in server.requests[1].messages] == ["one", "one", "two"]
        history = await chat.history()
        kept = [one for one in history if isinstance(one, CommandEntry)]
        assert [one.text for one in kept] == [
            "/status", "/help", "/context", "/diff", "/search one", "/compact", "/undo", "/prune", "/nonsense",
        ]  # fmt: skip
        assert all(one.reply for one in kept)
        assert len(history) == 4 + len(kept)
        assert isinstance(history[2], CommandEntry), "where it was typed"
        assert await chat.conversation.search("nonsense") == ""


async def test_the_context_is_told_in_the_size_that_the_status_has_with_its_source():
    reply = say("Fine.", usage=Usage(input=2_000, output=9))
    async with ScriptedUpstream(reply, otherwise=echo) as server, chatting(server) as chat:
        await sent(chat, "lorem ipsum " * 500)
        status = await chat.conversation.status()
        told = reply_of(await sent(chat, "/context"))
        assert status.tokens >= 2_000
        assert "report" in status.source
        assert f"The size is {status.source};" in told
        assert status.tokens > chat.conversation.measurement.content.tokens


@pytest.mark.feature("L11")
async def test_during_a_reply_those_that_read_run_at_once_and_others_wait():
    gate = Gate("First.")
    async with ScriptedUpstream(gate, otherwise=echo) as server, chatting(server) as chat:
        stream = chat.events()
        await chat.put("one")
        await gate.reached.wait()
        for text in ("/status", "/context", "/diff", "/search one", "/recall one", "/help"):
            assert reply_of(await sent(chat, text)), "at once"
        waits = asyncio.create_task(sent(chat, "/new"))
        await until(stream, refold.Queued)
        assert chat.conversation.journal.session.kind == "root"
        gate.opened.set()
        await until(stream, refold.Done)
        assert reply_of(await waits).startswith("✨ New session started. Previous session #")
        assert chat.conversation.journal.session.kind == "new"


async def test_after_the_queue_a_model_is_asked_only_if_a_message_was_last(store):
    gate = Gate("First.")
    async with ScriptedUpstream(gate, otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        await chat.put("one")
        await gate.reached.wait()
        await chat.put("two")
        await chat.put("/compact")
        gate.opened.set()
        ended = await until(stream, refold.Done, 2)
        assert [one.status for one in ended] == ["answered", "unanswered"]
        await until(stream, refold.CommandReply)
        assert len(server.requests) == 1
        assert (await said(chat.conversation))[-1] == ("user", "two"), "and it is kept"


@pytest.mark.feature("L11")
@pytest.mark.parametrize("text", ["/abort", "/stop", " /CANCEL "])
async def test_abort_stops_the_reply_at_once(text, store):
    gate = Gate("Never.")
    async with ScriptedUpstream(gate, otherwise=echo) as server, chatting(server, store) as chat:
        stream = chat.events()
        assert reply_of(await sent(chat, text)) == "Nothing to abort."
        await chat.put("one")
        await gate.reached.wait()
        assert reply_of(await sent(chat, text)) == "⛔ Aborted."
        (ended,) = await until(stream, refold.Done)
        assert ended.status == "aborted"
        assert text_of(await sent(chat, "two")) == "two"


async def test_status_has_the_lines_of_the_seed(store):
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        await sent(chat, "one")
        lines = reply_of(await sent(chat, "/status")).splitlines()
        assert [line.partition(":")[0] for line in lines] == [
            "🤖 Agent", "🧠 Model", "🧮 Tokens", "🗄️ Cache", "📚 Context", "🧵 Session",
        ]  # fmt: skip
        assert lines[1] == "🧠 Model: m-1"
        assert lines[3] == "🗄️ Cache: 0% hit · 0 cached · 0 new ⚠️ below min"
        assert lines[5].endswith(" · started just now · 2 messages")


async def test_new_keeps_the_reply_in_the_old_session(store):
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        await sent(chat, "one")
        before = chat.conversation.journal.session.id
        assert (
            reply_of(await sent(chat, "/new"))
            == f"✨ New session started. Previous session #{before[:8]} archived."
        )
        (kept,) = [one for one in await chat.history() if isinstance(one, CommandEntry)]
        assert (kept.session, kept.size) == (before, 2)
        empty = chat.conversation.journal.session.id
        assert reply_of(await sent(chat, "/clear")) == f"✨ New session #{empty[:8]} started."
        assert chat.conversation.journal.session.id == empty, "an empty one is as good as new"


async def test_compact_needs_two_messages_and_takes_a_focus():
    async with ScriptedUpstream(otherwise="Noted.") as server, chatting(server) as chat:
        assert reply_of(await sent(chat, "/compact")) == "Not enough messages to compact."
        for n in range(8):
            await sent(chat, f"Note {n}: {LONG}")
        session = chat.conversation.journal.session.id
        events = await sent(chat, "/compact the boats")
        begun, ended = reply_of(events).splitlines()
        assert begun == f"⚙️ Compacting session #{session[:8]}..."
        assert re.fullmatch(r"⚙️ Compacted \(\S+ → \S+\)", ended), "the size before and after"
        notices = [one.text for one in events if isinstance(one, refold.Notice)]
        assert any(text.startswith("⚙️ Compacted (") for text in notices), notices
        assert "Compactions: 1" in reply_of(await sent(chat, "/status"))
        diff = reply_of(await sent(chat, "/diff"))
        assert "- left: #m0 to" in diff
        assert reply_of(await sent(chat, "/undo")).startswith("↩️ Taken back (")
        assert reply_of(await sent(chat, "/undo")) == "Nothing to undo."


class Hanging:
    """A summariser that never answers."""

    def __init__(self):
        self.asked, self.calls, self.stopped = asyncio.Event(), 0, 0

    async def __call__(self, given, *, previous, max_tokens):
        self.calls += 1
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise


@pytest.mark.feature("L11")
@pytest.mark.parametrize("way", ["command", "method"])
async def test_a_compaction_that_waits_for_a_model_is_stopped(way, store):
    model = Hanging()
    async with ScriptedUpstream(otherwise=echo) as server:
        async with (
            asyncio.timeout(20),
            chatting(server, store, conversation={"summariser": model}) as chat,
        ):
            for n in range(8):
                await sent(chat, f"Note {n}: {LONG}")
            session, stream = chat.conversation.journal.head.session, chat.events()
            assert chat.activity == ""
            which = await chat.put("/compact the boats")
            await model.asked.wait()
            assert chat.activity == "compacting"
            await chat.put("two")
            if way == "command":
                assert reply_of(await sent(chat, "/abort")) == "⛔ Aborted."
            else:
                assert chat.abort()
            replies = list[refold.ChatEvent]()
            while not (replies and isinstance(replies[-1], refold.Done)):
                replies.append(await anext(stream))
            assert [
                one.text for one in replies if isinstance(one, refold.CommandReply) and one.entry == which
            ] == ["⛔ Stopped."]
            assert text_of(replies) == "two", "what waited is answered"
            assert chat.conversation.journal.head.session == session, "nothing was compacted"
            assert len(await messages(chat.conversation)) == 18, "nothing is lost"
            assert (model.calls, model.stopped, chat.activity) == (1, 1, "")
            assert reply_of(await sent(chat, "/abort")) == "Nothing to abort."
        async with chatting(server, store, conversation={"summariser": model}) as chat:
            assert text_of(await sent(chat, "three")) == "three"
            assert model.calls == 1, "it does not run again"


async def test_a_chat_that_is_closed_stops_a_compaction_at_once(store, monkeypatch):
    monkeypatch.setattr(chat_module, "CLOSE_S", 3_600.0)
    model = Hanging()
    async with asyncio.timeout(20), ScriptedUpstream(otherwise=echo) as server:
        async with chatting(server, store, conversation={"summariser": model}) as chat:
            for n in range(8):
                await sent(chat, f"Note {n}: {LONG}")
            stream = chat.events()
            await chat.put("/compact")
            await model.asked.wait()
            await chat.close()
            assert reply_of([one async for one in stream]) == "⛔ Stopped."
        async with chatting(server, store, conversation={"summariser": model}) as chat:
            assert text_of(await sent(chat, "three")) == "three"
            history = await chat.history()
            assert [one.reply for one in history if isinstance(one, CommandEntry)] == ["⛔ Stopped."]
            assert model.calls == 1, "it does not run again"


@pytest.mark.parametrize("preset", ["refold", "lis"])
async def test_prune_replaces_old_results_at_once(preset):
    script = [one for n in range(4) for one in (say(call("read", {"path": f"{n}.txt"}, id=f"c{n}")), "Read.")]
    settings = {"preset": preset}
    async with (
        ScriptedUpstream(*script) as server,
        chatting(server, tools=[read], conversation=settings) as chat,
    ):
        assert reply_of(await sent(chat, "/prune")) == "No messages to prune."
        for n in range(4):
            await sent(chat, f"Read {n}.")
        before = (await chat.conversation.status()).tokens
        events = await sent(chat, "/prune")
        assert reply_of(events).startswith("🔧 Tool outputs pruned (")
        assert (await chat.conversation.status()).tokens < before
        assert reply_of(await sent(chat, "/prune")) == "Tools already pruned up to the latest message."
        stored = [one.text for message in await messages(chat.conversation) for one in message.results]
        assert all(len(text) > 1_000 for text in stored), "the stored messages are untouched"


async def test_a_tool_that_is_to_be_summarised_is_not_pruned():
    kept = refold.tool(name="keep", prune="summarise")(lambda: "x" * 3_000)
    script = [
        one
        for n in range(3)
        for one in (say(call("keep", id=f"k{n}"), call("read", {"path": "a"}, id=f"r{n}")), "Read.")
    ]
    settings = {"preset": "lis"}
    async with (
        ScriptedUpstream(*script) as server,
        chatting(server, tools=[read, kept], conversation=settings) as chat,
    ):
        for n in range(3):
            await sent(chat, f"Read {n}.")
        await sent(chat, "/prune")
        shown = [
            (result.call_id, len(result.text))
            for item in chat.conversation.state.folded.items.items
            for result in item.message.results
        ]
        assert dict(shown)["r0"] < 100
        assert dict(shown)["k0"] == 3_000


async def test_resume_lists_finds_and_goes_on(store):
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        assert reply_of(await sent(chat, "/resume")) == "No previous sessions to resume."
        await sent(chat, "The lighthouse is in zanzibar.")
        first = chat.conversation.journal.session.id
        await sent(chat, "/new")
        await sent(chat, "The ferry goes at 50% of full speed_limit.")
        second = chat.conversation.journal.session.id
        await sent(chat, "/new")

        listed = reply_of(await sent(chat, "/resume")).splitlines()
        assert listed[0] == "📋 Recent sessions:"
        assert [line[:9] for line in listed[1:-1]] == [f"#{second[:8]}", f"#{first[:8]}"], "the newest first"
        assert listed[-1] == "💡 /resume <id> or /resume <search text>"

        found = reply_of(await sent(chat, "/resume zanzibar")).splitlines()
        assert (found[0], found[1][:9]) == ('🔍 Sessions matching "zanzibar":', f"#{first[:8]}")
        assert found[-1] == "💡 /resume <id> to continue"
        assert reply_of(await sent(chat, "/resume 9%_9")) == 'No sessions found matching "9%_9".'
        assert reply_of(await sent(chat, "/resume #99999999")) == "Session #99999999 not found."
        here = chat.conversation.journal.session.id
        assert reply_of(await sent(chat, f"/resume {here}")) == "You're already in this session."

        told = reply_of(await sent(chat, f"/resume #{first[:8]}"))
        assert told.startswith(f"🔄 Resumed session #{first[:8]} with full context.\n  📊 Context: ~")
        await sent(chat, "Where is it?")
        assert "zanzibar" in server.requests[-1].messages[0].text


async def test_a_session_of_another_conversation_is_not_found(store):
    async with ScriptedUpstream(otherwise=echo) as server:
        async with chatting(server, store, name="other") as chat:
            await sent(chat, "one")
            elsewhere = chat.conversation.journal.session.id
            await sent(chat, "/new")
        async with chatting(server, store) as chat:
            await sent(chat, "one")
            assert (
                reply_of(await sent(chat, f"/resume #{elsewhere[:8]}"))
                == f"Session #{elsewhere[:8]} not found."
            )


async def test_a_session_that_is_too_large_is_resumed_from_its_summary(store):
    async with ScriptedUpstream(otherwise="Noted.") as server:
        async with chatting(server, store) as chat:
            for n in range(40):
                await sent(chat, f"Note {n}: {LONG}")
            first = chat.conversation.journal.session.id
            await sent(chat, "/new")
        async with chatting(server, store, conversation={"window": 4_000, "max_output": 300}) as chat:
            told = reply_of(await sent(chat, f"/resume #{first[:8]}")).splitlines()
            assert told[0].startswith(f"⚠️ Session #{first[:8]} context too large (~")
            assert told[0].endswith("), resuming from summary.")
            assert told[1].startswith("📝 ")
            assert len(chat.conversation.state.folded.summaries) == 1


async def test_model_and_preset_are_changed_for_the_next_request():
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server) as chat:
        await sent(chat, "one")
        assert reply_of(await sent(chat, "/model m-2")) == "🧠 Model: m-2"
        assert reply_of(await sent(chat, "/model")) == "🧠 Model: m-2"
        assert reply_of(await sent(chat, "/preset opal")) == "🧭 Preset: opal"
        assert reply_of(await sent(chat, "/preset nothing")).startswith("⚠️ there is no preset 'nothing'")
        assert text_of(await sent(chat, "two")) == "two"
        assert [one.model for one in server.requests] == ["m-1", "m-2"]
        assert [one.text for one in server.requests[1].messages] == ["one", "one", "two"]
        assert chat.conversation.model == "m-2"
        head = chat.conversation.journal.head
        assert [
            one.model for one in await chat.conversation.journal.store.calls(head.owner, head.conversation)
        ] == ["m-1", "m-2"]


@pytest.mark.parametrize(
    "model", ["qwen2:7b", "mistral:7b-instruct", "deepseek-r1:latest", "ft:gpt-4o:me::1"]
)
async def test_a_colon_may_be_part_of_the_name_of_a_model(model):
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server) as chat:
        assert reply_of(await sent(chat, f"/model {model}")) == f"🧠 Model: {model}"
        assert text_of(await sent(chat, "one")) == "one"
        assert [one.model for one in server.requests] == [model]


async def test_an_unknown_command_names_the_nearest():
    async with ScriptedUpstream() as server, chatting(server) as chat:
        assert reply_of(await sent(chat, "/statsu")) == "There is no command /statsu: did you mean /status?"
        assert (
            reply_of(await sent(chat, "/qqqqqq")) == "There is no command /qqqqqq: /help lists the commands"
        )
        assert not server.requests


@pytest.mark.parametrize("preset", ["lis", "refold"])
async def test_tools_that_are_to_be_summarised_stay_so_with_another_preset(preset):
    kept = refold.tool(name="keep", prune="summarise")(lambda: "x" * 3_000)
    script = [
        one
        for n in range(3)
        for one in (say(call("keep", id=f"k{n}"), call("read", {"path": "a"}, id=f"r{n}")), "Read.")
    ]
    async with (
        ScriptedUpstream(*script) as server,
        chatting(server, tools=[read, kept], conversation={"preset": "lis"}) as chat,
    ):
        await sent(chat, f"/preset {preset}")
        await sent(chat, "/model m-2")
        for n in range(3):
            await sent(chat, f"Read {n}.")
        await sent(chat, "/preset lis")
        await sent(chat, "/prune")
        shown = {
            result.call_id: len(result.text)
            for item in chat.conversation.state.folded.items.items
            for result in item.message.results
        }
        assert shown["r0"] < 100
        assert shown["k0"] == 3_000


@pytest.mark.parametrize("name", ["shout", "/Shout", "/two words", "", "/"])
def test_a_command_that_nobody_can_type_is_refused(name):
    async def shout(_):
        return ""

    with pytest.raises(ConfigError, match="cannot be the name of a command"):
        refold.Chat(
            refold.Conversation("m"),
            "m@http://localhost:1/v1",
            commands=[Command(name=name, summary="", run=shout)],
        )


async def test_plugins_add_commands():
    async def shout(called):
        return called.arguments.upper()

    own = Command(name="/shout", usage="words", summary="say it aloud", run=shout)
    async with ScriptedUpstream() as server, chatting(server, commands=[own]) as chat:
        assert reply_of(await sent(chat, "/shout ahoy")) == "AHOY"
        assert "/shout words" in reply_of(await sent(chat, "/help"))


async def test_the_library_runs_the_same_commands(store):
    engine = Engine(store, model="gpt-4o-mini")
    talk = await engine.conversation("talk")
    await talk.add("one")
    assert "🧠 Model: gpt-4o-mini" in await refold.run_command(talk, "/status")
    assert (await refold.run_command(talk, "/new")).startswith("✨ New session started.")
    with pytest.raises(NotFound, match="no command"):
        await refold.run_command(talk, "hello")
    kept = await store.commands("local", talk.branch)
    assert [one.text for one in kept] == ["/status", "/new"]


async def test_recall_opens_a_handle():
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server) as chat:
        await sent(chat, "The code is 4417.")
        assert reply_of(await sent(chat, "/recall #m0")) == "The code is 4417."
        assert "4417" in reply_of(await sent(chat, "/search code"))
        assert reply_of(await sent(chat, "/recall #m99")).startswith("⚠️ there is no message 99")


async def test_whatever_is_searched_for_gives_results_or_a_clear_word(tmp_path):
    store = f"sqlite:///{tmp_path}/chats.db"
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server, store) as chat:
        await sent(chat, "When does the ferry leave?")
        for command in ("/search", "/recall", "/resume"):
            for words in BAD_QUERIES:
                assert reply_of(await sent(chat, f"{command} {words}"))
        assert "ferry" in reply_of(await sent(chat, "/search after:2020"))
        assert reply_of(await sent(chat, "/search before:2001")) == "Nothing that was said fits."


async def test_search_says_what_it_does_not_look_at():
    async with ScriptedUpstream(otherwise=echo) as server, chatting(server) as chat:
        await sent(chat, "The code is 4417.")
        assert reply_of(await sent(chat, "/search code in:other")) == (
            "/search looks in this conversation alone. Leave `in:` out, or use `refold search`."
        )
        told = reply_of(await sent(chat, "/search code after:2026-02-31"))
        assert "The code is 4417." in told
        assert "after:2026-02-31: there is no such date" in told


@pytest.mark.parametrize("wire", FORMATS)
async def test_recall_shows_calls_and_results(wire):
    script = say(call("read", {"path": "a"}, id="c1")), "Read."
    async with (
        ScriptedUpstream(*script) as server,
        chatting(server, wire=wire, tools=[read]) as chat,
    ):
        await sent(chat, "Read it.")
        assert reply_of(await sent(chat, "/recall #m1")) == '⚙ read({"path":"a"})'
        assert reply_of(await sent(chat, "/recall #m2")).startswith("a: a line of the file")


async def test_commands_are_not_kept_where_no_content_is(store):
    engine = Engine(store, model="gpt-4o-mini", keeps_content=False)
    talk = await engine.conversation("talk")
    await talk.add("one")
    assert "🧠 Model: gpt-4o-mini" in await refold.run_command(talk, "/status")
    assert "secret" in await refold.run_command(talk, "/secret tide")
    assert await store.commands("local", talk.branch) == []


PLUGIN = """
import refold

async def tide(called):
    return f"high at noon, {called.arguments}"

tides = [refold.Command(name="/tide", usage="place", summary="when the tide is high", run=tide)]
plugin = refold.Plugin(name="tides", api=1, commands=[*tides, refold.Command(name="No", summary="", run=tide)])
"""


async def test_commands_of_an_installed_package_are_in_the_table_of_all(tmp_path, monkeypatch, caplog):
    (tmp_path / "tide_plugin.py").write_text(PLUGIN)
    info = tmp_path / "tide_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tide-plugin\nVersion: 1.0\n")
    points = "tides = tide_plugin:plugin\nwrong = tide_plugin:tides\ngone = no_such_module:x\n"
    (info / "entry_points.txt").write_text(f"[refold.plugins]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = refold.load_plugins()
    try:
        async with ScriptedUpstream() as server, chatting(server) as chat:
            assert reply_of(await sent(chat, "/tide Vik")) == "high at noon, Vik"
            assert await refold.run_command(chat.conversation, "/tide Ås") == "high at noon, Ås"
            assert "/tide place" in await refold.run_command(chat.conversation, "/help")
    finally:
        use(Plugins())
    assert [one.plugin.name for one in loaded] == ["tides"]
    assert len(loaded.problems) == 2
    assert "plugin tides, command: No is left out" in caplog.text


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("llama3@localhost:11434/v1", "such as llama3@http://localhost:11434/v1"),
        ("llama3@10.0.0.7", "such as llama3@http://10.0.0.7"),
        ("@", "this cannot be the name of a model\nhint: such as openai:gpt-4o-mini"),
        ("m-2@", "this cannot be the name of a model"),
        ("a b c", "this cannot be the name of a model"),
    ],
)
async def test_what_cannot_be_the_name_of_a_model_is_refused(model, problem):
    async with ScriptedUpstream() as server, chatting(server) as chat:
        assert problem in reply_of(await sent(chat, f"/model {model}"))
        assert chat.model == chat.conversation.model == "m-1"
        with pytest.raises(ConfigError):
            refold.Chat(chat.conversation, model)


async def test_a_name_may_have_an_at_of_its_own():
    async with ScriptedUpstream() as server, chatting(server) as chat:
        for model in ("claude-sonnet-4@20250514", "@cf/meta/llama-3-8b-instruct"):
            assert reply_of(await sent(chat, f"/model {model}")) == f"🧠 Model: {model}"


async def test_an_abort_beside_the_program_that_answers_says_so(store):
    gate = Gate("First.")
    async with ScriptedUpstream(gate) as server, chatting(server, store) as first:
        assert reply_of(await sent(first, "/abort")) == "Nothing to abort."
        stream = first.events()
        await first.put("one")
        await gate.reached.wait()
        async with chatting(server, store) as second:
            told = "Another program answers this conversation: abort the reply there."
            assert reply_of(await sent(second, "/abort")) == told
            assert await refold.run_command(second.conversation, "/abort") == told
        assert reply_of(await sent(first, "/abort")) == "⛔ Aborted."
        (ended,) = await until(stream, refold.Done)
        assert ended.status == "aborted"
