"""Values without a header of ours: what FastDeploy's stock store puts, and what is put with ``header=false``.

p2pstore says how large a value is, and of arrays the shape. The model's schema says the rest. Padding is found only
by looking, so naming such an object means reading it; what was read is remembered for as long as it is the same put.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....convert import p2pstore as convert
from ....convert.fastdeploy import DTYPES
from ....digests import digest_payload, payload_of
from ....envelope import PartHeader, encode_header
from ....errors import CorruptDataError, InvalidKeyError, InvalidRecordError
from ....keys import RoutingKey
from ....names import PartName, object_name
from .index import parsed
from .wire import OWN_PREFIX, unpickled

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....schema import RoutingSchema

_REMEMBERED = 64 << 20  # bytes of payloads
_NAMED = 65_536


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value, read as an object.

    Attributes:
        name: The object's name.
        key: p2pstore's key.
        generation: p2pstore's record.
        header: The header that this package would have written.
        payload: The payload; None where it was forgotten again.
    """

    name: str
    key: str
    generation: str
    header: bytes
    payload: bytes | None


class ForeignReader:
    """Reads values by schema.

    Args:
        schema: The model's schema.
        dtype: Of raw values, a name of ``convert.fastdeploy.DTYPES``; empty: FastDeploy's choice.
        namespace: Where the objects seem to be.
        fetch: Gives a value's bytes, by key and record.
    """

    def __init__(
        self, schema: RoutingSchema, dtype: str, namespace: str, fetch: Callable[[str, str], memoryview]
    ) -> None:
        self.schema = schema
        self._dtype = dtype or None
        self._namespace = namespace
        self._fetch = fetch
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Foreign | None] = OrderedDict()  # by generation
        self._nbytes = 0

    def keys_of(self, rollout_id: str) -> list[str]:
        """Returns the keys that a rollout's values may have."""
        return [rollout_id, *(f"{rollout_id}_{layer}" for layer in range(self.schema.num_layers))]

    def look(self, key: str, generation: str) -> Foreign | None:
        """Returns the object behind a value without its payload, or None if it is none of routing of this model."""
        with self._lock:
            if generation in self._known:
                self._known.move_to_end(generation)
                return self._known[generation]
        try:
            found = self._read(key, generation)
        except (InvalidRecordError, InvalidKeyError, CorruptDataError):
            found = None
        self._remember(generation, found)
        return found

    def get(self, known: Foreign) -> Foreign:
        """Returns the object with its payload.

        Raises:
            NotFoundError: it is gone.
        """
        return known if known.payload is not None else self._read(known.key, known.generation)

    def _remember(self, generation: str, found: Foreign | None) -> None:
        with self._lock:
            self._known[generation] = found
            self._nbytes += len(found.payload) if found and found.payload else 0
            for other, value in list(self._known.items()):
                if self._nbytes <= _REMEMBERED:
                    break
                if value is not None and value.payload is not None:
                    self._nbytes -= len(value.payload)
                    self._known[other] = replace(value, payload=None)
            while len(self._known) > _NAMED:
                _, old = self._known.popitem(last=False)
                self._nbytes -= len(old.payload) if old and old.payload else 0

    def _read(self, key: str, generation: str) -> Foreign:
        record = parsed(generation)
        metadata: Any = record.get("metadata")
        if not isinstance(metadata, dict):
            raise CorruptDataError("this is no record of p2pstore")
        if key.startswith(OWN_PREFIX):
            raise InvalidKeyError("this is no key of FastDeploy")
        rollout_id, layer = self._place(key, metadata.get("tensor_shape"))
        dtype = metadata.get("tensor_dtype")
        raw = self._fetch(key, generation)
        if metadata.get("object_type") == "object":
            raw = memoryview(unpickled(raw))
        elif dtype not in DTYPES:
            raise InvalidRecordError(f"an array of {dtype!r:.40} is no routing")
        named = dtype if dtype in DTYPES else self._dtype
        rows = convert.rows(raw, self.schema, dtype=named, layer=layer)
        key_of = RoutingKey(rollout_id)
        routing = rows.record(key_of)
        payload = payload_of(routing.routing)
        header = PartHeader(
            namespace=self._namespace,
            rollout_id=rollout_id,
            choice=0,
            kind=key_of.kind,
            attempt=0,
            producer=f"p2pstore:{metadata.get('client_id', '')!s:.64}",
            time_ns=_when(metadata.get("put_id")),
            num_experts=self.schema.num_experts,
            top_k=self.schema.top_k,
            layer_ids=self.schema.layer_ids,
            dtype=self.schema.dtype,
            layers=rows.part.layers,
            tokens=rows.part.tokens,
            total_tokens=rows.total_tokens,
            digests=digest_payload(payload, rows.part, self.schema.row_bytes),
        )
        what = header.what()
        assert isinstance(what, PartName)
        name = object_name(key_of, self._namespace, 0, what)
        return Foreign(name, key, generation, encode_header(header), bytes(payload))

    def _place(self, key: str, shape: object) -> tuple[str, int | None]:
        """Returns a value's rollout and layer: FastDeploy puts single layers as arrays of two axes, and only those."""
        if isinstance(shape, list) and len(shape) == 2:
            rollout_id, mark, layer = key.rpartition("_")
            if not mark or not (layer.isascii() and layer.isdigit()) or str(int(layer[:9])) != layer:
                raise InvalidKeyError("this is no key of a layer")
            return rollout_id, int(layer)
        return key, None


def _when(put_id: object) -> int:
    """p2pstore's put ids are times in ns."""
    return put_id if isinstance(put_id, int) and 0 <= put_id < 1 << 62 else time.time_ns()
