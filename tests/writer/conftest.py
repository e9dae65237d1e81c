"""Test stores on the path, and places that are looked over when a test leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import stores
from .helpers import Place


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the test stores' distribution, on the path while a module's tests run."""
    with stores.on_path(stores.install(tmp_path_factory.mktemp("site") / "stores")) as folder:
        yield folder


@pytest.fixture
def place(tmp_path: Path, site: Path) -> Iterator[Place]:
    """A place for one test; when the test is over, no worker and no shared memory may be left there."""
    place = Place(tmp_path, site).make()
    yield place
    assert place.is_left_clean()


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[Place]:
    """A place that all tests of a module use."""
    place = Place(tmp_path_factory.mktemp("shared"), site).make()
    yield place
    assert place.is_left_clean()
