"""Stand-ins of a FastDeploy that was changed somewhere, with engines on them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .place import HERE, Place

Change = tuple[str, str, str]
"""A file below the stand-in's folder, a text in it, and what takes its place."""


def changed(root: Path, family: str, *changes: Change) -> Path:
    """Copies a stand-in with changes; returns its folder."""
    tree = root / "trees"
    shutil.copytree(HERE / "standin" / "common", tree / "common")
    shutil.copytree(HERE / "standin" / family, tree / family)
    for file, old, new in changes:
        path = tree / family / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))
    return tree / family


def found_at(place: Place, *changes: Change, before: Path | None = None) -> dict[str, str]:
    """Returns the variables that put a changed stand-in, and a folder before it, in place of the place's own."""
    tree = changed(place.root, place.family, *changes)
    path = place.environ(None, {})["PYTHONPATH"].replace(str(HERE / "standin" / place.family), str(tree))
    return {"PYTHONPATH": path if before is None else os.pathsep.join([str(before), path])}
