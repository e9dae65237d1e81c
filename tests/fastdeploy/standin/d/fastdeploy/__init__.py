"""Stand-in for FastDeploy: the same module paths, names, signatures and order of calls, and its faults."""

from pathlib import Path

__path__.append(str(Path(__file__).parents[2] / "common"))

import fastdeploy.reasoning

__version__ = "0.0-standin"
