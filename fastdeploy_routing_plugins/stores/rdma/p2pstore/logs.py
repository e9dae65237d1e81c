"""p2pstore's logging, tamed: by itself it makes a folder in the working directory and prints on standard output.

Whoever sets one of p2pstore's own variables (``P2PSTORE_LOG_LEVEL``, ``P2P_LOG_DIR``, ``P2PSTORE_ENABLE_CONSOLE``)
wants its files and gets them. Otherwise its loggers become children of ``fastdeploy_routing_plugins.p2pstore``, which
is silent unless a level is set for it: what p2pstore calls an error, an absent key for one, is an outcome here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from importlib import import_module
from typing import Any

LOGGER = "fastdeploy_routing_plugins.p2pstore"
_VARIABLES = ("P2PSTORE_LOG_LEVEL", "P2P_LOG_DIR", "P2PSTORE_ENABLE_CONSOLE")
_OFF = "P2PSTORE_DISABLE_LOG"
_SILENT = logging.CRITICAL + 1
_lock = threading.Lock()


def load() -> Any:
    """Imports p2pstore without a trace on disk or on standard output, and returns the module.

    Raises:
        ImportError: p2pstore, or what it needs, is not installed.
    """
    with _lock:
        if any(os.environ.get(name) for name in _VARIABLES):
            return import_module("p2pstore")
        with _unheard():
            p2pstore = import_module("p2pstore")
            import_module("p2pstore.transport")  # now rather than in the middle of the first client
            manager: Any = import_module("p2pstore.utils.logger").LoggerManager
        if manager.__dict__["setup_logger"] is not _tame:
            manager.setup_logger = _tame
            parent = logging.getLogger(LOGGER)
            if parent.level == logging.NOTSET:
                parent.setLevel(_SILENT)
        return p2pstore


@contextlib.contextmanager
def _unheard() -> Any:
    """While p2pstore is imported: it makes its first logger, and says so, before anything can be changed."""
    if "p2pstore" in sys.modules:
        yield
        return
    before = os.environ.get(_OFF)
    os.environ[_OFF] = "1"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        if before is None:
            del os.environ[_OFF]
        else:
            os.environ[_OFF] = before


def _setup_logger(cls: Any, name: str, level: int | None = None, include_thread: bool = True) -> logging.Logger:
    logger: logging.Logger | None = cls._loggers.get(name)  # whoever imported p2pstore before has them already
    if logger is None:
        logger = cls._loggers[name] = logging.getLogger(f"{LOGGER}.{name.replace('.', '-')}")
    return logger


_tame = classmethod(_setup_logger)
