"""Memory that somebody gets back when nobody looks at it any more.

The owner of such memory stands behind a NumPy array, which stands behind the memoryview that is handed out. The
garbage collector does not look through an array, so the owner cannot be finalised in a cycle of which some part, in
its own finaliser, still reads the memory: it goes only with the last reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


class _Lent:
    __slots__ = ("__array_interface__", "_keep", "_release", "_token")

    def __init__(
        self, address: int, nbytes: int, release: Callable[[Any], object], token: object, keep: object, writable: bool
    ) -> None:
        self._keep = keep
        self._token = token
        self._release = release
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, not writable),
        }

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError("lent memory cannot be copied with its owner; copy the bytes")

    def __del__(self) -> None:
        release = getattr(self, "_release", None)  # None: an interrupt came before
        if release is not None:
            release(self._token)


def lend(
    address: int,
    nbytes: int,
    release: Callable[[Any], object],
    token: object,
    *,
    keep: object = None,
    writable: bool = False,
) -> memoryview:
    """Returns memory as a flat view of bytes.

    Args:
        address: Where it begins.
        nbytes: Its size; not 0.
        release: Called with ``token`` once nothing refers to the view, nor to anything made of it. Any thread may
            call it, in the middle of anything.
        token: See ``release``.
        keep: What must live as long.
        writable: Whether it may be written to.
    """
    return np.asarray(_Lent(address, nbytes, release, token, keep, writable)).data
