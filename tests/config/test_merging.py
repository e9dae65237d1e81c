"""Several sources, two forms, one result."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from fastdeploy_routing_plugins.errors import ConfigError
from fastdeploy_routing_plugins.resolving.sources import read, split_name

from .settings import Options, configure, of, problems

if TYPE_CHECKING:
    from pathlib import Path

FLAT: dict[str, Any] = {
    "enable_routing_replay": True,
    "routing_store_type": "demo",
    "local_store_dir": "",
    "rdma_store_server": "",
    "only_last_turn": False,
    "use_fused_put": False,
    "debug_mode": False,
    "routing_dtype": "uint8",
    "num_moe_layers": 45,
    "moe_top_k": 8,
}


def test_the_normal_form_sets_options() -> None:
    assert configure(of(store_dir="/x", retries=7)).config == Options(store_dir="/x", retries=7)


def test_the_hosts_flat_form_works_unchanged() -> None:
    assert configure({**FLAT, "local_store_dir": "/x"}).options["store_dir"] == "/x"


def test_the_hosts_flat_form_works_as_json_text() -> None:
    assert configure(json.dumps({**FLAT, "local_store_dir": "/x"})).options["store_dir"] == "/x"


def test_an_empty_text_of_the_host_means_not_set() -> None:
    assert configure(FLAT).options["store_dir"] == "/default"


def test_null_of_the_host_means_not_set() -> None:
    assert configure(dict.fromkeys(FLAT) | {"routing_store_type": "demo"}).config == Options()


def test_host_keys_of_other_stores_are_passed_over() -> None:
    assert configure({**FLAT, "rdma_store_server": "redis://h:1?password=x"}).config == Options()


@pytest.mark.parametrize("key", ["only_last_turn", "use_fused_put"])
def test_host_switches_are_options_of_every_store(key: str) -> None:
    assert getattr(configure({**FLAT, key: True}).common, key) is True


def test_a_host_switch_that_is_a_text_is_refused() -> None:
    assert problems({**FLAT, "only_last_turn": "false"}) == (
        "option 'only_last_turn': expected bool, got str: 'false' (from only_last_turn of the configuration)",
    )


def test_host_keys_and_options_may_stand_together() -> None:
    config = {**FLAT, "local_store_dir": "/x", "routing_store_config": {"fsync": True}}
    assert configure(config).config == Options(store_dir="/x", fsync=True)


def test_options_may_be_json_text() -> None:
    config = {"routing_store_type": "demo", "routing_store_config": '{"fsync": true}'}
    assert configure(config).config == Options(fsync=True)


def test_the_query_of_a_file_url_holds_options() -> None:
    loaded = configure({**FLAT, "local_store_dir": "file:///a%20b/c?fsync=true&retries=5"})
    assert loaded.config == Options(store_dir="/a b/c", fsync=True, retries=5)


def test_a_url_of_another_kind_stays_without_its_query() -> None:
    loaded = configure(
        {"routing_store_type": "demo", "rdma_store_server": "zmq://a:1,b:2?linger=2.5&linger=2.5"},
        host_keys={"rdma_store_server": "token"},
    )
    assert (loaded.options["token"], loaded.options["linger"]) == ("zmq://a:1,b:2", 2.5)


def test_a_repeated_key_of_a_query_fills_a_list() -> None:
    loaded = configure({**FLAT, "local_store_dir": "file:///x?servers=a&servers=b&sizes=1&sizes=2"})
    assert (loaded.config.servers, loaded.config.sizes) == (["a", "b"], (1, 2))


def test_a_repeated_key_of_a_query_contradicts_itself_otherwise() -> None:
    (problem,) = problems({**FLAT, "local_store_dir": "file:///x?retries=1&retries=2"})
    assert problem.startswith("option 'retries' has two values: 1 from the query of local_store_dir")


def test_a_plain_path_may_contain_a_question_mark() -> None:
    assert configure({**FLAT, "local_store_dir": "/what?fsync=true"}).config == Options(store_dir="/what?fsync=true")


@pytest.mark.parametrize(
    "url", ["file://host/x", "file://relative", "file:///x?fsync", "file:///%ff", "file:///x?a=%ff", "file:///x?&"]
)
def test_a_malformed_url_is_refused(url: str) -> None:
    assert len(problems({**FLAT, "local_store_dir": url})) == 1


def test_an_unknown_option_in_a_query_is_refused() -> None:
    (problem,) = problems({**FLAT, "local_store_dir": "file:///x?fsnyc=true"})
    expected = "unknown option 'fsnyc' (from the query of local_store_dir of the configuration), did you mean 'fsync'?"
    assert problem == expected


@pytest.mark.parametrize("text", ["yes", "", "2", "TRUE!"])
def test_a_query_is_lenient_but_not_lax(text: str) -> None:
    assert len(problems({**FLAT, "local_store_dir": f"file:///x?fsync={text}"})) == 1


def test_the_environment_alone_is_enough() -> None:
    assert configure(None, {"FD_ROUTING_STORE_CONFIG": json.dumps(of(fsync=True))}).config == Options(fsync=True)


def test_the_environment_may_hold_the_flat_form() -> None:
    variables = {"FD_ROUTING_STORE_CONFIG": json.dumps({"local_store_dir": "/x", "only_last_turn": True})}
    loaded = configure(of(), variables)
    assert (loaded.options["store_dir"], loaded.common.only_last_turn) == ("/x", True)


def test_the_environment_may_hold_options_alone() -> None:
    variables = {"FD_ROUTING_STORE_CONFIG": '{"fsync": true, "only_last_turn": true, "namespace": "n"}'}
    loaded = configure(of(store_dir="/x"), variables)
    assert (loaded.config, loaded.common.namespace) == (Options(store_dir="/x", fsync=True), "n")


def test_options_alone_are_not_mistaken_for_a_whole_configuration() -> None:
    assert problems(of(), {"FD_ROUTING_STORE_CONFIG": '{"colour": 1}'})[0].startswith("unknown option 'colour'")


def test_an_option_named_like_a_host_key_is_the_option() -> None:
    loaded = configure(of(), {"FD_ROUTING_STORE_CONFIG": '{"store_dir": "/x"}'}, host_keys={"store_dir": "store_dir"})
    assert loaded.options["store_dir"] == "/x"


def test_the_environment_may_name_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(of(fsync=True)), encoding="utf-8-sig")
    assert configure(None, {"FD_ROUTING_STORE_CONFIG": f"@{file}"}).config == Options(fsync=True)


def test_configuration_text_may_name_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(of(fsync=True)))
    assert configure(f"@{file}").config == Options(fsync=True)


def test_an_empty_variable_is_no_source() -> None:
    assert configure(of(), {"FD_ROUTING_STORE_CONFIG": " ", "FD_ROUTING_NAMESPACE": ""}).common.namespace == "default"


def test_the_namespace_may_come_from_the_environment() -> None:
    assert configure(of(), {"FD_ROUTING_NAMESPACE": "run 7"}).common.namespace == "run 7"


def test_two_namespaces_contradict_each_other() -> None:
    assert problems(of(namespace="a"), {"FD_ROUTING_NAMESPACE": "b"}) == (
        "option 'namespace' has two values: 'b' from FD_ROUTING_NAMESPACE, "
        "'a' from routing_store_config of the configuration",
    )


def test_one_option_with_two_values_names_both_sources_and_values() -> None:
    assert problems({**FLAT, "local_store_dir": "/x"}, {"FD_ROUTING_STORE_CONFIG": '{"store_dir": "/y"}'}) == (
        "option 'store_dir' has two values: '/x' from local_store_dir of the configuration, "
        "'/y' from FD_ROUTING_STORE_CONFIG",
    )


def test_one_option_with_the_same_value_twice_is_fine() -> None:
    config = {**FLAT, "local_store_dir": "file:///x?fsync=true", "routing_store_config": {"fsync": True}}
    assert configure(config, {"FD_ROUTING_STORE_CONFIG": '{"fsync": true, "store_dir": "/x"}'}).config.fsync is True


def test_two_values_of_a_secret_are_not_shown() -> None:
    (problem,) = problems(of(token="hunter2"), {"FD_ROUTING_STORE_CONFIG": '{"token": "hunter3"}'})
    assert ("hunter" in problem, problem.count("'***'")) == (False, 2)


def test_a_password_in_a_url_is_not_shown() -> None:
    (problem,) = problems(of(store_dir="redis://me:hunter2@h/"), {"FD_ROUTING_STORE_CONFIG": '{"store_dir": "/y"}'})
    assert ("hunter2" in problem, "redis://me:***@h/" in problem) == (False, True)


def test_two_stores_contradict_each_other() -> None:
    variables = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "other"}'}
    with pytest.raises(ConfigError, match="'demo' from the configuration, 'other' from FD_ROUTING_STORE_CONFIG"):
        read(of(), variables)


def test_two_distributions_contradict_each_other() -> None:
    variables = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "demo@b"}'}
    with pytest.raises(ConfigError, match="two values"):
        read({"routing_store_type": "demo@a"}, variables)


def test_a_distribution_makes_a_name_more_exact() -> None:
    variables = {"FD_ROUTING_STORE_CONFIG": '{"routing_store_type": "demo@Fd_X"}'}
    request = read(of(), variables)
    assert (request.name, request.distribution) == ("demo", "fd-x")


def test_a_store_named_apart_contradicts_another_one() -> None:
    with pytest.raises(ConfigError, match="'other' from the call, 'demo' from the configuration"):
        read(of(), {}, "other")


def test_a_store_named_apart_takes_options_alone() -> None:
    assert configure({"fsync": True}, store="demo").config == Options(fsync=True)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("demo", ("demo", None)),
        ("demo@Fd_Routing.X", ("demo", "fd-routing-x")),
        (" demo @ x ", ("demo", "x")),
        ("demo@", ("demo", "")),
    ],
)
def test_a_name_is_taken_apart(text: str, parts: tuple[str, str | None]) -> None:
    assert split_name(text) == parts


@pytest.mark.parametrize("config", [None, {}, {"routing_store_type": ""}, {"routing_store_type": None}, "{}"])
def test_no_store_is_an_error_that_shows_what_to_write(config: Any) -> None:
    with pytest.raises(ConfigError, match=r'write {"routing_store_type": NAME'):
        read(config, {})


def test_a_misspelt_store_key_is_pointed_out() -> None:
    with pytest.raises(ConfigError, match="but 'routing_store_typ' stands there"):
        read({"routing_store_typ": "demo"}, {})


@pytest.mark.parametrize("value", [1, True, ["demo"], {}])
def test_a_store_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        read({"routing_store_type": value}, {})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"routing_store_type": "demo",}', "line 1, column"),
        ('{\n  "a": 1\n  "b": 2}', "line 3, column 3"),
        ("demo", "line 1, column 1"),
        ("{'a': 1}", "line 1, column 2"),
        ("[]", "must be a JSON object, got a list"),
        ("null", "must be a JSON object, got null"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": 1, "a": 2}', "'a' stands there twice"),
        ("[" * 100_000, "is no usable JSON"),
        ('{"a": ' + "9" * 5000 + "}", "is no usable JSON"),
        ("@/nowhere/at/all.json", "cannot be read"),
        ("@\0", "cannot be read"),
        ("", "line 1, column 1"),
    ],
)
def test_malformed_text_says_where(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, {})
    assert place in str(caught.value)


def test_malformed_text_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"token": "hunter2')
    with pytest.raises(ConfigError) as caught:
        read(f"@{file}", {})
    assert ("hunter2" in str(caught.value), str(file) in str(caught.value)) == (False, True)


@pytest.mark.parametrize("content", [b"\xff{}", b" " * (1 << 20) + b"{}"])
def test_a_file_that_is_no_text_of_reasonable_size_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read(f"@{file}", {})


def special(kind: str, folder: Path) -> Path:
    path = folder / "special"
    if kind == "folder":
        path.mkdir()
    elif kind == "named pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["folder", "named pipe", "socket", "link to a device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match="into a regular file") as caught:
        read(f"@{special(kind, tmp_path)}", {})
    assert f"it is a {kind.rpartition(' a ')[2]}" in caught.value.message


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(of(fsync=True)))
    (tmp_path / "link").symlink_to("config.json")
    assert configure(f"@{tmp_path / 'link'}").config == Options(fsync=True)


@pytest.mark.parametrize("config", [7, b"{}", ["demo"], {1: 2}])
def test_a_configuration_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match="the configuration"):
        read(config, {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"colour": 1}, "unknown key 'colour' in the configuration"),
        (
            {"lokal_store_dir": 1},
            "unknown key 'lokal_store_dir' in the configuration, did you mean 'local_store_dir'?",
        ),
        ({"fsync": True}, "'fsync' is an option of the store, write it into routing_store_config (the configuration)"),
        ({"namespace": "x"}, "'namespace' is an option of the store, write it into routing_store_config "),
        ({"routing_store_config": 7}, "routing_store_config of the configuration must be an object, got a number"),
        ({"routing_store_config": "{"}, "routing_store_config of the configuration is no JSON: "),
        ({"routing_store_config": {1: 2}}, "routing_store_config of the configuration has a key that is no text: 1"),
    ],
)
def test_unknown_keys_are_reported(change: dict[str, Any], problem: str) -> None:
    (found,) = problems({**FLAT, **change})
    assert found.startswith(problem)
