"""The kit over an RDMA device; ``test_conformance`` runs this."""

from __future__ import annotations

import tempfile

import pytest

from fastdeploy_routing_plugins.testing import BackendConformance

from .devices import lane


class TestRdmaOverADevice(BackendConformance):
    store = "rdma"
    persistent = False  # objects go with the process that put them

    folder = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls):
        with tempfile.TemporaryDirectory(prefix="fd-routing-kit-", dir="/dev/shm") as cls.folder:
            yield

    def config(self, tmp_path):
        there = lane()
        assert not isinstance(there, str), there
        return {**there.producer.options, "arena_dir": self.folder, "capacity": 48 << 20}
