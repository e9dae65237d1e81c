"""``--routing-replay-config``: checked strictly, and turned into a resolved store and a schema.

FastDeploy keeps the keys that it knows, whatever their types, and drops the rest without a word. Here a wrong type or
an unknown key stops the engine, and ``routing_store_config``, options for the store, travels with the rest.
"""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

from ...config import CommonOptions, describe, option_names
from ...errors import ConfigError, RoutingError
from ...resolver import resolve
from ...resolving.sources import OPTIONS_KEY, STORE_KEY
from ...resolving.suggest import did_you_mean
from ...schema import RoutingSchema
from ...writer.limits import WriterLimits
from .arrays import refuse_rounded
from .gate import Arguments, Shape, fits, report, strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from ...resolver import ResolvedStore

RESPONSE = "response"
"""FastDeploy's word for no store: routing travels in the reply."""
DEFAULTS = {"local_store_dir": "./routing_replay_output"}
"""What FastDeploy fills in for keys that were not given; it does not tell which those are."""
_STORE_KEYS = (STORE_KEY, "local_store_dir", "rdma_store_server", "only_last_turn", "use_fused_put", OPTIONS_KEY)
_TYPES: dict[str, tuple[type, ...]] = {
    "enable_routing_replay": (bool,),
    STORE_KEY: (str,),
    "local_store_dir": (str,),
    "rdma_store_server": (str,),
    "only_last_turn": (bool,),
    "use_fused_put": (bool,),
    "debug_mode": (bool,),
    "routing_dtype": (str,),
    "num_moe_layers": (int,),
    "moe_top_k": (int,),
    OPTIONS_KEY: (dict, str),
}
KNOWN_KEYS = frozenset(_TYPES)
"""Those of the newest FastDeploy that was looked at, and ours."""


