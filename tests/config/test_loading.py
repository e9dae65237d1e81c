"""Strict loading of options, and what people see of them."""

from __future__ import annotations

import json
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import msgspec
import pytest

from fastdeploy_routing_plugins.config import CommonOptions, OptionInfo, describe, effective
from fastdeploy_routing_plugins.errors import ConfigError, InvalidPluginError

from .settings import Options, configure, of, problems

if TYPE_CHECKING:
    from collections.abc import Callable


def test_all_problems_are_reported_at_once() -> None:
    config = {**of(fsnyc=True, fsync="false", linger="5", mode="udp", namespace=""), "colour": "red"}
    assert [problem.split(":")[0].split(" (")[0].split(",")[0] for problem in problems(config)] == [
        "unknown key 'colour' in the configuration",
        "unknown option 'fsnyc'",
        "option 'fsync'",
        "option 'linger'",
        "option 'mode'",
        "namespace is empty",
    ]


def test_the_message_counts_and_lists_the_problems() -> None:
    with pytest.raises(ConfigError) as caught:
        configure(of(fsnyc=True, retries="3"))
    assert caught.value.message.startswith("configuration of store 'demo': 2 problems: unknown option 'fsnyc'")


def test_an_unknown_option_that_is_near_nothing_lists_all() -> None:
    (problem,) = problems(of(colour=1))
    assert "there are store_dir, fsync, linger" in problem


@pytest.mark.parametrize(
    "options",
    [
        {"fsync": "false"},
        {"fsync": 0},
        {"fsync": None},
        {"retries": "3"},
        {"retries": 3.5},
        {"retries": True},
        {"linger": "5"},
        {"linger": float("nan")},
        {"linger": float("inf")},
        {"servers": "a"},
        {"servers": [1]},
        {"sizes": [1, "2"]},
        {"labels": {"a": 1}},
        {"labels": {1: "a"}},
        {"limit": "no"},
        {"mode": "AUTO"},
        {"store_dir": 7},
        {"store_dir": b"/x"},
        {"store_dir": "/\ud800"},
        {"labels": {"\ud800": ""}},
        {"token": 7},
    ],
)
def test_a_wrong_type_is_refused(options: dict[str, Any]) -> None:
    assert len(problems(of(**options))) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"linger": 5}, Options(linger=5.0)),
        ({"limit": None}, Options(limit=None)),
        ({"limit": 7}, Options(limit=7)),
        ({"sizes": [1, 2]}, Options(sizes=(1, 2))),
        ({"servers": ("a", "b")}, Options(servers=["a", "b"])),
        ({"store_dir": Path("/x")}, Options(store_dir="/x")),
        ({"store_dir": "/\u00e9\U0001f600"}, Options(store_dir="/\u00e9\U0001f600")),
    ],
)
def test_what_json_can_express_is_accepted(options: dict[str, Any], expected: Options) -> None:
    assert configure(of(**options)).config == expected


def test_a_wrong_value_is_shown_in_short() -> None:
    (problem,) = problems(of(retries="x" * 10_000))
    assert len(problem) < 200


def nested(make: Callable[[Any], Any], times: int) -> Any:
    value: Any = "x"
    for _ in range(times):
        value = make(value)
    return value


