"""The features of the preset `picoclaw`, through the doors that users have."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

import refold
from refold import presets
from refold.cli.main import run
from refold.core.policy import MessageCount, OverBudget, TurnBoundaryBefore
from refold.sync import Conversation, Engine
from refold.testing import ScriptedUpstream, Slow, overflow
from tests.core.conversations import TextCounter
from tests.features.folds import FOREVER, Run, Writer
from tests.formats import KEYS, answer, chat_call, chat_result, question
from tests.gateway.conftest import served

WINDOW = 10_000
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
ONLY_WALL = structs.replace(presets.PICOCLAW, triggers={"after_call": OverBudget(1.0)})
"""The preset without its summaries after a turn."""
LINE = "a line of some length, so that a summary of it is shorter " * 2
LONG = answer("It reads the settings and checks them, one after the other. " * 12)


def long_talk(turns=11):
    """Turns with more than 20 messages, and an open question."""
    said = [message for number in range(turns) for message in (question(f"{number}: {LINE}"), answer(LINE))]
    return [*said, question("And now?")]


def texts_in(value):
    """Every text in a JSON value that is not the name of a role or a kind."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name, one in value.items() if name in ("content", "text") for text in texts_in(one)]
    return [text for one in value for text in texts_in(one)]


def counted(**settings):
    """A conversation in which every character is a token."""
    given = {"window": WINDOW, "max_output": 1_000, "counter": TextCounter(), **settings}
    return Conversation("gpt-4o", **given)


@pytest.mark.feature("P1")
def test_history_gets_what_the_other_regions_leave():
    talk = counted(system="s" * 300, tools=[LOOK], preset="picoclaw")
    talk.add(question("q" * 100), chat_call("look"), chat_result("look", "r" * 40), answer("a" * 10))
    talk.add(question("q" * 50))
    sizes = talk.measurement
    assert (sizes.system.tokens, sizes.tool_results.tokens, sizes.input.tokens) == (300, 40, 50)
    assert sizes.tools.tokens > len("look" + "Looks.")
    assert sizes.reserve == 1_000
    taken = sizes.system.tokens + sizes.tools.tokens + sizes.summary.tokens + sizes.reserve
    assert sizes.free == WINDOW - taken - sizes.messages.tokens


@pytest.mark.feature("P1")
@pytest.mark.parametrize("preset", presets.PRESETS)
def test_a_window_that_is_filled_exactly_is_sent_as_it_is(preset):
    def filled(more):
        talk = counted(preset=preset, system="s" * 300)
        talk.add(question("q" * (talk.measurement.free + more)))
        return talk

    exactly, over = filled(0), filled(1)
    assert exactly.measurement.free == 0
    assert len(exactly.context()["messages"][-1]["content"]) == WINDOW - 300 - exactly.measurement.reserve
    assert (exactly.receipts, exactly.max_output) == ((), 1_000)
    over.context()
    assert over.receipts or over.max_output < 1_000


@pytest.mark.feature("P2")
def test_window_and_output_are_separate():
    small, large = counted(max_output=1_000), counted(max_output=4_000)
    assert (small.max_output, large.max_output) == (1_000, 4_000)
    assert small.measurement.window == large.measurement.window == WINDOW
    assert small.measurement.free - large.measurement.free == 3_000


@pytest.mark.feature("P2")
@pytest.mark.parametrize(
    ("settings", "window"),
    [({"preset": "picoclaw"}, 12_000), ({"preset": "picoclaw", "window": 50_000}, 50_000), ({}, 128_000)],
    ids=["unset", "set", "another preset"],
)
def test_an_unset_window_is_four_times_the_output(settings, window):
    assert Conversation("gpt-4o", max_output=3_000, **settings).measurement.window == window


@pytest.mark.feature("P3")
@pytest.mark.parametrize("dialect", KEYS)
def test_the_summary_is_added_to_the_system_prompt_and_not_to_the_history(dialect):
    talk = Conversation("gpt-4o", preset="picoclaw", system="Be kind.", window=100_000, format=dialect)
    said = long_talk()
    talk.add(*said)
    fields = talk.context()
    messages = fields.pop(KEYS[dialect])
    prompt = [one for one in messages if one.get("role") == "system"]
    history = [one for one in messages if one not in prompt]
    told = "".join(texts_in([*fields.values(), *prompt]))
    assert texts_in(history) == texts_in(said[18:])
    assert told.startswith("Be kind.")
    assert told.count("CONTEXT_SUMMARY") == told.count("<context_summary>") == 1
    assert talk.receipts[-1].summary.text in told


