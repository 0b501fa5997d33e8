"""The real PostgreSQL for the tests of its driver."""

from __future__ import annotations

from tests.contract.stores import postgres_url

__all__ = ["postgres_url"]
