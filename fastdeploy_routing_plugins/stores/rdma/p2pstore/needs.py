"""What has to be installed for ``rdma`` over p2pstore."""

from __future__ import annotations

from importlib.util import find_spec

from ....errors import MissingDependencyError

_MODULES = {
    "p2pstore": "rdma_store_server redis:// is p2pstore, which is not installed",
    "redis": "p2pstore needs redis-py, which is not installed",
    "mooncake": "p2pstore imports Mooncake's Transfer Engine whatever its protocol is, and that is not installed",
}


def check() -> None:
    """Raises MissingDependencyError unless everything can be imported."""
    for module, problem in _MODULES.items():
        if find_spec(module) is None:
            raise MissingDependencyError(
                problem, hint="pip install 'fastdeploy-routing-plugins[p2pstore]'", module=module
            )
