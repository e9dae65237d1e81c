"""The kit over Mooncake's TCP mode; ``test_conformance`` runs this in a network of its own."""

from __future__ import annotations

from fastdeploy_routing_plugins.testing import BackendConformance


class TestRdmaOverMooncake(BackendConformance):
    store = "rdma"
    persistent = False  # objects go with the process that put them

    def config(self, tmp_path):
        return {"transport": "rdma", "allow_tcp": True, "capacity": 48 << 20}
