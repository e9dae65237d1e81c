"""Mooncake's module: found, imported and started with its traps out of the way.

It reads its settings from the environment, some when it is imported, some whenever an engine is made. Ours are set for
just that, and put back to what they were afterwards, since another user of Mooncake in this process, or in its
children, has reasons of its own. Only ``MC_TCP_*`` stay, where its TCP mode is used: they are read at every transfer.

* It falls back from RDMA to TCP without a word. ``MC_FORCE_HCA`` and ``MC_FORCE_TCP`` are what it obeys.
* ``MC_LOG_DIR`` ends the process the first time that an engine is made.
* Its logs ignore glog's own variable.
* Its limits of time are half a minute and more.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import sys
import threading
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any, Final

from . import rdma_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..config import RdmaConfig

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")

_MODULE: Final = "mooncake.engine"
_DISTRIBUTION: Final = "mooncake-transfer-engine"  # what the names of all builds begin with
RDMA: Final = "rdma"
TCP: Final = "tcp"

_NEEDED: Final = (
    "initialize",
    "get_rpc_port",
    "batch_register_memory",
    "batch_unregister_memory",
    "batch_transfer_async_read",
    "transfer_check_status",
)
_INSTALL: Final = (
    "pip install 'fastdeploy-routing-plugins[rdma]', or mooncake-transfer-engine on a host with CUDA (not both)"
)
_DEFAULTS: Final = {
    "MC_LOG_LEVEL": "ERROR",
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "2",
    "MC_TRANSFER_TIMEOUT": "5",
}
_DROPPED: Final = (
    "MC_LOG_DIR",
    "MC_FORCE_TCP",
    "MC_FORCE_HCA",
    "MC_FORCE_MNNVL",
    "MC_INTRA_NVLINK",
    "MC_INTRANODE_NVLINK",
)
_TCP_DEFAULTS: Final = {"MC_TCP_STATUS_TIMEOUT_SEC": "2", "MC_TCP_PROGRESS_TIMEOUT_SEC": "3"}
_lock = threading.Lock()


def available(config: RdmaConfig) -> str:
    """Says why transport ``rdma`` cannot be used by this process, with the cure; empty if it can."""
    try:
        load()
    except ImportError as err:
        return str(err)
    return "" if protocol(config) else rdma_devices.why_none(rdma_devices.devices(), config.device)


def protocol(config: RdmaConfig) -> str:
    """Returns ``RDMA`` where there is a device, ``TCP`` where there is none and that is allowed, else nothing."""
    if not rdma_devices.why_none(rdma_devices.devices(), config.device):
        return RDMA
    return TCP if config.allow_tcp else ""


def builds() -> list[tuple[str, str]]:
    """Returns name and version of each distribution of Mooncake that is installed."""
    found = [(each.name or "", each.version) for each in distributions()]
    return [each for each in found if each[0].lower().replace("_", "-").startswith(_DISTRIBUTION)]


def reads_in_order(chosen: str) -> bool:
    """Whether the bytes of one transfer are read from the first to the last, as ``rdma_blocks`` may rely on.

    Mooncake 0.3 in TCP mode does (``TcpTransport::prepareTransfer``: a request is one slice, which one session sends
    chunk by chunk), on processors that keep loads and stores in order. Its successor TENT need not.
    """
    return (
        chosen == TCP
        and platform.machine().lower() in ("x86_64", "amd64")
        and not any(name in os.environ for name in ("MC_USE_TENT", "MC_USE_TEV1"))
        and {version.split(".")[:2] == ["0", "3"] for _, version in builds()} == {True}
    )


def load() -> Any:
    """Returns the class of Mooncake's engines.

    Raises:
        ImportError: it cannot be imported, or is another package of that name, or too old; says what to do.
    """
    with _lock, _environment({}) if _MODULE not in sys.modules else contextlib.nullcontext():
        try:
            module = importlib.import_module(_MODULE)
        except ImportError as err:
            raise ImportError(_diagnosis(err), name="mooncake") from err
    engine = getattr(module, "TransferEngine", None)
    missing = [name for name in _NEEDED if not hasattr(engine, name)]
    if missing:
        raise ImportError(
            f"the installed Mooncake has no {missing[0]!r}: it is too old, or another build; {_INSTALL}",
            name="mooncake",
        )
    return engine


def _diagnosis(err: ImportError) -> str:
    """Says what a failed import means."""
    if isinstance(err, ModuleNotFoundError) and (err.name or "").startswith("mooncake"):
        return f"Mooncake Transfer Engine is not installed: {_INSTALL}"
    text = str(err)
    if "libnuma" in text or "libcurl" in text:
        return f"Mooncake Transfer Engine lacks a library ({text:.200}): apt-get install libnuma1 libcurl4"
    if "libibverbs" in text or "librdmacm" in text:
        return (
            "Mooncake Transfer Engine does not find libibverbs: install it, on Debian and Ubuntu by "
            "`apt-get install libibverbs1 librdmacm1` (ibverbs-providers has the drivers)"
        )
    if "libcud" in text or "libnv" in text:
        return (
            f"the installed Mooncake is a build for CUDA, and CUDA is not here ({text:.200}): "
            "pip uninstall mooncake-transfer-engine, then pip install mooncake-transfer-engine-non-cuda"
        )
    return f"Mooncake Transfer Engine cannot be imported: {text:.300}"


def start(host: str, chosen: str, device: str) -> Any:
    """Makes an engine that other hosts reach under a name of this one.

    Args:
        host: Address of this host. The engine listens on all of them, whatever this says.
        chosen: ``RDMA`` or ``TCP``.
        device: RDMA devices to use, by name, parted by commas; empty: all.

    Raises:
        ImportError: see ``load``.
        OSError: it does not start.
    """
    make = load()
    wanted = {"MC_FORCE_HCA": "1"} if chosen == RDMA else {"MC_FORCE_TCP": "1"}
    if ":" in host:
        wanted["MC_USE_IPV6"] = "1"
    if chosen == TCP:
        for name, value in _TCP_DEFAULTS.items():
            os.environ.setdefault(name, value)
    with _lock, _environment(wanted):
        engine = make()
        result = engine.initialize(host, "P2PHANDSHAKE", chosen, device)
    if result != 0:
        raise OSError(f"Mooncake's engine does not start (protocol {chosen}, device {device or 'any'}: {result})")
    return engine


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Has Mooncake's variables in the environment for a ``with`` block. What the user set stands where it can."""
    changes: dict[str, str | None] = dict.fromkeys(_DROPPED)
    changes.update({name: value for name, value in _DEFAULTS.items() if name not in os.environ})
    changes.update(wanted)
    before = {name: os.environ.get(name) for name in changes}
    if before["MC_LOG_DIR"] is not None:
        _log.warning("MC_LOG_DIR is left out for Mooncake's engine, which would end this process over it")
    _change(changes)
    try:
        yield
    finally:
        _change(before)


def _change(changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        if os.environ.get(name) == value:
            continue  # the environment is shared with C code that reads it in other threads: not touched in vain
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
