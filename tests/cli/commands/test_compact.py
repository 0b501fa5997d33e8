from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refold.core.presets import PRESETS

EXAMPLES = Path(__file__).parents[3] / "examples"
AGENT = EXAMPLES / "coding-agent.json"
WINDOWS = {
    "coding-agent.json": ("--window", "8000"),
    "support-chat.anthropic.json": ("--window", "1500", "--max-output", "300"),
    "research.responses.jsonl": ("--window", "1000", "--max-output", "200"),
}
"""Each too small for its example."""
every_example = pytest.mark.parametrize("name", WINDOWS)


def body(*messages: object, **fields: object) -> bytes:
    return json.dumps({**fields, "messages": messages}).encode()


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def call(number: int) -> dict[str, object]:
    function = {"name": "look", "arguments": json.dumps({"number": number})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def found(number: int, lines: int = 30) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": f"line of result {number}\n" * lines}


def talk(turns: int) -> list[dict[str, object]]:
    """A conversation whose last message is the assistant's."""
    turn = [
        (
            said("user", f"Question {number}?"),
            call(number),
            found(number),
            said("assistant", f"It is {number}."),
        )
        for number in range(turns)
    ]
    return [message for messages in turn for message in messages]


def messages_in(text: str) -> list[dict[str, object]]:
    """The messages of a transcript in any shape."""
    try:
        value = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]
    return value if isinstance(value, list) else value.get("messages", value.get("input"))


@every_example
@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_written_could_be_sent_and_fits(refold, name, preset):
    data = (EXAMPLES / name).read_bytes()

    code, out, err = refold("compact", str(EXAMPLES / name), "--preset", preset, *WINDOWS[name])

    assert code == 0
    assert len(out.encode()) < len(data)
    assert re.search(
        r"^[\d,]+ -> [\d,]+ tokens (counted|estimated) \(-\d+\.\d %\); there is room", err, re.MULTILINE
    )
    checked = refold("check", "-", "--as-request", *WINDOWS[name], stdin=out.encode())
    assert (checked.code, checked.err) == (0, "")
    assert messages_in(out)[-1] == messages_in(data.decode())[-1]


def test_a_request_keeps_its_other_fields_byte_for_byte(refold):
    odd = b'{"seed" :  7, "messages": %s, "x": {"b": 1,   "a": [ ]}, "model": "gpt-4o"}'
    data = odd % json.dumps([*talk(20), said("user", "And now?")]).encode()

    out = refold("compact", "-", "--window", "1500", stdin=data).out

    assert out.startswith('{"seed":7,"messages":[')
    assert out.endswith('],"x":{"b": 1,   "a": [ ]},"model":"gpt-4o"}')
    assert json.loads(out)["messages"][-1] == said("user", "And now?")


@pytest.mark.parametrize("asked", [7_500, 7_990, 20_000])
def test_an_output_that_leaves_no_room_is_lowered_in_the_transcript(refold, asked):
    messages = [said("user", "What is in the next row? " * 60)]
    data = body(*messages, model="gpt-4o", max_tokens=asked)

    sent = json.loads(refold("compact", "-", "--window", "8000", stdin=data).out)
    told = json.loads(refold("compact", "-", "--window", "8000", "--json", stdin=data).out)

    assert sent == {"model": "gpt-4o", "max_tokens": 6_000, "messages": messages}
    assert (told["max_output"], told["max_output_asked"]) == (6_000, asked)
    page = refold("compact", "-", "--window", "8000", "--dry-run", stdin=data).out
    assert f"6,000 for the reply (lowered from {asked:,})" in " ".join(page.split())


def test_lines_stay_lines_and_a_list_stays_a_list(refold):
    messages = [*talk(20), said("user", "And now?")]
    lines = "".join(json.dumps(message) + "\n" for message in messages)

    from_lines = refold("compact", "-", "--window", "1500", stdin=lines.encode()).out
    from_list = refold("compact", "-", "--window", "1500", stdin=json.dumps(messages).encode()).out

    written = [json.loads(line) for line in from_lines.splitlines()]
    assert len(written) < len(messages)
    assert written == json.loads(from_list)
    assert from_lines.splitlines()[-1] == json.dumps(messages[-1])


