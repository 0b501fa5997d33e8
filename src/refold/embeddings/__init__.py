"""Text as vectors, on this machine: for search by meaning without a key and without a network.

The idea: sessions are found by what they were about, also where none of the words is the same. `static` does that with a table of
word vectors, in a fraction of a millisecond. A model at a provider does it better: `refold.upstreams.open_embedder`.
"""

from __future__ import annotations

from refold.embeddings.static import StaticEmbedder, installed

__all__ = ["StaticEmbedder", "installed"]
