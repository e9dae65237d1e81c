"""What the store ``rdma`` costs beside what the machine must do anyway, and beside other ways to the same end.

A producer in another process puts, this process gets; the metadata service is a third one, as ``fd-routing serve``
runs it. Every candidate moves the same canonical bytes, uint8 ``[45 layers, tokens, top-8]``. Candidates take turns
within each round, in an order that is drawn anew, each with a few rollouts in a row, and medians count. Every byte is
compared with the original outside the clock; no rollout is put twice. Releasing what was read is on the clock. Bounds
are measured in the same run: a copy between warm buffers as large as what the candidates work on, the XXH3 digests
that the format has (of each layer, by 4,096 tokens; one pass over all bytes is shown beside them), and one plain TCP
stream between the two processes (request of 16 bytes, ``sendall``, ``recv_into`` the same memory).

* ``put``, until every reader can get it: at most copy + XXH3 + 400 us.
* ``get``, on the same host, of rollouts that were waited for: a view without digests at most 80 us at any size, with
  digests 1.3 x XXH3 + 120 us, a copy with digests 1.3 x (copy + XXH3) + 120 us. What a reader has not waited for it
  asks the service for first; that is shown beside it.
* ``tcp``, without digests, of rollouts that were waited for: at most 1.3 x the stream + 150 us, and from 1 MiB on 1.3
  times as fast as a read by Mooncake's engine alone over TCP. What has to be asked for is shown beside it again.
* ``batch``, 64 x 1 MiB in one padded array, every digest checked: by tcp at 85 % of the stream's rate, on the same
  host at 55 % of the copy's.
* ``mooncake``: transport ``rdma`` over Mooncake's TCP mode, of rollouts that were waited for: at most 1.2 x the bare
  engine's read + 300 us, at 0.6 processor seconds of who waits, a second; the engine's own, which copies, are shown
  beside them. That read is the asynchronous one, asked how far it is each 40 us; the one that spins on a whole core,
  which the second gate forbids, is shown beside it.

Beside them stand p2pstore (over a redis-server of the benchmark's own, by its TCP transport), Redis and Paddle's
files, as far as they are installed, and what is expected against p2pstore. It and Mooncake listen on all interfaces,
so they are measured only where the benchmark can start itself again in a network that has nothing but loopback.

Ends with 1 if a gate is missed, and shows where the time went.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import _rdma_batch
import _rdma_gates
import _rdma_network
import _rdma_peers
from _peer import LAYERS, TOP_K, Peer, tokens_of
from _rdma_batch import COUNT
from _rdma_producer import COPY, PUT, Producer
from _rdma_reader import BURST, COPIED, DIGESTS, TCP, VIEW, Reader
from _report import Claim, Measure, show

SIZES = {"64 KiB": 0.0625, "1 MiB": 1.0, "2.8 MiB": 2.8, "30 MiB": 30.0}
SECTIONS = ("put", "get", "tcp", "batch", "mooncake")
QUICK = 8  # rounds


class Run:
    """One run.

    Args:
        args: The command line's options.
        folder: A tmpfs.
        alone: Why nothing may listen on all interfaces; empty: it may.
    """

    def __init__(self, args: argparse.Namespace, folder: Path, alone: str) -> None:
        self._only: Sequence[str] = args.only
        self._rounds: int = args.rounds
        self._sizes = {label: tokens_of(SIZES[label]) for label in args.sizes}
        self._folder = folder
        self._alone = alone
        self.profiles: list[str] = []
        self.absent: dict[str, str] = {}

    def lines(self) -> Iterator[Measure | Claim]:
        """Yields everything."""
        with ExitStack() as stack:
            server = stack.enter_context(_rdma_network.service())
            redis = stack.enter_context(_rdma_network.redis_server(self._folder))
            self.absent = {what: why for what, why in _rdma_peers.absent(redis, self._alone) if why}
            whole = max(BURST * max(self._sizes.values()), COUNT * tokens_of(1.0)) * LAYERS * TOP_K
            producer = Peer(Producer, server, self._folder, redis, whole, bool(self._alone))
            stack.callback(producer.close)
            reader = Reader(server, self._folder, redis, producer, whole)
            stack.callback(reader.ask, "end")
            stack.callback(reader.close)
            if {"tcp", "mooncake"} & set(self._only) and "Mooncake" not in self.absent:
                from _rdma_mooncake import Bare

                reader.mooncake = Bare(*reader.ask("begin_mooncake"), whole)
            if {"put", "get", "tcp"} & set(self._only):
                yield from self._singles(reader)
            if "batch" in self._only:
                _say("batch")
                yield from _rdma_batch.measure(reader, server, self._folder, tokens_of(1.0), max(5, self._rounds // 3))
            if "mooncake" in self._only and reader.mooncake is not None:
                from _rdma_mooncake import measure

                _say("mooncake")
                yield from measure(reader, server, self._folder, self._sizes, max(5, self._rounds // 2))

    def _singles(self, reader: Reader) -> Iterator[Measure | Claim]:
        for label, tokens in self._sizes.items():
            _say(label)
            puts, gets = reader.run(tokens, self._rounds, label)
            nbytes = LAYERS * TOP_K * tokens
            if "put" in self._only:
                yield from puts.measures(f"{label}, put", "us", COPY)
                yield from self._explained(reader, tokens, _rdma_gates.of_puts(label, puts), (PUT,))
            if {"get", "tcp"} & set(self._only):
                yield from gets.measures(f"{label}, get", "us", COPY)
            if "get" in self._only:
                ours = (VIEW, DIGESTS, COPIED)
                yield from self._explained(reader, tokens, _rdma_gates.of_gets(label, gets), ours)
            if "tcp" in self._only:
                yield from self._explained(reader, tokens, _rdma_gates.of_tcp(label, gets, nbytes), (TCP,))

    def _explained(self, reader: Reader, tokens: int, claims: Iterator[Claim], ours: Sequence[str]) -> Iterator[Claim]:
        """Yields claims; takes a profile of each of ours that misses a gate."""
        done: set[str] = set()
        for claim in claims:
            yield claim
            name = max((each for each in ours if each in claim.what), key=len, default=None)
            if claim.gate and not claim.holds and name is not None and name not in done:
                done.add(name)
                self.profiles.append(f"{claim.what}:\n{reader.explain(name, tokens)}")


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr)


def options() -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=40, help="counted rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rounds, the two smallest sizes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="which sections (default: all)")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="sizes (default: all)")
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="a folder in memory (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.sizes = QUICK, args.sizes[:2]
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def main() -> int:
    """Runs the benchmark."""
    args = options()
    alone = _rdma_network.enter()
    logging.getLogger("fastdeploy_routing_plugins").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="fd-routing-bench-", dir=args.folder))
    gc.disable()
    measures: list[Measure] = []
    claims: list[Claim] = []
    run = Run(args, folder, alone)
    try:
        for line in run.lines():
            (measures if isinstance(line, Measure) else claims).append(line)  # type: ignore[arg-type]
    finally:
        shutil.rmtree(folder)
    facts = {"rounds": args.rounds, "cores": os.cpu_count(), "load before": round(load, 1)}
    show(measures, claims, {**facts, **run.absent}, as_json=args.json)
    for text in run.profiles:
        print(f"\nwhere the time went: {text}", file=sys.stderr)
    return 0 if all(claim.holds or not claim.gate for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
