"""Names become paths within the store's folder, and nothing else does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.errors import InvalidKeyError
from fastdeploy_routing_plugins.keys import RoutingKey
from fastdeploy_routing_plugins.names import AbortName, SealName, object_name
from fastdeploy_routing_plugins.stores.local import layout
from fastdeploy_routing_plugins.testing.samples import AWKWARD_IDS

GOOD = "ns/x=3a1/000000/routing/0000000000000000000/x"

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


def path_of(rollout_id: str, namespace: str = "ns") -> list[str]:
    return layout.place(object_name(RoutingKey(rollout_id), namespace, 0, AbortName())).split("/")


def test_a_name_is_a_namespace_folder_a_rollout_folder_and_a_file() -> None:
    assert layout.place(GOOD) == "ns/x=3a1/000000.routing.0000000000000000000.x.safetensors"


@pytest.mark.parametrize("rollout_id", AWKWARD_IDS)
def test_every_awkward_id_has_a_path_of_three_plain_components(rollout_id: str) -> None:
    pieces = path_of(rollout_id)
    assert len(pieces) == 3
    assert not {"", ".", "..", ".tmp"} & set(pieces)


def test_awkward_ids_have_paths_of_their_own() -> None:
    assert len({tuple(path_of(rollout_id)) for rollout_id in AWKWARD_IDS}) == len(AWKWARD_IDS)


@given(texts, texts)
def test_ids_never_share_a_path(one: str, other: str) -> None:
    assert (path_of(one) == path_of(other)) == (one == other)


@given(texts)
def test_the_file_and_its_folders_give_the_name_back(rollout_id: str) -> None:
    name = object_name(RoutingKey(rollout_id, 3, "kind_2"), "ns", 77, SealName(12))
    namespace, rollout, file = layout.place(name).split("/")
    assert f"{namespace}/{rollout}/{layout.object_of(file)}" == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        GOOD + "/",
        "/" + GOOD,
        GOOD + "\n",
        GOOD.replace("ns", ".."),
        GOOD.replace("ns", "."),
        GOOD.replace("ns", ""),
        GOOD.replace("ns", ".tmp"),
        GOOD.replace("ns", ".fd-routing-store"),
        GOOD.replace("ns", "~xx"),
        GOOD.replace("x=3a1", ".."),
        GOOD.replace("x=3a1", "x:1"),
        GOOD.replace("x=3a1", "X"),
        GOOD.replace("x=3a1", "a" * 129),
        GOOD.replace("x=3a1", "~x" + "0" * 39),
        GOOD.replace("000000/", "..////"),
        GOOD.replace("000000/", "00000/"),
        GOOD.replace("000000/", "\N{ARABIC-INDIC DIGIT ZERO}" * 6 + "/"),
        GOOD.replace("routing", "routing.x"),
        GOOD.replace("routing", ".."),
        GOOD[:-1] + "..",
        GOOD[:-1] + "a.b",
        GOOD[:-1] + "a\0",
        GOOD[:-1] + "a" * 81,
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidKeyError):
        layout.place(name)


@pytest.mark.parametrize(
    "file", ["", "x.safetensors", "README", ".nfs0001", "000000.routing.0000000000000000000.x.safetensors.bak"]
)
def test_foreign_files_have_no_name(file: str) -> None:
    assert layout.object_of(file) is None


def test_every_byte_that_encoding_can_yield_is_a_folder_of_ours() -> None:
    ids = ["".join(pair) for pair in itertools.product(map(chr, range(1, 128)), repeat=2)]
    assert all(layout.is_folder(path_of(rollout_id)[1]) for rollout_id in ids)
