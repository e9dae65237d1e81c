"""Who owns a descriptor: nobody else can come to own it by a copy or a fork, and no interrupt orphans it."""

from __future__ import annotations

import copy
import os
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, open_store
from fastdeploy_routing_plugins.errors import UnsupportedError
from fastdeploy_routing_plugins.stores.local.descriptor import Descriptor, duplicate
from fastdeploy_routing_plugins.stores.local.mapping import _Mapping
from fastdeploy_routing_plugins.stores.local.publish import TEMPORARY, _Temporary

from ..helpers import descriptors, opened, part, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ..helpers import Children

LARGE = part("large", layers=8, tokens=50_000)
COPIES = {
    "pickle": pickle.dumps,
    "oldest pickle": lambda owner: pickle.dumps(owner, 0),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy within": lambda owner: copy.deepcopy({"a": [owner]}),
}
OWNERS = ["LocalBackend", "Folder", "Descriptor", "_Temporary", "Watchers", "_Mapping"]


@pytest.fixture(params=OWNERS)
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    """Each kind of thing that owns a descriptor or a mapping."""
    with opened(tmp_path) as backend, _Temporary(backend._opened()) as temporary, temporary.folder:
        mapping = _Mapping.__new__(_Mapping)
        descriptor = temporary.folder.open(".", os.O_RDONLY)
        owners = (backend, temporary.folder, descriptor, temporary, backend._watchers, mapping)
        yield next(owner for owner in owners if type(owner).__name__ == request.param)


@pytest.mark.parametrize("duplicated", COPIES.values(), ids=COPIES)
def test_an_owner_is_not_copied(owner: object, duplicated: Callable[[object], object]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        duplicated(owner)
    assert "store.resolved" in caught.value.hint


@pytest.mark.parametrize("duplicated", [lambda a: pickle.loads(pickle.dumps(a)), copy.deepcopy, copy.copy])
def test_arrays_in_mapped_memory_are_copied_as_arrays(
    tmp_path: Path, duplicated: Callable[[np.ndarray], np.ndarray]
) -> None:
    routing = ((np.arange(8 * 50_000)[:, None] * 7 + np.arange(4) * 11) % 64).astype(np.uint8).reshape(8, 50_000, 4)
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path)}}
    with open_store(config, schema=RoutingSchema(64, 4, range(8))) as store:
        store.put("x:1", routing)
        copied = duplicated(store.get("x:1").routing)
    np.testing.assert_array_equal(copied, routing)


def test_a_temporary_file_goes_with_its_last_reference(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        before = descriptors()
        temporary = _Temporary(backend._opened())
        assert len(os.listdir(tmp_path / TEMPORARY)) == 1
        del temporary
        assert (os.listdir(tmp_path / TEMPORARY), descriptors()) == ([], before)


def test_a_descriptor_closes_with_its_last_reference() -> None:
    before = descriptors()
    copied = duplicate(0)
    during = descriptors()
    del copied
    assert (len(during) - len(before), descriptors()) == (1, before)


@pytest.mark.parametrize("arguments", [(), (0,), (1 << 20,)])
def test_nobody_makes_a_descriptor_of_a_number(arguments: tuple[int, ...]) -> None:
    before = descriptors()
    with pytest.raises(TypeError):
        Descriptor(*arguments)
    assert descriptors() == before


def test_a_duplicate_is_not_inherited() -> None:
    with duplicate(0) as copied:
        assert not os.get_inheritable(copied.fd)


def test_a_closed_descriptor_has_no_duplicate() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        duplicate(-1)


def test_interrupted_calls_leave_nothing_open_and_nothing_lying_about(tmp_path: Path, children: Children) -> None:
    assert children.wait(children.start("interrupt_calls", tmp_path, 4000)) == 0


def test_a_forked_child_takes_no_notice_from_its_parent(tmp_path: Path, children: Children) -> None:
    assert children.wait(children.start("fork_and_wait", tmp_path)) == 0


def test_a_fork_within_a_wait_leaves_the_parents_notices_alone(tmp_path: Path, children: Children) -> None:
    assert children.wait(children.start("fork_within_a_wait", tmp_path)) == 0


def test_a_put_still_works_after_a_copy_was_tried(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        with pytest.raises(UnsupportedError):
            copy.deepcopy(backend)
        put(backend, LARGE)
        assert backend._get(LARGE.name).payload[0] == LARGE.payload
