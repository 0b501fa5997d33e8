"""A small model on this machine, for a first run without a key and for tests against a real model.

The weights are downloaded once, verified, and kept in the user's cache. `serve_local` runs them in a process
of its own, behind an address and a random key, for any client of OpenAI Chat.

    with serve_local() as served:
        provider = Provider("local", served.model, base_url=served.base_url, headers=served.headers)

`weights` locates and downloads the weights, `server` runs them.
"""

from __future__ import annotations

from refold.local.server import Served, serve_local
from refold.local.weights import install_weights, weights_path

__all__ = ["Served", "install_weights", "serve_local", "weights_path"]
