"""What the conformance kit needs to know of `rdma`, whatever moves the bytes."""

from __future__ import annotations

import tempfile
from typing import Any, ClassVar

import pytest


class RdmaKit:
    """Beside ``BackendConformance``, which it must come before."""

    store = "rdma"
    persistent = False  # objects go with the process that put them
    options: ClassVar[dict[str, Any]] = {}
    folder = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls):
        """What killed processes leave in shared memory goes with the folder."""
        with tempfile.TemporaryDirectory(prefix="fd-routing-kit-", dir="/dev/shm") as cls.folder:
            yield

    def config(self, tmp_path):
        return {**self.options, "arena_dir": self.folder, "capacity": 48 << 20}
