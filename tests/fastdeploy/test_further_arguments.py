"""A newer FastDeploy passes more to the methods that are patched: routing is stored all the same, and exactly."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.hosts.fastdeploy.gate import Arguments

from .changed import Change, found_at
from .place import Place, same

CACHE = "fastdeploy/model_executor/layers/moe/routing_indices_cache.py"
MANAGER = "fastdeploy/cache_manager/routing_cache_manager.py"
TOKENS = "fastdeploy/output/token_processor.py"
ENGINE = "fastdeploy/engine/common_engine.py"
EXPERTS = "fastdeploy/engine/expert_service.py"
RUNNER = "fastdeploy/worker/gpu_model_runner.py"
CONFIG = "fastdeploy/config.py"
ARGS = "fastdeploy/engine/args_utils.py"
RUN = "engine = Engine(REPLAY); engine.finish(request_id('r:0:0:0'), routing(1, 9)); engine.close()"


def taking(file: str, before: str, more: str, after: str) -> Change:
    """Returns the change that puts more between two texts."""
    return file, before + after, before + more + after


def is_stored(place: Place, *changes: Change) -> bool:
    """Whether routing is stored exactly by an engine of a FastDeploy with changes, which it takes without a word."""
    said = place.must(RUN, FD_ROUTING_STRICT="1", **found_at(place, *changes))
    assert "Failed to finalize" not in said
    with place.read() as store:
        return same(store, "r:0:0:0", 1, 9)


HOST_BUFFER = taking(
    MANAGER,
    'dp_suffix: str = ""',
    ", numa_node: int = -1",
    '\n    ):\n        self.block_size = block_size\n        self._make(f"routing_host',
)
FINISHED = taking(
    MANAGER, "def on_request_finished(self, request_id: str, block_table, seq_len: int", ", code=200", "):"
)
OF_E = {
    "the host buffer's is declared": [HOST_BUFFER],
    "the host buffer's is given": [
        HOST_BUFFER,
        taking(MANAGER, "_worker_queue_port)", ", numa_node=0", ",\n        )"),
    ],
    "the view's is declared": [taking(MANAGER, "(self, shape, dtype: str, shm_name: str", ", offset=0", ")")],
    "a finished request's is given by name": [FINISHED, taking(TOKENS, "seq_len=seq_len", ", code=500", "\n")],
    "a finished request's is given by position": [
        taking(MANAGER, "def on_request_finished(self, request_id: str, block_table, seq_len: int", ", *more", "):"),
        (
            TOKENS,
            "request_id=task_id, block_table=task.block_tables, seq_len=seq_len",
            "task_id, task.block_tables, seq_len, 7",
        ),
    ],
    "the manager's is given": [
        taking(MANAGER, "def __init__(self, fd_config, num_gpu_blocks: int", ", swap_blocks=None", "):"),
        taking(ENGINE, "num_gpu_blocks=num_gpu_blocks", ", swap_blocks=0", ")"),
    ],
    "the store's are given": [
        taking(MANAGER, "StoreWrapper(fd_config=fd_config", ", workers=2", ")"),
        taking(MANAGER, "start_store_warpper(", "wait=True", ")"),
    ],
    "an id's is declared": [taking(MANAGER, "def split_request_id(request_id: str", ", strict=False", ")")],
}
OF_D = {
    "a registration's is given": [
        taking(CACHE, "def register_request(self, batch_id: int, request_id: str", ", user=None", ")"),
        taking(RUNNER, "request_id=request.request_id", ", user='u'", ")"),
    ],
    "a put's is given": [
        taking(
            CACHE, "def _put_request_to_store(self, batch_id: int, request_id: str, seq_lens_decoder", ", step=0", ")"
        ),
        taking(CACHE, "seq_lens_decoder=seq_lens_decoder", ", step=3", ")\n\n    def register"),
    ],
    "the store's is given": [taking(CACHE, "StoreWrapper(fd_config=fd_config", ", workers=2", ")")],
    "the configuration's is given": [
        taking(CONFIG, "def __init__(self, args", ", model=None", ")"),
        taking(ARGS, "RoutingReplayConfig(self.merged()", ", model='m'", ")"),
    ],
}
OF_A = {
    "a registration's is given": OF_D["a registration's is given"],
    "a put's is given": [
        taking(CACHE, "def _put_request_to_store(self, batch_id: int, request_id: str", ", step=0", ")"),
        taking(
            CACHE, "_put_request_to_store(batch_id, self._deregister_request(batch_id)", ", 3", ")\n\n    def _clear"
        ),
    ],
    "the store's is given": [
        taking(CACHE, "def get_routing_store(fd_config", ", rank=0", ")"),
        taking(CACHE, "get_routing_store(fd_config=fd_config", ", rank=1", ")"),
    ],
}


@pytest.mark.families("e")
@pytest.mark.parametrize("changes", OF_E.values(), ids=OF_E)
def test_family_e_stores_exactly_whatever_else_is_passed(place: Place, changes: list[Change]) -> None:
    assert is_stored(place, *changes)


@pytest.mark.families("d")
@pytest.mark.parametrize("changes", OF_D.values(), ids=OF_D)
def test_family_d_stores_exactly_whatever_else_is_passed(place: Place, changes: list[Change]) -> None:
    assert is_stored(place, *changes)


@pytest.mark.families("a")
@pytest.mark.parametrize("changes", OF_A.values(), ids=OF_A)
def test_family_a_stores_exactly_whatever_else_is_passed(place: Place, changes: list[Change]) -> None:
    assert is_stored(place, *changes)


@pytest.mark.families("e")
def test_a_rank_passes_on_what_its_service_is_given(place: Place) -> None:
    change = taking(EXPERTS, "def reset_kvcache_blocks(self", ", keep=False", "):\n        self.kept = keep\n")
    change = (change[0], "def reset_kvcache_blocks(self):\n", change[2])
    place.must(
        """
