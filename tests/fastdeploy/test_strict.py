"""A patch is made as a whole or not at all, and with ``FD_ROUTING_STRICT=1`` nothing less lets FastDeploy import."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fastdeploy_routing_plugins.hosts.fastdeploy import hook

from .changed import Change, changed, found_at
from .place import Place
from .test_hook import CACHE, CHANGES, MANAGER, ran, run

STORE = "fastdeploy/cache_manager/routing_store.py"
EXPERTS = "fastdeploy/engine/expert_service.py"
RUNNER = "fastdeploy/worker/gpu_model_runner.py"
TWICE = """
import importlib
for _ in range(2):
    try:
        importlib.import_module({module!r})
    except Exception as err:
        print(type(err).__name__)
"""
SEALED = """
class Sealed(type):
    def __setattr__(cls, name, value):
        raise TypeError("this class stays as it is")


class RoutingCacheManager(metaclass=Sealed):
"""
ONLY_FORWARD = """
class OnlyForward(type):
    def __setattr__(cls, name, value):
        if name == "close" or hasattr(getattr(cls, name, None), "__wrapped__"):
            raise TypeError("this stays as it is")
        super().__setattr__(name, value)


class RoutingCacheManager(metaclass=OnlyForward):
"""
MANAGER_CLASS = "class RoutingCacheManager:\n"
NOT_TO_BE_PATCHED = (MANAGER, MANAGER_CLASS, SEALED)
UNKNOWN_MANAGER = [
    (MANAGER, "def split_request_id(request_id", "def rollout_id_of(request_id"),
    (MANAGER, "rollout_id = split_request_id(", "rollout_id = rollout_id_of("),
]
UNCHANGED = """
import importlib, logging
logging.basicConfig()
module = importlib.import_module({module!r})
own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
parts = [part for owner in (module, *own) for part in getattr(owner, "__dict__", {{}}).values()]
files = {{part.__code__.co_filename for part in parts if hasattr(part, "__code__")}}
assert files == {{module.__file__}}, files
"""


def named(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


@pytest.mark.parametrize(("family", "file", "old", "new"), CHANGES, ids=[change[0] for change in CHANGES])
def test_an_unknown_fastdeploy_is_refused_again_when_it_is_imported_again(
    tmp_path: Path, family: str, file: str, old: str, new: str
) -> None:
    done = run(changed(tmp_path, family, (file, old, new)), TWICE.format(module=named(file)), FD_ROUTING_STRICT="1")
    assert done.stdout.split() == ["UnsupportedError", "UnsupportedError"], done.stderr


def test_a_patch_that_fails_is_refused_again_when_the_module_is_imported_again(tmp_path: Path) -> None:
    done = run(changed(tmp_path, "e", NOT_TO_BE_PATCHED), TWICE.format(module=named(MANAGER)), FD_ROUTING_STRICT="1")
    assert done.stdout.split() == ["UnsupportedError", "UnsupportedError"], done.stderr


def test_a_module_that_was_there_before_and_does_not_fit_fails_both_entry_points_and_what_is_imported_then(
    tmp_path: Path,
) -> None:
    code = f"""
import {named(CACHE)}
from fastdeploy_routing_plugins.hosts.fastdeploy import register
for attempt in (register, register, lambda: __import__("colorsys")):
    try:
        attempt()
    except Exception as err:
        print(type(err).__name__)
"""
    tree = changed(tmp_path, "d", CHANGES[1][1:])
    done = run(tree, code, FD_PLUGINS="", FD_ROUTING_STRICT="1")
    assert done.stdout.split() == ["UnsupportedError"] * 3, done.stderr


def test_a_patch_that_fails_halfway_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    said = ran(changed(tmp_path, "e", NOT_TO_BE_PATCHED), UNCHANGED.format(module=named(MANAGER)))
    assert "TypeError: this class stays as it is" in said


def test_what_cannot_be_undone_is_refused_without_the_variable_too(tmp_path: Path) -> None:
    done = run(changed(tmp_path, "e", (MANAGER, MANAGER_CLASS, ONLY_FORWARD)), f"import {named(MANAGER)}")
    assert "failed halfway and cannot be undone" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize("family", ["a", "d", "e"])
def test_a_broken_dependency_stops_the_engine_with_the_strict_variable(tmp_path: Path, family: str) -> None:
    tree = changed(tmp_path, family)
    (tree / "msgspec.py").write_text("raise ImportError('a broken wheel')\n")
    done = run(tree, f"import {named(MANAGER if family == 'e' else CACHE)}", FD_ROUTING_STRICT="1")
    assert "ImportError: a broken wheel" in done.stderr.splitlines()[-1]
    assert "UnsupportedError" in done.stderr.splitlines()[-1]


def test_a_method_of_the_ranks_that_became_a_coroutine_is_not_passed_over(tmp_path: Path) -> None:
    change = (EXPERTS, "    def reset_kvcache_blocks", "    async def reset_kvcache_blocks")
    done = run(changed(tmp_path, "e", change), f"import {named(EXPERTS)}", FD_ROUTING_STRICT="1")
    assert "ExpertService.reset_kvcache_blocks is a coroutine" in done.stderr.splitlines()[-1]


def test_of_a_model_runners_methods_either_all_are_patched_or_none(tmp_path: Path) -> None:
    second = "    def insert_prefill_inputs(self, tasks): ...\n\n    def insert_tasks_v1("
    tree = changed(tmp_path, "d", (RUNNER, "    def insert_tasks_v1(", second))
    assert "does not take (self, req_dicts, ...)" in ran(tree, UNCHANGED.format(module=named(RUNNER)))


STORES_ITSELF = """
engine = Engine({**REPLAY, "use_fused_put": True})
engine.finish(request_id("r:0:0:0"), routing(1, 9))
engine.close()
store = engine.service.routing_cache_manager
print(type(store._store_wrapper).__module__)
sys.stdout.flush()
for child in multiprocessing.active_children():
    child.kill()
