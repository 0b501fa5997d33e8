"""Fixtures of tests that go over all stores."""

from __future__ import annotations

from tests.contract.stores import postgres_url, store

__all__ = ["postgres_url", "store"]