from fastdeploy.engine.expert_service import ExpertService
rank = ExpertService(fd_config(REPLAY), 1, start_queue=False)
from types import SimpleNamespace
rank.get_profile_block_num_signal = SimpleNamespace(value=[64])
rank.reset_kvcache_blocks(keep=True)
assert rank.kept and rank.engine.routing_cache_manager is not None
rank._exit_sub_services()
""",
        **found_at(place, change),
    )


@pytest.mark.families("e")
def test_a_view_that_is_to_look_elsewhere_is_refused(place: Place) -> None:
    change = taking(MANAGER, "(self, shape, dtype: str, shm_name: str", ", offset=0", ")")
    given = taking(MANAGER, "shm_name=self.host_buffer.shm_name", ", offset=8", "\n")
    assert "UnsupportedError: the routing stores do not know offset" in place.refused(
        RUN, **found_at(place, change, given)
    )


@pytest.mark.families("e")
def test_a_reset_of_less_than_all_is_left_to_fastdeploy(place: Place) -> None:
    old = "def reset(self):\n        self.host_buffer.buffer[:] = -1"
    new = "def reset(self, slots=None):\n        self.host_buffer.buffer[slots] = 77"
    place.must(
        """
engine = Engine(REPLAY)
buffer = engine.manager.host_buffer.buffer
engine.manager.reset(slots=[3])
assert (buffer[3] == 77).all() and (buffer[4] == 255).all()
engine.manager.reset()
assert (buffer == 255).all()
engine.close()
""",
        **found_at(place, (MANAGER, old, new)),
    )


@pytest.mark.families("de")
def test_a_clear_of_less_than_all_deletes_nothing(place: Place) -> None:
    said = place.must("""
engine = Engine(REPLAY)
engine.finish(request_id("r:0:0:0"), routing(1, 9))
engine.wrapper.submit_clear_store_task(prefix="another")
engine.close()
""")
    assert place.ids() == {"r:0:0:0"}
    assert "what to clear is unknown here: ('prefix',)" in said


@pytest.mark.families("e")
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def on_request_finished(", "async def on_request_finished(", "is a coroutine"),
        (
            "finished(self, request_id: str,",
            "finished(self, *, request_id: str,",
            "by position alone, or by name alone",
        ),
    ],
)
def test_a_method_that_is_called_in_another_way_is_left_untouched(place: Place, old: str, new: str, why: str) -> None:
    said = place.must("import fastdeploy.cache_manager.routing_cache_manager", **found_at(place, (MANAGER, old, new)))
    assert f"RoutingCacheManager.on_request_finished {'takes parameters ' if 'name' in why else ''}{why}" in said


def call(more: Any = 0, *args: Any, known: int = 5, **kwargs: Any) -> None:
    """Takes all kinds of arguments."""


ARGUMENTS = Arguments(call, ["known"])


def test_what_is_not_passed_has_its_default() -> None:
    assert ARGUMENTS.of((), {}).known == (5,)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((0,), {}), ((), {"more": 0, "known": 7})])
def test_what_is_the_default_anyway_is_nothing_further(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert ARGUMENTS.of(args, kwargs).further == {}


@pytest.mark.parametrize("value", [1, False, None, np.zeros(3), "0"], ids=repr)
def test_what_is_not_the_default_is_further(value: object) -> None:
    assert list(ARGUMENTS.of((value,), {}).further) == ["more"]


def test_what_any_number_of_arguments_took_is_further() -> None:
    assert list(ARGUMENTS.of((0, 1), {"other": 2}).further) == ["args", "kwargs"]


def test_what_is_ignored_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def once(known: int, silently: bool = False) -> None:
        """Has a name that no other test warns of."""

    arguments = Arguments(once, ["known"])
    with caplog.at_level(logging.WARNING):
        assert [arguments.known_of((n, True), {}) for n in range(3)] == [(0,), (1,), (2,)]
    assert [record.getMessage().partition(" was given ")[2] for record in caplog.records] == [
        "silently, which they do not know and ignore"
    ]


def test_what_fastdeploys_method_would_not_take_either_is_refused() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'known'"):
        Arguments(lambda known: known, ["known"]).of((), {})
