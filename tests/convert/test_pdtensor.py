"""FastDeploy's file tree, written by the real ``paddle.save`` and by the store ``local``."""

from __future__ import annotations

import io
import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, open_store
from fastdeploy_routing_plugins.convert import pdtensor
from fastdeploy_routing_plugins.convert.rows import ForeignRows
from fastdeploy_routing_plugins.errors import InvalidRecordError, MissingDependencyError, StoreUnavailableError

from .helpers import SCHEMA, WIDE, routing

EDGE = RoutingSchema(256, 4, range(1, 7))


@pytest.fixture(scope="module", autouse=True)
def paddle() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("paddle")


def layers(tokens: int, schema: RoutingSchema = SCHEMA) -> Any:
    """``[layers, tokens, top_k]``, as FastDeploy puts it."""
    return np.ascontiguousarray(routing(tokens, schema=schema).transpose(1, 0, 2))


def fused(paddle: Any, tree: Path, rollout_id: str, array: Any) -> None:
    """As ``RoutingStoreLocal.put`` of FastDeploy 2.6 writes all layers."""
    paddle.save(array, os.path.join(tree, rollout_id, f"{rollout_id}.pdtensor"))


def by_layer(paddle: Any, tree: Path, rollout_id: str, array: Any, present: Any = None) -> None:
    """As it writes them one by one."""
    for layer in range(len(array)) if present is None else present:
        paddle.save(array[layer], os.path.join(tree, rollout_id, f"layer_{layer}.pdtensor"))


def load_one(tree: Path, schema: RoutingSchema = SCHEMA) -> list[ForeignRows]:
    (files,) = pdtensor.find(tree).rollouts
    return pdtensor.load(tree, files, schema)


@pytest.mark.parametrize("write", [fused, by_layer])
@pytest.mark.parametrize("tensor", [False, True], ids=["array", "tensor"])
@pytest.mark.parametrize(("schema", "dtype"), [(SCHEMA, "uint8"), (WIDE, "int32"), (SCHEMA, "int64")])
def test_a_request_becomes_a_record(
    paddle: Any, tmp_path: Path, write: Any, tensor: bool, schema: RoutingSchema, dtype: str
) -> None:
    array = layers(20, schema).astype(dtype)
    write(paddle, tmp_path, "data:0:0:0", paddle.to_tensor(array) if tensor else array)
    (rows,) = load_one(tmp_path, schema)
    assert rows.record("a").routing.tolist() == array.tolist()


def test_a_fused_file_of_the_first_kind_had_no_folder(paddle: Any, tmp_path: Path) -> None:
    paddle.save(layers(20).astype("u1"), str(tmp_path / "data:0:0:0.pdtensor"))
    (files,) = pdtensor.find(tmp_path).rollouts
    assert (files.rollout_id, len(load_one(tmp_path)[0])) == ("data:0:0:0", 20)


@pytest.mark.parametrize("layout", ["whole", "layers"])
def test_the_store_locals_own_tree_is_read(tmp_path: Path, layout: str) -> None:
    config = {"store_dir": str(tmp_path), "layout": "pdtensor"}
    with open_store({"routing_store_type": "local", "routing_store_config": config}, schema=WIDE) as store:
        for layer in [None] if layout == "whole" else range(6):
            store.put("a:0", layers(20, WIDE)[layer if layer is not None else slice(None)], layers=layer)
    assert load_one(tmp_path, WIDE)[0].record("a").routing.tolist() == layers(20, WIDE).tolist()


@pytest.mark.parametrize("write", [fused, by_layer])
@pytest.mark.parametrize(("dtype", "fill"), [("uint8", 255), ("int32", -1)])
def test_padding_is_dropped(paddle: Any, tmp_path: Path, write: Any, dtype: str, fill: int) -> None:
    array = np.full((6, 64, 4), fill, dtype)
    array[:, :20] = layers(20)
    write(paddle, tmp_path, "r", array)
    (rows,) = load_one(tmp_path)
    assert (rows.total_tokens, rows.record("a").routing.tolist()) == (20, layers(20).tolist())


@pytest.mark.parametrize("write", [fused, by_layer])
def test_a_tensor_of_paddles_uint16_is_bfloat16(paddle: Any, tmp_path: Path, write: Any) -> None:
    table = paddle.full([6, 64, 4], -1, dtype="uint16")
    table[:, :20] = paddle.to_tensor(layers(20, EDGE)).astype("uint16")
    write(paddle, tmp_path, "r", table)
    assert load_one(tmp_path, EDGE)[0].record("a").routing.tolist() == layers(20, EDGE).tolist()


def test_bfloat16_of_more_experts_is_refused_since_it_rounds(paddle: Any, tmp_path: Path) -> None:
    fused(paddle, tmp_path, "r", paddle.to_tensor(layers(20, WIDE)).astype("uint16"))
    with pytest.raises(InvalidRecordError, match="which rounds above 256"):
        load_one(tmp_path, WIDE)


def test_an_array_of_uint16_is_what_it_says(paddle: Any, tmp_path: Path) -> None:
    fused(paddle, tmp_path, "r", layers(20, WIDE).astype("u2"))
    assert load_one(tmp_path, WIDE)[0].record("a").routing.tolist() == layers(20, WIDE).tolist()


