"""``fd-routing bench``: what it measures, how it is shown, and what is said of what cannot be measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.bench.arrays import Arrays, flat
from fastdeploy_routing_plugins.bench.figures import Times
from fastdeploy_routing_plugins.bench.peers import PeerKind
from fastdeploy_routing_plugins.bench.presets import PRESETS, Work
from fastdeploy_routing_plugins.bench.report import Report

from .helpers import invoke, run

SMALL = ("--files", "3", "--tokens", "4096", "--rounds", "2", "--warm-up", "1")
HERE = str(Path(__file__).parent.parent.parent)


def left_over() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("fd-routing-bench-")}


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Any], set[str]]:
    """A small run of everything that needs nothing, as JSON; and what it left in shared memory."""
    before = left_over()
    ended = run("bench", *SMALL, "--stores", "local,rdma,noop", "--peers", "numpy,p2pstore", "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), left_over() - before


def names(document: dict[str, Any], kind: str) -> list[str]:
    return [each["name"] for each in document["files"] if each["kind"] == kind]


def test_every_put_is_measured(measured: tuple[dict[str, Any], set[str]]) -> None:
    assert names(measured[0], "put") == [
        "local: put",
        "rdma: put",
        "noop: put",
        "numpy.save",
        *p2p(measured[0], "put"),
        "memory copy",
    ]


def test_every_way_to_get_is_measured(measured: tuple[dict[str, Any], set[str]]) -> None:
    shm = ["rdma shm: get", "rdma shm: get, waited for", "rdma shm: view, waited for"]
    wanted = ["local: get", *shm, "rdma tcp: get", "numpy.load", *p2p(measured[0], "get"), "one plain TCP stream"]
    assert sorted(names(measured[0], "get")) == sorted(wanted)


def p2p(document: dict[str, Any], verb: str) -> list[str]:
    """What is measured of p2pstore: nothing where it is not installed, or cannot be shut away from other hosts."""
    return [] if "p2pstore" in document["left_out"] else [f"p2pstore.{verb}"]


def test_the_time_for_which_an_engine_is_blocked_is_measured(measured: tuple[dict[str, Any], set[str]]) -> None:
    assert names(measured[0], "blocked") == ["local: submit", "rdma: submit", "noop: submit"]


def test_a_batch_over_tcp_stands_beside_the_plain_stream(measured: tuple[dict[str, Any], set[str]]) -> None:
    (share,) = measured[0]["shares"]
    assert (share["of"], share["share"] > 0) == ("rdma tcp: one get_batch", True)


def test_all_files_are_counted(measured: tuple[dict[str, Any], set[str]]) -> None:
    counts = {(each["count"], each["wanted"]) for each in measured[0]["files"] if each["kind"] != "batch"}
    assert counts == {(3, 3)}


def test_ours_moves_end_to_end_what_there_is(measured: tuple[dict[str, Any], set[str]]) -> None:
    moved = {each["name"]: each["nbytes"] for each in measured[0]["rollouts"]}
    assert moved["ours, rdma: get"] == 3 * 256 * 8


def test_nothing_is_left_in_shared_memory(measured: tuple[dict[str, Any], set[str]]) -> None:
    assert measured[1] == set()


def test_what_is_not_installed_is_said_in_a_line() -> None:
    result = invoke("bench", *SMALL, "--stores", "local", "--get", "each", "--peers", "tests.cli.test_bench:ABSENT")
    line = "not measured: tests.cli.test_bench:ABSENT: needs the Python package 'no_such_package'"
    assert (result.exit_code, line in result.stdout.splitlines()) == (0, True), result.output


ABSENT = PeerKind("absent", "absent.put", "absent.get", lambda site: None, ("no_such_package",))  # type: ignore[arg-type,return-value]


class Wrong:
    """A peer that returns something else, or raises."""

    def __init__(self, site: Any) -> None:
        self._raises = "raise" in os.environ.get("WRONG", "")

    def prepare(self, arrays: Any) -> None: ...

    def put(self, key: str, array: Any) -> None:
        if self._raises:
            raise ValueError("no more")

    def get(self, key: str) -> bytes:
        return b"something else"

    def delete(self, keys: Any) -> None: ...

    def close(self) -> None: ...


WRONG = PeerKind("wrong", "wrong.put", "wrong.get", Wrong)  # type: ignore[arg-type]


def outside(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command where a module of the tests can be imported."""
    line = [sys.executable, "-c", "from fastdeploy_routing_plugins.cli.main import main; main()", "bench", *SMALL]
    env = {**os.environ, "PYTHONPATH": HERE, **environ}
    return subprocess.run([*line, *args], env=env, cwd=HERE, capture_output=True, text=True, timeout=100)


