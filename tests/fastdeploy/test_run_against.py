"""``run_against`` tells good trees from bad ones. On real trees it is run by hand; here, on the stand-in of 2.6."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run_against(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "run_against"), str(tree), "--method", "fork", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_scenario_that_holds_is_a_line_and_success():
    done = run_against(HERE / "standin/e", "-k", "layer by layer arrives as one rollout")
    assert (done.returncode, "1 of 1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_without_our_package_the_same_scenario_fails():
    done = run_against(HERE / "standin/e", "--bare", "-k", "an unknown store stops the start with our message")
    assert (done.returncode, "FAILED fork" in done.stdout) == (1, True), done.stdout + done.stderr


def test_the_family_and_the_commit_are_shown():
    done = run_against(HERE / "standin/e", "-k", "without the variable nothing of ours is loaded")
    assert done.stdout.startswith("e: family E, no git tree"), done.stdout + done.stderr


def test_no_scenario_at_all_is_wrong_usage_and_lists_what_there_is():
    done = run_against(HERE / "standin/e", "-k", "nothing is called so")
    assert (done.returncode, "no scenario matches 'nothing is called so'; there are:" in done.stderr) == (2, True)
    assert "\n  layer by layer arrives as one rollout\n" in done.stderr


def test_a_folder_without_fastdeploy_is_refused(tmp_path):
    assert "holds no FastDeploy of family D or E" in run_against(tmp_path).stderr
