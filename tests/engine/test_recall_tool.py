"""The recall tool: what a model is told of it, and what it gets for whatever it asks."""

from __future__ import annotations

import re
from functools import cache

import msgspec
import pytest

import refold
from refold import sync
from refold.core.measure import CharacterEstimate
from refold.engine.engine import Engine
from refold.engine.recall import LEAST_TOKENS, answer_recall, recall_tool
from refold.model.errors import ConfigError
from refold.model.tokens import TokenCounter
from refold.stores.memory import MemoryStore
from refold.wire.sdk import read_tools

REPORT = "".join(f"{line:04}: the gauge at Vik reads {line * 37 % 1000} mm\n" for line in range(900))
EXCHANGES = {
    "chat": [
        "How is the water at Vik?",
        {
            "role": "assistant",
            "content": "I will look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "gauge", "arguments": '{"at": "Vik"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": REPORT},
        {"role": "assistant", "content": "It is low."},
    ],
    "responses": [
        "How is the water at Vik?",
        {"type": "function_call", "call_id": "a", "name": "gauge", "arguments": '{"at": "Vik"}'},
        {"type": "function_call_output", "call_id": "a", "output": REPORT},
        {"role": "assistant", "content": "It is low."},
    ],
    "anthropic": [
        "How is the water at Vik?",
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "I will look."},
                {"type": "tool_use", "id": "a", "name": "gauge", "input": {"at": "Vik"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": REPORT}],
        },
        {"role": "assistant", "content": "It is low."},
    ],
}
formats = pytest.mark.parametrize("name", EXCHANGES)


@cache
def filled(name: str = "chat", counter: TokenCounter | None = None) -> sync.Conversation:
    """A conversation whose beginning is no longer shown; nothing that is asked here changes it."""
    tools = [recall_tool(name)]
    talk = sync.Conversation(
        "gpt-4o", window=6_000, max_output=500, format=name, tools=tools, counter=counter
    )
    talk.add(*EXCHANGES[name])
    for turn in range(40):
        talk.add(f"And the ferry number {turn}? " + "It matters to me. " * 20)
        talk.context()
        talk.add({"role": "assistant", "content": f"Ferry {turn} is late. " * 20})
    talk.add("What did the gauge say in line 873?")
    assert REPORT not in str(talk.context())
    return talk


@formats
def test_every_format_has_its_own_shape_of_the_same_tool(name):
    (tool,) = read_tools([recall_tool(name)])
    schema = msgspec.json.decode(tool.schema)

    assert tool.name == "recall"
    assert {"#m12", "#m12.2", "#s0"} <= set(re.findall(r"#[ms][\d.]*\d", tool.description))
    assert "words" in tool.description
    assert (schema["required"], set(schema["properties"])) == (["what"], {"what", "start"})


def test_a_format_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="no format 'cohere'"):
        recall_tool("cohere")


def test_a_definition_can_be_changed_without_changing_the_next():
    recall_tool()["function"]["parameters"]["properties"].clear()

    assert recall_tool()["function"]["parameters"]["properties"]


@pytest.mark.feature("N2")
@formats
def test_a_model_reads_a_result_that_left_the_window_word_for_word(name):
    talk = filled(name)
    pages, start, size = [], 0, 0
    while start < len(REPORT):
        said = sync.answer_recall(talk, {"what": "#m2", "start": start}, max_tokens=2_000)
        assert talk.state.folded.shown.counter.text(said) <= 2_000
        head, _, text = said.partition("\n")
        assert head == "#m2, the result of a tool:"
        text, _, cut = text.rpartition("\n[cut: ")
        first, stop, size = map(int, re.match(r"characters (\d+) to (\d+) of (\d+)", cut).groups())
        assert first == start
        assert cut.endswith(f"start={stop}]" if stop < size else ", the end]")
        pages.append(text)
        start = stop

    assert size == len(REPORT)
    assert "".join(pages) == REPORT
    assert len(pages) > 3


def test_what_is_short_is_not_said_to_be_cut():
    assert sync.answer_recall(filled(), '{"what": "#m0"}') == "#m0, from the user:\nHow is the water at Vik?"


