"""What commands print: tables, documents and progress, safe against whatever text comes out of a store."""

from __future__ import annotations

import json
import os
import select
import sys
import unicodedata
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_GAP = "  "
_LEAST = 20  # columns that the widest column needs, if it is to be broken into lines
ID_LIMIT = 63


class Output:
    """Where a command's results go. Results are printed to stdout, everything else to stderr.

    Attributes:
        json: Whether the one result is a JSON document.
        debug: Whether tracebacks are shown.
        abandoned: Whether a store's call that hangs was left behind: the process must not wait for its threads.
        trouble: The exit code of a command that could not do its work; 2 where 1 is an answer.
    """

    def __init__(self, stream: TextIO | None, *, json: bool = False, debug: bool = False) -> None:
        self.json = json
        self.debug = debug
        self.abandoned = False
        self.trouble = 1
        self._stream = stream  # None if stdout was closed from the start
        self._documents = 0

    def document(self, value: dict[str, Any]) -> bool:
        """Prints the document if JSON was asked for; returns whether it was."""
        if self.json:
            self._documents += 1
            # ASCII, since a terminal obeys more control characters than JSON escapes by itself.
            self._write(json.dumps(value, ensure_ascii=True, indent=2 if self._to_people() else None))
        return self.json

    def line(self, text: str = "") -> None:
        """Prints a line of a result, unless JSON was asked for."""
        if not self.json:
            self._write(clean(text))

    def note(self, text: str) -> None:
        """Prints lines that are no result, to stderr."""
        if sys.stderr is not None:
            print(*map(clean, text.split("\n")), sep="\n", file=sys.stderr, flush=True)

    def error(self, code: str, message: str, hint: str, *, problems: Sequence[str] | None = None) -> None:
        """Prints an error: a document, or a line and a hint to stderr."""
        if self.json and not self._documents:
            more = {"problems": list(problems)} if problems else {}
            self.document({"error": {"code": code, "message": message, "hint": hint, **more}})
            return
        self.note(f"error: {_one_line(message)}")
        if hint:
            self.note(f"hint: {_one_line(hint)}")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> None:
        """Prints rows of text under headers; aligned plain text, folded into columns by rich on a terminal.

        Args:
            headers: One per column.
            rows: Cells; control characters are escaped.
            right: One letter per column, ``r`` where cells are aligned to the right.
        """
        if self.json:
            return
        right = right.ljust(len(headers))
        cells = [[clean(cell) for cell in row] for row in [headers, *rows]]
        widths = [max(_width(row[i]) for row in cells) for i in range(len(headers))]
        if self._to_people() and sum(widths) + len(_GAP) * (len(widths) - 1) > _columns():
            widest = widths.index(max(widths))
            others = sum(widths) - widths[widest] + len(_GAP) * (len(widths) - 1)
            self._fold(cells, right, widest if others + _LEAST <= _columns() else None)
            return
        for row in cells:
            padded = [
                " " * (width - _width(cell)) + cell if side == "r" else cell + " " * (width - _width(cell))
                for cell, width, side in zip(row, widths, right, strict=True)
            ]
            self._write(_GAP.join(padded).rstrip())

    def _fold(self, cells: list[list[str]], right: str, widest: int | None) -> None:
        """Prints a table with one column broken into lines, or all of them: what has no room would vanish."""
        from rich.console import Console  # noqa: PLC0415 - rich costs 50 ms that narrow tables do not pay
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="")
        for index, (header, side) in enumerate(zip(cells[0], right, strict=True)):
            justify: Literal["left", "right"] = "right" if side == "r" else "left"
            table.add_column(Text(header), justify=justify, overflow="fold", no_wrap=widest not in (None, index))
        for row in cells[1:]:
            table.add_row(*map(Text, row))
        Console(file=self._stream, markup=False, emoji=False, highlight=False).print(table)

    def spark(self, values: Sequence[int]) -> str:
        """Returns a bar of one character per value, relative to the largest; zero is a dot."""
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        steps = "▁▂▃▄▅▆▇█" if encoding.lower().replace("-", "") == "utf8" else "_-=+*%#@"
        top = max(values, default=0)
        return "".join(steps[(value * len(steps) - 1) // top] if value else "." for value in values)

    @contextmanager
    def progress(self, labels: Sequence[str], total: int) -> Iterator[Callable[[int, int], None]]:
        """Shows bars on stderr if that is a terminal.

        Args:
            labels: One per bar.
            total: How many there are to do.

        Yields:
            A function of a bar's index and of how many are done.
        """
        told = [0] * len(labels)

        def advance(index: int, done: int) -> None:
            told[index] = done
            show(index, done)

        with self._bars(labels, total) as show:
            try:
                yield advance
            except KeyboardInterrupt:
                done = [f"{label}: {count} of {total}" for label, count in zip(labels, told, strict=True)]
                self.note(f"interrupted; {', '.join(done)}")
                raise

    @contextmanager
    def _bars(self, labels: Sequence[str], total: int) -> Iterator[Callable[[int, int], None]]:
        if sys.stderr is None or not sys.stderr.isatty() or total < 1:
            yield lambda index, done: None
            return
        from rich.console import Console  # noqa: PLC0415 - only for people at a terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bars:
            tasks = [bars.add_task(clean(label), total=total) for label in labels]
            yield lambda index, done: bars.update(tasks[index], completed=done)

    def flush(self) -> None:
        """Flushes stdout, so that a closed pipe is noticed here."""
        if self._stream is not None:
            with _unwritable():
                self._stream.flush()

    def discard(self, *, only_if_unread: bool = False) -> bool:
        """Sends what is still to be written, at exit at the latest, nowhere.

        Args:
            only_if_unread: Do it only if nobody reads stdout any more.

        Returns:
            Whether it was done.
        """
        try:
            fd = self._stream.fileno() if self._stream is not None else -1
        except (OSError, ValueError):
            return False
        if fd < 0:
            return False
        if only_if_unread:
            poll = select.poll()
            poll.register(fd, 0)
            if not poll.poll(0):
                return False
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, fd)
        os.close(devnull)
        return True

    def _to_people(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with _unwritable():
                self._stream.write(text + "\n")


class UnwritableError(Exception):
    """Stdout takes nothing more, for another reason than that nobody reads it."""


@contextmanager
def _unwritable() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as err:
        raise UnwritableError(f"cannot write the result: {err.strerror}") from err


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines())


def _columns() -> int:
    try:
        return os.get_terminal_size(1).columns
    except OSError:
        return 80


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(ch) else 2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text)


