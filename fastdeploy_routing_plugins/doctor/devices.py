"""RDMA devices, the memory that may be locked for them, libibverbs and Mooncake."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.cli.output import show_bytes
from fastdeploy_routing_plugins.doctor.lines import Kind, Line
from fastdeploy_routing_plugins.stores.rdma.transport import rdma_devices, rdma_env

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastdeploy_routing_plugins.doctor.case import Case
    from fastdeploy_routing_plugins.stores.rdma.transport.rdma_devices import Device

_KINDS = {
    "mlx": "NVIDIA (Mellanox)",
    "rxe": "Soft-RoCE, in software",
    "siw": "iWARP in software",
    "bnxt": "Broadcom",
    "irdma": "Intel",
    "hfi": "Omni-Path",
    "efa": "AWS",
    "erdma": "Alibaba Cloud",
    "hns": "Huawei",
}
_IPC_LOCK = 14  # bit of CAP_IPC_LOCK, see capabilities(7)
_MEMLOCK_CURE = "ulimit -l unlimited; in a container --ulimit memlock=-1 or --cap-add=IPC_LOCK; systemd: LimitMEMLOCK"


def check_devices(case: Case) -> Iterator[Line]:
    """Looks at the RDMA devices of this host and the state of their ports."""
    yield from device_lines(rdma_devices.devices(), case)


def device_lines(found: Sequence[Device], case: Case) -> Iterator[Line]:
    """Says what devices there are, and whether the configured store can use one.

    Args:
        found: From ``rdma_devices.devices``.
        case: What is looked at.
    """
    config = case.rdma
    for device in found:
        kind = next((text for start, text in _KINDS.items() if device.name.startswith(start)), "RDMA")
        ports = ", ".join(f"port {p.number} {p.state or 'unknown'}, {p.link}, {p.rate}" for p in device.ports)
        problem = "" if device.usable else "; this process may not open it"
        healthy = device.active and device.usable
        yield Line(
            "rdma devices", "good" if healthy else "info", f"{device.name}, {kind}: {ports or 'no port'}{problem}"
        )
    why = rdma_devices.diagnosis(tuple(found), "" if config is None else config.device)
    if why is None:
        return
    text, cure = why
    if not found and (config is None or config.transport in ("auto", "shm", "tcp")):
        use = "" if config is None else "; transport tcp serves other hosts"
        yield Line("rdma devices", "info", f"none on this host{use}")
    else:
        yield Line("rdma devices", _severity(case, bool(found)), text, cure)


def _severity(case: Case, hardware: bool) -> Kind:
    """Returns how bad it is that RDMA cannot be used."""
    config = case.rdma
    if config is None or config.transport in ("shm", "tcp"):
        return "info"
    if config.transport == "rdma":
        return "info" if config.allow_tcp else "bad"
    return "warn" if hardware else "info"


# --- memory that may be locked --------------------------------------------------------------------------------------


def check_memlock(case: Case) -> Iterator[Line]:
    """Looks at how much memory this process may lock, which RDMA does with a whole arena."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield memlock_line(
        None if limit == resource.RLIM_INFINITY else limit, _may_lock(), bool(rdma_devices.devices()), case
    )


def memlock_line(limit: int | None, capable: bool, hardware: bool, case: Case) -> Line:
    """Says whether a limit is enough.

    Args:
        limit: Bytes; None: no limit.
        capable: Whether this process may pass it.
        hardware: Whether there is an RDMA device.
        case: What is looked at.
    """
    if limit is None:
        return Line("memlock", "good", "no limit")
    if capable:
        return Line("memlock", "good", f"{show_bytes(limit)}, which this process may pass (CAP_IPC_LOCK)")
    kind: Kind = _severity(case, hardware) if hardware else "info"
    why = "RDMA locks whole arenas" if kind != "info" else "enough without RDMA"
    return Line("memlock", kind, f"{show_bytes(limit)}: {why}", _MEMLOCK_CURE if kind != "info" else "")


def _may_lock() -> bool:
    try:
        text = Path("/proc/self/status").read_text("ascii", "replace")
        (mask,) = [line.split()[1] for line in text.splitlines() if line.startswith("CapEff:")]
        return bool(int(mask, 16) >> _IPC_LOCK & 1)
    except (OSError, ValueError, IndexError):
        return False


# --- libibverbs and Mooncake ----------------------------------------------------------------------------------------


def check_mooncake(case: Case) -> Iterator[Line]:
    """Looks whether libibverbs and Mooncake can be loaded; in a process of its own, which they may end."""
    hardware = bool(rdma_devices.devices())
    builds = [" ".join(each) for each in rdma_env.builds()]
    tried = _tried(case.timeout * 0.8)
    case.works = case.works and "verbs" in tried  # what ended that process would end this one
    yield from mooncake_lines(tried, builds, hardware, case)


def _tried(seconds: float) -> dict[str, Any]:
    """Loads both in a child process; returns what it says, or how it ended."""
    env = {name: value for name, value in os.environ.items() if name != "MC_LOG_DIR"}
    command = [sys.executable, "-m", "fastdeploy_routing_plugins.doctor.loading"]
    try:
        ended = subprocess.run(  # noqa: S603 - our own module
            command, env={**env, "MC_LOG_LEVEL": "ERROR"}, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"mooncake": f"its import did not end within {seconds:g} s"}
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
        return answer if isinstance(answer, dict) else {}
    except (ValueError, IndexError):
        if ended.returncode < 0:
            return {"mooncake": f"its import ends the process ({signal.strsignal(-ended.returncode)})"}
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        return {"mooncake": f"its import fails: {said[-1] if said else 'nothing is said why'}"}


def mooncake_lines(tried: dict[str, Any], builds: Sequence[str], hardware: bool, case: Case) -> Iterator[Line]:
    """Says what became of loading libibverbs and Mooncake.

    Args:
        tried: ``verbs`` and ``mooncake``: why they cannot be loaded; empty or missing: they can, or nobody knows.
        builds: The distributions that are installed.
        hardware: Whether there is an RDMA device.
        case: What is looked at.
    """
    needed = _needed(case, hardware)
    verbs = tried.get("verbs")
    if verbs:
        cure = "apt-get install libibverbs1 ibverbs-providers" if needed != "info" else ""
        yield Line("libibverbs", needed, f"cannot be loaded: {verbs}", cure)
    elif verbs is not None:
        yield Line("libibverbs", "good", "can be loaded")
    why = str(tried.get("mooncake", "it was not tried"))
    if len(builds) > 1:
        yield Line(
            "mooncake", "warn", f"{' and '.join(builds)} overwrite each other", f"pip uninstall {builds[0].split()[0]}"
        )
    if not builds and why:
        text, cure = "not installed", "pip install 'fastdeploy-routing-plugins[rdma]'"
        yield Line("mooncake", needed, text, cure if needed != "info" else "")
    elif why:
        yield Line("mooncake", "warn" if needed == "info" else needed, f"{', '.join(builds)}: {why}")
    else:
        kind = "for hosts without CUDA" if "non-cuda" in " ".join(builds) else "for CUDA"
        yield Line("mooncake", "good", f"{', '.join(builds) or 'of unknown version'}, the build {kind}")


def _needed(case: Case, hardware: bool) -> Kind:
    """Returns how bad it is that Mooncake cannot be used: also its TCP mode needs it."""
    return "bad" if case.rdma is not None and case.rdma.transport == "rdma" else _severity(case, hardware)
