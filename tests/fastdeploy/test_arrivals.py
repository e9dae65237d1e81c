"""What is noted of requests until they end: never more than of those that run, and nothing that a fork breaks."""

from __future__ import annotations

import pytest

from .place import Place, same

NOTED = "from fastdeploy_routing_plugins.hosts.fastdeploy.requests import ARRIVALS\n"
FINISH_WITHOUT_STORE = f"""
{NOTED}
from fastdeploy.output.token_processor import TokenProcessor
processor = TokenProcessor(fd_config(REPLAY))
processor.routing_cache_manager = {{manager}}
for n in range(100):
    task = SimpleNamespace(prompt_token_ids_len=0, output_token_ids=[2], eos_token_ids=[2], block_tables=[],
                           metrics=SimpleNamespace(arrival_time=time.time()))
    result = SimpleNamespace(finished=True, error_code=200)
    processor._finalize_routing(request_id(f"data:{{{{n}}}}:0:0"), task, result)
assert len(ARRIVALS) == 0, len(ARRIVALS)
"""


def test_nothing_is_noted_any_more_of_requests_that_ended(place: Place) -> None:
    place.must(f"""
{NOTED}
engine = Engine(REPLAY)
for n in range(20):
    engine.finish(request_id(f"data:{{n}}:0:0"), routing(n, 9))
assert len(ARRIVALS) == 0, len(ARRIVALS)
engine.close()
""")


@pytest.mark.families("ad")
def test_ranks_that_hand_nothing_over_note_nothing_for_longer(place: Place) -> None:
    place.must(f"""
{NOTED}
engine = Engine(REPLAY, rank=1)
for n in range(20):
    engine.finish(request_id(f"data:{{n}}:0:0"), routing(n, 9))
assert len(ARRIVALS) == 0, len(ARRIVALS)
""")


@pytest.mark.families("e")
@pytest.mark.parametrize("replay", [{"routing_store_type": "response"}, {"enable_routing_replay": False}])
@pytest.mark.parametrize("manager", ["None", "SimpleNamespace(gather_routing_for_request=lambda *_: None)"])
def test_without_a_store_nothing_is_noted(place: Place, replay: dict[str, object], manager: str) -> None:
    place.must(FINISH_WITHOUT_STORE.format(manager=manager), replay)


@pytest.mark.families("e")
def test_a_request_that_fastdeploy_does_not_hand_over_is_forgotten(place: Place) -> None:
    manager = "SimpleNamespace(_store_wrapper=1, on_request_finished=lambda **_: 1 / 0)"
    place.must(FINISH_WITHOUT_STORE.format(manager=manager))


@pytest.mark.families("e")
def test_a_forked_child_notes_arrivals_whoever_held_the_lock(place: Place) -> None:
    place.must(f"""
{NOTED}
ARRIVALS.note("parents", 1000.0)
with ARRIVALS._lock:
    child = os.fork()
    if not child:
        import signal
        signal.alarm(60)  # ends a child that waits for the lock
        ARRIVALS.note("own", 1000.0)
        os._exit(0 if ARRIVALS.take("own").time == 1000 * 10**9 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ARRIVALS.take("parents").time == 1000 * 10**9
""")


def test_a_later_arrival_counts_whichever_request_ends_last(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
now = time.time()
engine.finish(request_id("r"), routing(2, 9), arrival=now)
engine.finish(request_id("r"), routing(1, 9), arrival=now - 100)
engine.close()
""")
    with place.read() as store:
        assert same(store, "r", 2, 9)
