"""Cures 3 to 7, 9, 10 and 17: acknowledged is stored, in order, within limits, and nobody else's is touched."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fastdeploy_routing_plugins.errors import AbortedError, AbsentError

from .drive import routing
from .place import Place, equal, same

MANY = """
engine = Engine(REPLAY)
for seed in range({count}):
    engine.finish(request_id(f"r{{seed}}:0:0:0"), routing(seed, 10))
{then}
engine.close()
"""


def test_cure_03_a_put_that_failed_is_reported_as_failed(place: Place) -> None:
    log = place.must(
        """
engine = Engine(REPLAY)
engine.finish(request_id("broken:0:0:0"), routing(0, 10))
engine.finish(request_id("good:0:0:0"), routing(1, 10))
engine.sink.open().flush()
print("failed:", engine.sink.open().stats().failed, file=sys.stderr)
engine.close()
""",
        place.replay("broken"),
    )
    assert "failed: {'backend': 1}" in log
    assert any("ERROR" in line and "'broken:0:0:0'" in line for line in log.splitlines())
    with place.read() as store:
        assert same(store, "good:0:0:0", 1, 10)
        with pytest.raises(AbortedError, match="broken for good"):
            store.get("broken:0:0:0", timeout=5)


@pytest.mark.families("de")
@pytest.mark.parametrize("fused", [False, True])
def test_cure_04_local_keeps_only_the_last_turn(place: Place, fused: bool) -> None:
    place.must(
        """
engine = Engine(REPLAY)
for turn in range(4):
    engine.finish(request_id(f"t:0:{turn}:0"), routing(turn, 10 + turn))
engine.close()
""",
        place.replay(only_last_turn=True, use_fused_put=fused),
    )
    assert place.ids() == {"t:0:3:0"}


@pytest.mark.parametrize("method", ["plain", "fork", "spawn"])
def test_cure_05_a_clean_shutdown_waits_for_a_slow_store(place: Place, method: str) -> None:
    replay = place.replay("slow", routing_store_config={"delay": 0.02})
    place.must(MANY.format(count=60, then=""), replay, method=method)
    with place.read() as store:
        assert [seed for seed in range(60) if not same(store, f"r{seed}:0:0:0", seed, 10)] == []


@pytest.mark.families("de")
def test_cure_05_a_clear_returns_when_it_has_happened(place: Place) -> None:
    replay = place.replay("slow", routing_store_config={"delay": 0.02})
    then = """
engine.wrapper.submit_clear_store_task()
from fastdeploy_routing_plugins import open_store
config = {"routing_store_type": "local", "routing_store_config": {"store_dir": os.getcwd() + "/store"}}
with open_store(config) as store:
    assert store.list() == []
engine.finish(request_id("after:0:0:0"), routing(0, 10))
"""
    place.must(MANY.format(count=20, then=then), replay)
    assert place.ids() == {"after:0:0:0"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_cure_06_a_dead_store_worker_is_replaced_and_the_shutdown_ends(place: Place, method: str) -> None:
    then = """
os.kill(engine.sink.open().stats().worker_pid, 9)
engine.finish(request_id("after:0:0:0"), routing(0, 10))
"""
    place.must(MANY.format(count=20, then=then), place.replay("slow"), method=method)
    assert len(place.ids()) == 21


def test_cure_07_a_start_clears_nothing(place: Place) -> None:
    place.must(MANY.format(count=3, then=""))
    foreign = place.store_dir / "foreign.txt"
    foreign.write_text("somebody else's")
    place.must('engine = Engine(REPLAY); engine.finish(request_id("second:0:0:0"), routing(0, 5)); engine.close()')
    assert place.ids() == {"r0:0:0:0", "r1:0:0:0", "r2:0:0:0", "second:0:0:0"}
    assert foreign.exists()


@pytest.mark.families("de")
def test_cure_07_clearing_spares_another_replicas_rollouts(place: Place) -> None:
    place.must(MANY.format(count=3, then=""))
    place.must("""
engine = Engine(REPLAY)
for seed in range(5):
    engine.finish(request_id(f"other{seed}:0:0:0"), routing(seed, 10))
engine.wrapper.submit_clear_store_task()
engine.close()
""")
    assert place.ids() == {"r0:0:0:0", "r1:0:0:0", "r2:0:0:0"}


@pytest.mark.families("de")
def test_cure_09_a_delete_never_overtakes_a_put(place: Place) -> None:
    place.must(
        """
engine = Engine(REPLAY)
for sample in range(15):
    for turn in range(3):
        engine.finish(request_id(f"s{sample}:0:{turn}:0"), routing(turn, 10))
