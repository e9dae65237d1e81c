"""Runs the kit in a process of its own over stores of a distribution that is made for the occasion."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).parent


def install(site: Path, distribution: str, stores: dict[str, str]) -> None:
    """Makes a distribution below ``site`` with one plugin module for each store, given by its source."""
    metadata = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = ["[fastdeploy.routing_store_plugins]"]
    for name, source in stores.items():
        (site / f"plugin_of_{name}.py").write_text(source)
        lines.append(f"{name} = plugin_of_{name}")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run_kit(site: Path, folder: Path, suite: str, tests: list[str]) -> dict[tuple[str, str], str]:
    """Runs tests of a suite beside this file; returns "passed" or what was wrong, by store and test.

    Args:
        site: Where the distributions are.
        folder: A new folder for the run.
        suite: The suite's file, with one class ``Test_{store}`` for each store.
        tests: ``store::test`` each, or ``store`` for all tests of the store.
    """
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 120\n")
    report = folder / "report.xml"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(HERE)]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(folder / "pytest.ini")]
    command += [f"--basetemp={folder / 'tmp'}", f"--junitxml={report}", "--tb=line"]
    # What broken stores leave behind is no surprise; pytest's look at it runs into a fault of Python 3.11's parser.
    command += ["-p", "no:unraisableexception", "-p", "no:threadexception"]
    ids = [f"{HERE / suite}::Test_{test}" for test in tests]
    done = subprocess.run([*command, *ids], env=environ, capture_output=True, text=True, cwd=folder, timeout=600)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ET.parse(report).iter("testcase"):
        store = case.get("classname", "").rpartition(".")[2].removeprefix("Test_")
        marks = [child for child in case if child.tag in ("failure", "error", "skipped")]
        found[store, case.get("name", "")] = f"{marks[0].tag}: {marks[0].get('message')}" if marks else "passed"
    return found
