"""All broken stores: what is wrong with each, and which tests of the kit must catch it.

``passes`` names tests that the store must pass all the same: a fault is caught where it is, not by everything failing.
"""

from __future__ import annotations

from dataclasses import dataclass

import broken_objects as objects
import broken_timing as timing
from reference import AsyncFolder, Folder, FolderConfig

from fastdeploy_routing_plugins.spec import Capability, StoreSpec

BASIC = Capability.READ | Capability.LIST
EVERYTHING = BASIC | Capability.NOTIFY | Capability.RANGE | Capability.RETAIN

HANDLES = "test_opens_in_time", "test_close_returns_in_time"
READS = "test_put_is_readable_at_once", "test_absence_is_an_error"
LISTS = "test_delete_counts_what_existed", "test_wait_past_the_deadline_returns_the_listing"
SMOKE = (*HANDLES, *READS, *LISTS)


@dataclass(frozen=True)
class Broken:
    backend: type
    caught_by: tuple[str, ...]
    capabilities: Capability = EVERYTHING
    passes: tuple[str, ...] = SMOKE


def fault(backend, *caught_by, capabilities=None, passes=SMOKE):
    if capabilities is None:
        capabilities = BASIC if issubclass(backend, AsyncFolder) else EVERYTHING
    return Broken(backend, caught_by, capabilities, tuple(test for test in passes if test not in caught_by))


