"""Stores with one fault each fail at the test of the kit that is meant to catch it; sound stores pass all tests."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from broken import BROKEN, SOUND  # noqa: E402 - found beside this file

from fastdeploy_routing_plugins.testing import BackendConformance  # noqa: E402

PLUGIN = """\
from broken import spec
from fastdeploy_routing_plugins.hookspecs import hookimpl


@hookimpl
def fd_routing_store():
    return spec({name!r})
"""


def install(site: Path) -> None:
    """Makes a distribution that offers all stores of the tables."""
    metadata = site / "fd_routing_broken-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fd-routing-broken\nVersion: 1.0\n")
    lines = ["[fastdeploy.routing_store_plugins]"]
    for name in (*SOUND, *BROKEN):
        (site / f"plugin_of_{name}.py").write_text(PLUGIN.format(name=name))
        lines.append(f"{name} = plugin_of_{name}")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run_kit(site: Path, folder: Path, tests: list[str]) -> dict[tuple[str, str], str]:
    """Runs tests of the kit, given as ``store::test`` or ``store``, in another process; returns how each went."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 120\n")
    report = folder / "report.xml"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(HERE)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(folder / "pytest.ini")]
    command += [f"--basetemp={folder / 'tmp'}", f"--junitxml={report}", "--tb=line"]
    ids = [f"{HERE / 'suite_of_stores.py'}::Test_{test}" for test in tests]
    done = subprocess.run([*command, *ids], env=environ, capture_output=True, text=True, cwd=folder, timeout=600)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ET.parse(report).iter("testcase"):
        store = case.get("classname", "").rpartition(".")[2].removeprefix("Test_")
        went = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[store, case.get("name", "")] = went.pop() if went else "passed"
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[tuple[str, str], str]:
    """How each test went for each store, by two processes side by side."""
    site = tmp_path_factory.mktemp("site")
    install(site)
    wanted = [[], []]
    for number, (name, entry) in enumerate(BROKEN.items()):
        wanted[number % 2] += [f"{name}::{test}" for test in (*entry.caught_by, *entry.passes)]
    for number, name in enumerate(SOUND):
        wanted[number % 2].append(name)
    folder = tmp_path_factory.mktemp("kit")
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run_kit, site, folder / str(number), tests) for number, tests in enumerate(wanted)]
        return {key: value for run in runs for key, value in run.result().items()}


@pytest.mark.parametrize("store", SOUND)
def test_sound_store_passes_every_test(outcomes, store):
    tests = set(BackendConformance.kit_tests)
    assert {test: outcomes.get((store, test)) for test in tests} == dict.fromkeys(tests, "passed")


@pytest.mark.parametrize("store", BROKEN)
def test_fault_is_caught_by_the_test_meant_for_it(outcomes, store):
    entry = BROKEN[store]
    expected = {**dict.fromkeys(entry.caught_by, "failure"), **dict.fromkeys(entry.passes, "passed")}
    assert {test: outcomes.get((store, test)) for test in expected} == expected


def test_every_test_of_the_raw_store_catches_some_fault():
    """No test of the kit is decoration. Those of whole rollouts test our own ``RoutingStore`` over the store."""
    caught = {test for entry in BROKEN.values() for test in entry.caught_by}
    ours = {name for name, test in BackendConformance.kit_tests.items() if test.__module__.endswith(".rollouts")}
    assert set(BackendConformance.kit_tests) - ours - caught == {"test_kit_is_whole"}
