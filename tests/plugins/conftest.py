"""Plugins in use for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold.plugins.registry import Plugins, use


@pytest.fixture(autouse=True)
def no_plugins_afterwards() -> Iterator[None]:
    yield
    use(Plugins())