@pytest.mark.parametrize("name", ["chat", "anthropic"])
def test_parts_of_a_message_stand_under_their_handles_which_open_them(name):
    talk = filled(name)
    whole = sync.answer_recall(talk, {"what": "#m1"})
    part = sync.answer_recall(talk, {"what": "#m1.2"})

    assert whole.splitlines()[:3] == ["#m1, from the assistant:", "[#m1.1]", "I will look."]
    assert whole.splitlines()[3] == "[#m1.2]"
    assert re.fullmatch(r'call of gauge: \{"at": ?"Vik"\}', whole.splitlines()[4])
    assert part.splitlines() == ["#m1.2, from the assistant:", whole.splitlines()[4]]


def test_an_older_summary_is_opened_too():
    said = sync.answer_recall(filled(), {"what": "#s0"})

    assert said.startswith("#s0, a summary of earlier messages:\n")
    assert "Vik" in said


@pytest.mark.feature("N2")
def test_words_give_passages_with_handles_that_open_the_original():
    talk = filled()
    said = sync.answer_recall(talk, '{"what": "the gauge at Vik, line 0873"}', max_tokens=400)

    assert talk.state.folded.shown.counter.text(said) <= 400
    assert "#m2" in said
    assert f"0873: the gauge at Vik reads {873 * 37 % 1000} mm" in said


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("", "no arguments for recall"),
        ("#m12", "no arguments for recall"),
        ("[" * 100_000, "no arguments for recall"),
        ('"#m12"', "no arguments for recall"),
        ("{}", "no arguments for recall"),
        ({"what": 12}, "no arguments for recall"),
        ({"what": None}, "no arguments for recall"),
        ({"handle": "#m12"}, "no arguments for recall"),
        ({"what": "#m2", "start": "later"}, "no arguments for recall"),
        ({"what": "  "}, "takes one handle"),
        ({"what": "x" * 5_000}, "nothing that was said in this conversation fits"),
        ({"what": "zyzzogeton " * 100 + "gauge"}, "nothing that was said in this conversation fits"),
        ({"what": "#m2", "start": -5}, "takes one handle"),
        ({"what": "#m9999"}, "there is no message 9999"),
        ({"what": "#m0.7"}, "message 0 has no part 7"),
        ({"what": "#s99"}, "there is no summary 99"),
        ({"what": "#m0", "start": 500}, "it has only 24 characters"),
        ({"what": "zyzzogeton"}, "nothing that was said in this conversation fits"),
        ({"what": "\ud800"}, "nothing that was said in this conversation fits"),
    ],
)
def test_a_wrong_question_is_answered_with_what_to_ask_instead(arguments, words):
    said = sync.answer_recall(filled(), arguments)

    assert said.startswith("error: ")
    assert words in said
    assert "\nhint: " in said
    assert len(said) < 400


def test_of_a_query_of_megabytes_the_beginning_is_looked_for():
    talk = filled()
    found = talk.recall("gauge " * 165)
    assert "#m2" in found
    assert talk.recall("gauge " * 165 + "zyzzogeton " * 200_000) == found
    assert talk.search("gauge " * 165 + "zyzzogeton " * 200_000) == found


@pytest.mark.parametrize("what", ["[#m0]", " `#m0` ", '"#m0".', "m0"])
def test_a_handle_that_was_copied_with_its_brackets_is_understood(what):
    assert "How is the water at Vik?" in sync.answer_recall(filled(), {"what": what})


def test_an_offset_written_as_text_is_understood():
    assert (
        sync.answer_recall(filled(), '{"what": "#m0", "start": "7"}').splitlines()[1] == "the water at Vik?"
    )


def test_an_answer_is_never_longer_than_asked_for_by_any_count():
    talk = filled(counter=CharacterEstimate())
    for most in (LEAST_TOKENS, 777, 5_000):
        assert CharacterEstimate().text(sync.answer_recall(talk, {"what": "#m2"}, max_tokens=most)) <= most


