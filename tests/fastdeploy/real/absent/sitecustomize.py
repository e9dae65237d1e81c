"""Stands in for the packages that a machine without an accelerator cannot have, so that a real FastDeploy imports.

This folder goes on ``PYTHONPATH``; Python then imports this module at the start of every process, spawned children
included. Names in ``MISSING`` are stood in for only if they are not installed; FastDeploy's compiled operators always
are. A stand-in has whatever name is asked of it, and computes nothing.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

MISSING = (
    "triton",
    "pynvml",
    "paddleformers",
    "aistudio_sdk",
    "huggingface_hub",
    "sentencepiece",
    "decord",
    "moviepy",
)
COMPILED = tuple(
    f"fastdeploy.model_executor.ops.{device}"
    for device in ("gpu", "cpu", "xpu", "gcu", "iluvatar", "intel_hpu", "npu")
)


class _Anything(type):
    """Classes of this kind can be subclassed, called, decorated with, subscripted and asked for any attribute."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _anything(name)
        setattr(cls, name, made)
        return made

    def __getitem__(cls, item):
        return cls

    def __setitem__(cls, item, value):
        pass

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls


class _Callable:
    """What calling a stand-in gives; a decorator's argument comes back as it is."""

    def __new__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Callable()

    def __getitem__(self, item):
        return self


def _anything(name: str) -> type:
    return _Anything(name, (_Callable,), {})


class _Module(types.ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _anything(name)
        setattr(self, name, made)
        return made


def _fill(module: types.ModuleType) -> None:
    """Gives the few names their sense that FastDeploy uses while it is imported."""
    import logging

    if module.__name__ == "triton":
        module.__version__ = "3.0.0"
        module.cdiv = lambda count, size: -(-count // size)
        module.next_power_of_2 = lambda count: 1 << (count - 1).bit_length()
    if module.__name__ == "paddleformers.utils.log":
        module.logger = logging.getLogger("paddleformers")
        module.logger.logger = module.logger


class _Loader:
    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = ["(absent)"]  # FastDeploy puts paths together from it at import
        _fill(module)


class _Finder:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == known or name.startswith(f"{known}.") for known in self._names):
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
        return None


sys.meta_path.insert(0, _Finder(COMPILED))
sys.meta_path.append(_Finder(MISSING))
