"""The kit over an RDMA device; ``test_conformance`` runs this."""

from __future__ import annotations

from fastdeploy_routing_plugins.testing import BackendConformance

from ..stores.rdma.kit import RdmaKit
from .devices import lane


class TestRdmaOverADevice(RdmaKit, BackendConformance):
    def config(self, tmp_path):
        there = lane()
        assert not isinstance(there, str), there
        return {**super().config(tmp_path), **there.producer.options}
