"""A folder of shared memory for each test, which must be as empty afterwards as a clean machine's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from fastdeploy_routing_plugins.arena.arena import Arena

from .helpers import SIZE, TEXT


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder on the tmpfs where arenas lie by default."""
    path = tempfile.mkdtemp(prefix="fd-arena-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def arena(folder: str) -> Iterator[Arena]:
    """A small arena of this process."""
    made = Arena.create(folder, SIZE, TEXT)
    yield made
    made.close(remove=True)
