"""Cures 16 and 18 to 21: what goes wrong before anything reaches a store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resolver.fabricate import GOOD

from .place import HERE, SHM, Place, same

START = "engine = Engine(REPLAY); engine.finish(request_id('r:0:0:0'), routing(1, 9)); engine.close()"


@pytest.mark.parametrize("method", ["plain", "fork", "spawn"])
def test_cure_16_an_unknown_store_stops_the_engine_with_our_message(place: Place, method: str) -> None:
    done = place.run("Engine(REPLAY)", {"routing_store_type": "locall"}, method=method)
    assert done.returncode == 1
    assert "UnknownStoreError: there is no store 'locall'" in done.stderr or "did you mean 'local'" in done.stderr


def test_cure_16_a_store_that_does_not_open_stops_the_engine(place: Place) -> None:
    (place.root / "store").write_text("a file where the folder should be")
    assert "cannot be a store's folder" in place.refused("Engine(REPLAY)")


@pytest.mark.families("e")
def test_cure_18_who_only_attached_does_not_remove_the_owners_memory(place: Place) -> None:
    place.must("""
import subprocess
engine = Engine(REPLAY)
host = engine.manager.host_buffer
code = f'''
import fastdeploy
from fastdeploy.cache_manager.routing_cache_manager import RoutingHostBufferView
RoutingHostBufferView({host.shape!r}, "uint8", {host.shm_name!r})
'''
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
assert done.returncode == 0 and not done.stderr, done.stderr
engine.view.close()
from fastdeploy.cache_manager.routing_cache_manager import RoutingHostBufferView
engine.view = RoutingHostBufferView(host.shape, "uint8", host.shm_name)
engine.finish(request_id("r:0:0:0"), routing(1, 9))
engine.close()
assert not os.path.exists("/dev/shm/" + host.shm_name)
""")
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 9)


@pytest.mark.families("e")
def test_cure_18_a_second_engine_with_the_same_port_is_refused_and_the_first_lives(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY, port=f"{PORT}-shared")
code = f'Engine(REPLAY, port="{PORT}-shared")'
import subprocess
done = subprocess.run([sys.executable, __file__, "plain", code], capture_output=True, text=True)
assert "belongs to an engine that runs" in done.stderr.splitlines()[-1], done.stderr
engine.finish(request_id("r:0:0:0"), routing(1, 9))
engine.close()
""")
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 9)


@pytest.mark.families("e")
def test_cure_18_memory_that_a_killed_engine_left_is_taken_over_with_its_children_alive(place: Place) -> None:
    port = f"{place.port}-killed"
    name = SHM / f"routing_host_buffer.{port}"
    killed = place.start(f"""
engine = Engine(REPLAY, port={port!r})
child = os.fork()
if not child:
    os.close(1), os.close(2)
    sys.stdin.read()  # until the test ends
    os._exit(0)
os.kill(os.getpid(), 9)
""")
    killed.wait(timeout=60)
    assert name.exists()
    try:
        place.must(f"engine = Engine(REPLAY, port={port!r}); engine.close()")
    finally:
        killed.communicate()
    assert not name.exists()


@pytest.mark.families("e")
@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_cure_19_every_data_parallel_rank_gets_a_routing_manager(place: Place, method: str, profiled: bool) -> None:
    place.must(
        f"""
from fastdeploy.engine.expert_service import ExpertService
config = fd_config(REPLAY)
config.cache_config.num_gpu_blocks_override = {None if profiled else 64}
rank = ExpertService(config, 1, start_queue=False)
rank.start(None, 1)
manager = rank.engine.token_processor.routing_cache_manager
manager.host_view.scatter(np.arange(9), routing(1, 9).astype(np.uint8).transpose(1, 0, 2))
manager.on_request_finished(request_id("r:0:0:0"), [0, 1], 9)
rank._exit_sub_services()
""",
        method=method,
    )
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 9)


def test_cure_20_text_where_a_truth_value_belongs_is_refused(place: Place) -> None:
    last = place.refused("Engine(REPLAY)", {**place.replay(), "enable_routing_replay": "false"})
    assert "enable_routing_replay must be bool in JSON, got 'false'" in last


