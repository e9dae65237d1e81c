"""Merging does not depend on where options are said; every typing mistake gets the right name."""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import quote

from hypothesis import assume, given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.errors import ConfigError
from fastdeploy_routing_plugins.resolving.suggest import nearest

from .settings import Options, configure, of, problems

_text = st.text(st.characters(codec="utf-8"), max_size=12)
_values: dict[str, st.SearchStrategy[Any]] = {
    "fsync": st.booleans(),
    "linger": st.floats(allow_nan=False, allow_infinity=False),
    "retries": st.integers(0, 2**63 - 1),
    "servers": st.lists(_text, min_size=1, max_size=3),
    "sizes": st.lists(st.integers(-1000, 1000), min_size=1, max_size=3),
    "labels": st.dictionaries(_text, _text, max_size=2),
    "mode": st.sampled_from(["auto", "shm", "tcp"]),
    "token": _text,
    "namespace": st.text("abc:/. \u00e9", min_size=1, max_size=8),
    "producer": st.text("abc:.", max_size=8),
    "only_last_turn": st.booleans(),
}
_options = st.fixed_dictionaries({}, optional=_values)
_SOURCES = ("normal", "environment", "query")
NAMES = (
    *(field for field in Options.__dataclass_fields__),
    "namespace",
    "producer",
    "only_last_turn",
    "use_fused_put",
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"


def _query(options: dict[str, Any]) -> str:
    pairs = [(key, item) for key, value in options.items() for item in (value if isinstance(value, list) else [value])]
    texts = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in pairs]
    return "&".join(f"{key}={quote(value, safe='')}" for key, value in texts)


@given(_options, st.data())
def test_options_split_over_the_sources_give_the_same_result(options: dict[str, Any], data: st.DataObject) -> None:
    parts: dict[str, dict[str, Any]] = {source: {} for source in _SOURCES}
    for key, value in options.items():
        fitting = [source for source in _SOURCES if source != "query" or not isinstance(value, dict)]
        for source in data.draw(st.sets(st.sampled_from(fitting), min_size=1)):
            parts[source][key] = value
    url = "file:///x" + ("?" + _query(parts["query"]) if parts["query"] else "")
    config = {**of(**parts["normal"]), "local_store_dir": url}
    environ = {"FD_ROUTING_STORE_CONFIG": json.dumps(parts["environment"])}
    assert configure(json.dumps(config), environ) == configure(of(**options, store_dir="/x"))


@given(_options, _options)
def test_sources_that_disagree_are_refused_for_each_option(one: dict[str, Any], other: dict[str, Any]) -> None:
    different = [key for key in one if key in other and one[key] != other[key]]
    assume(different)
    found = problems(of(**one), {"FD_ROUTING_STORE_CONFIG": json.dumps(other)})
    assert sorted(problem.split("'")[1] for problem in found) == sorted(different)


@given(st.dictionaries(_text, st.recursive(st.none() | st.booleans() | st.floats() | _text, st.lists), max_size=4))
def test_any_options_are_loaded_or_refused_by_a_config_error(options: dict[str, Any]) -> None:
    try:
        configure(of(**options))
        found: tuple[str, ...] = ()
    except ConfigError as err:
        found = err.problems
    assert [key for key in options if key not in NAMES and not any(repr(key) in problem for problem in found)] == []


@given(st.sampled_from(NAMES), st.data())
def test_a_typing_mistake_in_an_option_gets_the_right_name(name: str, data: st.DataObject) -> None:
    wrong = data.draw(st.sampled_from(sorted(_mistakes(name) - set(NAMES))))
    assume(_mistakes(wrong) & set(NAMES) == {name})
    (problem,) = problems(of(**{wrong: 1}))
    assert problem.endswith(f"did you mean {name!r}?")


@given(st.sets(st.text(_LETTERS, min_size=1, max_size=6), min_size=1, max_size=8), st.data())
def test_a_typing_mistake_in_any_word_gets_the_right_word(words: set[str], data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(sorted(words)))
    wrong = data.draw(st.sampled_from(sorted(_mistakes(word) - words)))
    assume(_mistakes(wrong) & words == {word})
    assert nearest(wrong, words) == word


@given(st.text(max_size=20), st.sets(st.text(max_size=20), max_size=5))
def test_a_suggestion_is_one_of_the_choices(word: str, choices: set[str]) -> None:
    assert nearest(word, choices) in {None, *choices}


def _mistakes(word: str) -> set[str]:
    """Returns every text that is one typing mistake away."""
    cuts = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    shorter = {left + right[1:] for left, right in cuts if right}
    swapped = {left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1}
    other = {left + letter + right[1:] for left, right in cuts if right for letter in _LETTERS}
    longer = {left + letter + right for left, right in cuts for letter in _LETTERS}
    return shorter | swapped | other | longer - {word}


def test_numbers_in_a_query_are_exact() -> None:
    loaded = configure({"routing_store_type": "demo", "local_store_dir": f"file:///x?linger={math.pi!r}"})
    assert loaded.config.linger == math.pi
