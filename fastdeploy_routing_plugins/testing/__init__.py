"""The conformance kit: proves that a store keeps the contract. Needs ``fastdeploy-routing-plugins[testing]``.

A store's author writes two classes and runs pytest; there is no pytest plugin, no marker, and no fixture but
``tmp_path``::

    from fastdeploy_routing_plugins.testing import BackendConformance, PluginConformance

    class TestSqlitePlugin(PluginConformance):  # needs no service
        store = "sqlite"
        heavy = {"sqlite3"}  # what the plugin's module must not import

    class TestSqlite(BackendConformance):
        store = "sqlite"  # found through its real entry point

        def config(self, tmp_path):  # the store's own options, in a folder of the test's own
            return {"path": str(tmp_path / "routing.db")}

The folder that ``config`` gets is an empty one of the test's own, below pytest's ``tmp_path``. A store that
needs a service starts it in ``config`` or in a fixture, and names its program and its files by absolute paths, since
other processes of the kit have other working folders.

Optional: ``settle`` waits where changes take a moment to be seen by all; ``raw_names`` lists what is really stored,
without the store's methods; ``directory`` names the one folder that the store may write to; ``persistent = False``
says that objects may end with the process that put them.

What a store declares in its ``StoreSpec.capabilities`` is tested to work; what it does not declare is tested to be
refused. So no test is ever skipped: a test about reading asserts ``UnsupportedError`` for a store that cannot read.

A test of the kit cannot be replaced or deleted by a subclass, except under ``@pytest.mark.xfail(reason="...")``.
The names of the tests are stable; new ones come in minor releases and are listed in the changelog.

``BackendConformance``, the raw store:

* life: test_opens_in_time, test_close_returns_in_time, test_close_without_open_is_harmless,
  test_close_with_pending_operations_returns_in_time, test_opening_and_closing_change_nothing,
  test_data_survives_reopening, test_works_in_a_second_event_loop, test_event_loop_stays_responsive,
  test_nothing_leaks
* capabilities: test_read_is_declared_honestly, test_list_is_declared_honestly, test_range_is_declared_honestly,
  test_ranges_are_exact, test_retain_is_declared_honestly, test_notify_is_declared_honestly,
  test_factory_makes_a_backend
* objects: test_bytes_come_back_exactly, test_payload_is_flat_bytes, test_headers_come_back_exactly,
  test_awkward_names_are_kept_apart, test_longest_names_are_kept, test_put_never_overwrites,
  test_refused_put_carries_the_stored_header, test_deleted_name_can_be_put_again, test_absence_is_an_error,
  test_get_after_delete_is_absence, test_get_many_keeps_order_and_absences, test_caller_may_reuse_its_memory,
  test_what_was_read_outlives_a_delete
* listing and deleting: test_listing_is_sorted, test_prefixes_are_exact, test_empty_prefix_lists_every_namespace,
  test_delete_counts_what_existed, test_delete_takes_any_number_of_names, test_delete_leaves_neighbours,
  test_delete_of_a_prefix_deletes_nothing, test_clear_counts_and_empties, test_clear_leaves_other_namespaces,
  test_clear_leaves_neighbouring_prefixes, test_nothing_is_written_outside, test_backdoor_sees_the_same_names
* at the same time: test_put_is_readable_at_once, test_put_is_listed_at_once, test_many_puts_at_once,
  test_one_of_many_puts_creates_a_name, test_one_of_many_processes_creates_a_name,
  test_another_process_reads_what_was_put, test_no_reader_sees_half_an_object,
  test_killed_writer_leaves_whole_objects, test_put_during_clear, test_deletes_at_once_count_each_object_once,
  test_cancelled_put_leaves_all_or_nothing
* waiting: test_wait_ends_at_the_deadline, test_wait_past_the_deadline_returns_the_listing,
  test_wait_ends_at_once_if_the_listing_differs, test_wait_ends_after_a_put_of_another_process,
  test_wait_ends_after_a_delete, test_many_waits_at_once
* random operations against a dict, by Hypothesis: test_random_operations_agree_with_a_dict

``BackendConformance``, whole rollouts through ``RoutingStore`` over it:

* routing: test_rollouts_are_put_and_read_or_refused, test_rollouts_come_back_exactly,
  test_rollouts_in_other_memory_orders_come_back_exactly, test_layers_put_one_by_one_come_back_exactly,
  test_random_parts_come_back_exactly, test_ranges_of_rollouts_are_exact, test_headers_alone_describe_a_rollout,
  test_plain_code_and_asyncio_read_the_same, test_another_process_reads_rollouts
* outcomes: test_absent_rollouts_say_why, test_equal_put_is_a_success_and_another_a_conflict,
  test_higher_attempt_replaces_the_lower, test_get_waits_for_the_last_part, test_awkward_ids_are_stored_and_listed,
  test_deletes_of_rollouts_count_and_leave_neighbours, test_clear_takes_what_this_producer_wrote,
  test_closed_store_says_so

``PluginConformance``:

* test_entry_point_offers_the_store_once, test_check_finds_nothing_wrong, test_declared_name_is_the_entry_points,
  test_plugin_module_is_light, test_plugin_module_is_silent, test_plugin_module_leaves_the_process_alone,
  test_api_version_is_literal, test_spec_is_complete, test_every_option_is_documented,
  test_config_rejects_unknown_options, test_config_round_trips_through_json, test_resolves_again_in_another_process,
  test_errors_pickle, test_preflight_does_no_io

Both: test_kit_is_whole.
"""

from __future__ import annotations

try:
    import pytest
except ImportError as err:
    raise ImportError(
        "the conformance kit runs under pytest: pip install 'fastdeploy-routing-plugins[testing]'"
    ) from err

# Failures then show the compared values, as in an author's own tests.
for _module in ("concurrency", "harness", "honesty", "lifecycle", "listing", "objects", "outcomes", "peer", "plugins"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
for _module in ("rollouts", "stateful", "suite", "waiting"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from .plugins import PluginConformance  # noqa: E402 - after pytest knows what to rewrite
from .suite import BackendConformance  # noqa: E402

__all__ = ["BackendConformance", "PluginConformance"]
