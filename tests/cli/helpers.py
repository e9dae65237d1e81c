"""Runs the real command in a real process, and fabricates installed distributions."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from click.testing import CliRunner

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

COMMAND = Path(sys.executable).with_name("fd-routing")
SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=range(1, 7))
GROUP = "fastdeploy.routing_store_plugins"

GOOD_PLUGIN = """
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import Capability, StoreSpec

def config():
    from dataclasses import dataclass, field

    @dataclass(frozen=True, slots=True)
    class Config:
        path: str
        token: str = field(default="hush", metadata={"secret": True, "doc": "[bold]key[/bold]"})

    return Config

def create(context):
    from fastdeploy_routing_plugins.stores.noop.backend import NoopBackend

    return NoopBackend()

@hookimpl
def fd_routing_store():
    return StoreSpec(name=NAME, api_version=(1, 0), summary="made up", load_config=config, create=create,
                     capabilities=Capability.READ, install_hint="pip install it", host_keys={"there": "path"})
"""


def environment(**more: str) -> dict[str, str]:
    """The test's environment without the variables that choose a store, or change how output looks."""
    # Unbuffered output hides what happens when it is written at exit; readline sets a terminal's size for children.
    changing = {"PYTHONUNBUFFERED", "COLUMNS", "LINES"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FD_") and name not in changing}
    return {**kept, **more}


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``fd-routing`` and returns how it ended."""
    env = environment(**options.pop("env", {}))
    return subprocess.run(
        [COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, encoding="utf-8", **options
    )


def invoke(*arguments: str, input: str | None = None) -> Result:
    """Runs the command in this process, which is quicker; for what does not depend on the process."""
    return CliRunner().invoke(cli, arguments, input=input, catch_exceptions=False)


def invoke_json(*arguments: str) -> dict[str, Any]:
    """Runs the command in this process and returns its document."""
    document: dict[str, Any] = json.loads(invoke(*arguments, "--json").stdout)
    return document


@contextlib.contextmanager
def started(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Runs ``fd-routing`` beside the test, with the signals of a terminal, whatever the tests run under (nohup, say).

    It does not outlive the block, so that a test that fails leaves no process to one that does not.
    """
    command = ["env", "--default-signal=HUP,INT,TERM", COMMAND, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(**env), text=True, encoding="utf-8", **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def run_json(*arguments: str, **options: Any) -> dict[str, Any]:
    """Runs ``fd-routing ... --json`` and returns the document; anything else on stdout is an error."""
    document: dict[str, Any] = json.loads(run(*arguments, "--json", **options).stdout)
    return document


def routing(tokens: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns random routing of distinct experts, int64 ``[6, tokens, 4]``."""
    rng = np.random.default_rng(seed)
    return np.argsort(rng.random((6, tokens, 64)), axis=-1)[..., :4]


def install(
    folder: Path,
    name: str,
    *,
    code: str | None = GOOD_PLUGIN,
    distribution: str | None = None,
    version: str = "1.2",
    target: str | None = None,
    metadata: str | bytes | None = None,
    entry_points: str | bytes | None = None,
) -> dict[str, str]:
    """Fabricates an installed distribution that offers store ``name``; returns the environment that shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    distribution = distribution or f"fd-routing-{name}"
    module = f"plugin_{distribution.replace('-', '_').replace('.', '_')}"
    if code is not None:
        (folder / f"{module}.py").write_text(code.replace("NAME", repr(name)))
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    metadata = (
        metadata if metadata is not None else f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    entry_points = entry_points if entry_points is not None else f"[{GROUP}]\n{name} = {target or module}\n"
    for file, text in (("METADATA", metadata), ("entry_points.txt", entry_points)):
        (info / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return {"PYTHONPATH": str(folder)}
