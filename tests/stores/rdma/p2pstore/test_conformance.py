"""`rdma` over p2pstore keeps the contract of a backend, as far as p2pstore can carry it."""

from __future__ import annotations

import pytest

from fastdeploy_routing_plugins.testing import BackendConformance


def lacking(test, reason):
    """A test of the kit that p2pstore cannot pass."""

    def same(self, tmp_path):
        test(self, tmp_path)

    same.__name__ = test.__name__
    return pytest.mark.xfail(reason=reason, strict=True)(same)


class TestP2pstore(BackendConformance):
    store = "rdma"
    persistent = False  # p2pstore serves values from the process that put them
    server = None

    @pytest.fixture(autouse=True)
    def _redis(self, redis):
        type(self).server = redis

    def config(self, tmp_path):
        return {"server": self.server.address}

    test_retain_is_declared_honestly = lacking(
        BackendConformance.test_retain_is_declared_honestly,
        "p2pstore keeps a copy: the buffer goes back at once",
    )
    test_awkward_ids_are_stored_and_listed = lacking(
        BackendConformance.test_awkward_ids_are_stored_and_listed, "p2pstore drops what 88888888 is in the key of"
    )
    test_clear_takes_what_this_producer_wrote = lacking(
        BackendConformance.test_clear_takes_what_this_producer_wrote,
        "p2pstore has one space of keys: the same id in two namespaces is a ConflictError",
    )

    def raw_names(self, config):
        with self.server.client() as client:
            return client.zrange("fd-routing:names", 0, -1)