@pytest.mark.feature("P3")
def test_the_stored_history_holds_neither_system_prompt_nor_summary(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with Engine(url, model="gpt-4o", preset="picoclaw") as engine:
        talk = engine.conversation("shop", system="Be kind.", window=100_000)
        talk.add(*long_talk())
        talk.context()
        assert talk.receipts[-1].summary
    assert run(["show", "shop", "--json", "--store", url]) == 0
    stored = [one["message"] for one in json.loads(capsys.readouterr().out)["messages"]]
    assert stored == long_talk()


TABLE = [
    ("u a u a", 2, 2),
    ("u a u a u a", 3, 2),
    ("u a u c t a u a", 4, 2),
    ("u a c t a u a", 3, 5),
    ("u c t c t a u a", 3, 6),
    ("u c t a", 2, None),
    ("u a u a", 0, None),
]
"""Roles (`c` is a call, `t` its result), the place that is wanted, and the cut that is made there."""


@pytest.mark.feature("P4")
@pytest.mark.parametrize(("roles", "wanted", "cut"), TABLE)
def test_a_cut_is_at_the_turn_boundary_before_it_or_else_after_it(roles, wanted, cut):
    said = list(map(message_of, roles.split(), range(99)))
    policy = structs.replace(
        presets.PICOCLAW,
        triggers={"after_call": MessageCount(len(said) - 1)},
        cut=TurnBoundaryBefore(len(said) - wanted),
    )
    talk = Conversation("gpt-4o", policy=policy, window=100_000)
    talk.add(*said)
    assert [one.summary.last for one in talk.receipts] == ([] if cut is None else [cut])


def message_of(role, number):
    match role:
        case "u":
            return question(f"{number}: {LINE * 9}")
        case "a":
            return answer(f"{number}: {LINE * 9}")
        case "c":
            return chat_call(f"look_{number}")
    return chat_result(f"look_{number - 1}", f"{number}: {LINE * 9}")


def crowded(turns):
    """Turns that are not summarised yet, and a question with which they do not fit into 9,600 tokens."""
    said = (
        (question(f"{number}: {'word ' * 490}"), answer(f"{number}: {'word ' * 60}"))
        for number in range(turns)
    )
    return [*(message for turn in said for message in turn), question("word " * 6_500)]


@asynccontextmanager
async def picoclaw_gate(upstream, **settings):
    """A client of a gateway with the preset and without a model for summaries."""
    flags = {"compaction_preset": "picoclaw", "compaction_allow_system_summary": True, **settings}
    async with served(upstream, summariser_enabled=False, **flags) as gate, gate.openai() as client:
        yield client


def messages_of(request):
    return json.loads(request.body)["messages"]


@pytest.mark.feature("P7")
async def test_the_older_half_of_the_turns_goes_and_the_summary_says_so():
    said = [{"role": "system", "content": "Be kind."}, *crowded(6)]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        picoclaw_gate(upstream, window=10_000) as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=said, max_tokens=400)
        system, *history = messages_of(upstream.requests[-1])
    assert history == said[7:]
    assert system["content"].startswith("Be kind.")
    assert (
        "[Emergency compression dropped 6 oldest messages due to context limit] #m0 to #m5"
        in system["content"]
    )


@pytest.mark.feature("P7")
async def test_status_and_header_say_why_no_model_wrote_the_note_about_dropped_turns():
    why = "the window was full, and the policy asks no model then"
    played = Run("picoclaw", 8_000, Writer(FOREVER))
    await played.play(1, words=40)
    assert played.folds() == {"mechanical": 1}
    found = (await played.chat.status()).summary
    assert (found.author, found.why) == ("mechanical", why)
    await played.chat.close()

    settings = {"compaction_preset": "picoclaw", "compaction_allow_system_summary": True}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        ScriptedUpstream(otherwise=Slow("Later.", before_s=30.0)) as writer,
        served(upstream, window=8_000, summariser_models=[f"small@{writer.url}/v1"], **settings) as gate,
    ):
        turn = [{"role": role, "content": "The crate is blue. " * 60} for role in ("user", "assistant")]
        for turns in range(1, 40):
            body = {"model": "gpt-5", "messages": [*turn * turns, turn[0]], "max_tokens": 100}
            status, told, _ = await gate.post(
                "/v1/chat/completions", json.dumps(body).encode(), x_refold_conversation="crates"
            )
            assert status == 200
            if "x-refold-summary" in told:
                break
        assert told["x-refold-summary"] == f"mechanical; {why}"


