"""An engine that hands several sequences over and is killed: ``order_engine CONFIG LIMITS FIRST NUMBER``."""

from __future__ import annotations

import json
import os
import random
import signal
import sys

from fastdeploy_routing_plugins import open_writer

from .order_model import SCHEMA, Step, hand_over, sequence


def steps_of(first: int, number: int) -> list[Step]:
    """Returns sequences one after the other."""
    return [step for index in range(first, first + number) for step in sequence(random.Random(index), f"s{index}")]


def main(config: str, limits: str, first: int, number: int) -> None:
    writer = open_writer(config, schema=SCHEMA, limits=limits)
    worker = writer.stats().worker_pid
    if first % 3:  # else it begins at once
        os.kill(worker, signal.SIGSTOP)
    for step in steps_of(first, number):
        hand_over(writer, step)
    print(json.dumps(worker), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