def test_what_is_sensitive_is_not_put_where_summaries_are_made_of_it():
    talk = sync.Conversation("gpt-4o")
    talk.add("My number is 4242-1111.", sensitive=True)

    said = sync.answer_recall(talk, {"what": "#m0"})

    assert "4242" not in said
    assert said.startswith("error: #m0 is marked as sensitive")


def test_media_are_described():
    talk = sync.Conversation("gpt-4o")
    image = {"type": "image_url", "image_url": {"url": "https://example.org/gauge.png"}}
    talk.add({"role": "user", "content": [{"type": "text", "text": "This one."}, image]})

    said = sync.answer_recall(talk, {"what": "#m0"})

    assert said.splitlines()[1:] == [
        "[#m0.1]",
        "This one.",
        "[#m0.2]",
        "[image https://example.org/gauge.png #m0.2]",
    ]


@pytest.mark.feature("N2")
async def test_a_conversation_that_is_kept_answers_the_same():
    talk = refold.Conversation("gpt-4o")
    kept = await Engine(MemoryStore()).conversation("tides", model="gpt-4o")
    for one in (talk, kept):
        await one.add(*EXCHANGES["chat"])

    for what in ("#m1", "#m2", "#m77", "nothing of the kind"):
        assert await answer_recall(talk, {"what": what}) == await answer_recall(kept, {"what": what})
    assert "0873: the gauge at Vik reads" in await answer_recall(kept, {"what": "gauge at Vik 0873"})
    assert (await answer_recall(kept, "{}")).startswith("error: ")


def test_a_stored_conversation_without_await_answers_too():
    with sync.Engine("memory:") as engine:
        talk = engine.conversation("tides", model="gpt-4o")
        talk.add(*EXCHANGES["chat"])

        assert sync.answer_recall(talk, '{"what": "#m0"}').endswith("\nHow is the water at Vik?")
        assert sync.answer_recall(talk, '{"what": "#m77"}').startswith("error: there is no message 77")


def asking(what: str) -> dict[str, object]:
    function = {"name": "recall", "arguments": msgspec.json.encode({"what": what}).decode()}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "r", "type": "function", "function": function}],
    }


async def talks() -> list[refold.Conversation]:
    settings = {"model": "gpt-4o", "window": 6_000, "max_output": 500}
    kept = await Engine(MemoryStore()).conversation("tides", **settings)
    return [refold.Conversation(**settings), kept]


async def test_a_question_is_not_taken_for_what_the_model_knows_nor_for_an_answer():
    """The call that asks is in its context already, with all the words that it looks for."""
    for talk in await talks():
        await talk.add(*EXCHANGES["chat"], "Go on.", asking("gauge at Vik 0473"))

        said = await answer_recall(talk, {"what": "gauge at Vik 0473"}, max_tokens=300)

        assert f"0473: the gauge at Vik reads {473 * 37 % 1000} mm" in said
        assert "#m5" not in said


async def test_an_earlier_question_is_no_answer_to_the_same_words():
    talk = await Engine(MemoryStore(), model="gpt-4o").conversation("talk")
    await talk.add("How is the water at Vik?")
    answers = []
    for which in ("a", "b"):
        asked = {"name": "recall", "arguments": '{"what": "zebrafish"}'}
        await talk.add(
            {"role": "assistant", "tool_calls": [{"id": which, "type": "function", "function": asked}]}
        )
        answers.append(await answer_recall(talk, asked["arguments"]))
        await talk.add({"role": "tool", "tool_call_id": which, "content": answers[-1]}, "And now?")

    assert answers[0] == answers[1]
    assert answers[0].startswith("error: nothing that was said")
    assert await talk.search("zebrafish") == ""


async def test_an_answer_is_not_cut_in_its_turn_when_it_is_added():
    for talk in await talks():
        await talk.add(*EXCHANGES["chat"], "Go on.", asking("#m2"))
        said = await answer_recall(talk, {"what": "#m2"}, max_tokens=5_000)
        await talk.add({"role": "tool", "tool_call_id": "r", "content": said})

        sent = (await talk.context())["messages"]

        assert sent[-1]["content"] == said
        assert "start=" in said
