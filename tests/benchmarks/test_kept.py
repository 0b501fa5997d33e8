"""Kept %: the choice of points, contexts in a chat format, the files of a run, and the arithmetic of the table."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from benchmarks.kept.__main__ import main
from benchmarks.kept.chat_format import ChatFormat, split
from benchmarks.kept.contexts import REPLY_TOKENS, Writer, chosen_points, points_named, rendered
from benchmarks.kept.engines import maker, named
from benchmarks.kept.points import (
    LARGE,
    MAIN,
    SHORT,
    Limits,
    Turn,
    answers,
    choose,
    later_preferred,
    lower_bound,
    stratum_of,
    talk_of,
    window_tokens,
)
from benchmarks.kept.run_files import (
    Contexts,
    RenderedPoint,
    Scored,
    next_results,
    point_ids,
    read_contexts,
    read_results,
    write_contexts,
    write_results,
)
from benchmarks.kept.scores import check_batches, score_run
from benchmarks.kept.table import Measured, read_runs, render, tabulate
from refold.core.presets import PRESETS
from refold.model.dialect import CHAT
from refold.model.errors import WindowError
from refold.replay import BASELINES, ReferenceCounter, read_recordings
from refold.replay.candidate import PresetCandidate
from refold.testing import EvaluationAdapter
from refold.wire import encode_message

ROOT = Path(__file__).parents[2]
TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def letters(text: str) -> list[int]:
    """A tokenizer for tests: a token is four characters, and never goes over a start-of-message token."""
    pieces = (part[at : at + 4] for part in split(text) for at in range(0, len(part), 4))
    return [crc32(piece.encode()) % 5_000 for piece in pieces]


def turn(number: int) -> list[dict]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"What of crossing {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "content": f"crossing {number} has code K{number * 7}. " * 20,
        },
        {"role": "assistant", "content": f"It has code K{number * 7}, and the ferry leaves in the morning."},
    ]


@pytest.fixture
def corpus(tmp_path):
    """Three recordings of 30, 40 and 50 turns, about 240 window tokens each turn."""
    path = tmp_path / "talks.jsonl"
    talks = [
        {
            "id": f"talk-{turns}",
            "tools": [TOOL],
            "messages": [{"role": "system", "content": "You mind the ferry."}]
            + [message for number in range(turns) for message in turn(number)],
        }
        for turns in (30, 40, 50)
    ]
    path.write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    return path


@pytest.fixture
def talks(corpus):
    return {recording.id: talk_of(recording) for recording in read_recordings(corpus)}


@pytest.fixture
def writer():
    return Writer(ChatFormat(TEMPLATE), letters)


LIMITS = Limits(windows=(1_000, 2_000), shortest=3_000, longest=8_000)


# Rendering


def test_a_context_is_rendered_by_the_models_own_template():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Mind"}, {"type": "text", "text": "it."}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ]

    text = ChatFormat(TEMPLATE).text(messages, [TOOL])

    assert text == (
        f"<|im_start|>tools\n{json.dumps(TOOL)}\n"
        "<|im_start|>system\nMind\nit.<|im_end|>\n"
        '<|im_start|>assistant\n<call>look {"at": "é"}</call><|im_end|>\n'
    )


def test_arguments_that_are_no_json_are_rendered_as_a_string():
    call = {"function": {"name": "look", "arguments": '{"at": '}}

    assert '<call>look "{\\"at\\": "</call>' in ChatFormat(TEMPLATE).text(
        [{"role": "assistant", "content": "", "tool_calls": [call]}]
    )


def test_segments_are_the_text_cut_before_every_message():
    chat = ChatFormat(TEMPLATE)
    messages = [
        {"role": "user", "content": "one <|im_start|> two"},
        {"role": "assistant", "content": "three"},
    ]

    segments = chat.segments(messages)

    assert "".join(segments) == chat.text(messages)
    assert all(segment.startswith("<|im_start|>") for segment in segments)
    assert len(segments) == 3


def test_a_reply_is_what_follows_the_header_up_to_its_end():
    chat = ChatFormat(TEMPLATE)

    assert chat.header() == "<|im_start|>assistant\n"
    assert chat.reply({"role": "assistant", "content": "three"}) == "three<|im_end|>"


def test_a_template_that_begins_replies_in_two_ways_is_refused():
    with pytest.raises(ValueError, match="template"):
        ChatFormat(TEMPLATE.replace("'<|im_start|>assistant\\n'", "'<|im_start|>model\\n'")).reply(
            {"role": "assistant", "content": "three"}
        )


# Points


def test_the_lower_bound_is_system_first_question_and_last_unit():
    body = [*turn(0), *turn(1)]
    system = [{"role": "system", "content": "s"}]

    assert lower_bound(system, body[:7]) == [*system, body[0], body[5], body[6]]
    assert lower_bound(system, body[:5]) == [*system, body[0], body[4]]
    assert lower_bound(system, body[:1]) == [*system, body[0]]


def test_the_second_of_two_replies_in_a_row_is_no_point():
    body = [
        {"role": "user"},
        {"role": "assistant"},
        {"role": "assistant"},
        {"role": "tool"},
        {"role": "assistant"},
    ]

    assert answers(body) == [1, 4]


@pytest.mark.parametrize(
    "window, lower, stratum",
    [(9_000, 100, MAIN), (9_000, 3_801, LARGE), (9_000, 3_800, MAIN), (8_000, 100, SHORT)],
)
def test_a_stratum_says_what_is_special_about_a_point(window, lower, stratum):
    assert stratum_of(Turn(1, window, lower, 20_000, 50), (4_000, 8_000)) == stratum


def test_later_turns_are_preferred():
    turns = [Turn(at, 9_000, 100, 20_000, 50) for at in range(10)]
    source = random.Random(3)

    picked = [chosen.turn for _ in range(2_000) for chosen in later_preferred(turns, 1, source)]

    assert picked.count(9) == pytest.approx(2_000 * 10 / 55, rel=0.2)
    assert picked.count(0) == pytest.approx(2_000 * 1 / 55, rel=0.5)


def test_points_depend_on_the_seed_and_not_on_the_order_of_recordings():
    turns = [Turn(at, 9_000, 100, 20_000, 50) for at in range(20)]
    surveyed = [("a", turns), ("b", turns), ("c", turns[:2])]
    settings = {"most": 9, "per_recording": 4}

    points = choose(surveyed, Limits(), seed=1, **settings)

    assert choose(surveyed[::-1], Limits(), seed=1, **settings) == points
    assert choose(surveyed, Limits(), seed=2, **settings) != points
    assert len(set(points)) == len(points) == 9
    assert all(sum(point.recording == name for point in points) <= 4 for name in "abc")


def test_short_replies_are_no_points():
    turns = [Turn(1, 9_000, 100, 20_000, 7), Turn(2, 9_000, 100, 20_000, 8)]

    points = choose([("a", turns)], Limits(), seed=1, most=9, per_recording=9)

    assert [point.id for point in points] == ["a@2"]


def test_chosen_points_have_histories_within_the_limits(talks, writer):
    points = chosen_points(talks.values(), writer, LIMITS, seed=1, most=20, per_recording=8)

    assert len(points) == 20
    for point in points:
        talk = talks[point.recording]
        history = [*talk.system, *talk.body[: point.turn]]
        assert window_tokens(history) > 2_000
        assert LIMITS.shortest <= writer.size(history, talk.tools) <= LIMITS.longest
        assert talk.body[point.turn]["role"] == "assistant"


# Engines and contexts


def test_a_preset_is_the_adapter_that_users_have():
    assert isinstance(maker("lis")(), EvaluationAdapter)
    assert all(callable(maker(name)) for name in (*PRESETS, *(made.name for made in BASELINES)))


@pytest.mark.parametrize("spec", ["nonsense", "json:Nonsense", "no_such_module:Engine"])
def test_an_engine_that_there_is_not_is_refused(spec):
    with pytest.raises(ValueError, match="there is no engine"):
        maker(spec)


@pytest.mark.parametrize("argument", ["full=refold", "a@b=refold", "=refold"])
def test_names_with_another_meaning_are_refused(argument):
    with pytest.raises(ValueError, match="cannot be named"):
        named(argument)


def test_engines_get_a_name_or_keep_their_own():
    assert named("mask=mask output at 80 %") == ("mask", "mask output at 80 %")
    assert named("refold") == ("refold", "refold")


def test_a_preset_sends_what_a_replay_of_it_sends(corpus, talks, writer):
    """The window limits the messages alone, and tokens are counted as the replay counts them."""
    (point,) = points_named(["talk-50@181"], talks, LIMITS)
    contexts, faults = rendered([point], talks, writer, {"refold": "refold"}, (2_000,))
    recording = next(each for each in read_recordings(corpus) if each.id == "talk-50")
    candidate = PresetCandidate("refold")
    candidate.start(recording.system, (), 2_000, ReferenceCounter())
    for at, message in enumerate(recording.messages[:182]):
        if at and message.role == "assistant":
            sent = candidate.context()
        candidate.add(message)
    expected = [json.loads(bytes(encode_message(message, CHAT))) for message in sent]

    (found,) = contexts.points
    text = ChatFormat(TEMPLATE).text(expected, talks["talk-50"].tools, prompt=True)
    assert contexts.ids(found, "refold@2000").tolist() == letters(text)
    assert found.sizes["refold@2000"] == window_tokens(expected) <= 2_000
    assert found.sizes["full"] > 7_000
    assert not faults


class OverTheWindow:
    """An engine that sends everything, and refuses at one turn."""

    def start(self, system, tools, window):
        self.messages, self.tools = list(system), tools

    def add(self, message):
        self.messages.append(message)

    def context(self):
        if len(self.messages) == 182:
            raise WindowError("nothing can be sent")
        return list(self.messages)


def test_faults_of_an_engine_are_counted(talks, writer):
    points = points_named(["talk-50@181", "talk-50@183"], talks, LIMITS)
    engines = {"own": f"{__name__}:OverTheWindow"}

    contexts, faults = rendered(points, talks, writer, engines, (2_000,), bounds=False)

    assert [set(point.ctx) for point in contexts.points] == [set(), {"own@2000"}]
    assert faults == {"own@2000 refused": 1, "own@2000 over the window": 1}


def test_a_history_that_fits_is_not_measured_in_that_window(talks, writer):
    (point,) = points_named(["talk-30@29"], talks, LIMITS)
    assert point.stratum == SHORT

    contexts, _ = rendered([point], talks, writer, {"drop": "drop oldest"}, (1_000, 2_000))

    assert set(contexts.points[0].ctx) == {"full", "lower", "drop@1000"}


def test_points_that_the_recordings_do_not_have_are_refused(talks):
    with pytest.raises(ValueError, match="talk-30@20"):
        points_named(["talk-30@20"], talks, LIMITS)


def test_contexts_are_the_same_from_several_processes(talks, writer):
    points = chosen_points(talks.values(), writer, LIMITS, seed=1, most=6, per_recording=2)
    engines = {"mask": "mask output at 80 %"}

    alone, _ = rendered(points, talks, writer, engines, LIMITS.windows)
    together, _ = rendered(points, talks, writer, engines, LIMITS.windows, jobs=2)

    assert alone.points == together.points


def test_a_long_reply_is_cut(talks, writer):
    talk = talks["talk-50"]
    talk.body[181]["content"] = "word" * 1_000
    (point,) = points_named(["talk-50@181"], talks, LIMITS)

    contexts, _ = rendered([point], talks, writer, {}, (2_000,))

    assert len(contexts.points[0].target) == REPLY_TOKENS


# Files and scoring


class CountingModel:
    """Finds a reply the likelier, the more tokens its context has; rows of a batch do not see each other."""

    def __init__(self):
        self.read = 0

    def score(self, sequences):
        self.read += len(sequences)
        return [
            Scored(np.full(len(reply), -1_000 / len(context), np.float32), np.zeros(len(reply), np.uint8))
            for context, reply in sequences
        ]


def point(name, contexts, recording="a", stratum=MAIN):
    sizes = {key: 10 * len(segments) for key, segments in contexts.items()}
    return RenderedPoint(name, recording, "", stratum, [5, 6], contexts, sizes)


def two_points():
    segments = [np.arange(size, dtype=np.int32) for size in (3, 4, 5)]
    full = {"full": [0, 1, 2], "lower": [0], "x@100": [0, 1], "y@100": [0, 1]}
    return Contexts([point("a@1", full), point("a@2", full)], segments, np.array([9], np.int32))


def test_a_run_is_read_as_it_was_written(tmp_path):
    contexts = two_points()

    write_contexts(tmp_path, contexts)
    again = read_contexts(tmp_path)

    assert again.points == contexts.points
    assert again.ids(again.points[0], "x@100").tolist() == [0, 1, 2, 0, 1, 2, 3, 9]
    assert again.length(again.points[0], "x@100") == 10
    assert point_ids(tmp_path / "contexts.npz") == ["a@1", "a@2"]


def test_equal_contexts_are_scored_once_and_done_ones_never_again(tmp_path):
    contexts, model = two_points(), CountingModel()

    assert score_run(model, contexts, next_results(tmp_path), {}, seconds=100, say=lambda _: None)
    found = read_results([tmp_path])

    assert model.read == 6
    assert set(found) == {(each.id, name) for each in contexts.points for name in each.ctx}
    assert found["a@1", "y@100"].lp.tolist() == pytest.approx([-1_000 / 8] * 2)
    assert score_run(model, contexts, next_results(tmp_path), found, seconds=100, say=lambda _: None)
    assert model.read == 6
    assert [path.name for path in tmp_path.iterdir()] == ["results_000.npz"]


def test_a_run_that_is_cut_short_keeps_its_blocks(tmp_path):
    contexts = two_points()
    many = contexts._replace(
        points=[each._replace(id=f"a@{at}") for at in range(10) for each in contexts.points[:1]] * 2
    )
    many = many._replace(points=[each._replace(id=f"a@{at}") for at, each in enumerate(many.points)])
    times = iter([0.0, 1.0, 2.0, 200.0, 300.0])

    whole = score_run(
        CountingModel(),
        many,
        next_results(tmp_path),
        {},
        seconds=100,
        say=lambda _: None,
        clock=lambda: next(times),
    )

    assert not whole
    assert {name for name, _ in read_results([tmp_path])} == {f"a@{at}" for at in range(16)}


def test_batches_are_checked_against_sequences_alone():
    class SeesPadding(CountingModel):
        def score(self, sequences):
            longest = max(len(context) for context, _ in sequences)
            return super().score([(np.zeros(longest), reply) for _, reply in sequences])

    right, wrong = check_batches(CountingModel(), two_points()), check_batches(SeesPadding(), two_points())

    assert (right.sequences, right.worst) == (6, 0)
    assert wrong.worst > 100
    assert wrong.alone != pytest.approx(wrong.batched)


# The table


def measured(name, recording, full, lower, stratum=MAIN, **engines):
    ll = {"full": full, "lower": lower, **{key.replace("_", "@"): value for key, value in engines.items()}}
    return Measured(name, recording, stratum, ll, dict.fromkeys(ll, 100))


POINTS = [
    measured("a@1", "a", -10, -110, x_100=-30, y_100=-60),
    measured("a@2", "a", -10, -60, x_100=-10, y_100=-35),
    measured("b@1", "b", -20, -70, x_100=-45, y_100=-95),
]


def rows(points=POINTS, **settings):
    (part,) = tabulate(points, **settings)
    return {row.engine: row for row in part.rows}


def test_kept_is_the_share_of_the_sums_above_the_lower_bound():
    found = rows(against="y")

    assert found["x"].kept.value == pytest.approx(100 * (80 + 50 + 25) / 200)
    assert found["y"].kept.value == pytest.approx(100 * (50 + 25 - 25) / 200)
    assert (found["full"].kept.value, found["lower"].kept.value) == (100, 0)
    assert found["x"].lost == pytest.approx((20 + 0 + 25) / 3)
    assert found["x"].median_lost == 20
    assert found["x"].much_lost == pytest.approx(100 / 3)
    assert found["x"].recordings_alike == pytest.approx((100 * 130 / 150 + 100 * 25 / 50) / 2)


def test_a_difference_is_paired_by_recordings():
    found = rows(against="y")

    assert found["y"].against is None
    assert found["x"].against.value == pytest.approx(100 * 105 / 200)
    assert (found["x"].against.low, found["x"].against.high) == pytest.approx((100 * 55 / 150, 100))
    assert (found["x"].kept.low, found["x"].kept.high) == pytest.approx((50, 100 * 130 / 150))


def test_an_interval_is_that_of_the_resamples():
    source = np.random.default_rng(0)
    worth = source.uniform(50, 150, 40)
    kept = source.uniform(0, 1, 40)
    points = [
        measured(f"{at}@1", str(at), 0.0, -worth[at], x_100=-worth[at] * (1 - kept[at])) for at in range(40)
    ]

    found = rows(points, against="none")["x"]

    share = (kept * worth).sum() / worth.sum()
    error = 100 * np.sqrt(((worth * (kept - share)) ** 2).sum()) / worth.sum()
    assert found.kept.value == pytest.approx(100 * share)
    assert found.kept.high - found.kept.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_a_reply_without_a_score_counts_for_no_engine_that_lacks_it():
    points = [*POINTS, measured("c@1", "c", -10, -110, y_100=-10)]
    found = rows(points, against="y")

    assert (found["x"].replies, found["y"].replies) == (3, 4)
    assert found["x"].kept.value == pytest.approx(77.5)
    assert found["x"].against.value == pytest.approx(52.5)


def test_strata_and_windows_stand_apart_best_engine_first():
    points = [
        *(
            each._replace(ll={**each.ll, "x@200": each.ll["full"]}, sizes={**each.sizes, "x@200": 1})
            for each in POINTS
        ),
        measured("c@1", "c", -10, -110, LARGE, x_100=-60),
    ]
    parts = tabulate(points, "x")

    assert [(part.stratum, part.window, part.replies) for part in parts] == [
        (MAIN, 200, 3),
        (MAIN, 100, 3),
        (LARGE, 100, 1),
    ]
    assert [row.engine for row in parts[1].rows] == ["full", "lower", "x", "y"]
    text = render(parts)
    assert "Window 100, main: 3 replies of 2 recordings" in text
    assert "| y | 3 | 100 | 50.0 | 50.0 | 100 | 25.0 [-50.0, 50.0] | -52.5 [-100.0, -36.7] | 0.0 |" in text


def scored_run(folder, points, scores):
    write_contexts(folder, Contexts(points, [np.arange(3, dtype=np.int32)], np.array([9], np.int32)))
    results = {
        key: Scored(np.array([value, 0], np.float32), np.zeros(2, np.uint8)) for key, value in scores.items()
    }
    if results:
        write_results(next_results(folder), results)


def test_runs_over_the_same_points_are_joined_and_the_later_one_counts(tmp_path):
    first = point("a@1", {"full": [0], "lower": [0], "x@100": [0]})
    scored_run(tmp_path / "one", [first], {("a@1", "full"): -1, ("a@1", "lower"): -9, ("a@1", "x@100"): -5})
    scored_run(tmp_path / "two", [point("a@1", {"x@100": [0]})], {("a@1", "x@100"): -3})
    scored_run(tmp_path / "unscored", [point("a@1", {"x@100": [0]})], {})

    (once,) = read_runs([tmp_path / "one"])
    (twice,) = read_runs([tmp_path / "one", tmp_path / "two"])
    (none,) = read_runs([tmp_path / "one", tmp_path / "unscored"])

    assert once.ll == {"full": -1, "lower": -9, "x@100": -5}
    assert twice.ll == {"full": -1, "lower": -9, "x@100": -3}
    assert none.ll == {"full": -1, "lower": -9}


def test_runs_over_other_points_are_refused(tmp_path):
    scored_run(tmp_path / "one", [point("a@1", {"full": [0]})], {})
    scored_run(tmp_path / "two", [point("a@1", {"full": [0]})._replace(target=[7])], {})

    with pytest.raises(ValueError, match="different points"):
        read_runs([tmp_path / "one", tmp_path / "two"])


# The command


def test_the_command_teaches_its_three_steps():
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.kept", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    for word in ("contexts RUN --recordings", "score RUN --weights", "table RUN --against", "CUDA", "GGUF"):
        assert word in shown


def test_a_table_is_printed_in_markdown_and_json(tmp_path, capsys):
    first = point("a@1", {"full": [0], "lower": [0], "x@100": [0]})
    scored_run(tmp_path, [first], {("a@1", "full"): -1, ("a@1", "lower"): -9, ("a@1", "x@100"): -5})

    assert main(["table", str(tmp_path), "--against", "x"]) == 0
    assert "| x | 1 | 10 | 4.0 | 4.0 | 0 | 50.0 [50.0, 50.0] |  | 50.0 |" in capsys.readouterr().out
    assert main(["table", str(tmp_path), "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)
    assert part["rows"][2]["kept"] == [50, 50, 50]


def test_a_run_that_is_not_there_is_an_error_in_words(tmp_path, capsys):
    assert main(["table", str(tmp_path / "none")]) == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["contexts", "run", "--recordings", "none.jsonl", "--weights", "x"],
            "there are no recordings at none.jsonl",
        ),
        (
            ["contexts", "run", "--recordings", ".", "--weights", "none.gguf"],
            "there are no weights at none.gguf",
        ),
        (["contexts", "run", "--recordings", ".", "--weights", ".", "--no-bounds"], "give an --engine"),
        (["contexts", "run", "--recordings", ".", "--weights", ".", "--points", "0"], "--points cannot be 0"),
        (["score", "run"], "give --weights, or --tiny to try it"),
        (["score", "run", "--tiny"], "there are no contexts at run/contexts.npz"),
        (["table", "run"], "there are no contexts at run/contexts.npz"),
    ],
)
def test_mistakes_are_told_in_words_before_anything_is_imported(tmp_path, arguments, words):
    path = f"{tmp_path / 'stop'}:{ROOT}"
    for module in ("numpy", "torch", "tokenizers"):
        (tmp_path / "stop").mkdir(exist_ok=True)
        (tmp_path / "stop" / f"{module}.py").write_text("raise SystemExit('imported')")
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.kept", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert told.stderr.startswith(f"error: {words}") or f"error: nothing to write: {words}" in told.stderr
    assert "Traceback" not in told.stderr


def test_recordings_that_cannot_be_read_are_an_error_with_a_hint(tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text("{")
    (tmp_path / "w.gguf").write_bytes(b"")
    where = ["--recordings", str(tmp_path / "bad.jsonl"), "--weights", str(tmp_path / "w.gguf")]
    assert main(["contexts", str(tmp_path / "run"), *where, "--engine", "refold"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "\nhint: " in told


@pytest.mark.parametrize(
    ("verb", "words"), [("contexts", "token ids"), ("score", "status 3"), ("table", "bootstrap")]
)
def test_every_verb_says_what_it_does(verb, words, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_tiny_model_scores_batches_as_it_scores_sequences_alone(tmp_path, corpus, talks, writer):
    """The whole path with random weights; where torch is installed (`.[kept]`)."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    points = chosen_points(talks.values(), writer, LIMITS, seed=1, most=3, per_recording=1)
    contexts, _ = rendered(points, talks, writer, {"drop": "drop oldest"}, (1_000,))
    write_contexts(tmp_path / "run", contexts)

    assert main(["score", str(tmp_path / "run"), "--tiny", "--device", "cpu", "--batch-tokens", "20000"]) == 0
    from benchmarks.kept.model import tiny

    model = tiny(1 + max(int(segment.max()) for segment in contexts.segments))
    check = check_batches(model, contexts)
    assert check.worst < 1e-3
    assert len(read_results([tmp_path / "run"])) == 9
    assert main(["table", str(tmp_path / "run"), "--against", "drop"]) == 0
