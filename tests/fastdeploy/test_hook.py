"""The hook and the gate: what is patched, when, and what is left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .place import HERE, ROOT, Place

CACHE = "fastdeploy/model_executor/layers/moe/routing_indices_cache.py"
MANAGER = "fastdeploy/cache_manager/routing_cache_manager.py"
IMPORTS = "import fastdeploy.model_executor.layers.moe.routing_indices_cache as module"


def altered(root: Path, family: str, file: str, old: str, new: str) -> Path:
    """Copies a stand-in with one change; returns its folder."""
    tree = root / "trees"
    shutil.copytree(HERE / "standin" / "common", tree / "common")
    shutil.copytree(HERE / "standin" / family, tree / family)
    text = (tree / family / file).read_text()
    assert old in text
    (tree / family / file).write_text(text.replace(old, new))
    return tree / family


def run(tree: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs code with a tree on the path."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("FD_", "PYTHON"))}
    numpy_folder = os.environ.get("FD_ROUTING_TEST_PATH", "")
    path = os.pathsep.join(filter(None, [numpy_folder, str(tree), str(HERE), str(ROOT)]))
    environ = {**keep, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "FD_PLUGINS": "routing_stores", **variables}
    with tempfile.TemporaryDirectory() as folder:  # where FastDeploy's folder for logs would be made
        return subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, cwd=folder
        )


def ran(tree: Path, code: str, **variables: str) -> str:
    """Runs code that must succeed; returns what it wrote to stderr."""
    done = run(tree, code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("family", ["a", "d", "e"])
def test_without_the_variable_nothing_of_ours_is_even_imported(family: str) -> None:
    names = {"a": CACHE, "d": CACHE, "e": MANAGER}
    module = names[family][:-3].replace("/", ".")
    code = f"""
import sys, fastdeploy, fastdeploy.config, fastdeploy.engine.args_utils, {module}
assert not [name for name in sys.modules if name.startswith("fastdeploy_routing_plugins")]
assert not hasattr(fastdeploy.config.RoutingReplayConfig, "routing_store_config")
"""
    ran(HERE / "standin" / family, code, FD_PLUGINS="something_else")


@pytest.mark.parametrize("family", ["a", "d"])
def test_a_module_that_was_imported_before_the_plugin_is_patched_too(family: str) -> None:
    code = f"""
{IMPORTS}
before = module.RoutingReplayManager.split_request_id
from fastdeploy_routing_plugins.hosts.fastdeploy import register
register()
assert module.RoutingReplayManager.split_request_id is not before
"""
    ran(HERE / "standin" / family, code, FD_PLUGINS="")


def test_a_module_whose_import_still_runs_is_patched_when_it_is_over(tmp_path: Path) -> None:
    begin = "from fastdeploy_routing_plugins.hosts.fastdeploy import register\nregister()\n"
    old = "from fastdeploy.settings import ReplayConfig\n"
    tree = altered(tmp_path, "e", "fastdeploy/config.py", old, old + begin)
    code = """
import fastdeploy.config
assert fastdeploy.config.RoutingReplayConfig.__dict__.get("routing_store_config", 0) == 0
import colorsys  # any import
assert fastdeploy.config.RoutingReplayConfig.routing_store_config is None
"""
    ran(tree, code, FD_PLUGINS="")


def test_patched_modules_keep_their_loader_and_source() -> None:
    code = f"""
import inspect
{IMPORTS}
assert type(module.__loader__).__name__ == "SourceFileLoader" and module.__spec__.loader is module.__loader__
assert "class RoutingReplayManager" in inspect.getsource(module)
"""
    ran(HERE / "standin" / "d", code)


CHANGES = [
    ("a", CACHE, "def _clear_table_slot(self, batch_id", "def _wipe(self, batch_id"),
    ("d", CACHE, "def _put_request_to_store(self, batch_id: int, request", "def _put_request_to_store(self, request"),
    ("e", MANAGER, "def split_request_id(request_id", "def rollout_id_of(request_id"),
]


@pytest.mark.parametrize(("family", "file", "old", "new"), CHANGES, ids=[change[0] for change in CHANGES])
def test_an_unknown_fastdeploy_is_warned_of_once_and_left_untouched(
    tmp_path: Path, family: str, file: str, old: str, new: str
) -> None:
    tree = altered(tmp_path, family, file, old, new)
    module = file[:-3].replace("/", ".")
    code = f"""
