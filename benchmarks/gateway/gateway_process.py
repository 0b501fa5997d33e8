"""The gateway as `refold serve` runs it, in a process of its own: `python -m benchmarks.gateway.gateway_process PORT
STORE [NAME=VALUE...]`.
"""

import sys

from refold.config import flag_layer, resolve
from refold.gateway.server import run


def main(upstream: str, store: str, *settings: str) -> None:
    flags: dict[str, object] = {
        "upstreams": [f"http://127.0.0.1:{upstream}/v1"],
        "store.url": store,
        "server.port": 0,
        **dict(setting.split("=", 1) for setting in settings),
    }
    run(resolve([flag_layer(flags)]), lambda url, _: print(url, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
