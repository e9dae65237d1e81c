"""How long a finished request holds the engine up, in a real FastDeploy 2.6: with this package against without it.

    python benchmarks/fastdeploy_blocked.py PATH

PATH is a FastDeploy tree of family E (2.6), which runs as in ``tests/fastdeploy/run_against``; that says what must be
installed. The clock runs around FastDeploy's own ``TokenProcessor._finalize_routing``, which its thread for tokens
calls for each request that ends: gathering the rows out of the shared buffer, and handing them to the store, which is
``local``, fused. uint8 ``[45 layers, tokens, top-8]``; the request's blocks lie anywhere in the buffer.

Both take turns, each in an engine process of its own, new for every round. Between requests is enough time for the
store to finish the one before, with a little work every few milliseconds, as an engine has. FastDeploy alone does not
start with NumPy 2, so this needs NumPy 1.26. In its favour, ``max_model_len`` is the request's own length, so that its
store pads nothing, and its logs go to a file in memory. What our engines handed over is read back and compared.

Gates: 2.8 MiB at least 6 times less, 30 MiB at least 10 times less. Ends with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import Claim, Samples, show

from fastdeploy_routing_plugins import open_store

REAL = Path(__file__).resolve().parents[1] / "tests/fastdeploy/real"
sys.path.insert(0, str(REAL))

from engines import Engine, Launcher  # noqa: E402
from settings import Settings  # noqa: E402
from trees import Tree, missing_packages  # noqa: E402

LAYERS, TOP_K, EXPERTS = 45, 8, 128
BLOCK = 64
SIZES = {2.8: (6.0, 20, 0.15), 30.0: (10.0, 6, 0.8)}  # MiB: gate, requests a round, seconds between them
OURS, THEIRS = "with fastdeploy-routing-plugins", "FastDeploy alone"


def settings_for(mib: float, folder: Path) -> Settings:
    """Returns an engine whose buffer holds one request of a size twice."""
    tokens = round(mib * (1 << 20) / LAYERS / TOP_K)
    replay = {"routing_store_type": "local", "local_store_dir": str(folder), "use_fused_put": True}
    return Settings(
        replay=replay,
        experts=EXPERTS,
        layers=LAYERS,
        top_k=TOP_K,
        max_model_len=tokens,
        port=20_000 + os.getpid() % 9_999,
        blocks=2 * -(-tokens // BLOCK),
        block_size=BLOCK,
    )


def run_round(launcher: Launcher, settings: Settings, number: int, place: Path, *, ours: bool) -> list[float]:
    """Runs one engine; returns microseconds for each request."""
    mib = settings.max_model_len * LAYERS * TOP_K / (1 << 20)
    _, count, pause = min(SIZES.items(), key=lambda item: abs(item[0] - mib))[1]
    limits = {"arena_bytes": 512 << 20, "arena_dir": str(place)}
    engine = Engine(launcher, {"FD_ROUTING_WRITER_CONFIG": json.dumps(limits)})
    engine.start(settings)
    prefix = f"bench{number}"
    answer = engine.do("measure", prefix=prefix, tokens=settings.max_model_len, count=count + 2, pause=pause)
    engine.end()
    if ours:
        require_exact(settings, f"{prefix}-{count + 1}:0:0:0")
    return [ns / 1e3 for ns in answer["ns"][2:]]  # two to warm up


def require_exact(settings: Settings, rollout_id: str) -> None:
    """Reads a rollout back.

    Raises:
        SystemExit: It is not what was handed over, so that nothing was measured.
    """
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": settings.replay["local_store_dir"]}}
    with open_store(config) as store:
        routing = store.get(rollout_id, timeout=60.0).routing
        if not np.array_equal(routing.transpose(1, 0, 2), settings.routing(1, settings.max_model_len)):
            raise SystemExit("what was read back is not what was handed over: the measurement is void")
    gc.collect()


def profiled(launcher: Launcher, settings: Settings, place: Path) -> str:
    """Returns where our time goes."""
    limits = {"arena_bytes": 512 << 20, "arena_dir": str(place)}
    engine = Engine(launcher, {"FD_ROUTING_WRITER_CONFIG": json.dumps(limits)})
    engine.start(settings)
    table: str = engine.do("profile", prefix="profile", tokens=settings.max_model_len, count=10, pause=0.3)["table"]
    engine.end()
    return table


def main() -> int:
    """Measures, and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, metavar="PATH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="show where our time goes instead")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="for stores and shared memory")
    options = parser.parse_args()
    tree = Tree.at(options.tree)
    if tree.family != "e":
        parser.error(f"{tree.path} is of family {tree.family.upper()}, this is about E")
    if missing := missing_packages():
        parser.error(f"not installed: {', '.join(missing)}; pip install -r {REAL / 'requirements.txt'}")
    if int(np.__version__.partition(".")[0]) > 1 and not options.profile:
        parser.error(f"FastDeploy alone does not start with NumPy {np.__version__}; pip install 'numpy<2'")
    samples = {mib: Samples.of((THEIRS, OURS)) for mib in SIZES}
    with tempfile.TemporaryDirectory(prefix="fd-blocked-", dir=options.folder) as name:
        place = Path(name)
        launchers = {
            what: Launcher(tree, "fork", tree.environ(place, plugin=what == OURS), place)
            for what in ((OURS,) if options.profile else (OURS, THEIRS))
        }
        try:
            if options.profile:
                for mib in SIZES:
                    print(profiled(launchers[OURS], settings_for(mib, place / "profile"), place))
                return 0
            for number in range(options.rounds):
                for mib in SIZES:
                    for what in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
                        with tempfile.TemporaryDirectory(prefix="store-", dir=place) as store:
                            settings = settings_for(mib, Path(store) / "s")
                            took = run_round(launchers[what], settings, number, place, ours=what == OURS)
                        samples[mib].add(what, took)
        finally:
            for launcher in launchers.values():
                launcher.remove()
    return report(tree, samples, as_json=options.json)


def report(tree: Tree, samples: dict[float, Samples], *, as_json: bool) -> int:
    """Shows what was measured; returns the exit status."""
    measures, claims = [], []
    for mib, (gate, _, _) in SIZES.items():
        measures += samples[mib].measures(f"{mib:g} MiB", "us", THEIRS)
        factor = samples[mib].median(THEIRS) / samples[mib].median(OURS)
        claims.append(Claim(f"{mib:g} MiB: how many times less the engine is held up", factor, ">=", gate, "x"))
        paired = [
            statistics.median(theirs) / statistics.median(ours)
            for theirs, ours in zip(samples[mib].rounds[THEIRS], samples[mib].rounds[OURS], strict=True)
        ]
        claims.append(Claim(f"{mib:g} MiB: in the worst round", min(paired), ">=", gate, "x", gate=False))
    facts: dict[str, Any] = {"FastDeploy": tree.commit, "NumPy": np.__version__, "CPUs": os.cpu_count()}
    show(measures, claims, facts, as_json=as_json)
    return 0 if all(claim.holds for claim in claims if claim.gate) else 1


if __name__ == "__main__":
    sys.exit(main())