@every_example
def test_where_nothing_has_to_be_done_the_bytes_leave_as_they_came(refold, name):
    code, out, err = refold("compact", str(EXAMPLES / name), "--window", "200000")

    assert code == 0
    assert out == (EXAMPLES / name).read_text(encoding="utf-8")
    assert re.search(
        r"^nothing to do: [\d,]+ tokens \w+, and there is room for ([\d,]+) \(window .* = \1\); --now compacts all the same$",
        err,
        re.MULTILINE,
    )


@every_example
def test_now_compacts_whatever_the_thresholds_say(refold, name):
    data = (EXAMPLES / name).read_text(encoding="utf-8")

    _, out, err = refold("compact", str(EXAMPLES / name), "--window", "200000", "--now")

    assert len(messages_in(out)) < len(messages_in(data))
    assert "  asked for\n" in err
    assert refold("check", "-", "--as-request", stdin=out.encode()).code == 0


def test_what_was_done_is_told_with_reasons_and_handles(refold):
    err = refold("compact", str(AGENT), "--window", "12000", "--max-output", "0").err
    lines = err.splitlines()

    assert lines[0] == f"{AGENT}  chat, 135 messages"
    assert lines[1] == "gpt-4o (from the file)  window 12,000 tokens (--window)"
    assert lines[2] == "preset refold"
    assert re.search(
        r"^summarise +[\d,]+ -> [\d,]+  [\d,]+ tokens (?:do not fit into 11,880|cost more [a-z ]+, from [\d,]+)\n"
        r"(?: +supersede: .+\n)?(?: +mask: .+\n)? +summary of #m0 to #m\d+: [\d,]+ tokens, digest; no summariser is configured$",
        err,
        re.MULTILINE,
    )
    assert re.fullmatch(r"\d+ messages as they came(, \d+ cut)?, \d+ in the summary", lines[-3])
    assert sum(map(int, re.findall(r"\d+", lines[-3]))) == 134
    assert lines[-2].startswith("35,069 -> ")
    assert lines[-1] == "  window 12,000 − output 0 − reserve 120 = 11,880"


class TestTranscripts:
    """What ends with the assistant is no request, and is compacted all the same."""

    def test_one_that_ends_with_the_assistant(self, refold):
        data = body(*talk(20))

        code, out, _ = refold("compact", "-", "--window", "1500", stdin=data)

        assert code == 0
        assert messages_in(out)[-1] == said("assistant", "It is 19.")
        assert len(messages_in(out)) < 80
        assert refold("check", "-", stdin=out.encode()).code == 0

    def test_one_that_ends_with_a_call(self, refold):
        data = body(*talk(20), said("user", "Once more."), call(20))

        for options in ((), ("--now",)):
            code, out, _ = refold("compact", "-", "--window", "1500", *options, stdin=data)

            assert code == 0
            assert messages_in(out)[-1] == call(20)
            assert refold("check", "-", stdin=out.encode()).code == 0

    def test_one_that_is_broken_is_mended_and_says_so(self, refold):
        data = body(said("user", "Go."), found(7), said("user", "And now?"))

        code, out, err = refold("compact", "-", stdin=data)

        assert code == 0
        assert messages_in(out) == [said("user", "Go."), said("user", "And now?")]
        assert "mend: 1 edit, #m1\n" in err
        assert "2 messages as they came, 1 left out\n" in err

    def test_one_message(self, refold):
        assert (
            refold("compact", "-", stdin=body(said("user", "Hello."))).out
            == body(said("user", "Hello.")).decode()
        )


class TestDryRun:
    def test_it_writes_nothing_and_tells_everything(self, refold, tmp_path):
        target = tmp_path / "out.json"
        options = ("--window", "8000", "--output", str(target))

        told = refold("compact", str(AGENT), *options)
        target.unlink()
        dry = refold("compact", str(AGENT), *options, "--dry-run")

        assert dry == told
        assert not target.exists()

    def test_stdout_is_what_would_be_done(self, refold):
        code, out, err = refold("compact", str(AGENT), "--window", "8000", "--dry-run")

        assert (code, err) == (0, "")
        assert out == refold("compact", str(AGENT), "--window", "8000").err


