"""What is found from metadata alone."""

from __future__ import annotations

import json
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.discovery import Candidate, discover, scan

from .fabricate import GOOD, GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.discovery import Scan

    from .fabricate import Site


@pytest.fixture
def look(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Scan]]:
    """Scans the fabricated folders and nothing else."""

    def scanned() -> Scan:
        monkeypatch.setattr(sys, "path", [str(folder) for folder in site.folders])
        return scan()

    yield scanned
    monkeypatch.undo()
    scan(refresh=True)


def test_a_candidate_says_where_it_comes_from(site: Site, look: Callable[[], Scan]) -> None:
    info = site.distribution("FD_Routing.Demo", "1.0rc1", entries={"demo": "fdx_demo : plugin [extra]"})
    expected = Candidate("demo", "fdx_demo:plugin", "fd-routing-demo", "1.0rc1", str(info))
    assert look().candidates == (expected,)


def test_candidates_are_sorted_by_name(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution(entries={"zebra": "fdx_demo", "ant": "fdx_demo"})
    assert [candidate.name for candidate in look().candidates] == ["ant", "zebra"]


def test_nothing_is_imported(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution(modules={"fdx_demo": "1/0"})
    look()
    assert "fdx_demo" not in sys.modules


def test_entry_points_of_other_groups_are_not_ours(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution(entries=f"[{GROUP}.more]\ndemo = fdx_demo\n")
    assert look().candidates == ()


@pytest.mark.parametrize(
    ("entries", "metadata"),
    [
        (f"[{GROUP}]\nthis line is nonsense\n", None),
        (f"[{GROUP}]\ndemo = fdx_demo\n", b"Name: \xff\xfe\nVersion: 1.0\n"),
        (f"[{GROUP}]\ndemo = fdx_demo\n", b"Version: 1.0\n"),
        (f"[{GROUP}]\ndemo = fdx_demo\n", b"Name: fd-routing-broken\n"),
        (f"[{GROUP}]\ndemo = fdx_demo\n", b""),
        (f"[{GROUP}]\ndemo = fdx_demo\n", b"\n\nName: fd-routing-broken\nVersion: 1.0\n"),
    ],
)
def test_broken_metadata_is_noted_and_hides_nothing_else(
    site: Site, look: Callable[[], Scan], entries: str, metadata: bytes | None
) -> None:
    site.distribution("fd-routing-broken", entries=entries, metadata=metadata, modules={})
    site.distribution("fd-routing-well", entries={"well": "fdx_well"}, modules={})
    found = look()
    assert ([candidate.name for candidate in found.candidates], len(found.problems)) == (["well"], 1)


def test_entry_points_that_are_not_text_are_noted(site: Site, look: Callable[[], Scan]) -> None:
    info = site.distribution(modules={})
    (info / "entry_points.txt").write_bytes(f"[{GROUP}]\ndemo = \xff\n".encode("latin-1"))
    assert str(info) in look().problems[0]


def test_broken_metadata_is_told_when_a_store_is_unknown(site: Site) -> None:
    info = site.distribution(metadata=b"")
    assert str(info) in site.resolve("demo").text


def test_a_folder_without_entry_points_is_no_problem(site: Site, look: Callable[[], Scan]) -> None:
    info = site.distribution(modules={})
    (info / "entry_points.txt").unlink()
    assert look().problems == ()


def test_metadata_of_unrelated_distributions_is_not_read(site: Site, look: Callable[[], Scan]) -> None:
    info = site.distribution("unrelated", entries="[console_scripts]\nx = y:z\n", modules={})
    (info / "METADATA").unlink()
    (info / "METADATA").mkdir()
    assert look().problems == ()


def test_hidden_stores_are_found(site: Site, look: Callable[[], Scan]) -> None:
    stale = site.distribution(version="0.9", entries="", modules={}, folder="old")
    site.distribution(version="1.1", folder="new")
    (hidden,) = look().hidden
    found = hidden.candidate.name, hidden.candidate.version, hidden.by_version, hidden.by_location
    assert found == ("demo", "1.1", "0.9", str(stale))


def test_a_store_that_both_versions_declare_is_not_hidden(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution(version="0.9", folder="old")
    site.distribution(version="1.1", folder="new")
    found = look()
    assert ([candidate.version for candidate in found.candidates], found.hidden) == (["0.9"], ())


def test_a_plugin_in_a_zip_file_works(site: Site) -> None:
    archive = site.root / "plugins.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("fd_routing_demo-1.0.dist-info/METADATA", "Name: fd-routing-demo\nVersion: 1.0\n")
        file.writestr("fd_routing_demo-1.0.dist-info/entry_points.txt", f"[{GROUP}]\ndemo = fdx_demo\n")
        file.writestr("fdx_demo.py", GOOD)
    site.folders.append(archive)
    assert site.resolve("demo").version == "1.0"


def test_a_process_scans_once(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution()
    assert look() is look()


def test_a_scan_can_be_repeated(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution()
    look()
    site.distribution("fd-routing-more", entries={"more": "fdx_more"}, modules={})
    assert [candidate.name for candidate in discover(refresh=True)] == ["demo", "more"]


def test_another_path_is_scanned_anew(site: Site, look: Callable[[], Scan]) -> None:
    site.distribution()
    look()
    site.distribution("fd-routing-more", entries={"more": "fdx_more"}, modules={}, folder="more")
    assert [candidate.name for candidate in look().candidates] == ["demo", "more"]


def test_discovery_loads_nothing_heavy(site: Site) -> None:
    code = (
        "import json, sys\nfrom fastdeploy_routing_plugins import discover\ndiscover()\n"
        "print(json.dumps([m for m in ('numpy', 'pluggy', 'msgspec', 'asyncio', 'zmq', 'rich') if m in sys.modules]))"
    )
    assert json.loads(site.run(code).stdout) == []
