"""The fabricated site of each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .fabricate import Site

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
