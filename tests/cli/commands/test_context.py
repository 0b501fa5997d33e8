from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from refold.cli.commands.context import ContextReport, as_document, page, verdict
from refold.cli.output import percent
from refold.cli.transcript import TranscriptSize
from refold.model.tokens import Budget, Measurement, TokenCount
from refold.sync import Engine

EXAMPLES = Path(__file__).parents[3] / "examples"
CHAT = {
    "model": "gpt-4o",
    "max_tokens": 500,
    "messages": [
        {"role": "system", "content": "Never say the secret word xylophone."},
        {"role": "user", "content": "xylophone?"},
        {"role": "assistant", "content": "I cannot."},
        {"role": "user", "content": "Why?"},
    ],
}


class TenEach:
    """Every message costs ten tokens."""

    source = "counted"

    def text(self, text: str, /) -> int:
        return 10

    def message(self, message: object, /) -> int:
        return 10


@pytest.fixture
def counter(monkeypatch):
    monkeypatch.setattr("refold.tokens.counter_for", lambda model: TenEach())


def report(*, window: int = 1000, max_output: int = 0, **regions: TokenCount) -> ContextReport:
    sizing = TranscriptSize("gpt-4o", "file", Budget(window, max_output=max_output), "override")
    measurement = Measurement(**regions, reserve=max_output, window=window)
    return ContextReport("chat.json", "chat", 12, 3, sizing, measurement)


def printed(value: ContextReport, width: int = 80) -> list[str]:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        for piece in page(value, width):
            console.print(piece)
    return [line.rstrip() for line in capture.get().splitlines()]


def counted(tokens: int) -> TokenCount:
    return TokenCount.of(tokens, "counted")


def test_the_page_at_80_columns():
    value = report(
        max_output=100,
        system=counted(50),
        tools=counted(25),
        history=counted(200),
        tool_results=TokenCount(reported=30, counted=20),
        tail=TokenCount.of(5, "estimated"),
        input=counted(1),
    )

    assert printed(value) == [
        "chat.json  chat, 12 messages, 3 turns",
        "gpt-4o (from the file)  window 1,000 tokens (--window)",
        "",
        "S S S S S S S S S S T T T T T H H H H H H H H H H H H H H H H H H H H H H H H H",
        "H H H H H H H H H H H H H H H R R R R R R R R R R L I . . . . . . . . . . . . .",
        ". . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . .",
        ". . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . . .",
        ". . . . . . . . . . . . . . . . . . . . = = = = = = = = = = = = = = = = = = = =",
        "",
        "    region        tokens   share  source     what it is",
        "S   system            50   5.0 %  counted    system prompt",
        "T   tools             25   2.5 %  counted    tool definitions",
        "H   history          200  20.0 %  counted    earlier turns",
        "R   tool results      50   5.0 %  counted    results in earlier turns",
        "L   tail               5   0.5 %  estimated  the active turn so far",
        "I   input              1   0.1 %  counted    what the next call adds",
        "    content          331  33.1 %  estimated  everything that is sent",
        ".   free             569  56.9 %  estimated  room left",
        "=   reserve          100  10.0 %             kept for the reply",
        "",
        "33 % full; compaction would start at 80 %: 469 tokens from here",
    ]


def test_a_summary_is_listed_where_there_is_one():
    lines = printed(report(summary=TokenCount.of(40, "reported")))

    assert "U   summary           40   4.0 %  reported  what stands for earlier messages" in lines
    assert not any("summary" in line for line in printed(report(system=counted(40))))


def test_an_overfull_window_says_so_three_times():
    lines = printed(report(max_output=200, history=counted(950)))

    assert "----------------- the window ends here: 150 tokens too many -----------------" in lines[8]
    assert ".   free            -150  -15.0 %  counted  what does not fit" in lines
    assert lines[-1] == "95 % full: 150 tokens too many, with the 200 kept for the reply"


def test_a_narrow_screen_keeps_the_numbers():
    lines = printed(report(system=counted(50)), width=50)

    assert "S   system            50   5.0 %  counted" in lines
    assert max(map(len, lines[3:-2])) <= 50


@pytest.mark.parametrize(
    ("content", "max_output", "says"),
    [
        (0, 0, "0 % full; compaction would start at 80 %: 800 tokens from here"),
        (799, 0, "80 % full; compaction would start at 80 %: 1 token from here"),
        (800, 0, "80 % full; compaction would start at 80 %: 0 tokens ago"),
        (1000, 0, "100 % full; compaction would start at 80 %: 200 tokens ago"),
        (1001, 0, "100 % full: 1 token too many"),
        (600, 300, "60 % full; what is kept for the reply starts at 70 %: 100 tokens from here"),
        (700, 300, "70 % full; what is kept for the reply starts at 70 %: 0 tokens ago"),
    ],
)
def test_one_sentence_says_what_it_means(content, max_output, says):
    assert verdict(report(max_output=max_output, history=counted(content))).plain == says


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0 %"), (0.0004, "< 0.1 %"), (0.2345, "23.4 %"), (-0.5, "-50.0 %"), (12, "1,200.0 %")],
)
def test_shares_are_percent(share, text):
    assert percent(share) == text


