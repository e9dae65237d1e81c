"""Many threads, several writers and several engines on one machine do not get into each other's way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from fastdeploy_routing_plugins import RoutingWriter
from fastdeploy_routing_plugins.arena.file import find

from .helpers import BIG, PATIENCE, Place, alive, routing, same, until, workers


def at_once(count: int, work: Callable[[int], object]) -> None:
    """Runs a function in many threads that all begin at the same moment; their failures are the test's."""
    start = threading.Barrier(count)
    faults: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(PATIENCE)
            work(number)
        except BaseException as err:  # noqa: BLE001 - raised below
            faults.append(err)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads)


def test_thirty_two_threads_hand_over_exactly(place: Place) -> None:
    def work(number: int) -> None:
        for part in range(6):
            writer.submit(f"x:{number}:{part}:0", routing(50 + part, seed=(number, part)))

    with place.writer() as writer, place.read() as store:
        at_once(32, work)
        writer.flush().check()
        assert all(
            same(store, f"x:{number}:{part}:0", routing(50 + part, seed=(number, part)))
            for number in range(32)
            for part in range(6)
        )


def test_threads_complete_one_rollout_layer_by_layer(place: Place) -> None:
    expected = routing(300, schema=BIG)
    with place.writer(schema=BIG) as writer, place.read() as store:
        at_once(16, lambda layer: writer.submit("x", expected[layer], layers=layer))
        writer.flush().check()
        assert same(store, "x", expected)


def test_threads_reserve_and_cancel_and_submit(place: Place) -> None:
    def work(number: int) -> None:
        for part in range(10):
            slot = writer.reserve(f"x:{number}:{part}", 100)
            slot.view[...] = routing(100, seed=number)
            slot.publish() if part % 2 else slot.cancel()
            writer.submit(f"y:{number}:{part}", routing(3, seed=number))

    with place.writer() as writer:
        free = writer.stats().arena_free_bytes
        at_once(16, work)
        assert writer.flush().check().stored == 16 * 15
        until(lambda: writer.stats().arena_free_bytes == free)


def test_each_thread_keeps_its_own_order(place: Place) -> None:
    def work(number: int) -> None:
        for attempt in range(20):
            writer.submit(f"x:{number}:0:0", routing(seed=attempt), attempt=attempt)

    with place.writer() as writer, place.read() as store:
        at_once(8, work)
        assert writer.flush().failed == 0  # an attempt that comes too late is superseded
        assert all(store.get(f"x:{number}:0:0").attempt == 19 for number in range(8))


def test_two_writers_of_one_process_are_apart(place: Place) -> None:
    with place.writer() as first, place.writer(namespace="other") as second:
        first.submit("mine", routing())
        second.submit("yours", routing())
    assert (place.ids(), place.ids(namespace="other")) == (["mine"], ["yours"])


def test_closing_one_writer_leaves_the_other_alone(place: Place) -> None:
    first, second = place.writer(), place.writer()
    first.close()
    try:
        assert second.submit("x", routing()).result(PATIENCE).code == ""
    finally:
        second.close()


def test_a_new_writer_leaves_the_arenas_of_living_ones_alone(place: Place) -> None:
    with place.writer() as first:
        before = [found.path for found in find(str(place.arena_dir))]
        with place.writer():
            assert set(before) < {found.path for found in find(str(place.arena_dir))}
        assert [found.path for found in find(str(place.arena_dir))] == before
        assert first.submit("x", routing()).result(PATIENCE).code == ""


def test_engines_share_a_machine_a_store_and_a_folder(place: Place) -> None:
    code = "with place.writer() as writer:\n    for n in range(50): writer.submit(f'{NAME}:{n}', routing(seed=n))\n"
    engines = [place.engine(f"NAME = {name!r}\n{code}") for name in ("a", "b", "c")]
    assert [engine.wait(PATIENCE) for engine in engines] == [0, 0, 0]
    assert len(place.ids()) == 150


def test_the_death_of_one_engine_is_no_matter_to_another(place: Place) -> None:
    code = "writer = place.writer()\nprint('open', flush=True)\nimport time\ntime.sleep(600)\n"
    with place.running(code) as (engine, _), place.writer() as writer:
        engine.kill()
        until(lambda: workers(place.arena_dir) == [writer.stats().worker_pid])
        assert writer.submit("x", routing()).result(PATIENCE).code == ""


def test_who_only_looked_at_an_arena_takes_nothing_away(place: Place) -> None:
    look = (
        "from fastdeploy_routing_plugins.arena.file import find\n"
        "found = list(find(str(place.arena_dir)))\n"
        "files = [open(each.path, 'rb') for each in found]\n"
        "print([each.used for each in found], flush=True)\n"
        "import time\ntime.sleep(600)\n"
    )
    with place.writer() as writer:
        (path,) = [found.path for found in find(str(place.arena_dir))]
        with place.running(look) as (_, line):
            assert line == "[True]"
        assert (os.path.exists(path), writer.submit("x", routing()).result(PATIENCE).code) == (True, "")


def _replaced(writer: RoutingWriter, before: int) -> bool:
    pid = writer.stats().worker_pid
    return pid not in (0, before) and alive(pid)


def test_a_worker_of_one_writer_may_die_while_another_works(place: Place) -> None:
    with place.writer() as first, place.writer(namespace="other") as second:
        pid = first.stats().worker_pid
        os.kill(pid, signal.SIGKILL)
        second.submit("x", routing()).result(PATIENCE)
        until(lambda: _replaced(first, pid))
        assert second.stats().worker_restarts == 0
