"""How much memory a conversion takes."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Fails if the block has more than so many bytes allocated at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= nbytes


@pytest.fixture
def measured() -> Any:
    return at_most
