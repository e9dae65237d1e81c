from __future__ import annotations

import pytest

from .servers import READY, REASON, Redis

HERE = __name__.rpartition(".")[0]
NEEDS_NOTHING = ("test_addresses",)
WARNED = [
    pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning"),  # p2pstore's calls of redis-py
    pytest.mark.filterwarnings("ignore:No ccache found"),  # Paddle's, which old p2pstore imports if it is there
]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.module.__name__.startswith(HERE) and not item.module.__name__.endswith(NEEDS_NOTHING):
            for mark in WARNED if READY else [pytest.mark.skip(reason=REASON)]:
                item.add_marker(mark)


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory):
    server = Redis(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def redis(shared_redis):
    """An empty Redis; the process is shared by the tests."""
    with shared_redis.client() as client:
        client.flushall()
    return shared_redis
