"""Checks what users install: builds the wheel, uses it in empty environments, proves and then breaks a third party.

Run by ``make test`` with the development environment's Python; leaves nothing behind but ``dist/``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "fd-routing-sqlite"
GROUP = "fastdeploy.routing_store_plugins"
ENTRY_POINTS = f"""
from importlib.metadata import entry_points

for point in entry_points(group={GROUP!r}):
    assert point.load().fd_routing_store().name == point.name
"""
ROUND_TRIP = """
import sys
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_store

config = {"routing_store_type": sys.argv[1], "routing_store_config": {sys.argv[2]: sys.argv[3]}}
routing = np.arange(3 * 5 * 2, dtype=np.int64).reshape(3, 5, 2)
with open_store(config, schema=RoutingSchema(num_experts=64, top_k=2, layer_ids=range(1, 4))) as store:
    store.put("wheel:0:0:0", routing)
    assert np.array_equal(store.get("wheel:0:0:0").routing, routing)
assert "paddle" not in sys.modules
"""


class CheckError(Exception):
    """A check failed."""


def main() -> int:
    """Runs every check; returns the process's exit code."""
    try:
        wheel = build()
        check_contents(wheel)
        with tempfile.TemporaryDirectory(prefix="fd-routing-wheel-") as folder:
            check_wheel(Path(folder), wheel)
            check_third_party(Path(folder), wheel)
    except CheckError as err:
        print(f"FAILED: {err}", file=sys.stderr)
        return 1
    print("wheel: all checks passed")
    return 0


def run(*command: str | Path, code: int = 0, cwd: Path | None = None) -> str:
    """Runs a command away from the source tree; returns its stdout.

    Raises:
        CheckError: it ended with another code than ``code``.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FD_", "COV"))}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd or tempfile.gettempdir(), env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != code:
        raise CheckError(f"{' '.join(words)}\nended with {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return done.stdout


def step(text: str) -> None:
    """Says what was checked."""
    print(f"wheel: {text}", flush=True)


def expect(condition: bool, problem: str) -> None:
    """Raises CheckError unless the condition holds."""
    if not condition:
        raise CheckError(problem)


def build() -> Path:
    """Builds sdist and, from it, the wheel; returns the wheel's path."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    wheels = list(dist.glob("*.whl"))
    expect(len(wheels) == 1, f"expected one wheel, found {wheels}")
    step(f"{wheels[0].name}, {wheels[0].stat().st_size / 1024:.0f} KiB, built from the sdist")
    return wheels[0]


def check_contents(wheel: Path) -> None:
    """The wheel holds the package, its licence and its entry points, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(n for n in names if n.endswith(".dist-info/entry_points.txt"))).decode()
    foreign = [n for n in names if not n.startswith("fastdeploy_routing_plugins")]
    expect(not foreign, f"the wheel holds {foreign}")
    for wanted in ("fastdeploy_routing_plugins/py.typed", "fastdeploy_routing_plugins/testing/__init__.py"):
        expect(wanted in names, f"the wheel lacks {wanted}")
    expect(any(n.endswith("/licenses/LICENSE") for n in names), "the wheel lacks the licence")
    for line in ("fd-routing = ", f"[{GROUP}]", "local = ", "noop = "):
        expect(line in entry_points, f"entry_points.txt lacks {line!r}:\n{entry_points}")
    step("contents, licence, py.typed and entry points are there")


def new_environment(folder: Path, *packages: str | Path) -> Path:
    """Makes a virtual environment that holds exactly these packages and what they need; returns its ``bin``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", *packages)
    return folder / "bin"


def check_wheel(folder: Path, wheel: Path) -> None:
    """The wheel alone: the command, the entry points, a round trip; none of the extras is needed."""
    bin_ = new_environment(folder / "empty", wheel)
    run(bin_ / "fd-routing", "--help")
    stores = json.loads(run(bin_ / "fd-routing", "list", "--json"))
    for name in ("local", "noop"):
        expect(name in json.dumps(stores), f"`fd-routing list --json` lacks {name}: {stores}")
    run(bin_ / "python", "-c", ENTRY_POINTS)
    run(bin_ / "python", "-c", ROUND_TRIP, "local", "store_dir", folder / "store")
    step("in an empty environment: fd-routing, entry points, a round trip through local")


def check_third_party(folder: Path, wheel: Path) -> None:
    """The example backend proves itself with the kit; broken, it disturbs nobody and is explained."""
    example = folder / "fd-routing-sqlite"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist", "build", ".*_cache", ".hypothesis")
    shutil.copytree(EXAMPLE, example, ignore=ignored)
    bin_ = new_environment(folder / "third", wheel, f"{example}[test]")
    summary = run(bin_ / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=example).strip()
    step(f"fd-routing-sqlite runs the conformance kit: {summary.splitlines()[-1]}")
    run(bin_ / "python", "-c", ROUND_TRIP, "sqlite", "path", folder / "store.sqlite3")
    options = json.dumps({"path": str(folder / "store.sqlite3")})
    run(bin_ / "fd-routing", "check", "sqlite", "--config", options)
    run(bin_ / "fd-routing", "check", "sqlite", "--config", f"@{ROOT / 'examples' / 'engine' / 'sqlite.json'}")
    run(bin_ / "fd-routing", "try", "--store", "sqlite", "--config", options)

    where = run(bin_ / "python", "-c", "import fd_routing_sqlite.plugin as p; print(p.__file__)").strip()
    with open(where, "a") as plugin:
        plugin.write("\nimport a_module_that_is_not_there\n")
    run(bin_ / "fd-routing", "list")
    run(bin_ / "python", "-c", ROUND_TRIP, "local", "store_dir", folder / "store-2")
    said = run(bin_ / "fd-routing", "check", "sqlite", "--json", code=1)
    for word in ("a_module_that_is_not_there", "fd-routing-sqlite"):
        expect(word in said, f"`fd-routing check sqlite` does not mention {word}: {said}")
    step("with fd-routing-sqlite broken, list and local work and check names the fault")


if __name__ == "__main__":
    raise SystemExit(main())
