"""Stand-in: the package whose import loads the plugins, inside of ``import fastdeploy``."""

from fastdeploy.plugins import load_reasoning_parser_plugins

load_reasoning_parser_plugins()
