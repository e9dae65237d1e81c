"""A payload whose digests are made while it is copied: it is looked at once, not twice."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from ..buffer import Buffer
from ..digests import copy_and_digest, digest_payload
from ..envelope import PartHeader, encode_header

WORTH: Final = 8 << 20  # bytes; below, two passes are as fast: the first leaves the payload in the cache


class Undigested(Buffer):
    """The payload of a part, for a backend that copies it, see ``BlockingBackend.digests_on_copy``.

    Args:
        data: The payload.
        shape: See ``Buffer``.
        header: The part's header, with ``no_digests``.
    """

    __slots__ = ("_header",)

    def __init__(self, data: memoryview, shape: tuple[int, ...], header: PartHeader) -> None:
        super().__init__(data, shape, header.dtype)
        self._header = header

    def copy_into(self, target: memoryview) -> bytes | None:
        """See ``Buffer``. The digests are those of the copy."""
        header = self._header
        self._header = replace(
            header, digests=copy_and_digest(self.data, target, header.part(), header.schema().row_bytes)
        )
        return encode_header(self._header)

    def digested(self) -> PartHeader:
        """Returns the header with the payload's digests, whether it was copied or not."""
        header = self._header
        return replace(header, digests=digest_payload(self.data, header.part(), header.schema().row_bytes))
