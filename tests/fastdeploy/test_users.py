"""Ids of clients that end in a uuid of their own: what was given as ``user`` tells them from FastDeploy's."""

from __future__ import annotations

from typing import Any

import pytest

from .place import Place, same

FIRST, SECOND = "2bd58c6e-1f3a-4a4e-9c1d-0e7f4c1f8a01", "a0e1cf1c-6a52-4f0b-8f57-3c2a9a3d7b02"
FINISH = """
engine = Engine(REPLAY)
for seed, (name, client, engines) in enumerate({requests!r}):
    engine.finish(name, routing(seed, 9), client=client, engines=engines)
engine.close()
"""


def finish(place: Place, *requests: tuple[str, dict[str, Any] | None], engines: int = 1) -> None:
    """Lets requests end, each with what its client gave; what is stored follows from their numbers."""
    place.must(FINISH.format(requests=[(name, client, engines) for name, client in requests]))


def whole(place: Place, *ids: str) -> list[bool]:
    """Whether the rollouts are there, and only they."""
    assert place.ids() == set(ids)
    with place.read() as store:
        return [same(store, rollout_id, seed, 9) for seed, rollout_id in enumerate(ids)]


def test_request_ids_of_a_client_that_differ_only_in_a_uuid_are_rollouts_of_their_own(place: Place) -> None:
    ids = [f"sample-{FIRST}", f"sample-{SECOND}"]
    finish(place, *[(f"chatcmpl-{given}_0", {}) for given in ids])
    assert whole(place, *ids) == [True, True]


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_the_uuid_after_what_was_given_as_user_is_taken_off_in_every_engine(place: Place, engines: int) -> None:
    finish(place, (f"chatcmpl-data:gen:0:0-{FIRST}_0", {"user": "data:gen:0:0"}), engines=engines)
    assert whole(place, "data:gen:0:0") == [True]


@pytest.mark.parametrize("engines", [2, 3])
def test_a_clients_own_uuid_is_kept_by_engines_that_got_the_request_from_another(place: Place, engines: int) -> None:
    finish(place, (f"chatcmpl-sample-{FIRST}_0", {}), engines=engines)
    assert whole(place, f"sample-{FIRST}") == [True]


def test_a_user_that_ends_in_a_uuid_of_its_own_loses_only_fastdeploys(place: Place) -> None:
    user = f"sample-{FIRST}"
    finish(place, (f"chatcmpl-{user}-{SECOND}_0", {"user": user}))
    assert whole(place, user) == [True]


def test_a_request_id_stays_whole_beside_another_user(place: Place) -> None:
    finish(place, (f"chatcmpl-sample-{FIRST}_0", {"user": "somebody"}))
    assert whole(place, f"sample-{FIRST}") == [True]


def test_where_fastdeploy_tells_no_user_a_uuid_at_the_end_counts_as_fastdeploys(place: Place) -> None:
    finish(place, (f"chatcmpl-sample-{FIRST}_0", None))
    assert whole(place, "sample") == [True]


@pytest.mark.families("de")
def test_a_request_from_an_engine_without_this_package_may_have_lost_its_user(place: Place) -> None:
    finish(place, (f"chatcmpl-data:gen:0:0-{FIRST}_0", {"prefill_start_index": 0}))
    assert whole(place, "data:gen:0:0") == [True]


def test_the_choices_of_a_request_with_a_uuid_of_its_own_stay_apart(place: Place) -> None:
    finish(place, *[(f"cmpl-sample-{FIRST}_{choice}", {}) for choice in range(2)])
    with place.read() as store:
        got = [same(store, f"sample-{FIRST}", choice, 9, choice=choice) for choice in range(2)]
        assert got == [True, True]
