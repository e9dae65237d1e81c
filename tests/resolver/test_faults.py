"""Plugins that are broken, each in its own way, and whose fault the error says it is; all in fresh processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .fabricate import GOOD, HOOK, PLUGIN

if TYPE_CHECKING:
    from .fabricate import Result, Site


def resolve(site: Site, source: str, **wanted: object) -> Result:
    site.distribution(modules={"fdx_demo": source})
    return site.resolve("demo", **wanted)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("fdx_gone", "module 'fdx_gone' is not there"),
        ("fdx_demo.gone", "module 'fdx_demo.gone' is not there"),
        ("fdx_demo:gone", "module 'fdx_demo' has no 'gone'"),
        ("fdx_demo:spec.gone", "module 'fdx_demo' has no 'spec.gone'"),
        ("fdx demo!", "its entry point 'fdxdemo!' is no module or module:attribute"),
        ("", "its entry point '' is no module or module:attribute"),
    ],
)
def test_a_target_that_is_not_there_is_a_packaging_fault(site: Site, target: str, reason: str) -> None:
    site.distribution(entries={"demo": target})
    result = site.resolve("demo")
    found = result.error, reason in result.text, "fd-routing-demo 1.0" in result.text
    assert found == ("StoreLoadError", True, True)


def test_a_package_that_lacks_its_own_module_is_a_packaging_fault(site: Site) -> None:
    modules = {"fdx_pack.__init__": "", "fdx_pack.plugin": "import fdx_pack.gone"}
    site.distribution(entries={"demo": "fdx_pack.plugin"}, modules=modules)
    result = site.resolve("demo")
    assert (result.error, "packaged wrongly" in result.text) == ("StoreLoadError", True)


@pytest.mark.parametrize(
    ("source", "text", "cause"),
    [
        ("raise RuntimeError('no luck\\nand more')", "RuntimeError: no luck", "RuntimeError"),
        ("1 / 0", "ZeroDivisionError: division by zero", "ZeroDivisionError"),
        ("def (", "SyntaxError", "SyntaxError"),
        ("from json import nothing", "ImportError: cannot import name 'nothing'", "ImportError"),
        ("raise SystemExit(3)", "SystemExit: 3", "SystemExit"),
        ("import sys; sys.exit()", "SystemExit", "SystemExit"),
        ("raise GeneratorExit", "GeneratorExit", "GeneratorExit"),
        ("def f(): f()\nf()", "RecursionError", "RecursionError"),
    ],
)
def test_an_import_that_raises_is_chained_and_the_plugins_fault(
    site: Site, source: str, text: str, cause: str
) -> None:
    result = resolve(site, source)
    found = result.error, text in result.text, "the fault is in fd-routing-demo 1.0" in result.text, result.cause
    assert found == ("StoreLoadError", True, True, cause)


def test_an_import_that_raises_names_the_line(site: Site) -> None:
    result = resolve(site, "\n\nraise RuntimeError('no luck')")
    assert f"at {site.folders[0] / 'fdx_demo.py'}, line 3" in result.text


def test_an_interrupt_at_import_passes(site: Site) -> None:
    assert resolve(site, "raise KeyboardInterrupt").error == "KeyboardInterrupt"


def test_a_missing_dependency_at_import_is_named(site: Site) -> None:
    result = resolve(site, "import fdy_sdk.client")
    assert (result.error, result.facts["module"]) == ("MissingDependencyError", "fdy_sdk")


def test_a_plugin_for_another_version_of_this_package_says_so(site: Site) -> None:
    result = resolve(site, "import fastdeploy_routing_plugins.gone")
    assert "written for another fastdeploy-routing-plugins" in result.text


@pytest.mark.parametrize("field", ["preflight=need", "load_config=need", "create=need"])
def test_a_missing_dependency_later_shows_the_install_hint(site: Site, field: str) -> None:
    need = "def need(*args):\n    import fdy_sdk\n"
    hook = f"@hookimpl\ndef fd_routing_store(): return spec({field}, install_hint='pip install fdy')\n"
    result = resolve(site, PLUGIN + need + hook, create=True)
    found = result.error, result.facts["module"], "pip install fdy" in result.text
    assert found == ("MissingDependencyError", "fdy_sdk", True)


def test_a_library_that_cannot_be_loaded_in_create_is_a_missing_dependency(site: Site) -> None:
    need = "def need(context):\n    raise ImportError('libfoo.so: cannot open shared object file')\n"
    result = resolve(site, PLUGIN + need + "@hookimpl\ndef fd_routing_store(): return spec(create=need)", create=True)
    assert (result.error, "libfoo.so" in result.text) == ("MissingDependencyError", True)


def test_a_missing_dependency_in_the_hook_is_named(site: Site) -> None:
    result = resolve(site, PLUGIN + "@hookimpl\ndef fd_routing_store():\n    import fdy_sdk")
    assert (result.error, result.facts["module"]) == ("MissingDependencyError", "fdy_sdk")


def test_a_preflight_may_raise_errors_of_the_package(site: Site) -> None:
    need = "from fastdeploy_routing_plugins.errors import ConfigError\ndef need(config): raise ConfigError('no')\n"
    hook = "@hookimpl\ndef fd_routing_store(): return spec(preflight=need)"
    assert resolve(site, PLUGIN + need + hook).text == "no"


@pytest.mark.parametrize("field", ["preflight", "load_config", "create"])
def test_plugin_code_that_fails_is_the_plugins_fault(site: Site, field: str) -> None:
    bad = "def bad(*args):\n    raise OSError('no luck')\n"
    hook = f"@hookimpl\ndef fd_routing_store(): return spec({field}=bad)\n"
    result = resolve(site, PLUGIN + bad + hook, create=True)
    found = result.error, f"{field} failed with OSError: no luck" in result.text, result.cause
    assert found == ("StoreLoadError", True, "OSError")


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ("@hookimpl\ndef fd_routing_stor(): return spec()", "it implements fd_routing_stor() (did you mean"),
        ("@hookimpl\ndef fd_routing_store(config): return spec()", "hookimpl definition: fd_routing_store(config)"),
        ("def fd_routing_store(): return spec()", "its fd_routing_store() lacks our @hookimpl"),
        ("", "it has no hook"),
        ("@hookimpl\ndef fd_routing_store(): return None", "the hook returned None"),
        ("@hookimpl\ndef fd_routing_store(): return {'name': 'demo'}", "expected a StoreSpec, got a dict"),
        ("@hookimpl\ndef fd_routing_store(): return StoreSpec", "expected a StoreSpec, got a type"),
        ("@hookimpl\nasync def fd_routing_store(): return spec()", "the hook is `async def`"),
        ("@hookimpl\ndef fd_routing_store(): return [spec(), spec(name='more')]", "got a list of 2: StoreSpec("),
        (
            "@hookimpl(specname='fd_routing_store')\ndef one(): return spec()\n"
            "@hookimpl(specname='fd_routing_store')\ndef two(): return spec(name='two')",
            "expected one StoreSpec, got 2: ",
        ),
        ("@hookimpl\ndef fd_routing_store(): return spec(colour='red')", "unexpected keyword argument 'colour'"),
        ("@hookimpl\ndef fd_routing_store(): raise SystemExit(1)", "the hook raised SystemExit: 1"),
        ("@hookimpl(wrapper=True)\ndef fd_routing_store():\n    yield\n    return None", "the hook returned None"),
    ],
)  # fmt: skip
def test_a_wrong_hook_says_what_was_expected_and_what_came(site: Site, hook: str, reason: str) -> None:
    result = resolve(site, PLUGIN + hook)
    assert (result.error, reason in result.text, "expected " in result.text) == ("InvalidPluginError", True, True)


def test_a_wrong_hook_is_told_in_short_form(site: Site) -> None:
    hook = "@hookimpl\ndef fd_routing_store(): return ['x' * 100_000]"
    assert len(resolve(site, PLUGIN + hook).text) < 400


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("fdx_demo:fd_routing_store", "name its module instead"),
        ("fdx_demo:Plugin", "the entry point names a class"),
        ("fdx_demo:NOTHING", "it has no hook"),
    ],
)
def test_a_wrong_object_says_what_to_name(site: Site, target: str, reason: str) -> None:
    more = "NOTHING = None\nclass Plugin:\n    @hookimpl\n    def fd_routing_store(self): return spec()\n"
    site.distribution(entries={"demo": target}, modules={"fdx_demo": GOOD + more})
    result = site.resolve("demo")
    assert (result.error, reason in result.text) == ("InvalidPluginError", True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("name='other'", "its StoreSpec is named 'other', its entry point 'demo'"),
        ("name=7", "name must be a str, got 7"),
        ("api_version='1.0'", "api_version must be a pair of integers like (1, 0), got '1.0'"),
        ("api_version=(1, True)", "api_version must be a pair of integers"),
        ("api_version=(1, -1)", "api_version must be a pair of integers"),
        ("summary=None", "summary must be a str, got None"),
        ("load_config=Config()", "load_config must be callable, got a Config"),
        ("create='x'", "create must be callable, got 'x'"),
        ("capabilities=3", "capabilities must be a Capability, got 3"),
        ("preflight=1", "preflight must be callable or None, got 1"),
        ("install_hint=None", "install_hint must be a str, got None"),
        ("host_keys=['a']", "host_keys must be a mapping of str to str, got a list"),
        ("host_keys={'local_store_dir': 'gone'}", "host key 'local_store_dir' stands for 'gone'"),
        ("load_config=lambda: Config()", "the config class must be a dataclass"),
        ("load_config=lambda: None", "load_config returned None, expected a dataclass"),
        ("load_config=lambda: dict", "the config class must be a dataclass"),
        ("load_config=lambda: Taken", "declares 'namespace', which is an option of every store"),
        ("load_config=lambda: Opaque", "option 'path' of Opaque has the type Path, which JSON cannot express"),
        ("load_config=lambda: Unresolved", "the types of Unresolved cannot be read"),
        ("load_config=lambda: Failing", "(fdx_demo) does not follow the contract: Failing cannot be built: KeyError"),
    ],
)
def test_a_wrong_specification_says_what_was_expected_and_what_came(site: Site, change: str, reason: str) -> None:
    more = (
        "from pathlib import Path\n"
        "@dataclass\nclass Taken:\n    namespace: str = ''\n"
        "@dataclass\nclass Opaque:\n    path: Path = Path('/')\n"
        "@dataclass\nclass Unresolved:\n    path: 'Gone' = ''\n"
        "@dataclass\nclass Failing:\n    path: str = ''\n    def __post_init__(self): raise KeyError(1)\n"
    )
    result = resolve(site, PLUGIN + more + f"@hookimpl\ndef fd_routing_store(): return spec({change})")
    assert (result.error, reason in result.text) == ("InvalidPluginError", True), result.text


def test_a_backend_that_is_none_is_refused(site: Site) -> None:
    result = resolve(site, PLUGIN + "@hookimpl\ndef fd_routing_store(): return spec(create=lambda c: {})", create=True)
    assert (result.error, "create returned a dict" in result.text) == ("InvalidPluginError", True)


@pytest.mark.parametrize(
    ("plugin", "host", "upgrade"),
    [
        ("(2, 0)", [1, 4], "fastdeploy-routing-plugins"),
        ("(1, 5)", [1, 4], "fastdeploy-routing-plugins"),
        ("(1, 0)", [2, 0], "fd-routing-demo"),
    ],
)
def test_another_api_is_refused_with_both_versions_and_the_side_to_upgrade(
    site: Site, plugin: str, host: list[int], upgrade: str
) -> None:
    hook = f"@hookimpl\ndef fd_routing_store(): return spec(api_version={plugin})"
    result = resolve(site, PLUGIN + hook, host_api=host)
    major, minor = plugin.strip("()").split(", ")
    said = f"store API {major}.{minor}, the host has {host[0]}.{host[1]} (upgrade {upgrade})"
    assert (result.error, said in result.text) == ("IncompatibleStoreError", True)


def test_an_older_minor_api_works(site: Site) -> None:
    assert resolve(site, PLUGIN + HOOK, host_api=[1, 7]).store == "demo"


def test_a_wrong_configuration_names_every_problem(site: Site) -> None:
    site.distribution()
    options = {"paht": "/x", "size": "3", "password": 7, "namespace": ""}
    result = site.resolve({"routing_store_type": "demo", "routing_store_config": options, "colour": 1})
    assert (result.error, len(result.facts["problems"])) == ("ConfigError", 5)