@pytest.mark.feature("P7")
def test_what_an_emergency_dropped_can_be_recalled():
    talk = Conversation("gpt-4o", preset="picoclaw", window=10_000, max_output=400)
    said = crowded(6)
    talk.add(*said)
    talk.context()
    assert [one.summary for one in talk.receipts] == [None]
    assert [talk.recall(f"#m{number}") for number in range(6)] == said[:6]


@pytest.mark.feature("P7")
async def test_a_single_huge_turn_keeps_its_question():
    steps = [
        message
        for number in range(40)
        for message in (
            chat_call(f"look_{number}"),
            chat_result(f"look_{number}", f"{number} " + "x1 " * 300),
        )
    ]
    asked = question("Please look at all of them.")
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        picoclaw_gate(upstream, window=10_000) as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[asked, *steps], max_tokens=400)
        sent = messages_of(upstream.requests[-1])
    assert asked in sent
    assert sent[-2:] == steps[-2:]
    assert len(sent) < 41


BASE = (question("q" * 10_000), answer("a" * 4_000)), (question("r" * 5_000), answer("b" * 2_000))
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def estimated(*messages, **settings):
    """The estimate of a conversation, by the reason of its compaction."""
    talk = Conversation("some-model", preset="picoclaw", window=10_000, max_output=0, **settings)
    talk.add(*BASE[0], *messages, *BASE[1])
    return int(talk.receipts[0].reason.partition(" ")[0].replace(",", ""))


def call_with(arguments):
    function = {"name": "look", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.feature("P8")
@pytest.mark.parametrize(
    ("messages", "tokens"),
    [
        ([question("Hello, world!")], 10),
        ([question("日本語")], (3 + 12) * 2 // 5),
        ([{**answer("y" * 20), "reasoning_content": "x" * 100}], (100 + 20 + 12) * 2 // 5),
        (
            [call_with('{"a":1}'), {"role": "tool", "tool_call_id": "call_1", "content": "found"}],
            (6 + 8 + 4 + 7 + 12) * 2 // 5 + (6 + 5 + 12) * 2 // 5,
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "Hello, world!"}, PIXEL]}], 10 + 256),
        ([{"role": "user", "content": [{"type": "text", "text": "Hello, world!"}, PIXEL, PIXEL]}], 10 + 512),
    ],
    ids=["text", "characters", "reasoning", "call and result", "image", "two images"],
)
def test_the_size_is_estimated_by_characters_with_all_the_parts(messages, tokens):
    assert estimated() == sum((size + 12) * 2 // 5 for size in (10_000, 4_000, 5_000, 2_000))
    assert estimated(*messages) - estimated() == tokens


@pytest.mark.feature("P8")
def test_system_prompt_and_tool_definitions_are_estimated_too():
    function = {"name": "look", "description": "Looks at it.", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    assert estimated(tools=tools) - estimated() == (4 + 12 + len('{"type":"object"}') + 20) * 2 // 5
    assert estimated(system="Be kind.") - estimated() == (8 + 12) * 2 // 5


@pytest.mark.feature("P9", "N7")
@pytest.mark.parametrize("dialect", KEYS)
async def test_library_gateway_and_command_line_build_the_same_request(dialect, tmp_path, capsys):
    said = long_talk()
    talk = Conversation("gpt-4o", preset="picoclaw", system="Be kind.", window=100_000, format=dialect)
    talk.add(*said)
    fields = without_marks(talk.context())
    system = {
        "chat": {"messages": [{"role": "system", "content": "Be kind."}, *said]},
        "responses": {"instructions": "Be kind.", "input": said},
        "anthropic": {"system": "Be kind.", "max_tokens": 4_096, "messages": said},
    }
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
    body = {"model": "gpt-4o", **system[dialect]}
    flags = {"compaction_preset": "picoclaw", "compaction_allow_system_summary": True}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=100_000, summariser_enabled=False, **flags) as gate,
    ):
        await gate.post(path[dialect], json.dumps(body).encode())
        sent = without_marks(json.loads(upstream.requests[-1].body))
    assert {name: sent[name] for name in fields} == fields
    body[KEYS[dialect]].pop()  # a transcript that ends with a reply
    (tmp_path / "t.json").write_text(json.dumps(body))
    target = tmp_path / "smaller.json"
    flags = ["--preset", "picoclaw", "--window", "100000", "--format", dialect]
    assert run(["compact", str(tmp_path / "t.json"), *flags, "--output", str(target)]) == 0
    fields[KEYS[dialect]].pop()
    written = without_marks(json.loads(target.read_text()))
    assert {name: written[name] for name in fields} == fields


