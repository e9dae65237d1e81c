"""Stand-in: the one variable that matters here, read at each look."""

import os


def __getattr__(name):
    if name == "FD_PLUGINS":
        return None if "FD_PLUGINS" not in os.environ else os.environ["FD_PLUGINS"].split(",")
    raise AttributeError(name)
