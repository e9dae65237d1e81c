"""What must hold in a FastDeploy with our package: each scenario runs engines of the tree and reads back as a trainer.

A scenario is a function of a ``Place``; what it asserts, it says by its name. ``families`` limits it to families that
have what it is about.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from place import Place, request, require, schema_of, wait_for, workers_of
from settings import Settings, request_id

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.errors import AbsentError


@dataclass(frozen=True)
class Scenario:
    """A named scenario.

    Attributes:
        run: What runs.
        families: Families that it concerns.
    """

    run: Callable[[Place], None]
    families: str = "de"

    @property
    def name(self) -> str:
        """Its name, in words."""
        return self.run.__name__.replace("_", " ")


SCENARIOS: list[Scenario] = []


def scenario(families: str = "de") -> Callable[[Callable[[Place], None]], Callable[[Place], None]]:
    """Adds a scenario."""

    def add(run: Callable[[Place], None]) -> Callable[[Place], None]:
        SCENARIOS.append(Scenario(run, families))
        return run

    return add


# --- being there, and not --------------------------------------------------------------------------------------------


@scenario()
def without_the_variable_nothing_of_ours_is_loaded(place: Place) -> None:
    engine = place.engine(plugin=False)
    answer = engine.ask("start", settings=place.settings().to_dict())
    seen = engine.do("look")
    assert seen["ours"] == 0, seen
    if "error" in answer:  # fault 2: FastDeploy 2.6 does not start with NumPy 2
        assert answer["error"].startswith("OverflowError: Python integer -1 out of bounds"), answer
    else:
        assert seen["wrapper"].startswith("fastdeploy."), seen


@scenario()
def with_the_variable_the_engine_writes_through_our_writer(place: Place) -> None:
    engine = place.started(place.settings())
    assert len(workers_of(engine.pid)) == 1
    assert len(list(place.shm.iterdir())) > 0
    engine.end()
    assert list(place.shm.iterdir()) == [], "shared memory is left"


@scenario()
def a_local_store_gives_back_what_was_handed_over(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    engine.finish([request(f"data{n}:0:0:0", n, 20 + n) for n in range(20)])
    with place.store() as store:
        for n in range(20):
            require(store, settings, f"data{n}:0:0:0", n, 20 + n)
    engine.end()


@scenario()
def a_noop_store_takes_everything_and_keeps_nothing(place: Place) -> None:
    engine = place.started(place.settings("noop"))
    engine.finish([request(f"data{n}:0:0:0", n, 20) for n in range(20)])
    engine.end()
    assert not place.store_dir.exists()


@scenario()
def a_third_partys_store_is_used_by_its_name(place: Place) -> None:
    settings = place.settings("sqlite")
    options = {"path": str(place.folder / "routing.db")}
    config = {"routing_store_type": "sqlite", "routing_store_config": options}
    engine = place.started(settings, environ={"FD_ROUTING_STORE_CONFIG": json.dumps(options)})
    engine.finish([request(f"data{n}:0:0:0", n, 20 + n) for n in range(20)])
    with place.store(config) as store:
        for n in range(20):
            require(store, settings, f"data{n}:0:0:0", n, 20 + n)
    engine.end()


@scenario()
def an_unknown_store_stops_the_start_with_our_message(place: Place) -> None:
    engine = place.engine()
    error = engine.ask("start", settings=place.settings("locall").to_dict())["error"]
    assert error.startswith("UnknownStoreError: "), error
    assert "'locall'" in error, error
    assert "did you mean 'local'" in error, error


@scenario()
def a_store_that_cannot_be_used_stops_the_start_with_our_message(place: Place) -> None:
    blocked = place.folder / "a-file"
    blocked.write_text("not a folder")
    engine = place.engine()
    error = engine.ask("start", settings=place.settings(replay={"local_store_dir": str(blocked)}).to_dict())["error"]
    assert str(blocked) in error, error


@scenario()
def every_module_that_is_patched_looks_as_expected(place: Place) -> None:
    engine = place.engine()
    patched = engine.do("import_patched")
    assert "unknown to the routing stores" not in engine.launched(), engine.launched()
    cache = "fastdeploy.model_executor.layers.moe.routing_indices_cache"
    expected = {
        "d": {
            cache: {
                "StoreWrapper",
                "RoutingReplayManager.split_request_id",
                "RoutingReplayManager._put_request_to_store",
            },
            "fastdeploy.worker.gpu_model_runner": {"GPUModelRunner.insert_tasks_v1"},
        },
        "e": {
            "fastdeploy.cache_manager.routing_cache_manager": {
                "split_request_id",
                "RoutingCacheManager.__init__",
                "RoutingCacheManager.on_request_finished",
                "RoutingHostBuffer.__init__",
                "RoutingHostBufferView.__init__",
                "RoutingSwapBuffer.__init__",
            },
            "fastdeploy.cache_manager.routing_store": {"StoreWrapper"},
            "fastdeploy.output.token_processor": {"TokenProcessor._finalize_routing"},
            "fastdeploy.engine.expert_service": {"ExpertService.reset_kvcache_blocks"},
        },
    }[place.family]
    expected["fastdeploy.config"] = {"RoutingReplayConfig.__init__", "RoutingReplayConfig.to_json_string"}
    expected["fastdeploy.engine.args_utils"] = {"EngineArgs.create_routing_repaly_config"}
    missing = {name: names - set(patched.get(name, [])) for name, names in expected.items()}
    assert not any(missing.values()), (missing, patched)


@scenario()
def what_is_misspelt_or_of_a_wrong_type_stops_the_engine_at_its_command_line(place: Place) -> None:
    engine = place.engine()
    on = {"enable_routing_replay": True, "routing_store_type": "local"}
    wrong = {
        "did you mean 'only_last_turn'": {**on, "only_last_turns": True},
        "only_last_turn must be bool": {**on, "only_last_turn": "false"},
        "unknown store 'locall'": {**on, "routing_store_type": "locall"},
        "did you mean 'fsync'": {**on, "routing_store_config": {"fsink": True}},
    }
    for said, replay in wrong.items():
        answer = engine.ask("configure", replay=replay)
        assert said in answer.get("error", ""), (replay, answer)


@scenario()
def a_stores_options_travel_from_the_command_line_to_the_worker(place: Place) -> None:
    engine = place.engine()
    options = {"store_dir": str(place.folder / "it's here"), "fsync": True}
    replay = {"enable_routing_replay": True, "routing_store_type": "local", "routing_store_config": options}
    answer = engine.do("configure", replay=replay)
    assert answer["worker"]["routing_store_config"] == options, answer
    assert "'" not in answer["line"], "FastDeploy puts this between single quotes for a shell"


@scenario()
def a_stores_options_may_stand_in_the_configuration(place: Place) -> None:
    options = {"store_dir": str(place.store_dir), "namespace": "run-7"}
    settings = place.settings(replay={"local_store_dir": "", "routing_store_config": options})
    engine = place.started(settings)
    engine.finish([request("data:0:0:0", 1, 20)])
    with place.store({"routing_store_type": "local", "routing_store_config": options}) as store:
        require(store, settings, "data:0:0:0", 1, 20)
    engine.end()


@scenario()
def a_uuid_of_the_clients_own_is_told_from_fastdeploys(place: Place) -> None:
    engine = place.engine()
    given = {"request_id": request_id("sample"), "metrics": {"arrival_time": time.time()}}
    own = engine.do("receive", said=given)["rollouts"]
    assert own == ["sample-d9f16c5c-65f6-4815-b44d-14e2c581907c"] * 3, own
    appended = engine.do("receive", said={**given, "user": "sample"})["rollouts"]
    assert appended == ["sample"] * 3, appended


@scenario("e")
def response_stays_fastdeploys_word_for_no_store(place: Place) -> None:
    engine = place.started(place.settings("response"))
    answer = engine.finish([request("data:0:0:0", 1, 40)])
    assert answer["attached"] == [True], answer
    assert workers_of(engine.pid) == []
    assert list(place.shm.iterdir()) == []
    engine.end()


# --- shapes ----------------------------------------------------------------------------------------------------------


@scenario()
def layer_by_layer_arrives_as_one_rollout(place: Place) -> None:
    settings = place.settings(replay={"use_fused_put": False})
    engine = place.started(settings)
    engine.finish([request(f"data{n}:0:0:0", n, 30 + n) for n in range(10)])
    with place.store() as store:
        for n in range(10):
            require(store, settings, f"data{n}:0:0:0", n, 30 + n)
    engine.end()


@scenario()
def fastdeploys_own_files_load_in_paddle_as_before(place: Place) -> None:
    settings = place.settings(replay={"routing_store_config": {"layout": "pdtensor"}})
    engine = place.started(settings)
    engine.finish([request("data:0:0:0", 1, 20)])
    path = place.store_dir / "data:0:0:0" / "data:0:0:0.pdtensor"
    wait_for(path.exists, str(path))
    answer = engine.do("load_pdtensor", path=str(path), seed=1, tokens=20, layer=None)
    assert answer["same"], answer
    engine.end()


@scenario()
def fastdeploys_own_files_layer_by_layer_load_in_paddle_as_before(place: Place) -> None:
    replay = {"routing_store_config": {"layout": "pdtensor"}, "use_fused_put": False}
    settings = place.settings(replay=replay)
    engine = place.started(settings)
    engine.finish([request("data:0:0:0", 1, 20)])
    for layer in range(settings.layers):
        path = place.store_dir / "data:0:0:0" / f"layer_{layer}.pdtensor"
        wait_for(path.exists, str(path))
        answer = engine.do("load_pdtensor", path=str(path), seed=1, tokens=20, layer=layer)
        assert answer["same"], answer
    engine.end()


@scenario()
def zero_tokens_are_a_rollout_too(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    engine.finish([request("none:0:0:0", 1, 0), request("some:0:0:0", 2, 7)])
    with place.store() as store:
        require(store, settings, "some:0:0:0", 2, 7)
        require(store, settings, "none:0:0:0", 1, 0)
    engine.end()


@scenario("e")
def a_request_longer_than_the_model_allows_is_stored_whole(place: Place) -> None:
    settings = place.settings(max_model_len=64)
    engine = place.started(settings)
    engine.finish([request("long:0:0:0", 1, 500)])
    with place.store() as store:
        require(store, settings, "long:0:0:0", 1, 500)
    engine.end()


@scenario()
def what_is_stored_is_as_long_as_the_request_not_as_the_model(place: Place) -> None:
    settings = place.settings(max_model_len=4096, max_num_seqs=1, blocks=256)
    engine = place.started(settings)
    engine.finish([request("short:0:0:0", 1, 10)])
    with place.store() as store:
        require(store, settings, "short:0:0:0", 1, 10)
        assert store.status("short:0:0:0").nbytes == settings.layers * 10 * settings.top_k
    engine.end()


@scenario()
def up_to_256_experts_survive_paddles_bfloat16(place: Place) -> None:
    settings = place.settings(experts=256, top_k=8)
    engine = place.started(settings)
    assert engine.do("look")["dtype"] == "uint16"
    engine.finish([request(f"data{n}:0:0:0", n, 200) for n in range(5)])
    with place.store() as store:
        for n in range(5):
            require(store, settings, f"data{n}:0:0:0", n, 200)
    engine.end()


@scenario()
def more_than_256_experts_are_refused_at_the_start_with_the_reason(place: Place) -> None:
    engine = place.engine()
    error = engine.ask("start", settings=place.settings(experts=300).to_dict())["error"]
    assert "300 experts" in error, error
    assert "bfloat16" in error, error


@scenario("e")
def between_rounds_the_buffer_is_cleared(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    engine.finish([request("before:0:0:0", 1, 40)])
    engine.do("reset")
    engine.finish([request("after:0:0:0", 2, 40)])
    with place.store() as store:
        require(store, settings, "before:0:0:0", 1, 40)
        require(store, settings, "after:0:0:0", 2, 40)
    engine.end()


# --- ids -------------------------------------------------------------------------------------------------------------


@scenario()
def every_request_id_is_a_rollout_of_its_own(place: Place) -> None:
    settings = place.settings()
    ids = {  # as the server names requests: the rollout id and choice that a trainer asks for
        request_id("sample:0:0:0", 0): ("sample:0:0:0", 0),
        request_id("sample:0:0:0", 1): ("sample:0:0:0", 1),
        request_id("sample:0:0:0", 2): ("sample:0:0:0", 2),
        request_id("with-a-dash-x:0:0:0"): ("with-a-dash-x:0:0:0", 0),
        request_id("with-a-dash-y:0:0:0"): ("with-a-dash-y:0:0:0", 0),
        request_id("one-two-three-four-five-six:0:0:0"): ("one-two-three-four-five-six:0:0:0", 0),
        request_id("a:0:1:1_0"): ("a:0:1:1_0", 0),
        request_id("a:0:1:10"): ("a:0:1:10", 0),
        request_id("a:0:1:1"): ("a:0:1:1", 0),
        request_id("completion:0:0:0", kind="cmpl"): ("completion:0:0:0", 0),
        "chatcmpl-given-by-the-client_0": ("given-by-the-client", 0),
        "neither-nor": ("neither-nor", 0),
        request_id("Zeichen äöü 你好/slash"): ("Zeichen äöü 你好/slash", 0),
    }
    engine = place.started(settings)
    engine.finish([{"id": text, "seed": seed, "tokens": 11 + seed} for seed, text in enumerate(ids)])
    with place.store() as store:
        for seed, (rollout_id, choice) in enumerate(ids.values()):
            require(store, settings, rollout_id, seed, 11 + seed, choice=choice)
        assert len(store.list()) == len(ids)
    engine.end()


@scenario()
def hostile_ids_are_only_names(place: Place) -> None:
    settings = place.settings(replay={"only_last_turn": True})
    mark = place.folder / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).write_text('x')"
    users = [
        f"x:{code}:0",
        f"x:0:{code}",
        f"x:{code}:{code}",
        "../../../escaped:0:0:0",
        f"{place.folder}/escaped",
        "..",
        ".",
    ]
    engine = place.started(settings)
    engine.finish([request(user, seed, 9) for seed, user in enumerate(users)])
    with place.store() as store:
        for seed, user in enumerate(users):
            require(store, settings, user, seed, 9)
    engine.end()
    assert not mark.exists(), "an id was evaluated"
    assert not list(place.folder.rglob("*escaped*/*.pdtensor")), "an id became a path"
    assert {path.name for path in place.folder.iterdir()} <= {"store", "shm"}


@scenario()
def of_a_request_that_runs_again_the_later_one_counts(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    now = time.time()
    engine.finish([request("again:0:0:0", 1, 20, arrival=now - 60)])
    engine.finish([request("again:0:0:0", 2, 25, arrival=now - 30)])
    engine.end()
    with place.store() as store:
        require(store, settings, "again:0:0:0", 2, 25)


@scenario()
def only_the_last_turn_stays_of_each_segment(place: Place) -> None:
    settings = place.settings(replay={"only_last_turn": True})
    engine = place.started(settings)
    stays = ["t:0:2:1", "t:0:0:10", "t:0:0:12", "t:1:0:1"]
    engine.finish([request("t:0:0:1", 0, 10), request("t:0:0:10", 1, 10), request("t:0:0:12", 2, 10)])
    engine.finish([request("t:1:0:1", 3, 10), request("t:0:1:1", 4, 15), request("t:0:2:1", 5, 20)])
    engine.end()
    with place.store() as store:
        assert {status.key.rollout_id for status in store.list()} == set(stays)
        require(store, settings, "t:0:2:1", 5, 20)
        require(store, settings, "t:0:0:10", 1, 10)


@scenario()
def only_the_last_turn_stays_layer_by_layer_too(place: Place) -> None:
    settings = place.settings(replay={"only_last_turn": True, "use_fused_put": False})
    engine = place.started(settings)
    engine.finish([request(f"t:0:{turn}:1", turn, 10 + turn) for turn in range(3)])
    engine.end()
    with place.store() as store:
        assert {status.key.rollout_id for status in store.list()} == {"t:0:2:1"}
        require(store, settings, "t:0:2:1", 2, 12)


# --- ownership, endings ----------------------------------------------------------------------------------------------


@scenario()
def a_start_clears_nothing(place: Place) -> None:
    settings = place.settings()
    with open_store(
        {"routing_store_type": "local", "routing_store_config": {"store_dir": str(place.store_dir)}},
        schema=schema_of(settings),
    ) as store:
        store.put("earlier:0:0:0", settings.routing(7, 30).transpose(1, 0, 2))
    foreign = place.store_dir / "somebody-elses.txt"
    foreign.write_text("mine")
    engine = place.started(settings)
    engine.finish([request("first:0:0:0", 1, 30)])
    engine.end()
    assert foreign.read_text() == "mine"
    with place.store() as store:
        require(store, settings, "earlier:0:0:0", 7, 30)
        require(store, settings, "first:0:0:0", 1, 30)


@scenario()
def clearing_spares_what_others_wrote_and_what_comes_after(place: Place) -> None:
    settings = place.settings()
    with open_store(
        {"routing_store_type": "local", "routing_store_config": {"store_dir": str(place.store_dir)}},
        schema=schema_of(settings),
    ) as store:
        store.put("anothers:0:0:0", settings.routing(7, 30).transpose(1, 0, 2))
    engine = place.started(settings)
    engine.finish([request(f"old{n}:0:0:0", n, 30) for n in range(10)])
    engine.do("clear_store")
    with place.store() as store:
        assert {status.key.rollout_id for status in store.list()} == {"anothers:0:0:0"}, (
            "a clear returns when it is done"
        )
        engine.finish([request("new:0:0:0", 1, 30)])
        require(store, settings, "new:0:0:0", 1, 30)
    engine.end()


@scenario()
def a_clean_shutdown_loses_nothing_at_a_slow_store(place: Place) -> None:
    settings = place.settings("slow", replay={"local_store_dir": ""})
    options = {"store_dir": str(place.store_dir), "delay": 0.1}
    engine = place.started(settings, environ={"FD_ROUTING_STORE_CONFIG": json.dumps(options)})
    engine.finish([request(f"data{n}:0:0:0", n, 10) for n in range(60)])
    engine.end()
    with place.store() as store:
        for n in range(60):
            require(store, settings, f"data{n}:0:0:0", n, 10)


@scenario()
def a_killed_store_worker_is_replaced_and_nothing_is_lost(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    (first,) = workers_of(engine.pid)
    engine.tell("finish", requests=[request(f"data{n}:0:0:0", n, 20) for n in range(300)], pause=0.002)
    time.sleep(0.1)
    os.kill(first, signal.SIGKILL)
    engine.done()
    with place.store() as store:
        for n in range(300):
            require(store, settings, f"data{n}:0:0:0", n, 20)
    assert workers_of(engine.pid) not in ([], [first])
    engine.end()


@scenario()
def what_was_submitted_before_a_kill_is_readable_after_the_restart(place: Place) -> None:
    settings = place.settings()
    noted = place.folder / "noted"
    noted.touch()
    engine = place.started(settings)
    engine.tell("finish_forever", prefix="run", tokens=40, path=str(noted))
    wait_for(lambda: noted.read_text().count("\n") >= 200, "200 requests")
    os.kill(engine.pid, signal.SIGKILL)
    assert engine.answer() == {"ended": -signal.SIGKILL}
    seeds = [int(line) for line in noted.read_text().splitlines()]
    again = place.started(settings)
    again.finish([request("after:0:0:0", 5, 40)])
    with place.store() as store:
        for seed in seeds:
            require(store, settings, f"run:{seed}:0:0", seed, 40)
        require(store, settings, "after:0:0:0", 5, 40)
    again.end()
    wait_for(lambda: list(place.shm.iterdir()) == [], "shared memory to be gone")


@scenario()
def engine_and_store_worker_killed_together_lose_nothing_either(place: Place) -> None:
    settings = place.settings("slow", replay={"local_store_dir": ""})
    options = {"store_dir": str(place.store_dir), "delay": 0.05}
    environ = {"FD_ROUTING_STORE_CONFIG": json.dumps(options)}
    engine = place.started(settings, environ=environ)
    (worker,) = workers_of(engine.pid)
    engine.finish([request(f"data{n}:0:0:0", n, 10) for n in range(60)])
    os.kill(worker, signal.SIGSTOP)  # it must not see the engine die first
    os.kill(engine.pid, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    assert engine.answer_to_nothing() == {"ended": -signal.SIGKILL}
    again = place.started(settings, environ=environ)
    with place.store() as store:
        for n in range(60):
            require(store, settings, f"data{n}:0:0:0", n, 10)
    again.end()


# --- several engines on one host -------------------------------------------------------------------------------------


def _both(
    place: Place, one: Settings, two: Settings, environ: tuple[dict[str, str], dict[str, str]] = ({}, {})
) -> None:
    engines = [place.engine(environ=more) for more in environ]
    for engine, settings in zip(engines, (one, two), strict=True):
        engine.start(settings)
    for index, engine in enumerate(engines):
        engine.tell("finish", requests=[_of(index, n) for n in range(500)])
    for engine in engines:
        engine.done()
    enders = [threading.Thread(target=engine.end) for engine in engines]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()


def _of(rank: int, number: int) -> dict[str, Any]:
    return request(f"rank{rank}-{number}:0:0:0", 1000 * rank + number, 10 + number % 50)


def _require_all(store: Any, settings: Settings, rank: int) -> None:
    for number in range(500):
        require(store, settings, f"rank{rank}-{number}:0:0:0", 1000 * rank + number, 10 + number % 50)


@scenario()
def two_ranks_share_a_store_and_every_record_is_exact(place: Place) -> None:
    one, two = place.settings(rank=0), place.settings(rank=1)
    _both(place, one, two)
    with place.store() as store:
        assert len(store.list()) == 1000
        _require_all(store, one, 0)
        _require_all(store, two, 1)


@scenario()
def two_engines_with_different_stores_do_not_meet(place: Place) -> None:
    one, two = place.settings(), place.settings("sqlite")
    options = {"path": str(place.folder / "routing.db")}
    _both(place, one, two, ({}, {"FD_ROUTING_STORE_CONFIG": json.dumps(options)}))
    with place.store() as store:
        assert len(store.list()) == 500
        _require_all(store, one, 0)
    with place.store({"routing_store_type": "sqlite", "routing_store_config": options}) as store:
        assert len(store.list()) == 500
        _require_all(store, two, 1)


@scenario()
def the_end_of_one_engine_leaves_the_other_alone(place: Place) -> None:
    settings = place.settings()
    one, two = place.started(settings), place.started(place.settings())
    one.finish([request("one:0:0:0", 1, 20)])
    two.finish([request("two:0:0:0", 2, 20)])
    os.kill(one.pid, signal.SIGKILL)
    two.finish([request("two-more:0:0:0", 3, 20)])
    two.end()
    with place.store() as store:
        require(store, settings, "one:0:0:0", 1, 20)
        require(store, settings, "two:0:0:0", 2, 20)
        require(store, settings, "two-more:0:0:0", 3, 20)


@scenario("e")
def a_worker_that_only_attached_does_not_take_the_buffer_away(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    other = place.engine()
    other.do("attach", settings=settings.to_dict())
    assert other.ask("exit") == {"ended": 0}
    time.sleep(2.0)  # a resource tracker works after the end of its process
    name = Path("/dev/shm") / f"routing_host_buffer.{settings.port}"
    assert name.exists(), "the owner's shared memory is gone"
    engine.finish([request("data:0:0:0", 1, 20)])
    engine.end()
    assert not name.exists(), "the owner's shared memory is left"


@scenario("e")
def a_second_engine_with_the_same_port_is_refused_and_the_first_lives(place: Place) -> None:
    settings = place.settings()
    engine = place.started(settings)
    other = place.engine()
    answer = other.ask("start", settings=settings.to_dict())
    assert "error" in answer, "two engines use one buffer"
    assert "in use" in answer["error"] or "belongs to" in answer["error"], answer
    engine.finish([request("data:0:0:0", 1, 20)])
    with place.store() as store:
        require(store, settings, "data:0:0:0", 1, 20)
    engine.end()


@scenario("e")
def the_buffer_of_an_engine_that_was_killed_is_taken_over(place: Place) -> None:
    settings = place.settings()
    (Path("/dev/shm") / f"routing_host_buffer.{settings.port}").write_bytes(bytes(64))
    engine = place.started(settings)
    engine.finish([request("data:0:0:0", 1, 20)])
    with place.store() as store:
        require(store, settings, "data:0:0:0", 1, 20)
    engine.end()


@scenario()
def a_rollout_that_fails_says_so_to_the_reader_and_spares_the_others(place: Place) -> None:
    settings = place.settings(experts=8)
    engine = place.started(settings)
    engine.do("finish_out_of_range", request=request("bad:0:0:0", 1, 20))
    engine.finish([request("good:0:0:0", 2, 20)])
    with place.store() as store:
        require(store, settings, "good:0:0:0", 2, 20)
        try:
            store.get("bad:0:0:0", timeout=0.0)
        except AbsentError:
            pass
        else:
            raise AssertionError("ids that no expert has were stored")
    engine.end()