def without_marks(value):
    """The same JSON without cache marks, and with one text block as a string."""
    if isinstance(value, list):
        return [without_marks(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {name: without_marks(one) for name, one in value.items() if name != "cache_control"}
    content = plain.get("content")
    if isinstance(content, list) and [one.get("type") for one in content] == ["text"]:
        plain["content"] = content[0]["text"]
    return plain


def reply_below(tokens):
    """A provider that refuses requests of more tokens, three fifths of the bytes each."""

    def reply(received):
        size = len(received.body) * 3 // 5
        return overflow("openai", window=tokens, prompt=size) if size > tokens else "A pixel."

    return reply


@pytest.mark.feature("P10")
@pytest.mark.parametrize("preset", presets.PRESETS)
async def test_the_image_of_the_question_survives_the_retry(preset):
    asked = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PIXEL]}
    async with (
        ScriptedUpstream(otherwise=reply_below(4_000)) as upstream,
        picoclaw_gate(upstream, window=10_000, compaction_preset=preset) as client,
    ):
        reply = await client.chat.completions.create(
            model="gpt-4o", messages=[*crowded(6)[:-1], asked], max_tokens=400
        )
        sent = list(map(messages_of, upstream.requests))
    assert reply.choices[0].message.content == "A pixel."
    assert len(sent) == 2
    assert [one[-1] for one in sent] == [asked] * 2


@pytest.mark.feature("P7")
async def test_an_overflow_halves_and_halves_again():
    refusal = overflow("groq", window=9_000, prompt=9_500)
    async with (
        ScriptedUpstream(refusal, refusal, otherwise="Fine.") as upstream,
        picoclaw_gate(upstream, window=10_000) as client,
    ):
        said = [*crowded(6)[:-1], question("And now?")]
        await client.chat.completions.create(model="gpt-4o", messages=said, max_tokens=400)
        sent = [
            [one for one in messages_of(request) if one["role"] != "system"] for request in upstream.requests
        ]
    assert sent == [said, said[6:], said[10:]]


class Letters:
    """Counts every letter of the text as a token, and nothing else."""

    source = "counted"

    def text(self, text):
        return len(text)

    def message(self, message):
        return len(message.text)


def talk_of(size, **settings):
    """A conversation of a few turns, with so many tokens in its next request."""
    given = {"policy": ONLY_WALL, "window": 10_000, "max_output": 2_000, "counter": Letters(), **settings}
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


@pytest.mark.feature("P6", "L1")
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


@pytest.mark.feature("P5", "P7")
@pytest.mark.parametrize(("window", "words", "turns"), [(4_000, 66, 4), (8_000, 100, 5)])
async def test_a_summary_that_comes_after_a_compression_at_the_wall_is_used(window, words, turns):
    """It may cover more than the half of the turns that was dropped: then it waits for the next compression."""
    played = Run("picoclaw", window, Writer(turns))
    await played.play(6, words=words)
    assert played.folds()["mechanical"] >= 3
    assert played.count(refold.SummarySwitched) >= 1
    assert played.count(refold.SummaryDiscarded) == 0
    used = played.folds()["model"] + played.count(refold.SummarySwitched)
    assert (
        played.count(refold.SummaryWritten) - used <= 2
    )  # the last ones may stand by for the next compression
    await played.chat.close()