BROKEN = {
    # what is kept
    "loses_bytes": fault(objects.LosesBytes, "test_bytes_come_back_exactly"),
    "mangles_headers": fault(objects.MangledHeaders, "test_headers_come_back_exactly"),
    "types_payloads": fault(objects.TypedPayload, "test_payload_is_flat_bytes", passes=(*HANDLES, *LISTS)),
    "keeps_the_callers_memory": fault(objects.KeepsTheCallersMemory, "test_caller_may_reuse_its_memory"),
    "reads_into_one_buffer": fault(objects.ReadsIntoOneBuffer, "test_what_was_read_outlives_a_delete"),
    # creating and absence
    "overwrites": fault(objects.Overwrites, "test_put_never_overwrites"),
    "refuses_without_header": fault(objects.RefusesWithoutHeader, "test_refused_put_carries_the_stored_header"),
    "looks_before_it_writes": fault(objects.LooksBeforeItWrites, "test_one_of_many_puts_creates_a_name"),
    "locks_only_its_process": fault(objects.LocksOnlyItsProcess, "test_one_of_many_processes_creates_a_name"),
    "returns_none": fault(
        objects.ReturnsNone, "test_absence_is_an_error", "test_get_after_delete_is_absence", passes=(*HANDLES, *LISTS)
    ),
    "drops_absences": fault(objects.DropsAbsences, "test_get_many_keeps_order_and_absences"),
    "serves_the_deleted": fault(objects.ServesTheDeleted, "test_get_after_delete_is_absence"),
    "buries_names": fault(objects.BuriesNames, "test_deleted_name_can_be_put_again"),
    # names
    "decodes_names": fault(objects.DecodesNames, "test_nothing_is_written_outside", passes=(*HANDLES, *READS)),
    "folds_names": fault(objects.FoldsNames, "test_awkward_names_are_kept_apart"),
    "cuts_names": fault(objects.CutsNames, "test_longest_names_are_kept"),
    # listing
    "lists_out_of_order": fault(objects.ListsOutOfOrder, "test_listing_is_sorted"),
    "lists_by_pattern": fault(objects.ListsByPattern, "test_prefixes_are_exact"),
    "lists_no_empty_prefix": fault(objects.ListsNoEmptyPrefix, "test_empty_prefix_lists_every_namespace"),
    # deleting
    "miscounts": fault(objects.Miscounts, "test_delete_counts_what_existed"),
    "counts_no_clear": fault(objects.CountsNoClear, "test_clear_counts_and_empties"),
    "deletes_few_names": fault(objects.DeletesFewNames, "test_delete_takes_any_number_of_names"),
    "deletes_neighbours": fault(objects.DeletesNeighbours, "test_delete_leaves_neighbours"),
    "deletes_folders": fault(objects.DeletesFolders, "test_delete_of_a_prefix_deletes_nothing"),
    "hides_instead_of_deleting": fault(objects.HidesInsteadOfDeleting, "test_backdoor_sees_the_same_names"),
    "clears_everything": fault(objects.ClearsEverything, "test_clear_leaves_other_namespaces"),
    "clears_neighbours": fault(
        objects.ClearsNeighbours,
        "test_clear_leaves_neighbouring_prefixes",
        passes=(*SMOKE, "test_clear_leaves_other_namespaces", "test_clear_counts_and_empties"),
    ),
    "clears_whole_components": fault(objects.ClearsWholeComponents, "test_random_operations_agree_with_a_dict"),
    # capabilities
    "declares_read_and_cannot": fault(
        objects.CannotRead, "test_read_is_declared_honestly", passes=(*HANDLES, "test_listing_is_sorted")
    ),
    "reads_without_declaring": fault(
        Folder,
        "test_read_is_declared_honestly",
        capabilities=EVERYTHING & ~Capability.READ & ~Capability.RANGE,
        passes=(*HANDLES, *LISTS),
    ),
    "declares_list_and_cannot": fault(objects.CannotList, "test_list_is_declared_honestly", passes=(*HANDLES, *READS)),
    "lists_without_declaring": fault(
        Folder,
        "test_list_is_declared_honestly",
        capabilities=EVERYTHING & ~Capability.LIST,
        passes=(*HANDLES, *READS),
    ),
    "declares_ranges_and_cannot": fault(
        objects.IgnoresRanges, "test_ranges_are_exact", "test_range_is_declared_honestly"
    ),
    "ranges_without_declaring": fault(
        Folder, "test_range_is_declared_honestly", capabilities=EVERYTHING & ~Capability.RANGE
    ),
    "declares_notify_and_cannot": fault(objects.CannotWait, "test_notify_is_declared_honestly"),
    "notifies_without_declaring": fault(
        Folder, "test_notify_is_declared_honestly", capabilities=EVERYTHING & ~Capability.NOTIFY
    ),
    "declares_retain_and_copies": fault(objects.GivesBackAtOnce, "test_retain_is_declared_honestly"),
    "retains_without_declaring": fault(
        Folder, "test_retain_is_declared_honestly", capabilities=EVERYTHING & ~Capability.RETAIN
    ),
    "shares_one_instance": fault(objects.SharesOneInstance, "test_factory_makes_a_backend"),
    # opening and closing
    "opens_once": fault(timing.OpensOnce, "test_opens_in_time", passes=("test_absence_is_an_error", *LISTS)),
    "hangs_on_close": fault(
        timing.HangsOnClose, "test_close_returns_in_time", passes=("test_factory_makes_a_backend",)
    ),
    "closes_after_its_readers": fault(
        timing.ClosesAfterItsReaders,
        "test_close_with_pending_operations_returns_in_time",
        capabilities=BASIC | Capability.NOTIFY,
    ),
    "closes_only_if_open": fault(timing.ClosesOnlyIfOpen, "test_close_without_open_is_harmless"),
    "wipes_at_open": fault(timing.WipesAtOpen, "test_opening_and_closing_change_nothing"),
    "forgets_at_close": fault(timing.ForgetsAtClose, "test_data_survives_reopening"),
    "knows_one_loop": fault(
        timing.KnowsOneLoop,
        "test_works_in_a_second_event_loop",
        passes=("test_opens_in_time", "test_absence_is_an_error"),
    ),
    "blocks_the_loop": fault(timing.BlocksTheLoop, "test_event_loop_stays_responsive"),
    "leaks": fault(timing.Leaks, "test_nothing_leaks"),
    # at the same time
    "drops_every_third": fault(
        timing.DropsEveryThird, "test_put_is_readable_at_once", passes=(*HANDLES, "test_absence_is_an_error")
    ),
    "lists_from_cache": fault(timing.ListsFromCache, "test_put_is_listed_at_once"),
    "takes_few_at_once": fault(timing.TakesFewAtOnce, "test_many_puts_at_once"),
    "stays_in_its_process": fault(timing.StaysInItsProcess, "test_another_process_reads_what_was_put"),
    "writes_in_place": fault(
        timing.WritesInPlace, "test_no_reader_sees_half_an_object", "test_killed_writer_leaves_whole_objects"
    ),
    "cancels_in_the_middle": fault(timing.CancelsInTheMiddle, "test_cancelled_put_leaves_all_or_nothing"),
    "clears_folders": fault(timing.ClearsFolders, "test_put_during_clear"),
    "counts_before_it_deletes": fault(timing.CountsBeforeItDeletes, "test_deletes_at_once_count_each_object_once"),
    # waiting
    "wakes_late": fault(timing.WakesLate, "test_wait_ends_at_the_deadline", passes=(*HANDLES, *READS)),
    "waits_though_it_is_late": fault(timing.WaitsThoughItIsLate, "test_wait_past_the_deadline_returns_the_listing"),
    "waits_for_the_next_change": fault(timing.WaitsForTheNextChange, "test_wait_ends_at_once_if_the_listing_differs"),
    "wakes_for_puts_only": fault(
        timing.WakesForPutsOnly, "test_wait_ends_after_a_delete", capabilities=BASIC | Capability.NOTIFY
    ),
    "polls_slowly": fault(timing.PollsSlowly, "test_wait_ends_after_a_put_of_another_process"),
    "waits_in_turn": fault(timing.WaitsInTurn, "test_many_waits_at_once"),
}

SOUND = {"reference": Broken(Folder, (), EVERYTHING), "async_reference": Broken(AsyncFolder, (), BASIC)}


def spec(name):
    """The declaration of a store of either table."""
    entry = {**SOUND, **BROKEN}[name]
    return StoreSpec(
        name=name,
        api_version=(1, 0),
        summary="a folder of objects",
        load_config=lambda: FolderConfig,
        create=lambda context: entry.backend(context.config),
        capabilities=entry.capabilities,
    )
