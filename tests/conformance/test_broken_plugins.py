"""Plugins with one fault each fail at the test of the kit that is meant to catch it; a sound one passes all tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from broken_plugins import (
    ALONE,
    AT_IMPORT,
    BROKEN,
    FAULTS_AT_IMPORT,
    LIGHT,
    LITERAL,
    NO_IO,
    ODD_ERRORS,
    SILENT,
    SOUND,
)
from inner import install, run_kit

from fastdeploy_routing_plugins.testing import PluginConformance


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[tuple[str, str], str]:
    """How each test went for each plugin, by two processes side by side."""
    site = tmp_path_factory.mktemp("site")
    sources = {name: source.replace("NAME", name) for name, (source, _) in {**BROKEN, "sound": (SOUND, ())}.items()}
    install(site, "fd-routing-broken", sources)
    install(site, "fd-routing-twin", {"is_offered_twice": sources["is_offered_twice"]})
    (site / "fake_sdk.py").write_text("")
    (site / "odd_errors.py").write_text(ODD_ERRORS)
    stores = {name: sorted(AT_IMPORT) if name in FAULTS_AT_IMPORT else None for name in sources}
    tests = [[name] if some is None else [f"{name}::{test}" for test in some] for name, some in stores.items()]
    halves = [[test for some in tests[half::2] for test in some] for half in (0, 1)]
    folder = tmp_path_factory.mktemp("kit")
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run_kit, site, folder / str(half), "suite_of_plugins.py", halves[half]) for half in (0, 1)]
        return {key: value for run in runs for key, value in run.result().items()}


def test_sound_plugin_passes_every_test(outcomes):
    tests = set(PluginConformance.kit_tests)
    assert {test: outcomes.get(("sound", test)) for test in tests} == dict.fromkeys(tests, "passed")


@pytest.mark.parametrize("store", BROKEN)
def test_fault_is_caught_by_the_test_meant_for_it(outcomes, store):
    failed = {test for (name, test), went in outcomes.items() if name == store and went != "passed"}
    assert failed == BROKEN[store][1]


@pytest.mark.parametrize(
    ("store", "test", "advice"),
    [
        ("imports_numpy", LIGHT, "imports numpy: import what needs it inside the functions load_config and create"),
        ("prints", SILENT, "it printed 'welcome"),
        ("starts_a_thread", ALONE, "threads; do that in _open"),
        ("copies_the_api_version", LITERAL, "api_version=(1, 0)"),
        ("connects_in_preflight", NO_IO, "do that in _open"),
        ("documents_nothing", "test_every_option_is_documented", "['other']"),
    ],
)
def test_failure_says_what_to_do(outcomes, store, test, advice):
    assert advice in outcomes[store, test]


def test_every_test_of_a_plugin_catches_some_fault():
    caught = set().union(*[tests for _, tests in BROKEN.values()])
    assert set(PluginConformance.kit_tests) - caught == {"test_kit_is_whole"}
