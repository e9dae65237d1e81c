"""The kit over Mooncake's TCP mode; ``test_conformance`` runs this in a network of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from fastdeploy_routing_plugins.testing import BackendConformance

from ..kit import RdmaKit


class TestRdmaOverMooncake(RdmaKit, BackendConformance):
    options: ClassVar[dict[str, Any]] = {"transport": "rdma", "allow_tcp": True}
