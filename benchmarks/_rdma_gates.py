"""What is claimed of the store ``rdma`` in gets and puts of one array, and of batches."""

from __future__ import annotations

from collections.abc import Iterator

from _rdma_peers import P2PSTORE
from _rdma_producer import COPY, PUT, XXH3
from _rdma_reader import BARE, COPIED, DIGESTS, NEW, QUESTION, STREAM, TCP, TCP_DIGESTS, TCP_NEW, VIEW
from _report import Claim, Samples

MIB = 1 << 20
Factors = dict[str, float]
_PUT: Factors = {"64 KiB": 4, "1 MiB": 2.5, "2.8 MiB": 1.8, "30 MiB": 1.1}
_VIEW: Factors = {"64 KiB": 20, "1 MiB": 25, "2.8 MiB": 40, "30 MiB": 200}
_TCP: Factors = {"64 KiB": 8, "1 MiB": 4, "2.8 MiB": 3, "30 MiB": 1.6}


def of_puts(label: str, puts: Samples) -> Iterator[Claim]:
    """Yields what is claimed of putting."""
    limit = puts.median(COPY) + puts.median(XXH3) + 400
    yield Claim(f"{label}, {PUT}: copy + XXH3 + 400 us", puts.median(PUT), "<=", limit, "us")
    yield from _beside(label, puts, PUT, puts, _PUT)


def of_gets(label: str, gets: Samples) -> Iterator[Claim]:
    """Yields what is claimed of getting on the same host."""
    copy, digest = gets.median(COPY), gets.median(XXH3)
    yield Claim(f"{label}, {VIEW}: at any size", gets.median(VIEW), "<=", 80, "us")
    limit = 1.3 * digest + 120
    yield Claim(f"{label}, {DIGESTS}: 1.3 x XXH3 + 120 us", gets.median(DIGESTS), "<=", limit, "us")
    limit = 1.3 * (copy + digest) + 120
    yield Claim(f"{label}, {COPIED}: 1.3 x (copy + XXH3) + 120 us", gets.median(COPIED), "<=", limit, "us")
    limit = gets.median(QUESTION) + 80
    yield Claim(f"{label}, {NEW}: a question + 80 us", gets.median(NEW), "<=", limit, "us", gate=False)
    yield from _beside(label, gets, VIEW, gets, _VIEW)


def of_tcp(label: str, gets: Samples, nbytes: int) -> Iterator[Claim]:
    """Yields what is claimed of getting by TCP."""
    limit = 1.3 * gets.median(STREAM) + 150
    yield Claim(f"{label}, {TCP}: 1.3 x the stream + 150 us", gets.median(TCP), "<=", limit, "us")
    limit = 1.3 * (gets.median(STREAM) + gets.median(XXH3)) + 150
    what = f"{label}, {TCP_DIGESTS}: 1.3 x (stream + XXH3) + 150 us"
    yield Claim(what, gets.median(TCP_DIGESTS), "<=", limit, "us", gate=False)
    limit = gets.median(QUESTION) + 1.3 * gets.median(STREAM) + 150
    yield Claim(f"{label}, {TCP_NEW}: a question more", gets.median(TCP_NEW), "<=", limit, "us", gate=False)
    if BARE in gets.rounds and nbytes >= 0.9 * MIB:
        faster = gets.median(BARE) / gets.median(TCP)
        yield Claim(f"{label}, {TCP}: faster than {BARE}", faster, ">=", 1.3, "x")
    yield from _beside(label, gets, TCP, gets, _TCP)


def of_batch(label: str, rates: Samples, ours: dict[str, tuple[str, float]]) -> Iterator[Claim]:
    """Yields what is claimed of a batch; ``ours``: what share of which bound."""
    for name, (bound, share) in ours.items():
        limit = share * rates.median(bound)
        yield Claim(f"{label}, {name}: {share:.0%} of {bound}", rates.median(name), ">=", limit, "MB/s")


def _beside(label: str, ours: Samples, name: str, theirs: Samples, factors: Factors) -> Iterator[Claim]:
    if P2PSTORE in theirs.rounds and label in factors:
        factor = theirs.median(P2PSTORE) / ours.median(name)
        yield Claim(f"{label}, {name}: beside p2pstore", factor, ">=", factors[label], "x", gate=False)
