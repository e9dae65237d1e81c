"""The kit itself: what it documents, that it cannot be hollowed out, and what it says when it cannot run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest
from inner import install

from fastdeploy_routing_plugins import testing
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.testing import BackendConformance, PluginConformance
from fastdeploy_routing_plugins.testing.guard import require_unchanged
from fastdeploy_routing_plugins.testing.harness import Harness
from fastdeploy_routing_plugins.testing.samples import AWKWARD_IDS, longest_samples

CREATE_IF_ABSENT = "test_put_never_overwrites"


def python(code, *args, **environ):
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environ})


@pytest.mark.parametrize("kit", [BackendConformance, PluginConformance])
def test_documentation_lists_every_test(kit):
    documented = set(re.findall(r"test_\w+", testing.__doc__))
    assert set(kit.kit_tests) <= documented


def test_documentation_lists_no_test_that_is_not_there():
    documented = set(re.findall(r"test_\w+", testing.__doc__))
    assert documented <= {*BackendConformance.kit_tests, *PluginConformance.kit_tests}


@pytest.mark.parametrize("kit", [BackendConformance, PluginConformance])
def test_every_test_says_what_it_is_about(kit):
    assert [name for name, test in kit.kit_tests.items() if not test.__doc__] == []


def test_kit_has_no_marker_and_no_fixture_but_tmp_path():
    tests = [*BackendConformance.kit_tests.values(), *PluginConformance.kit_tests.values()]
    arguments = {name for test in tests for name in test.__code__.co_varnames[: test.__code__.co_argcount]}
    assert (arguments, [test for test in tests if hasattr(test, "pytestmark")]) == ({"self", "tmp_path"}, [])


# --- the override guard -------------------------------------------------------------------------------------------


def nothing(self, tmp_path):
    """Stands in for a test of the kit."""


def marked(mark):
    def replacement(self, tmp_path):
        """Stands in for a test of the kit, under a mark."""

    return mark(replacement)


@pytest.mark.parametrize(
    "replacement",
    [
        nothing,
        None,
        property(nothing),
        marked(pytest.mark.skip(reason="not now")),
        marked(pytest.mark.xfail),
        marked(pytest.mark.xfail(reason="")),
        marked(pytest.mark.xfail(reason="  ")),
    ],
    ids=["replaced", "deleted", "hidden", "skipped", "no reason", "empty reason", "blank reason"],
)
def test_a_test_of_the_kit_cannot_be_replaced(replacement):
    with pytest.raises(TypeError, match=CREATE_IF_ABSENT):
        type("TestX", (BackendConformance,), {"store": "local", CREATE_IF_ABSENT: replacement})


def test_a_mixin_cannot_replace_a_test_of_the_kit():
    mixin = type("Mixin", (), {CREATE_IF_ABSENT: nothing})
    with pytest.raises(TypeError, match=CREATE_IF_ABSENT):
        type("TestX", (mixin, BackendConformance), {})


def test_a_subclass_of_a_subclass_cannot_replace_a_test_of_the_kit():
    first = type("TestX", (BackendConformance,), {"store": "local"})
    with pytest.raises(TypeError, match=CREATE_IF_ABSENT):
        type("TestY", (first,), {CREATE_IF_ABSENT: nothing})


@pytest.mark.parametrize("name", [CREATE_IF_ABSENT, "test_api_version_is_literal"])
def test_both_kits_in_one_class_are_guarded(name):
    with pytest.raises(TypeError, match=name):
        type("TestX", (BackendConformance, PluginConformance), {name: nothing})


def test_a_replacement_after_the_class_was_made_is_found():
    late = type("TestX", (BackendConformance,), {"store": "local"})
    setattr(late, CREATE_IF_ABSENT, nothing)
    with pytest.raises(TypeError, match=CREATE_IF_ABSENT):
        require_unchanged(late)


def test_a_known_fault_is_marked_with_its_reason():
    excused = marked(pytest.mark.xfail(reason="issue 12: not yet"))
    assert type("TestX", (BackendConformance,), {CREATE_IF_ABSENT: excused})


def test_own_tests_are_welcome():
    assert type("TestX", (BackendConformance,), {"test_of_my_own": nothing})


# --- where it cannot run ------------------------------------------------------------------------------------------


def test_import_without_pytest_says_what_to_install():
    code = "import sys; sys.modules['pytest'] = None; import fastdeploy_routing_plugins.testing"
    assert "pip install 'fastdeploy-routing-plugins[testing]'" in python(code).stderr.splitlines()[-1]


def test_random_operations_without_hypothesis_say_what_to_install(tmp_path):
    code = """
