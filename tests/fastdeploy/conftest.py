"""Places that are looked over when a test leaves them; tests that take ``place`` run for each family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.writer import stores

from .place import Place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("families")
        metafunc.parametrize("family", list(marker.args[0] if marker else "ade"), scope="function")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stores.install(tmp_path_factory.mktemp("site") / "stores")


@pytest.fixture
def place(tmp_path: Path, site: Path, family: str) -> Iterator[Place]:
    place = Place(tmp_path, site, family)
    try:
        yield place
        assert place.left()
        assert place.buffers() == []
    finally:
        place.end()
        for buffer in place.buffers():
            buffer.unlink()
