"""Measure the trigger by a change of topic: `python -m benchmarks.topics [FILE...]`.

Without a file: recordings made here of our own texts, with marked changes and digressions that return. A file has one JSON object a line, gzipped
or not: a conversation with `messages` of roles and contents, or with `sessions` of `turns` (`speaker`, `text`). Recordings are made of
pieces of its conversations, and the seams are the marked changes; the whole conversations without a seam are counted as well. No such
file is part of the repository. Every recording goes through `refold.Conversation` with the trigger at `turn_start`; a change is a
compaction with that reason. It is right if the new topic begins at most two turns from a mark that was not found before.
"""

import argparse
import asyncio
import gzip
import json
import random
import re
import statistics
import time
from pathlib import Path

from msgspec import structs

import refold
from examples.sources.topics import recordings
from refold import presets
from refold.core.triggers import QUESTION_TEXT, TURN_TEXT, TopicTrack
from refold.embeddings import load_static, static_vector
from refold.policies import TopicChange

TOLERANCE = 2
RECORDINGS = 24
_LABEL = re.compile(r"->->.*\Z", re.DOTALL)
_BORDER = re.compile(r"another topic since #m(\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    load_static()
    rows = [
        measure("own", recordings(RECORDINGS)),
        measure("own, one subject", recordings(RECORDINGS, subjects=1)),
    ]
    for path in asked.files:
        talks = read_talks(path)
        rows.append(measure(f"{path.name}, pieces", spliced(talks)))
        rows.append(measure(f"{path.name}, whole", [(talk, []) for talk in talks]))
    for row in rows:
        if not asked.json:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    if asked.json:
        print(json.dumps(rows, indent=2))
    return 0


def spliced(talks, pieces=8):
    """Recordings of pieces of 8 to 20 turns, each of another conversation than the one before."""
    long = [talk for talk in talks if len(talk) >= 8]
    made = []
    for seed in range(RECORDINGS if len(long) > 1 else 0):
        chance, turns, marks, last = random.Random(seed), [], [], None
        for _ in range(pieces):
            last = chance.choice([one for one in long if one is not last])
            size = chance.randint(8, min(20, len(last)))
            first = chance.randint(0, len(last) - size)
            marks += [len(turns)] if turns else []
            turns += last[first : first + size]
        made.append((turns, marks))
    return made


def read_talks(path):
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    # A row with seams was put together of other rows.
    return [turns_of(row) for row in rows if not (row.get("meta") or {}).get("seams")]


def turns_of(row):
    """Pairs of what the first speaker says and what is answered."""
    if "messages" in row:
        said = [(one["role"], text_of(one.get("content"))) for one in row["messages"]]
        first = "user"
    else:
        said = [(one["speaker"], one["text"]) for session in row["sessions"] for one in session["turns"]]
        first = said[0][0]
    turns = []
    for speaker, text in said:
        text = _LABEL.sub("", text).strip()
        if speaker == first:
            turns.append((text, ""))
        elif turns and speaker not in ("system", "tool"):
            turns[-1] = (turns[-1][0], f"{turns[-1][1]}\n{text}".strip())
    return [(asked, answered or "Done.") for asked, answered in turns if asked]


def text_of(content):
    if isinstance(content, list):
        return " ".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def measure(name, found):
    right = reported = twice = marked = turns = 0
    times = []
    for recording, marks in found:
        borders = asyncio.run(changes(recording))
        left = set(marks)
        for border in borders:
            near = [mark for mark in marks if abs(mark - border) <= TOLERANCE]
            right += bool(left.intersection(near))
            twice += bool(near) and not left.intersection(near)
            left.difference_update(near[:1])
        reported, marked, turns = reported + len(borders), marked + len(marks), turns + len(recording)
        times += step_times(recording)
    return {
        "recordings": name,
        "turns": turns,
        "changes": marked,
        "reported": reported,
        "right": right,
        "twice": twice,
        "precision": round(right / reported, 3) if reported and marked else None,
        "recall": round(right / marked, 3) if marked else None,
        "ms a turn": round(statistics.median(times), 3),
        "99 %": round(statistics.quantiles(times, n=100)[98], 3),
    }


async def changes(recording):
    """The turns at which a new topic began, by the compactions of a conversation."""
    policy = structs.replace(presets.REFOLD, triggers={"turn_start": TopicChange()})
    async with refold.Conversation("gpt-4o", policy=policy, window=1_000_000) as talk:
        for asked, answered in recording:
            await talk.add({"role": "user", "content": asked})
            await talk.context()
            await talk.add({"role": "assistant", "content": answered})
        found = [_BORDER.match(one.reason) for one in talk.receipts]
    return [int(one[1]) // 2 for one in found if one]


def step_times(recording):
    """Milliseconds of processor time that the trigger adds to each turn: two vectors, and the comparisons with them."""
    rule, track, times, said = TopicChange(), TopicTrack(), [], ""
    for number, (asked, answered) in enumerate(recording):
        began = time.thread_time()
        if said:
            track = track.end_turn(static_vector(said), rule)
        track = track.ask(2 * number, static_vector(asked[:QUESTION_TEXT]), rule)
        times.append((time.thread_time() - began) * 1_000)
        said = f"{asked}\n{answered}"[:TURN_TEXT]
    return times


if __name__ == "__main__":
    raise SystemExit(main())
