"""Child processes for the tests of ``local``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ..helpers import Children

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Starts child processes that run functions of ``children.py``."""
    started = Children("stores.local.children")
    yield started
    started.close()