def test_cure_20_misspelt_keys_are_all_named(place: Place) -> None:
    last = place.refused("Engine(REPLAY)", {**place.replay(), "local_store_dirr": "x", "routing_stor_type": "local"})
    assert "'local_store_dirr', did you mean 'local_store_dir'" in last
    assert "'routing_stor_type', did you mean 'routing_store_type'" in last


def test_cure_20_a_key_that_only_a_newer_fastdeploy_has_is_taken(place: Place, tmp_path: Path) -> None:
    tree = tmp_path / "trees"
    for name in ("common", place.family):
        shutil.copytree(HERE / "standin" / name, tree / name)
    file = tree / place.family / "fastdeploy/config.py"
    file.write_text(file.read_text().replace("        self.take(", "        self.compress = 0\n        self.take("))
    path = place.environ({}, {})["PYTHONPATH"].replace(str(HERE / "standin"), str(tree))
    code = "assert fd_config(REPLAY).routing_replay_config.compress == 9"
    place.must(code, place.replay(compress=9), PYTHONPATH=path)


def test_cure_20_a_name_that_is_no_setting_is_no_key(place: Place) -> None:
    assert "unknown key 'to_json_string'" in place.refused("fd_config(REPLAY)", place.replay(to_json_string="x"))


def test_cure_20_options_for_the_store_travel_with_the_rest_and_are_checked(place: Place) -> None:
    options = {"store_dir": str(place.store_dir), "fsnc": True}
    last = place.refused("Engine(REPLAY)", {"routing_store_type": "local", "routing_store_config": options})
    assert "unknown option 'fsnc'" in last


def test_cure_20_a_quote_in_the_configuration_does_not_reach_the_shell(place: Place) -> None:
    mark = place.root / "ran"
    place.must(
        f"""
from fastdeploy.config import RoutingReplayConfig
import subprocess
config = fd_config(REPLAY).routing_replay_config
echoed = subprocess.run(f"echo '{{config.to_json_string()}}'", shell=True, capture_output=True, text=True).stdout
assert json.loads(echoed)["local_store_dir"] == {f"x'; touch {mark}; '"!r}
""",
        {"routing_store_type": "noop", "local_store_dir": f"x'; touch {mark}; '"},
    )
    assert not mark.exists()


def test_cure_21_a_zmq_address_reaches_the_store_as_it_was_written(place: Place, tmp_path: Path) -> None:
    address = "zmq://10.0.0.1:5555,10.0.0.1:5556"
    site = tmp_path / "rdma"
    info = site / "fd_routing_remote-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fd-routing-remote\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fastdeploy.routing_store_plugins]\nremote = fdx_remote\n")
    source = GOOD.replace('"demo"', '"remote"').replace('"local_store_dir": "path"', '"rdma_store_server": "path"')
    (site / "fdx_remote.py").write_text(source)
    key = "routing_store_config" if place.family == "a" else "rdma_store_server"  # family A knows no such key
    value = {"path": address} if place.family == "a" else address
    code = f"""
sys.path.insert(0, {str(site)!r})
from fastdeploy_routing_plugins.hosts.fastdeploy.settings import resolve_store
assert resolve_store(fd_config(REPLAY).routing_replay_config).config.path == {address!r}
"""
    place.must(code, {"routing_store_type": "remote", key: value})


@pytest.mark.parametrize("group", ["reasoning_parser_plugins", "model_register_plugins"])
def test_both_entry_points_lead_to_the_same_light_function(group: str) -> None:
    code = f"""
import sys
from importlib.metadata import entry_points
(found,) = entry_points(group="fastdeploy.{group}", name="routing_stores")
found.load()()
found.load()()
hooks = [finder for finder in sys.meta_path if type(finder).__module__.startswith("fastdeploy_routing_plugins")]
assert len(hooks) == 1, hooks
heavy = {{"numpy", "paddle", "torch", "msgspec", "zmq"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
