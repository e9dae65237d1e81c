"""The engine of the soak: submits random routing at a steady rate until told to stop.

``soak_engine CONFIG LIMITS`` reads commands, one a line, and answers each with a line of JSON::

    capacity SECONDS     submits as fast as it is taken; answers with the bytes that were stored
    run SECONDS RATE     submits RATE bytes a second; answers with what became of it
    stats                answers with ``writer.stats()``
    close                closes and ends

What was stored is told on the third descriptor, a line of ``ID TOKENS`` for each rollout, for a reader to check.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import deque

import numpy as np

from fastdeploy_routing_plugins import RoutingWriter, open_writer
from fastdeploy_routing_plugins.errors import ArenaFullError, RoutingError
from fastdeploy_routing_plugins.writer.tickets import Ticket

from .soak_routing import LAYERS, SCHEMA, TOP_K, routing

DEADLINE = 60.0


class Engine:
    """Submits; tickets that have ended well are told on ``told``."""

    def __init__(self, writer: RoutingWriter, told: int) -> None:
        self._writer = writer
        self._told = told
        self._chance = random.Random(11)
        self._number = 0
        self._open: deque[tuple[str, int, list[Ticket]]] = deque()
        self.submitted = 0
        self.stored = 0
        self.refused = 0
        self.failed: dict[str, int] = {}

    def submit(self, seconds: float, rate: float) -> None:
        """Submits at a rate in bytes a second, then waits for what is pending."""
        began = time.monotonic()
        submitted = 0
        while (now := time.monotonic()) - began < seconds:
            self._look()
            if submitted > rate * (now - began):
                time.sleep(0.002)
                continue
            submitted += self._one()
        while self._open and time.monotonic() - began < seconds + DEADLINE:
            self._look()
            time.sleep(0.001)

    def _one(self) -> int:
        self._number += 1
        key = f"soak:{self._number % 16}:{self._number}:0"
        tokens = self._chance.choice([40, 400, 3000, 3000, 12_000, self._chance.randrange(1, 30_000)])
        array = routing(key, tokens)
        how = self._chance.randrange(6)
        try:
            if how == 0:
                tickets = [
                    self._writer.submit(key, array[layer : layer + 1], layers=(layer, layer + 1))
                    for layer in range(LAYERS)
                ]
            elif how == 1:
                turned = np.ascontiguousarray(array.transpose(1, 0, 2))
                tickets = [self._writer.submit(key, turned, layout="token_first")]
            elif how == 2:
                with self._writer.reserve(key, tokens) as slot:
                    slot.view[...] = array
                    tickets = [slot.publish()]
            else:
                tickets = [self._writer.submit(key, array)]
        except ArenaFullError:
            self.refused += 1
            time.sleep(0.005)
            return 0
        self._open.append((key, tokens, tickets))
        self.submitted += 1
        return LAYERS * tokens * TOP_K

    def _look(self) -> None:
        for _ in range(len(self._open)):
            key, tokens, tickets = self._open.popleft()
            if not all(ticket.done() for ticket in tickets):
                self._open.append((key, tokens, tickets))
                continue
            try:
                for ticket in tickets:
                    ticket.result(0)
            except RoutingError as err:
                self.failed[err.code] = self.failed.get(err.code, 0) + 1
                continue
            self.stored += LAYERS * tokens * TOP_K
            os.write(self._told, f"{key} {tokens}\n".encode())


def main(config: str, limits: str, told: int) -> None:
    with open_writer(config, schema=SCHEMA, limits=limits) as writer:
        engine = Engine(writer, told)
        for line in sys.stdin:
            verb, *numbers = line.split()
            answer: object = None
            if verb == "capacity":
                engine.submit(float(numbers[0]), float("inf"))
                answer = engine.stored
            elif verb == "run":
                engine.submit(float(numbers[0]), float(numbers[1]))
                answer = {
                    "submitted": engine.submitted, "refused": engine.refused, "failed": engine.failed,
                    "pending": len(engine._open),
                }  # fmt: skip
            elif verb == "stats":
                answer = writer.stats().to_dict()
            print(json.dumps(answer), flush=True)
            if verb == "close":
                break


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