os._exit(0)
"""
NUMPY_2 = (MANAGER, "self.buffer[:] = -1\n        self._owner", "self.buffer.fill(255)\n        self._owner")


@pytest.mark.families("e")
@pytest.mark.parametrize("changes", [UNKNOWN_MANAGER, [NOT_TO_BE_PATCHED]], ids=["unknown", "not to be patched"])
def test_without_the_manager_fastdeploys_own_store_stays_too(place: Place, changes: list[Change]) -> None:
    done = place.run(STORES_ITSELF, **found_at(place, *changes, NUMPY_2))
    assert done.stdout.strip() == "fastdeploy.second_store", done.stderr
    for buffer in place.buffers():  # FastDeploy's own, which the child was not left to remove
        buffer.unlink()


@pytest.mark.families("e")
def test_without_the_manager_further_ranks_get_none_of_fastdeploys_own(place: Place) -> None:
    place.must(
        """
from fastdeploy.engine.expert_service import ExpertService
rank = ExpertService(fd_config(REPLAY), 1, start_queue=False)
rank.start(None, 1)
assert getattr(rank.engine, "routing_cache_manager", None) is None
""",
        **found_at(place, *UNKNOWN_MANAGER),
    )


@pytest.mark.families("e")
def test_without_the_store_an_engine_that_wants_one_does_not_start(place: Place) -> None:
    change = (STORE, "__all__ = [", "class StoreWrapper: ...\n\n\n__all__ = [")
    last = place.refused("Engine(REPLAY)", **found_at(place, change))
    assert "routing_store is not as expected, so no routing store can be used" in last


@pytest.mark.families("e")
def test_the_store_is_ours_too_when_it_was_imported_before_the_manager(place: Place) -> None:
    place.must("""
import fastdeploy.cache_manager.routing_store as store
engine = Engine(REPLAY)
assert type(engine.wrapper) is store.StoreWrapper and "fastdeploy_routing" in store.StoreWrapper.__module__
engine.close()
""")


@pytest.mark.parametrize("family", ["a", "d"])
def test_a_module_that_is_loaded_again_is_patched_again(tmp_path: Path, family: str) -> None:
    code = f"""
import importlib, sys
import {named(CACHE)} as module
assert hasattr(module.RoutingReplayManager.register_request, "__wrapped__")
importlib.reload(module)
assert hasattr(module.RoutingReplayManager.register_request, "__wrapped__")
assert not hasattr(module.RoutingReplayManager.register_request.__wrapped__, "__wrapped__")
del sys.modules[{named(CACHE)!r}]
fresh = importlib.import_module({named(CACHE)!r})
assert fresh is not module and hasattr(fresh.RoutingReplayManager.register_request, "__wrapped__")
"""
    ran(changed(tmp_path, family), code)


@pytest.fixture
def quick_turns() -> Iterator[None]:
    before, finders = sys.getswitchinterval(), sys.meta_path[:]
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    sys.meta_path[:] = finders


def together(count: int, work: Callable[[], None]) -> None:
    """Runs a function in threads that begin at once."""
    start = threading.Barrier(count)

    def begin() -> None:
        start.wait()
        work()

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("quick_turns")
def test_threads_that_install_at_once_install_one_finder() -> None:
    others = [finder for finder in sys.meta_path if not isinstance(finder, hook._Finder)]
    for _ in range(300):
        sys.meta_path[:] = others
        together(4, lambda: hook.install(["not_imported_by_anybody"], print))
        assert len(sys.meta_path) == len(others) + 1


@pytest.mark.usefixtures("quick_turns")
def test_a_module_that_threads_see_at_once_is_patched_once() -> None:
    names = [f"fd_routing_seen_{number}" for number in range(100)]
    calls: list[str] = []
    finder = hook._Finder(names, lambda module: calls.append(module.__name__))
    for name in names:
        sys.modules[name] = ModuleType(name)
    try:
        together(4, finder.look_around)
    finally:
        for name in names:
            del sys.modules[name]
    assert sorted(calls) == sorted(names)
