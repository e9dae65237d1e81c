"""Cures 1, 8, 11 and 14: what FastDeploy makes of the ids that clients send, and what becomes of them here."""

from __future__ import annotations

import pytest

from .place import Place, same

FINISH = """
engine = Engine(REPLAY)
for seed, name in enumerate({names!r}):
    engine.finish(name, routing(seed, 9 + seed))
engine.close()
"""
UUID = "-d9f16c5c-65f6-4815-b44d-14e2c581907c"


def finish(place: Place, users: list[str], replay: dict[str, object] | None = None, **how: str) -> str:
    """Lets a request of each user end, one after the other."""
    return place.must(FINISH.format(names=[f"chatcmpl-{user}{UUID}_0" for user in users]), replay, **how)


@pytest.mark.families("de")
def test_cure_01_turn_and_segment_of_an_id_are_not_evaluated(place: Place) -> None:
    mark = place.root / "evaluated"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    users = [f"x:0:{code}:0", f"x:0:1:{code}"]
    finish(place, users, place.replay(only_last_turn=True))
    with place.read() as store:
        assert [same(store, user, seed, 9 + seed) for seed, user in enumerate(users)] == [True, True]
    assert not mark.exists()


def test_cure_08_rollout_ids_are_no_paths(place: Place) -> None:
    users = ["../../outside", str(place.root / "outside"), "..", ".", "a/b"]
    finish(place, users)
    with place.read() as store:
        assert [same(store, user, seed, 9 + seed) for seed, user in enumerate(users)] == [True] * 5
    assert {path.name for path in place.root.iterdir()} == {"store", "arena"}


def test_cure_11_every_request_is_a_rollout_and_a_choice_of_its_own(place: Place) -> None:
    ids = {
        f"chatcmpl-sample:0:0:0{UUID}_0": ("sample:0:0:0", 0),
        f"chatcmpl-sample:0:0:0{UUID}_1": ("sample:0:0:0", 1),
        f"chatcmpl-sample:0:0:0{UUID}_11": ("sample:0:0:0", 11),
        f"chatcmpl-with-a-dash:0:0:0{UUID}_0": ("with-a-dash:0:0:0", 0),
        f"chatcmpl-with-another-dash:0:0:0{UUID}_0": ("with-another-dash:0:0:0", 0),
        "chatcmpl-a:0:1:1_0": ("a:0:1:1", 0),
        "chatcmpl-a:0:1:10_0": ("a:0:1:10", 0),
        f"chatcmpl-b:0:1:1_0{UUID}_0": ("b:0:1:1_0", 0),
        f"cmpl-completion:0:0:0{UUID}_2": ("completion:0:0:0", 2),
        f"chatcmpl{UUID}_0": (UUID[1:], 0),
        "chatcmpl-given by the client_0": ("given by the client", 0),
        "neither": ("neither", 0),
        "x": ("x", 0),
    }
    place.must(FINISH.format(names=list(ids)))
    with place.read() as store:
        wrong = [
            rollout_id
            for seed, (rollout_id, choice) in enumerate(ids.values())
            if not same(store, rollout_id, seed, 9 + seed, choice=choice)
        ]
        assert wrong == []
        assert len(store.list()) == len(ids)


def test_cure_11_an_id_that_nothing_can_be_stored_under_does_not_end_the_engine(place: Place) -> None:
    log = place.must(FINISH.format(names=["", "chatcmpl-" + "x" * 5000 + "_0", "chatcmpl-good_0"]))
    with place.read() as store:
        assert same(store, "good", 2, 11)
    assert "rollout id is empty" in log


@pytest.mark.families("de")
def test_cure_14_deleting_a_turn_spares_segments_that_begin_alike(place: Place) -> None:
    users = ["t:0:0:1", "t:0:0:10", "t:0:0:12", "t:0:0:2", "t:0:1:1"]
    finish(place, users, place.replay(only_last_turn=True, use_fused_put=True))
    assert place.ids() == {"t:0:0:10", "t:0:0:12", "t:0:0:2", "t:0:1:1"}


@pytest.mark.families("de")
def test_cure_14_a_layer_and_a_whole_rollout_never_share_a_key(place: Place) -> None:
    place.must("""
engine = Engine(REPLAY)
for layer in range(3):
    engine.wrapper.submit_put_task(routing(1, 9)[layer].astype(np.uint8), "r", layer_idx=layer)
engine.wrapper.submit_put_task(routing(2, 7).astype(np.uint8), "r_1")
engine.close()
""")
    with place.read() as store:
        assert (same(store, "r", 1, 9), same(store, "r_1", 2, 7)) == (True, True)
