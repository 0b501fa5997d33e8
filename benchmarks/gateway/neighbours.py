"""The time of small requests while the gateway works on one large request.

The small client sends one request after another, each in a conversation of its own. The large client is a
process of its own (`python -m benchmarks.gateway.neighbours PORT LOAD`): it prepares its bodies, reports that it
is ready, and sends them when it is told to.
"""

import base64
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from benchmarks.conversation import Writer
from benchmarks.gateway import client_requests
from benchmarks.gateway.load import Client, Reading
from benchmarks.gateway.proxies import Proxy

KB, MB = 1_000, 1_000_000
SUMMARY_S = 3.0
"""Time that the stub takes for a summary, so that one is in progress when the next request comes."""
MOST_S = 300.0
"""Time limit of one load."""
AFTER_S = 1.0
"""Time that the small client continues afterwards: summaries are written in the background."""
WARM_S = 3 * SUMMARY_S
"""Time until the summary of the first compaction has been written, with a second attempt, and checked."""
FIRST = 1_000
"""Small requests before the first load: as many conversations as the gateway keeps for their next request. Otherwise those beside the
first loads would be counted as memory of the loads."""
_WRITER = Writer(11)
_CHUNK = _WRITER.prose(400 * KB)


class Load(NamedTuple):
    key: str
    name: str
    bodies: Callable[[], list[bytes]]
    is_quick: bool = True


def body(messages: list[dict[str, object]]) -> bytes:
    return json.dumps({"model": client_requests.MODEL, "messages": messages, "max_tokens": 512}).encode()


def prose(size: int) -> str:
    chance, said, length = random.Random(size), [], 0
    while length < size:
        at = chance.randrange(len(_CHUNK) - 10_000)
        said.append(_CHUNK[at : at + 10_000])
        length += 10_000
    return "\n".join(said)[:size]


def user(text: str) -> list[bytes]:
    return [body([{"role": "user", "content": text}])]


def result(text: str) -> list[dict[str, object]]:
    called = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]


def many(count: int, size: int) -> list[bytes]:
    text = prose(2 * MB)
    said = [
        {"role": ("user", "assistant")[at % 2], "content": f"{at} " + text[at * 997 % MB :][:size]}
        for at in range(count)
    ]
    return [body(said)]


