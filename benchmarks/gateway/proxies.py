"""The programs between a client and the upstream: none, Refold, LiteLLM, headroom. Each is a process of its
own.

With two cores the proxy has one, and the stub and the client share the other. While one proxy is measured the
other ones are stopped.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.gateway import client_requests
from benchmarks.gateway.load import Bad, Client

START_S = 180.0
"""Time that a proxy may take until it answers; LiteLLM tries to download its prices first."""
PEERS = ("litellm", "headroom")
_CONFIG = """model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "http://127.0.0.1:{port}/v1", api_key: sk-bench}}
"""


class Proxy:
    """A port, and the process behind it."""

    def __init__(self, name: str, port: int, process: "subprocess.Popen[str] | None" = None) -> None:
        self.name, self.port, self._process = name, port, process

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        return self._process is None or self._process.poll() is None

    def rss_mb(self) -> float:
        return _status(self.pid, "VmRSS") / 1_024 if self.pid else 0.0

    def peak_mb(self) -> float:
        """The most memory since `forget_peak`."""
        return _status(self.pid, "VmHWM") / 1_024

    def forget_peak(self) -> None:
        with suppress(OSError):  # another system than Linux
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """Seconds of processor time so far, of all threads that still run."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def main_cpu_s(self) -> float:
        """Seconds of processor time of the main thread."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def send(self, number: signal.Signals) -> None:
        if self._process:
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        if self._process:
            self.send(signal.SIGCONT)
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)


def _status(pid: int, field: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


@contextmanager
def alone(proxy: Proxy, proxies: Sequence[Proxy]) -> Iterator[Proxy]:
    """Run one proxy and stop the other ones; the upstream always runs."""
    others = [one for one in proxies if one is not proxy and one.name != "direct"]
    for one in others:
        one.send(signal.SIGSTOP)
    try:
        yield proxy
    finally:
        for one in others:
            one.send(signal.SIGCONT)


def cores() -> tuple[int, int] | None:
    """One core for the proxy, and one for the other processes; None if the cores are not known."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return (usable[-1], usable[0]) if len(usable) > 1 else None


def stay_on(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def start(
    command: Sequence[str], core: int | None, env: Mapping[str, str] = {}, folder: Path | None = None
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: stay_on(core),  # noqa: PLW1509  # there are no threads here
        env={**os.environ, **env},
    )


def _port(process: "subprocess.Popen[str]") -> int:
    assert process.stdout
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit("a process did not start: " + " ".join(map(str, process.args)))
    return int(line.rpartition(":")[2])


@contextmanager
def stubbed(core: int | None, summary_s: float = 0.0) -> Iterator[Proxy]:
    """The upstream, which is also measured directly."""
    process = start([sys.executable, "-m", "benchmarks.gateway.stub", str(summary_s)], core)
    stub = Proxy("direct", _port(process), process)
    try:
        yield stub
    finally:
        stub.stop()


@contextmanager
def refold(stub: Proxy, store: str, core: int | None, *settings: str) -> Iterator[Proxy]:
    """The gateway of this checkout; each setting is written `NAME=VALUE`."""
    command = [sys.executable, "-m", "benchmarks.gateway.gateway_process", str(stub.port), store, *settings]
    with _served("refold", start(command, core)) as proxy:
        yield proxy


@contextmanager
def before(stub: Proxy, store: str, core: int | None, checkout: Path) -> Iterator[Proxy]:
    """The gateway of another checkout, with the environment that stands in it."""
    python = checkout / ".venv/bin/python"
    is_named = (
        checkout / "benchmarks/gateway/gateway_process.py"
    ).exists()  # older checkouts call it `served`
    module = f"benchmarks.gateway.{'gateway_process' if is_named else 'served'}"
    command = [str(python), "-m", module, str(stub.port), store]
    with _served("before", start(command, core, folder=checkout)) as proxy:
        yield proxy


@contextmanager
def _served(name: str, process: "subprocess.Popen[str]") -> Iterator[Proxy]:
    proxy = Proxy(name, _port(process), process)
    try:
        wait_for(proxy)
        yield proxy
    finally:
        proxy.stop()


@contextmanager
def peers(
    stub: Proxy, executables: Mapping[str, str], core: int | None, folder: Path
) -> Iterator[list[Proxy]]:
    """The proxies that are installed and answer."""
    with ExitStack() as stack:
        found = []
        for name, executable in executables.items():
            port = _free_port()
            command = _command(name, executable, port, stub.port, folder)
            process = start(command, core, {**_vocabularies(executable), **_ENV[name]})
            proxy = Proxy(name, port, process)
            stack.callback(proxy.stop)
            print(f"waiting for {name}", file=sys.stderr)
            try:
                wait_for(proxy)
            except SystemExit as error:
                print(error, file=sys.stderr)
            else:
                found.append(proxy)
        yield found


_ENV = {
    "litellm": {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # as Refold serves this machine without a key
    },
    "headroom": {"HEADROOM_TELEMETRY": "off"},
}


def _vocabularies(executable: str) -> dict[str, str]:
    """Vocabularies from LiteLLM's package: without a network, headroom would stop for seconds, repeatedly, to
    download them.
    """
    packages = Path(executable).absolute().parent.parent.glob("lib/python*/site-packages")
    found = [one / "litellm/litellm_core_utils/tokenizers" for one in packages]
    there = next((one for one in found if one.is_dir()), None)
    return {"TIKTOKEN_CACHE_DIR": str(there)} if there else {}


def executables(given: Mapping[str, str | None]) -> dict[str, str]:
    """The executable of each peer: the given one, or the one on the PATH."""
    found = {name: given.get(name) or shutil.which(name) for name in PEERS}
    return {name: path for name, path in found.items() if path}


def _command(name: str, executable: str, port: int, upstream: int, folder: Path) -> list[str]:
    if name == "litellm":
        config = folder / "litellm.yaml"
        config.write_text(_CONFIG.format(model=client_requests.MODEL, port=upstream))
        return [executable, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{upstream}"  # its cache would answer a request that repeats by itself
    bare = ("--no-cache", "--no-rate-limit", "--stateless")
    return [executable, "proxy", "--port", str(port), "--openai-api-url", url, *bare]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def wait_for(proxy: Proxy) -> None:
    until, why = time.monotonic() + START_S, ""
    while time.monotonic() < until and proxy.is_running:
        try:
            with Client(proxy.port) as client:
                client.ask(client_requests.small().request())
        except (OSError, Bad) as error:
            why = str(error)
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"{proxy.name} does not answer: {why}")
