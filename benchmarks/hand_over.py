"""What handing routing over costs the engine, how fast it flows, and how soon a trainer has it.

Every candidate moves the same canonical bytes, uint8 ``[45 layers, tokens, top-8]``, to another process. Candidates
take turns within each round, in an order that rotates, and medians count. Every byte is compared with the original by
the process that it arrives in, outside the clock; only ``noop`` keeps nothing to compare, and counts.

* ``blocked``: for how long one hand-over holds its caller up. A candidate hands several rollouts over in a row, as an
  engine does with those that end in one step. The first of them comes after a pause, in which the consumer comes to
  rest and the code leaves the core's caches; it is shown on its own. Beside the writer: a plain copy into warm shared
  memory, ``multiprocessing.Manager().Queue()`` (what FastDeploy uses) and ``multiprocessing.Queue``, whose thread
  pickles later, at the engine's expense. Gates, for those after the first: ``submit`` at most 1.25 x the copy + 80 us
  (from 16 MiB on 1.4 x, and for the first: later ones share the memory with the worker), ``reserve`` and ``publish``
  at most 100 us each at any size, 45 submits of one layer each at most 3 ms, ``submit(layout="token_first")`` six
  times as fast as NumPy's transposition.
* ``sustained``: megabytes per second with the arena full most of the time. Gates: to ``noop`` without validation 40 %
  of a copy through as much shared memory as the arena has (a copy that stays in the caches is printed beside it), to
  ``local`` 85 % of a bare loop of the same store's puts.
* ``readable``: from the call until another process has read every byte. Gate: half of FastDeploy's way in miniature.

Ends with 1 if a gate is missed. Needs Paddle for ``readable``.
"""

from __future__ import annotations

import importlib.util
import sys

import _blocked
import _readable
import _sections
import _sustained


def main() -> int:
    """Runs the benchmark."""
    parser = _sections.options(__doc__, ("blocked", "sustained", "readable"), 30)
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=list(_blocked.SIZES_MIB), metavar="MIB", help="sizes for blocked"
    )
    args = _sections.parsed(parser)
    if "readable" in args.only and importlib.util.find_spec("paddle") is None:
        parser.error("readable needs Paddle: pip install paddlepaddle, or --only blocked sustained")
    sections = {
        "blocked": lambda folder: _blocked.measure(folder, args.rounds, args.sizes),
        "sustained": lambda folder: _sustained.measure(folder, max(5, args.rounds // 5)),
        "readable": lambda folder: _readable.measure(folder, args.rounds),
    }
    return _sections.run(sections, args)


if __name__ == "__main__":
    sys.exit(main())
