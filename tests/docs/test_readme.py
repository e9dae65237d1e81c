"""README.md shows what is true: its Python runs, its generated blocks are fresh, its names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastdeploy_routing_plugins import errors

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUNNABLE = re.findall(r"<!-- runnable -->\n```python\n(.*?)```", README, re.DOTALL)
LINKS = sorted(set(re.findall(r"\]\(([^)#:]+)\)", README)))
CODES = sorted({cls.code for cls in vars(errors).values() if isinstance(cls, type) and hasattr(cls, "code")})


def test_python_blocks_run_in_order(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(RUNNABLE), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_python_blocks_to_run():
    assert len(RUNNABLE) >= 4


def test_generated_blocks_are_fresh():
    script = ROOT / "scripts" / "readme_includes.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_explained(code):
    assert f"`{code}`" in README


@pytest.mark.parametrize("link", LINKS)
def test_every_linked_file_exists(link):
    assert (ROOT / link).exists()


def test_every_command_is_described():
    from fastdeploy_routing_plugins.cli.main import cli

    assert [name for name in cli.list_commands(None) if f"`fd-routing {name}" not in README] == []


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_nothing_is_left_to_be_filled_in():
    assert re.findall(r"@[A-Z_]{3,}@", README) == []
