"""The kit over Mooncake's TCP mode; ``test_conformance`` runs this in a network of its own."""

from __future__ import annotations

import tempfile

import pytest

from fastdeploy_routing_plugins.testing import BackendConformance


class TestRdmaOverMooncake(BackendConformance):
    store = "rdma"
    persistent = False  # objects go with the process that put them

    folder = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls):
        with tempfile.TemporaryDirectory(prefix="fd-routing-kit-", dir="/dev/shm") as cls.folder:
            yield

    def config(self, tmp_path):
        return {"transport": "rdma", "allow_tcp": True, "arena_dir": self.folder, "capacity": 48 << 20}
