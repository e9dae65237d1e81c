"""Where our lines go in an engine: FastDeploy gives its own loggers handlers, and nobody else's.

Unless somebody has given the root logger a handler, everything from INFO on is appended to ``routing_stores.log`` in
FastDeploy's folder for logs (``FD_LOG_DIR``, else ``log``), and warnings and errors go to stderr as well.
"""

from __future__ import annotations

import logging
import os

FILE_NAME = "routing_stores.log"
_OURS = "fastdeploy_routing_plugins"
_FORMAT = "%(levelname)-8s %(asctime)s %(process)-5s %(name)s: %(message)s"


class _FileHandler(logging.FileHandler):
    """Makes the folder and the file with the first line; where that cannot be, lines are on stderr only."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", delay=True)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.stream is None:
                os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
                self.stream = self._open()
        except OSError:
            return
        super().emit(record)


def _is_ours_to_write(record: logging.LogRecord) -> bool:
    return not logging.getLogger().handlers


def attach() -> None:
    """Gives our logger its handlers; harmless when it has some."""
    logger = logging.getLogger(_OURS)
    if logger.handlers:
        return
    folder = os.environ.get("FD_LOG_DIR") or "log"
    to_file, to_stderr = _FileHandler(os.path.join(folder, FILE_NAME)), logging.StreamHandler()
    to_stderr.setLevel(logging.WARNING)
    for handler in (to_file, to_stderr):
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.addFilter(_is_ours_to_write)
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
