"""CHANGELOG.md tells of the version that is packaged."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_packaged_version_has_an_entry():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