engine.close()
""",
        place.replay("slow", routing_store_config={"delay": 0.005}, only_last_turn=True),
    )
    assert place.ids() == {f"s{sample}:0:2:0" for sample in range(15)}


def test_cure_09_of_a_request_that_ran_twice_the_later_one_is_read(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
now = time.time()
for sample in range(15):
    engine.finish(request_id(f"s{sample}:0:0:0"), routing(1, 10), arrival=now - 20)
    engine.finish(request_id(f"s{sample}:0:0:0"), routing(2, 12), arrival=now - 10)
engine.close()
""")
    with place.read() as store:
        assert [same(store, f"s{sample}:0:0:0", 2, 12) for sample in range(15)] == [True] * 15


def test_cure_09_the_attempt_is_the_time_of_arrival_not_of_finishing(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
now = time.time()
engine.finish(request_id("s:0:0:0"), routing(2, 12), arrival=now - 10)
engine.finish(request_id("s:0:0:0"), routing(1, 10), arrival=now - 20)
engine.close()
""")
    with place.read() as store:
        assert same(store, "s:0:0:0", 2, 12)


def test_cure_10_what_waits_is_limited_in_bytes_and_a_loss_is_said(place: Place) -> None:
    code = """
engine = Engine(REPLAY, max_model_len=4096, blocks=2048)
for seed in range(60):
    engine.finish(request_id(f"r{seed}:0:0:0"), routing(seed, 4000))
assert engine.sink.lost > 0
assert engine.sink.open().stats().queue_bytes <= 1 << 20
os.remove("flag")
engine.close()
"""
    (place.root / "flag").touch()
    replay = place.replay("unavailable", routing_store_config={"flag": str(place.root / "flag")})
    log = place.must(code, replay, limits={"arena_bytes": 1 << 20, "on_full_wait": 0.05})
    assert "arena" in next(line for line in log.splitlines() if "is lost" in line)


def test_cure_10_with_a_spill_folder_nothing_is_lost(place: Place) -> None:
    count = 12 if place.family == "a" else 24  # int32 there; a third of them has no room in the arena
    code = f"""
engine = Engine(REPLAY, max_model_len=4096, blocks=2048)
for seed in range({count}):
    engine.finish(request_id(f"r{{seed}}:0:0:0"), routing(seed, 4000))
assert engine.sink.open().stats().spilled_bytes > 0
os.remove("flag")
engine.close()
"""
    (place.root / "flag").touch()
    replay = place.replay("unavailable", routing_store_config={"flag": str(place.root / "flag")})
    limits = {"arena_bytes": 1 << 20, "on_full_wait": 0.05, "spill_dir": str(place.root / "spill")}
    place.must(code, replay, limits=limits)
    with place.read() as store:
        assert [seed for seed in range(count) if not same(store, f"r{seed}:0:0:0", seed, 4000)] == []


def test_cure_17_readers_see_a_rollout_whole_or_not_at_all(place: Place) -> None:
    seen: list[bool] = []
    over = threading.Event()

    def watch() -> None:
        with place.read() as store:
            left = set(range(25))
            while left and not over.is_set():
                for seed in sorted(left):
                    try:
                        got = store.get(f"r{seed}:0:0:0").routing
                    except AbsentError:
                        continue
                    seen.append(equal(got, routing(seed, 3000)))
                    left.discard(seed)
                time.sleep(0.001)

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        place.must("""
engine = Engine(REPLAY, max_model_len=4096, blocks=2048)
for seed in range(25):
    engine.finish(request_id(f"r{seed}:0:0:0"), routing(seed, 3000))
engine.close()
""")
        reader.join(timeout=60)
    finally:
        over.set()
        reader.join()
    assert seen == [True] * 25


def test_an_engine_that_is_killed_loses_nothing_that_it_handed_over(place: Place) -> None:
    code = """
engine = Engine(REPLAY)
for seed in range(100):
    engine.finish(request_id(f"r{seed}:0:0:0"), routing(seed, 10))
os.kill(os.getpid(), 9)
"""
    done = place.run(code, place.replay("slow", routing_store_config={"delay": 0.005}))
    assert done.returncode == -9
    for buffer in place.buffers():  # stays until an engine starts with the same port
        buffer.unlink()
    with place.read() as store:
        assert [seed for seed in range(100) if not same(store, f"r{seed}:0:0:0", seed, 10)] == []


def test_two_engines_with_different_stores_do_not_meet(place: Place) -> None:
    other = Place(place.root / "other", place.site, place.family)
    other.root.mkdir()
    running = [each.start(MANY.format(count=500, then="")) for each in (place, other)]
    ends = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], json.dumps(ends)
    exact = []
    for each in (place, other):
        with each.read() as store:
            exact.append(sum(same(store, f"r{seed}:0:0:0", seed, 10) for seed in range(500)))
    assert exact == [500, 500]
    assert other.left()
