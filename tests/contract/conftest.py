"""Fixtures of the suite over all stores."""

from __future__ import annotations

from tests.contract.stores import postgres_url, store, store_set

__all__ = ["postgres_url", "store", "store_set"]