def test_missing_layers_leave_parts_with_a_common_total(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", layers(20).astype("u1"), [0, 1, 4])
    found = load_one(tmp_path)
    assert [(rows.part.layers, rows.total_tokens) for rows in found] == [((0, 2), 20), ((4, 5), 20)]


def test_missing_layers_do_not_shift_the_others(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", layers(20).astype("u1"), [0, 1, 4])
    assert load_one(tmp_path)[1].record("a").routing.tolist() == layers(20)[4:5].tolist()


def test_layers_of_different_lengths_are_refused(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", layers(20).astype("u1"))
    paddle.save(layers(19)[3].astype("u1"), str(tmp_path / "r/layer_3.pdtensor"))
    with pytest.raises(InvalidRecordError, match="layer 3 has 19 tokens of uint8, layer 0 has 20"):
        load_one(tmp_path)


def test_a_layer_that_the_model_does_not_have_is_refused(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", layers(20).astype("u1"))
    os.rename(tmp_path / "r/layer_5.pdtensor", tmp_path / "r/layer_6.pdtensor")
    with pytest.raises(InvalidRecordError, match="no layer at position 6"):
        load_one(tmp_path)


def test_both_kinds_of_files_at_once_are_refused(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", layers(20).astype("u1"))
    fused(paddle, tmp_path, "r", layers(20).astype("u1"))
    with pytest.raises(InvalidRecordError, match="of all layers, there are files of single layers"):
        load_one(tmp_path)


@pytest.mark.parametrize("shape", [(5, 20, 4), (6, 20, 5), (20, 6, 4), (6, 20), (480,)])
def test_another_shape_is_refused(paddle: Any, tmp_path: Path, shape: Any) -> None:
    fused(paddle, tmp_path, "r", np.zeros(shape, "u1"))
    with pytest.raises(InvalidRecordError):
        load_one(tmp_path)


def test_a_layers_file_with_all_layers_is_refused(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", [layers(20).astype("u1")])
    with pytest.raises(InvalidRecordError, match=r"is not that of \[tokens, top_k\]"):
        load_one(tmp_path)


def test_bytes_behind_the_pickle_are_refused(tmp_path: Path, paddle: Any) -> None:
    fused(paddle, tmp_path, "r", layers(20).astype("u1"))
    with open(tmp_path / "r/r.pdtensor", "ab") as file:
        file.write(b"more")
    with pytest.raises(InvalidRecordError, match="4 bytes stand behind the end"):
        load_one(tmp_path)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "gone off")


def test_a_bomb_in_the_tree_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree/r").mkdir(parents=True)
    (tmp_path / "tree/r/r.pdtensor").write_bytes(pickle.dumps(Bomb(tmp_path / "bomb"), 4))
    with pytest.raises(InvalidRecordError, match="does not belong in one"):
        load_one(tmp_path / "tree")
    assert not (tmp_path / "bomb").exists()


def test_the_same_bomb_goes_off_in_paddle(tmp_path: Path, paddle: Any) -> None:
    paddle.load(io.BytesIO(pickle.dumps(Bomb(tmp_path / "bomb"), 4)))
    assert (tmp_path / "bomb").exists()


def test_what_does_not_belong_to_a_tree_is_named(paddle: Any, tmp_path: Path) -> None:
    by_layer(paddle, tmp_path, "r", layers(3).astype("u1"))
    for name in ("r/layer_01.pdtensor", "r/layer_x.pdtensor", "r/notes.txt", "readme", ".hidden", "r/.hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "empty").mkdir()
    tree = pdtensor.find(tmp_path)
    assert (len(tree.rollouts[0].layers), tree.skipped) == (
        6,
        ("empty", "r/layer_01.pdtensor", "r/layer_x.pdtensor", "r/notes.txt", "readme"),
    )


def test_links_are_not_followed(paddle: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fused(paddle, outside, "r", layers(3).astype("u1"))
    (tmp_path / "tree/a").mkdir(parents=True)
    (tmp_path / "tree/a/a.pdtensor").symlink_to(outside / "r/r.pdtensor")
    (tmp_path / "tree/r").symlink_to(outside / "r")
    tree = pdtensor.find(tmp_path / "tree")
    with pytest.raises(InvalidRecordError, match="links are not followed"):
        pdtensor.load(tmp_path / "tree", tree.rollouts[0], SCHEMA)
    assert ([files.rollout_id for files in tree.rollouts], tree.skipped) == (["a"], ("r",))


def test_a_named_pipe_does_not_hold_anything_up(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/a.pdtensor")
    with pytest.raises(InvalidRecordError, match="is no file"):
        load_one(tmp_path)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, paddle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fused(paddle, tmp_path, "r", layers(20).astype("u1"))
    monkeypatch.setattr(pdtensor, "MAX_BYTES", 100)
    with pytest.raises(InvalidRecordError, match="over the limit"):
        load_one(tmp_path)


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="No such file"):
        pdtensor.find(tmp_path / "no")


@pytest.mark.parametrize("schema", [SCHEMA, EDGE, WIDE], ids=str)
def test_what_is_encoded_is_what_paddle_loads(paddle: Any, schema: RoutingSchema) -> None:
    record = ForeignRows(routing(20, schema=schema), schema, total_tokens=20).record("a")
    assert paddle.load(io.BytesIO(pdtensor.encode(record))).tolist() == record.routing.tolist()


def test_one_layer_is_encoded_with_two_axes(paddle: Any) -> None:
    record = ForeignRows(routing(20), SCHEMA, total_tokens=20).record("a")
    assert paddle.load(io.BytesIO(pdtensor.encode(record, layer=2))).tolist() == record.routing[2].tolist()


def test_a_tree_without_paddle_is_still_read(paddle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fused(paddle, tmp_path, "r", layers(20).astype("u1"))
    monkeypatch.setitem(sys.modules, "paddle", None)
    assert len(load_one(tmp_path)[0]) == 20


def test_encoding_without_paddle_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paddle", None)
    record = ForeignRows(routing(20), SCHEMA, total_tokens=20).record("a")
    with pytest.raises(MissingDependencyError, match="pip install"):
        pdtensor.encode(record)
