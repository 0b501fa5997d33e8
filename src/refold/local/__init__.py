"""A small model on this machine, for a first run without a key and for tests against a true model.

The idea: weights are data. They are fetched once, checked, and kept in the user's cache; `serve_local` runs them in a process
of their own behind an address and a key that nobody else knows, and whatever speaks OpenAI Chat can ask there.

    with serve_local() as served:
        provider = Provider("local", served.model, base_url=served.base_url, headers=served.headers)

`weights` says where the weights are and fetches them, `serving` runs them.
"""

from __future__ import annotations

from refold.local.server import Served, serve_local
from refold.local.weights import install_weights, weights_path

__all__ = ["Served", "install_weights", "serve_local", "weights_path"]
