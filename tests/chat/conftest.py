"""The chat runs over every store."""

from __future__ import annotations

from tests.contract.stores import postgres_url, store

__all__ = ["postgres_url", "store"]