def clean(text: str) -> str:
    """Returns text in which everything that a terminal would not simply show is written as a backslash escape."""
    if text.isprintable():
        return text
    return "".join([ch if ch.isprintable() else ch.encode("unicode_escape", "surrogatepass").decode() for ch in text])


def show_id(rollout_id: str, choice: int = 0, *, limit: int = 0) -> str:
    """Returns a rollout id for people; no two ids look the same, since a backslash is doubled.

    Args:
        rollout_id: Any text.
        choice: Shown unless it is 0.
        limit: Longer ids lose their middle, in tables, where one would push everything else off the screen.
    """
    text = clean(rollout_id.replace("\\", "\\\\"))
    if limit and len(text) > limit:
        half = (limit - 3) // 2
        text = f"{text[:half]}...{text[-half:]}"
    return text + (f" #{choice}" if choice else "")


def show_bytes(count: float) -> str:
    """Returns a size for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_time(seconds: float) -> str:
    """Returns a duration for people."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.2f} s"


def show_numbers(ascending: Sequence[int]) -> str:
    """Returns ascending numbers as ranges, ``1-3,7``."""
    spans: list[list[int]] = []
    for value in ascending:
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def show_share(part: int, whole: int) -> str:
    """Returns a share in per cent, rounded down, so that only what is whole reads 100 %."""
    if not whole:
        return "-"
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02}%"