def test_a_changed_byte_voids_the_measurement() -> None:
    ended = outside("--stores", "local", "--peers", "tests.cli.test_bench:WRONG")
    assert (ended.returncode, ended.stdout, "bytes were changed" in ended.stderr) == (1, "", True), ended.stderr


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A run with a peer that fails, and its picture."""
    picture = tmp_path_factory.mktemp("pictures") / "p.png"
    more = ["--plot", str(picture)] if find_spec("matplotlib") else []
    peer = "tests.cli.test_bench:WRONG"
    return outside("--stores", "local", "--peers", peer, "--json", *more, WRONG="raise"), picture


def test_a_peer_that_fails_does_not_keep_the_others_from_being_measured(
    failing: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    document = json.loads(failing[0].stdout)
    assert (failing[0].returncode, document["failed"], "local: get" in names(document, "get")) == (
        1,
        {"tests.cli.test_bench:WRONG": "ValueError: no more"},
        True,
    )


def test_the_picture_is_a_png(failing: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert failing[1].read_bytes()[:4] == b"\x89PNG", failing[0].stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ("--peers", "nothing"),
        ("--stores", "nothing"),
        ("--config", "rdma"),
        ("--config", 'rdma={"no_such_option": 1}'),
        ("--transport", "pigeon"),
        ("--tokens", "1000000000"),
        ("--folder", "/no/such/folder"),
    ],
)
def test_a_wrong_command_line_is_found_out_before_anything_is_measured(wrong: tuple[str, str]) -> None:
    result = invoke("bench", *wrong)
    assert (result.exit_code, result.stdout) == (2, ""), result.output


# --- what is moved, and the numbers ---------------------------------------------------------------------------------


def test_a_file_of_the_paper_has_as_many_bytes_as_fastdeploys() -> None:
    paper = PRESETS["paper"]
    assert (paper.files, paper.nbytes, paper.padded_bytes // paper.rollout_layers) == (37, 1 << 20, 1 << 20)


@pytest.mark.parametrize(("preset", "layers", "tokens"), [("glm45-air", 45, 8192), ("deepseek-v3", 58, 32_768)])
def test_a_model_has_its_size(preset: str, layers: int, tokens: int) -> None:
    work = PRESETS[preset]
    assert (work.layers, work.tokens, work.top_k, work.nbytes) == (layers, tokens, 8, layers * tokens * 8)


WORK = Work("small", 3, 1, 64, 4, 3, 16, 64, "int32")


def test_what_a_place_held_is_not_what_is_expected_there_next() -> None:
    arrays = Arrays(WORK)
    assert not any(np.array_equal(a, b) for a, b in zip(arrays.files(0), arrays.files(1), strict=True))


def test_the_experts_of_a_token_differ() -> None:
    (first, *_) = Arrays(WORK).files(0)
    assert all(len(set(row)) == 4 for row in first.reshape(-1, 4).tolist())


def test_the_engines_table_is_the_rollout_padded_with_minus_one() -> None:
    arrays = Arrays(WORK)
    table = arrays.table(1)
    assert np.array_equal(table[:, :16], arrays.rollout(1))
    assert (table[:, 16:] == -1).all()


@pytest.mark.parametrize("of", [lambda a: a, bytes, memoryview, lambda a: [a[:1], a[1:]]])
def test_bytes_are_compared_in_whatever_form_they_arrive(of: Any) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert flat(of(array)).tolist() == [0, 1, 2, 3, 4, 5]


def test_figures_are_those_of_all_rounds_and_the_total_is_one_rounds() -> None:
    figures = Times("x", "y", "put", 10, [[1_000_000_000, 3_000_000_000], [2_000_000_000, 6_000_000_000]]).figures()
    assert [figures.mean, figures.min, figures.max, figures.total, figures.p50, figures.rate] == [3, 1, 6, 6, 2.5, 4]


def test_the_original_stands_beside_the_paper() -> None:
    figures = [Times("x", "y", "put", 1, [[10]]).figures()]
    report = Report(PRESETS["paper"], 1, 0, figures, [], {}, {}, {}, {})
    assert [row[0] for row in report.tables()[0].rows[1:]] == [
        f"FastDeploy#5467: {name}" for name in ("paddle.save", "paddle.load", "p2pstore.put", "p2pstore.get")
    ]


def test_markdown_is_tables_and_a_list() -> None:
    figures = [Times("x|y", "y", "put", 1, [[10]]).figures()]
    text = Report(WORK, 1, 0, figures, [], {"redis": "why"}, {}, {}, {}).markdown()
    assert [text.splitlines()[1], "x\\|y" in text, "* not measured: redis: why" in text] == [
        "| --- |" + " ---: |" * 8,
        True,
        True,
    ]
