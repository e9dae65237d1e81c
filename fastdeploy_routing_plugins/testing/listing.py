"""The kit's tests of listing, deleting and clearing: order, prefixes, counts, neighbours, nothing outside."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..errors import InvalidKeyError
from ..keys import RoutingKey, encode_component, encode_prefix
from ..spec import Capability
from .harness import ConformanceBase, Harness, conformance
from .objects import put_all
from .samples import AWKWARD_IDS, escaping_ids, root, sample

READ, LIST = Capability.READ, Capability.LIST

MANY = 33_000  # more than SQLite's limit of 32,766 variables in a statement


class ListingTests(ConformanceBase):
    """Listing, deleting and clearing."""

    @conformance(LIST)
    async def test_listing_is_sorted(self, kit: Harness) -> None:
        """``_list`` returns full names in Python's string order, each once, as a list."""
        items = [sample(kit.namespace, rollout_id) for rollout_id in AWKWARD_IDS]
        items += [sample(kit.namespace, "run", at=at) for at in (300, 2, 10, 1)]
        items += [sample(kit.namespace, f"x:{number}") for number in (11, 2, 100, 20)]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            assert await backend._list(kit.root) == sorted(item.name for item in items)

    @conformance(LIST)
    async def test_prefixes_are_exact(self, kit: Harness) -> None:
        """A prefix is a beginning of the name as text: not a path, not a pattern, and not only whole components."""
        ids = ("x", "x:1", "x:1:0", "x:10", "xy", "a_b", "axb", "a b", "a%20b", "a", "\N{PILE OF POO}", "run", "Run")
        items = [sample(kit.namespace, rollout_id, at=at) for rollout_id in ids for at in (0, 9)]
        names = sorted(item.name for item in items)
        encoded = [kit.root + encode_component(rollout_id) for rollout_id in ids]
        prefixes = [kit.root, kit.root[:-1], *encoded, *[f"{text}/" for text in encoded]]
        prefixes += [
            RoutingKey("x").prefix(kit.namespace),
            f"{kit.root}{encode_prefix('x:')}",
            names[3],
            names[3][:-1],
        ]
        prefixes += [f"{kit.root}a_", f"{kit.root}a%", f"{kit.root}_", f"{kit.root}*", f"{names[3]}/", f"/{kit.root}"]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            found = {prefix: await backend._list(prefix) for prefix in prefixes}
        assert found == {prefix: [name for name in names if name.startswith(prefix)] for prefix in prefixes}

    @conformance(LIST)
    async def test_empty_prefix_lists_every_namespace(self, kit: Harness) -> None:
        """``_list("")`` names what all namespaces hold, in order."""
        items = [sample(namespace) for namespace in (f"{kit.namespace}-z", kit.namespace, f"{kit.namespace}a")]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            found = [name for name in await backend._list("") if name.startswith(kit.namespace)]
        assert found == sorted(item.name for item in items)

    @conformance()
    async def test_delete_counts_what_existed(self, kit: Harness) -> None:
        """``_delete`` returns how many of the names existed; unknown ones are no error."""
        items = [sample(kit.namespace, f"count:{number}") for number in range(3)]
        unknown = [sample(kit.namespace, f"unknown:{number}").name for number in range(2)]
        async with kit.backend() as backend:
            assert await backend._delete([]) == 0
            assert await backend._delete(unknown) == 0
            await put_all(backend, items)
            await kit.settle()
            if not kit.capabilities & (READ | LIST):  # whether anything is kept, nobody can tell
                assert 0 <= await backend._delete([item.name for item in items]) <= len(items)
                return
            assert await backend._delete([unknown[0], items[0].name, unknown[1], items[1].name]) == 2
            await kit.settle()
            assert await backend._delete([items[0].name, items[2].name]) == 1

    @conformance(READ)
    async def test_delete_takes_any_number_of_names(self, kit: Harness) -> None:
        """A long list of names is deleted, whatever limits of a statement or message lie below."""
        items = [sample(kit.namespace, f"long:{number}") for number in range(4)]
        rest = items[0].name.split("/", 2)[2]
        names = [f"{kit.root}unknown-{number}/{rest}" for number in range(MANY)]
        names[100:100] = [item.name for item in items]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            assert await backend._delete(names) == len(items)

    @conformance(READ | LIST)
    async def test_delete_leaves_neighbours(self, kit: Harness) -> None:
        """``_delete`` takes whole names: neither longer ones nor look-alikes go with them."""
        ids = ("x:1", "x:10", "x:1:0", "x", "X:1", "a_b", "axb", "a/b")
        items = [sample(kit.namespace, rollout_id, at=at) for rollout_id in ids for at in (1, 10)]
        gone = {items[0].name, sample(kit.namespace, "a_b", at=1).name}
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            await backend._delete(sorted(gone))
            await kit.settle()
            assert await backend._list(kit.root) == sorted({item.name for item in items} - gone)

    @conformance(LIST)
    async def test_delete_of_a_prefix_deletes_nothing(self, kit: Harness) -> None:
        """A prefix, a folder or a pattern handed to ``_delete`` is an unknown name, or refused as no name at all."""
        item = sample(kit.namespace)
        parts = item.name.split("/")
        prefixes = ["/".join(parts[:end]) + slash for end in range(1, 6) for slash in ("", "/")]
        async with kit.backend() as backend:
            await put_all(backend, [item])
            await kit.settle()
            for prefix in [*prefixes, f"{kit.root}%", f"{kit.root}*", item.name[:-1]]:
                with contextlib.suppress(InvalidKeyError):
                    assert await backend._delete([prefix]) == 0
            await kit.settle()
            assert await backend._list(kit.root) == [item.name]

    @conformance(LIST)
    async def test_clear_counts_and_empties(self, kit: Harness) -> None:
        """``_clear`` deletes what the prefix names and returns how many; a second time there is nothing to delete."""
        items = [sample(kit.namespace, rollout_id) for rollout_id in AWKWARD_IDS]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await kit.settle()
            counts = [await backend._clear(kit.root)]
            await kit.settle()
            counts.append(await backend._clear(kit.root))
            assert counts == [len(items), 0]
            assert await backend._list(kit.root) == []

    @conformance(LIST)
    async def test_clear_leaves_other_namespaces(self, kit: Harness) -> None:
        """``_clear`` of one namespace leaves all that others hold."""
        others = [sample(f"other{kit.namespace}", f"o:{number}") for number in range(4)]
        async with kit.backend() as backend:
            await put_all(backend, [*others, sample(kit.namespace)])
            await kit.settle()
            await backend._clear(kit.root)
            await kit.settle()
            assert await backend._list(root(f"other{kit.namespace}")) == sorted(item.name for item in others)

    @conformance(LIST)
    async def test_clear_leaves_neighbouring_prefixes(self, kit: Harness) -> None:
        """``_clear`` of ``ns/`` leaves ``ns2/`` and ``ns-b/``; of ``ns/x/`` it leaves ``ns/xy/`` and ``ns/x:1/``."""
        near = [f"{kit.namespace}{end}" for end in ("2", "-b", "_", "/", " ", "A")]
        kept = [sample(namespace) for namespace in near]
        inner = [sample(kit.namespace, rollout_id) for rollout_id in ("xy", "x:1", "X", "x_")]
        async with kit.backend() as backend:
            await put_all(backend, [*kept, *inner, sample(kit.namespace, "x")])
            await kit.settle()
            counts = [await backend._clear(f"{kit.root}x/")]
            await kit.settle()
            counts.append(await backend._clear(kit.root))
            await kit.settle()
            assert counts == [1, len(inner)]
            left = [name for name in await backend._list("") if name.startswith(kit.namespace)]
            assert left == sorted(item.name for item in kept)

    @conformance()
    async def test_nothing_is_written_outside(self, kit: Harness) -> None:
        """Ids that look like paths put no file outside the store's folder and none into the working directory."""
        cwd = kit.tmp_path / "kit" / "deep" / "cwd"
        cwd.mkdir()
        folder = self.directory(kit.options)
        allowed = (kit.home if folder is None else Path(folder)).resolve()
        ids = escaping_ids(kit.tmp_path)
        async with kit.peer(cwd=cwd) as peer:
            for item in [sample(kit.namespace, rollout_id) for rollout_id in ids]:
                answer = await peer.put(item)
                assert "error" not in answer, f"{item.name}: {answer['error']}"
        found = [path for path in kit.tmp_path.resolve().rglob("*") if path.is_file() or path.is_symlink()]
        outside = [str(path) for path in found if not path.is_relative_to(allowed)]
        assert outside == []

    @conformance(LIST)
    async def test_backdoor_sees_the_same_names(self, kit: Harness) -> None:
        """What is really stored is what was put: seen by ``raw_names``, or else by another process."""
        ids = (*AWKWARD_IDS, *escaping_ids(kit.tmp_path)[:-3])
        items = [sample(kit.namespace, rollout_id) for rollout_id in ids]
        async with kit.backend() as backend:
            await put_all(backend, items)
            await backend._flush()
            await kit.settle()
            await backend._delete([items[0].name, items[-1].name])
            await backend._flush()
            await kit.settle()
            found = self.raw_names(kit.options)
            if found is None:
                async with kit.peer() as peer:
                    found = await peer.result("list", prefix=kit.root)
        real = sorted(name for name in found if name.startswith(kit.root))
        assert real == sorted(item.name for item in items[1:-1])
