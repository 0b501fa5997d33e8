"""Refold keeps LLM conversations inside the context window without losing anything.

This package stays light to import. What it offers lives in its subpackages: `refold.wire` reads and writes requests,
`refold.core` decides, `refold.tokens` counts, `refold.model` holds the values they share.
"""

from __future__ import annotations

from refold.model.errors import RefoldError

__all__ = ["RefoldError", "__version__"]

__version__ = "0.1.0"
