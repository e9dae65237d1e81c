"""Which distribution a store's name means; each test resolves in a fresh process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .fabricate import GOOD, GROUP, HOOK, PLUGIN

if TYPE_CHECKING:
    from .fabricate import Site


def test_a_store_works_while_others_are_broken(site: Site) -> None:
    site.distribution()
    site.distribution("fd-routing-broken", entries={"broken": "fdx_broken"}, modules={"fdx_broken": "1/0"})
    assert site.resolve("demo").store == "demo"


def test_other_plugins_are_not_imported(site: Site) -> None:
    site.distribution()
    site.distribution("fd-routing-other", entries={"other": "fdx_other"}, modules={"fdx_other": GOOD})
    assert site.resolve("demo").plugins == ["fdx_demo"]


def test_success_is_one_info_line_with_store_distribution_version_and_api(site: Site) -> None:
    site.distribution()
    config = {"routing_store_type": "demo", "routing_store_config": {"producer": "p1"}}
    expected = (
        "routing store 'demo' from fd-routing-demo 1.0 (store API 1.0): "
        '{"path":"/nowhere","size":1,"password":"","namespace":"default","producer":"p1","only_last_turn":false,'
        '"use_fused_put":false}'
    )
    assert site.resolve(config).logged == [["INFO", expected]]


def test_secrets_are_hidden_in_the_log(site: Site) -> None:
    site.distribution()
    result = site.resolve({"routing_store_type": "demo", "routing_store_config": {"password": "hunter2"}})
    assert "hunter2" not in result.repr + str(result.logged)


def test_the_built_in_stores_are_found_like_any_other(site: Site) -> None:
    assert site.resolve("noop").distribution == "fastdeploy-routing-plugins"


def test_a_typing_mistake_gets_the_right_name(site: Site) -> None:
    site.distribution()
    result = site.resolve("dmeo")
    assert (result.error, "did you mean 'demo'?" in result.text) == ("UnknownStoreError", True)


def test_the_wrong_case_gets_the_right_name(site: Site) -> None:
    site.distribution()
    result = site.resolve("DEMO")
    assert (result.error, "did you mean 'demo'?" in result.text) == ("UnknownStoreError", True)


def test_an_unknown_name_lists_what_is_installed(site: Site) -> None:
    site.distribution()
    assert "installed stores: demo, local, noop" in site.resolve("dmeo").text


def test_an_unknown_name_with_nothing_near_names_the_interpreter(site: Site) -> None:
    result = site.resolve("postgres")
    assert (result.error, sys.executable in result.text) == ("UnknownStoreError", True)


def test_a_name_hidden_by_stale_metadata_names_all_that_is_needed(site: Site) -> None:
    stale = site.distribution(version="0.9", entries="", modules={}, folder="old")
    fresh = site.distribution(version="1.1", folder="new")
    result = site.resolve("demo")
    hint = f"remove {stale} if it is left over"
    needed = ["fd-routing-demo 1.1", str(fresh), "fd-routing-demo 0.9", hint]
    assert [part for part in needed if part not in result.text] == []


def test_a_name_hidden_by_stale_metadata_is_unknown(site: Site) -> None:
    site.distribution(version="0.9", entries={"older": "fdx_demo"}, folder="old")
    site.distribution(version="1.1", folder="new")
    assert site.resolve("demo").error == "UnknownStoreError"


def test_remains_without_metadata_hide_nothing(site: Site) -> None:
    (site.folder("old") / "fd_routing_demo-0.9.dist-info").mkdir()
    site.distribution(version="1.1", folder="new")
    assert site.resolve("demo").version == "1.1"


def test_the_first_of_two_versions_on_the_path_counts(site: Site) -> None:
    site.distribution(version="2.0", entries={"demo": "fdx_second"}, modules={"fdx_second": GOOD}, folder="first")
    site.distribution(version="1.0", folder="second")
    assert site.resolve("demo").target == "fdx_second"


def test_response_is_the_engines_word_for_no_store(site: Site) -> None:
    result = site.resolve("response")
    assert (result.error, "reserved by the engine" in result.text) == ("UnknownStoreError", True)


def test_response_stays_reserved_when_a_package_offers_it(site: Site) -> None:
    site.distribution(entries={"response": "fdx_demo"})
    assert "reserved by the engine" in site.resolve("response").text


def test_a_name_against_the_rule_is_unknown_on_use_and_tells_the_rule(site: Site) -> None:
    site.distribution(entries={"My-Store": "fdx_demo"})
    result = site.resolve("My-Store")
    assert (result.error, "[a-z][a-z0-9_]*" in result.text) == ("UnknownStoreError", True)


def test_a_name_against_the_rule_is_the_plugins_fault_in_check(site: Site) -> None:
    site.distribution(entries={"My-Store": "fdx_demo"})
    state, detail, error = site.check("My-Store")["found"]
    assert (state, error, "[a-z][a-z0-9_]*" in detail) == ("failed", "InvalidPluginError", True)


def test_the_same_distribution_twice_on_the_path_is_one(site: Site) -> None:
    site.distribution(folder="first")
    site.distribution(folder="second")
    assert site.resolve("demo").store == "demo"


def test_the_same_folder_twice_on_the_path_is_one(site: Site) -> None:
    site.distribution()
    site.folders.append(site.folders[0])
    assert site.resolve("demo").store == "demo"


def test_two_packages_with_one_name_are_refused_with_both_targets(site: Site) -> None:
    site.distribution()
    site.distribution("fd-routing-rival", "3.1", entries={"demo": "fdx_rival"}, modules={"fdx_rival": GOOD})
    result = site.resolve("demo")
    targets = ["fdx_demo of fd-routing-demo 1.0", "fdx_rival of fd-routing-rival 3.1"]
    assert (result.error, result.facts["targets"]) == ("DuplicateStoreError", targets)


def test_two_packages_with_one_name_tell_how_to_choose(site: Site) -> None:
    site.distribution()
    site.distribution("fd-routing-rival", "3.1", entries={"demo": "fdx_rival"}, modules={"fdx_rival": GOOD})
    assert "uninstall one, or write demo@fd-routing-demo or demo@fd-routing-rival" in site.resolve("demo").text


def test_nothing_is_imported_of_two_packages_with_one_name(site: Site) -> None:
    site.distribution()
    site.distribution("fd-routing-rival", "3.1", entries={"demo": "fdx_rival"}, modules={"fdx_rival": GOOD})
    assert site.resolve("demo").plugins == []


def test_one_package_that_declares_a_name_twice_is_refused(site: Site) -> None:
    site.distribution(entries=f"[{GROUP}]\ndemo = fdx_demo\ndemo = fdx_other\n")
    assert site.resolve("demo").error == "DuplicateStoreError"


def test_a_distribution_can_be_chosen_in_any_spelling(site: Site) -> None:
    site.distribution()
    site.distribution("fd-routing-rival", entries={"demo": "fdx_rival"}, modules={"fdx_rival": GOOD})
    assert site.resolve("demo@FD_Routing.Rival").target == "fdx_rival"


def test_choosing_a_distribution_that_has_it_not_tells_which_has(site: Site) -> None:
    site.distribution()
    result = site.resolve("demo@fd-routing-other")
    assert (result.error, "offered by fd-routing-demo 1.0" in result.text) == ("UnknownStoreError", True)


def test_a_built_in_name_cannot_be_taken_over(site: Site) -> None:
    site.distribution(entries={"local": "fdx_demo"})
    result = site.resolve("local")
    assert (result.error, result.plugins) == ("DuplicateStoreError", [])


def test_a_built_in_is_chosen_by_its_distribution_when_its_name_is_taken(site: Site) -> None:
    site.distribution(entries={"noop": "fdx_demo"})
    assert site.resolve("noop@fastdeploy-routing-plugins").distribution == "fastdeploy-routing-plugins"


def test_a_disabled_store_names_the_variable_and_its_value(site: Site) -> None:
    site.distribution()
    result = site.resolve("demo", variables={"FD_ROUTING_STORE_DISABLED": "rdma, demo"})
    shown = "FD_ROUTING_STORE_DISABLED='rdma, demo'" in result.text
    assert (result.error, shown, result.plugins) == ("StoreDisabledError", True, [])


def test_a_store_that_is_not_disabled_works(site: Site) -> None:
    site.distribution()
    assert site.resolve("demo", variables={"FD_ROUTING_STORE_DISABLED": "rdma"}).store == "demo"


def test_a_store_that_is_not_on_the_allow_list_tells_to_add_it(site: Site) -> None:
    site.distribution()
    result = site.resolve("demo", variables={"FD_ROUTING_STORES_ALLOWED": "local,noop"})
    assert (result.error, "add 'demo' to FD_ROUTING_STORES_ALLOWED" in result.text) == ("StoreDisabledError", True)


def test_an_empty_allow_list_allows_nothing(site: Site) -> None:
    assert site.resolve("noop", variables={"FD_ROUTING_STORES_ALLOWED": ""}).error == "StoreDisabledError"


def test_a_store_on_the_allow_list_works(site: Site) -> None:
    site.distribution()
    assert site.resolve("demo", variables={"FD_ROUTING_STORES_ALLOWED": "local, demo"}).store == "demo"


def test_fd_plugins_does_not_govern_stores(site: Site) -> None:
    site.distribution()
    assert site.resolve("demo", variables={"FD_PLUGINS": "something_else"}).store == "demo"


def test_a_store_works_when_fd_plugins_is_unset(site: Site) -> None:
    site.distribution()
    assert site.resolve("demo").store == "demo"


def test_a_plugin_that_prints_logs_and_changes_global_state_works(site: Site) -> None:
    noise = "import logging, os\nprint('hello')\nlogging.basicConfig(level=0)\nos.environ['FDX'] = '1'\n"
    site.distribution(modules={"fdx_demo": noise + GOOD})
    assert site.resolve("demo").store == "demo"


def test_nothing_here_loads_numpy(site: Site) -> None:
    site.distribution()
    assert "numpy" not in site.resolve("demo", create=True).modules


def test_the_entry_point_may_name_an_object_in_a_module(site: Site) -> None:
    plugin = PLUGIN + "class Plugin:\n    @hookimpl\n    def fd_routing_store(self):\n        return spec()\n"
    site.distribution(
        entries={"demo": "fdx_demo:plugins.first [extra]"},
        modules={"fdx_demo": plugin + "class plugins:\n    first = Plugin()\n"},
    )
    assert site.resolve("demo").target == "fdx_demo:plugins.first"


def test_the_store_may_be_stated_apart_from_its_options(site: Site) -> None:
    site.distribution()
    assert site.resolve({"path": "/x"}, store="demo").options["path"] == "/x"


def test_a_fresh_process_may_make_the_backend(site: Site) -> None:
    site.distribution(modules={"fdx_demo": PLUGIN + HOOK})
    assert site.resolve("demo", create=True).backend == "DemoBackend"
