"""Where Refold's time goes, as py-spy sees it from outside: `pip install py-spy`, or name it with --py-spy.

A sample belongs to the innermost place that has a name below; what the standard library does belongs to whoever asked for it.
Samples are of threads that run, and share out the processor time that the process took; waiting for the disk is not in it.
"""

import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.gateway import talks
from benchmarks.gateway.cases import AT_ONCE, COMPACTED, FULL, report
from benchmarks.gateway.load import Client, crowd
from benchmarks.gateway.proxies import Proxy

RATE = 250
"""Samples per second; more would disturb what is measured."""
AREAS = (
    ("commit", r"sqlite_commit\.py:_finish"),
    ("store", r"refold/store/|refold/ports/|psycopg"),
    ("recognition", r"refold/gateway/(lines|table|hosting|hosted)\.py|refold/core/(reconcile|identity)"),
    ("reading", r"refold/wire/|refold/gateway/(incoming|watching|limits)\.py|msgspec"),
    ("HTTP out", r"aiohttp/|yarl/|multidict/|refold/gateway/(forwarding|relay|targets|outgoing)\.py"),
    ("HTTP in", r"uvicorn/|starlette/|refold/gateway/"),
    ("engine", r"refold/"),
    ("loop", r"asyncio/|uvloop"),
)
_WAITS = re.compile(r"lane\.py:Lane\._take|futures/thread\.py:_worker|threading\.py:.*wait|selectors\.py")
"""Where a thread waits for work; py-spy takes some of them for running."""
_FRAME = re.compile(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


def sampled(spy: str, proxy: Proxy, work: Callable[[], int]) -> dict[str, object]:
    """Milliseconds per request, by area and by function. `work` says how many requests it made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stacks"
        command = [spy, "record", "-p", str(proxy.pid), "-r", str(RATE), "-f", "raw", "-o", str(path)]
        command += ["--full-filenames", "-d", "600"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.0)  # it looks for the interpreter first
        cpu_s, requests = proxy.cpu_s(), work()
        process.send_signal(2)
        process.wait(60)
        lines = path.read_text().splitlines() if path.exists() else []
    return _summed(lines, requests, (proxy.cpu_s() - cpu_s) * 1_000 / max(1, requests))


def _summed(lines: list[str], requests: int, cpu_ms: float) -> dict[str, object]:
    areas, functions = Counter[str](), Counter[str]()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [_readable(frame) for frame in stack.split(";")]
        if _WAITS.search(frames[-1]):
            continue
        areas[_area(frames)] += int(count)
        functions[next((one for one in reversed(frames) if "refold/" in one), frames[-1])] += int(count)
    scale = cpu_ms / max(1, areas.total())
    return {
        "requests": requests,
        "areas": {name: count * scale for name, count in areas.most_common()},
        "functions": {_short(name): count * scale for name, count in functions.most_common(15)},
    }


def _readable(frame: str) -> str:
    found = _FRAME.match(frame)
    return f"{found['file']}:{found['name']}" if found else frame


def _short(name: str) -> str:
    return name.rpartition("src/")[2] if "src/" in name else name.rpartition("site-packages/")[2]


def _area(frames: list[str]) -> str:
    for frame in reversed(frames):
        for name, pattern in AREAS[:-1]:
            if re.search(pattern, frame):
                return name
    return "loop"


def measure(spy: str, proxy: Proxy, source: talks.Large) -> dict[str, object]:
    """Three kinds of requests while they are looked at."""
    report("profile: 1 KB")
    return {
        "1 KB, conversations that go on, 32 at once": sampled(spy, proxy, lambda: _crowd(proxy)),
        "800 KB, known": _known(spy, proxy, source, FULL),
        "800 KB, known, compacted": _known(spy, proxy, source, COMPACTED),
        "800 KB, first sight": sampled(spy, proxy, lambda: _first(proxy, source)),
    }


def _crowd(proxy: Proxy, seconds: float = 10.0) -> int:
    start = time.perf_counter()
    rate = crowd(proxy.port, [talks.growing() for _ in range(AT_ONCE)], 10**6, seconds)
    return int(rate * (time.perf_counter() - start))


def _known(spy: str, proxy: Proxy, source: talks.Large, window: int) -> dict[str, object]:
    talk = source.talk(window)
    with Client(proxy.port) as client:
        client.ask(talk.request())
        return sampled(spy, proxy, lambda: sum(1 for _ in _asked(client, iter(talk.go_on, None), 8.0)))


def _first(proxy: Proxy, source: talks.Large) -> int:
    with Client(proxy.port) as client:
        return sum(1 for _ in _asked(client, iter(lambda: source.talk(FULL).request(), None), 8.0))


def _asked(client: Client, feed: Iterator[bytes], seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    for request in feed:
        yield client.ask(request) and None
        if time.monotonic() > until:
            return
