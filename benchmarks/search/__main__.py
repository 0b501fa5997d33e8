"""Measure search: `python -m benchmarks.search --questions FILE...` for what it finds, `--messages N` for its speed.

A question set is a file of one JSON object a line, gzipped or not: `sessions` (each with `turns` of `speaker`, `dia_id`, `text`) and
`qa` (each with `question` and `evidence`, the ids of the turns that hold the answer). No set is part of the repository. Each
conversation is stored by the library, turn by turn, and its questions are asked through `Engine.search` and `Engine.find_sessions`,
in that conversation. The row `bm25` is plain BM25 over turns and over whole sessions (k 1.2, b 0.75), in the same run.
"""

import argparse
import asyncio
import gzip
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.conversation import Writer

ROWS = ("bm25", "words", "search", "onnx")
BULK = 5_000
_WORD = re.compile(r"\w+")
_ID = re.compile(r"[^\s,;]+")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=["bm25", "words"])
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "memory"])
    parser.add_argument("--messages", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument(
        "--folder", type=Path, metavar="PATH", help="where the stores of --messages stay, to be measured again"
    )
    parser.add_argument(
        "--append", type=int, default=0, metavar="N", help="messages a round, with the last row and without"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {"quality": [], "speed": []}
    for path in asked.questions:
        for row in asked.rows:
            found["quality"].append(asyncio.run(measure_quality(path, row, asked.store)))
            report(found["quality"][-1], asked.json)
    for size in asked.messages:
        for row in asked.rows:
            if row != "bm25":
                found["speed"].append(asyncio.run(measure_speed(size, row, asked.folder)))
                report(found["speed"][-1], asked.json)
    if asked.append:
        found["append"] = asyncio.run(measure_append(asked.append, embedder(asked.rows[-1])))
        report(found["append"], asked.json)
    if asked.json:
        print(json.dumps(found, indent=2))
    return 0


def report(row: dict, is_json: bool) -> None:
    text = "  ".join(
        f"{key} {value:.{2 if value < 10 else 1}f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
    )
    print(text, file=sys.stderr if is_json else sys.stdout, flush=True)


def read(path: Path) -> list[dict]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def questions(talk: dict, known: set[str]) -> list[tuple[str, set[str]]]:
    """The questions of a conversation that have evidence in it."""
    asked = [
        (one["question"], {str(part) for each in one["evidence"] for part in _ID.findall(str(each))})
        for one in talk["qa"]
    ]
    return [(question, evidence & known) for question, evidence in asked if evidence & known]


async def measure_quality(path: Path, row: str, store: str) -> dict:
    """The share of questions with an evidence turn in the first ten (`turn@10`) and an evidence session in the first three
    (`session@3`); `turns` and `sessions` are the share of all evidence there.
    """
    sums, times = Counter(), []
    for talk in read(path):
        session_of = {str(turn["dia_id"]): one["n"] for one in talk["sessions"] for turn in one["turns"]}
        asked = questions(talk, set(session_of))
        answers = (
            bm25_answers(talk, asked) if row == "bm25" else await refold_answers(talk, asked, row, store)
        )
        for (_, evidence), (turns, sessions, ms) in zip(asked, answers, strict=True):
            wanted = {session_of[one] for one in evidence}
            sums["questions"] += 1
            sums["turn@10"] += bool(evidence & set(turns[:10]))
            sums["session@3"] += bool(wanted & set(sessions[:3]))
            sums["turns"] += len(evidence & set(turns[:10])) / len(evidence)
            sums["sessions"] += len(wanted & set(sessions[:3])) / len(wanted)
            times.append(ms)
    count = sums.pop("questions")
    shares = {key: 100.0 * value / count for key, value in sums.items()}
    return {"set": path.name, "row": row, "questions": count, **shares, "p50_ms": statistics.median(times)}


def spoken(turn: dict) -> str:
    return f"{turn['speaker']}: {turn['text']}"


def bm25_answers(talk: dict, asked: list) -> list:
    turns = {str(turn["dia_id"]): _words(spoken(turn)) for one in talk["sessions"] for turn in one["turns"]}
    sessions = {
        one["n"]: [word for turn in one["turns"] for word in _words(spoken(turn))] for one in talk["sessions"]
    }
    ranks = bm25(turns), bm25(sessions)
    return [(*(rank(_words(question)) for rank in ranks), 0.0) for question, _ in asked]


def bm25(texts: dict) -> object:
    counts = {key: Counter(words) for key, words in texts.items()}
    average = sum(map(len, texts.values())) / len(texts)
    held = Counter(word for one in counts.values() for word in one)

    def rank(query: list[str]) -> list:
        scores = Counter()
        for word in set(query) & set(held):
            weight = math.log(1 + (len(texts) - held[word] + 0.5) / (held[word] + 0.5))
            for key, one in counts.items():
                if word in one:
                    damping = 1.2 * (0.25 + 0.75 * len(texts[key]) / average)
                    scores[key] += weight * one[word] / (one[word] + damping)
        return [key for key, _ in scores.most_common(10)]

    return rank


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


async def refold_answers(talk: dict, asked: list, row: str, store: str) -> list:
    import refold

    with tempfile.TemporaryDirectory() as folder:
        place = "memory:" if store == "memory" else f"sqlite:///{folder}/search.db"
        async with refold.Engine(place, model="gpt-4o", window=10_000_000, embedder=embedder(row)) as engine:
            chat, ids, numbers = await engine.conversation("talk"), list[str](), {}
            first = talk["sessions"][0]["turns"][0]["speaker"]
            for place_in, one in enumerate(talk["sessions"]):
                session = await chat.start_session() if place_in else None
                if session is None:
                    session = (await engine.sessions("talk"))[0]
                numbers[session.id] = one["n"]
                for turn in one["turns"]:
                    role = "user" if turn["speaker"] == first else "assistant"
                    await chat.add({"role": role, "content": spoken(turn)})
                    ids.append(str(turn["dia_id"]))
            await engine.embed_messages()
            answers = []
            for question, _ in asked:
                start = time.perf_counter()
                hits = await engine.search(question, name="talk", limit=10)
                ms = (time.perf_counter() - start) * 1_000
                found = await engine.find_sessions(question, name="talk", limit=3)
                turns = [ids[int(hit.handle.removeprefix("#m"))] for hit in hits]
                answers.append((turns, [numbers[one.id] for _, one in found], ms))
            return answers


def embedder(row: str) -> object:
    from refold.embeddings import installed

    return installed({"words": "off", "search": "static"}.get(row, row))


async def measure_speed(size: int, row: str, kept: Path | None, queries: int = 60) -> dict:
    """Search over so many messages of one owner, by questions of two and of five words; with vectors if the row has them. Each search
    has other words, and the first one, which reads the signs of all vectors, is not counted.
    """
    from refold.engine.message_search import TurnVectors, find_messages
    from refold.stores.url import open_store

    writer = Writer(11, 0.5)
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:///{(kept or Path(folder)).resolve()}/search-{size}.db")
        await fill(store, writer, size)
        found, vectors = {"messages": size, "row": row}, embedder(row)
        turns = TurnVectors(store, "search", vectors) if vectors else None
        if turns:
            start = time.perf_counter()
            await turns.catch_up()
            found["embed_s"] = time.perf_counter() - start
            start = time.perf_counter()
            await find_messages(store, "search", turns, "the first search reads the signs", limit=1)
            found["first_ms"] = (time.perf_counter() - start) * 1_000
        for count in (2, 5):
            times = []
            for _ in range(queries):
                words = " ".join(writer.random.sample(writer.words, count))
                start = time.perf_counter()
                await find_messages(store, "search", turns, words, limit=20)
                times.append((time.perf_counter() - start) * 1_000)
            found |= {
                f"{count}_words_p50_ms": statistics.median(times),
                f"{count}_words_p95_ms": sorted(times)[int(0.95 * queries)],
            }
        await store.close()
    return found


async def fill(store: object, writer: Writer, size: int) -> None:
    """Store messages until there are so many; none if an earlier run left them."""
    from refold.ports.records import Batch, Head, Session, StoredMessage

    head = await store.head("search", "texts", "texts") or await store.create(
        Head(owner="search", conversation="texts", branch="texts", session="texts"),
        Session(id="texts", branch="texts", first=0),
    )
    while head.next_seq < size:
        texts = [writer.prose(220) for _ in range(min(BULK, size - head.next_seq))]
        rows = tuple(
            StoredMessage(
                seq=seq,
                role="user",
                format="chat",
                body=json.dumps({"role": "user", "content": text}).encode(),
                tokens=9,
            )
            for seq, text in enumerate(texts, head.next_seq)
        )
        head = await store.commit(head, Batch(at=0.0, messages=rows))
    await store.search("search", "nothing", limit=1)  # indexes what waits


async def measure_append(count: int, vectors: object, rounds: int = 5) -> dict:
    """Appends of messages one by one, with an embedder and without, in turns: the median time of each, and their ratio."""
    import refold

    times = {"plain": [], "embedded": []}
    for _ in range(rounds):
        for kind, chosen in (("plain", None), ("embedded", vectors)):
            with tempfile.TemporaryDirectory() as folder:
                writer = Writer(11, 0.5)
                async with refold.Engine(
                    f"sqlite:///{folder}/append.db", model="gpt-4o", window=10_000_000, embedder=chosen
                ) as engine:
                    chat = await engine.conversation("talk")
                    for _ in range(count):
                        message = {"role": "user", "content": writer.prose(220)}
                        start = time.perf_counter()
                        await chat.add(message)
                        times[kind].append((time.perf_counter() - start) * 1_000)
    medians = {f"{kind}_ms": statistics.median(values) for kind, values in times.items()}
    return {"append": count, **medians, "ratio": medians["embedded_ms"] / medians["plain_ms"]}


if __name__ == "__main__":
    sys.exit(main())