def blobs(size: int) -> list[bytes]:
    data = base64.b64encode(random.Random(5).randbytes(size * 3 // 4)).decode()
    return [body([{"role": "user", "content": "Read it."}, *result(data)])]


def brackets(count: int) -> list[bytes]:
    inner = b",".join([b"[]"] * count)
    return [b'{"model":"gpt-4o","messages":[{"role":"user","content":"x"}],"metadata":[' + inner + b"]}"]


def meanwhile(size: int) -> list[bytes]:
    """A conversation that makes a summary due, and its next request, with a large result."""
    said: list[dict[str, object]] = [{"role": "user", "content": "Do it."}]
    for number in range(60):
        said += [
            {"role": "assistant", "content": f"{number} {prose(6 * KB)}"},
            {"role": "user", "content": f"Go on, {number}."},
        ]
    return [body(said), body([*said, *result(prose(size))])]


def blank() -> list[bytes]:
    return [body([{"role": "user", "content": "Hm."}, {"role": "assistant", "content": " " * 20 * KB + "x"}])]


LOADS = (
    Load("prose5", "one message, 5 MB of prose", lambda: user(prose(5 * MB))),
    Load("prose20", "one message, 20 MB of prose", lambda: user(prose(20 * MB)), is_quick=False),
    Load("base64", "a tool result, 30 MB of base64", lambda: blobs(30 * MB), is_quick=False),
    Load("many", "2,001 messages of 10 KB", lambda: many(2_001, 10 * KB)),
    Load("most", "6,001 messages of 10 KB", lambda: many(6_001, 10 * KB), is_quick=False),
    Load("tiny", "100,001 tiny messages", lambda: many(100_001, 4)),
    Load("lines", "one message, 3 million lines", lambda: user("ab\n" * 3_000_000)),
    Load("brackets", "5 million brackets", lambda: brackets(2_500_000)),
    Load("meanwhile", "3 MB while a summary is being written", lambda: meanwhile(3 * MB)),
    Load("wrapped", "150 KB of wrapped lines", lambda: user("words in small letters that go on and on, line after line, without an end\n" * 2_050)),
    Load("blank", "20 KB of blanks in an assistant's line", blank),
)  # fmt: skip


def measure(
    proxy: Proxy, *, is_quick: bool, only: Sequence[str] = (), report: Callable[[str], None]
) -> dict[str, dict[str, object]]:
    """The time of small requests alone, and during each load; the memory that the load takes."""
    found: dict[str, dict[str, object]] = {}
    report("a first compaction, which loads the tables of the process")
    for one in many(121, 10 * KB):
        _send(proxy.port, one, "first")
    time.sleep(WARM_S)
    with Client(proxy.port) as client:
        for request in islice(client_requests.fresh(), FIRST):
            client.ask(request)
        alone = list(_asked(client, lambda: False, seconds=3.0))
    found["alone"] = {"name": "by themselves", **_figures(alone)}
    for load in LOADS:
        if load.key not in only if only else is_quick and not load.is_quick:
            continue
        report(f"small requests beside {load.name}")
        found[load.key] = {"name": load.name, **_beside(proxy, load)}
    return found


def _beside(proxy: Proxy, load: Load) -> dict[str, object]:
    command = [sys.executable, "-m", "benchmarks.gateway.neighbours", str(proxy.port), load.key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin
        assert other.stdout
        size, before_mb = int(other.stdout.readline()), proxy.rss_mb()
        proxy.forget_peak()
        other.stdin.write("go\n")
        other.stdin.flush()
        until = time.monotonic() + MOST_S
        with Client(proxy.port) as client:
            times = list(_asked(client, lambda: other.poll() is None and time.monotonic() < until, AFTER_S))
        other.kill()
        told = other.stdout.readline()
    time.sleep(AFTER_S)
    memory = {"peak_mb": proxy.peak_mb() - before_mb, "after_mb": proxy.rss_mb() - before_mb}
    return {"mb": size / MB, "took_s": float(told) if told else None, **memory, **_figures(times)}


def _asked(client: Client, goes_on: Callable[[], bool], seconds: float) -> Iterator[float]:
    """Small requests while `goes_on` is true, and for some seconds more."""
    feed, until = client_requests.fresh(), time.monotonic() + seconds
    for request in feed:
        yield client.ask(request).whole
        if goes_on():
            until = time.monotonic() + seconds
        elif time.monotonic() > until:
            return


def _figures(times: list[float]) -> dict[str, object]:
    ordered = sorted(times)
    return {
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[int(0.99 * (len(ordered) - 1))],
        "max_ms": ordered[-1],
        "n": len(ordered),
    }


def main(port: str, key: str) -> None:
    bodies = next(load.bodies() for load in LOADS if load.key == key)
    print(sum(map(len, bodies)), flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    for one in bodies:
        _send(int(port), one, key)
    print(time.perf_counter() - start, flush=True)


def _send(port: int, sent: bytes, key: str) -> None:
    """Send a request and accept any answer: some of the loads are refused."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\n"
        b"content-type: application/json\r\nx-refold-conversation: %s\r\nx-refold-window: 100000\r\n"
        b"content-length: %d\r\n\r\n" % (key.encode(), len(sent))
    )
    with socket.create_connection(("127.0.0.1", port), timeout=MOST_S) as connection:
        connection.sendall(head + sent)
        reading = Reading(is_any=True)
        while not reading.is_whole:
            data = connection.recv(262_144)
            if not data:
                return
            reading.feed(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
