"""``PluginConformance``: what a plugin must be before anything is stored. Needs no service."""

from __future__ import annotations

import base64
import json
import pickle
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ..config import describe
from ..discovery import discover
from ..errors import ConfigError, RoutingError
from ..resolver import ResolvedStore, check
from ..spec import API_VERSION, Capability
from .guard import require_unchanged
from .harness import ConformanceBase, Harness
from .peer import clean_environ, script_command

if TYPE_CHECKING:
    from collections.abc import Collection

_PROBE = Path(__file__).with_name("probe.py")
_ALWAYS_HEAVY = frozenset({"numpy", "paddle", "torch"})
_PATIENCE = 120.0  # s


class PluginConformance(ConformanceBase):
    """What a plugin must be before anything is stored.

    Attributes:
        heavy: Top-level modules that the plugin's module must not import, besides NumPy and the frameworks: the SDK.
    """

    heavy: ClassVar[Collection[str]] = frozenset()

    def test_entry_point_offers_the_store_once(self) -> None:
        """Exactly one installed distribution offers the name, and the name follows the rule."""
        assert [candidate.name for candidate in discover() if candidate.name == self.store] == [self.store]
        assert re.fullmatch(r"[a-z][a-z0-9_]*", self.store)

    def test_check_finds_nothing_wrong(self, tmp_path: Path) -> None:
        """Every step of ``fd-routing check`` is ok."""
        kit = Harness(self, tmp_path)
        steps = check(self.store, kit.configuration(), environ=clean_environ())
        assert [f"{step.name}: {step.detail}" for step in steps if step.state != "ok"] == []

    def test_declared_name_is_the_entry_points(self) -> None:
        """The spec's name is the entry point's."""
        assert _look(self.store)["name"] == self.store

    def test_plugin_module_is_light(self) -> None:
        """Importing the plugin and calling its hook imports neither the SDK nor NumPy nor a framework."""
        imported = {name.partition(".")[0] for name in _look(self.store)["modules"]}
        heavy = sorted(imported & {*self.heavy, *_ALWAYS_HEAVY})
        assert not heavy, (
            f"the plugin module, or its hook, imports {', '.join(heavy)}: "
            "import what needs it inside the functions load_config and create"
        )

    def test_plugin_module_is_silent(self) -> None:
        """Importing the plugin and calling its hook prints nothing."""
        said = _look(self.store)["said"]
        assert not said, f"importing the plugin and calling its hook must print nothing; it printed {said!r}"

    def test_plugin_module_leaves_the_process_alone(self) -> None:
        """Importing the plugin changes no signal handler, logger, path, directory, variable, and starts no thread."""
        changed = _look(self.store)["changed"]
        assert not changed, (
            f"importing the plugin and calling its hook changed the process: {', '.join(changed)}; "
            "do that in _open of the backend"
        )

    def test_api_version_is_literal(self) -> None:
        """The spec states the API version that it was written for, not a copy of what is installed."""
        elsewhere = [API_VERSION[0] + 90, API_VERSION[1] + 7]
        assert probe("api_version", self.store, version=elsewhere)["api_version"] != elsewhere, (
            "api_version follows whatever is installed: write the version as numbers, "
            f"api_version=({API_VERSION[0]}, {API_VERSION[1]})"
        )

    def test_spec_is_complete(self, tmp_path: Path) -> None:
        """The spec says in one line what the store is, and its host keys are options."""
        spec = Harness(self, tmp_path).resolved.spec
        assert spec.summary.strip()
        assert "\n" not in spec.summary
        assert isinstance(spec.capabilities, Capability)
        options = {option.name for option in describe(spec.load_config())}
        assert set(spec.host_keys.values()) <= options

    def test_every_option_is_documented(self, tmp_path: Path) -> None:
        """Each option has a sentence for ``fd-routing show``: ``field(metadata={"doc": "..."})``."""
        options = describe(Harness(self, tmp_path).resolved.spec.load_config())
        silent = [option.name for option in options if not option.doc.strip()]
        assert not silent, f"options without a sentence: {silent}; add field(metadata={{'doc': '...'}}) to each"

    def test_config_rejects_unknown_options(self, tmp_path: Path) -> None:
        """A misspelt option is an error that names it."""
        kit = Harness(self, tmp_path)
        kit.options = {**kit.options, "fd_no_such_option": 1}
        with pytest.raises(ConfigError) as caught:
            kit.resolve()
        assert len(caught.value.problems) == 1

    def test_config_round_trips_through_json(self, tmp_path: Path) -> None:
        """The checked configuration survives JSON, and JSON alone is enough to resolve the store again."""
        resolved = Harness(self, tmp_path).resolved
        assert json.loads(json.dumps(resolved.options)) == resolved.options
        again = ResolvedStore.from_json(resolved.to_json())
        assert again.options == resolved.options
        assert (again.namespace, again.producer) == (resolved.namespace, resolved.producer)

    def test_resolves_again_in_another_process(self, tmp_path: Path) -> None:
        """A pickled store resolves in another process to the same store with the same configuration."""
        resolved = Harness(self, tmp_path).resolved
        pickled = base64.b64encode(pickle.dumps(resolved)).decode()
        found = probe("unpickle", self.store, pickled=pickled)
        assert found == {
            "name": resolved.name,
            "json": resolved.to_json(),
            "backend": type(resolved.create_backend()).__name__,
        }

    def test_errors_pickle(self, tmp_path: Path) -> None:
        """Every error class of the plugin's package crosses process borders with message, hint and facts."""
        resolved = Harness(self, tmp_path).resolved
        package = type(resolved.create_backend()).__module__.partition(".")[0]
        own = [cls for cls in _subclasses(RoutingError) if cls.__module__.partition(".")[0] == package]
        errors: list[type[RoutingError]] = [ConfigError, *own]
        for cls in errors:
            error = cls("what went wrong", hint="what to do", waited=1.5)
            again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line above
            assert type(again) is cls
            assert (again.message, again.hint, again.facts) == (error.message, error.hint, error.facts)

    def test_preflight_does_no_io(self, tmp_path: Path) -> None:
        """Resolving the store and making its backend writes no file and opens no connection."""
        kit = Harness(self, tmp_path)
        seen = probe("io", self.store, configuration=kit.configuration())["io"]
        assert not seen, f"resolving the store and making its backend did I/O: {seen}; do that in _open of the backend"

    def test_kit_is_whole(self) -> None:
        """No test of the kit was replaced after the class was made."""
        require_unchanged(type(self))


@cache
def _look(store: str) -> dict[str, Any]:
    """One look serves several tests."""
    return probe("look", store)


def probe(do: str, store: str, **request: Any) -> dict[str, Any]:
    """Looks at a plugin in a fresh process; fails the test, with what the process said, if it dies."""
    done = subprocess.run(  # noqa: S603 - our own file, by our own interpreter
        script_command(_PROBE),
        input=json.dumps({"do": do, "store": store, **request}, default=str),  # paths are options, too
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env=clean_environ(),
        check=False,
    )
    assert done.returncode == 0, f"a fresh process that loads the plugin failed:\n{done.stderr[-4000:]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _subclasses(cls: type[RoutingError]) -> list[type[RoutingError]]:
    return [found for direct in cls.__subclasses__() for found in (direct, *_subclasses(direct))]
