"""The text of chat events: a pure function, so every case is a list of events and what is printed."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from rich.cells import cell_len

from refold.chat.chat import CallUsage, CommandReply, Done, Notice, Queued, ToolEnded, ToolStarted
from refold.terminal.event_text import Page, PageLook, TypedLine, draw, is_slow, live_text, safe
from refold.wire.sse import ReasoningDelta, TextDelta

SCREEN, PLAIN = PageLook(80), PageLook(80, has_markdown=False, has_colour=False)
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(*events, look=SCREEN, page=None):
    page, printed = page or Page(), ""
    for event in events:
        page, pieces = draw(page, event, look)
        printed += "".join(piece.text for piece in pieces)
    return page, STYLE.sub("", printed)


def deltas(text, size=5):
    return [TextDelta(text[at : at + size]) for at in range(0, len(text), size)]


DONE = Done(("e",), "answered")


def cells(text):
    return max(cell_len(line) for line in text.splitlines())


def test_a_reply_is_printed_block_by_block_and_the_open_block_is_live():
    page, printed = drawn(*deltas("First *one*.\n\nSecond, not comp"))

    assert printed == "First one.\n\n"
    assert STYLE.sub("", live_text(page, SCREEN, 10)) == "Second, not comp"
    page, printed = drawn(*deltas("lete."), DONE, page=page)
    assert printed == "Second, not complete.\n\n"
    assert page == Page()


@pytest.mark.parametrize(
    "block",
    [
        "```python\na = 1\n\nb = 2\n```",
        "- one\n\n- two\n\n- three",
        "1. one\n\n   more of it\n\n2. two",
        "> quoted\n> text",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "~~~\n```\n\n~~~",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_block_is_never_split(block, size):
    """However the text is cut into deltas, the same is printed as for the whole block at once."""
    text = f"Before.\n\n{block}\n\nAfter."

    _, in_pieces = drawn(*deltas(text, size), DONE)
    _, alone = drawn(TextDelta(block), DONE)
    assert in_pieces == f"Before.\n\n{alone}After.\n\n"


@pytest.mark.parametrize(
    "reply", ["<div>The answer is 42.</div>", "Use List<String>, press <Enter>, then a<b>c.", "<!-- no -->"]
)
def test_html_is_printed_as_it_is_written(reply):
    assert drawn(TextDelta(reply), DONE)[1] == f"{reply}\n\n"


def test_an_entity_is_no_way_to_command_the_terminal():
    assert drawn(TextDelta("x &#8238; y &rlm; z &amp; w"), DONE)[1] == "x � y � z & w\n\n"


def test_a_block_that_is_huge_is_printed_as_it_was_written():
    rows = "\n".join(f"| {number} | {'word ' * 20}|" for number in range(400))
    _, printed = drawn(*deltas(f"| a | b |\n|---|---|\n{rows}\n\nNext.", 1_000), DONE)

    assert printed.startswith("| a | b |\n|---|---|\n| 0 | word word")
    assert printed.endswith("|\n\nNext.\n\n")
    assert printed.count("word") == 8_000
    assert max(map(len, printed.splitlines())) < 80


CODE = ["" if number % 10 == 9 else f"{' ' * (number % 8)}a[{number}] = 'one two'" for number in range(95)]


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("end", ["\n```", "\n```\n", "\n```\nAfter.", "\n\n```\n\nAfter.", ""])
@pytest.mark.parametrize("before", ["", "Before.\n\n", "Before:\n", "- one\n"])
def test_long_code_is_printed_in_parts_and_looks_like_one_block(before, end, size):
    indented = "\n".join(f"  {line}" for line in ("```py", *CODE))
    page, printed = drawn(*deltas(before + indented, size))

    assert CODE[75] in printed
    assert len(page.text.splitlines()) <= 20
    _, rest = drawn(*deltas(end, size), DONE, page=page)
    shown = [line.removeprefix(" ") for line in (printed + rest).splitlines()]
    at = shown.index(CODE[0])
    assert shown[at : at + len(CODE)] == CODE
    after = ["", "After.", ""] if "After." in end else [""]
    assert shown[at + len(CODE) :] == after


def test_a_fence_that_is_closed_on_its_own_line_opens_no_code():
    _, printed = drawn(*deltas("```one```\n\nNext *block*.\n\nL"))

    assert printed == "one\n\nNext block.\n\n"


def test_what_takes_long_to_draw_is_known_before():
    long, code = Page(text="word " * 300), Page(text="```no-such-language-yet\nx = 1")
    code_of_a_page = Page(text="```\n" + "x = 1\n" * 300)

    assert [
        is_slow(page, TextDelta("\n"), SCREEN) for page in (Page(text="word"), long, code_of_a_page, code)
    ] == [False, True, False, True]
    assert not is_slow(long, TextDelta("word"), SCREEN), "a word in a line prints nothing"
    assert is_slow(code, DONE, SCREEN)
    assert not is_slow(code, TextDelta("\n"), PLAIN)
    drawn(TextDelta("```no-such-language-yet\nx = 1\n"))
    assert not is_slow(code, TextDelta("\n"), SCREEN), "it is not looked for again"


def test_a_long_open_block_is_shown_as_it_was_written_in_the_width_of_the_screen():
    page, printed = drawn(*deltas("a **word** \x1b[2J " * 500, 100))

    shown = live_text(page, SCREEN, 5).split("\n")
    assert (printed, len(shown)) == ("", 5)
    assert max(map(len, shown)) < 80
    assert "\x1b" not in "".join(shown)
    assert "a **word**" in shown[-1]


def test_a_live_block_takes_no_more_rows_than_there_are():
    page, _ = drawn(TextDelta("\n".join(f"- point {number}" for number in range(100))))

    shown = STYLE.sub("", live_text(page, SCREEN, 5)).split("\n")
    assert len(shown) == 5
    assert "point 99" in shown[-1]


def test_a_tool_call_is_one_line():
    started = ToolStarted("c1", "read_file", '{"path": "notes.txt"}')
    page, printed = drawn(TextDelta("Let me look."), started)

    assert printed == "Let me look.\n\n"
    assert STYLE.sub("", live_text(page, SCREEN, 10)) == '⚙ read_file(path="notes.txt") …'
    page, printed = drawn(ToolEnded("c1", "read_file", "one\ntwo\n" + "x" * 500), page=page)
    assert printed == '⚙ read_file(path="notes.txt") → one (3 lines)\n'
    _, printed = drawn(ToolEnded("c2", "read_file", "error: " + "no such file " * 20, is_error=True))
    assert printed.startswith("⚙ read_file() ✗ error: no such file")
    assert len(printed.rstrip("\n")) < 80


def test_reasoning_is_folded():
    page, printed = drawn(ReasoningDelta("First the gauge.\n"), ReasoningDelta("Then the tide."))

    assert printed == ""
    assert "thinking: Then the tide." in live_text(page, SCREEN, 10)
    _, printed = drawn(TextDelta("Low."), DONE, page=page)
    assert printed == "· thought, 6 words: First the gauge.\nLow.\n\n"


def test_what_is_typed_during_a_reply_is_printed_when_it_is_taken():
    page, printed = drawn(
        TypedLine("one"),
        TypedLine("two", waits=True),
        Queued("e2", 1),
        TextDelta("Reply."),
        TypedLine("/new", is_command=True, waits=True),
        TypedLine("three", waits=True),
    )

    assert printed == "> one\n"
    assert [STYLE.sub("", line) for line in live_text(page, SCREEN, 10).split("\n")] == [
        "Reply.",
        "> two  (waits)",
        "> /new  (waits)",
        "> three  (waits)",
    ]
    page, printed = drawn(
        DONE,
        Done(("e2",), "unanswered"),
        Notice("⚙️ New session (568 → 362)"),
        CommandReply("e3", "/new", "✨ New session started."),
        TextDelta("Reply to three."),
        DONE,
        page=page,
    )
    assert printed == (
        "Reply.\n\n> two\nstored without a reply: a command came after it\n"
        "> /new\n⚙️ New session (568 → 362)\n✨ New session started.\n> three\nReply to three.\n\n"
    )
    assert page == Page()


def test_a_reply_in_the_words_of_its_notice_is_printed_once():
    command = TypedLine("/undo", is_command=True)
    events = command, Notice("↩️ Taken back (1k → 2k)"), CommandReply("e", "/undo", "↩️ Taken back (1k → 2k)")
    _, printed = drawn(*events)
    assert printed == "> /undo\n↩️ Taken back (1k → 2k)\n"

    piped = PageLook(80, has_markdown=False, has_colour=False, is_terminal=False)
    page, pieces = draw(drawn(*events[:2], look=piped)[0], events[2], piped)
    assert [piece.text for piece in pieces if piece.is_data] == ["↩️ Taken back (1k → 2k)\n"]
    assert page == Page()


def test_a_command_that_does_not_wait_is_answered_above_the_open_block():
    page, printed = drawn(
        TextDelta("Half a rep"),
        TypedLine("/new", is_command=True, waits=True),
        TypedLine("/status", is_command=True),
        CommandReply("e", "/status", "🧠 Model: m"),
        CallUsage(None),
    )

    assert printed == "> /status\n🧠 Model: m\n"
    assert (page.text, [one.text for one in page.waiting]) == ("Half a rep", ["/new"])


def test_what_came_just_after_the_end_of_a_reply_is_printed_before_its_own():
    _, printed = drawn(DONE, TypedLine("two", waits=True), TextDelta("Reply."), DONE)

    assert printed == "> two\nReply.\n\n"


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Done(("e",), "aborted"), "⛔ stopped; what came is kept\n"),
        (
            Done(("e",), "failed", "the server is gone\nhint: try again"),
            "error: the server is gone\nhint: try again\n",
        ),
        (
            Done(("e",), "failed", "no base_url\nhint: check base_url, or the variable named by key_env"),
            "error: no base_url\nhint: check --upstream, or the variable named by --key-env\n",
        ),
        (Done(("e",), "failed", "KeyError"), "error: KeyError\n"),
        (
            Done(("e",), "elsewhere"),
            "another program answers this conversation; its reply is in the history\n",
        ),
    ],
)
def test_a_reply_that_ended_otherwise_says_so_after_what_came(done, said):
    assert drawn(TextDelta("Half"), done)[1] == f"Half\n\n{said}"


def test_a_plain_terminal_gets_the_text_as_it_comes():
    page, printed = drawn(*deltas("**First**\n\nSec"), look=PLAIN)

    assert (printed, page.is_inside_line) == ("**First**\n\nSec", True)
    page, printed = drawn(Notice("⚙️ Compacting"), *deltas("ond."), look=PLAIN, page=page)
    assert printed == "ond."
    page, printed = drawn(ToolEnded("c", "look", "ok"), DONE, look=PLAIN, page=page)
    assert printed == "\n⚙️ Compacting\n⚙ look() → ok\n"


EVIL = "red \x1b[31m\x1b]0;title\x07 \x9b2J \u202egnp\r over \ud800"


@pytest.mark.parametrize(
    "events",
    [
        (TextDelta(EVIL), DONE),
        (ReasoningDelta(EVIL), DONE),
        (ToolStarted("c", "look", EVIL), ToolEnded("c", "look", EVIL)),
        (ToolEnded("c", EVIL, EVIL, is_error=True),),
        (Notice(EVIL),),
        (CommandReply("e", "/recall", EVIL),),
        (Done(("e",), "failed", EVIL),),
        (TypedLine(EVIL),),
    ],
)
@pytest.mark.parametrize("look", [SCREEN, PLAIN])
def test_no_control_character_reaches_a_terminal(events, look):
    page, printed = drawn(*events, look=look)
    printed += STYLE.sub("", live_text(page, look, 5))

    assert safe(printed) == printed
    assert "\x1b" not in printed


def test_a_pipe_gets_what_the_model_wrote():
    pipe = PageLook(80, has_markdown=False, has_colour=False, is_terminal=False)

    assert drawn(TextDelta("a\x1b]\r\nb"), look=pipe)[1] == "a\x1b]\r\nb"


def test_without_colour_there_is_none():
    text = "# Head\n\n`code` and [a link](https://example.org)\n\n```python\nx = 'y'\n```\n\nend"
    pieces = []
    page = Page()
    for event in (TypedLine("x"), TextDelta(text), Notice("note"), Done(("e",), "failed", "gone")):
        page, more = draw(page, event, PageLook(80, has_colour=False))
        pieces += more

    printed = "".join(piece.text for piece in pieces)
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", printed)
    assert "https://example.org" in printed


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_screen(width):
    text = "# A long heading " + "and more " * 30 + "\n\n" + "words " * 100 + "\n\n- " + "item " * 60
    _, printed = drawn(
        TextDelta(text),
        ReasoningDelta("thought " * 50),
        ToolStarted("c", "look", "{}"),
        ToolEnded("c", "look", "result " * 60),
        DONE,
        look=PageLook(width),
    )

    assert max(map(len, printed.splitlines())) < width


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"{'  ' * n}- level{n}" for n in range(40)),
        "\n".join(f"{'   ' * n}1. level{n}" for n in range(12)),
        "> " * 25 + "level24 level0 level11",
        "> " * 90 + "level89 level0 level11",
    ],
)
def test_what_is_deeply_nested_is_shown(text, columns):
    """A parser or a renderer without room would leave it out."""
    _, printed = drawn(TextDelta(text), DONE, look=PageLook(columns))
    assert re.findall(r"level\d+", printed) == re.findall(r"level\d+", text)
    page, _ = drawn(TextDelta(text), look=PageLook(columns))
    assert "level" in live_text(page, PageLook(columns), 100)


WIDE = "潮来潮去港口平静" * 20
LONG = "the server did not give a reply because of internationalisation " * 5


@pytest.mark.parametrize("look", [SCREEN, PLAIN])
@pytest.mark.parametrize("text", [WIDE, LONG.strip(), "e\u0301" * 300, "👩‍👩‍👧‍👦" * 60])
def test_lines_of_tools_are_cut_by_cells(text, look):
    started = ToolStarted("c1", "read", f'{{"path": "{text}"}}')
    page, _ = drawn(started, look=look)
    assert cells(live_text(page, look, 5)) < 80
    _, printed = drawn(ToolEnded("c1", "read", text), page=page, look=look)
    (line,) = printed.splitlines()
    assert 70 < cell_len(line) < 80
    assert line.endswith("…")


@pytest.mark.parametrize("look", [SCREEN, PLAIN])
def test_long_lines_are_broken_between_words(look):
    events = (
        Done(("e",), "failed", f"{LONG}\nhint: {LONG}"),
        Notice(LONG),
        CommandReply("e", "/look", LONG),
        TypedLine(LONG),
    )
    for event in events:
        _, printed = drawn(event, look=look)
        assert not printed or cells(printed) < 80
        words = [word for line in printed.splitlines() for word in line.split()]
        assert {*words} <= {*LONG.split(), "error:", "hint:", ">"}, "no word is broken"
    _, printed = drawn(Notice(WIDE), look=look)
    assert cells(printed) < 80
    assert "".join(printed.split()) == WIDE


def test_a_pipe_gets_whole_lines():
    pipe = PageLook(80, has_markdown=False, has_colour=False, is_terminal=False)
    _, printed = drawn(Done((), "failed", LONG), CommandReply("e", "/look", LONG), look=pipe)
    assert printed == f"error: {LONG.strip()}\n{LONG}\n"


def test_a_compaction_is_told_once_with_its_sizes():
    notice = "⚙️ Compacted (7k → 2k)\n  🔧 System: 1 tokens"
    reply = CommandReply("e", "/compact", "⚙️ Compacting session #1...\n⚙️ Compacted (7k → 2k)")
    _, printed = drawn(TypedLine("/compact", is_command=True), Notice(notice), reply)
    assert printed == f"> /compact\n{notice}\n"
    _, printed = drawn(reply)
    assert printed == f"{reply.text}\n"


@pytest.mark.parametrize(("look", "gap"), [(SCREEN, "\n"), (PLAIN, "")])
def test_a_notice_about_the_reply_comes_after_it(look, gap):
    _, printed = drawn(*deltas("The tide co"), Notice("✂️ cut"), DONE, look=look)
    assert printed == f"The tide co\n{gap}✂️ cut\n"


@pytest.mark.parametrize("text", ["\n".join(map(str, range(9_000))), "word " * 40_000])
def test_of_a_long_paste_the_beginning_is_printed(text):
    _, printed = drawn(TypedLine(text))
    rows = printed.splitlines()
    assert len(rows) == 41
    assert rows[0].startswith(f"> {text[:1]}")
    assert rows[-1] == f"… {len(text):,} characters are sent"


def table_of(*cells):
    return "".join(f"|{'|'.join(row)}|\n" for row in (cells, ["---"] * len(cells), cells))


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "text",
    [
        table_of("https://example.org/" + "tide" * 60, "word " * 60),
        table_of(*(f"column{n}" for n in range(12))),
        table_of(*(f"column{n}" for n in range(60))),
        "![the pier](https://example.org/pier.png) and more",
    ],
)
def test_nothing_of_a_table_or_an_image_is_lost(text, columns):
    _, printed = drawn(TextDelta(text), DONE, look=PageLook(columns))
    assert "…" not in printed
    wanted, found = Counter(re.findall(r"\w", text)), Counter(re.findall(r"\w", printed))
    assert wanted <= found
