"""Stores with one fault each fail at the test of the kit that is meant to catch it; sound stores pass all tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from broken import BROKEN, SOUND
from inner import install, run_kit

from fastdeploy_routing_plugins.testing import BackendConformance

PLUGIN = """\
from broken import spec
from fastdeploy_routing_plugins.hookspecs import hookimpl


@hookimpl
def fd_routing_store():
    return spec({name!r})
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[tuple[str, str], str]:
    """How each test went for each store, by two processes side by side."""
    site = tmp_path_factory.mktemp("site")
    install(site, "fd-routing-broken", {name: PLUGIN.format(name=name) for name in (*SOUND, *BROKEN)})
    wanted = [[], []]
    for number, (name, entry) in enumerate(BROKEN.items()):
        wanted[number % 2] += [f"{name}::{test}" for test in (*entry.caught_by, *entry.passes)]
    for number, name in enumerate(SOUND):
        wanted[number % 2].append(name)
    folder = tmp_path_factory.mktemp("kit")
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(run_kit, site, folder / str(number), "suite_of_stores.py", tests)
            for number, tests in enumerate(wanted)
        ]
        return {key: value for run in runs for key, value in run.result().items()}


@pytest.mark.parametrize("store", SOUND)
def test_sound_store_passes_every_test(outcomes, store):
    tests = set(BackendConformance.kit_tests)
    assert {test: outcomes.get((store, test)) for test in tests} == dict.fromkeys(tests, "passed")


@pytest.mark.parametrize("store", BROKEN)
def test_fault_is_caught_by_the_test_meant_for_it(outcomes, store):
    entry = BROKEN[store]
    expected = {**dict.fromkeys(entry.caught_by, "failure"), **dict.fromkeys(entry.passes, "passed")}
    found = {test: outcomes.get((store, test), "not run") for test in expected}
    assert {test: went.partition(":")[0] for test, went in found.items()} == expected, found


@pytest.mark.parametrize(
    ("store", "test", "advice"),
    [
        ("ranges_without_declaring", "test_range_is_declared_honestly", "add Capability.RANGE"),
        ("declares_ranges_and_cannot", "test_range_is_declared_honestly", "remove RANGE"),
        ("notifies_without_declaring", "test_notify_is_declared_honestly", "add Capability.NOTIFY"),
        ("declares_notify_and_cannot", "test_notify_is_declared_honestly", "remove NOTIFY"),
        ("refuses_without_header", "test_refused_put_carries_the_stored_header", "header=stored_header"),
        ("returns_none", "test_absence_is_an_error", "returned None: it must raise NotFoundError"),
    ],
)
def test_failure_says_what_to_do(outcomes, store, test, advice):
    assert advice in outcomes[store, test]


def test_every_test_of_the_raw_store_catches_some_fault():
    """No test of the kit is decoration. Those of whole rollouts test our own ``RoutingStore`` over the store."""
    caught = {test for entry in BROKEN.values() for test in entry.caught_by}
    tests = BackendConformance.kit_tests.items()
    ours = {name for name, test in tests if test.__module__.endswith((".rollouts", ".outcomes"))}
    assert {name for name, _ in tests} - ours - caught == {"test_kit_is_whole"}