import importlib, logging
logging.basicConfig(level=logging.INFO)
import {module} as module
ours = [name for name, value in vars(module).items() if getattr(value, "__module__", "").startswith("fastdeploy_rout")]
assert not ours, ours
"""
    said = ran(tree, code)
    assert said.count("is unknown to the routing stores") == 1
    assert "it is left untouched" in said


@pytest.mark.parametrize(("family", "file", "old", "new"), CHANGES, ids=[change[0] for change in CHANGES])
def test_an_unknown_fastdeploy_stops_with_the_strict_variable(
    tmp_path: Path, family: str, file: str, old: str, new: str
) -> None:
    tree = altered(tmp_path, family, file, old, new)
    done = run(tree, f"import {file[:-3].replace('/', '.')}", FD_ROUTING_STRICT="1")
    assert "UnsupportedError: this FastDeploy" in done.stderr.splitlines()[-1]


SECOND = "    def clear_request(self, batch_id: int):\n        pass\n\n    def _clear_store(self):"
THIRD = "class RoutingStoreBase(ABC):\n    async def fused_put(self, routing_indices, rollout_id): ...\n"


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [("B", "    def _clear_store(self):", SECOND), ("C", "class RoutingStoreBase(ABC):\n", THIRD)],
)
def test_families_b_and_c_refuse_when_replay_is_wanted_and_only_then(
    tmp_path: Path, family: str, old: str, new: str
) -> None:
    tree = altered(tmp_path, "a", CACHE, old, new)
    code = f"{IMPORTS}\ntry:\n    module.get_routing_store(fd_config=None)\nexcept Exception as err:\n    print(err)"
    done = run(tree, code)
    assert f"do not support this development version of FastDeploy (0.0-standin, family {family})" in done.stdout


@pytest.mark.families("e")
def test_response_mode_needs_no_store_and_starts_with_any_numpy(place: Place) -> None:
    place.must(
        """
engine = Engine(REPLAY)
got = engine.finish(request_id("r:0:0:0"), routing(1, 9))
assert np.array_equal(got.transpose(1, 0, 2), routing(1, 9))
engine.close()
""",
        {"routing_store_type": "response"},
    )
    assert not place.store_dir.exists()


@pytest.mark.families("e")
def test_debug_mode_stores_nothing_and_says_so(place: Place) -> None:
    log = place.must(
        """
engine = Engine(REPLAY)
engine.finish(request_id("r:0:0:0"), routing(1, 9))
engine.close()
""",
        place.replay(debug_mode=True),
    )
    assert "debug_mode records token positions" in log


@pytest.mark.families("a")
def test_family_a_reads_and_deletes_through_the_same_object(place: Place) -> None:
    pytest.importorskip("paddle")
    place.must("""
engine = Engine(REPLAY)
engine.finish(request_id("r:0:0:0"), routing(1, 9))
store = engine.manager.routing_store
assert np.array_equal(store.get("r:0:0:0", 2).numpy(), routing(1, 9)[2])
engine.manager._clear_request_of_store(request_id("r:0:0:0"))
engine.close()
""")
    assert place.ids() == set()


@pytest.mark.families("de")
@pytest.mark.parametrize("fused", [False, True])
def test_todays_trainers_find_fastdeploys_own_file_tree(place: Place, fused: bool) -> None:
    pytest.importorskip("paddle")
    options = {"layout": "pdtensor"}
    place.must(
        """
engine = Engine(REPLAY)
engine.finish(request_id("r:0:0:0"), routing(1, 9))
engine.close()
""",
        place.replay(use_fused_put=fused, routing_store_config=options),
    )
    files = {path.name for path in (place.store_dir / "r:0:0:0").iterdir()}
    assert files == ({"r:0:0:0.pdtensor"} if fused else {f"layer_{layer}.pdtensor" for layer in range(3)})
