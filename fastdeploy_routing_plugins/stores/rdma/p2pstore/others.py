"""The objects of others: values under FastDeploy's keys that no header belongs to, found by name and by prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import AbsentError, InvalidKeyError, ProducerLostError
from ....keys import DEFAULT_KIND, decode_component, encode_component, encode_namespace
from ....names import PartName, parse_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .foreign import Foreign, ForeignReader
    from .held import Held
    from .index import RedisIndex

_BATCH = 1000


class Others:
    """Finds values by schema; only with option ``schema``.

    Args:
        reader: Makes objects of values.
        index: The index in Redis.
        held: Gives what this process put, which is found by its own name.
        namespace: Where the objects seem to be.
    """

    def __init__(self, reader: ForeignReader, index: RedisIndex, held: Callable[[], Held], namespace: str) -> None:
        self._reader = reader
        self._index = index
        self._held = held
        self._root = f"{encode_namespace(namespace)}/"

    def names(self, prefix: str) -> list[str]:
        """Returns the names under a prefix; what was not read yet is read for that."""
        if not (prefix.startswith(self._root) or self._root.startswith(prefix)):
            return []
        pieces = prefix.split("/")
        if len(pieces) > 2:
            return [found.name for found in self._look(self._keys_of(pieces[1])) if found.name.startswith(prefix)]
        return [
            found.name for found in self._look(self._index.every_key(), lost=False) if found.name.startswith(prefix)
        ]

    def find(self, name: str) -> Foreign | None:
        """Returns the object of a name, or None."""
        parsed = parse_name(name)
        what = parsed.object
        if not name.startswith(self._root) or parsed.attempt or parsed.choice or parsed.kind != DEFAULT_KIND:
            return None
        if not isinstance(what, PartName) or what.schema != self._reader.schema.fingerprint:
            return None
        return next((found for found in self._look(self._keys_of(parsed.rollout)) if found.name == name), None)

    def payload(self, found: Foreign) -> bytes:
        """Returns an object's payload; raises NotFoundError if it is gone."""
        payload = self._reader.get(found).payload
        return payload if payload is not None else b""

    def delete(self, names: Sequence[str]) -> int:
        """Deletes objects, each by its exact key; returns how many there were."""
        found = [other for other in map(self.find, names) if other is not None]
        return sum([self._index.drop(other.key, other.generation) for other in found])

    def _keys_of(self, component: str) -> list[str]:
        """Returns the keys that a rollout's values may have; for a digest all keys are looked through."""
        try:
            text = decode_component(component)
        except InvalidKeyError:
            return []
        if text is not None:
            return self._reader.keys_of(text)
        return [key for key in self._index.every_key() if component in _components(key)]

    def _look(self, keys: Iterable[str], *, lost: bool = True) -> Iterable[Foreign]:
        """Returns objects; those whose producer is gone are an error, or left out if ``lost`` is False."""
        batch: list[str] = []
        for key in keys:
            batch.append(key)
            if len(batch) == _BATCH:
                yield from self._look_at(batch, lost)
                batch = []
        yield from self._look_at(batch, lost)

    def _look_at(self, keys: Sequence[str], lost: bool) -> Iterable[Foreign]:
        present = [pair for pair in zip(keys, self._index.generations(keys), strict=True) if pair[1]]
        owners = self._index.owners([key for key, _ in present])
        owned = self._index.read([owner for owner in owners if owner])
        ours = {found[1].generation for found in owned if found is not None}
        held = self._held()
        for key, generation in present:
            known = held.get(held.under(key))
            if generation in ours or (known is not None and known[1].generation == generation):
                continue
            try:
                found = self._reader.look(key, generation)
            except AbsentError:  # deleted meanwhile
                continue
            except ProducerLostError:
                if lost:
                    raise
                continue
            if found is not None:
                yield found


def _components(key: str) -> set[str]:
    found = set()
    for text in (key, key.rpartition("_")[0]):
        try:
            found.add(encode_component(text))
        except InvalidKeyError:
            continue
    return found
