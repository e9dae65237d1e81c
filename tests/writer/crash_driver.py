"""Runs cases of the crash matrix, one for each line of its input, in a process that tests can put where they like."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from .crash_cases import Case
from .stores import install, on_path


def main(base: Path, mounts: bool, pause: float) -> None:
    """Answers lines ``KIND SEED`` with JSON."""
    plugins = install(base / "plugins")
    with on_path(plugins):
        for line in sys.stdin:
            kind, seed = line.split()
            try:
                answer = Case(kind, int(seed), base, plugins, mounts=mounts, pause=pause).run()
            except Exception:  # noqa: BLE001 - the test shows it
                answer = {"problems": [traceback.format_exc()], "counts": {}}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "mounts", float(sys.argv[3]))
