"""Text as vectors, on this machine: search by meaning without a key and without a network.

Finds sessions by their subject, even if no word is the same. `static` uses a table of word vectors and takes
a fraction of a millisecond. A provider's model gives better results: `refold.upstreams.open_embedder`.
"""

from __future__ import annotations

from refold.embeddings.static import StaticEmbedder, installed

__all__ = ["StaticEmbedder", "installed"]
