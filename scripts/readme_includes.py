"""Keeps the generated blocks of README.md equal to what they show.

    readme_includes.py           says which blocks are stale; exit code 1 if any is
    readme_includes.py --write   writes them anew

A block stands between two comments::

    <!-- file: examples/x.py -->    the file, as a fenced block
    <!-- options: local -->         the options of a store, as ``describe`` knows them, as a table
    <!-- run: fd-routing list -->   a command and what it prints
    <!-- end -->
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

from fastdeploy_routing_plugins.config import CommonOptions, OptionInfo, describe
from fastdeploy_routing_plugins.spec import ENTRY_POINT_GROUP

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- (file|options|run): (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "sh"}


def refresh(text: str) -> tuple[str, list[str]]:
    """Returns the text with every block made anew, and the headings of those that were stale."""
    stale: list[str] = []

    def replace(match: re.Match[str]) -> str:
        begin, kind, what, old, end = match.groups()
        new = {"file": file_block, "options": options_block, "run": run_block}[kind](what)
        if new != old:
            stale.append(f"{kind}: {what}")
        return f"{begin}{new}{end}"

    return BLOCK.sub(replace, text), stale


def file_block(path: str) -> str:
    """Returns a file as a fenced block."""
    content = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    return f"```{LANGUAGES[Path(path).suffix]}\n{content}\n```\n"


def options_block(store: str) -> str:
    """Returns a store's options, or the ``common`` ones of every store, as a table."""
    if store == "common":
        infos = describe(CommonOptions)
    else:
        (point,) = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == store]
        infos = describe(point.load().fd_routing_store().load_config())
    if not infos:
        return "No options of its own.\n"
    rows = [f"| `{i.name}` | {i.type} | {default(i)} | {i.doc} |".replace(" | None", " or null") for i in infos]
    return "\n".join(["| option | type | default | |", "|---|---|---|---|", *rows, ""])


def default(info: OptionInfo) -> str:
    """Returns an option's default as JSON."""
    return "required" if info.required else f"`{json.dumps(info.default)}`"


def run_block(command: str) -> str:
    """Returns a command and its output; it runs in an empty folder with no store configured."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("FD_")}
    env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(shlex.split(command), cwd=folder, env=env, capture_output=True, text=True, check=False)
    shown = "\n".join(line.rstrip() for line in (done.stdout + done.stderr).strip("\n").splitlines())
    return f"```console\n$ {command}\n{shown}\n```\n"


def main() -> int:
    """Checks, or with ``--write`` refreshes, README.md."""
    old = README.read_text(encoding="utf-8")
    new, stale = refresh(old)
    if "--write" in sys.argv[1:]:
        README.write_text(new, encoding="utf-8")
        return 0
    for heading in stale:
        print(f"README.md is stale: {heading} (make docs)", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    raise SystemExit(main())