def wrong_types(args: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the values of known keys; ``"None"`` and None mean "not set" to FastDeploy."""
    problems = []
    for key, types in _TYPES.items():
        value = args.get(key)
        if value is None or value == "None" or (isinstance(value, types) and (type(value) is bool) == (bool in types)):
            continue
        expected = " or ".join(kind.__name__ for kind in types)
        problems.append(f"{key} must be {expected} in JSON, got {value!r:.80}")
    return problems


def unknown_keys(args: Iterable[str], known: Iterable[str], options: Iterable[str] = ()) -> list[str]:
    """Returns what is to be said about keys that FastDeploy would drop without a word.

    Args:
        args: The keys that were given.
        known: Those that there are.
        options: What the store has options for, which have a place of their own.
    """
    names, elsewhere = sorted({*known, OPTIONS_KEY}), frozenset(options)
    return [
        f"{key!r} is an option of the store: store options go into {OPTIONS_KEY}"
        if key in elsewhere
        else f"unknown key {key!r}, {did_you_mean(key, names) or 'there are ' + ', '.join(names)}"
        for key in args
        if key not in names
    ]


def store_options(replay: Any) -> tuple[str, ...]:
    """Returns the names of the options that the store has; of those that every store has, if it cannot be resolved."""
    with contextlib.suppress(RoutingError):
        return option_names(type(resolve_store(replay).config))
    return tuple([info.name for info in describe(CommonOptions)])


def config_error(problems: list[str]) -> ConfigError:
    """Returns the error that names every problem of ``--routing-replay-config``."""
    count = f"{len(problems)} problems: " if len(problems) > 1 else ""
    return ConfigError(
        f"--routing-replay-config: {count}{'; '.join(problems)}",
        hint="fd-routing check --fastdeploy '<json>' shows what the engine would do",
        problems=tuple(problems),
    )


def store_config(replay: Any) -> dict[str, Any]:
    """Returns what FastDeploy's configuration object says about the store; what is unset or false is left out."""
    said = {key: getattr(replay, key, None) for key in _STORE_KEYS}
    return {key: value for key, value in said.items() if value not in (None, "", "None", False, {})}


def resolve_store(replay: Any, environ: Mapping[str, str] | None = None) -> ResolvedStore:
    """Resolves the store that FastDeploy's configuration object names.

    Raises:
        ResolveError: the subclass and the message say why and what to do.
    """
    return resolve_config(store_config(replay), environ)


def resolve_config(config: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> ResolvedStore:
    """Resolves a store; FastDeploy's own defaults give way to what else is said, for example in the environment.

    Raises:
        ResolveError: as ``resolve``.
    """
    try:
        return resolve(config, environ=environ)
    except ConfigError as err:
        stated = {key: value for key, value in config.items() if DEFAULTS.get(key) != value}
        if len(stated) == len(config):
            raise
        try:
            return resolve(stated, environ=environ)
        except ConfigError:
            raise err from None


def schema_of(fd_config: Any) -> RoutingSchema:
    """Returns the schema of the model that FastDeploy serves.

    Raises:
        InvalidRecordError: the model's configuration states no usable number of experts, top_k or layers.
    """
    model, replay = fd_config.model_config, fd_config.routing_replay_config
    named_otherwise = model.architectures[0] == "Glm4MoeForCausalLM"
    top_k = model.num_experts_per_tok if named_otherwise else model.moe_k
    return RoutingSchema(
        num_experts=model.moe_num_experts,
        top_k=getattr(replay, "moe_top_k", 0) or top_k,
        layer_ids=range(model.moe_layer_start_index, model.num_hidden_layers),
    )


def check_dtype(fd_config: Any, schema: RoutingSchema) -> None:
    """Refuses a model whose ids FastDeploy's buffers of its generations D and E would round.

    Raises:
        UnsupportedError: there are too many experts.
    """
    experts = schema.num_experts + int(getattr(fd_config.model_config, "moe_num_shared_experts", 0) or 0)
    computed = "uint8" if experts + 1 <= 255 else "uint16" if experts + 1 <= 65_535 else "uint32"
    refuse_rounded(schema, getattr(fd_config.routing_replay_config, "routing_dtype", "") or computed)


# --- patches --------------------------------------------------------------------------------------------------------


def patch_config(module: ModuleType) -> None:
    """Patches ``fastdeploy.config``: strict types, room for ``routing_store_config``, JSON that is safe in a shell."""
    if not hasattr(module, "RoutingReplayConfig"):
        return  # a FastDeploy from before routing replay
    shapes = [Shape("RoutingReplayConfig.__init__", ("self", "args"))]
    shapes.append(Shape("RoutingReplayConfig.to_json_string", ("self",)))
    if not fits(module, shapes):
        return
    config_class = module.RoutingReplayConfig
    config_class.routing_store_config = None  # FastDeploy keeps the keys that its object has
    original, to_json = config_class.__init__, config_class.to_json_string
    arguments = Arguments(original, ("self", "args"))

    @functools.wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        given = arguments.of(args, kwargs).known[1]
        problems = wrong_types(given) if isinstance(given, dict) else []
        if problems:
            raise config_error(problems)
        original(*args, **kwargs)

    @functools.wraps(to_json)
    def to_json_string(self: Any, *args: Any, **kwargs: Any) -> str:
        # FastDeploy puts this between single quotes on a command line for a shell.
        return str(to_json(self, *args, **kwargs)).replace("'", "\\u0027")

    config_class.__init__ = __init__
    config_class.to_json_string = to_json_string


def patch_args(module: ModuleType) -> None:
    """Patches ``fastdeploy.engine.args_utils``: unknown keys and stores that cannot be used stop the engine here."""
    arguments = getattr(module, "EngineArgs", None)
    if not hasattr(arguments, "routing_replay_config"):
        return
    names = ("create_routing_repaly_config", "create_routing_replay_config")
    name = next((name for name in names if hasattr(arguments, name)), None)
    if name is None:
        report(f"{module.__name__} has no EngineArgs.{names[0]}")
        return
    if not fits(module, [Shape(f"EngineArgs.{name}", ("self",))]):
        return
    setattr(arguments, name, _checked(getattr(arguments, name)))


def _checked(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.routing_replay_config
        made = original(self, *args, **kwargs)
        if isinstance(given, dict):
            known = _keys_of(made)
            problems = [] if known.issuperset(given) else unknown_keys(given, known, store_options(made))
            if problems:
                raise config_error(problems)
        if made.enable_routing_replay and made.routing_store_type != RESPONSE:
            resolve_store(made)
            WriterLimits.load()
            strict()  # a value that it cannot have stops the engine here as well
        return made

    return create


def _keys_of(replay: Any) -> set[str]:
    """Returns the keys that this FastDeploy's configuration takes, with those that only a newer one has."""
    kind = type(replay)
    keys = {*dir(kind), *vars(replay)}
    return {key for key in keys if not key.startswith("_") and not callable(getattr(kind, key, None))}


def shown(config: Mapping[str, Any]) -> str:
    """Returns a configuration as JSON, for people."""
    return json.dumps(dict(config), sort_keys=True)
