"""What reading costs a trainer.

Every candidate reads the same canonical bytes, uint8 ``[48 layers, tokens, top-8]``, from ``local`` or ``rdma``.
Candidates take turns within each round, in an order that rotates, and medians count. Everything is compared with the
original outside the clock.

* ``stages``: a rank of a pipeline of eight stages reads its layers of a 30 MiB rollout. Gate: it moves at most its
  share of the bytes + 2 %. Expected: it takes at most its share of the time for everything + 300 us.
* ``batch``: 64 rollouts of 64 KiB at once, beside a loop of single reads and beside what any checked read must do.
* ``turns``: a trajectory of 200 turns and 100,000 tokens that was appended turn by turn. Gates: it takes at most 1.1 x
  the bytes of the final array, and reading its last turn at most 1.5 x (one copying read of the same from one piece,
  and 200 reads of 1 KiB).
* ``tcp``: the same stage's share, and the same batch, from a producer in another process over TCP. Gates: its share of
  the bytes + 2 %; its share of the time + 300 us; the batch at most 1.4 x a plain stream of the same bytes + 1 ms.

Ends with 1 if a gate is missed.
"""

from __future__ import annotations

import sys

import _remote
import _sections
import _shares
import _turns


def main() -> int:
    """Runs the benchmark."""
    args = _sections.parsed(_sections.options(__doc__, ("stages", "batch", "turns", "tcp"), 15))
    sections = {
        "stages": lambda folder: _shares.measure_stages(folder, args.rounds, 30),
        "batch": lambda folder: _shares.measure_batch(folder, args.rounds, 64, 64),
        "turns": lambda folder: _turns.measure(folder, args.rounds),
        "tcp": lambda folder: _remote.measure(folder, args.rounds),
    }
    return _sections.run(sections, args)


if __name__ == "__main__":
    sys.exit(main())
