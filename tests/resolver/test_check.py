"""``check`` takes the same steps as ``resolve`` and tells how each went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .fabricate import PLUGIN

if TYPE_CHECKING:
    from .fabricate import Site

HOOK = PLUGIN + "def need(c): import fdy_sdk\ndef bad(c): 1/0\n@hookimpl\ndef fd_routing_store(): return spec("
REQUIRED = (
    PLUGIN
    + "@dataclass\nclass Strict:\n    address: str\n"
    + "@hookimpl\ndef fd_routing_store(): return spec(load_config=lambda: Strict, host_keys={})\n"
)


def states(steps: dict[str, tuple[str, str, str | None]]) -> list[str]:
    return [f"{name} {state}" for name, (state, _, _) in steps.items()]


def test_a_good_store_passes_every_step(site: Site) -> None:
    site.distribution()
    names = ["allowed", "found", "import", "hook", "spec", "api", "config", "preflight", "backend"]
    assert states(site.check("demo")) == [f"{name} ok" for name in names]


@pytest.mark.parametrize(
    ("source", "step", "error"),
    [
        ("1/0", "import", "StoreLoadError"),
        ("import fdy_sdk", "import", "MissingDependencyError"),
        ("", "hook", "InvalidPluginError"),
        (HOOK + "name='x')", "spec", "InvalidPluginError"),
        (HOOK + "api_version=(9, 0))", "api", "IncompatibleStoreError"),
        (HOOK + "load_config=dict)", "config", "InvalidPluginError"),
        (
            HOOK + "preflight=need)",
            "preflight",
            "MissingDependencyError",
        ),
        (
            HOOK + "create=need)",
            "backend",
            "MissingDependencyError",
        ),
        (
            HOOK + "create=bad)",
            "backend",
            "StoreLoadError",
        ),
    ],
)
def test_a_broken_store_fails_at_the_step_that_is_broken(site: Site, source: str, step: str, error: str) -> None:
    site.distribution(modules={"fdx_demo": source})
    failed = [(name, kind) for name, (state, _, kind) in site.check("demo").items() if state == "failed"]
    assert failed == [(step, error)]


def test_steps_after_a_failed_one_are_skipped(site: Site) -> None:
    site.distribution(modules={"fdx_demo": ""})
    expected = ["allowed ok", "found ok", "import ok", "hook failed", "spec skipped"]
    assert states(site.check("demo"))[:5] == expected


def test_an_unknown_store_fails_where_it_is_looked_for(site: Site) -> None:
    assert site.check("gone")["found"][2] == "UnknownStoreError"


def test_a_forbidden_store_fails_first(site: Site) -> None:
    site.distribution()
    assert site.check("demo", FD_ROUTING_STORE_DISABLED="demo")["allowed"][2] == "StoreDisabledError"


def test_required_options_that_nobody_gave_are_no_failure(site: Site) -> None:
    site.distribution(modules={"fdx_demo": REQUIRED})
    assert states(site.check("demo"))[5:] == ["api ok", "config skipped", "preflight skipped", "backend skipped"]


def test_required_options_that_a_configuration_lacks_are_a_failure(site: Site) -> None:
    site.distribution(modules={"fdx_demo": REQUIRED})
    assert site.check("demo", {})["config"][2] == "ConfigError"


def test_options_alone_are_enough(site: Site) -> None:
    site.distribution(modules={"fdx_demo": REQUIRED})
    assert site.check("demo", {"address": "here"})["config"][0] == "ok"


def test_a_whole_configuration_counts(site: Site) -> None:
    site.distribution(modules={"fdx_demo": REQUIRED})
    config = {"routing_store_type": "demo", "routing_store_config": {"adress": "here"}}
    assert "did you mean 'address'?" in site.check("demo", config)["config"][1]


def test_configuration_for_another_store_does_not_count(site: Site) -> None:
    site.distribution()
    variables = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "local", "local_store_dir": "/x"}'}
    assert site.check("demo", **variables)["config"][0] == "ok"


def test_malformed_configuration_fails_the_configuration(site: Site) -> None:
    site.distribution()
    steps = site.check("demo", "{")
    assert (steps["config"][2], steps["import"][0]) == ("ConfigError", "skipped")