class TestOutput:
    def test_a_file_gets_what_stdout_would_get(self, refold, tmp_path):
        target = tmp_path / "out.json"

        refold("compact", str(AGENT), "--window", "8000", "--output", str(target))

        assert target.read_text(encoding="utf-8") == refold("compact", str(AGENT), "--window", "8000").out

    def test_the_source_is_never_replaced(self, refold, tmp_path):
        source = tmp_path / "talk.json"
        source.write_bytes(AGENT.read_bytes())
        (tmp_path / "same.json").symlink_to(source)

        for target in (source, tmp_path / "same.json"):
            code, out, err = refold("compact", str(source), "--window", "8000", "--output", str(target))
            assert (code, out) == (2, "")
            assert err.startswith("error: the output would replace its source\nhint: ")
        assert source.read_bytes() == AGENT.read_bytes()

    def test_a_place_that_cannot_be_written_is_an_error(self, refold, tmp_path):
        target = tmp_path / "missing" / "out.json"

        code, out, err = refold("compact", str(AGENT), "--window", "8000", "--output", str(target))

        assert (code, out) == (2, "")
        assert err.startswith(f"error: {target} cannot be written: No such file or directory\nhint: ")


class TestDiff:
    def test_every_message_is_listed_with_its_handle_and_what_became_of_it(self, refold):
        out = refold("compact", str(AGENT), "--window", "12000", "--dry-run", "--diff").out
        entries = re.findall(
            r"^([ ~-]) #m(\d+) +(\w+) +([\d,]+(?: -> (?:summary|[\d,]+))?)  ", out, re.MULTILINE
        )

        assert [int(number) for _, number, _, _ in entries] == list(range(134))
        assert entries[0] == ("-", "0", "user", "156 -> summary")
        assert entries[-1] == (" ", "133", "user", "17")

    def test_a_cut_shows_both_sides_of_it(self, refold):
        data = body(said("user", "Look."), call(0), found(0, 3_000))

        out = refold("compact", "-", "--window", "4000", "--dry-run", "--diff", stdin=data).out

        assert re.search(
            r"^~ #m2    tool +([\d,]+) -> [\d,]+  fit: \1 tokens do not fit into the [\d,]+ that are left for them$",
            out,
            re.MULTILINE,
        )
        assert "\n    - line of result 0 line of result 0" in out
        assert re.search(r"^    \+ \.\.\..*#m2 ?.*\]", out, re.MULTILINE)

    def test_the_summary_stands_where_it_is_sent(self, refold):
        out = refold("compact", str(AGENT), "--window", "12000", "--dry-run", "--diff").out
        before, summary, after = out.partition("\n+ summary ")

        assert "\n- #m0 " in before
        assert not re.search(r"^[ ~] #m", before, re.MULTILINE)
        assert "\n    + Task #m0: We have a complaint from the harbour office in Vik." in summary + after
        assert "  #m133  user " in after

    def test_long_lines_are_shortened_and_harmless(self, refold):
        data = body(said("user", "\x1b[2J" + "x" * 5_000), said("assistant", "Well."), said("user", "And?"))

        out = refold("compact", "-", "--dry-run", "--diff", stdin=data).out

        assert "\x1b" not in out
        assert len(out.splitlines()[4]) == 80

    def test_pictures_and_foreign_blocks_have_a_name(self, refold):
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        data = body({"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]})

        assert "[image] What is it?" in refold("compact", "-", "--dry-run", "--diff", stdin=data).out


class TestJson:
    def test_the_document_for_programs(self, refold):
        code, out, err = refold("compact", str(AGENT), "--window", "8000", "--max-output", "1000", "--json")
        document = json.loads(out)

        assert (code, err) == (0, "")
        assert list(document) == [
            "file",
            "format",
            "messages",
            "model",
            "model_source",
            "window",
            "max_output",
            "max_output_asked",
            "preset",
            "limit",
            "arithmetic",
            "before",
            "after",
            "receipts",
            "changes",
            "summary",
            "covers",
            "output",
            "transcript",
        ]
        assert document["window"] == {"tokens": 8000, "source": "override", "warning": ""}
        assert (document["limit"], document["preset"]) == (6_920, "refold")
        assert document["after"]["tokens"] <= 6_920 < document["before"]["tokens"]
        plain = refold("compact", str(AGENT), "--window", "8000", "--max-output", "1000").out
        assert document["transcript"] == json.loads(plain)

    def test_changes_and_receipts_add_up(self, refold):
        document = json.loads(refold("compact", str(AGENT), "--window", "8000", "--json").out)
        last, changes = document["receipts"][-1], document["changes"]

        assert [change["index"] for change in changes] == list(range(1, 135))
        assert {change["state"] for change in changes} <= {"kept", "cut", "gone"}
        assert sum(change["before"] for change in changes) + 674 == document["before"]["tokens"]
        assert all(change["summarised"] == (change["state"] == "gone") for change in changes)
        assert all(receipt["reason"] for receipt in document["receipts"])
        assert last["summary"] == document["covers"]
        covered = changes[: document["covers"]["last"]]
        assert sum(change["summarised"] for change in changes) == sum(
            change["summarised"] for change in covered
        )

    def test_a_dry_run_holds_no_transcript(self, refold, tmp_path):
        target = tmp_path / "out.json"

        dry = json.loads(refold("compact", str(AGENT), "--window", "8000", "--json", "--dry-run").out)
        saved = json.loads(
            refold("compact", str(AGENT), "--window", "8000", "--json", "--output", str(target)).out
        )

        assert (dry["transcript"], dry["output"]) == (None, None)
        assert (saved["transcript"], saved["output"]) == (None, str(target))
        assert dry["changes"] == saved["changes"]


class TestErrors:
    def test_an_unknown_preset_is_named_with_those_there_are(self, refold):
        code, out, err = refold("compact", str(AGENT), "--preset", "nonsense")

        assert (code, out) == (2, "")
        assert err == f"error: there is no preset 'nonsense'\nhint: choose from: {', '.join(PRESETS)}\n"

    @pytest.mark.parametrize("window", ["1", "10", "25", "50"])
    @every_example
    def test_a_tiny_window_is_a_clear_error(self, refold, name, window):
        code, out, err = refold("compact", str(EXAMPLES / name), "--window", window)

        assert (code, out) == (2, "")
        first, last = err.splitlines()
        assert first.startswith("error: ")
        assert last.startswith("hint: ")

    def test_messages_that_the_provider_keeps_cannot_be_compacted(self, refold):
        data = json.dumps({"model": "gpt-4o", "input": "Go on.", "previous_response_id": "r"}).encode()

        code, out, err = refold("compact", "-", stdin=data)

        assert (code, out) == (2, "")
        assert err.splitlines()[1] == "hint: give the whole conversation"

    def test_an_impossible_output_is_an_error(self, refold):
        code, _, err = refold("compact", "-", stdin=body(said("user", "Hello."), max_tokens=10**13))

        assert code == 2
        assert "--max-output" in err

    def test_a_guessed_window_is_a_warning(self, refold):
        data = body(said("user", "Hello."), model="nobody-knows-it")

        code, out, err = refold("compact", "-", stdin=data)

        assert (code, out) == (0, data.decode())
        assert err.startswith("warning: the window of 'nobody-knows-it' is unknown")


@pytest.mark.parametrize("command", ["compact", "context"])
def test_a_window_is_written_as_in_the_settings(refold, command):
    last = ["--json"] if command == "context" else ["--dry-run"]
    shown = {refold(command, str(AGENT), "--window", size, *last).out for size in ("12000", "12k", "12_000")}

    assert len(shown) == 1
    refused = refold(command, str(AGENT), "--window", "12x")
    assert refused.code == 2
    assert (
        "invalid value for '--window': '12x': it is no size; give a number of tokens, such as 4000 or 4k"
        in refused.err
    )
    for size in ("0", "12", "255", "101m"):
        refused = refold(command, str(AGENT), "--window", size)
        assert f"'--window': '{size}': it is not a number of tokens from 256 to 100,000,000; " in refused.err
