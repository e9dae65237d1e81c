"""The engine of the crash tests: random work at random speed, with a diary of what was handed over and what ended."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdeploy_routing_plugins import RoutingWriter, open_writer
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.writer.tickets import Ticket, WriteFailure

from .crash_diary import LAYERS, SCHEMA, Diary, Span, digest, routing

FLUSH, CLOSE = 30.0, 20.0  # s, deadlines of the engine's calls


@dataclass
class Plan:
    """What an engine does.

    Attributes:
        name: Of the diary and of the rollouts.
        diary: Where it is written.
        config: Of the store.
        limits: Of the writer.
        seed: Of everything random.
        seconds: How long it hands over.
        spice: Put into some ids, for stores that look at them.
        half: Whether it stops for good in the middle of filling a reservation.
        close: Seconds that closing may take.
    """

    name: str
    diary: Path
    config: dict[str, Any]
    limits: dict[str, Any]
    seed: int
    seconds: float
    spice: str = ""
    half: bool = False
    close: float = CLOSE
    facts: dict[str, Any] = field(default_factory=dict)


class _Log(logging.Handler):
    def __init__(self, diary: Diary) -> None:
        super().__init__(logging.WARNING)
        self._diary = diary

    def emit(self, record: logging.LogRecord) -> None:
        self._diary.note("log", level=record.levelno, text=record.getMessage())


class Engine:
    """Hands over; every method adds one rollout, or changes the latest ones."""

    def __init__(self, plan: Plan, writer: RoutingWriter, diary: Diary) -> None:
        self._plan = plan
        self._writer = writer
        self._diary = diary
        self._chance = random.Random(plan.seed)
        self._open: dict[int, Ticket] = {}
        self._lock = threading.Lock()
        self._longest = 0.0
        self._rollouts = 0

    # --- what can be done ---------------------------------------------------------------------------------------

    def whole(self) -> None:
        key, rows = self._key(), self._rows()
        self._put(key, rows)

    def token_first(self) -> None:
        self._put(self._key(), self._rows(), layout="token_first")

    def wide(self) -> None:
        self._put(self._key(), self._rows() // 4 + 1, dtype=np.dtype(np.int32))

    def layer_by_layer(self) -> None:
        key, rows = self._key(), self._rows()
        for layer in range(LAYERS):
            self._put(key, rows, layers=(layer, layer + 1))

    def in_chunks(self) -> None:
        key, rows = self._key(), self._rows() + 3
        edges = [0, *sorted(self._chance.sample(range(1, rows), 2)), rows]
        for chunk in itertools.pairwise(edges):
            self._put(key, rows, tokens=chunk)
        self._other("seal", key, lambda: self._writer.seal(key, rows))

    def reserved(self) -> None:
        key, rows = self._key(), self._rows()
        self._reserve(key, rows)

    def again(self) -> None:
        key, rows = self._key(), self._rows() // 2 + 1
        self._put(key, rows)
        self._put(key, rows, attempt=1)

    def aborted(self) -> None:
        key, rows = self._key(), self._rows() // 2 + 2
        self._put(key, rows, tokens=(0, rows // 2))
        self._other("abort", key, lambda: self._writer.abort(key, "changed my mind"))

    def deleted(self) -> None:
        key, rows = self._key(), self._rows() // 2 + 1
        self._put(key, rows)
        self._other("delete", key, lambda: self._writer.delete(key))

    def flushed(self) -> None:
        self._timed("flush", FLUSH, lambda: self._writer.flush(FLUSH))

    # --- how it is done -----------------------------------------------------------------------------------------

    def work(self) -> None:
        """Does random things until the time is over."""
        deeds = {
            self.whole: 6, self.token_first: 4, self.wide: 1, self.layer_by_layer: 3, self.in_chunks: 2,
            self.reserved: 4, self.again: 1, self.aborted: 1, self.deleted: 2, self.flushed: 0.3,
        }  # fmt: skip
        pause = self._chance.choice([0.0, 0.0, 0.002, 0.01, 0.03])
        end = time.monotonic() + self._plan.seconds
        half = end - self._plan.seconds * self._chance.random()
        while time.monotonic() < end:
            self._chance.choices(list(deeds), list(deeds.values()))[0]()
            time.sleep(self._chance.random() * pause)
            if self._plan.half and time.monotonic() > half:
                self._reserve(self._key(), 30_000, forever=True)

    def watch(self, over: threading.Event) -> None:
        """Notes how tickets end, until told that it is over."""
        last = False
        while not last:
            last = over.wait(0.001)
            with self._lock:
                ended = [(number, ticket) for number, ticket in self._open.items() if ticket.done()]
                for number, _ in ended:
                    del self._open[number]
            for number, ticket in ended:
                try:
                    ticket.result(0)
                    self._diary.note("ack", n=number)
                except RoutingError as err:
                    self._diary.note("fail", n=number, code=err.code)

    def end(self) -> None:
        """Closes the writer."""
        self._diary.note("closing")
        self._timed("close", self._plan.close, lambda: self._writer.close(self._plan.close))
        self._diary.note("longest", seconds=self._longest)

    def _timed(self, what: str, limit: float, call: Callable[[], Any]) -> None:
        began = time.monotonic()
        report = call()
        numbers = {"failed": report.failed, "kept": len(report.failures), "pending": report.pending}
        self._diary.note(what, seconds=time.monotonic() - began, limit=limit, **numbers)

    def _key(self) -> str:
        self._rollouts += 1
        spice = self._plan.spice if self._rollouts % 25 == 7 else ""
        return f"{self._plan.name}{spice}:{self._chance.randrange(6)}:{self._rollouts}:0"

    def _rows(self) -> int:
        return self._chance.choice([1, 7, 60, 300, 300, 1500, 9000, self._chance.randrange(20_000, 50_000)])

    def _put(
        self,
        key: str,
        rows: int,
        *,
        attempt: int = 0,
        layers: Span = (0, LAYERS),
        tokens: Span | None = None,
        layout: str = "layer_first",
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        span = (0, rows) if tokens is None else tokens
        array = routing(key, attempt, rows)[slice(*layers), slice(*span)]
        number = self._want(key, attempt, layers, span, rows, array)
        given: npt.NDArray[Any] = array if dtype is None else array.astype(dtype)
        if layout == "token_first":
            given = np.ascontiguousarray(given.transpose(1, 0, 2))
        self._hand_over(
            number,
            lambda: self._writer.submit(key, given, layers=layers, tokens=tokens, attempt=attempt, layout=layout),
        )

    def _reserve(self, key: str, rows: int, *, forever: bool = False) -> None:
        array = routing(key, 0, rows)
        self._diary.note("filling", key=key, rows=rows, forever=forever)
        try:
            slot = self._writer.reserve(key, rows)
        except RoutingError as err:
            self._diary.note("unreserved", code=err.code)
            return
        slot.view[: LAYERS // 2] = array[: LAYERS // 2]
        if forever:
            self._diary.note("half")
        time.sleep(3600 if forever else self._chance.random() * 0.02)
        slot.view[LAYERS // 2 :] = array[LAYERS // 2 :]
        if self._chance.random() < 0.2:
            slot.cancel()
            return
        number = self._want(key, 0, (0, LAYERS), (0, rows), rows, array)
        self._hand_over(number, slot.publish)

    def _want(
        self, key: str, attempt: int, layers: Span, tokens: Span, rows: int, array: npt.NDArray[np.uint8]
    ) -> int:
        number = self._diary.number()
        place = {"key": key, "attempt": attempt, "layers": layers, "tokens": tokens, "rows": rows}
        self._diary.note("want", n=number, verb="put", digest=digest(array), **place)
        return number

    def _other(self, verb: str, key: str, call: Callable[[], Ticket]) -> None:
        number = self._diary.number()
        self._diary.note("want", n=number, verb=verb, key=key)
        self._hand_over(number, call)

    def _hand_over(self, number: int, call: Callable[[], Ticket]) -> None:
        began = time.monotonic()
        try:
            ticket = call()
        except RoutingError as err:
            self._diary.note("out", n=number, code=err.code)
        else:
            self._diary.note("in", n=number)
            with self._lock:
                self._open[number] = ticket
        self._longest = max(self._longest, time.monotonic() - began)


def run(plan: Plan) -> None:
    """An engine's life."""
    diary = Diary(plan.diary)
    logging.getLogger("fastdeploy_routing_plugins").addHandler(_Log(diary))

    def on_failure(failure: WriteFailure) -> None:
        diary.note("failure", what=failure.what, code=failure.error.code)

    diary.note("opening")
    try:
        writer = open_writer(plan.config, schema=SCHEMA, limits=plan.limits, on_failure=on_failure)
    except RoutingError as err:
        diary.note("unopened", code=err.code, text=str(err))
        return
    diary.note("opened")
    engine = Engine(plan, writer, diary)
    over = threading.Event()
    watcher = threading.Thread(target=engine.watch, args=(over,))
    watcher.start()
    try:
        engine.work()
        engine.end()
    finally:
        over.set()
        watcher.join()
    diary.note("ended")
