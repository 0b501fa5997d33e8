"""Profiles Refold from outside with py-spy: `pip install py-spy`, or name it with --py-spy.

A sample counts for the innermost frame that has a name below; time in the standard library counts for its
caller. Samples are of the main thread while it holds the interpreter, and divide its processor time. The time
of the store's threads is measured as a whole. Waiting for the disk is in neither: it is measured by writing
to the same folder.
"""

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.gateway import client_requests
from benchmarks.gateway.cases import AT_ONCE, COMPACTED, FULL, report
from benchmarks.gateway.load import Client, crowd
from benchmarks.gateway.proxies import Proxy

RATE = 250
"""Samples per second; more would disturb the measurement."""
THREADS = "the store's threads"
AREAS = (
    ("store", r"refold/stores/|refold/ports/|psycopg"),
    ("recognition", r"refold/gateway/(recognition|conversations)\.py|refold/core/identity"),
    ("reading", r"refold/wire/|refold/gateway/(request|response_tap)\.py|msgspec"),
    ("HTTP out", r"aiohttp/|yarl/|multidict/|refold/gateway/(exchange|upstreams|request_edits)\.py"),
    ("HTTP in", r"uvicorn/|starlette/|refold/gateway/"),
    ("engine", r"refold/"),
)
_STARTS = ("server.py:run", "server.py:_run", "gateway_process.py:main", "gateway_process.py:<module>")
"""Frames of Refold below every other one: with no frame above them, the time is the event loop's."""
_FRAME = re.compile(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


def sampled(spy: str, proxy: Proxy, work: Callable[[], int]) -> dict[str, object]:
    """Milliseconds per request, by area and by function. `work` returns the number of its requests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stacks"
        command = [spy, "record", "-p", str(proxy.pid), "-r", str(RATE), "-f", "raw", "-o", str(path)]
        command += ["--full-filenames", "--gil", "-d", "600"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.0)  # it looks for the interpreter first
        before, requests = (proxy.main_cpu_s(), proxy.cpu_s()), max(1, work())
        main, whole = proxy.main_cpu_s() - before[0], proxy.cpu_s() - before[1]
        process.send_signal(2)
        process.wait(60)
        areas, functions = _counted(path.read_text().splitlines() if path.exists() else [])
    scale = main * 1_000 / requests / max(1, areas.total())
    costs = {name: count * scale for name, count in areas.most_common()}
    return {
        "requests": requests,
        "areas": {**costs, THREADS: (whole - main) * 1_000 / requests},
        "functions": {_short(name): count * scale for name, count in functions.most_common(15)},
    }


def _counted(lines: list[str]) -> tuple[Counter[str], Counter[str]]:
    areas, functions = Counter[str](), Counter[str]()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [_readable(frame) for frame in stack.split(";")]
        if "threading.py" in frames[0]:
            continue
        areas[_area(frames)] += int(count)
        functions[next((one for one in reversed(frames) if "refold/" in one), frames[-1])] += int(count)
    return areas, functions


def _readable(frame: str) -> str:
    found = _FRAME.match(frame)
    return f"{found['file']}:{found['name']}" if found else frame


def _short(name: str) -> str:
    return name.rpartition("src/")[2] if "src/" in name else name.rpartition("site-packages/")[2]


def _area(frames: list[str]) -> str:
    for frame in reversed(frames):
        for name, pattern in AREAS:
            if re.search(pattern, frame) and not frame.endswith(_STARTS):
                return name
    return "loop"


def measure(spy: str, proxy: Proxy, source: client_requests.Large) -> dict[str, object]:
    """Profiles of three kinds of requests."""
    report("profile: 1 KB")
    return {
        "1 KB, conversations that go on, 32 at once": sampled(spy, proxy, lambda: _crowd(proxy)),
        "800 KB, known": _known(spy, proxy, source, FULL),
        "800 KB, known, compacted": _known(spy, proxy, source, COMPACTED),
        "800 KB, first sight": sampled(spy, proxy, lambda: _first(proxy, source)),
    }


def disk_ms(folder: Path, times: int = 200) -> float:
    """The time to write one page and flush it to the disk: the minimum of a commit."""
    took = []
    with (folder / "page").open("wb", buffering=0) as file:
        for _ in range(times):
            file.seek(0)
            file.write(b"0" * 4_096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - start) * 1_000)
    return statistics.median(took)


def _crowd(proxy: Proxy, seconds: float = 10.0) -> int:
    start = time.perf_counter()
    rate = crowd(proxy.port, [client_requests.growing() for _ in range(AT_ONCE)], 10**6, seconds)
    return int(rate * (time.perf_counter() - start))


def _known(spy: str, proxy: Proxy, source: client_requests.Large, window: int) -> dict[str, object]:
    talk = source.talk(window)
    with Client(proxy.port) as client:
        client.ask(talk.request())
        return sampled(spy, proxy, lambda: sum(1 for _ in _asked(client, iter(talk.go_on, None), 8.0)))


def _first(proxy: Proxy, source: client_requests.Large) -> int:
    with Client(proxy.port) as client:
        return sum(1 for _ in _asked(client, iter(lambda: source.talk(FULL).request(), None), 8.0))


def _asked(client: Client, feed: Iterator[bytes], seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    for request in feed:
        yield client.ask(request) and None
        if time.monotonic() > until:
            return