import sys, pathlib
sys.modules["hypothesis"] = None
from fastdeploy_routing_plugins.testing import BackendConformance

class TestLocal(BackendConformance):
    store = "local"

    def config(self, tmp_path):
        return {"store_dir": str(tmp_path)}

TestLocal().test_random_operations_agree_with_a_dict(pathlib.Path(sys.argv[1]))
"""
    done = python(code, str(tmp_path))
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")


def test_class_without_a_store_says_so(tmp_path):
    with pytest.raises(AssertionError, match="store = "):
        BackendConformance().test_opens_in_time(tmp_path)


def test_configuration_of_the_environment_does_not_reach_the_kit(tmp_path, monkeypatch):
    monkeypatch.setenv("FD_ROUTING_STORE_CONFIG", '{"routing_store_type": "noop"}')
    monkeypatch.setenv("FD_ROUTING_NAMESPACE", "other")
    local = type("TestX", (BackendConformance,), {"store": "local"})
    kit = Harness(local(), tmp_path)
    assert (kit.resolved.name, kit.resolved.namespace) == ("local", kit.namespace)


# --- what it works with -------------------------------------------------------------------------------------------


def test_awkward_ids_are_all_legal_and_different():
    assert len({RoutingKey(rollout_id).prefix("n") for rollout_id in AWKWARD_IDS}) == len(AWKWARD_IDS)


def test_longest_names_are_the_longest():
    assert {len(item.name) for item in longest_samples("n")} == {386}


def test_process_that_dies_shows_what_it_said(tmp_path, monkeypatch):
    """A store that works here and not in other processes is explained, not reported as a hang."""
    source = """
import os, sys
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import StoreSpec

if os.getpid() != int(os.environ["FD_KIT_PID"]):
    sys.stderr.write("no such library in this process")
    os._exit(3)

def config_class():
    from reference import FolderConfig
    return FolderConfig

def create(context):
    from reference import Folder
    return Folder(context.config)

@hookimpl
def fd_routing_store():
    return StoreSpec("dies", (1, 0), "dies elsewhere", config_class, create)
"""
    install(tmp_path / "site", "fd-routing-dies", {"dies": source})
    code = """
import os, sys, pathlib
os.environ["FD_KIT_PID"] = str(os.getpid())
from fastdeploy_routing_plugins.testing import BackendConformance

class TestDies(BackendConformance):
    store = "dies"

    def config(self, tmp_path):
        return {"folder": str(tmp_path)}

TestDies().test_another_process_reads_what_was_put(pathlib.Path(sys.argv[1]))
"""
    path = os.pathsep.join([str(tmp_path / "site"), os.path.dirname(__file__)])
    done = python(code, str(tmp_path), PYTHONPATH=path)
    assert done.stderr.splitlines()[-1] == "no such library in this process"


def test_other_processes_open_the_store_and_end(tmp_path):
    async def use(kit):
        async with kit.peer() as peer:
            return await peer.result("list", prefix="")

    local = type(
        "TestX", (BackendConformance,), {"store": "local", "config": lambda self, path: {"store_dir": str(path)}}
    )
    assert asyncio.run(use(Harness(local(), tmp_path))) == []