class Hostile:
    """What raises whenever it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __fspath__(self) -> str:
        return 7  # type: ignore[return-value]


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
ENDLESS_OBJECT: dict[str, Any] = {}
ENDLESS_OBJECT["a"] = ENDLESS_OBJECT
STRANGE = {
    "list in itself": ENDLESS,
    "object in itself": ENDLESS_OBJECT,
    "both in a tuple": (ENDLESS, ENDLESS_OBJECT),
    "deep list": nested(lambda value: [value], 10_000),
    "deep object": nested(lambda value: {"a": value}, 10_000),
    "2**60 items": nested(lambda value: [value, value], 60),
    "hostile": Hostile(),
    "list of the hostile": [Hostile()],
}


@pytest.mark.parametrize("name", [*Options.__dataclass_fields__, "namespace", "producer", "colour"])
@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_any_value_of_any_option_is_a_problem_in_few_words(value: Any, name: str) -> None:
    (problem,) = problems(of(**{name: value}))
    assert len(problem) < 300


def test_a_configuration_that_contains_itself_is_refused() -> None:
    config: dict[str, Any] = {"routing_store_type": "demo"}
    config["routing_store_config"] = config
    assert len(problems(config)) == 2


def test_a_class_must_not_make_an_option_that_contains_itself() -> None:
    @dataclass
    class Endless:
        path: list[str] = field(default_factory=list)

        def __post_init__(self) -> None:
            self.path = ENDLESS

    with pytest.raises(InvalidPluginError, match="'path'"):
        configure(of(), options=Endless, host_keys={})


def test_a_wrong_value_of_a_secret_is_not_shown() -> None:
    @dataclass
    class Secrets:
        token: Literal["a", "b"] = field(default="a", metadata={"secret": True})

    assert "hunter2" not in problems(of(token="hunter2"), options=Secrets, host_keys={})[0]


def test_what_the_class_refuses_is_a_problem() -> None:
    assert problems(of(retries=-1)) == ("option 'retries' must not be negative",)


def test_a_config_error_of_the_class_is_a_problem() -> None:
    assert problems(of(store_dir="relative")) == ("store_dir must be absolute",)


def test_a_required_option_is_reported_with_its_meaning() -> None:
    @dataclass
    class Required:
        address: str = field(metadata={"doc": "Where the server is."})

    assert problems(of(), options=Required, host_keys={}) == ("option 'address' is required: Where the server is.",)


@pytest.mark.parametrize("options", [{"namespace": ""}, {"namespace": "x" * 500}, {"producer": "a\nb"}, {"producer": "p" * 201}])  # fmt: skip  # noqa: E501
def test_common_options_are_checked(options: dict[str, Any]) -> None:
    assert len(problems(of(**options))) == 1


def test_options_are_plain_and_complete() -> None:
    loaded = configure(of(sizes=[1, 2], servers=("a",)))
    assert json.loads(json.dumps(loaded.options)) == loaded.options | {"sizes": [1, 2], "servers": ["a"]}


def test_options_come_back_from_json_as_the_same_configuration() -> None:
    loaded = configure(of(sizes=[1, 2], labels={"a": "b"}, limit=4, mode="shm", token="t"))
    assert configure(of(**json.loads(json.dumps(loaded.options)))).config == loaded.config


def test_what_the_class_makes_of_an_option_is_what_travels() -> None:
    @dataclass
    class Absolute:
        path: str = "x"

        def __post_init__(self) -> None:
            self.path = f"/root/{self.path}" if not self.path.startswith("/") else self.path

    assert configure(of(), options=Absolute, host_keys={}).options == {"path": "/root/x"}


@pytest.mark.parametrize("value", [7, object(), {1, 2}, Path("/x")])
def test_a_class_must_not_turn_an_option_into_something_else(value: object) -> None:
    @dataclass
    class Changing:
        path: list[str] = field(default_factory=list)

        def __post_init__(self) -> None:
            self.path = value  # type: ignore[assignment]

    with pytest.raises(InvalidPluginError, match="'path'"):
        configure(of(), options=Changing, host_keys={})


def test_a_class_that_cannot_be_built_from_its_fields_is_invalid() -> None:
    @dataclass
    class Strange:
        more: InitVar[int]
        path: str = ""

        def __post_init__(self, more: int) -> None: ...

    with pytest.raises(InvalidPluginError, match="Strange"):
        configure(of(), options=Strange, host_keys={})


def test_a_class_that_fails_otherwise_is_invalid() -> None:
    @dataclass
    class Failing:
        path: str = ""

        def __post_init__(self) -> None:
            raise KeyError("HOME")

    with pytest.raises(InvalidPluginError, match="cannot be built: KeyError: 'HOME'"):
        configure(of(), options=Failing, host_keys={})


def _no_default() -> str:
    raise KeyError("HOME")


@pytest.mark.parametrize(
    "default", [field(default=7), field(default=None), field(default=Path("/")), field(default_factory=_no_default)]
)
def test_a_default_that_its_type_does_not_allow_is_refused(default: Any) -> None:
    declared = type("Declared", (), {"__annotations__": {"option": str}, "option": default})
    with pytest.raises(InvalidPluginError, match="option 'option' of Declared has no usable default"):
        describe(dataclass(declared))


def test_every_fact_about_an_option_is_described() -> None:
    @dataclass
    class Described:
        address: str = field(metadata={"doc": "Where."})
        token: str = field(default="t", metadata={"secret": True})
        tags: list[str] = field(default_factory=lambda: ["a"])
        derived: int = field(default=0, init=False)

    assert describe(Described) == (
        OptionInfo("address", "str", None, "Where.", False, True),
        OptionInfo("token", "str", "***", "", True, False),
        OptionInfo("tags", "list[str]", ["a"], "", False, False),
    )


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (str, "str"),
        (Optional[int], "int | None"),  # noqa: UP045 - the old spelling is a spelling
        (int | None, "int | None"),
        (tuple[int, ...], "tuple[int, ...]"),
        (dict[str, list[str]], "dict[str, list[str]]"),
        (Literal["a", 1], "'a' | 1"),
        (Annotated[int, msgspec.Meta(ge=0)], "int"),
    ],
)
def test_types_read_well(hint: Any, text: str) -> None:
    declared = type("Declared", (), {"__annotations__": {"option": hint}})
    assert describe(dataclass(declared))[0].type == text


def test_annotated_limits_are_checked() -> None:
    @dataclass
    class Limited:
        size: Annotated[int, msgspec.Meta(ge=1)] = 1

    Limited.__annotations__["size"] = Annotated[int, msgspec.Meta(ge=1)]
    assert problems(of(size=0), options=Limited, host_keys={})[0].startswith("option 'size': expected int >= 1: 0")


@pytest.mark.parametrize("hint", [object, set[str], list, dict[int, str], Path, complex, bytes, Any, list[Any]])
def test_a_type_that_json_cannot_express_is_refused(hint: Any) -> None:
    declared = type("Declared", (), {"__annotations__": {"option": hint}})
    with pytest.raises(InvalidPluginError, match="which JSON cannot express"):
        describe(dataclass(declared))


def test_common_options_are_described() -> None:
    names = ["namespace", "producer", "only_last_turn", "use_fused_put"]
    assert [(info.name, bool(info.doc)) for info in describe(CommonOptions)] == [(name, True) for name in names]


def test_effective_options_hide_secrets() -> None:
    shown = effective(Options(token="hunter2", servers=["redis://u:hunter2@h", "zmq://a:1,b:2"]))
    assert (shown["token"], shown["servers"]) == ("***", ["redis://u:***@h", "zmq://a:1,b:2"])


def test_effective_options_show_that_a_secret_is_not_set() -> None:
    assert effective(Options())["token"] == ""