def test_the_document_for_programs(refold, counter):
    code, out, err = refold("context", "-", "--json", "--window", "1000", stdin=json.dumps(CHAT).encode())

    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "file": "stdin",
        "format": "chat",
        "messages": 4,
        "turns": 2,
        "model": "gpt-4o",
        "model_source": "file",
        "window": {"tokens": 1000, "source": "override", "warning": ""},
        "max_output": 500,
        "limit": {"tokens": 500, "arithmetic": "window 1,000 − output 500 − reserve 0 = 500"},
        "regions": [
            {"region": "system", "tokens": 10, "share": 0.01, "source": "counted"},
            {"region": "tools", "tokens": 0, "share": 0.0, "source": None},
            {"region": "history", "tokens": 20, "share": 0.02, "source": "counted"},
            {"region": "tool_results", "tokens": 0, "share": 0.0, "source": None},
            {"region": "tail", "tokens": 0, "share": 0.0, "source": None},
            {"region": "input", "tokens": 10, "share": 0.01, "source": "counted"},
            {"region": "free", "tokens": 460, "share": 0.46, "source": "counted"},
            {"region": "reserve", "tokens": 500, "share": 0.5, "source": None},
        ],
        "content": {"tokens": 40, "share": 0.04, "source": "counted"},
        "trigger": {"tokens": 484, "remaining": 444},
        "fits": True,
        "preset": "refold",
        "summarise_at": {"tokens": 484, "messages": None},
        "compress_at": {"tokens": 490, "arithmetic": "window 1,000 − output 500 − reserve 10 = 490"},
    }


def test_the_document_says_when_it_does_not_fit():
    document = as_document(report(history=counted(1200)))

    assert document["fits"] is False
    assert document["trigger"] == {"tokens": 800, "remaining": -400}


def test_the_regions_of_the_document_and_the_free_room_make_the_window(refold):
    document = json.loads(refold("context", str(EXAMPLES / "coding-agent.json"), "--json").out)

    assert sum(row["tokens"] for row in document["regions"]) == document["window"]["tokens"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("coding-agent.json", "chat, 135 messages, 10 turns"),
        ("support-chat.anthropic.json", "anthropic, 13 messages, 4 turns"),
        ("research.responses.jsonl", "responses, 24 messages, 3 turns"),
    ],
)
def test_the_examples_of_all_three_formats_are_shown(refold, name, says):
    code, out, err = refold("context", str(EXAMPLES / name))

    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith(f"{name}  {says}")
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_json_and_jsonl_are_the_same_conversation(refold, counter):
    lines = b"\n".join(json.dumps(message).encode() for message in CHAT["messages"])
    array = json.dumps(CHAT["messages"]).encode()

    assert refold("context", "-", stdin=lines) == refold("context", "-", stdin=array)


def test_content_is_never_printed(refold):
    body = json.dumps(CHAT).encode()

    assert "xylophone" not in refold("context", "-", stdin=body).out
    assert "xylophone" not in refold("context", "-", "--json", stdin=body).out


def test_a_guessed_window_is_a_warning_beside_the_data(refold):
    body = json.dumps({**CHAT, "model": "nobody-knows-it"}).encode()

    code, out, err = refold("context", "-", stdin=body)

    assert code == 0
    assert "nobody-knows-it (from the file)  window 128,000 tokens (assumed)" in out
    assert err.splitlines()[0].startswith("warning: the window of 'nobody-knows-it' is unknown")
    assert err.splitlines()[1] == "hint: give the window with --window"


def test_an_estimate_is_called_one(refold):
    body = json.dumps({**CHAT, "model": "claude-sonnet-4-5"}).encode()

    assert json.loads(refold("context", "-", "--json", stdin=body).out)["content"]["source"] == "estimated"


def test_a_stored_conversation_is_measured_in_the_window_that_it_was_used_with(refold, store):
    with Engine(str(store), model="some-model", window=8_192) as engine:
        engine.conversation("trial").add("Hello.")

    assert "8,192" in refold("context", "trial").out
    assert "16,000" in refold("context", "trial", "--window", "16000").out


def test_commands_leave_a_conversation_in_the_window_that_it_was_used_with(refold, store):
    with Engine(str(store), model="gpt-4.1", window=8_192) as engine:
        talk = engine.conversation("trial")
        for number in range(30):
            talk.add(f"Question {number}: " + "lorem ipsum dolor " * 60)
            talk.context()
            talk.add({"role": "assistant", "content": "Answer. " * 40})

    def window():
        (one,) = json.loads(refold("conversations", "--json").out)["conversations"]
        return one["window"], one["window_source"]

    assert window() == (8_192, "override")
    for command in (("undo",), ("compact",), ("new",), ("resume", "Question")):
        assert refold(command[0], "trial", *command[1:]).code == 0, command
        assert window() == (8_192, "override"), command


def test_a_stored_conversation_has_the_size_and_the_source_of_the_dashboard(refold, store):
    """The provider reported twice what is counted here: the regions add up to its figure, and not to our own."""
    with Engine(str(store), model="gpt-4o") as engine:
        talk = engine.conversation("trip")
        talk.add({"role": "user", "content": "Where does the night boat to Vik leave? " * 40})
        talk.context()
        counted = talk.measurement.content.tokens
        talk.record({"prompt_tokens": 2 * counted, "completion_tokens": 9, "total_tokens": 2 * counted + 9})
        status = talk.status()
    done = refold("context", "trip", "--json")
    told = json.loads(done.out)
    assert told["content"]["tokens"] == status.tokens == 2 * counted
    assert told["size_source"] == status.source
    assert sum(row["tokens"] for row in told["regions"]) == told["window"]["tokens"]
    assert status.source in " ".join(refold("context", "trip").out.split())
