"""What people see: text made harmless, tables on terminals of any width, bars and numbers."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.cli.output import Output, clean, show_bytes, show_id, show_time

from .helpers import COMMAND, environment, routing

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore


@given(st.text())
def test_cleaned_text_is_printable(text: str) -> None:
    assert clean(text).isprintable()


@given(st.text(), st.text())
def test_two_ids_never_look_the_same(one: str, other: str) -> None:
    assert (show_id(one) == show_id(other)) == (one == other)


@pytest.mark.parametrize("text", ["a", "[red]x[/red]", "日本語", "a\\b", ":smile:", "{x}", "%s"])
def test_printable_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"), [("\x1b", "\\x1b"), ("\u202e", "\\u202e"), ("\udcff", "\\udcff"), ("\U000e0001", "\\U000e0001")]
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 50, "5120.0 TiB")],
)
def test_sizes_are_readable(count: int, shown: str) -> None:
    assert show_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 us"), (1.5e-4, "150 us"), (0.0123, "12.3 ms"), (1, "1.00 s"), (75, "75.00 s")]
)
def test_durations_are_readable(seconds: float, shown: str) -> None:
    assert show_time(seconds) == shown


def table(rows: list[list[str]], right: str = "") -> list[str]:
    stream = io.StringIO()
    Output(stream).table(["A", "B"], rows, right=right)
    return stream.getvalue().splitlines()


def test_columns_are_aligned() -> None:
    assert table([["x", "y"], ["longer", "z"]]) == ["A       B", "x       y", "longer  z"]


def test_numbers_are_aligned_to_the_right() -> None:
    assert table([["1", "y"], ["100", "z"]], right="r") == ["  A  B", "  1  y", "100  z"]


def test_wide_characters_count_twice() -> None:
    assert table([["日本", "y"], ["abcd", "z"]]) == ["A     B", "日本  y", "abcd  z"]


def test_a_bar_is_relative_to_the_largest_value() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")

    assert Output(stream).spark([0, 1, 4, 8]) == ".▁▄█"


def test_a_bar_can_do_without_unicode() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    assert Output(stream).spark([0, 1, 4, 8]) == "._+@"


def test_the_second_of_two_documents_is_not_printed() -> None:
    stream = io.StringIO()
    out = Output(stream, json=True)

    out.document({"a": 1})
    out.error("late", "the store did not close", "")

    assert stream.getvalue() == '{"a": 1}\n'


def on_a_terminal(*arguments: str, columns: int = 80, also_stdout: bool = True) -> str:
    """Runs the command with a terminal at stderr, and at stdout if wanted; returns all that the terminal got."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [COMMAND, *arguments],
        env=environment(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL,
        stdout=slave if also_stdout else subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 65536):
            output += chunk
    except OSError:  # the terminal's other end is closed
        pass
    os.close(master)
    assert process.wait(60) == 0
    return output.decode().replace("\r\n", "\n")


def test_a_table_that_fits_a_terminal_is_plain(filled: SyncStore, here: list[str]) -> None:
    assert on_a_terminal("ls", *here, columns=120).splitlines()[1].split()[0] == "a:0:0:0"


@pytest.mark.parametrize("columns", [60, 40, 20, 5, 1])
def test_a_table_that_does_not_fit_is_folded(filled: SyncStore, here: list[str], columns: int) -> None:
    filled.put("y" * 100, routing(1))

    lines = on_a_terminal("ls", *here, columns=columns).splitlines()

    assert max(map(len, lines)) <= max(columns, 20)


def test_hostile_ids_are_literal_on_a_narrow_terminal(store: SyncStore, here: list[str]) -> None:
    for rollout_id in ("[red]x[/red]", "\x1b[31mred", ":smile:"):
        store.put(rollout_id, routing(1))

    store.put("y" * 100, routing(1))

    text = on_a_terminal("ls", *here, columns=80)

    assert [shown for shown in ("[red]x[/red]", "\\x1b[31mred", ":smile:") if shown not in text] == []


def test_json_is_laid_out_for_people_on_a_terminal() -> None:
    assert on_a_terminal("list", "--json").startswith('{\n  "stores": [\n')


def test_progress_is_shown_on_a_terminal(filled: SyncStore, here: list[str]) -> None:
    assert "verifying" in on_a_terminal("verify", "--all", *here, also_stdout=False)


def test_progress_disappears_again(filled: SyncStore, here: list[str]) -> None:
    text = on_a_terminal("verify", "--all", *here)

    assert re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).rstrip().endswith("4 ok, 0 bad, 0 with warnings")


def test_a_demo_shows_progress_of_both_processes() -> None:
    text = on_a_terminal("demo", "--requests", "3", "--tokens", "12")

    assert ("rollout" in text, "trainer" in text) == (True, True)


def test_notes_survive_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    Output(io.StringIO()).note("nobody hears this")
