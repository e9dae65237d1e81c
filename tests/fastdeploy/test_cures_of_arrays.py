"""Cures 2, 12, 13 and 15: what becomes of the arrays themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import AbortedError

from .drive import routing
from .place import Place, same

ONE = """
engine = Engine(REPLAY, **{model!r})
engine.finish(request_id("r:0:0:0"), routing(1, {tokens}, **{rows!r}))
engine.close()
"""


def finish_one(place: Place, tokens: int, replay: dict[str, object] | None = None, **model: int) -> str:
    """Lets one request end."""
    rows = {key: value for key, value in model.items() if key in ("experts", "layers", "top_k")}
    return place.must(ONE.format(model=model, tokens=tokens, rows=rows), replay)


@pytest.mark.families("de")
def test_cure_02_unsigned_routing_arrives_whatever_numpy_is_installed(place: Place) -> None:
    finish_one(place, 20)
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 20)


@pytest.mark.families("e")
@pytest.mark.parametrize(("dtype", "fill"), [("uint8", 255), ("uint16", 65_535), ("uint32", 2**32 - 1), ("int64", -1)])
def test_cure_02_buffers_of_every_type_start_filled(place: Place, dtype: str, fill: int) -> None:
    place.must(f"""
from fastdeploy.cache_manager.routing_cache_manager import RoutingHostBuffer, RoutingSwapBuffer
for kind in (RoutingHostBuffer, RoutingSwapBuffer):
    made = kind(2, block_size=4, num_moe_layers=3, top_k=2, dtype={dtype!r}, dp_suffix=PORT)
    assert made.buffer.shape == (8, 3, 2) and (made.buffer == {fill}).all()
    made.close()
""")


@pytest.mark.families("e")
def test_cure_02_the_buffer_can_be_cleared_between_rounds(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
engine.finish(request_id("before"), routing(1, 20))
engine.manager.reset()
assert (engine.manager.host_buffer.buffer == 255).all()
engine.finish(request_id("after"), routing(2, 20))
engine.close()
""")
    with place.read() as store:
        assert (same(store, "before", 1, 20), same(store, "after", 2, 20)) == (True, True)


def test_cure_12_what_is_stored_is_no_pickle(place: Place) -> None:
    finish_one(place, 20)
    files = [path for path in place.store_dir.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert [path.suffix for path in files] == [".safetensors"]


@pytest.mark.families("de")
@pytest.mark.parametrize("experts", [254, 255, 256])
def test_cure_13_up_to_256_experts_are_recovered_from_bfloat16(place: Place, experts: int) -> None:
    finish_one(place, 40, experts=experts, top_k=8)
    with place.read() as store:
        record = store.get("r:0:0:0", timeout=30)
        assert np.array_equal(record.routing, routing(1, 40, experts=experts, top_k=8))


@pytest.mark.families("de")
@pytest.mark.parametrize("experts", [255, 256])
def test_cure_13_rows_that_were_never_computed_are_left_out_of_bfloat16(place: Place, experts: int) -> None:
    place.must(f"""
engine = Engine(REPLAY, experts={experts})
engine.finish(request_id("r:0:0:0"), routing(1, 9, experts={experts}), unfilled=3)
engine.close()
""")
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 9, experts=experts)


@pytest.mark.families("de")
def test_cure_13_more_experts_are_refused_at_the_start_with_the_reason(place: Place) -> None:
    last = place.refused("Engine(REPLAY, experts=257)")
    assert "257 experts in Paddle's dtype uint16, which is bfloat16 and rounds ids above 256" in last


@pytest.mark.families("a")
def test_cure_13_a_family_that_records_int32_serves_any_number_of_experts(place: Place) -> None:
    finish_one(place, 40, experts=1000, top_k=8)
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 40, experts=1000, top_k=8)


@pytest.mark.parametrize("fused", [False, True])
def test_cure_15_what_is_stored_is_as_long_as_the_request(place: Place, fused: bool) -> None:
    replay = place.replay() if place.family == "a" else place.replay(use_fused_put=fused)
    finish_one(place, 10, replay, max_model_len=4096, slots=1)
    with place.read() as store:
        assert store.status("r:0:0:0").nbytes == 3 * 10 * 4


@pytest.mark.families("de")
def test_cure_15_more_tokens_than_the_model_allows_are_kept(place: Place) -> None:
    finish_one(place, 100, max_model_len=64)
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 100)


@pytest.mark.families("de")
def test_cure_15_a_request_without_tokens_is_kept(place: Place) -> None:
    finish_one(place, 0)
    with place.read() as store:
        assert store.get("r:0:0:0", timeout=30).routing.shape == (3, 0, 4)


def test_cure_15_rows_that_were_never_computed_are_left_out(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
engine.finish(request_id("r:0:0:0"), routing(1, 9), unfilled=1)
engine.close()
""")
    with place.read() as store:
        assert same(store, "r:0:0:0", 1, 9)


def test_cure_15_a_request_of_which_nothing_was_captured_says_so_to_its_reader(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
engine.finish(request_id("r:0:0:0"), routing(1, 0), unfilled=12)
engine.close()
""")
    with place.read() as store, pytest.raises(AbortedError, match="captured no routing"):
        store.get("r:0:0:0", timeout=30)
