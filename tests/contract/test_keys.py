"""Ids become names: injective, in order, safe everywhere."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.errors import InvalidKeyError
from fastdeploy_routing_plugins.keys import (
    MAX_COMPONENT,
    RolloutId,
    RoutingKey,
    decode_component,
    encode_component,
    encode_prefix,
)
from fastdeploy_routing_plugins.names import AbortName, Part, PartName, SealName, object_name, parse_name

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
adversarial = st.one_of(ids, st.text("a_/:.%=~`x10-AÉé\u0301\x00", min_size=1, max_size=8))

HOSTILE = [
    ".", "..", "../../x", "/abs/x", "a/b", "a_b", "a//b", "a\x00b", "CON", "con", "nul", "com1", "Run", "run",
    "é", "e\u0301", "\U0001f600" * 10, "88888888", "job-1888888880", "d", "d:0:1:0", "d:0:10:0", "a_1", "a", "x:1",
    "x:10", "d:0:__import__('os').getpid():0", "d:0:-1:0", "d:0:1e3:0", "*?<>|\"\\", " ", "\n", "~x", "%2e", "x" * 255,
    "x" * 256, "x" * 4096, "ü" * 2048, "-rf", "\x1b[31m", "[red]", "\u202e", "a" * 128, "a" * 129,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_id_becomes_one_harmless_component(text: str) -> None:
    assert re.fullmatch(r"[-0-9a-z_%.=`~]{1,128}", encode_component(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_id_is_no_path_and_no_device(text: str) -> None:
    assert encode_component(text) not in {".", "..", "con", "nul", "com1", "prn", "aux"}


def test_hostile_ids_never_meet() -> None:
    assert len({encode_component(text) for text in HOSTILE}) == len(HOSTILE)


@given(adversarial, adversarial)
def test_two_ids_have_one_name_only_if_they_are_equal(a: str, b: str) -> None:
    assert (encode_component(a) == encode_component(b)) == (a == b)


@given(st.text("abAB/.:_-~`zé^[]", min_size=1, max_size=12), st.text("abAB/.:_-~`zé^[]", min_size=1, max_size=12))
def test_names_sort_as_the_ids_do(a: str, b: str) -> None:
    assert (encode_component(a) < encode_component(b)) == (a.encode() < b.encode())


@given(ids)
def test_an_encoded_id_decodes_to_itself_unless_it_is_a_digest(text: str) -> None:
    assert decode_component(encode_component(text)) in (text, None)


@given(adversarial, adversarial)
def test_a_beginning_of_an_id_is_a_beginning_of_its_name(a: str, b: str) -> None:
    encoded = encode_component(a + b)
    assert encoded.startswith("~x") or encoded.startswith(encode_prefix(a)) or len(encoded) > MAX_COMPONENT


@given(st.text("0123456789abcdef%=.~`xX/_-", max_size=20))
def test_decoding_accepts_only_what_encoding_makes(component: str) -> None:
    try:
        text = decode_component(component)
    except InvalidKeyError:
        return
    assert text is None or encode_component(text) == component


@pytest.mark.parametrize("text", ["", "a\ud800", "x" * 4097, "ü" * 2049])
def test_an_id_that_cannot_be_stored_is_refused(text: str) -> None:
    with pytest.raises(InvalidKeyError):
        RoutingKey(text)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a"]])
def test_an_id_that_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidKeyError, match="must be a str"):
        RoutingKey(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", [-1, 1_000_000, True, "0", 1.0])
def test_a_choice_out_of_range_is_refused(choice: object) -> None:
    with pytest.raises(InvalidKeyError, match="choice"):
        RoutingKey("a", choice)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["", "Routing", "a/b", "0a", "x" * 33, None])
def test_a_malformed_kind_is_refused(kind: object) -> None:
    with pytest.raises(InvalidKeyError, match="kind"):
        RoutingKey("a", 0, kind)  # type: ignore[arg-type]


def test_normal_forms_of_one_text_are_two_ids() -> None:
    one, other = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    assert encode_component(one) != encode_component(other)


def test_a_layer_of_one_rollout_is_not_another_rollout() -> None:
    layer = object_name(RoutingKey("a"), "default", 0, PartName(Part((0, 4), (1, 2)), 4, 4, 8))
    whole = object_name(RoutingKey("a_1"), "default", 0, PartName(Part((0, 4), (0, 4)), 4, 4, 8))
    assert layer.split("/")[1] != whole.split("/")[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data:3:1:0", ("data:3", 1, 0)),
        ("a:b:c:10:2", ("a:b:c", 10, 2)),
        ("d", ("d", None, None)),
        ("d:0:-1:0", ("d:0:-1:0", None, None)),
        ("d:0:1e3:0", ("d:0:1e3:0", None, None)),
        ("d:0:__import__('os').getpid():0", ("d:0:__import__('os').getpid():0", None, None)),
        ("d:0:٣:0", ("d:0:٣:0", None, None)),
        ("a:0:1:1_0", ("a:0:1:1_0", None, None)),
    ],
)
def test_turn_and_segment_are_digits_or_nothing(text: str, expected: tuple[object, ...]) -> None:
    parsed = RolloutId.parse(text)
    assert (parsed.trajectory, parsed.turn, parsed.segment) == expected


objects = st.one_of(
    st.builds(SealName, st.integers(0, 9_999_999_999)),
    st.just(AbortName()),
    st.builds(
        lambda t, n, more, known, row: PartName(
            Part((t[0], sum(t)), (n[0], sum(n))), sum(n) + more, sum(t) + more if known else None, row, "00c0ffee"
        ),
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
        st.tuples(st.integers(0, 100), st.integers(1, 100)),
        st.integers(0, 50),
        st.booleans(),
        st.integers(1, 999_999),
    ),
)


@given(adversarial, st.integers(0, 999_999), st.integers(0, 2**63 - 1), objects)
def test_a_name_says_everything_it_was_made_of(text: str, choice: int, attempt: int, what: object) -> None:
    key = RoutingKey(text, choice)
    stored = parse_name(object_name(key, "space", attempt, what))  # type: ignore[arg-type]
    assert (stored.namespace, stored.rollout_id in (text, None), stored.choice, stored.attempt, stored.object) == (
        "space",
        True,
        choice,
        attempt,
        what,
    )


@given(objects)
def test_a_name_fits_a_file_system(what: object) -> None:
    name = object_name(RoutingKey("ü" * 2048, 999_999, "k" * 32), "n" * 128, 2**63 - 1, what)  # type: ignore[arg-type]
    assert max(len(component) for component in name.split("/")) <= 128


@pytest.mark.parametrize("name", ["", "a", "a/b/c/d/e/f", "default/a/000000/routing/0000000000000000000/p-1", "/" * 5])
def test_a_foreign_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidKeyError):
        parse_name(name)


def test_a_namespace_that_would_need_a_digest_is_refused() -> None:
    with pytest.raises(InvalidKeyError, match="namespace"):
        RoutingKey("a").prefix("n" * 129)
