"""The producer's side of Mooncake: memory that its peers may read.

They may also write to it: Mooncake registers all memory for both, and asks nobody who they are.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import TYPE_CHECKING

import numpy as np

from ....errors import UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from .rdma_engine import Engine


class Exposed:
    """Memory of this process that an engine serves; each stretch is registered once. For several threads.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        # The arrays keep their memory mapped: the engine reads it whenever a peer asks.
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}

    def add(self, memory: mmap.mmap | memoryview) -> int:
        """Serves memory; returns its address, by which peers name it.

        Raises:
            UnsupportedError: the engine refuses.
        """
        array = np.frombuffer(memory, np.uint8)
        address: int = array.__array_interface__["data"][0]
        with self._lock:
            if address in self._memory:
                return address
            try:
                self._engine.register(address, array.nbytes)
            except OSError as err:
                raise UnsupportedError(
                    f"{array.nbytes >> 20} MiB of shared memory cannot be registered for RDMA: {err}",
                    hint="registered memory is pinned: `ulimit -l` must be unlimited, and a container needs "
                    "--cap-add=IPC_LOCK",
                ) from err
            self._memory[address] = array
            _keep_in_children(address, array.nbytes)
        return address

    def remove(self, address: int) -> None:
        """Ends serving some memory; harmless if it is not served."""
        with self._lock:
            array = self._memory.pop(address, None)
            if array is not None:
                self._engine.unregister(address)

    def clear(self) -> None:
        """Ends serving."""
        for address in list(self._memory):
            self.remove(address)


def _keep_in_children(address: int, nbytes: int) -> None:
    """Lets forked children have memory that the RDMA library takes from them. It is shared, so nothing is copied."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), mmap.MADV_DOFORK)
