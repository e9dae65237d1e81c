"""Stand-in: calls the entry points of a group that FD_PLUGINS lists."""

from importlib.metadata import entry_points

from fastdeploy import envs

_loaded = set()


def load_plugins_by_group(group):
    allowed = envs.FD_PLUGINS
    return {} if allowed is None else {e.name: e.load() for e in entry_points(group=group) if e.name in allowed}


def _load_once(group):
    if group not in _loaded:
        _loaded.add(group)
        for function in load_plugins_by_group(group).values():
            function()


def load_reasoning_parser_plugins():
    _load_once("fastdeploy.reasoning_parser_plugins")


def load_model_register_plugins():
    _load_once("fastdeploy.model_register_plugins")
