"""Plugins with one fault each, as the source of their modules, and the tests of the kit that must catch them."""

from __future__ import annotations

from fastdeploy_routing_plugins.testing import PluginConformance

SOUND = """\
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import Capability, StoreSpec


def config_class():
    from reference import FolderConfig

    return FolderConfig


def create(context):
    from reference import Folder

    return Folder(context.config)


@hookimpl
def fd_routing_store():
    return StoreSpec(
        name="NAME",
        api_version=(1, 0),
        summary="a folder of objects",
        load_config=config_class,
        create=create,
        capabilities=Capability.READ | Capability.LIST,
    )
"""

OPTION_CLASS = """\
def config_class():
    import os
    from dataclasses import dataclass, field

    @dataclass
    class Config:
        folder: str = field(default="x", metadata={"doc": "where the objects are"})
        OPTION

    return Config
"""


def changed(old: str, new: str) -> str:
    """Returns the sound plugin with one place changed."""
    assert SOUND.count(old) == 1
    return SOUND.replace(old, new)


def with_import(line: str) -> str:
    """Returns the sound plugin with one more line that runs at import."""
    return f"{line}\n{SOUND}"


def with_option(option: str) -> str:
    """Returns the sound plugin with another config class."""
    start, end = SOUND.index("def config_class"), SOUND.index("def create")
    return SOUND[:start] + OPTION_CLASS.replace("OPTION", option) + "\n\n" + SOUND[end:]


def with_preflight(body: str) -> str:
    """Returns the sound plugin with a preflight."""
    sound = changed("create=create,", "create=create,\n        preflight=preflight,")
    return sound.replace("@hookimpl", f"def preflight(config):\n    {body}\n\n\n@hookimpl")


ODD_ERRORS = """\
from fastdeploy_routing_plugins.errors import StoreError
from reference import Folder


class QuotaError(StoreError):
    def __init__(self, quota):
        super().__init__(f"quota of {quota} bytes")


class OwnFolder(Folder):
    pass
"""

LIGHT = "test_plugin_module_is_light"
SILENT = "test_plugin_module_is_silent"
ALONE = "test_plugin_module_leaves_the_process_alone"
LITERAL = "test_api_version_is_literal"
NAMED = "test_declared_name_is_the_entry_points"
ONCE = "test_entry_point_offers_the_store_once"
AT_IMPORT = frozenset({LIGHT, SILENT, ALONE, LITERAL, NAMED, ONCE})
"""Tests that do without resolving the store."""

NO_IO = "test_preflight_does_no_io"
ROUND_TRIP = "test_config_round_trips_through_json"
AGAIN = "test_resolves_again_in_another_process"
RESOLVING = frozenset(PluginConformance.kit_tests) - AT_IMPORT - {"test_kit_is_whole"}

CREATE = "    return Folder(context.config)"
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='fd-x').start()"
NOT_ONCE = "\n        def __post_init__(self):\n            self.folder = os.path.join(self.folder, 'sub')"
COPIED = "api_version=__import__('fastdeploy_routing_plugins.spec').spec.API_VERSION"

FAULTS_AT_IMPORT = {
    # NumPy adds filters for warnings, too
    "imports_numpy": (with_import("import numpy"), {LIGHT, ALONE}),
    "imports_its_sdk": (with_import("import fake_sdk"), {LIGHT}),
    "imports_in_the_hook": (
        changed("    return StoreSpec(", "    import fake_sdk\n\n    return StoreSpec("),
        {LIGHT},
    ),
    "prints": (with_import("print('welcome')"), {SILENT}),
    "writes_to_stderr": (with_import("import os\nos.write(2, b'x')"), {SILENT}),
    "handles_signals": (with_import("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"), {ALONE}),
    "sets_up_logging": (with_import("import logging\nlogging.basicConfig()"), {ALONE}),
    "changes_the_path": (with_import("import sys\nsys.path.insert(0, '/nowhere')"), {ALONE}),
    "changes_the_directory": (with_import("import os\nos.chdir('/')"), {ALONE}),
    "changes_the_environment": (with_import("import os\nos.environ['FD_X'] = '1'"), {ALONE}),
    "starts_a_thread": (with_import(THREAD), {ALONE}),
    "copies_the_api_version": (changed("api_version=(1, 0)", COPIED), {LITERAL}),
}
"""Plugins that are run against ``AT_IMPORT``."""

FAULTS = {
    "documents_nothing": (with_option("other: int = 3"), {"test_every_option_is_documented"}),
    "changes_options_again": (with_option(NOT_ONCE), {ROUND_TRIP, AGAIN}),
    "writes_in_preflight": (with_preflight("open(config.folder + '.probe', 'w').close()"), {NO_IO}),
    "connects_in_preflight": (
        with_preflight("import socket; socket.socket().connect_ex(('127.0.0.1', 9))"),
        {NO_IO},
    ),
    "makes_folders_in_create": (changed(CREATE, f"    Folder(context.config)._open()\n{CREATE}"), {NO_IO}),
    "has_an_odd_error": (
        changed(CREATE, "    import odd_errors\n\n    return odd_errors.OwnFolder(context.config)"),
        {"test_errors_pickle"},
    ),
    "has_a_long_summary": (changed('"a folder of objects"', '"a folder\\nof objects"'), {"test_spec_is_complete"}),
    "has_another_name": (changed('name="NAME"', 'name="other"'), {NAMED, *RESOLVING}),
    "misses_a_dependency": (with_preflight("import fd_no_such_module"), RESOLVING),
    "is_offered_twice": (SOUND, {ONCE, *RESOLVING}),
}
"""Plugins that are run against all tests."""

BROKEN = {**FAULTS_AT_IMPORT, **FAULTS}
