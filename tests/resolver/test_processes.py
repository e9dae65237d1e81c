"""A resolved store travels to other processes, which resolve it again; every process here is a fresh one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import ConfigError
from fastdeploy_routing_plugins.resolver import ResolvedStore, resolve

from .fabricate import GOOD, Site

if TYPE_CHECKING:
    from pathlib import Path

_SEND = """
import pickle, sys
from fastdeploy_routing_plugins.resolver import resolve
pickle.dump(resolve(sys.argv[1]), open(sys.argv[2], "wb"))
"""
_RECEIVE = """
import json, pickle, sys
try:
    store = pickle.load(open(sys.argv[1], "rb"))
    found = [store.name, store.distribution, store.version, store.options, type(store.config).__name__,
             store.namespace, store.producer, store.only_last_turn, store.use_fused_put]
except Exception as err:
    found = [type(err).__name__, str(err)]
print(json.dumps(found))
"""
_CONFIG = json.dumps(
    {
        "routing_store_type": "demo",
        "only_last_turn": True,
        "routing_store_config": {"path": "/x", "password": "hunter2", "namespace": "run 7", "producer": "engine-1"},
    }
)


@pytest.fixture
def sent(site: Site) -> Path:
    """A file with a pickled resolved store."""
    site.distribution()
    file = site.root / "store.pickle"
    done = site.run(_SEND, _CONFIG, str(file))
    assert done.returncode == 0, done.stderr
    return file


def receive(site: Site, file: Path, **variables: str) -> list[object]:
    done = site.run(_RECEIVE, str(file), **variables)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def other_environment(root: Path, name: str) -> Site:
    (root / name).mkdir()
    return Site(root / name)


def test_everything_arrives_in_the_other_process(site: Site, sent: Path) -> None:
    options = {"path": "/x", "size": 1, "password": "hunter2"}
    expected = ["demo", "fd-routing-demo", "1.0", options, "Config", "run 7", "engine-1", True, False]
    assert receive(site, sent) == expected


def test_a_default_producer_stays_the_parents(site: Site) -> None:
    site.distribution()
    file = site.root / "store.pickle"
    site.run(_SEND, json.dumps({"routing_store_type": "demo"}), str(file))
    assert receive(site, file)[6] == receive(site, file)[6]


def test_default_producers_of_two_processes_differ(site: Site) -> None:
    site.distribution()
    assert site.resolve("demo").common[1] != site.resolve("demo").common[1]


def test_the_other_process_refuses_another_version(site: Site, sent: Path) -> None:
    other = other_environment(site.root, "other")
    other.distribution(version="1.1")
    kind, text = receive(other, sent)
    assert (kind, "from fd-routing-demo 1.0, but this process has it from fd-routing-demo 1.1" in str(text)) == (
        "IncompatibleStoreError",
        True,
    )


def test_the_other_process_refuses_another_distribution(site: Site, sent: Path) -> None:
    other = other_environment(site.root, "other")
    other.distribution("fd-routing-rival")
    assert receive(other, sent)[0] == "IncompatibleStoreError"


def test_the_other_process_says_when_the_store_is_not_there(site: Site, sent: Path) -> None:
    assert receive(other_environment(site.root, "other"), sent)[0] == "UnknownStoreError"


def test_the_other_process_takes_the_same_distribution_among_several(site: Site, sent: Path) -> None:
    site.distribution("fd-routing-rival", entries={"demo": "fdx_rival"}, modules={"fdx_rival": GOOD})
    assert receive(site, sent)[1] == "fd-routing-demo"


def test_the_other_process_does_not_merge_its_environment_in(site: Site, sent: Path) -> None:
    variables = {"FD_ROUTING_STORE_CONFIG": '{"path": "/elsewhere"}', "FD_ROUTING_NAMESPACE": "elsewhere"}
    assert receive(site, sent, **variables)[5] == "run 7"


def test_the_other_process_obeys_its_administrator(site: Site, sent: Path) -> None:
    assert receive(site, sent, FD_ROUTING_STORE_DISABLED="demo")[0] == "StoreDisabledError"


def test_another_namespace_keeps_everything_else() -> None:
    store = resolve("{}", store="noop", environ={})
    other = store.with_namespace("elsewhere")
    assert (other.namespace, other.producer, other.options) == ("elsewhere", store.producer, store.options)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"store": 1}', b"\xff", '{"store":"noop","eval":"1"}'])
def test_text_that_is_no_resolved_store_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigError, match="no resolved store"):
        ResolvedStore.from_json(text)


def test_json_makes_the_same_store() -> None:
    store = resolve({"routing_store_type": "local", "local_store_dir": "/x"}, environ={})
    assert ResolvedStore.from_json(store.to_json()) == store
