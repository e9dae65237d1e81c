"""Runs a quick part of the tests on the oldest and the newest other supported Python that this machine has.

    other_pythons.py PYTEST-ARGUMENTS...

Looks on PATH and among pyenv's versions. Environments are kept in ``.venv-others/`` for the next run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-others"
COMPILED = ("fastdeploy_routing_plugins", "tests")
SUPPORTED = [(3, minor) for minor in range(10, 14)]
VERSION = "import sys; print(*sys.version_info[:2])"


def find() -> dict[tuple[int, int], str]:
    """Returns a working interpreter for each supported version but our own."""
    found: dict[tuple[int, int], str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in SUPPORTED:
        name = f"python{version[0]}.{version[1]}"
        candidates = [shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/*/bin/{name}")))]
        for candidate in candidates:
            if version != sys.version_info[:2] and candidate and answers(candidate) == version:
                found[version] = candidate
                break
    return found


def answers(python: str) -> tuple[int, ...]:
    """Returns the version that an interpreter states, or () if it does not run."""
    try:
        done = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(map(int, done.stdout.split()))


def environment(version: tuple[int, int], python: str) -> Path:
    """Returns the interpreter of an environment with the package and what its tests need, paddle excepted."""
    folder = HOME / f"{version[0]}.{version[1]}"
    inside = folder / "bin" / "python"
    stamp = folder / "installed"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(inside), "install", "--quiet"]
        subprocess.run([*pip, "-e", f"{ROOT}[testing]", "safetensors>=0.4.5", "pytest-xdist>=3.6"], check=True)
        stamp.touch()
    return inside


def main() -> int:
    """Returns 0 if the tests pass on the oldest and the newest of the other Pythons."""
    found = find()
    found = {version: found[version] for version in sorted({min(found), max(found)})} if found else {}
    print(f"other Pythons found: {', '.join(f'{a}.{b}' for a, b in found) or 'none'}", flush=True)
    failed = []
    for version, python in found.items():
        inside = environment(version, python)
        print(f"Python {version[0]}.{version[1]}: {python}", flush=True)
        # As in `make unit`: hundreds of processes need not compile everything anew.
        subprocess.run([str(inside), "-m", "compileall", "-q", *COMPILED], cwd=ROOT, check=False)
        command = [str(inside), "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    for version in failed:
        print(f"FAILED on Python {version[0]}.{version[1]}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
